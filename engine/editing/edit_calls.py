"""Edited calls: the text of a recorded call's inputs and options, read back after an edit."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine import api
from engine.errors import BadArgument, EngineError
from engine.ir.introspection.tensor_spec import TensorSpec
from engine.options import Options
from engine.runtime.dispatch.what_if import EditableInput, edited_argument, inputs_of

CALL = "call"
"""Stage of the edits of a call."""
OPTION_NAMES = ("backend", "dynamic", "fullgraph", "target")
_TENSOR = re.compile(
    r"(?:torch\.)?(?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?: strides \[(?P<stride>[^\]]*)\])?(?P<grad> requires_grad)?$"
)


class UnreadableCall(Exception):
    """A line of an edited call that cannot be read."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class EditedCall:
    """Arguments and options of an edited call; ``lines`` has the line of each option."""

    arguments: Mapping[str, Any]
    options: Options
    lines: Mapping[str, int]


def call_text(name: str, arguments: Mapping[str, Any], options: Options) -> str:
    """Return a call as text: a line for each input, then one for each option."""
    inputs = [f"{path}: {_input_text(one)}" for path, one in _inputs(arguments).items()]
    chosen = [f"{option}: {_option_text(getattr(options, option))}" for option in OPTION_NAMES]
    return "\n".join([f"# inputs of {name}", *inputs, "# options", *chosen, ""])


def _option_text(value: Any) -> str:
    return "<a function>" if callable(value) else str(value)


def _inputs(arguments: Mapping[str, Any]) -> dict[str, EditableInput]:
    return {one.path: one for name, value in arguments.items() for one in inputs_of(name, value)}


def _input_text(one: EditableInput) -> str:
    fields = one.fields
    if "value" in fields:
        return fields["value"]
    plain = TensorSpec(tuple(int(n) for n in fields["shape"].split(",") if n.strip()))
    strides = "" if ", ".join(map(str, plain.strides)) == fields["stride"] else f" strides [{fields['stride']}]"
    return f"{fields['dtype']}[{fields['shape']}]{strides}" + " requires_grad" * (fields["requires_grad"] == "True")


def read_call(text: str, arguments: Mapping[str, Any], options: Options) -> EditedCall:
    """Read an edited call.

    Raises:
        UnreadableCall: a line is not an input or option, or its value is invalid.
    """
    inputs, chosen, is_option = _inputs(arguments), dict[str, Any](), False
    edited_arguments, lines = dict(arguments), dict[str, int]()
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#") or not line.strip():
            is_option = is_option or line.startswith("# options")
            continue
        path = next((n for n in (OPTION_NAMES if is_option else inputs) if line.startswith(f"{n}:")), None)
        if path is None:
            raise UnreadableCall(number, f"the call has no such {'option' if is_option else 'input'}")
        value = line[len(path) + 1 :].strip()
        lines[path] = number
        try:
            if is_option:
                chosen |= _option(path, value, options)
            elif value != _input_text(inputs[path]):
                edit = {path: _edit_of(value, is_tensor="value" not in inputs[path].fields)}
                edited_arguments = {n: edited_argument(n, v, edit) for n, v in edited_arguments.items()}
        except BadArgument as error:
            raise UnreadableCall(number, str(error).rstrip(".")) from error
    return EditedCall(edited_arguments, _check_options(options, chosen, lines), lines)


def _edit_of(value: str, *, is_tensor: bool) -> dict[str, str]:
    if not is_tensor:
        return {"value": value}
    match = _TENSOR.match(value)
    if match is None:
        raise BadArgument("write a tensor as float32[4, 8], with 'requires_grad' behind it if it needs a gradient")
    grad = str(match["grad"] is not None)
    return {"dtype": match["dtype"], "shape": match["shape"], "stride": match["stride"] or "", "requires_grad": grad}


def _option(name: str, value: str, options: Options) -> dict[str, Any]:
    before = getattr(options, name)
    if value == _option_text(before):
        return {}
    if name in ("backend", "target"):
        return {name: None if value == "None" else value}
    try:
        return {name: ast.literal_eval(value)}
    except (ValueError, SyntaxError):
        raise BadArgument(f"{name} is True or False, not {value!r}") from None


def _check_options(options: Options, chosen: Mapping[str, Any], lines: Mapping[str, int]) -> Options:
    for name, value in chosen.items():
        try:
            with_option = {"backend": options.backend} | {name: value}
            api.make_options(**with_option)
        except EngineError as error:
            raise UnreadableCall(lines[name], str(error).rstrip(".")) from error
    return replace(options, **chosen)


def call_code(name: str, arguments: Mapping[str, Any], options: Options) -> str:
    """Return Python that makes the inputs of a call, compiles the function and calls it."""
    changed = {n: getattr(options, n) for n in OPTION_NAMES if getattr(options, n) != getattr(Options(), n)}
    option_text = "".join(f", {n}={v!r}" for n, v in changed.items() if not callable(v))
    assignments = [f"{n} = {_value_code(v)}" for n, v in arguments.items() if _is_known(v)]
    call = f"engine.compile({name}{option_text})({', '.join(arguments)})"
    return "\n".join(["import engine", "import torch", "", *assignments, call, ""])


def _is_known(value: Any) -> bool:
    return any(True for _ in inputs_of("", value)) or value in ((), [], {})


@functools.singledispatch
def _value_code(value: Any) -> str:
    return repr(value)


@_value_code.register
def _(value: TensorSpec) -> str:
    make = "randn" if value.dtype.is_floating_point or value.dtype.is_complex else "zeros"
    grad = ", requires_grad=True" if value.requires_grad else ""
    code = f"torch.{make}({tuple(value.shape)}, dtype={value.dtype}{grad})"
    plain = TensorSpec(tuple(value.shape), value.dtype)
    return code if value.strides == plain.strides else f"{code}.as_strided({tuple(value.shape)}, {value.strides})"


@_value_code.register
def _(value: list) -> str:  # type: ignore[type-arg]
    return f"[{', '.join(map(_value_code, value))}]"


@_value_code.register
def _(value: tuple) -> str:  # type: ignore[type-arg]
    return f"({''.join(f'{_value_code(v)}, ' for v in value)})"


@_value_code.register
def _(value: dict) -> str:  # type: ignore[type-arg]
    return "{" + ", ".join(f"{k!r}: {_value_code(v)}" for k, v in value.items()) + "}"
