"""Tests of trying fixes, what-if queries and guard costs on a live session.

None of them changes what the session recorded.
"""

from __future__ import annotations

import functools
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import engine
from engine import api
from engine.errors import BadArgument
from engine.ir.wrapped_parameters import name_arguments, with_named, wrapped_parameters
from engine.records.guards import Fix

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fixes are tried in a forked process")


without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a process that may use CUDA is not forked")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    engine.reset()
    yield
    engine.reset()


def fixes(session: engine.Session) -> list[Fix]:
    """All fixes that are code, of the last call."""
    return [f for r in session.calls[-1].guard_failures for f in r.fixes if f.code]


def scaled(x: Any, w: Any, n: int = 3) -> Any:
    return (x @ w).relu() * n


def times(x: Any, w: Any, n: int = 3) -> Any:
    return (x * n).relu(), w + 1


def recorded(*calls: tuple[Any, ...], function: Any = scaled) -> engine.Session:
    """A session of these calls."""
    compiled = engine.compile(function, backend="eager")
    with engine.record() as session:
        for call in calls:
            compiled(*call)
    return session


W = torch.randn(4, 4)


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A function of two tensors of one length."""
    return x.sin() * mask


def test_sizes_that_change_together_are_marked_together() -> None:
    """A mark of one tensor alone would leave the other one's recompile."""
    session = recorded((torch.randn(4), torch.ones(4, 1)), (torch.randn(6), torch.ones(6, 1)), function=masked)
    assert engine.try_fixes(session) >= 1
    (failure,) = session.calls[-1].guard_failures
    mark = next(f for f in failure.fixes if "mark_dynamic" in f.code)
    assert sorted(mark.code.splitlines()) == ["engine.mark_dynamic(mask, 0)", "engine.mark_dynamic(x, 0)"]
    assert mark.verified.endswith("1 compile instead of 2")


def passing_on(function: Any) -> Any:
    """Wrap a function as most decorators do."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def test_arguments_of_a_decorated_function_have_its_own_names() -> None:
    """Calls, guard failures, graphs and fixes name the parameters, not ``args[0]``."""
    compiled = engine.compile(passing_on(scaled), backend="eager")
    with engine.record() as session:
        compiled(torch.randn(2, 4), w=W)
        compiled(torch.randn(2, 4), w=W)
        compiled(torch.randn(3, 4), w=W)
    assert [call.inputs for call in session.calls] == [{"x": f"f32[{n}, 4]", "w": "f32[4, 4]"} for n in (2, 2, 3)]
    (failure,) = session.calls[-1].guard_failures
    assert failure.source == "L['x']"
    assert failure.sentence == "x has size 3 in dimension 0; the compiled code was specialized for size 2."
    graph = session.compilations[0].graphs[0]
    assert [n.name for n in graph.nodes if n.op == "placeholder"] == ["x", "w"]
    engine.try_fixes(session)
    (fix,) = fixes(session)
    assert fix.code == "engine.mark_dynamic(x, 0)"
    assert fix.verified or torch.cuda.is_available()


def test_arguments_beyond_the_wrapped_parameters_keep_their_place() -> None:
    """Extra items are named by position or key, and an assignment reaches an item."""

    @functools.wraps(scaled)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return scaled(*args[:2]) + len(args) + len(kwargs)

    names = wrapped_parameters(wrapper)
    arguments = {"args": (1, 2, 3, 4), "kwargs": {"n": 5, "extra": 6}}
    named = name_arguments(arguments | {"kwargs": {"extra": 6}}, names)
    assert named == {"x": 1, "w": 2, "n": 3, "args[3]": 4, "kwargs['extra']": 6}
    assert with_named({"args": (1, 2)}, {"x": 7, "w": 2}, names) == {"args": (7, 2)}
    assert wrapped_parameters(scaled) == {}
    twice = {"args": (1, 2), "kwargs": {"x": 3}}  # a name that is taken has its place instead
    named = name_arguments(twice, names)
    assert named["kwargs['x']"] == 3
    assert with_named(twice, named, names) == twice


@without_gpu
def test_a_fix_that_helps_is_verified() -> None:
    """Marking a dimension dynamic makes one entry of two, which is said with the counts."""
    session = recorded((torch.randn(2, 4), W), (torch.randn(3, 4), W))
    assert engine.try_fixes(session) == 1
    (fix,) = fixes(session)
    assert fix.code == "engine.mark_dynamic(x, 0)"
    assert fix.verified == "re-run on inputs of the recorded shapes: 1 compile instead of 2"
    assert engine.try_fixes(session) == 0, "what was tried is not tried again"


@without_gpu
@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ((torch.randn(2, 4), W), (torch.randn(2, 4).double(), W), "x = x.to(torch.float32)"),
        ((torch.randn(2, 4), W), (torch.randn(4, 2).t(), W), "x = x.contiguous()"),
        ((torch.randn(2, 4), W), (torch.randn(2, 4, requires_grad=True), W), "x = x.detach()"),
        ((torch.randn(2, 4), W, 3), (torch.randn(2, 4), W, 5), "f = engine.compile(f, dynamic=True)"),
    ],
    ids=["dtype", "strides", "requires_grad", "number"],
)
def test_each_kind_of_fix_is_run(first: tuple[Any, ...], second: tuple[Any, ...], code: str) -> None:
    """Trying a fix verifies each kind: convert, copy, detach, other compile options.

    Each fix is applied as a person would do it.
    """
    session = recorded(first, second, function=times)
    assert engine.try_fixes(session) > 0
    assert next(f for f in fixes(session) if f.code == code).verified


def test_a_cause_outside_of_the_arguments_is_not_verifiable() -> None:
    """What the calls alone do not show is said not to be verifiable."""
    compiled = engine.compile(scaled, backend="eager")
    with engine.record() as session:
        compiled(torch.randn(2, 4), W)
        with torch.no_grad():
            compiled(torch.randn(2, 4), W)
    assert engine.try_fixes(session) == 0
    assert all(f.unverified_reason.startswith("not verifiable: ") for f in fixes(session))


COUNT = [0]


def counting(x: Any) -> Any:
    COUNT[0] += 1
    print("counted")
    return x * 2


def test_nothing_of_the_users_happens_a_second_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Side effects and prints of a try stay in its process."""
    COUNT[0] = 0
    session = recorded((torch.randn(2),), (torch.randn(3),), function=counting)
    printed = capsys.readouterr().out
    engine.try_fixes(session)
    assert (COUNT[0], printed) == (2, "counted\ncounted\n")
    assert capsys.readouterr().out == ""


