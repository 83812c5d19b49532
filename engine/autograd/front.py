"""Stands in front of torch's autograd engine while a context is open: backwards of threads inside it are captured, all others run as ever."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from engine.autograd import adapter, anomaly, registries
from engine.autograd.capture import Capture, Captured, Refused
from engine.autograd.follow import followed
from engine.autograd.order import Node, eager_order, places_of, walk
from engine.autograd.program import Writer
from engine.autograd.reasons import Shape, shape_of
from engine.autograd.run import CapturedBackward
from engine.autograd.tell import nodes_of

Run = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Settings:
    """How a context runs what it captures. ``compile`` makes a capture runnable; ``told`` hears of everything that happens to a backward."""

    backend: Any
    compile: Callable[[CapturedBackward], Run]
    dynamic: bool = False
    tell: Callable[[Event], None] | None = None


@dataclass(frozen=True, eq=False)
class Event:
    """What became of one backward: "captured", "hit" or "eager", the capture, and why eager."""

    outcome: str
    capture: CapturedBackward | None = None
    reason: str = ""


NOBODY = Settings(None, lambda backward: backward)
"""Where no context is open."""

current: contextvars.ContextVar[Settings | None] = contextvars.ContextVar("engine_compiled_autograd", default=NOBODY)


class _Thread(threading.local):
    """What this thread is doing: the backward it captures or runs, and the callbacks that wait for its end."""

    def __init__(self) -> None:
        self.attempt: _Attempt | None = None
        self.is_running = False
        self.callbacks: list[Callable[[], None]] | None = None


_thread = _Thread()
_turn = threading.Lock()
"""Held by the one thread that captures or runs a captured backward: torch allows no two."""


@dataclass
class _Attempt:
    """One backward that is to be captured, or found in torch's cache."""

    settings: Settings
    engine: Any
    """torch's own."""
    roots: Sequence[Any]
    wanted: Sequence[Any]
    is_accumulating: bool
    has_begun: bool = False
    is_hit: bool = True
    started: float = 0.0
    capture: Capture | None = None
    thread: int = field(default_factory=threading.get_ident)

    def recorder(self) -> adapter.Protocol213:
        """Called by torch when its cache has nothing."""
        if threading.get_ident() != self.thread:  # another thread came in between; it tries again
            return adapter.Protocol213(Capture(_refuse, lambda: None))
        self.is_hit = False
        self.started = time.perf_counter()
        self.capture = Capture(self.finish, self.begun)
        return adapter.Protocol213(self.capture)

    def close(self) -> None:
        """Leave torch's modes as they were, also where torch gave up half-way."""
        if self.capture is not None:
            self.capture.close()

    def begun(self) -> None:
        self.has_begun = True

    def nodes(self) -> tuple[Node, ...]:
        """Autograd's nodes, in the order in which torch walks."""
        return walk(places_of(self.roots), places_of(self.wanted))

    def raise_again(self, backward: CapturedBackward, place: int, error: Exception) -> None:
        """Under anomaly mode: raise as eager does where the node at this place in the walk met an error."""
        nodes = self.nodes()
        metadata: Any = {}
        if place == 0:
            metadata = anomaly.stack_of(_caller())
        elif [n.name for n in nodes] == [n.name for n in backward.nodes]:
            metadata = nodes[place].node.metadata

        def differentiate(tensors: Any, gradients: Any, inputs: Any) -> None:
            self.engine.run_backward(tensors, gradients, False, False, inputs, True, accumulate_grad=False)

        anomaly.raise_by_torch(error, backward.nodes[place].name, metadata, differentiate)

    def finish(self, captured: Captured) -> tuple[Run, CapturedBackward]:
        """The captured backward in eager's order."""
        nodes = self.nodes()
        notes: tuple[str, ...] = ()
        if [c.name for c in captured.calls] == [n.name for n in nodes]:
            order = eager_order(nodes)
        else:
            nodes, order = nodes_of(captured), tuple(range(len(captured.calls)))
            notes = ("nodes stand in the order in which torch walked: eager's could not be told",)
        module = Writer(captured, order).write()
        shape = shape_of(f"b{next(_ids)}", captured)
        seconds = time.perf_counter() - self.started
        nodes = tuple(replace(n, node=None) for n in nodes)
        backward = CapturedBackward(shape.id, module, captured, shape, nodes, order, tuple(_shapes), notes, seconds)
        _shapes.append(shape)
        self._tell(Event("captured", backward, _how()))
        return run_captured, backward

    def _tell(self, event: Event) -> None:
        if self.settings.tell is not None:
            self.settings.tell(event)


