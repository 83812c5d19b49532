"""Queries of what-if calls: the cache entry that a call with edited arguments would hit.

The live cache is queried with tensor specs, so no tensor is allocated.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.errors import BadArgument, error_line
from engine.ir.introspection.tensor_spec import TensorSpec
from engine.ir.sources.base import FrameScope
from engine.records.guards import CallExplanation
from engine.records.session import Session
from engine.runtime.dispatch.dispatcher import DispatcherState
from engine.runtime.dispatch.recorded_arguments import (
    RecordedFrame,
    RetainedValue,
    UndescribedValue,
    ValueUnavailable,
    recorded_frame,
    resolve_argument,
)

NOT_LIVE_MESSAGE = "This session was loaded from a file, or its function was deleted: what-if needs the live function."


NUMBERS = (int, float, bool, str, type(None))


@dataclass(frozen=True)
class EditableInput:
    """One value that can be edited: its path (``x``, ``xs[0]``), and its fields as text.

    A tensor has ``shape``, ``stride``, ``dtype``, ``device`` and ``requires_grad``; any other value has ``value``.
    """

    path: str
    fields: Mapping[str, str]


def editable_inputs(session: Session, frame: str, edits: Mapping[str, Mapping[str, str]]) -> tuple[EditableInput, ...]:
    """Return the editable inputs of a frame's last recorded call, with edits applied.

    Raises:
        BadArgument: the session is not live, or a text cannot be parsed.
    """
    arguments = _last_arguments(session, frame).items()
    return tuple(i for name, value in arguments for i in inputs_of(name, edited_argument(name, value, edits)))


def what_if(session: Session, frame: str, edits: Mapping[str, Mapping[str, str]]) -> CallExplanation:
    """Return which entry the last call would hit with edited values.

    It is evaluated under the grad, inference and autocast modes of that call. ``edits``: new text of fields,
    by path.

    Raises:
        BadArgument: the session is not live, an argument is no longer available, or a text cannot be parsed.
    """
    try:
        arguments = {
            n: resolve_argument(edited_argument(n, v, edits)) for n, v in _last_arguments(session, frame).items()
        }
    except ValueUnavailable as error:
        raise BadArgument(f"What-if is not possible: {error}.") from error
    explanation = _explain(recorded_frame(session, frame), arguments)
    if explanation is None:
        raise BadArgument(NOT_LIVE_MESSAGE)
    return explanation


def _explain(recorded: RecordedFrame | None, arguments: Mapping[str, Any]) -> CallExplanation | None:
    """Explain a call under the modes of the last recorded one; None if the cache is gone."""
    if recorded is None or recorded.last_call is None:
        return None
    with recorded.last_call.modes.active():
        if recorded.explain is not None:
            return recorded.explain(arguments)
        dispatch = recorded.dispatcher_state()
        return None if dispatch is None else explain_entries(dispatch, dispatch.scope(tuple(arguments.values())))


def explain_entries(dispatch: DispatcherState, scope: FrameScope) -> CallExplanation:
    """Return which entry a call hits, and every guard's result for every entry."""
    entries = dispatch.entries
    results = {e.id: dispatch.compiler.guard_queries.explain(e, scope) for e in entries}
    rejections = {e.id: dispatch.guard_failure(e, scope) for e in entries}
    hit = next((e.id for e in entries if rejections[e.id] is None), None)
    refused = tuple(r for r in rejections.values() if r is not None)
    return CallExplanation(dispatch.cache.frame.id, hit, tuple(e.id for e in entries), refused, results)


def _last_arguments(session: Session, frame: str) -> Mapping[str, Any]:
    """Return the argument descriptions of the last recorded call of a live frame."""
    recorded = recorded_frame(session, frame)
    if (
        recorded is None
        or recorded.last_call is None
        or (recorded.explain is None and recorded.dispatcher_state() is None)
    ):
        raise BadArgument(NOT_LIVE_MESSAGE)
    return recorded.last_call.arguments


def inputs_of(path: str, value: Any) -> Iterator[EditableInput]:
    """Yield the editable inputs in a described argument."""
    if isinstance(value, TensorSpec):
        yield EditableInput(
            path,
            {
                "shape": _numbers(value.shape),
                "stride": _numbers(value.strides),
                "dtype": str(value.dtype).removeprefix("torch."),
                "device": str(value.device),
                "requires_grad": str(value.requires_grad),
            },
        )
    elif type(value) in NUMBERS:
        yield EditableInput(path, {"value": repr(value)})
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield from inputs_of(f"{path}[{index}]", item)
    elif type(value) is dict:
        for key, item in value.items():
            yield from inputs_of(f"{path}[{key!r}]", item)


def _numbers(values: Any) -> str:
    return ", ".join(map(str, values))


def edited_argument(path: str, value: Any, edits: Mapping[str, Mapping[str, str]]) -> Any:
    """Return a described argument with edits, which are new text of fields by path.

    Raises:
        BadArgument: a text cannot be parsed.
    """
    if type(value) in (list, tuple):
        return type(value)(edited_argument(f"{path}[{i}]", v, edits) for i, v in enumerate(value))
    if type(value) is dict:
        return {k: edited_argument(f"{path}[{k!r}]", v, edits) for k, v in value.items()}
    edit = edits.get(path)
    if not edit or isinstance(value, (RetainedValue, UndescribedValue)):
        return value
    if not isinstance(value, TensorSpec):
        return _literal(path, edit.get("value", repr(value)))
    return _edited_spec(path, value, edit)


def _edited_spec(path: str, spec: TensorSpec, edit: Mapping[str, str]) -> TensorSpec:
    shape = _sizes(path, edit["shape"]) if "shape" in edit else tuple(spec.shape)
    stride_text = edit.get("stride", "").strip()
    stride = _sizes(path, stride_text) if stride_text else (spec.strides if "shape" not in edit else None)
    dtype = getattr(torch, edit["dtype"].strip().removeprefix("torch."), None) if "dtype" in edit else spec.dtype
    if not isinstance(dtype, torch.dtype):
        raise BadArgument(f"{path}: there is no dtype {edit['dtype']!r}: write a name such as float32.")
    grad = edit["requires_grad"] == "True" if "requires_grad" in edit else spec.requires_grad
    try:
        device = torch.device(edit["device"].strip()) if "device" in edit else spec.device
        return TensorSpec(shape, dtype, stride, device, grad, parameter=spec.is_parameter, inference=spec.is_inference)
    except (ValueError, RuntimeError) as error:
        raise BadArgument(f"{path}: {error_line(error)}.") from error


def _sizes(path: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.strip(" ()[]").split(",") if part.strip())
    except ValueError:
        raise BadArgument(f"{path}: sizes are integers separated by commas, not {text!r}.") from None


def _literal(path: str, text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise BadArgument(f"{path}: {text!r} is not a Python number, string, True, False or None.") from None
