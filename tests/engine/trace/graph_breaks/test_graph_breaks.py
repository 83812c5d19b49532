"""Tests of graph breaks: untraceable code runs in Python, the rest in graphs.

Python runs that code once and in order. Code before and after it is traced.
"""

from __future__ import annotations

import collections
import contextlib
import io
import linecache
import math
import random
import sys
import traceback
import wsgiref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import engine
from engine import errors
from engine.ir.annotations import disable, graph_break
from engine.options import Options
from engine.runtime.dispatch.code_cache import all_caches
from engine.trace.driver import trace_frame
from tests.engine.trace.harness import Traced, compare_with_eager, request_for

X = torch.arange(12.0).reshape(3, 4) / 7 - 0.5


def prints(x: Any) -> Any:
    y = x * 2
    print("sum", y.shape)
    return y + 1


def branches(x: Any) -> Any:
    y = x * 2 if x.sum() > 0 else x - 1
    return (y.sum() > 0 and y.mean() > 0) or y.relu()


def loops(x: Any) -> Any:
    seen = []
    for n, scale in enumerate([1, 2, 3]):
        y = x * scale
        print(n)
        seen.append(y)
    return seen


def keeps_going(x: Any) -> Any:
    n = 0
    while x.sum() < 100:
        x = x.abs() * 2 + 1
        n += 1
    return x, n


def closes_over(x: Any) -> Any:
    k = 2

    def grow(y: Any) -> Any:
        nonlocal k
        k += 1
        return y * k

    a = grow(x)
    print(k)
    return a, grow(x), k


def inner_breaks(x: Any) -> Any:
    def helper(y: Any) -> Any:
        print("inner")
        return y + 1

    return helper(x * 2) * 3


def reads_value(x: Any) -> Any:
    return x * float(str(x.sum().item()))


def rolls_unknown_size(x: Any) -> Any:
    return torch.roll(x[x > 0], 1) * 2


WEIGHT, QUEUE = torch.nn.Parameter(torch.ones(3)), torch.zeros(3)


def mutates_after_check(x: Any) -> Any:
    y = x * 2
    torch._check(y.sum().item() > -99)
    WEIGHT.data = WEIGHT.data.clone()
    QUEUE.fill_(2)
    return y + WEIGHT.shape[0]


def aliases(x: Any, items: list[Any]) -> Any:
    other = items
    other.append(x + 1)
    fresh = [x]
    table = {"fresh": fresh}
    print(len(items))
    fresh.append(1)
    return other is items, table, items


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (prints, "print"),
        (branches, "tensor-jump"),
        (loops, "print"),
        (keeps_going, "tensor-jump"),
        (closes_over, "print"),
        (inner_breaks, "print"),
        (reads_value, "data-dependent"),
        (rolls_unknown_size, "size-branch"),
        (mutates_after_check, "argument-mutation"),
    ],
    ids=lambda p: p.__name__ if callable(p) else p,
)
def test_resumes(program: Callable[..., Any], kind: str) -> None:
    """The break has its reason, nothing is skipped, and the outcome is Python's."""
    traced = compare_with_eager(program, X)
    assert kind in traced.breaks
    assert traced.graphs
    assert not any(b.skips_frame for f in traced.frames for b in f.record.breaks)


def test_identity_survives_a_break() -> None:
    """Aliases before a break are aliases after it."""
    assert compare_with_eager(aliases, X, [1]).breaks == ["print"]


@pytest.mark.thorough
def test_long_loops_do_not_nest() -> None:
    """A loop that breaks in each round runs in constant stack."""

    def many(x: Any) -> Any:
        for _ in range(400):
            x = x + 1
            graph_break()
        return x

    assert torch.equal(Traced(many)(X), many(X))


def test_the_users_exception_is_the_users() -> None:
    """An exception is Python's own, whether raised by the code or by an operator."""

    def raises(x: Any) -> Any:
        if x.shape[0] == 3:
            raise ValueError(f"bad {x.shape[0]}")
        return x

    def mismatch(x: Any) -> Any:
        return x @ x

    assert compare_with_eager(raises, X).breaks == ["raises"]
    assert compare_with_eager(mismatch, X).breaks == ["raises"]


