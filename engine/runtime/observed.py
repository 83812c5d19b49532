"""With which arguments frames of a live session were called: enough to ask what if, and to run a call again, without keeping a tensor alive."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from engine.ir import exact
from engine.ir.spec import TensorSpec
from engine.records.guards import CallExplanation
from engine.records.session import Session

if TYPE_CHECKING:
    from engine.runtime.dispatch import Dispatch

DEPTH = 4
"""Containers inside containers that are looked into."""
ITEMS = 64
"""Items of one container that are looked at."""
CALLS = 64
"""Calls of one frame that are remembered: those that compiled, and the last."""


class Gone(Exception):
    """An argument cannot be had again; says which and why."""


@dataclass(frozen=True)
class Kept:
    """An object that a call was given, held weakly."""

    reference: weakref.ref[Any]
    words: str


@dataclass(frozen=True)
class Lost:
    """An object that can neither be described nor held weakly."""

    words: str


Ask = Callable[[Mapping[str, Any]], "CallExplanation | None"]


@dataclass(frozen=True)
class ObservedCall:
    """One call: its number among the session's calls, the entry that served it, and stand-ins for its arguments by parameter."""

    index: int
    entry: str
    arguments: Mapping[str, Any]


@dataclass
class ObservedFrame:
    """The calls of one frame that are remembered, oldest first, and where they were dispatched.

    A resumed frame's cells hold what was live at the break, so that its dispatcher is held weakly; any other may outlive what a cell compiled.
    ``ask`` is there instead for a frame of another compiler: what its cache says to a call with these arguments, or None where it is gone.
    """

    dispatch: Callable[[], Dispatch | None]
    calls: list[ObservedCall] = field(default_factory=list)
    last: ObservedCall | None = None
    ask: Ask | None = None


_frames: weakref.WeakKeyDictionary[Session, dict[str, ObservedFrame]] = weakref.WeakKeyDictionary()


def observe(
    session: Session, dispatch: Dispatch, index: int, entry: str, arguments: Mapping[str, Any], *, keep: bool
) -> None:
    """Remember a call; with ``keep`` beyond the next one."""
    frames = _frames.setdefault(session, {})
    frame = frames.get(dispatch.cache.frame.id)
    if frame is None or frame.dispatch() is None:
        held = weakref.ref(dispatch) if dispatch.cache.frame.role == "resume" else partial(_itself, dispatch)
        frame = frames[dispatch.cache.frame.id] = ObservedFrame(held, [] if frame is None else frame.calls)
    if not keep and frame.last is not None and frame.last.entry == entry:
        return
    call = ObservedCall(index, entry, {name: stand_in(value) for name, value in arguments.items()})
    frame.last = call
    if keep and len(frame.calls) < CALLS:
        frame.calls.append(call)


def observe_foreign(session: Session, frame: str, ask: Ask, arguments: Mapping[str, Any]) -> None:
    """Remember the last call of a frame that another compiler keeps, and how to ask that compiler's cache."""
    call = ObservedCall(0, "", {name: stand_in(value) for name, value in arguments.items()})
    _frames.setdefault(session, {})[frame] = ObservedFrame(_nothing, last=call, ask=ask)


def _nothing() -> None:
    return None


def _itself(dispatch: Dispatch) -> Dispatch:
    return dispatch


def observed(session: Session, frame: str) -> ObservedFrame | None:
    """What is remembered of a frame; None for a loaded session, or one that was never called."""
    return _frames.get(session, {}).get(frame)


def stand_in(value: Any, depth: int = 0) -> Any:
    """Something that describes a value and keeps no tensor alive."""
    kind = type(value)
    if kind in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_nested:
        return TensorSpec.of(value)
    if kind in (list, tuple) and depth < DEPTH and len(value) <= ITEMS:
        return kind(stand_in(v, depth + 1) for v in value)
    if kind is dict and depth < DEPTH and len(value) <= ITEMS and all(type(k) in _CONSTANTS for k in list(value)):
        return {k: stand_in(v, depth + 1) for k, v in value.items()}
    if kind in _CONSTANTS:
        return value
    try:
        return Kept(weakref.ref(value), exact.describe(value))
    except TypeError:
        return Lost(exact.describe(value))


_CONSTANTS = frozenset(
    (
        *exact.SINGLETONS,
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


def resolved(value: Any) -> Any:
    """The value with what was held weakly in its place; tensors stay descriptions.

    Raises:
        Gone: it is not there any more.
    """
    match value:
        case Kept(reference, words):
            found = reference()
            if found is None:
                raise Gone(f"{words} does not exist any more")
            return found
        case Lost(words):
            raise Gone(f"{words} was not kept")
        case list() | tuple() if type(value) in (list, tuple):
            return type(value)(resolved(v) for v in value)
        case dict() if type(value) is dict:
            return {k: resolved(v) for k, v in value.items()}
        case _:
            return value


def made(value: Any) -> Any:
    """The value with a fresh tensor for each description: zeros for integers and booleans, which are valid as indices, else random numbers.

    Raises:
        Gone: its device is not to be had here.
    """
    match value:
        case TensorSpec():
            return _tensor(value)
        case list() | tuple() if type(value) in (list, tuple):
            return type(value)(made(v) for v in value)
        case dict() if type(value) is dict:
            return {k: made(v) for k, v in value.items()}
        case _:
            return value


def _tensor(spec: TensorSpec) -> torch.Tensor:
    if spec.device.type != "cpu":
        raise Gone(f"a tensor on {spec.device} is not made again")
    if any(s == 0 and n > 1 for s, n in zip(spec.strides, spec.shape, strict=True)):
        raise Gone("a tensor that overlaps itself is not made again")
    found = torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype)
    if spec.dtype.is_floating_point or spec.dtype.is_complex:
        found.normal_()
    else:
        found.zero_()
    if spec.is_parameter:
        return torch.nn.Parameter(found, requires_grad=spec.requires_grad)
    return found.requires_grad_(spec.requires_grad)
