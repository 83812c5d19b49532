"""Opcode handlers for f-strings and string building."""

from __future__ import annotations

import torch

from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.exc import Unsupported
from engine.trace.opcode_registry import handle_by_value, handles
from engine.trace.variables.base import (
    ConstantVariable,
    FormatPart,
    StringFormatVariable,
    Variable,
    is_formatted_later,
    realize,
)
from engine.trace.variables.callable_registry import find_rule


@handles("BUILD_STRING")
def _string(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    parts = frame.popn(op.arg)
    formatted_parts = (format_f_string_part(tx, part, 0, "") if part.is_lazy else part for part in parts)
    text = StringFormatVariable([piece for part in formatted_parts for piece in part.format_parts(tx)])
    frame.push(text if any(value.is_symbolic or value.is_lazy for value, _ in text.parts) else text.realize(tx))


def format_f_string_part(tx: Tracer, value: Variable, conversion: int, spec: str) -> Variable:
    """Format one part of an f-string. ``conversion``: 0 none, 1 str, 2 repr, 3 ascii."""
    if value.is_lazy and is_formatted_later(value):
        assert value.source is not None
        tx.guard_type(value.as_python_object(), value.source, "a string shows it")
        return StringFormatVariable([(value, (conversion, spec))])
    value = realize(tx, value)
    if value.is_symbolic:
        return StringFormatVariable([(value, (conversion, spec))])
    if not spec and (parts := _parts_of_numbers(tx, value)) is not None:
        return StringFormatVariable(parts)
    formatted = None if conversion else value.call_user_method(tx, "__format__", [ConstantVariable(spec)])
    if formatted is not None:
        return formatted
    if conversion or not value.is_constant:
        fn = (str, str, repr, ascii)[conversion]
        if spec and not conversion and tx.is_python_constant(value):
            return tx.fold_constant(format, value.as_python_constant(tx), spec)
        if spec and not conversion:
            raise Unsupported("tensor-text", f"formatting a {value.describe()}")
        rule = find_rule(fn)
        value = realize(
            tx, rule(tx, [value], {}) if rule is not None else tx.fold_constant(fn, value.as_python_constant(tx))
        )
    return tx.fold_constant(format, value.as_python_constant(tx), spec)


_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), torch.Size: ("torch.Size([", "])")}


def _parts_of_numbers(tx: Tracer, value: Variable) -> list[FormatPart] | None:
    """Return the parts of a list or tuple of numbers with a symbol; None for any other value."""
    cls = value.python_type()
    if cls not in _BRACKETS or value.sequence_contents is not value:
        return None
    items = [realize(tx, item) for item in value.argument_items()]
    if not any(v.is_symbolic for v in items) or any(v.python_type() not in (int, float) for v in items):
        return None
    begin, end = _BRACKETS[cls]
    texts = [begin, *[", "] * (len(items) - 1), ",)" if cls is tuple and len(items) == 1 else end]
    fixed: list[FormatPart] = [(ConstantVariable(text), (0, "")) for text in texts]
    return [part for text, item in zip(fixed, items, strict=False) for part in (text, (item, (0, "")))] + fixed[-1:]


@handles("FORMAT_VALUE")
def _format(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    spec = str(realize(tx, frame.stack.pop()).as_python_constant(tx)) if op.arg & 4 else ""
    frame.push(format_f_string_part(tx, frame.stack.pop(), op.arg & 3, spec))


@handles("FORMAT_SIMPLE")
def _format_simple(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    if frame.stack[-1].__class__ is not StringFormatVariable:  # CONVERT_VALUE may have made one
        frame.push(format_f_string_part(tx, frame.stack.pop(), 0, ""))


def _format_with_spec(tx: Tracer, op: DecodedInstruction, value: Variable, spec: Variable) -> Variable:
    return format_f_string_part(tx, value, 0, str(realize(tx, spec).as_python_constant(tx)))


handle_by_value("FORMAT_WITH_SPEC", 2, _format_with_spec)
handle_by_value("CONVERT_VALUE", 1, lambda tx, op, value: format_f_string_part(tx, value, op.arg, ""))
