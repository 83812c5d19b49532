"""Two recordings compared: equal ones are equal, and each kind of change is told."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import engine
from engine.observe.compare_sessions import compare_sessions
from engine.observe.observe_torch import observe_torch
from engine.records.session import Session
from engine.records.session_comparison import SessionComparison


@pytest.fixture(autouse=True)
def fresh_torch() -> Iterator[None]:
    """torch.compile with empty caches."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).relu()


def watched(fn: Any, *calls: torch.Tensor) -> Session:
    """The calls under stock torch.compile."""
    torch.compiler.reset()
    with observe_torch() as session:
        compiled = torch.compile(fn, backend="eager")
        for x in calls:
            compiled(x)
    return session


def named(fn: Any) -> Any:
    """A function under the name of another, as an edited one has."""
    fn.__code__ = fn.__code__.replace(co_name="scaled", co_qualname="scaled")
    fn.__name__ = fn.__qualname__ = "scaled"
    return fn


def changes(found: SessionComparison) -> dict[str, Any]:
    """What differs of the only function, by its word."""
    (frame,) = [f for f in found.frames if f.first and f.second]
    return {c.aspect: c for c in frame.aspects if not c.is_same}


def test_the_same_run_twice_is_equal() -> None:
    """Two runs of one program do not differ, whatever addresses and times they had."""
    first, second = (watched(scaled, torch.ones(3), torch.ones(4)) for _ in range(2))
    assert compare_sessions(first, second).is_same


def test_names_that_torch_numbers_do_not_differ() -> None:
    """Torch's numbered name for the table of builtins is no difference between two runs."""

    def counts(x: torch.Tensor, parts: list[int]) -> torch.Tensor:
        for part in reversed(parts):
            x = x * part + len(parts)
        return x

    sessions = []
    for _ in range(2):
        with observe_torch() as session:
            torch.compile(counts, backend="eager")(torch.ones(3), [1, 2])
        sessions.append(session)
        torch.compiler.reset()
    names = [{g.source for c in s.compilations if c.guards for g in c.guards.guards} for s in sessions]
    assert names[0] != names[1]
    assert compare_sessions(*sessions).is_same


def test_operations_breaks_and_guards() -> None:
    """An edit adds an operation, a graph break and a changed guard, and only these differ."""

    def edited(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).relu().sin()
        print(end="")
        return y

    found = changes(compare_sessions(watched(scaled, torch.ones(3)), watched(named(edited), torch.ones(5))))
    assert any(".sin()" in t for t in found["graphs"].only_second)
    assert not any("mul" in t for t in found["graphs"].only_second + found["graphs"].only_first)
    assert "print" in found["breaks"].only_second[0]
    assert any("f32[3]" in t for t in found["guards"].only_first)
    assert any("f32[5]" in t for t in found["guards"].only_second)


def test_recompiles_are_told_with_their_reason() -> None:
    """A recompile that only one run had is told with the reason."""
    found = changes(compare_sessions(watched(scaled, torch.ones(3)), watched(scaled, torch.ones(3), torch.ones(4))))
    assert (found["compilations"].first, found["compilations"].second) == ("1", "2")
    assert any("size 4" in t for t in found["compilations"].only_second)


def test_functions_of_one_side_only() -> None:
    """A function that only one run compiled is told to be missing in the other."""

    def other(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    found = compare_sessions(watched(scaled, torch.ones(3)), watched(other, torch.ones(3)))
    assert {(f.name, bool(f.first), bool(f.second)) for f in found.frames} == {
        ("scaled", True, False),
        ("other", False, True),
    }
    assert not found.is_same


def test_our_own_sessions_compare_too() -> None:
    """Sessions of our own compiler compare the same way and show an additional operation."""
    sessions = []
    for fn in (scaled, named(lambda x: (x * 2).relu().cumsum(0))):
        with engine.record() as session:
            engine.compile(fn)(torch.ones(3))
        sessions.append(session)
    first, second = sessions
    assert compare_sessions(first, first).is_same
    assert "graphs" in changes(compare_sessions(first, second))


def test_a_renamed_file_is_the_same_function() -> None:
    """A function whose file was renamed is compared; an edit of it is found."""

    def saved_as(name: str, fn: Any) -> Any:
        code = named(fn).__code__.replace(co_filename=name)
        return types.FunctionType(code, globals(), "scaled")

    first = watched(saved_as("old_name.py", lambda x: torch.relu(x * 2)), torch.ones(3))
    assert compare_sessions(first, watched(saved_as("new.py", lambda x: torch.relu(x * 2)), torch.ones(3))).is_same
    edited = watched(saved_as("new.py", lambda x: torch.relu(x * 3)), torch.ones(3))
    assert "graphs" in changes(compare_sessions(first, edited))


def test_guards_on_the_functions_that_a_name_means_do_not_differ() -> None:
    """A method in place of a function of torch is no difference, though torch guards on it."""
    first = watched(named(lambda x: torch.sin(x).cos()), torch.ones(3))
    assert compare_sessions(first, watched(named(lambda x: torch.cos(x.sin())), torch.ones(3))).is_same
