"""Test changing sizes and numbers: symbols, compile counts and symbol records."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import engine
from engine.errors import BadArgument
from engine.records.trace import TracedSymbolRecord


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    engine.reset()
    yield
    engine.reset()


def count_compiles(session: engine.Session) -> int:
    """How often anything was compiled."""
    return len(session.compilations)


def symbol_records(session: engine.Session) -> dict[str, TracedSymbolRecord]:
    """The last compilation's symbols by the first place where each is read."""
    trace = session.compilations[-1].trace
    assert trace is not None
    return {s.sources[0]: s for s in trace.symbols}


def attention(x: Any, w: Any) -> Any:
    batch, length, width = x.shape
    scores = (x @ w) @ x.transpose(1, 2) / width**0.5
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    return (
        scores.masked_fill(~mask, -1e9).softmax(-1).view(batch * length, length)
        @ x.reshape(batch * length, width).T[:, :length].T
    )


@pytest.mark.thorough
def test_a_sweep_over_batch_sizes_compiles_at_most_twice() -> None:
    """Fifty batch sizes: one entry for the first, one for all the others."""
    compiled = engine.compile(attention, backend="eager")
    w = torch.randn(8, 8)
    with engine.record() as session:
        for batch in range(2, 52):
            x = torch.randn(batch, 5, 8)
            torch.testing.assert_close(compiled(x, w), attention(x, w))
    assert count_compiles(session) <= 2


@pytest.mark.thorough
def test_a_sweep_over_batch_and_sequence_compiles_at_most_three_times() -> None:
    """Two sizes that change one after the other, then both."""
    compiled = engine.compile(attention, backend="eager")
    w = torch.randn(8, 8)
    with engine.record() as session:
        for batch in (2, 3, 7, 16):
            for length in (4, 5, 9, 17, 33):
                x = torch.randn(batch, length, 8)
                torch.testing.assert_close(compiled(x, w), attention(x, w))
    assert count_compiles(session) <= 3


