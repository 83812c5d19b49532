"""Programs that stress the compiler without meaning harm.

Recursion, endless loops, code with no source text, C functions, many threads.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
import time
from typing import Any

import pytest
import torch

import engine
from engine.errors import BadArgument
from engine.options import config

X = torch.arange(6.0).reshape(2, 3) / 3


def test_mutual_recursion_is_one_graph() -> None:
    """Two functions that call each other fifty times are traced into one graph."""

    def even(x: Any, n: int) -> Any:
        return x if n == 0 else odd(x + 1, n - 1)

    def odd(x: Any, n: int) -> Any:
        return x if n == 0 else even(x * 2, n - 1)

    compiled = engine.compile(even, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X, 50), even(X, 50))


@pytest.mark.nests_calls
def test_calls_nested_600_deep_are_one_graph() -> None:
    """A chain of six hundred calls is traced."""
    space: dict[str, Any] = {}
    exec(
        "def f0(x): return x + 1\n" + "".join(f"def f{n}(x): return f{n - 1}(x) * 1.5\n" for n in range(1, 600)), space
    )
    compiled = engine.compile(space["f599"], backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), space["f599"](X))


def test_calls_nested_too_deep_are_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the graph breaks with its reason, and the result is right."""
    monkeypatch.setattr(config, "inline_depth", 5)

    def down(x: Any, n: int) -> Any:
        return x if n == 0 else down(x + 1, n - 1)

    with engine.record() as session:
        assert torch.equal(engine.compile(down, backend="eager")(X, 20), down(X, 20))
    kinds = [b.kind for c in session.compilations if c.trace for b in c.trace.breaks]
    assert "depth" in kinds


@pytest.mark.thorough
def test_endless_recursion_is_pythons_error() -> None:
    """A function that recurses forever raises RecursionError; recursion works afterwards."""
    limit = sys.getrecursionlimit()

    def forever(x: Any) -> Any:
        return forever(x + 1)

    with pytest.raises(RecursionError):
        engine.compile(forever, backend="eager")(X)
    assert sys.getrecursionlimit() == limit
    assert engine.compile(lambda x: x + 1, backend="eager")(X) is not None


