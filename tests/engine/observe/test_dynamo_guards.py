"""Guards of stock compiles, evaluated live: each has a verdict, and no state changes.

Another call is judged without being made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import engine
from engine import api
from engine.observe.dynamo_guards import describe_value
from engine.observe.observe_torch import observe_torch
from engine.torch_private.torch_compile import debug_get_cache_entry_list


@pytest.fixture(autouse=True)
def fresh_torch() -> Iterator[None]:
    """torch.compile with empty caches."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Scaled(torch.nn.Module):
    """A parameter, an int attribute and an argument with a default."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 2)
        self.times = 3

    def forward(self, x: torch.Tensor, twice: bool = False) -> torch.Tensor:
        y = self.inner(x) * self.times
        return y * 2 if twice else y


def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n


def counters(code: Any) -> list[list[int]]:
    """Failure counts of every manager of every entry, in their present order."""

    def walk(manager: Any) -> Iterator[int]:
        yield manager.fail_count()
        for child in manager.get_child_managers():
            yield from walk(child)

    return [list(walk(e.guard_manager.root)) for e in debug_get_cache_entry_list(code)]


def test_a_call_that_would_be_refused() -> None:
    """The failing guard has expected and actual values; guards after it are hypothetical.

    Guards before the failing one pass.
    """
    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    compiled(torch.ones(3), 2)
    told = engine.explain_call(compiled, torch.ones(3, dtype=torch.float64), 5)
    (rejection,) = told.guard_failures
    assert (told.hit, rejection.source, rejection.entry) == (None, "L['n']", told.entries[0])
    assert (rejection.expected, rejection.actual) == ("2", "5")
    guards = {g.id: g for g in engine.guards_of(compiled)[0].guards}
    verdicts = [(guards[r.guard], r.verdict) for r in rejection.results]
    failed = [g for g, v in verdicts if v == "fail"]
    assert [(g.source, g.kind) for g in failed] == [("L['n']", "EQUALS_MATCH")]
    assert rejection.guard == failed[0].id
    position = [v for _, v in verdicts].index("fail")
    assert {v for _, v in verdicts[:position]} <= {"pass", "not reached"}
    after = {(g.source, v) for g, v in verdicts[position + 1 :]}
    assert ("L['x']", "would fail") in after


def test_a_call_that_would_hit() -> None:
    """A call that an entry serves names it; the entries after it tell why they would not."""
    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    for n in (2, 3):
        compiled(torch.ones(3), n)
    told = engine.explain_call(compiled, torch.ones(3), 2)
    assert told.hit is not None
    assert {r.verdict for r in told.results[told.hit]} == {"pass"}
    (other,) = told.guard_failures
    assert (other.source, other.expected) == ("L['n']", "3")
    assert len(told.entries) == 2


@pytest.mark.parametrize("in_place", [True, False])
def test_modules(in_place: bool) -> None:
    """A module's guards follow its attributes; a changed attribute is the guard failure."""
    model: Any = Scaled()
    if in_place:
        model.compile(backend="eager")
        compiled = model
    else:
        compiled = torch.compile(model, backend="eager")
    compiled(torch.ones(2, 3))
    assert engine.explain_call(compiled, torch.ones(2, 3)).hit is not None
    model.times = 4
    (rejection,) = engine.explain_call(compiled, torch.ones(2, 3)).guard_failures
    assert "times" in rejection.source
    assert engine.explain_call(compiled, torch.ones(2, 3), twice=True).hit is None


def test_modules_of_torch_itself() -> None:
    """Calls of a compiled ``nn.Linear`` are explained; its frame is a wrapper of Dynamo."""
    compiled = torch.compile(torch.nn.Linear(3, 2), backend="eager", dynamic=False)
    compiled(torch.ones(4, 3))
    told = engine.explain_call(compiled, torch.ones(4, 3))
    assert told.hit in told.entries
    assert told.frame == "Linear.forward"
    assert len(engine.guards_of(compiled)) == len(told.entries)
    other = engine.explain_call(compiled, torch.ones(5, 3))
    assert other.hit is None
    assert any("has size 5 in dimension 0" in failure.sentence for failure in other.guard_failures)


