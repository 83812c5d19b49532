"""Rules for the builtin functions that read, write and list attributes and names, and for ``functools.wraps``, which copies them."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING

from engine.trace import operations
from engine.trace.signals import Unsupported, UserException
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.cells import CellValue
from engine.trace.values.exceptions import read, write
from engine.trace.values.mappings import DictValue
from engine.trace.values.methods import BuiltinValue
from engine.trace.values.objects import ObjectValue, PythonModule
from engine.trace.values.partials import partial_of
from engine.trace.values.rules import special
from engine.trace.values.sequences import (
    ListValue,
    sequence_items,
)

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


def _attribute_name(tx: Tracer, value: Value) -> str:
    name = force(tx, value).python(tx)
    if not isinstance(name, str):
        tx.raise_type_error(f"attribute name must be string, not '{type(name).__name__}'")
    return str(name)


@special(getattr)
def _getattr(tx: Tracer, args: Args, kwargs: Words) -> Value:
    name = _attribute_name(tx, args[1])
    if len(args) == 2:
        return read(tx, force(tx, args[0]), name)
    return _attribute_or(tx, force(tx, args[0]), name, args[2])


def _attribute_or(tx: Tracer, of: Value, name: str, default: Value) -> Value:
    try:
        return of.get_attr(tx, name)
    except UserException as error:
        if not issubclass(error.value.type(), AttributeError):
            raise
        return default


@special(hasattr)
def _hasattr(tx: Tracer, args: Args, kwargs: Words) -> Value:
    try:
        force(tx, args[0]).get_attr(tx, _attribute_name(tx, args[1]))
    except UserException as error:
        if not issubclass(error.value.type(), AttributeError):
            raise
        return Const(False)
    return Const(True)


@special(setattr)
def _setattr(tx: Tracer, args: Args, kwargs: Words) -> Value:
    write(tx, force(tx, args[0]), _attribute_name(tx, args[1]), args[2])
    return NONE


@special(delattr)
def _delattr(tx: Tracer, args: Args, kwargs: Words) -> Value:
    write(tx, force(tx, args[0]), _attribute_name(tx, args[1]), None)
    return NONE


@special(vars)
def _vars(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if not args:
        return _locals(tx, args, kwargs)
    of = force(tx, args[0])
    if of.lacks("__dict__"):
        tx.raise_type_error("vars() argument must have __dict__ attribute")
    return of.get_attr(tx, "__dict__")


@special(functools.wraps)
def _wraps(tx: Tracer, args: Args, kwargs: Words) -> Value:
    given = dict(zip(("wrapped", "assigned", "updated"), args, strict=False)) | kwargs
    return partial_of(BuiltinValue(functools.update_wrapper, None), [], given)


@special(functools.update_wrapper)
def _update_wrapper(tx: Tracer, args: Args, kwargs: Words) -> Value:
    wrapper = force(tx, args[0])
    wrapped = force(tx, kwargs["wrapped"] if "wrapped" in kwargs else args[1])
    assigned = kwargs.get("assigned", args[2] if len(args) > 2 else tx.from_python(functools.WRAPPER_ASSIGNMENTS))
    updated = kwargs.get("updated", args[3] if len(args) > 3 else tx.from_python(functools.WRAPPER_UPDATES))
    for name in tx.constants(sequence_items(tx, assigned)):
        try:
            found = wrapped.get_attr(tx, name)
        except UserException as error:
            if not issubclass(error.value.type(), AttributeError):
                raise
        else:
            wrapper.set_attr(tx, name, found)
    for name in tx.constants(sequence_items(tx, updated)):
        source = _attribute_or(tx, wrapped, name, DictValue({}))
        force(tx, wrapper.get_attr(tx, name)).call_method(tx, "update", [source], {})
    wrapper.set_attr(tx, "__wrapped__", wrapped)
    return wrapper


@special(dir)
def _dir(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if not args:
        raise Unsupported("unknown-call", "dir() of the frame")
    of = force(tx, args[0])
    if isinstance(of, ObjectValue):
        custom = of.method(tx, "__dir__")
        if custom is not None:
            return ListValue(operations.sorted_items(tx, list(sequence_items(tx, custom.call(tx, [], {}))), {}))
        own = [str(force(tx, k).python(tx)) for k in sequence_items(tx, of.get_attr(tx, "__dict__"))]
        return tx.from_python(sorted({*dir(of.type()), *own}))
    if isinstance(of, PythonModule) and of.is_trusted:
        return tx.from_python(dir(of.held))
    return operations.fold_call(tx, dir, args, kwargs, f"dir() of {of.describe()}")


@special(locals)
def _locals(tx: Tracer, args: Args, kwargs: Words) -> Value:
    frame = tx.frames[-1]
    code = frame.code
    if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a class
        return DictValue.of(frame.locals)
    made = DictValue({})
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        value = frame.locals.get(name)
        if value is None and isinstance(cell := frame.cells.get(name), CellValue):
            value = cell.content
        if value is not None:
            made.set_item(tx, Const(name), value)
    return made