def test_disabled_functions_run_as_python() -> None:
    """A disabled function is called by Python, and the graph ends before it."""

    @disable
    def left(x: Any) -> Any:
        return x + 1

    def calls(x: Any) -> Any:
        return left(x * 2) * 3

    assert compare_with_eager(calls, X).breaks == ["disabled"]


def test_generators_are_left_to_python() -> None:
    """A generator is no frame that can be compiled."""

    def yields(x: Any) -> Any:
        yield x

    traced = Traced(yields)
    assert len(list(traced(X))) == 1
    assert traced.breaks == ["generator-frame"]


def test_fullgraph_points_at_the_line() -> None:
    """Under fullgraph the break is an error with the user's line under a caret."""
    with pytest.raises(errors.GraphBreak) as caught:
        trace_frame(request_for(prints, (X,), {}), Options(fullgraph=True))  # type: ignore[arg-type]
    assert 'print("sum", y.shape)' in str(caught.value)
    assert "^^^^" in str(caught.value)
    assert caught.value.record.kind == "print"


def test_steps_follow_the_code() -> None:
    """With steps on, each instruction is told: stack, locals, nodes, depth."""
    traced = Traced(inner_breaks, steps=True)
    traced(X)
    steps = traced.frames[0].record.steps
    assert steps
    assert any("mul" in s.nodes for s in steps)
    assert steps[0].depth == 0


def test_each_node_and_guard_is_told_by_one_step() -> None:
    """Each node, guard and side effect belongs to one step, at its instruction.

    This holds also if a placeholder is inserted before other nodes.
    """

    def scaled(x: Any, k: Any) -> Any:
        return x * k

    def uses(x: Any, y: Any, out: list[Any]) -> Any:
        a = scaled(x, 2)
        a = a + y
        out.append(a)
        return a

    traced = Traced(uses, steps=True)
    traced(X, X + 1, [])
    record = traced.frames[0].record
    told = [name for s in record.steps for name in s.nodes]
    assert sorted(told) == ["add", "mul", "x", "y"]
    assert next(s for s in record.steps if "mul" in s.nodes).depth == 1
    assert next(s for s in record.steps if "add" in s.nodes).nodes == ("y", "add")
    guards = [g for s in record.steps for g in s.guards]
    assert len(guards) == len(set(guards)) > 0
    assert [e for s in record.steps for e in s.side_effects] == ["L['out']: contents of the list are replaced"]


def test_steps_tell_locals_so_that_any_moment_can_be_rebuilt() -> None:
    """Steps record parameters, rebound locals and node names.

    The first step of a frame has its parameters. A rebound local is recorded even if it prints the same.
    Values name their nodes.
    """

    def rebinds(x: Any) -> Any:
        h = x * 2
        h = h * 3
        del x
        return h

    traced = Traced(rebinds, steps=True)
    traced(X)
    steps = traced.frames[0].record.steps
    assert list(steps[0].locals_changed) == ["x"]
    bound = [(s.locals_nodes or {}).get("h") for s in steps if "h" in s.locals_changed]
    assert bound == ["mul", "mul_1"]
    assert any(s.locals_changed.get("x") == "" for s in steps)
    assert steps[-2].stack_nodes == ("mul_1",)


def test_explain_leaves_every_cache_as_it_was() -> None:
    """Explaining a compiled function changes no cache entry and causes no recompile.

    It changes no recompile limit either. The function breaks and calls other functions.
    """

    def helper(x: Any) -> Any:
        print("helper")
        return x + 1

    def calls(x: Any) -> Any:
        return helper(x * 2) * 3

    compiled = engine.compile(calls, backend="eager")
    with contextlib.redirect_stdout(io.StringIO()):
        compiled(X)
        before = [(id(c), c.entries, c.compiles_since_clear, c.version) for c in all_caches()]
        found = engine.explain(compiled, X[:, :2])
        assert found.breaks
        known = {id(c): (c.entries, c.compiles_since_clear, c.version) for c in all_caches()}
        assert all(known[key] == tuple(rest) for key, *rest in before)
        with engine.record() as session:
            compiled(X)
    assert not session.compilations