def _how() -> str:
    return anomaly.REASON if torch.is_anomaly_enabled() else ""


def _caller() -> Any:
    """The frame that asked for the backward."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code is not Front.run_backward.__code__:
        frame = frame.f_back
    return frame.f_back if frame is not None else None


def _refuse(_: Captured) -> Any:
    raise Refused("another thread's backward")


_ids = itertools.count()
_shapes: deque[Shape] = deque(maxlen=64)
"""The latest captures, to say what is different from them."""


def run_captured(backward: CapturedBackward, inputs: Any, sizes: Any, scalars: Any, hooks: Any, packed: Any) -> Any:
    """What torch's cache calls: the captured backward on this call's values, with torch's engine as it is without us."""
    attempt = _thread.attempt
    if torch.is_grad_enabled() and backward.unpacks:
        raise Refused(
            "what a hook unpacks is known to autograd only in its own engine, and gradients are to be differentiated"
        )
    previous = adapter.set_compiler(None)
    _Process.is_off.set()
    outer, _thread.callbacks = _thread.callbacks, []
    _thread.attempt, _thread.is_running = None, True
    try:
        run = _run_of(backward, attempt)
        if attempt is not None:
            attempt.has_begun = True
            if attempt.is_hit:
                attempt._tell(Event("hit", backward, _how()))
        with _watching(backward, attempt, hooks):
            if attempt is not None and torch.is_anomaly_enabled():
                lists = (inputs, sizes, scalars, hooks, packed)
                results = anomaly.watched(lambda: run(*lists), functools.partial(attempt.raise_again, backward))
            else:
                results = run(inputs, sizes, scalars, hooks, packed)
        for callback in iter_growing(_thread.callbacks):
            callback()
        return list(results)
    finally:
        _thread.attempt, _thread.callbacks, _thread.is_running = attempt, outer, False
        if attempt is None:
            adapter.restore_compiler(previous)


def _watching(backward: CapturedBackward, attempt: _Attempt | None, hooks: Any) -> Any:
    """What notices changes of hooks, where code of the user's runs that could make them."""
    if attempt is None or not backward.runs_users_code:
        return contextlib.nullcontext()
    roots, wanted = places_of(attempt.roots), places_of(attempt.wanted)

    def find_nodes() -> tuple[Node, ...] | None:
        nodes = walk(roots, wanted)
        return nodes if [n.name for n in nodes] == [n.name for n in backward.nodes] else None

    return registries.watched(registries.Running(find_nodes, hooks, wanted))


def _run_of(backward: CapturedBackward, attempt: _Attempt | None) -> Run:
    if attempt is None:
        return backward.eager()
    if torch.is_anomaly_enabled():
        return backward.watched()
    return backward.run_for(attempt.settings.backend, attempt.settings.compile)


def iter_growing(items: list[Any]) -> Iterator[Any]:
    """The items of a list, also those that are added meanwhile."""
    n = 0
    while n < len(items):
        yield items[n]
        n += 1


