"""Intercepts torch's autograd engine while a context is open.

Backwards of threads inside the context are captured. torch runs all others.
"""

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

from engine.autograd import anomaly_mode, cpp_engine_adapter, hook_tracking
from engine.autograd.build_captured_graph import CapturedGraphBuilder
from engine.autograd.cache_miss import CaptureKey, capture_key
from engine.autograd.capture import BackwardCapture, CaptureRecorder
from engine.autograd.captured_backward import CapturedBackward
from engine.autograd.execution_order import AutogradNode, eager_execution_order, gradient_edges_of, walk_autograd_graph
from engine.autograd.fallback_kinds import CaptureFallback
from engine.autograd.node_marks import find_mark
from engine.autograd.to_records import nodes_from_capture
from engine.ir.fallback import Fallback, FallbackRequired
from engine.ir.graph_callable import Run
from engine.ir.node_values import tensors_in
from engine.process_state import make_lock
from engine.torch_private.autograd import execution_engine, saved_tensors_hooks_set_tracing, set_execution_engine
from engine.torch_private.dispatch import len_torch_dispatch_stack
from engine.torch_private.functorch import are_functorch_transforms_active, is_functorch_wrapped_tensor


@dataclass(frozen=True, eq=False)
class CaptureSettings:
    """Settings of a capture context.

    ``compile`` turns a capture into a runnable function. ``on_event`` receives an event per backward.
    """

    backend: Any
    compile: Callable[[CapturedBackward], Run]
    dynamic: bool = False
    on_event: Callable[[BackwardEvent], None] | None = None


@dataclass(frozen=True, eq=False)
class BackwardEvent:
    """Outcome of one backward: "captured", "hit" or "eager".

    ``reason``: why it runs eagerly, or operator by operator under anomaly mode.
    """

    outcome: str
    capture: CapturedBackward | None = None
    reason: str = ""
    fallback: Fallback | None = None
    """Why it was not captured; None if it was."""


NO_CONTEXT = CaptureSettings(None, lambda backward: backward)
"""Settings of a thread without an open context."""

current_settings: contextvars.ContextVar[CaptureSettings | None] = contextvars.ContextVar(
    "engine_compiled_autograd", default=NO_CONTEXT
)


class _Thread(threading.local):
    """State of this thread: its capture attempt, and callbacks for the end of a backward."""

    def __init__(self) -> None:
        self.attempt: _CaptureAttempt | None = None
        self.is_running = False
        self.callbacks: list[Callable[[], None]] | None = None


_thread = _Thread()
_capture_lock = make_lock()
"""Held by the thread that captures or runs a captured backward; torch supports only one."""


@dataclass
class _CaptureAttempt:
    """Attempt to capture one backward or to find it in torch's cache."""

    settings: CaptureSettings
    engine: Any
    """torch's engine object."""
    roots: Sequence[Any]
    inputs: Sequence[Any]
    has_begun: bool = False
    is_hit: bool = True
    started: float = 0.0
    capture: CaptureRecorder | None = None
    thread: int = field(default_factory=threading.get_ident)

    def make_recorder(self) -> cpp_engine_adapter.AutogradCompilerAdapter:
        """Return a new recorder; torch calls this on a cache miss."""
        if threading.get_ident() != self.thread:  # called for a backward of another thread, which then retries
            return cpp_engine_adapter.AutogradCompilerAdapter(CaptureRecorder(_reject_capture, lambda: None))
        self.is_hit = False
        self.started = time.perf_counter()
        self.capture = CaptureRecorder(self.finish, self.mark_begun)
        return cpp_engine_adapter.AutogradCompilerAdapter(self.capture)

    def close(self) -> None:
        """Restore torch's modes, also if torch aborted the capture."""
        if self.capture is not None:
            self.capture.close()

    def mark_begun(self) -> None:
        self.has_begun = True

    def walk_nodes(self) -> tuple[AutogradNode, ...]:
        """Return the autograd nodes in the order of torch's walk."""
        return walk_autograd_graph(gradient_edges_of(self.roots), gradient_edges_of(self.inputs))

    def reraise_in_torch(self, backward: CapturedBackward, node_index: int, error: Exception) -> None:
        """Raise an error as in anomaly mode; ``node_index``: index of the node in the walk."""
        nodes = self.walk_nodes()
        metadata: Any = {}
        if node_index == 0:
            metadata = anomaly_mode.traceback_metadata(_caller())
        elif [n.name for n in nodes] == [n.name for n in backward.nodes]:
            metadata = nodes[node_index].node.metadata

        def differentiate(tensors: Any, gradients: Any, inputs: Any) -> None:
            self.engine.run_backward(tensors, gradients, False, False, inputs, True, accumulate_grad=False)

        anomaly_mode.raise_through_torch(error, backward.nodes[node_index].name, metadata, differentiate)

    def finish(self, captured: BackwardCapture) -> tuple[Run, CapturedBackward]:
        """Build the captured backward in eager order; return its run function and the backward."""
        nodes = self.walk_nodes()
        notes: tuple[str, ...] = ()
        if [c.name for c in captured.calls] == [n.name for n in nodes]:
            order = eager_execution_order(nodes)
        else:
            nodes, order = nodes_from_capture(captured), tuple(range(len(captured.calls)))
            notes = ("nodes are in torch's capture order; eager's order is not known",)
        module = CapturedGraphBuilder(captured, order).build()
        shape = capture_key(f"b{next(_ids)}", captured)
        seconds = time.perf_counter() - self.started
        nodes = tuple(replace(n, node=None) for n in nodes)
        backward = CapturedBackward(
            shape.id, module, captured, shape, nodes, order, tuple(_recent_keys), notes, seconds
        )
        _recent_keys.append(shape)
        self._notify(BackwardEvent("captured", backward, _anomaly_note()))
        return run_captured, backward

    def _notify(self, event: BackwardEvent) -> None:
        if self.settings.on_event is not None:
            self.settings.on_event(event)


