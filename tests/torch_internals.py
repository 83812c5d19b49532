"""Private names of torch that only tests use: the tests' part of ``engine.torch_private``."""

from __future__ import annotations

import importlib
from typing import Any

from torch._dynamo import callback as dynamo_callbacks
from torch._dynamo import compiled_autograd as dynamo_compiled_autograd
from torch._dynamo import config as dynamo_config
from torch._dynamo import decorators as dynamo_decorators
from torch._dynamo import error_on_graph_break
from torch._dynamo.mutation_guard import install_generation_tagging_init
from torch._dynamo.utils import _get_error_on_graph_break as get_error_on_graph_break
from torch._dynamo.utils import counters as dynamo_counters
from torch._logging import set_logs, trace_structured
from torch.testing._internal.two_tensor import TwoTensor

__all__ = (
    "TwoTensor",
    "dynamo_callbacks",
    "dynamo_compiled_autograd",
    "dynamo_config",
    "dynamo_counters",
    "dynamo_decorators",
    "error_on_graph_break",
    "get_error_on_graph_break",
    "install_generation_tagging_init",
    "operator_samples",
    "set_logs",
    "trace_structured",
)


def operator_samples() -> list[Any]:
    """Return torch's operators with sample inputs, which take seconds to import."""
    operators: list[Any] = importlib.import_module("torch.testing._internal.common_methods_invocations").op_db
    return operators