def test_a_long_python_loop_ends_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing of a very long loop stops at the instruction budget; Python runs the loop.

    The graph break records the reason.
    """
    monkeypatch.setattr(config, "instruction_budget", 5_000)

    def counts(x: Any) -> Any:
        n = 0
        while True:
            n += 1
            if n > 20_000:
                break
        return x + n

    with engine.record() as session:
        assert torch.equal(engine.compile(counts, backend="eager")(X), counts(X))
    assert [b.kind for c in session.compilations if c.trace for b in c.trace.breaks] == ["budget"]


def _count_up(x: Any) -> Any:
    total = 0
    for n in range(1_000_000):
        total += n
    return x + total


def _call_long_loop(x: Any) -> Any:
    return _count_up(x.sin()).cos()


def _count_in_pairs(x: Any) -> Any:
    for n, _ in enumerate(range(30_000)):
        x = x + n
    for n, _ in zip(range(30_000), range(30_000), strict=True):
        x = x - n
    return x


def _sum_list(x: Any) -> Any:
    return x + sum([2 * n for n in range(1_000_000)])


def _multiply_often(x: Any) -> Any:
    for _ in range(30_000):
        x = x * 0.5
    return x


def _leave_long_loop(x: Any) -> Any:
    for n in range(1_000_000):
        x = x + n
        if n == 20:
            break
    return x


@pytest.mark.parametrize("run", [_count_up, _call_long_loop, _count_in_pairs, _sum_list, _multiply_often])
def test_a_loop_of_known_length_is_judged_in_its_first_passes(run: Any) -> None:
    """A loop that would exceed the budget stops tracing early; Python runs it."""
    with engine.record() as session:
        assert torch.equal(engine.compile(run, backend="eager")(X), run(X))
    breaks = [b for c in session.compilations if c.trace for b in c.trace.breaks]
    assert {b.kind for b in breaks} == {"budget"}
    assert all(re.search(r"a loop still has (999,98\d|29,98\d) passes, too many to unroll", b.context) for b in breaks)


def test_a_long_loop_that_ends_early_is_unrolled() -> None:
    """The number of items says nothing about a loop whose body can leave it."""
    with engine.record() as session:
        assert torch.equal(engine.compile(_leave_long_loop, backend="eager")(X), _leave_long_loop(X))
    assert [b.kind for c in session.compilations if c.trace for b in c.trace.breaks] == []


def test_a_loop_that_waits_for_another_thread_ends() -> None:
    """Tracing gives up on a loop that waits for another thread; Python's loop ends.

    Another thread changes the condition, so only the loop that Python runs can see it.
    """
    stop: list[int] = []

    def waits(x: Any, stop: list[int]) -> Any:
        while not stop:
            pass
        return x + len(stop)

    threading.Timer(0.2, lambda: stop.append(1)).start()
    config_budget, config.instruction_budget = config.instruction_budget, 20_000
    try:
        assert torch.equal(engine.compile(waits, backend="eager")(X, stop), X + 1)
    finally:
        config.instruction_budget = config_budget


def test_code_without_source() -> None:
    """A function from exec compiles; errors name the line without the source text.

    A graph break still names the line, and the error under fullgraph is complete.
    """
    space: dict[str, Any] = {}
    exec("def f(x):\n    y = x.sin()\n    print('seen')\n    return y.cos()", space)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert torch.equal(engine.compile(space["f"], backend="eager")(X), X.sin().cos())
    assert printed.getvalue() == "seen\n"
    with pytest.raises(engine.GraphBreak, match=r"<string>:3"):
        engine.compile(space["f"], backend="eager", fullgraph=True)(X)


def test_lambdas_on_one_line_are_told_apart() -> None:
    """Two lambdas of one line are two frames."""
    pair = [engine.compile(f, backend="eager") for f in (lambda x: x.sin(), lambda x: x.cos())]
    assert [torch.equal(pair[0](X), X.sin()), torch.equal(pair[1](X), X.cos())] == [True, True]


@pytest.mark.parametrize("what", [int, 3])
def test_what_is_no_function_is_refused_in_one_sentence(what: Any) -> None:
    """Classes from C and things that cannot be called are refused with the remedy."""
    with pytest.raises(BadArgument, match=r"wrap it in a function\."):
        engine.compile(what, backend="eager")


@pytest.mark.thorough
def test_what_torch_compiled_is_compiled_anew() -> None:
    """Functions and modules wrapped by torch.compile are traced as their originals."""
    twice = torch.compile(lambda x: x * 2, backend="eager")
    layer = torch.nn.Linear(3, 3)
    wrapped = torch.compile(layer, backend="eager")

    def uses(x: Any) -> Any:
        return twice(wrapped(x)) + 1

    engine.reset()
    assert torch.equal(engine.compile(uses, backend="eager", fullgraph=True)(X), layer(X) * 2 + 1)
    assert torch.equal(engine.compile(twice, backend="eager", fullgraph=True)(X), X * 2)
    assert torch.equal(engine.compile(wrapped, backend="eager", fullgraph=True)(X), layer(X))


def test_many_threads_call_one_function() -> None:
    """Eight threads with changing shapes and a data-dependent branch get right results."""
    layer = torch.nn.Linear(4, 4)

    def steps(x: Any, k: int) -> Any:
        y = layer(x)
        y = y * k if y.sum() > 0 else y - k
        return y + 1

    compiled = engine.compile(steps, backend="eager")
    wrong: list[tuple[int, int]] = []

    def work(thread: int) -> None:
        for n in range(25):
            x = torch.full((1 + (thread + n) % 7, 4), float(n - 12))
            if not torch.equal(compiled(x, n % 3), steps(x, n % 3)):
                wrong.append((thread, n))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_thread_can_compile_while_another_runs() -> None:
    """A call that sleeps in Python after a break does not hold up another thread's compile."""
    entered, release = threading.Event(), threading.Event()

    def sleeps(x: Any) -> Any:
        y = x + 1
        entered.set()
        release.wait(20)
        return y * 2

    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(engine.compile(sleeps, backend="eager")(X)))
    thread.start()
    assert entered.wait(20)
    started = time.monotonic()
    assert torch.equal(engine.compile(lambda x: x - 1, backend="eager")(X), X - 1)
    assert thread.is_alive(), f"it ended after {time.monotonic() - started}"
    release.set()
    thread.join()
    assert torch.equal(results[0], (X + 1) * 2)