class Front:
    """Has the methods of torch's engine object; what it does not know is the engine's."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Call this when the backward that runs has ended."""
        if _thread.callbacks is None:
            self._engine.queue_callback(callback)
        else:
            _thread.callbacks.append(callback)

    def run_backward(self, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Run one backward, captured if this thread asks for it and torch allows it."""
        settings = current.get()
        if settings is NOBODY:
            settings = followed(tensors) if _Process.attending else None
        if settings is None:
            return self._plain(tensors, args, kwargs)
        reason = _why_not(tensors, creates_graph=len(args) > 2 and bool(args[2]))
        if not reason and not _turn.acquire(blocking=False):
            reason = "another thread runs a captured backward"
        if reason:
            return self._told(settings, reason, tensors, args, kwargs)
        try:
            wanted = args[3] if len(args) > 3 else ()
            attempt = _Attempt(settings, self._engine, tensors, wanted, bool(kwargs.get("accumulate_grad")))
            reason, results = self._captured(attempt, tensors, args, kwargs)
        finally:
            _turn.release()
        return self._told(settings, reason, tensors, args, kwargs) if reason else results

    def _captured(self, attempt: _Attempt, tensors: Sequence[Any], args: Any, kwargs: Any) -> tuple[str, Any]:
        """Why it could not be captured, or what it returned."""
        _own_cache()
        _Process.is_off.clear()
        previous = adapter.set_compiler(attempt.recorder, dynamic=attempt.settings.dynamic)
        _thread.attempt = attempt
        try:
            return "", self._engine.run_backward(tensors, *args, **kwargs)
        except Refused as error:
            return str(error), None
        except Exception as error:
            if attempt.has_begun:
                raise
            return _in_words(str(error)), None
        finally:
            _thread.attempt = None
            attempt.close()
            adapter.restore_compiler(previous)
            _Process.is_off.set()

    def _told(self, settings: Settings, reason: str, tensors: Sequence[Any], args: Any, kwargs: Any) -> Any:
        if settings.tell is not None:
            settings.tell(Event("eager", reason=reason))
        return self._plain(tensors, args, kwargs)

    def _plain(self, tensors: Sequence[Any], args: Any, kwargs: Any) -> Any:
        """By torch's engine, whose callbacks are its own."""
        outer, _thread.callbacks = _thread.callbacks, None
        try:
            while True:
                _Process.is_off.wait()
                try:
                    return self._engine.run_backward(tensors, *args, **kwargs)
                except Refused:
                    continue
                except NotImplementedError as error:
                    if COLLISION not in str(error):
                        raise
        finally:
            _thread.callbacks = outer


def _why_not(roots: Sequence[Any], *, creates_graph: bool) -> str:
    """Why a backward is not captured that starts here; empty when it is."""
    if _thread.is_running:
        return "it was started inside of a captured backward, by a hook or a Python function"
    if torch._C._are_functorch_transforms_active():
        return "it runs inside of a functional transform (torch.func)"
    if any(isinstance(r, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(r) for r in roots):
        return "it goes back through a functional transform (torch.func)"
    if torch._C._len_torch_dispatch_stack() > 0:
        return "a dispatch mode of Python is active"
    if torch.is_anomaly_enabled() and creates_graph:
        return "anomaly mode keeps which node made which, where gradients are to be differentiated themselves"
    return ""


NOT_CAPTURED = {
    "view_fn not supported": "it goes back through a write to a view of another type (real parts of complex numbers, for one)",
    "NestedTensor support": "it goes back through nested tensors",
    "compiled_args n": "a hook or node in C++ takes part that does not tell what it does, as those of DistributedDataParallel's reducer",
}
"""What torch's capture does not know: by its words for it, ours."""


def _in_words(error: str) -> str:
    first = error.strip().partition("\n")[0].rstrip()
    known = next((words for part, words in NOT_CAPTURED.items() if part in error), "")
    return f"{known}, which torch cannot capture" if known else f"torch cannot capture it: {first}"


COLLISION = "within another compiled autograd call"
"""What torch says to a backward that it would capture while it captures another; nothing of it has run then."""


class _Process:
    """What the whole process shares: how many contexts are open, how many functions are followed, and how much torch's own capture had captured.

    ``is_off``: no backward is just being captured. Others wait for that: torch's switch is one for all threads.
    """

    is_off = threading.Event()
    is_off.set()

    open = 0
    attending = 0
    stock_captures = -1
    lock = threading.Lock()


def _own_cache() -> None:
    """Forget what torch's own capture left in the cache that it shares with us."""
    found = adapter.stock_captures()
    if found != _Process.stock_captures:
        if not adapter.is_cache_empty():
            adapter.clear_cache()
        _Process.stock_captures = found
        adapter.share()


@contextlib.contextmanager
def capturing(settings: Settings | None) -> Iterator[None]:
    """Capture this thread's backwards (None: none of them) while the context is open."""
    _install()
    token = current.set(settings)
    try:
        yield
    finally:
        current.reset(token)
        _remove()


def attend() -> Callable[[], None]:
    """Stay before torch's engine for backwards that go back through a function's results; to be called when that function is gone."""
    _install()
    _Process.attending += 1

    def leave() -> None:
        _Process.attending -= 1
        _remove()

    return leave


@contextlib.contextmanager
def uncaptured() -> Iterator[None]:
    """Leave alone the backwards that the engine itself runs while it compiles; nor are fakes that it saves shown to the user's hooks."""
    token = current.set(None)
    before = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        torch._C._autograd._saved_tensors_hooks_set_tracing(before)
        current.reset(token)


def _install() -> None:
    variable: Any = torch.autograd.Variable
    with _Process.lock:
        if _Process.open == 0:
            variable._execution_engine = Front(variable._execution_engine)
        _Process.open += 1


def _remove() -> None:
    variable: Any = torch.autograd.Variable
    with _Process.lock:
        _Process.open -= 1
        if _Process.open == 0 and isinstance(variable._execution_engine, Front):
            variable._execution_engine = variable._execution_engine._engine


def forget() -> None:
    """Forget all captures."""
    if not adapter.is_cache_empty():
        adapter.clear_cache()
    _shapes.clear()
