"""Standalone compiled graphs check that inputs match those they were compiled for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.backward_pipeline import compile_standalone_graph
from engine.options import Options
from engine.records.session import CompilationRecord
from engine.torch_private.fx import make_fx


def _adds(a: torch.Tensor, b: torch.Tensor) -> Any:
    a.add_(1)
    return (b * 2,)


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize("first", ["same", "view", "apart"])
def test_inputs_that_shared_memory_once(first: str, backend: str) -> None:
    """A graph compiled for aliased inputs is right for distinct tensors, and vice versa.

    Aliased inputs are one tensor passed twice, or a tensor and a view of it.
    """

    def inputs(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.arange(4.0)
        return x, {"same": x, "view": x.view(4), "apart": x.clone()}[kind]

    module = make_fx(_adds, tracing_mode="fake")(*inputs("apart"))
    for node in module.graph.nodes:
        node.meta["example_value"] = node.meta.get("val")
    record = CompilationRecord("alone/0", "alone", "a test")
    run = compile_standalone_graph(module, inputs(first), Options(backend=backend), record)
    for kind in (first, "same", "view", "apart"):
        given, wanted = inputs(kind), inputs(kind)
        (found,), (expected,) = run(*given), _adds(*wanted)
        assert found.tolist() == expected.tolist()
        assert [t.tolist() for t in given] == [t.tolist() for t in wanted]
