"""Of the standard library: dates and times as constants, text buffers made in traced code, pickles of plain data."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

from engine.trace import operations
from engine.trace.signals import Unsupported
from engine.trace.support import filled_buffer
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.constants import DATES
from engine.trace.values.iterators import SequenceIterator
from engine.trace.values.mappings import DictValue
from engine.trace.values.methods import MethodOf
from engine.trace.values.rules import special
from engine.trace.values.sequences import ListValue, RangeValue, TupleValue
from engine.trace.values.sets import SetValue

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


def _constructor(cls: type) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        return operations.fold_call(tx, cls, args, kwargs, f"{cls.__name__} of values that are not known is created")

    return rule


for _cls in DATES:
    special(_cls)(_constructor(_cls))


class BufferValue(Value):
    """An ``io.StringIO`` or ``io.BytesIO`` made in traced code; ``held`` is one like it, to which the same is done."""

    is_mutable = True

    def __init__(self, held: Any) -> None:
        self.held = held

    def type(self) -> type:
        return type(self.held)

    def key(self, tx: Tracer) -> Any:
        return self

    def truth(self, tx: Tracer) -> bool:
        return True

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("closed", "newlines", "line_buffering"):
            return tx.fold(getattr, self.held, name)
        if callable(getattr(type(self.held), name, None)):
            return MethodOf(self, name)
        if not hasattr(self.held, name):
            tx.raise_error(AttributeError, f"'_io.{type(self.held).__name__}' object has no attribute '{name}'")
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        match name:
            case "__enter__":
                tx.fold(lambda: self.held.__enter__() and None)
                return self
            case "__iter__":
                return self.iterate(tx)
            case "__exit__":
                tx.changes += 1
                self.held.close()
                return NONE
            case "writelines":
                for item in tx.sequence(args[0]):
                    self.call_method(tx, "write", [item], {})
                return NONE
        if name not in _BUFFER_METHODS:
            raise self.refuse(f"the method {name!r}")
        tx.changes += 1
        return operations.fold_call(tx, getattr(self.held, name), args, kwargs, f"{name}() with what is not known")

    def iterate(self, tx: Tracer) -> Value:
        tx.changes += 1
        lines = tx.fold(lambda: list(self.held))
        return SequenceIterator(list(tx.sequence(lines)), type(iter(())))

    def reconstruct(self, cg: Codegen) -> None:
        if self.held.closed:
            raise Unsupported("side-effect", "rebuilding a buffer that was closed")
        cg.helper(filled_buffer, 0)
        cg.const(type(self.held))
        cg.const(self.held.getvalue())
        cg.const(self.held.tell())
        cg.out.call(3)


_BUFFER_METHODS = frozenset(
    "write read readline readlines getvalue seek tell truncate close flush readable writable seekable isatty".split()
)


def _buffer(cls: Any) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        values = tx.constants(args)
        words = dict(zip(kwargs, tx.constants(kwargs.values()), strict=True))
        try:
            return BufferValue(cls(*values, **words))
        except (TypeError, ValueError) as error:
            raise tx.user_exception(error) from error

    return rule


special(io.StringIO)(_buffer(io.StringIO))
special(io.BytesIO)(_buffer(io.BytesIO))


def write_line(tx: Tracer, to: BufferValue, args: Args, kwargs: Words) -> Value:
    """``print(*args, file=to)``."""
    words = {name: force(tx, kwargs.get(name, NONE)).python(tx) for name in ("sep", "end")}
    texts = [str(force(tx, tx.fixed(str).call(tx, [a], {})).python(tx)) for a in args]
    tx.changes += 1
    return tx.fold(lambda: print(*texts, file=to.held, **words))


def _check_plain(tx: Tracer, value: Value, seen: set[int]) -> None:
    """Refuse what is not plain data, or holds a container that can be changed twice: a copy would hold two."""
    forced = force(tx, value)
    exact = (list, tuple, dict, set, frozenset)
    if isinstance(forced, (Const, RangeValue)):
        return
    if not isinstance(forced, (ListValue, TupleValue, DictValue, SetValue)) or forced.type() not in exact:
        raise Unsupported("unknown-call", f"pickle of a {forced.describe()}")
    if id(forced) in seen and not isinstance(forced, TupleValue):
        raise Unsupported("unknown-call", "pickle of what holds a container twice")
    seen.add(id(forced))
    for child in forced.children():
        _check_plain(tx, child, seen)


@special(pickle.dumps)
def _dumps(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if not args:
        return operations.fold_call(tx, pickle.dumps, args, kwargs, "pickle.dumps()")
    _check_plain(tx, args[0], set())
    return operations.fold_call(tx, pickle.dumps, args, kwargs, "pickle.dumps()")


@special(pickle.loads)
def _loads(tx: Tracer, args: Args, kwargs: Words) -> Value:
    given = force(tx, args[0]) if args else NONE
    if not isinstance(given, Const) or given.type() is not bytes:
        raise Unsupported("unknown-call", "pickle.loads() of what is not known")
    made = tx.fold(pickle.loads, given.value, **dict(zip(kwargs, tx.constants(kwargs.values()), strict=True)))
    _check_plain(tx, made, set())
    return made
