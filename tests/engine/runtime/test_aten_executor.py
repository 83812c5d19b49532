"""The ATen executor: cheap callables equal their operators, and dead values are freed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.fx

from engine.ir.aot.aot_graph import AotGraph
from engine.runtime.aten_executor import aten_callable, aten_executor

aten = torch.ops.aten
A, B, I = torch.randn(3, 4), torch.randn(3, 4), torch.tensor([2, 0])
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.add.Tensor, (A, B), {"alpha": 2}),
    (aten.add.Tensor, (A, 1), {}),
    (aten.sub.Tensor, (A, B), {"alpha": 3}),
    (aten.rsub.Scalar, (A, 1), {}),
    (aten.mul.Tensor, (A, 0.5), {}),
    (aten.div.Tensor, (A, B), {}),
    (aten.pow.Tensor_Scalar, (A.abs(), 3.0), {}),
    (aten.addmm.default, (B[0], A, torch.randn(4, 4)), {"beta": 0.5, "alpha": 2}),
    (aten.sum.dim_IntList, (A, [0], True), {"dtype": torch.float64}),
    (aten.mean.dim, (A, [-1], True), {}),
    (aten.var.correction, (A, [1]), {"correction": 1, "keepdim": True}),
    (aten.any.dim, (A > 0, 1, True), {}),
    (aten.argmax.default, (A, 1, True), {}),
    (aten.where.self, (A > 0, A, B), {}),
    (aten.clamp.default, (A, None, 0.5), {}),
    (aten._softmax.default, (A, -1, False), {}),
    (aten.native_layer_norm.default, (A, [4], B[0], B[1], 1e-5), {}),
    (aten.embedding.default, (A, I), {}),
    (aten.index_select.default, (A, 0, I), {}),
    (aten.split.Tensor, (A, 2, 1), {}),
    (aten.cat.default, ([A, B], 1), {}),
    (aten.stack.default, ([A, B], 1), {}),
    (aten.expand.default, (A[:, :1], [3, 4]), {}),
    (aten.view.default, (A, [2, 6]), {}),
    (aten.repeat.default, (A, [2, 1]), {}),
    (aten.permute.default, (A, [1, 0]), {}),
    (aten.transpose.int, (A, 0, 1), {}),
    (aten.select.int, (A, 1, 2), {}),
    (aten.squeeze.dim, (A[:, :1], 1), {}),
    (aten.topk.default, (A, 2), {}),
    (aten.sort.default, (A, 1, True), {}),
    (aten.gather.default, (A, 0, torch.zeros(2, 4, dtype=torch.int64)), {}),
    (aten.cumsum.default, (A, 1), {"dtype": torch.float64}),
    (aten.arange.default, (5,), {"dtype": torch.float32, "device": torch.device("cpu"), "pin_memory": False}),
    (aten.full_like.default, (A, 3), {"dtype": torch.int64, "pin_memory": False}),
    (aten.gelu.default, (A,), {"approximate": "tanh"}),
    (aten.round.default, (A,), {}),
    (aten.roll.default, (A, [1], [0]), {}),
    (aten.tril.default, (A, 1), {}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS, ids=[str(op) for op, _, _ in CALLS])
def test_cheap_callables_are_their_operators(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The Python binding for an operator takes the same arguments and gives the same results."""
    cheap = aten_callable(op)
    assert cheap is not op
    expected, found = op(*args, **kwargs), cheap(*args, **kwargs)
    pairs = zip(expected, found, strict=True) if isinstance(expected, (tuple, list)) else [(expected, found)]
    for one, other in pairs:
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        assert torch.equal(one, other)


def test_values_go_after_their_last_use() -> None:
    """An intermediate is freed before the operators after its last reader run."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    seen: list[Any] = []

    def make(value: torch.Tensor) -> torch.Tensor:
        made = value + 1
        seen.append(weakref.ref(made))
        return made

    def last(value: torch.Tensor) -> torch.Tensor:
        gc.collect()
        seen.append(seen[0]() is None)
        return value * 2

    middle = graph.call_function(make, (x,))
    read = graph.call_function(aten.relu.default, (middle,))
    graph.output((graph.call_function(last, (read,)),))
    run = aten_executor(AotGraph(torch.fx.GraphModule(torch.nn.Module(), graph), (A,), "0/0"))
    (result,) = run(A)
    assert torch.equal(result, (A + 1).relu() * 2)
    assert seen[1] is True
