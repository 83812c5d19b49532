"""With which arguments frames of a live session were called: enough to ask what if, and to run a call again, without keeping a tensor alive."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.introspection import describe_values, python_objects
from engine.ir.introspection.tensor_spec import TensorSpec
from engine.records.guards import CallExplanation
from engine.records.session import Session

if TYPE_CHECKING:
    from engine.runtime.dispatch.dispatcher import DispatcherState

MAX_DEPTH = 4
"""Containers inside containers that are looked into."""
MAX_ITEMS = 64
"""Items of one container that are looked at."""
MAX_CALLS = 64
"""Calls of one frame that are remembered: those that compiled, and the last."""


class ValueUnavailable(Exception):
    """An argument cannot be had again; says which and why."""


@dataclass(frozen=True)
class RetainedValue:
    """An object that a call was given, held weakly."""

    reference: weakref.ref[Any]
    description: str


@dataclass(frozen=True)
class UndescribedValue:
    """An object that can neither be described nor held weakly."""

    description: str


ExplainArguments = Callable[[Mapping[str, Any]], "CallExplanation | None"]


@dataclass(frozen=True)
class RecordedCall:
    """One call: its number among the session's calls, the entry that served it, and stand-ins for its arguments by parameter."""

    index: int
    entry: str
    arguments: Mapping[str, Any]


@dataclass
class RecordedFrame:
    """The calls of one frame that are remembered, oldest first, and where they were dispatched.

    A resumed frame's cells hold what was live at the break, so that its dispatcher is held weakly; any other may outlive what a cell compiled.
    ``ask`` is there instead for a frame of another compiler: what its cache says to a call with these arguments, or None where it is gone.
    """

    dispatcher_state: Callable[[], DispatcherState | None]
    calls: list[RecordedCall] = field(default_factory=list)
    last_call: RecordedCall | None = None
    explain: ExplainArguments | None = None


_recorded_frames: weakref.WeakKeyDictionary[Session, dict[str, RecordedFrame]] = weakref.WeakKeyDictionary()


def record_arguments(
    session: Session,
    dispatch: DispatcherState,
    index: int,
    entry: str,
    arguments: Mapping[str, Any],
    *,
    keep_beyond_next: bool,
) -> None:
    """Remember a call; with ``keep`` beyond the next one."""
    frames = _recorded_frames.setdefault(session, {})
    frame = frames.get(dispatch.cache.frame.id)
    if frame is None or frame.dispatcher_state() is None:
        held = weakref.ref(dispatch) if dispatch.cache.frame.role == "resume" else partial(_itself, dispatch)
        frame = frames[dispatch.cache.frame.id] = RecordedFrame(held, [] if frame is None else frame.calls)
    if not keep_beyond_next and frame.last_call is not None and frame.last_call.entry == entry:
        return
    call = RecordedCall(index, entry, {name: describe_argument(value) for name, value in arguments.items()})
    frame.last_call = call
    if keep_beyond_next and len(frame.calls) < MAX_CALLS:
        frame.calls.append(call)


def record_stock_arguments(session: Session, frame: str, ask: ExplainArguments, arguments: Mapping[str, Any]) -> None:
    """Remember the last call of a frame that another compiler keeps, and how to ask that compiler's cache."""
    call = RecordedCall(0, "", {name: describe_argument(value) for name, value in arguments.items()})
    _recorded_frames.setdefault(session, {})[frame] = RecordedFrame(_nothing, last_call=call, explain=ask)


def _nothing() -> None:
    return None


def _itself(dispatch: DispatcherState) -> DispatcherState:
    return dispatch


def recorded_frame(session: Session, frame: str) -> RecordedFrame | None:
    """What is remembered of a frame; None for a loaded session, or one that was never called."""
    return _recorded_frames.get(session, {}).get(frame)


def describe_argument(value: Any, depth: int = 0) -> Any:
    """Something that describes a value and keeps no tensor alive."""
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


_CONSTANTS = frozenset(
    (
        *python_objects.SINGLETON_TYPES,
        int,
        float,
        complex,
        str,
        bytes,
        torch.device,
        torch.Size,
        range,
        types.FunctionType,
        types.BuiltinFunctionType,
    )
)


def resolve_argument(value: Any) -> Any:
    """The value with what was held weakly in its place; tensors stay descriptions.

    Raises:
        Gone: it is not there any more.
    """
    match value:
        case RetainedValue(reference, words):
            found = reference()
            if found is None:
                raise ValueUnavailable(f"{words} does not exist any more")
            return found
        case UndescribedValue(words):
            raise ValueUnavailable(f"{words} was not kept")
        case list() | tuple() if type(value) in (list, tuple):
            return type(value)(resolve_argument(v) for v in value)
        case dict() if type(value) is dict:
            return {k: resolve_argument(v) for k, v in value.items()}
        case _:
            return value


def make_argument(value: Any) -> Any:
    """The value with a fresh tensor for each description: zeros for integers and booleans, which are valid as indices, else random numbers.

    Raises:
        Gone: its device is not to be had here.
    """
    match value:
        case TensorSpec():
            return _make_tensor(value)
        case list() | tuple() if type(value) in (list, tuple):
            return type(value)(make_argument(v) for v in value)
        case dict() if type(value) is dict:
            return {k: make_argument(v) for k, v in value.items()}
        case _:
            return value


def _make_tensor(spec: TensorSpec) -> torch.Tensor:
    if spec.device.type != "cpu":
        raise ValueUnavailable(f"a tensor on {spec.device} is not made again")
    if any(s == 0 and n > 1 for s, n in zip(spec.strides, spec.shape, strict=True)):
        raise ValueUnavailable("a tensor that overlaps itself is not made again")
    found = torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype)
    if spec.dtype.is_floating_point or spec.dtype.is_complex:
        found.normal_()
    else:
        found.zero_()
    if spec.is_parameter:
        return torch.nn.Parameter(found, requires_grad=spec.requires_grad)
    return found.requires_grad_(spec.requires_grad)