def test_errors_carry_the_users_stack() -> None:
    """GraphBreak names each call down to the line; its traceback starts at the user's call.

    The outermost call is first.
    """

    def inner(x: Any) -> Any:
        return range(int(x.sum()))

    def outer(x: Any) -> Any:
        return inner(x + 1)

    with pytest.raises(errors.GraphBreak) as caught:
        engine.compile(outer, backend="eager", fullgraph=True)(X)
    lines = [linecache.getline(s.file, s.line).strip() for s in caught.value.record.stack]
    assert lines == ["return inner(x + 1)", "return range(int(x.sum()))"]
    assert "What to do:" in str(caught.value)
    assert "^" in str(caught.value)


def test_frames_of_a_traceback_have_hashable_code() -> None:
    """IPython hashes it to print a traceback, here one of a break."""

    def selects(a: Any, b: Any) -> Any:
        return np.where(a > 0, a, b)

    with pytest.raises(ValueError, match="broadcast") as caught:
        engine.compile(selects, backend="eager")(np.zeros((4, 3)), np.zeros((2, 3)))
    frames = [frame.f_code for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert len(set(frames)) == len(frames) > 1


def test_grad_mode_survives_an_error_in_the_graph() -> None:
    """An operator that raises on real values inside no_grad leaves grad mode as it was."""

    def looks_up(table: Any, where: Any) -> Any:
        with torch.no_grad():
            return torch.nn.functional.embedding(where, table) + 1

    traced = Traced(looks_up)
    with pytest.raises(IndexError):
        traced(X, torch.tensor([7]))
    assert traced.graphs == 1
    assert torch.is_grad_enabled()


def test_grad_mode_survives_an_error_after_a_break_inside_no_grad() -> None:
    """An exception in a resume function also exits its ``with`` block.

    It may be raised anywhere in the graph; the grad mode is restored.
    """

    def looks_up(table: Any, where: Any) -> Any:
        with torch.no_grad():
            graph_break()
            found = torch.nn.functional.embedding(where, table)
        return torch.nn.functional.embedding(found.long() + 9, table)

    compiled = engine.compile(looks_up, backend="eager")
    compiled(X.new_zeros(20, 1), torch.tensor([7]))
    for table, where in ((X.new_zeros(2, 1), torch.tensor([7])), (X.new_zeros(8, 1), torch.tensor([7]))):
        with pytest.raises(IndexError):
            compiled(table, where)
        assert torch.is_grad_enabled()


def test_a_graph_that_only_switches_grad_mode_is_not_compiled() -> None:
    """A graph that only switches grad mode is not passed to the backend.

    Before a break inside a context there may be nothing to compute.
    """
    seen: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.append(graph)
        return graph

    def f(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        with torch.no_grad():
            engine.graph_break()
            return x * 2, torch.is_grad_enabled()

    y, mode = engine.compile(f, backend=backend)(torch.ones(2, requires_grad=True))
    assert (y.requires_grad, mode, torch.is_grad_enabled(), len(seen)) == (False, False, True, 1)


def test_decoding_loop_compiles_nothing_for_another_trip_count() -> None:
    """The entries of a loop that breaks in each step serve all trip counts."""

    def decode(x: torch.Tensor, steps: int) -> tuple[tuple[torch.Tensor, ...], int]:
        scores: tuple[torch.Tensor, ...] = ()
        for step in range(steps):
            x = x * 0.5 + step
            scores += (x,)
            if x.max() > 1000:
                break
        return scores, len(scores)

    compiled = engine.compile(decode, backend="eager")
    for steps in (3, 4, 6, 7):
        compiled(torch.ones(2), steps)
    with engine.record() as session:
        for steps in (5, 9, 20):
            torch.testing.assert_close(compiled(torch.ones(2), steps)[0], decode(torch.ones(2), steps)[0])
    # what is compiled is the code behind the loop, which counts the scores
    assert not any(c.trace is not None and c.trace.breaks for c in session.compilations)


def compile_count(program: Callable[..., Any], calls: list[tuple[Any, ...]]) -> int:
    """Make calls in eager and compiled, compare them, and count the compilations."""
    compiled = engine.compile(program, backend="eager")
    with engine.record() as session:
        for args in calls:
            torch.testing.assert_close(compiled(*args), program(*args))
    return len(session.compilations)


def test_values_that_vary_at_a_break_are_symbols_after_it() -> None:
    """Sizes, numbers and loop positions that vary at a break do not specialize the rest."""

    def number(x: Any) -> Any:
        pair = [x.sum().item(), x]
        graph_break()
        return x * pair[0]

    def size(x: Any) -> Any:
        rows = x.nonzero()
        graph_break()
        return rows.sum(0)

    def loop(rows: Any) -> Any:
        total = rows[0] * 0
        for n, row in enumerate(rows.unbind()):
            total = total + row * n
            graph_break()
        return total

    different = [(torch.full((4,), n) * (torch.arange(4) < n + 1),) for n in (1.5, 2.5, 3.5)]
    assert compile_count(number, different) == 2
    assert compile_count(size, different) == 2
    assert compile_count(loop, [(torch.ones(6, 2),)]) == 3  # the frame, a round, the end


def test_iterations_of_a_loop_with_a_break_share_entries() -> None:
    """Numbers that Python computes, and items of an iterator, specialize no iteration."""

    def adaptive_steps(x: Any, h: Any, t: Any, end: Any) -> Any:
        for _ in range(6):
            h = min(h, end - t)
            x = x + h * math.sin(t + h / 2)
            error = x.abs().mean().item()
            if error <= 9:
                t = t + h
            h = h * min(5.0, max(0.2, 0.9 * (error + 1e-10) ** (-1 / 3)))
        return x, h

    def filled(x: Any, n: Any) -> Any:
        rows, columns = torch.where(x > n)
        if rows.numel() > 1:
            return x.sum() + rows.sum() * rows.numel() + columns.float().mean()
        return x

    def passes(x: Any, layers: Any) -> Any:
        for n, weight in enumerate(layers):
            if x.sum().item() < n * 1000:
                x = x * weight + n
        return x

    class Counter:
        steps, time = 0, 0.0

    def counts(x: Any, counter: Any) -> Any:
        counter.steps, counter.time = 0, 0.0
        for _ in range(8):
            x = x + counter.steps * 0.5 + counter.time
            counter.steps += 1
            counter.time += 0.25
            if x.sum().item() > 1e6:
                break
        return x

    assert compile_count(counts, [(torch.ones(3), Counter())]) == 3
    assert compile_count(adaptive_steps, [(torch.ones(3), 0.5, 0.0, 1.5)]) == 3  # the frame, a round, the end
    grid = torch.arange(25.0).reshape(5, 5)
    assert compile_count(filled, [(grid, torch.tensor(n)) for n in (3, 9, 17)]) == 2
    # At most half the limit with known positions; the frame and the rest with an unknown one.
    assert compile_count(passes, [(torch.ones(3), [torch.tensor(0.5)] * 30)]) <= 8


def test_numbers_that_depend_on_data_or_chance_are_symbols_after_a_break() -> None:
    """A number or size that Python computes at the break may differ in the next call."""
    generator = random.Random(0)

    def branch(x: Any) -> Any:
        total = x.sum().item()
        return x * total if total > 0 else x - total

    def drawn(x: Any) -> Any:
        rows = generator.sample(range(10, 90), 2)
        return x * rows[0] + rows[1] - x * (rows[0] + rows[1])

    def callee(x: Any) -> Any:
        return (x * generator.choice([(0.5, 1), (2.5, 0), (3.5, 3)])[1]).sum()

    def rows(x: Any, at: Any) -> Any:
        return x[at.tolist()] * 2

    def selected(x: Any, scores: Any) -> Any:
        chosen = x[scores > 0]
        return chosen.exp() * 2 if len(chosen) > 1 else chosen

    assert compile_count(selected, [(torch.rand(8, 3), torch.arange(8) - n) for n in (3, 2, 1)]) == 2
    assert compile_count(branch, [(X + n,) for n in (1, 2, 3)]) == 2
    for program, count in ((drawn, 2), (lambda x: callee(x + 1) * 2, 4)):
        compiled = engine.compile(program, backend="eager")
        with engine.record() as session:
            for _ in range(5):
                state = generator.getstate()
                found = compiled(X)
                generator.setstate(state)
                torch.testing.assert_close(found, program(X))
        assert len(session.compilations) == count
    # One length, any length up to the break, and a list of any length after it.
    assert compile_count(rows, [(torch.eye(4), torch.arange(n) % 4) for n in (2, 3, 4, 5, 3)]) <= 5


def test_values_that_are_only_printed_do_not_specialize() -> None:
    """A printed text takes names, numbers and values of the data as they are in each call."""

    def train(x: Any, name: str, epoch: int) -> Any:
        print(f"{name} {epoch}: {(x * x).mean().item():.4f}")
        return x * 2

    # The function and what follows the break, where no number varies.
    assert compile_count(train, [(X, f"run {n}", n) for n in range(5)]) == 2


def test_methods_of_a_buffer_in_memory_break_once_each() -> None:
    """Python writes the text; sizes in it stay symbols, and all operations are in graphs."""

    def report(x: Any, log: Any) -> Any:
        log.write(f"{x.shape} {tuple(x.shape)} {list(x.shape)!r:>8} {(len(x),)} {[x.shape[0] / 2, 'a']}")
        return x * 2, log.getvalue()

    compiled = engine.compile(report, backend="eager")
    with engine.record() as session:
        for n in (3, 4):
            args = torch.ones(n, 2)
            assert compiled(args, io.StringIO())[1] == report(args, io.StringIO())[1]
    breaks = [b for c in session.compilations if c.trace is not None for b in c.trace.breaks]
    assert {b.kind for b in breaks} == {"memory-buffer"}
    assert len({b.span for b in breaks}) == 2


def test_sizes_in_text_stay_symbols() -> None:
    """The text of a size, tuple or list of sizes is made after the graph."""

    def describe(x: Any) -> Any:
        return x * 2, f"{x.shape} {tuple(x.shape)} {list(x.shape)!r} {(len(x),)} {[x.shape[0] / 2]}"

    compiled = engine.compile(describe, backend="eager")
    with engine.record() as session:
        for n in (3, 4, 5, 6):
            assert compiled(torch.ones(n, 2))[1] == describe(torch.ones(n, 2))[1]
    assert len(session.compilations) == 2


def test_lists_of_symbols_index_tensors() -> None:
    """An index made of numbers that vary is a tensor in the graph."""

    def select(x: Any, first: int, last: int) -> Any:
        x[[last, first], 1] = 7.0
        return x[[first, last]], x[:, [last, 0]]

    calls = [(torch.arange(12.0).view(3, 4), *at) for at in ((1, 2), (2, 0), (0, 2), (2, -1))]
    assert compile_count(select, calls) == 2


def test_copies_of_growing_containers_do_not_compile_again() -> None:
    """A copy of a deque that goes to Python, or whose length is used, is not read."""

    def draw(x: Any, buffer: collections.deque[Any]) -> Any:
        states, actions, done = zip(*random.sample(list(buffer), 2), strict=True)
        return torch.stack(states) * torch.tensor(actions) * x[0, :2] * len(list(buffer)) + torch.tensor(done).int()

    one = torch.ones(())
    calls = [(X, collections.deque([(one, n % 2, n % 3 == 0) for n in range(length)])) for length in range(3, 9)]
    compiled = engine.compile(draw, backend="eager")
    with engine.record() as session:
        for n, args in enumerate(calls):
            random.seed(n)
            found = compiled(*args)
            random.seed(n)
            assert torch.equal(found, draw(*args))
    assert len(session.compilations) == 3  # the call, with and without the length; what follows the break


def test_numbers_that_a_loop_assigns_do_not_compile_again() -> None:
    """They are symbols where a loop resumes for the first time."""

    def advance(x: Any) -> Any:
        t, step = 0.0, 0
        while t < 1.0:
            x = x * 0.5 + t
            if x.sum().item() > 100:
                break
            t, step = t + 0.25, step + 1
        return x, step

    assert compile_count(advance, [(X,), (X,), (X + 1,)]) == 3  # the start, one more step, the last step


_WEIGHTS = [torch.ones_like(X) + n for n in range(4)]


def _scale_unless_nan(x: Any, i: int) -> Any:
    return x - 1 if x.isnan().any() else x * i


def _grow(x: Any) -> Any:
    for _ in range(5):
        last = x[-1:] * 2
        x = torch.cat([x, last])
        if (last > 1e9).all():
            break
    return x


def _iterate(x: Any) -> Any:
    for w in _WEIGHTS:
        x = x * w
        if x.isnan().any():
            x = x - 1
        x = x + 1
        if (x > 1e9).all():
            break
    return x


def _count_pairs(x: Any) -> Any:
    for n, (v, w) in enumerate(zip(_WEIGHTS, _WEIGHTS[::-1], strict=True)):
        if (v + w).isnan().any():
            x = x - 1
        x = x + v * n
    return x


def _call_in_loop(x: Any) -> Any:
    for i in range(5):
        x = _scale_unless_nan(x + 1, i)
    return x


@pytest.mark.parametrize(("function", "count"), [(_grow, 3), (_iterate, 4), (_count_pairs, 3), (_call_in_loop, 5)])
def test_iterations_share_one_compilation(function: Any, count: int) -> None:
    """The start, one iteration per graph break in it, and the end of the loop."""
    assert compile_count(function, [(X,), (X,), (X + 1,)]) == count


def test_imports_elsewhere_do_not_compile_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up in ``sys.modules`` depends on the name that is looked up."""

    def scaled(x: Any) -> Any:
        return x * 2 if "not_imported_yet" in sys.modules else x * (sys.modules["torch"] is torch)

    compiled = engine.compile(scaled, backend="eager")
    with engine.record() as session:
        assert torch.equal(compiled(X), X)
        monkeypatch.setitem(sys.modules, "imported_elsewhere", sys)
        assert torch.equal(compiled(X), X)
        assert len(session.compilations) == 1
        monkeypatch.setitem(sys.modules, "not_imported_yet", sys)
        assert torch.equal(compiled(X), X * 2)
        assert len(session.compilations) == 2


def test_a_library_imports_its_own_modules_while_traced() -> None:
    """The first call of a library need not run as Python."""

    def name_of_module(x: Any) -> Any:
        from wsgiref import simple_server  # noqa: PLC0415 - the first import is tested

        return x + 1, simple_server.__name__

    found = engine.compile(name_of_module, backend="eager", fullgraph=True)(X)
    assert found[1] == f"{wsgiref.__name__}.simple_server"


def test_a_failure_of_fake_tensors_is_no_error_of_the_function() -> None:
    """Nor do torch's frames, freed later, leave dispatch keys behind, with which Python fails."""
    layer = torch.nn.GroupNorm(1, 3)

    def jacobian(x: Any) -> Any:
        return torch.func.jacfwd(lambda z: layer(z[None])[0].sum(-1))(x)

    with engine.record() as session:
        found = engine.compile(jacobian, backend="eager")(X)
    assert torch.equal(found, jacobian(X))
    assert {b.kind for c in session.compilations if c.trace for b in c.trace.breaks} <= {"no-fake-implementation"}


def test_growing_deques_and_lists_do_not_compile_again() -> None:
    """A replay buffer has one entry per branch, whatever its length."""
    buffer: collections.deque[Any] = collections.deque(maxlen=5)

    def push(x: Any, n: int) -> Any:
        buffer.append((x, n))
        return x * len(buffer) if len(buffer) > 2 else x

    compiled = engine.compile(push, backend="eager")
    with engine.record() as session:
        found = [compiled(X, n)[0, 0] / X[0, 0] for n in range(8)]
    assert [round(float(f)) for f in found] == [1, 1, 3, 4, 5, 5, 5, 5]
    assert [n for _, n in buffer] == [3, 4, 5, 6, 7]
    assert len(session.compilations) == 4  # empty, short, long, full


def test_an_exception_is_recorded_as_a_traceback_ends() -> None:
    """A call with wrong arguments says what Python says, not how the tracer bound them."""

    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    def wrong(x: torch.Tensor, function: Any = scaled) -> Any:
        return function(x)

    with engine.record() as session, pytest.raises(TypeError):
        engine.compile(wrong, backend="eager")(torch.ones(2))
    (record,) = session.compilations[0].trace.breaks if session.compilations[0].trace else ()
    assert record.context.endswith("scaled() missing 1 required argument: 'factor'")


def test_the_message_of_an_exception_is_recorded_with_its_values() -> None:
    """An f-string shows sizes and numbers of this call, also those that are symbols."""

    def check(x: torch.Tensor, name: str, rows: int) -> torch.Tensor:
        if x.shape[0] != rows:
            raise ValueError(f"{name} has {x.shape[0]} rows, not {rows:>2}")
        return x + 1

    with engine.record() as session, pytest.raises(ValueError, match="x has 3 rows, not  4"):
        engine.compile(check, backend="eager", dynamic=True)(X, "x", 4)
    (record,) = session.compilations[0].trace.breaks if session.compilations[0].trace else ()
    assert "x has 3 rows, not  4" in record.context


class RejectsRows(torch.autograd.Function):
    """Raises an error for more than two rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """Twice the argument."""
        if x.shape[0] > 2:
            raise ValueError("too many rows")
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """Twice the gradient."""
        return gradient * 2


def test_reason_names_the_error_of_an_autograd_function() -> None:
    """The break where an autograd.Function raises says which error it raises."""

    def run(x: torch.Tensor) -> str:
        try:
            return str(RejectsRows.apply(x))
        except ValueError as error:
            return str(error)

    with engine.record() as session:
        assert engine.compile(run, backend="eager")(torch.ones(3, requires_grad=True)) == "too many rows"
    contexts = [b.context for c in session.compilations if c.trace for b in c.trace.breaks]
    assert contexts[0] == "RejectsRows raises ValueError('too many rows') while it is traced"


def raises_after_a_break(x, n):
    """Break, and raise if n is negative."""
    y = x * 2
    print("between")
    if n < 0:
        raise ValueError("negative")
    return y


@pytest.mark.parametrize("is_closure", [True, False])
def test_the_traceback_after_a_break_has_frames_of_the_user_alone(is_closure, capsys):
    """An exception after a graph break shows no frame of the engine."""
    limit = 0

    def closure(x, n):
        print("between")
        if n < limit:
            raise ValueError("negative")
        return x * 2

    compiled = engine.compile(closure if is_closure else raises_after_a_break, backend="eager")
    for _ in range(2):
        with pytest.raises(ValueError, match="negative") as caught:
            compiled(torch.ones(2), -1)
        assert {str(entry.path) for entry in caught.traceback} == {__file__}
    assert capsys.readouterr().out == "between\n" * 2


def test_a_numpy_break_names_the_strides_or_that_the_array_is_read_only() -> None:
    """The reason tells arrays of one dtype apart: reversed ones and read-only ones."""
    read_only = np.ones(3)
    read_only.flags.writeable = False
    for array, reason in ((np.ones(3)[::-1], "strides (-8,)"), (read_only, "a read-only array of float64")):
        with pytest.raises(engine.GraphBreak) as info:
            engine.compile(lambda x, a: x * a.sum(), backend="eager", fullgraph=True)(X, array)
        assert reason in str(info.value)


def test_a_transform_that_fails_on_fake_tensors_is_not_said_to_lack_an_implementation() -> None:
    """The reason is torch's own error: a user cannot give ``vmap`` a fake implementation."""
    net = torch.nn.Linear(2, 1)

    def curvature(x: Any, t: Any) -> Any:
        one = torch.func.hessian(lambda x: net(2.0 * torch.cat([x[None], t[None, 0]], 1) - 1.0).sin()[0, 0])
        return torch.func.vmap(one)(x)

    x, t = torch.rand(3, 1), torch.rand(3, 1)
    with engine.record() as session:
        result = engine.compile(curvature, backend="eager")(x, t)
    torch.testing.assert_close(result, curvature(x, t))
    contexts = [b.context for c in session.compilations if c.trace for b in c.trace.breaks]
    assert not [c for c in contexts if c.endswith("has no fake implementation")]


def _repeats(x: Any, counts: Any) -> Any:
    y = x.exp()
    for _ in range(counts.numpy()[0]):
        y = y + 1
    return y


def test_a_value_that_a_call_needs_breaks_inside_the_call() -> None:
    """The graph has the operations of the call before the value that Python needs."""
    compiled = engine.compile(lambda x, counts: _repeats(x.cos(), counts).sin(), backend="eager")
    with engine.record() as session:
        got = compiled(X, torch.tensor([2, 3]))
    assert torch.equal(got, (X.cos().exp() + 2).sin())
    first = session.compilations[0].graphs[0]
    assert {"cos", "exp"} <= {node.name for node in first.nodes}
