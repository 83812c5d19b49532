"""Of the standard library: dates and times as constants, text buffers made in traced code."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from engine.trace import operations
from engine.trace.signals import Unsupported
from engine.trace.support import filled_buffer
from engine.trace.values.base import NONE, Value, force
from engine.trace.values.constants import DATES
from engine.trace.values.iterators import SequenceIterator
from engine.trace.values.methods import MethodOf
from engine.trace.values.rules import special

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
