"""Each backward node leads to the line that it is the gradient of.

Sums of gradients lead to the line where the gradients meet.
"""

from __future__ import annotations

import torch

import engine
from engine.records.aot import SavedValue
from engine.records.graph import NodeRecord


def _told(fn: object, *args: torch.Tensor) -> tuple[tuple[NodeRecord, ...], tuple[SavedValue, ...]]:
    engine.reset()
    with engine.record() as session:
        engine.compile(fn, backend="aot_eager")(*args).sum().backward()
    (record,) = session.compilations
    assert record.aot is not None and record.aot.partition is not None
    (backward,) = (g for g in record.graphs if g.stage == "backward")
    return backward.nodes, record.aot.partition.values


def _leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


def _meets(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    a = x.sin() * w
    b = a.cos() * w
    return (b + a).exp() * x


def test_sums_belong_to_what_they_are_the_gradient_of() -> None:
    """A sum of an argument's gradients belongs to neither of the operators around it.

    The argument is read twice, and the sum stands between the gradients of two other operators.
    """
    nodes, _ = _told(_meets, _leaf(4), _leaf(4))
    sums = {n.note: [o.rpartition(":")[2] for o in n.origins] for n in nodes if "summed" in n.note}
    assert sums == {
        "the gradients of w are summed": [],
        "the gradients of several uses are summed": ["mul"],
        "the gradients of x are summed": [],
    }


def test_every_node_has_an_origin_or_says_why_not() -> None:
    """Inputs and tangents, too."""
    nodes, _ = _told(_meets, _leaf(4), _leaf(4))
    assert [n.name for n in nodes if n.op != "output" and not n.origins and not n.note] == []
    (tangent,) = (n for n in nodes if n.name.startswith("tangent"))
    assert tangent.note == "the gradient of an output"


def test_parts_of_several_results_count_with_them() -> None:
    """A part of a tensor is a view; what an operator gives beside another is computed with it."""
    _, values = _told(lambda x: (x.chunk(2)[0] + 1).exp().max(0).values.sin() * x.chunk(2)[1].cos(), _leaf(4, 4))
    told = {v.reason: v.bytes for v in values if v.name.startswith("getitem") and v.action == "recomputed"}
    assert told["a view: creating it takes no time and no memory"] == 0
    assert told["one output of a multi-output operator that is recomputed"] == 0
