"""Arguments of recorded calls, for what-if queries and re-running; retains no tensor."""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from engine.interrupts.weak_tables import WeakTable
from engine.ir.introspection import describe_values, python_objects
from engine.ir.introspection.tensor_spec import TensorSpec
from engine.ir.introspection.torch_global_state import GLOBAL_STATES
from engine.records.guards import CallExplanation
from engine.records.session import Session

if TYPE_CHECKING:
    from engine.runtime.dispatch.dispatcher import DispatcherState

MAX_DEPTH = 4
"""Maximum nesting depth of containers that are described."""
MAX_ITEMS = 64
"""Maximum number of items of a container that is described."""
MAX_CALLS = 64
"""Maximum number of stored calls per frame that compiled; the last call is extra."""


class ValueUnavailable(Exception):
    """Raised with the reason why an argument is no longer available."""


@dataclass(frozen=True)
class RetainedValue:
    """Weak reference to an argument."""

    reference: weakref.ref[Any]
    description: str


@dataclass(frozen=True)
class UndescribedValue:
    """An argument that can be neither described nor weakly referenced."""

    description: str


ExplainArguments = Callable[[Mapping[str, Any]], "CallExplanation | None"]


@dataclass(frozen=True)
class CallModes:
    """Modes of torch that a call ran under.

    ``autocast`` has (device, dtype) pairs, then True if casts of weights are cached; it is empty if off.
    """

    grad: bool
    inference: bool
    autocast: tuple[Any, ...]

    @classmethod
    def capture(cls) -> CallModes:
        """Capture the current modes."""
        return cls(*(GLOBAL_STATES[name].read() for name in ("grad_mode", "inference_mode", "autocast")))

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Run the block under these modes."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for device, dtype in self.autocast[:-1]:
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=self.autocast[-1]))
            yield


@dataclass(frozen=True)
class RecordedCall:
    """One call: index in the session, cache entry, argument descriptions by parameter, modes."""

    index: int
    entry: str
    arguments: Mapping[str, Any]
    modes: CallModes = field(default_factory=CallModes.capture)


@dataclass
class RecordedFrame:
    """Stored calls of one frame, oldest first, and its dispatcher state.

    The state is a weak reference for a resume function, whose cells have the values that were live at the graph break.
    ``explain`` is set instead for a frame of another compiler: it returns what that compiler's cache does with a call
    with these arguments, or None if the cache is gone.
    """

    dispatcher_state: Callable[[], DispatcherState | None]
    calls: list[RecordedCall] = field(default_factory=list)
    last_call: RecordedCall | None = None
    explain: ExplainArguments | None = None


_recorded_frames: WeakTable[Session, dict[str, RecordedFrame]] = WeakTable()


def record_arguments(
    session: Session,
    dispatch: DispatcherState,
    index: int,
    entry: str,
    arguments: Mapping[str, Any],
    *,
    keep_beyond_next: bool,
) -> None:
    """Store the arguments of a call; with ``keep_beyond_next``, also after the next call."""
    frames = _recorded_frames.setdefault(session, {})
    frame = frames.get(dispatch.cache.frame.id)
    if frame is None or frame.dispatcher_state() is None:
        is_resume = dispatch.cache.frame.role == "resume"
        reference: Callable[[], DispatcherState | None] = weakref.ref(dispatch) if is_resume else lambda: dispatch
        frame = frames[dispatch.cache.frame.id] = RecordedFrame(reference, [] if frame is None else frame.calls)
    if not keep_beyond_next and frame.last_call is not None and frame.last_call.entry == entry:
        return
    call = RecordedCall(index, entry, {name: describe_argument(value) for name, value in arguments.items()})
    frame.last_call = call
    if keep_beyond_next and len(frame.calls) < MAX_CALLS:
        frame.calls.append(call)


def record_stock_arguments(session: Session, frame: str, ask: ExplainArguments, arguments: Mapping[str, Any]) -> None:
    """Store the last call of a frame that another compiler compiled, and its explain function."""
    call = RecordedCall(0, "", {name: describe_argument(value) for name, value in arguments.items()})
    _recorded_frames.setdefault(session, {})[frame] = RecordedFrame(lambda: None, last_call=call, explain=ask)


def recorded_frame(session: Session, frame: str) -> RecordedFrame | None:
    """Return the recorded calls of a frame; None for a loaded session or an uncalled frame."""
    return _recorded_frames.get(session, {}).get(frame)


def live_frame(session: Session, frame: str) -> tuple[DispatcherState, RecordedFrame]:
    """Return the state of a frame's dispatcher, and the frame's recorded calls.

    Raises:
        ValueUnavailable: nothing was recorded in this process, or the function no longer exists.
    """
    recorded = recorded_frame(session, frame)
    dispatch = None if recorded is None else recorded.dispatcher_state()
    if recorded is None or dispatch is None:
        raise ValueUnavailable("the session was loaded from a file, or its function was deleted")
    return dispatch, recorded


def describe_argument(value: Any, depth: int = 0) -> Any:
    """Return a description of a value that retains no tensor."""
    kind = type(value)
    if kind in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_nested:
        return TensorSpec.from_tensor(value)
    if kind in (list, tuple) and depth < MAX_DEPTH and len(value) <= MAX_ITEMS:
        return kind(describe_argument(v, depth + 1) for v in value)
    if (
        kind is dict
        and depth < MAX_DEPTH
        and len(value) <= MAX_ITEMS
        and all(type(k) in _CONSTANTS for k in list(value))
    ):
        return {k: describe_argument(v, depth + 1) for k, v in value.items()}
    if kind in _CONSTANTS:
        return value
    try:
        return RetainedValue(weakref.ref(value), describe_values.describe(value))
    except TypeError:
        return UndescribedValue(describe_values.describe(value))


_CONSTANTS = python_objects.IMMUTABLE_TYPES | {types.FunctionType, types.BuiltinFunctionType}


def resolve_argument(value: Any) -> Any:
    """Replace weak references by their objects; tensors stay ``TensorSpec``s.

    Raises:
        ValueUnavailable: an object no longer exists or was not stored.
    """
    match value:
        case RetainedValue(reference, message):
            referent = reference()
            if referent is None:
                raise ValueUnavailable(f"{message} no longer exists")
            return referent
        case UndescribedValue(message):
            raise ValueUnavailable(f"{message} was not recorded")
        case _:
            return _map_items(resolve_argument, value)


def _map_items(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the items of a list, tuple or dict; return others unchanged."""
    if type(value) in (list, tuple):
        return type(value)(map(function, value))
    return {k: function(v) for k, v in value.items()} if type(value) is dict else value


def make_argument(value: Any) -> Any:
    """Replace each ``TensorSpec`` by a new tensor.

    Floats are random; integers and booleans are zero, which is a valid index.

    Raises:
        ValueUnavailable: the tensor is not on the CPU, or overlaps itself.
    """
    return _make_tensor(value) if isinstance(value, TensorSpec) else _map_items(make_argument, value)


def _make_tensor(spec: TensorSpec) -> torch.Tensor:
    if spec.device.type != "cpu":
        raise ValueUnavailable(f"a tensor on {spec.device} cannot be created for a re-run")
    if any(s == 0 and n > 1 for s, n in zip(spec.strides, spec.shape, strict=True)):
        raise ValueUnavailable("a tensor whose elements overlap in memory cannot be created for a re-run")
    tensor = torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype)
    if spec.dtype.is_floating_point or spec.dtype.is_complex:
        tensor.normal_()
    else:
        tensor.zero_()
    if spec.is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=spec.requires_grad)
    return tensor.requires_grad_(spec.requires_grad)