def test_nothing_moves() -> None:
    """Asking changes no failure count, no order and no cache, and makes no later call compile."""
    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    for n in (2, 3, 4):
        compiled(torch.ones(3), n)
    before = counters(scaled.__code__)
    for arguments in ((torch.ones(3), 2), (torch.ones(7), 2), (torch.ones(3), "x"), (None, None)):
        engine.explain_call(compiled, *arguments)
    assert counters(scaled.__code__) == before
    with observe_torch() as session:
        for n in (2, 3, 4):
            compiled(torch.ones(3), n)
    assert session.compilations == ()


def test_verdicts_agree_with_torch() -> None:
    """For many calls, the walk says hit exactly where torch would not compile anew."""
    compiled = torch.compile(Scaled(), backend="eager")
    for shape in ((2, 3), (4, 3)):
        compiled(torch.ones(shape))
    calls = [torch.ones(n, 3) for n in (1, 2, 5)] + [
        torch.ones(2, 3, dtype=torch.float16),
        torch.ones(3, 2).t(),
        torch.ones(3),
    ]
    for x in calls:
        expected = engine.explain_call(compiled, x).hit is not None
        with observe_torch() as session:
            try:
                compiled(x)
            except RuntimeError:
                continue
        assert (session.compilations == ()) is expected, x.shape


def test_what_if() -> None:
    """A specification in place of a tensor tells what one changed property alone would do."""
    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    compiled(torch.ones(4, 3), 2)
    spec = engine.TensorSpec
    changed = (spec((5, 3)), spec((4, 3), torch.int64), spec((4, 3), requires_grad=True), spec((4, 3), stride=(1, 4)))
    for x in changed:
        assert engine.explain_call(compiled, x, 2).hit is None, x
    assert engine.explain_call(compiled, spec((4, 3)), 2).hit is not None


def test_what_if_of_a_recorded_session() -> None:
    """A session that observed torch.compile answers what-if questions about the last call.

    It says what the cache would do if an input were another one; closures keep their recorded values.
    """
    factor = 3

    def times(x: torch.Tensor, flag: bool) -> torch.Tensor:
        return x * factor if flag else x

    with observe_torch() as session:
        torch.compile(times, backend="eager", dynamic=False)(torch.ones(4, 3), True)
    (frame,) = (f.id for f in session.frames)
    inputs = api.what_if_inputs(session, frame)
    assert (inputs["x"]["shape"], inputs["flag"]["value"]) == ("4, 3", "True")
    assert api.what_if(session, frame, {}).hit == "0/0"
    other = api.what_if(session, frame, {"x": {"dtype": "int64"}})
    assert other.hit is None
    assert (other.guard_failures[0].expected, other.guard_failures[0].actual) == ("f32", "i64")
    assert api.what_if(session, frame, {"flag": {"value": "False"}}).guard_failures[0].source == "L['flag']"
    assert api.what_if(session, frame, {"factor": {"value": "4"}}).hit is None
    torch.compiler.reset()
    with pytest.raises(ValueError, match="what-if needs the live function"):
        api.what_if(session, frame, {})


def test_a_recompile_under_observation_can_be_stepped() -> None:
    """A recompile's guard failure holds each guard's verdict, by the guard ids of that entry."""
    with observe_torch() as session:
        compiled = torch.compile(scaled, backend="eager", dynamic=False)
        compiled(torch.ones(3), 2)
        compiled(torch.ones(4), 2)
    (rejection,) = [r for c in session.calls for r in c.guard_failures]
    guards = session.compilation(rejection.entry).guards
    assert guards is not None
    assert [r.guard for r in rejection.results] == [g.id for g in guards.guards]
    assert next(g for g in guards.guards if g.id == rejection.guard).source == "L['x']"
    assert "mark_dynamic(x, 0)" in rejection.fixes[0].code
    assert session.failures == ()


@pytest.mark.thorough
def test_what_was_not_compiled_is_said() -> None:
    """A plain function is refused with a sentence, as for our own compiler."""
    with pytest.raises(ValueError, match="not compiled"):
        engine.explain_call(lambda x: x, 1)
    assert engine.guards_of(torch.compile(lambda x: x)) == ()


def test_a_tensor_is_described_as_its_guard_is() -> None:
    """Expected and actual metadata have one form, so that a reader sees what differs."""
    tensor = torch.ones(4, 2, dtype=torch.float64).t().requires_grad_()
    assert describe_value(tensor) == "f64[2, 4] on cpu, stride [1, 2], requires grad"
    assert describe_value(torch.eye(2).to_sparse()) == "f32[2, 2] on cpu"