def _anomaly_note() -> str:
    return anomaly_mode.ANOMALY_REASON if torch.is_anomaly_enabled() else ""


def _caller() -> Any:
    """Return the frame that called ``run_backward``."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code is not InterceptedEngine.run_backward.__code__:
        frame = frame.f_back
    return frame.f_back if frame is not None else None


def _reject_capture(_: BackwardCapture) -> Any:
    raise FallbackRequired(CaptureFallback.CONCURRENT_BACKWARD, "another thread runs a backward")


_ids = itertools.count()
_recent_keys: deque[CaptureKey] = deque(maxlen=64)
"""Keys of the latest captures, for cache-miss reasons."""


def run_captured(backward: CapturedBackward, inputs: Any, sizes: Any, scalars: Any, hooks: Any, packed: Any) -> Any:
    """Run a captured backward on this call's values, without interception of its engine calls.

    torch's cache calls this function.
    """
    attempt = _thread.attempt
    if torch.is_grad_enabled() and backward.has_unpack_hooks:
        raise FallbackRequired(
            CaptureFallback.UNPACK_HOOK_DOUBLE,
            "a saved tensor hook unpacks a tensor under create_graph=True, which works only in eager autograd",
        )
    previous = cpp_engine_adapter.set_compiler(None)
    _ProcessState.no_capture_active.set()
    outer, _thread.callbacks = _thread.callbacks, []
    _thread.attempt, _thread.is_running = None, True
    try:
        run = _select_run(backward, attempt)
        if attempt is not None:
            attempt.has_begun = True
            if attempt.is_hit:
                attempt._notify(BackwardEvent("hit", backward, _anomaly_note()))
        with _track_hooks(backward, attempt, hooks):
            if attempt is not None and torch.is_anomaly_enabled():
                lists = (inputs, sizes, scalars, hooks, packed)
                results = anomaly_mode.run_with_anomaly_mode(
                    lambda: run(*lists), functools.partial(attempt.reraise_in_torch, backward)
                )
            else:
                results = run(inputs, sizes, scalars, hooks, packed)
        for callback in iter_growing(_thread.callbacks):
            callback()
        return list(results)
    finally:
        _thread.attempt, _thread.callbacks, _thread.is_running = attempt, outer, False
        if attempt is None:
            cpp_engine_adapter.restore_compiler(previous)


def _track_hooks(backward: CapturedBackward, attempt: _CaptureAttempt | None, hooks: Any) -> Any:
    """Return a context that tracks changes of hooks; a null context if no user code runs."""
    if attempt is None or not backward.runs_users_code:
        return contextlib.nullcontext()
    roots, input_edges = gradient_edges_of(attempt.roots), gradient_edges_of(attempt.inputs)

    def find_nodes() -> tuple[AutogradNode, ...] | None:
        nodes = walk_autograd_graph(roots, input_edges)
        return nodes if [n.name for n in nodes] == [n.name for n in backward.nodes] else None

    return hook_tracking.track_hooks(hook_tracking.ActiveBackward(find_nodes, hooks, input_edges))


def _select_run(backward: CapturedBackward, attempt: _CaptureAttempt | None) -> Run:
    if attempt is None:
        return backward.eager_run()
    if torch.is_anomaly_enabled():
        return backward.anomaly_run()
    return backward.compiled_run(attempt.settings.backend, attempt.settings.compile)


def iter_growing(items: list[Any]) -> Iterator[Any]:
    """Yield the items of a list, including items appended during the iteration."""
    n = 0
    while n < len(items):
        yield items[n]
        n += 1


class InterceptedEngine:
    """Replacement of torch's engine object; unknown attributes come from the original."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Queue a callback for the end of the running backward."""
        if _thread.callbacks is None:
            self._engine.queue_callback(callback)
        else:
            _thread.callbacks.append(callback)

    def run_backward(self, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Run one backward; capture it if this thread requests that and torch supports it."""
        settings = current_settings.get()
        if settings is NO_CONTEXT:
            settings = find_mark(tensors) if _ProcessState.marked_function_count else None
        if settings is None:
            return self._run_in_torch(tensors, args, kwargs)
        fallback = _why_not_captured(tensors, creates_graph=len(args) > 2 and bool(args[2]))
        if fallback is None and not _capture_lock.acquire(blocking=False):
            fallback = Fallback(CaptureFallback.CONCURRENT_CAPTURE, "another thread runs a captured backward")
        if fallback is not None:
            return self._run_eagerly(settings, fallback, tensors, args, kwargs)
        try:
            inputs = args[3] if len(args) > 3 else ()
            attempt = _CaptureAttempt(settings, self._engine, tensors, inputs)
            fallback, results = self._try_capture(attempt, tensors, args, kwargs)
        finally:
            _capture_lock.release()
        return results if fallback is None else self._run_eagerly(settings, fallback, tensors, args, kwargs)

    def _try_capture(
        self, attempt: _CaptureAttempt, tensors: Sequence[Any], args: Any, kwargs: Any
    ) -> tuple[Fallback | None, Any]:
        """Return why the backward was not captured, if so, and its results."""
        _claim_shared_cache()
        _ProcessState.no_capture_active.clear()
        previous = cpp_engine_adapter.set_compiler(attempt.make_recorder, dynamic=attempt.settings.dynamic)
        _thread.attempt = attempt
        try:
            return None, self._engine.run_backward(tensors, *args, **kwargs)
        except FallbackRequired as error:
            return error.fallback, None
        except Exception as error:
            if attempt.has_begun:
                raise
            return _fallback_of_error(str(error)), None
        finally:
            _thread.attempt = None
            attempt.close()
            cpp_engine_adapter.restore_compiler(previous)
            _ProcessState.no_capture_active.set()

    def _run_eagerly(
        self, settings: CaptureSettings, fallback: Fallback, tensors: Sequence[Any], args: Any, kwargs: Any
    ) -> Any:
        if settings.on_event is not None:
            settings.on_event(BackwardEvent("eager", reason=fallback.reason, fallback=fallback))
        return self._run_in_torch(tensors, args, kwargs)

    def _run_in_torch(self, tensors: Sequence[Any], args: Any, kwargs: Any) -> Any:
        """Run a backward in torch's engine, which then also runs the callbacks."""
        outer, _thread.callbacks = _thread.callbacks, None
        try:
            while True:
                _ProcessState.no_capture_active.wait()
                try:
                    return self._engine.run_backward(tensors, *args, **kwargs)
                except FallbackRequired:
                    continue
                except NotImplementedError as error:
                    if CONCURRENT_CAPTURE_ERROR not in str(error):
                        raise
        finally:
            _thread.callbacks = outer


def _why_not_captured(roots: Sequence[Any], *, creates_graph: bool) -> Fallback | None:
    """Return why a backward from these roots is not captured; None if it is."""
    if _thread.is_running:
        return Fallback(
            CaptureFallback.STARTED_BY_BACKWARD, "a hook or a Python function of a captured backward started it"
        )
    if are_functorch_transforms_active():
        return Fallback(CaptureFallback.FUNCTORCH_TRANSFORM, "it runs inside a functional transform (torch.func)")
    if any(map(is_functorch_wrapped_tensor, tensors_in(roots))):
        reason = "it differentiates through a functional transform (torch.func)"
        return Fallback(CaptureFallback.FUNCTORCH_TENSOR, reason)
    if len_torch_dispatch_stack() > 0:
        return Fallback(CaptureFallback.DISPATCH_MODE, "a Python dispatch mode is active")
    if torch.is_anomaly_enabled() and creates_graph:
        reason = "anomaly mode with create_graph=True needs eager autograd"
        return Fallback(CaptureFallback.ANOMALY_MODE_DOUBLE, reason)
    return None


CAPTURE_LIMITATIONS = {
    "view_fn not supported": (
        CaptureFallback.DTYPE_VIEW_WRITE,
        "it differentiates through a write to a view of another dtype (for example view_as_real)",
    ),
    "NestedTensor support": (CaptureFallback.NESTED_TENSOR, "it differentiates through nested tensors"),
    "compiled_args n": (
        CaptureFallback.CPP_NODE,
        "it contains a C++ hook or node without capture support, such as those of DistributedDataParallel's reducer",
    ),
}
"""Readable limitations, by the part of torch's error message that identifies them."""


def _fallback_of_error(error: str) -> Fallback:
    for part, (kind, reason) in CAPTURE_LIMITATIONS.items():
        if part in error:
            return Fallback(kind, f"{reason}, which torch cannot capture")
    first = error.strip().partition("\n")[0].rstrip()
    return Fallback(CaptureFallback.TORCH_CANNOT_CAPTURE, f"torch cannot capture it: {first}")


CONCURRENT_CAPTURE_ERROR = "within another compiled autograd call"
"""torch's error for a backward that starts during another capture; nothing of it has run."""


class _ProcessState:
    """Process-wide state: open contexts, functions with marked outputs, torch's own captures.

    ``no_capture_active`` is set while no backward is captured. Other threads wait for it: torch's switch is global.
    """

    no_capture_active = threading.Event()
    no_capture_active.set()

    context_count = 0
    marked_function_count = 0
    stock_captures = -1
    lock = make_lock()


def _claim_shared_cache() -> None:
    """Clear the cache that torch's own capture shares with us if it captured anything."""
    count = cpp_engine_adapter.torch_capture_count()
    if count != _ProcessState.stock_captures:
        if not cpp_engine_adapter.is_cache_empty():
            cpp_engine_adapter.clear_cache()
        _ProcessState.stock_captures = count
        cpp_engine_adapter.share_formulas()


@contextlib.contextmanager
def intercept_backwards(settings: CaptureSettings | None) -> Iterator[None]:
    """Capture this thread's backwards while the context is open; with None, capture none."""
    _install()
    token = current_settings.set(settings)
    try:
        yield
    finally:
        current_settings.reset(token)
        _remove()


def install_interception() -> Callable[[], None]:
    """Intercept backwards through a function's results until the returned callable is called.

    Call it when the function is deleted.
    """
    _install()
    _ProcessState.marked_function_count += 1

    def leave() -> None:
        _ProcessState.marked_function_count -= 1
        _remove()

    return leave


@contextlib.contextmanager
def without_capture() -> Iterator[None]:
    """Do not capture the backwards that the engine runs while it compiles.

    Saved-tensors hooks of the user do not see the fake tensors of these backwards.
    """
    token = current_settings.set(None)
    before = saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        saved_tensors_hooks_set_tracing(before)
        current_settings.reset(token)


def _install() -> None:
    with _ProcessState.lock:
        if _ProcessState.context_count == 0:
            set_execution_engine(InterceptedEngine(execution_engine()))
        _ProcessState.context_count += 1


def _remove() -> None:
    with _ProcessState.lock:
        _ProcessState.context_count -= 1
        engine = execution_engine()
        if _ProcessState.context_count == 0 and isinstance(engine, InterceptedEngine):
            set_execution_engine(engine._engine)


def clear_captures() -> None:
    """Drop all cached captures, so that each backward is captured again."""
    if not cpp_engine_adapter.is_cache_empty():
        cpp_engine_adapter.clear_cache()
    _recent_keys.clear()
