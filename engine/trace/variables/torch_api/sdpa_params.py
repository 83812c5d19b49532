"""Flags of scaled dot product attention kernels. Python runs queries about the kernels."""

from __future__ import annotations

import torch
import torch.backends.cuda
from torch.backends.cuda import SDPAParams

from engine.ir.introspection.torch_global_state import SDPA_BACKENDS
from engine.torch_private import global_state
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, Kwargs, Variable
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.torch_api.global_state import register_state_query, register_state_setter

_QUERIES = [getattr(torch.backends.cuda, f"can_use_{n}_attention", None) for n in ("flash", "efficient", "cudnn")]


@register_rule(SDPAParams, *filter(None, _QUERIES))
def _query_kernels(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    raise Unsupported("torch-internals", "a query about attention kernels, which reads the memory of tensors")


for _name in SDPA_BACKENDS:
    register_state_query(getattr(global_state, f"get_{_name}_sdp_enabled"), "attention_kernels")
    register_state_setter(getattr(global_state, f"set_sdp_use_{_name}"))
    if hasattr(torch.backends.cuda, f"enable_{_name}_sdp"):
        register_state_query(getattr(torch.backends.cuda, f"{_name}_sdp_enabled"), "attention_kernels")
        register_state_setter(getattr(torch.backends.cuda, f"enable_{_name}_sdp"))


register_state_query(global_state.get_sdp_priority_order, "attention_kernels")
register_state_setter(global_state.set_sdp_priority_order)
