"""Handlers of call opcodes and of MAKE_FUNCTION."""

from __future__ import annotations

import builtins
from typing import cast

from engine.bytecode.opcodes import RULES
from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.opcode_registry import handle_by_value, handles
from engine.trace.variables.base import NULL, Kwargs, Variable, realize
from engine.trace.variables.callables.cells import CellVariable
from engine.trace.variables.callables.functions import NestedUserFunctionVariable
from engine.trace.variables.containers.dicts import mapping_entries
from engine.trace.variables.containers.sequences import sequence_items


def pop_call(frame: Frame, count: int) -> tuple[Variable, list[Variable]]:
    """Pop the callable and the positional arguments of a call (``self`` first, if present)."""
    args = frame.popn(count)
    above, below = frame.stack.pop(), frame.stack.pop()
    if RULES.null_above_callable:
        return (below, args) if above is NULL else (below, [above, *args])
    return (above, args) if below is NULL else (below, [above, *args])


@handles("CALL", "CALL_KW")
def _call(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    keyword_names, frame.kw_names = frame.kw_names, ()
    if op.opname == "CALL_KW":
        keyword_names = realize(tx, frame.stack.pop()).as_python_constant(tx)
    fn, args = pop_call(frame, op.arg)
    split = len(args) - len(keyword_names)
    kwargs = dict(zip(keyword_names, args[split:], strict=True))
    tx.call_stack.direct_callee = callee = realize(tx, fn)
    frame.push(callee.call(tx, args[:split], kwargs))


@handles("CALL_FUNCTION_EX")
def _call_ex(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    kwargs: Kwargs = {}
    mapping = frame.stack.pop() if RULES.mapping_is_optional or op.arg & 1 else NULL
    if mapping is not NULL:
        keywords = realize(tx, mapping)
        if keywords.lacks_methods("keys"):
            kind = keywords.python_type().__name__
            tx.raise_error(TypeError, f"argument after ** must be a mapping, not {kind}", is_exact=False)
        for key, value in mapping_entries(tx, keywords):
            if not issubclass(realize(tx, key).python_type(), str):
                tx.raise_type_error("keywords must be strings")
            kwargs[realize(tx, key).as_python_constant(tx)] = value
    positional = realize(tx, frame.stack.pop())
    if positional.lacks_methods("__iter__", "__getitem__"):
        kind = positional.python_type().__name__
        tx.raise_error(TypeError, f"argument after * must be an iterable, not {kind}", is_exact=False)
    args = list(sequence_items(tx, positional))
    above, below = frame.stack.pop(), frame.stack.pop()
    fn = below if RULES.null_above_callable else above
    tx.call_stack.direct_callee = callee = realize(tx, fn)
    frame.push(callee.call(tx, args, kwargs))


handle_by_value("LOAD_BUILD_CLASS", 0, lambda tx, op: tx.wrap_static(builtins.__build_class__))


@handles("MAKE_FUNCTION")
def _make_function(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    code = realize(tx, frame.stack.pop()).as_python_constant(tx)
    function = NestedUserFunctionVariable(code, frame.globals, code.co_name)
    if not RULES.attributes_after_function:
        for flag in (8, 4, 2, 1):
            if op.arg & flag:
                _apply_function_flag(tx, function, flag, realize(tx, frame.stack.pop()))
    frame.push(function)


@handles("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    function = cast("NestedUserFunctionVariable", realize(tx, frame.stack.pop()))
    value = realize(tx, frame.stack.pop())
    _apply_function_flag(tx, function, op.arg, value)
    frame.push(function)


def _apply_function_flag(tx: Tracer, function: NestedUserFunctionVariable, flag: int, value: Variable) -> None:
    """Set an attribute by MAKE_FUNCTION's flag.

    1: defaults, 2: keyword defaults, 4: annotations, 8: closure, 16: the function that returns the annotations.
    """
    match flag:
        case 4:
            pairs = list(sequence_items(tx, value))
            function.annotations = {
                str(realize(tx, n).as_python_constant(tx)): v for n, v in zip(pairs[::2], pairs[1::2], strict=True)
            }
        case 1:
            function.default_values = list(sequence_items(tx, value))
        case 2:
            function.keyword_default_values = tx.unpack_string_mapping(value)
        case 8:
            function.cell_values = cast("list[CellVariable]", tx.unpack_iterable(value))
        case 16:
            function.annotate = value
