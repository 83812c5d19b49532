"""Record statistics of each node's values at level "steps", and name the first NaN."""

from __future__ import annotations

import pytest
import torch

import engine
from engine.records.aot import NodeValuesRecord
from engine.records.findings import find_problems
from engine.records.session import Session
from notebook_ext.views.graph.node_table import graph
from notebook_ext.views.home import home
from notebook_ext.views.tracer_steps import tracer_steps


def values_of(session: Session) -> dict[str, NodeValuesRecord]:
    """Return the recorded values by node name, of the first call."""
    return {v.node.rpartition(":")[2]: v for v in session.compilations[0].call_values[0].nodes}


def test_range_and_histogram_are_those_of_the_values() -> None:
    """The statistics agree with the tensors; infinite elements are counted apart."""
    x = torch.tensor([[0.0, 1.0], [2.0, 4.0]])
    with engine.record(level="steps") as session:
        result = engine.compile(lambda x: (x + 1).log2() / x)(x)
    found = values_of(session)
    assert (found["add"].low, found["add"].high, found["add"].mean) == (1.0, 5.0, 2.75)
    assert sum(found["add"].histogram) == 4
    assert found["add"].heat_map == ("02", "49")
    assert found["div"].heat_map[0][0] == "x"
    described = tracer_steps(session, session.compilations[0].id)["described"]
    assert described["add"][3]["heat_map"] == ["02", "49"]
    assert described["truediv"][3]["bad"] == "NaN"
    assert (found["div"].nans, found["div"].infinities, found["div"].count) == (1, 0, 4)
    assert torch.equal(result.isnan(), torch.tensor([[True, False], [False, False]]))
    assert "div: 4 elements" in str(session.aot)


def test_first_nan_is_named_with_its_line() -> None:
    """The finding names the operator with finite inputs; the traced graph marks it."""

    def loss(x: torch.Tensor) -> torch.Tensor:
        shifted = x - 1
        return (torch.sqrt(shifted) * 2).sum()

    with engine.record(level="steps") as session:
        engine.compile(loss)(torch.tensor([0.5, 2.0]))
    (finding,) = (f for f in find_problems(session) if f.kind == "values-not-finite")
    assert finding.title == "sqrt computes the first NaN values: 1 of 2"
    assert "sub from -0.5 to 1" in finding.cause
    assert finding.span is not None
    shown = graph(session, session.compilations[0].id)
    assert shown["stage"] == "fx"
    marked = {shown["nodes"]["name"][n] for n, v in shown["values"].items() if v["bad"] == "NaN"}
    assert marked == {"sqrt", "mul", "sum_1"}


def test_a_nan_of_an_infinite_operand_is_explained() -> None:
    """The cause counts the operand's infinite elements, and the outcome names the operator."""
    with engine.record(level="steps") as session:
        engine.compile(lambda p: (p * p.log()).sum(-1))(torch.tensor([[0.5, 0.0], [0.2, 0.8]]))
    (finding,) = (f for f in find_problems(session) if f.kind == "values-not-finite")
    assert "log from -1.609 to -0.2231 (1 infinite)" in finding.cause
    assert home(session)["outcome"].endswith("; mul computes the first NaN values: 1 of 4.")


def test_a_nan_of_the_backward_is_named() -> None:
    """The gradient of sqrt at zero is infinite: the backward's values are recorded too."""
    x = torch.zeros(2, requires_grad=True)
    with engine.record(level="steps") as session:
        engine.compile(lambda x: (x.sqrt() * 0).sum())(x).backward()
    assert x.grad is not None
    assert x.grad.isnan().all()
    nodes = session.compilations[0].call_values[0].nodes
    assert any(v.node.startswith("backward:") and v.nans for v in nodes)
    assert any(f.kind == "values-not-finite" for f in find_problems(session))


@pytest.mark.parametrize("function", [torch.rand_like, lambda x: torch.nn.functional.dropout(x, 0.5)])
def test_random_numbers_are_not_drawn_twice(function: object) -> None:
    """A graph that draws random numbers runs once: its results are those without recording."""
    torch.manual_seed(0)
    expected = engine.compile(function)(torch.ones(8)).clone(), torch.rand(2)
    engine.reset()
    torch.manual_seed(0)
    with engine.record(level="steps") as session:
        result = engine.compile(function)(torch.ones(8))
    assert torch.equal(result, expected[0])
    assert torch.equal(torch.rand(2), expected[1])
    assert not session.compilations[0].call_values[0].nodes


def test_nothing_is_recorded_without_steps() -> None:
    """At the standard level no graph runs once more."""
    with engine.record() as session:
        engine.compile(lambda x: x + 1)(torch.ones(2))
    assert not session.compilations[0].call_values


def test_statistics_that_fail_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call gives its result, and a note says why its values are missing."""

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("engine.aot.driver.node_statistics", fail)
    with engine.record(level="steps") as session:
        result = engine.compile(torch.sin)(torch.ones(2))
    assert torch.equal(result, torch.ones(2).sin())
    assert any("values of its nodes are not recorded" in n and "no room" in n for n in session.notes)