def test_what_writes_files_is_stopped(tmp_path: pathlib.Path) -> None:
    """A function that would write a file is not run to its end, and that is the reason."""
    target = tmp_path / "log.txt"

    def logging(x: Any, n: int) -> Any:
        with target.open("a") as file:
            file.write("called\n")
        return x * n

    session = recorded((torch.randn(2), 3), (torch.randn(2), 4), function=logging)
    before = target.read_text()
    assert engine.try_fixes(session) == 0
    assert target.read_text() == before


def test_a_loaded_session_cannot_be_asked(tmp_path: pathlib.Path) -> None:
    """A loaded session has no live functions, so fixes are not verifiable.

    What-if says so too, and no guard cost is measured.
    """
    session = recorded((torch.randn(2, 4), W), (torch.randn(3, 4), W))
    loaded = engine.Session.load(session.save(tmp_path / "s.json"))
    assert engine.try_fixes(loaded) == 0
    assert [f.unverified_reason for f in fixes(loaded)] == [
        "not verifiable: the session was loaded from a file, or its function was deleted"
    ]
    assert engine.measure_guards(loaded) == 0
    with pytest.raises(BadArgument, match="loaded"):
        api.what_if(loaded, "0", {})


def test_what_if_by_fields() -> None:
    """What-if names the cache entry that edited input fields would hit.

    Fields are edited as text, starting from the last call.
    """
    session = recorded((torch.randn(2, 4), W), (torch.randn(3, 4), W))
    frame = session.frames[0].id
    assert api.what_if_inputs(session, frame)["x"] == {
        "shape": "3, 4", "stride": "4, 1", "dtype": "float32", "device": "cpu", "requires_grad": "False",
    }  # fmt: skip
    entries = [c.id for c in session.compilations]
    for edits, hit in (
        ({}, entries[1]),
        ({"x": {"shape": "99, 4"}}, entries[1]),
        ({"x": {"shape": "(1, 4)"}}, None),
        ({"x": {"dtype": "float64"}}, None),
        ({"x": {"requires_grad": "True"}}, None),
        ({"n": {"value": "4"}}, None),
        ({"n": {"value": "'three'"}}, None),
    ):
        assert api.what_if(session, frame, edits).hit == hit


@pytest.mark.parametrize(
    "edits",
    [{"x": {"shape": "a"}}, {"x": {"dtype": "float99"}}, {"x": {"shape": "-1"}}, {"n": {"value": "open('x')"}}, {"x": {"device": "moon"}}],
)  # fmt: skip
def test_fields_that_are_no_values_are_refused(edits: dict[str, dict[str, str]]) -> None:
    """What-if evaluates no typed text; an invalid field is an error with a message.

    A field must be a size, dtype, device or constant.
    """
    session = recorded((torch.randn(2, 4), W))
    with pytest.raises(BadArgument, match=r"^(x|n):"):
        api.what_if(session, session.frames[0].id, edits)


def test_no_tensor_is_kept_for_it() -> None:
    """Recording keeps descriptions of arguments, not the tensors."""
    import gc
    import weakref

    x = torch.randn(2, 4)
    seen = weakref.ref(x)
    session = recorded((x, W))
    del x
    gc.collect()
    assert seen() is None
    assert api.what_if(session, session.frames[0].id, {}).hit is not None


def test_each_guard_has_a_cost_once_measured() -> None:
    """Costs are absent until asked for, then there for every guard, and survive saving."""
    session = recorded((torch.randn(2, 4), W))
    guards = session.compilations[0].guards
    assert guards is not None
    assert {g.cost_ns for g in guards.guards} == {None}
    assert engine.measure_guards(session) == 1
    guards = session.compilations[0].guards
    assert guards is not None
    assert all(g.cost_ns is not None and g.cost_ns >= 0 for g in guards.guards)