class Counter(torch.nn.Module):
    """Counts its calls in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * self.calls


def test_an_attribute_that_is_counted_up_becomes_a_symbol_at_once() -> None:
    """After the first change one cache entry serves all values, even if the first are 0 and 1."""
    module = Counter()
    compiled = engine.compile(module, backend="eager")
    with engine.record() as session:
        for count in range(1, 8):
            assert compiled(torch.ones(2)).tolist() == [count] * 2
    assert count_compiles(session) == 2
    assert module.calls == 7
    assert "changed between calls" in symbol_records(session)["self.calls"].why


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
def test_a_float_that_changes_becomes_a_symbol(backend: str) -> None:
    """A decaying learning rate compiles twice; NaN, infinities, signed zeros and ints work."""

    def step(x: Any, rate: float) -> Any:
        return x - rate * x.sin() + rate / 2

    compiled = engine.compile(step, backend=backend)
    x = torch.randn(4)
    with engine.record() as session:
        for rate in (0.1, 0.05, 0.025, 1e-9, 3.0):
            torch.testing.assert_close(compiled(x, rate), step(x, rate))
    assert count_compiles(session) == 2
    for rate in (float("nan"), float("inf"), 0.0, -0.0, 2):
        torch.testing.assert_close(compiled(x, rate), step(x, rate), equal_nan=True)


def test_a_float_that_decides_is_settled_at_its_line() -> None:
    """A float that Python branches on is specialized, and the result stays right.

    It is a symbol only until Python needs its value.
    """

    def power(x: Any, p: float) -> Any:
        if p > 1.5:
            return x**p
        return x + p

    compiled = engine.compile(power, backend="eager")
    x = torch.rand(4)
    for p in (1.0, 2.0, 3.0, 0.5, 2.5):
        torch.testing.assert_close(compiled(x, p), power(x, p))


def test_the_story_of_a_symbol_names_the_lines() -> None:
    """A symbol's record names source, reason, range and the user line of each relation.

    A specialized symbol names the line that specialized it.
    """

    def f(x: Any) -> Any:
        if x.shape[0] > 3:
            x = x + 1
        return x * 2 if x.shape[1] == 7 else x

    first = f.__code__.co_firstlineno
    x = torch.randn(5, 7)
    engine.mark_dynamic(x, 0, min=2, max=64)
    engine.mark_dynamic(x, 1)
    with engine.record() as session:
        engine.compile(f, backend="eager")(x)
    rows, columns = symbol_records(session)["x.shape[0]"], symbol_records(session)["x.shape[1]"]
    assert (rows.why, rows.low, rows.high, rows.specialized_to) == ("marked dynamic", 4, 64, "")
    assert [(r.text.split()[1:], r.span.line - first) for r in rows.assumptions if r.span] == [([">", "3"], 1)]
    assert columns.specialized_to == "7"
    assert columns.specialized_by is not None
    assert columns.specialized_by.span is not None
    assert columns.specialized_by.span.line == first + 3


def test_a_marked_size_that_was_settled_is_still_guarded() -> None:
    """Code that needed one certain size of a marked dimension does not serve another."""

    def f(x: Any) -> Any:
        return x * 2 if x.shape[1] == 7 else x + 1

    compiled = engine.compile(f, backend="eager")
    x = torch.randn(5, 7)
    engine.mark_dynamic(x, 1)
    compiled(x)
    y = torch.randn(5, 8)
    assert torch.equal(compiled(y), y + 1)
    assert torch.equal(compiled(x), x * 2)


def test_bounds_are_guarded() -> None:
    """A size outside of the marked bounds is served by another entry."""
    compiled = engine.compile(lambda x: x.sum(0) * x.shape[0], backend="eager")
    x = torch.ones(5, 2)
    engine.mark_dynamic(x, 0, min=3, max=8)
    with engine.record() as session:
        for size in (5, 3, 8):
            assert compiled(torch.ones(size, 2) if size != 5 else x).tolist() == [size * size] * 2
        assert count_compiles(session) == 1
        for size in (2, 9):
            assert compiled(torch.ones(size, 2)).tolist() == [size * size] * 2
    assert count_compiles(session) > 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"min": 5, "max": 3}, "greater than"),
        ({"min": 6}, "outside of min=6"),
        ({"max": 4}, "outside of max=4"),
        ({"min": -1}, "min must be an integer"),
        ({"max": 2.5}, "max must be an integer"),
        ({"dim": 2}, "no dimension 2"),
    ],
)
def test_bad_bounds_are_refused(arguments: dict[str, Any], words: str) -> None:
    """Bounds that are not sizes, are out of order, or exclude the actual size raise at once."""
    with pytest.raises(BadArgument, match=words):
        engine.mark_dynamic(torch.ones(5, 2), **({"dim": 0} | arguments))


def test_dynamic_true_and_false() -> None:
    """dynamic=True compiles once for all sizes, dynamic=False once for each size.

    mark_static holds under both.
    """

    def f(x: Any) -> Any:
        return x.cos().sum(-1)

    for dynamic, expected in ((True, 1), (False, 4)):
        compiled = engine.compile(f, backend="eager", dynamic=dynamic)
        with engine.record() as session:
            for size in (2, 3, 4, 5):
                compiled(torch.randn(size, 3))
        assert count_compiles(session) == expected
    compiled = engine.compile(f, backend="eager", dynamic=True)
    x = torch.randn(6, 3)
    engine.mark_static(x, 1)
    with engine.record() as session:
        engine.reset()
        compiled(x)
    assert set(symbol_records(session)) == {"x.shape[0]"}


def test_only_passed_numbers_are_offered_as_symbols() -> None:
    """dynamic=True is offered as a fix for a changed argument, not for a changed attribute.

    It makes a symbol of an argument only.
    """

    def scaled(x: torch.Tensor, n: int, module: torch.nn.Module) -> torch.Tensor:
        return x * n * module.factor

    module = torch.nn.Identity()
    module.factor = 2
    compiled = engine.compile(scaled, backend="eager")
    compiled(torch.ones(2), 2, module)

    def offered(n: int) -> bool:
        (rejection,) = engine.explain_call(compiled, torch.ones(2), n, module).guard_failures
        return any("dynamic=True" in fix.code for fix in rejection.fixes)

    assert offered(3)
    module.factor = 3
    assert not offered(2)


def test_sizes_zero_and_one_are_compiled_apart() -> None:
    """Sizes 0 and 1 each get a cache entry of their own, whatever else is a symbol.

    They differ from other sizes in broadcasting and in being empty.
    """
    compiled = engine.compile(lambda x: x + torch.ones(3, 2)[: x.shape[0]], backend="eager")
    with engine.record() as session:
        for size in (2, 3, 1, 0, 1, 2, 0):
            assert compiled(torch.zeros(size, 2)).shape == ((size, 2) if size != 1 else (1, 2))
    assert count_compiles(session) == 4


def test_a_saved_session_tells_the_same_story(tmp_path: Any) -> None:
    """Guards, rejections and symbols are the same after saving and loading."""
    compiled = engine.compile(attention, backend="eager")
    with engine.record() as session:
        for batch in (2, 3, 1):
            compiled(torch.randn(batch, 5, 8), torch.randn(8, 8))
    loaded = engine.Session.load(session.save(tmp_path / "session.json"))
    assert loaded.to_dict() == session.to_dict()
    assert [c.guards for c in loaded.compilations] == [c.guards for c in session.compilations]
    assert [c.guard_failures for c in loaded.calls] == [c.guard_failures for c in session.calls]
    assert symbol_records(loaded) == symbol_records(session)


def test_tracing_memory_is_freed_with_the_entry() -> None:
    """Freeing a function and its entries frees the traced inputs and the tracing results."""

    def make() -> Any:
        held = torch.randn(64)

        def f(x: Any) -> Any:
            return (x * held).sin().sum()

        return f, weakref.ref(held)

    f, held = make()
    compiled = engine.compile(f, backend="eager")
    x = torch.randn(64)
    compiled(x)
    seen = weakref.ref(x)
    del x
    gc.collect()
    assert seen() is None
    del f, compiled
    gc.collect()
    assert held() is None


@pytest.mark.thorough
def test_no_graph_outlives_its_entry() -> None:
    """Graph modules and fake modes of tracing die with the cache entry."""

    def f(x: Any) -> Any:
        return x.relu() + 1

    engine.compile(f, backend="eager")(torch.randn(3))
    gc.collect()
    before = sum(isinstance(o, torch.fx.GraphModule) for o in gc.get_objects())
    del f
    engine.reset()
    gc.collect()
    after = sum(isinstance(o, torch.fx.GraphModule) for o in gc.get_objects())
    assert after < before
