"""Test that Ctrl-C while compiling is delivered once, soon, and leaves no trace."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import engine
from engine.aot.backward_provenance import BackwardProvenance
from engine.interrupts import deferred_interrupts
from engine.interrupts.deferred_interrupts import allow_interrupts, defer_interrupts, deliver_interrupts
from tests import interrupts


class _Stop(Exception):
    """Raised by a handler of the user."""


@pytest.fixture(autouse=True)
def pythons_own_handler() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt: a shell's background processes ignore it."""
    was = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, was)


@pytest.fixture
def install() -> Iterator[Callable[[Any], None]]:
    """Return a function that installs a handler of SIGINT for the test."""
    was = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)  # type: ignore[func-returns-value]
    signal.signal(signal.SIGINT, was)


def _press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_waits_for_a_safe_point() -> None:
    """SIGINT raises at the next safe point; afterwards the user's handler is back."""
    was = signal.getsignal(signal.SIGINT)
    seen = []
    with pytest.raises(KeyboardInterrupt), defer_interrupts():  # noqa: PT012
        _press()
        seen.append("after the signal")
        deliver_interrupts()
        seen.append("never")
    assert seen == ["after the signal"]
    assert signal.getsignal(signal.SIGINT) is was


def test_an_interrupt_without_a_safe_point_is_delivered_at_the_end() -> None:
    """The end of the block delivers what is left; blocks nest."""
    done = []
    with pytest.raises(KeyboardInterrupt), defer_interrupts():  # noqa: PT012
        with defer_interrupts():
            _press()
        done.append(True)
    assert done == [True]


def test_the_users_handler_decides(install: Callable[[Any], None]) -> None:
    """The block goes on if the handler returns, and ends with what it raises."""
    calls = []
    install(lambda number, frame: calls.append(number))
    with defer_interrupts():
        _press()
        deliver_interrupts()
        assert calls == [signal.SIGINT]

    def stop(number: int, frame: Any) -> None:
        raise _Stop

    install(stop)
    with pytest.raises(_Stop), defer_interrupts():  # noqa: PT012
        _press()
        try:
            deliver_interrupts()
        except Exception:
            pytest.fail("a compiler's own handler sees the user's exception")
    assert signal.getsignal(signal.SIGINT) is stop


def test_each_interrupt_is_delivered(install: Callable[[Any], None]) -> None:
    """A second Ctrl-C is not swallowed, also if the handler of the first raises."""
    calls = []

    def stop(number: int, frame: Any) -> None:
        calls.append(number)
        raise KeyboardInterrupt

    install(stop)
    with pytest.raises(KeyboardInterrupt), defer_interrupts():  # noqa: PT012
        _press()
        _press()
    assert len(calls) == 2
    with pytest.raises(KeyboardInterrupt), defer_interrupts():  # noqa: PT012
        _press()
        _press()
        deliver_interrupts()
    assert len(calls) == 4


def test_a_handler_may_install_another_one(install: Callable[[Any], None]) -> None:
    """A handler that replaces itself, as a "press again to quit" does, is obeyed."""
    calls = []

    def second(number: int, frame: Any) -> None:
        calls.append("second")

    def first(number: int, frame: Any) -> None:
        calls.append("first")
        signal.signal(signal.SIGINT, second)

    install(first)
    with defer_interrupts():
        _press()
        deliver_interrupts()
        _press()
        deliver_interrupts()
    assert calls == ["first", "second"]
    assert signal.getsignal(signal.SIGINT) is second


def test_a_second_interrupt_is_delivered_at_once_where_safe_points_fail_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A block that reaches no safe point for seconds still ends at the second Ctrl-C."""
    monkeypatch.setattr(deferred_interrupts, "SECONDS_BEFORE_FORCE", 0.01)
    with pytest.raises(KeyboardInterrupt), defer_interrupts():  # noqa: PT012
        _press()
        time.sleep(0.02)
        with pytest.raises(KeyboardInterrupt):
            _press()
        raise KeyboardInterrupt


def test_code_of_others_is_interrupted_at_once() -> None:
    """Inside ``allow_interrupts`` a signal raises where it arrives, or at the start."""
    seen = []
    with pytest.raises(KeyboardInterrupt), defer_interrupts(), allow_interrupts():  # noqa: PT012
        _press()
        seen.append("never")
    with pytest.raises(KeyboardInterrupt), defer_interrupts():  # noqa: PT012
        _press()
        with allow_interrupts():
            seen.append("never")
    assert not seen


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_handlers_that_are_not_python_stay(install: Callable[[Any], None], handler: Any) -> None:
    """An ignored or default SIGINT is left as it is."""
    install(handler)
    with defer_interrupts():
        assert signal.getsignal(signal.SIGINT) is handler


def test_other_threads_defer_nothing() -> None:
    """Compiling in another thread installs no handler."""
    was = signal.getsignal(signal.SIGINT)
    seen: list[Any] = []

    def work() -> None:
        with defer_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [was]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_has_the_users_handler() -> None:
    """A child has the user's handler although the parent's main thread compiles."""
    was = signal.getsignal(signal.SIGINT)
    status: list[int] = []

    def fork() -> None:
        child = os.fork()
        if not child:
            os._exit(0 if signal.getsignal(signal.SIGINT) is was else 1)
        status.append(os.waitpid(child, 0)[1])

    with defer_interrupts():
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGINT) is not was
    assert status == [0]


def test_an_external_backend_can_be_interrupted() -> None:
    """Ctrl-C inside a user's backend raises there; the next call compiles."""
    pressed = []

    def backend(graph: Any, inputs: Any) -> Any:
        if not pressed:
            pressed.append(True)
            _press()
            pressed.append("never")
        return graph.forward

    compiled = engine.compile(lambda x: x + 1, backend=backend)
    with pytest.raises(KeyboardInterrupt):
        compiled(torch.ones(2))
    assert pressed == [True]
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


