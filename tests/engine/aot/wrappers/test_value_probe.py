"""Sessions that record every step note tensor contents between AOT runtime wrappers.

Other sessions record no contents.
"""

from __future__ import annotations

import pytest
import torch

import engine
from engine.aot.wrappers.value_probe import MAX_RECORDED_CALLS, describe_value
from engine.records.aot import CallValuesRecord


def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Writes to its input."""
    x.mul_(2)
    return (x @ w).relu()


def passages(level: str, *, trains: bool = False, calls: int = 1) -> tuple[CallValuesRecord, ...]:
    """What a session of this level keeps of calls with x = 0 .. 3 and w = 1/2."""
    engine.reset()
    compiled = engine.compile(step, backend="aot_eager")
    with engine.record(level=level) as session:
        for _ in range(calls):
            x, w = torch.arange(4.0).view(2, 2), torch.full((2, 2), 0.5, requires_grad=trains)
            assert torch.equal(compiled(x, w), torch.tensor([[1.0, 1.0], [5.0, 5.0]]))
            assert x.tolist() == [[0, 2], [4, 6]]
    return session.compilations[0].call_values


@pytest.mark.parametrize("trains", [False, True])
def test_contents_are_noted_layer_by_layer(trains: bool) -> None:
    """The record shows old contents at the call and new contents after input mutation.

    The graph returns the new contents as a separate output, and the input mutation wrapper copies them into the
    input.
    """
    (told,) = passages("steps", trains=trains)
    moments = {(m.wrapper, m.direction): dict(m.values) for m in told.wrapper_values}
    old, new = "[[0, 1], [2, 3]]", "[[0, 2], [4, 6]]"
    assert moments["call", "in"]["x"] == old
    assert new in moments["graph", "out"].values()
    assert "x" not in moments["graph", "out"]
    assert moments["input mutation", "out"]["x"] == new
    assert moments["call", "out"]["output 0"] == "[[1, 1], [5, 5]]"
    assert moments["call", "out"]["x"] == new


def test_nothing_is_noted_unless_steps_are_recorded() -> None:
    """A plain recording keeps no contents."""
    assert passages("standard") == ()


def test_only_the_first_calls_are_noted() -> None:
    """The number of calls that are kept is bounded."""
    assert len(passages("steps", calls=MAX_RECORDED_CALLS + 3)) == MAX_RECORDED_CALLS


def test_a_call_that_fails_leaves_no_half_a_passage() -> None:
    """What raises is raised as before, and the next call is noted whole."""
    engine.reset()

    def looked_up(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i] + 1

    compiled = engine.compile(looked_up, backend="aot_eager")
    with engine.record(level="steps") as session:
        with pytest.raises(IndexError):
            compiled(torch.ones(3), torch.tensor([7]))
        compiled(torch.ones(3), torch.tensor([2]))
    assert all(p.wrapper_values[-1].wrapper == "call" for p in session.compilations[0].call_values)


def test_contents_are_short_and_move_no_state() -> None:
    """Value descriptions are short and change no version counter, mode or gradient.

    Small tensors are shown in full, larger ones by their first elements, others by a reason.
    """
    assert describe_value(torch.tensor([True, False])) == "[True, False]"
    assert describe_value(torch.arange(100)) == "[0, 1, 2, 3, 4, 5, … 100 elements]"
    assert describe_value(torch.ones(100, 100).T).startswith("not shown: 10,000 elements")
    assert describe_value(torch.ones(2).to_sparse()).startswith("not shown")
    assert describe_value(torch.tensor(0.123456)) == "0.1235"
    assert describe_value(3) == "3"
    assert describe_value("text") == "str"
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    version = y._version
    assert describe_value(y) == "[2, 2]"
    assert y._version == version
    assert torch.vmap(lambda v: v + len(describe_value(v)[:3]))(torch.zeros(2)).tolist() == [3, 3]
