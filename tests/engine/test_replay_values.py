"""Tests of recording tensor values by replaying a call after a plain recording.

The values are those in the AOT runtime wrappers around a graph. The call is replayed on copies, without
the user's code.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import engine
from engine.errors import BadArgument
from engine.records.aot import CallValuesRecord
from engine.records.session import Session


def noted(session: Session) -> CallValuesRecord:
    """The last passage of the first compilation, once it was asked for."""
    first = session.compilations[0].id
    engine.record_tensor_values(session, first)
    return session.compilation(first).call_values[-1]


def recorded(f: Any, *args: Any, **options: Any) -> Session:
    """A session of one call."""
    engine.reset()
    with engine.record() as session:
        engine.compile(f, **{"backend": "aot_eager", **options})(*args)
    return session


def at(passage: CallValuesRecord, layer: str, direction: str) -> dict[str, str]:
    """What was noted at one point of the way."""
    return next(dict(m.values) for m in passage.wrapper_values if (m.wrapper, m.direction) == (layer, direction))


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Writes to its input and returns a view of it."""
    x.mul_(2)
    return x[:1]


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_contents_are_noted_after_a_plain_run(backend: str) -> None:
    """Replay shows the call's wrappers with present tensor values, and mutates nothing."""
    x = torch.tensor([1.0, 3.0])
    session = recorded(doubled, x, backend=backend)
    passage = noted(session)
    assert "in their present state" in passage.replayed_on
    assert at(passage, "call", "in")["x"] == "[2, 6]"
    assert at(passage, "input mutation", "out")["x"] == "[4, 12]"
    assert at(passage, "call", "out")["output 0"] == "[4]"
    assert x.tolist() == [2, 6]


def test_the_backward_half_is_noted_too() -> None:
    """Replay shows the saved tensors, and the gradients for tangents of ones.

    The user's own gradients, hooks and random state are untouched.
    """
    seen: list[Any] = []
    w = torch.tensor([2.0, 4.0], requires_grad=True)
    w.register_hook(seen.append)
    x = torch.tensor([1.0, 3.0])
    session = recorded(lambda x, w: (x * w).sin().sum(), x, w)
    kernels = session.compilations[0].kernels
    state = torch.get_rng_state()
    passage = noted(session)
    assert [(m.wrapper, m.direction) for m in passage.wrapper_values[-2:]] == [("backward", "in"), ("backward", "out")]
    assert at(passage, "backward", "out") == {"gradient of w": "[-0.4161, 2.532]"}
    assert "1" in at(passage, "backward", "in").values()
    assert (seen, w.grad) == ([], None)
    assert torch.equal(state, torch.get_rng_state())
    assert session.compilations[0].kernels == kernels


def test_with_steps_the_users_own_backward_is_noted() -> None:
    """Its tangents are the real ones; a second backward of the same graph is not noted again."""
    engine.reset()
    w = torch.tensor([2.0, 4.0], requires_grad=True)
    with engine.record(level="steps") as session:
        out = engine.compile(lambda w: w * w, backend="aot_eager")(w)
        for _ in range(2):
            out.backward(torch.tensor([1.0, 10.0]), retain_graph=True)
    (passage,) = session.compilations[0].call_values
    assert passage.replayed_on == ""
    assert at(passage, "backward", "out") == {"gradient of w": "[4, 80]"}
    assert sum(m.wrapper == "backward" for m in passage.wrapper_values) == 2
    assert w.grad is not None
    assert w.grad.tolist() == [8, 160]


def test_fresh_numbers_stand_for_what_is_gone() -> None:
    """No tensor is kept alive for this, and the passage says so."""
    session = recorded(lambda x, y: x + y, torch.ones(3), torch.arange(3))
    passage = noted(session)
    assert "random numbers" in passage.replayed_on
    assert at(passage, "call", "in")["y"] == "[0, 0, 0]"


def test_tensors_that_share_memory_are_copied_together() -> None:
    """A write through one of them shows in the other."""
    base = torch.zeros(4)
    session = recorded(lambda a, b: a.add_(1) + b, base[:2], base[:3][:2])
    keep = base[:2], base[:3][:2]
    passage = noted(session)
    assert keep is not None
    assert base.tolist() == [1, 1, 0, 0]
    assert passage.wrapper_values[-1].wrapper == "call"


def test_what_was_computed_may_be_written_to() -> None:
    """An input that is no leaf of autograd is none in the copy either."""
    leaf = torch.ones(2, requires_grad=True)
    x = leaf * 3
    session = recorded(lambda x: x.mul_(2).sum(), x)
    passage = noted(session)
    assert passage.wrapper_values[-1].wrapper == "backward"
    assert leaf.grad is None


def test_sizes_that_are_symbols_are_handed_over() -> None:
    """The entry with symbols runs for the sizes that it was compiled for."""
    engine.reset()
    compiled = engine.compile(lambda x: x * x.size(0), backend="aot_eager", dynamic=True)
    x = torch.ones(3)
    with engine.record() as session:
        compiled(x)
    assert at(noted(session), "call", "out")["output 0"] == "[3, 3, 3]"


def test_what_cannot_be_made_again_says_why() -> None:
    """Recording values raises an error with the reason when a call cannot be replayed.

    Reasons: a loaded session, a graph that runs as traced, a missing cache entry, effects that must not run
    twice.
    """
    session = recorded(lambda x: x + 1, torch.ones(2))
    loaded = Session.from_data(session.to_data())
    with pytest.raises(BadArgument, match="loaded"):
        engine.record_tensor_values(loaded, loaded.compilations[0].id)
    with pytest.raises(BadArgument, match=f"no compilation 'nowhere'. It has {session.compilations[0].id}"):
        engine.record_tensor_values(session, "nowhere")
    eager = recorded(lambda x: x + 1, torch.ones(2), backend="eager")
    with pytest.raises(BadArgument, match="cannot be replayed"):
        engine.record_tensor_values(eager, eager.compilations[0].id)


def test_a_call_that_fails_is_told_and_leaves_nothing() -> None:
    """Zeros or present values may be what the graph refuses: a sentence says so."""
    i = torch.tensor([2])
    session = recorded(lambda x, i: x[i] + 1, torch.ones(3), i)
    i.fill_(7)
    with pytest.raises(BadArgument, match="raised IndexError"):
        engine.record_tensor_values(session, session.compilations[0].id)
    assert session.compilations[0].call_values == ()


def test_a_session_keeps_no_tensor_alive_for_it() -> None:
    """A session does not keep an input alive for a later replay."""
    import gc
    import weakref

    x = torch.ones(3)
    session = recorded(lambda x: x + 1, x)
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None
    assert session.compilations
