"""Rules for the builtin functions that make text or bytes, and for ``print``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from engine.trace import operations
from engine.trace.signals import Unsupported
from engine.trace.values.addresses import text_with_address
from engine.trace.values.base import NONE, Const, Value, force, is_none, type_name
from engine.trace.values.classes import find_in_class
from engine.trace.values.mappings import DictValue, DictView
from engine.trace.values.objects import ObjectValue
from engine.trace.values.refusals import has_method
from engine.trace.values.rules import special
from engine.trace.values.sequences import (
    ListValue,
    TupleValue,
)
from engine.trace.values.sets import SetValue
from engine.trace.values.shown import container_text
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorMethod, TensorValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


@special(print)
def _print(tx: Tracer, args: Args, kwargs: Words) -> Value:
    from engine.trace.values.objects import STREAMS
    from engine.trace.values.plain_data import BufferValue, write_line

    to = force(tx, kwargs.get("file", NONE))
    if is_none(to):
        to = force(tx, tx.globals_written.get((STREAMS, "stdout")) or NONE)
    if isinstance(to, BufferValue):
        return write_line(tx, to, args, kwargs)
    raise Unsupported("print", f"print({', '.join(force(tx, a).describe() for a in args)})")


def _texts(fn: Any, name: str) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        if not args:
            return Const("")
        of = force(tx, args[0])
        if isinstance(of, ObjectValue):
            found = find_in_class(of.type(), name)
            if found is not None and found[0] is not object:
                return of.call_special(tx, name, [])
            if name == "__str__" and of.method(tx, "__repr__") is not None:
                return of.call_special(tx, "__repr__", [])
        if isinstance(of, (TensorValue, TensorMethod)):
            raise Unsupported("data-dependent", f"{name.strip('_')}() of a tensor shows its values")
        if hasattr(of, "made"):
            return of.call_method(tx, name, [], {})
        text = (
            container_text(tx, of) if isinstance(of, (ListValue, TupleValue, DictValue, DictView, SetValue)) else None
        )
        if text is None:
            text = text_with_address(tx, of)
        if text is not None:
            return Const(text)
        return operations.fold_call(tx, fn, args, kwargs, f"{fn.__name__}() of {of.describe()}")

    return rule


special(str)(_texts(str, "__str__"))
special(repr)(_texts(repr, "__repr__"))


@special(format)
def _format(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    spec = force(tx, args[1]) if len(args) > 1 else Const("")
    if isinstance(of, ObjectValue) and of.method(tx, "__format__") is not None:
        return of.call_special(tx, "__format__", [spec])
    if not isinstance(of, (Const, TensorValue, SymValue)) and not has_method(of.type(), "__format__", below=object):
        if isinstance(spec, Const) and spec.value == "":
            return force(tx, tx.fixed(str).call(tx, [of], {}))
        if isinstance(spec, Const) and isinstance(spec.value, str):
            tx.raise_type_error(f"unsupported format string passed to {type_name(of.type())}.__format__")
    return operations.fold_call(tx, format, args, kwargs, f"format() of {of.describe()}")


@special(bytes)
def _bytes(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if args and isinstance(of := force(tx, args[0]), ObjectValue) and of.method(tx, "__bytes__") is not None:
        return of.call_special(tx, "__bytes__", [])
    return operations.fold_call(tx, bytes, args, kwargs, "bytes()")


@special(sys.intern)
def _intern(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return operations.fold_call(tx, sys.intern, args, kwargs, "sys.intern()")