def test_lowering_has_a_safe_point_in_each_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt waits for one node, definition or kernel, not for the whole graph."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.nn.functional.gelu(x @ x)
        return x

    places = ("passes.decompose", "graph_lowering", "fusion.scheduler", "schedule_to_program")
    reached: list[str] = []
    for place in places:
        monkeypatch.setattr(f"engine.lowering.{place}.deliver_interrupts", lambda place=place: reached.append(place))
    engine.compile(chain, backend="triton")(torch.randn(4, 4))
    assert all(reached.count(place) >= 3 for place in places), reached


def test_a_traced_backward_has_a_safe_point_at_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt in a traced backward waits for one node; the next call is right."""
    mark = BackwardProvenance.mark_traced
    marked: list[Any] = []

    def interrupted(self: BackwardProvenance, origin: Any) -> None:
        marked.append(origin)
        if len(marked) == 5:
            signal.raise_signal(signal.SIGINT)
        mark(self, origin)

    module = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(8)), torch.nn.GELU())
    compiled, x = engine.compile(module, backend="aot_eager"), torch.randn(3, 2)
    monkeypatch.setattr(BackwardProvenance, "mark_traced", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiled(x)
    assert len(marked) == 6  # the last call is at the end, after the error
    compiled(x).sum().backward()
    gradients = [p.grad for p in module.parameters()]
    wanted = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    torch.testing.assert_close(gradients, list(wanted))


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "backend"), [("linear", "triton"), ("containers", "eager")])
def test_forced_interrupts(model: str, backend: str) -> None:
    """Seeded interrupts are raised, and leave the state and the next result right."""
    seen = interrupts.measure(model, backend, 3, seed=1, timeout=280.0)
    assert len(seen) == 3
    assert not [s for s in seen if not interrupts.is_good(s)]


@pytest.mark.slow
@pytest.mark.parametrize("backend", interrupts.BACKENDS)
@pytest.mark.parametrize("model", interrupts.MODELS)
def test_many_forced_interrupts(model: str, backend: str) -> None:
    """None of 300 interrupts ends the process, is lost or waits for long."""
    seen = interrupts.measure(model, backend, 300, seed=0, timeout=3600.0)
    assert len(seen) == 300
    assert not [s for s in seen if not interrupts.is_good(s)]
    assert max(s["delay"] for s in seen) < 0.2  # seconds of CPU


class _CallNames:
    """Profile function that notes the names of the Python functions called."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        # Stock's compiler, which other tests load, has tables of its own, and hypothesis a callback of the collector.
        if event == "call" and not any(name in frame.f_code.co_filename for name in ("torch/_dynamo", "/hypothesis/")):
            self.names.append(frame.f_code.co_qualname)


def _compiled_objects(backend: str) -> list[Any]:
    """Return what a user holds: a compiled function with a break, a module and a session."""

    def run(x: torch.Tensor, seen: list[Any]) -> torch.Tensor:
        y = x.sin()
        engine.graph_break()
        seen.append(1)
        return y + 1

    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    compiled, model = engine.compile(run, backend=backend), engine.compile(module, backend=backend)
    x = torch.randn(4, 3)
    with engine.record() as session:
        compiled(x, [])
    for size in (4, 4, 5):
        compiled(torch.randn(size, 3), [])
        model(torch.randn(size, 3)).sum().backward()
    return [run, module, compiled, model, x, session]


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
def test_no_python_code_runs_while_compiled_objects_are_freed(backend: str) -> None:
    """Python ignores exceptions in callbacks of weak references: Ctrl-C in one would be lost."""
    held, calls = _compiled_objects(backend), _CallNames()
    for _ in range(4):  # frees torch's tracers, and what earlier tests left: their callbacks are Python code
        gc.collect()
    sys.setprofile(calls)
    try:
        held.clear()
        gc.collect()
    finally:
        sys.setprofile(None)
    assert calls.names == []


def test_a_signal_while_the_handler_is_restored_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restoring the user's handler takes Python calls, at which a Ctrl-C may arrive."""
    restore = type(deferred_interrupts.deferral).uninstall

    def interrupted(self: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        restore(self)

    monkeypatch.setattr(type(deferred_interrupts.deferral), "uninstall", interrupted)
    with pytest.raises(KeyboardInterrupt), defer_interrupts():
        pass
    monkeypatch.undo()
    with defer_interrupts():
        pass
