"""``datetime`` objects as constants, and ``StringIO``/``BytesIO`` created in traced code."""

from __future__ import annotations

import io
from typing import Any

from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.codegen_runtime.containers import make_buffer
from engine.trace.exc import Unsupported
from engine.trace.operators import arithmetic
from engine.trace.variables.base import NONE, Args, Kwargs, UserErrors, Variable, realize
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import builtin_attribute
from engine.trace.variables.containers.iterators import SequenceIteratorVariable


class IOBufferVariable(Variable):
    """An ``io.StringIO`` or ``io.BytesIO`` created in traced code.

    ``real_object`` is a buffer on which the tracer runs the same operations.
    """

    __slots__ = ("real_object",)

    is_mutable = True

    def __init__(self, real_object: Any) -> None:
        self.real_object = real_object

    def python_type(self) -> type:
        return type(self.real_object)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in ("closed", "newlines", "line_buffering"):
            return tx.fold_constant(getattr, self.real_object, name)
        return builtin_attribute(tx, self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        match name:
            case "__enter__":
                tx.fold_constant(lambda: self.real_object.__enter__() and None)
                return self
            case "__iter__":
                return self.get_iterator(tx)
            case "__exit__":
                tx.side_effects.mutation_count += 1
                self.real_object.close()
                return NONE
            case "writelines":
                for item in tx.unpack_iterable(args[0]):
                    self.call_method(tx, "write", [item], {})
                return NONE
        if name not in _BUFFER_METHODS:
            raise self.unsupported_method(name)
        tx.side_effects.mutation_count += 1
        return arithmetic.fold_constant_call(
            tx,
            getattr(self.real_object, name),
            args,
            kwargs,
            f"{name}() with arguments that are not known while tracing",
        )

    def get_iterator(self, tx: Tracer) -> Variable:
        tx.side_effects.mutation_count += 1
        lines = tx.fold_constant(lambda: list(self.real_object))
        return SequenceIteratorVariable(list(tx.unpack_iterable(lines)), type(iter(())))

    def reconstruct(self, cg: PyCodegen) -> None:
        if self.real_object.closed:
            raise Unsupported("rebuild-value", "rebuilding a buffer that was closed")
        cg.call(make_buffer, type(self.real_object), self.real_object.getvalue(), self.real_object.tell())


_BUFFER_METHODS = frozenset(
    "write read readline readlines getvalue seek tell truncate close flush readable writable seekable isatty".split()
)


def _buffer_constructor(cls: Any) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        values = tx.as_python_constants(args)
        words = tx.as_python_keywords(kwargs)
        with UserErrors(tx, TypeError, ValueError):
            return IOBufferVariable(cls(*values, **words))

    return rule


register_rule(io.StringIO)(_buffer_constructor(io.StringIO))


register_rule(io.BytesIO)(_buffer_constructor(io.BytesIO))


def print_to_buffer(tx: Tracer, to: IOBufferVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``print(*args, file=to)``."""
    words = {name: realize(tx, kwargs.get(name, NONE)).as_python_constant(tx) for name in ("sep", "end")}
    texts = [str(realize(tx, tx.wrap_static(str).call(tx, [a], {})).as_python_constant(tx)) for a in args]
    tx.side_effects.mutation_count += 1
    return tx.fold_constant(lambda: print(*texts, file=to.real_object, **words))
