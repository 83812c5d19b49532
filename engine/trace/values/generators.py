"""Generators that are being run."""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING

from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, Value, force, is_none
from engine.trace.values.iterators import IteratorValue

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Frame, Tracer


class GeneratorValue(IteratorValue):
    """A generator whose body is traced step by step."""

    def __init__(self, frame: Frame, born: int, made_by: tuple[Value, list[Value], dict[str, Value]]) -> None:
        self.frame = frame
        self.born = born
        self.made_by = made_by
        """The function, and what it was called with."""
        self.is_started = False
        self.is_running = False
        self.is_renamed = False
        self.names: dict[str, Value] = {
            "__name__": Const(frame.code.co_name),
            "__qualname__": Const(frame.code.co_qualname),
        }

    def type(self) -> type:
        return types.GeneratorType

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        if name not in self.names:
            return super().set_attr(tx, name, value)
        if force(tx, value).type() is not str:
            tx.raise_type_error(f"{name} must be set to a string object")
        tx.changes += 1
        self.is_renamed = True
        self.names[name] = force(tx, value)
        return None

    def _delegate(self) -> Value | None:
        """The iterator that the body waits for in ``yield from``."""
        frame = self.frame
        if self.is_running or frame.finished or not frame.op.index:
            return None
        is_delegating = frame.op.opname == "YIELD_VALUE" and frame.decoded.ops[frame.op.index - 1].opname == "SEND"
        return frame.stack[-1] if is_delegating else None

    def step(self, tx: Tracer) -> Value | None:
        return self.send(tx, NONE)

    def send(self, tx: Tracer, value: Value) -> Value | None:
        """Run to the next ``yield``; None when the body returned (its value is then in ``frame.result``)."""
        from engine.trace.inline import resume_generator

        return resume_generator(tx, self, value)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "send":
            found = self.send(tx, args[0])
            return self.stop(tx) if found is None else found
        if name == "close":
            from engine.trace.inline import close_generator

            close_generator(tx, self)
            return NONE
        if name == "throw":
            from engine.trace.inline import throw_into_generator

            return throw_into_generator(tx, self, args)
        return super().call_method(tx, name, args, kwargs)

    def returned(self) -> Value:
        """What the body returned, told once: later ends have no value."""
        result, self.frame.result = self.frame.result, None
        return result or NONE

    def stop(self, tx: Tracer) -> Value:
        """Raise the StopIteration that says that the body returned."""
        result = force(tx, self.returned())
        raise tx.stop_iteration(None if is_none(result) else result)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        code = self.frame.code
        match name:
            case "__name__" | "__qualname__":
                return self.names[name]
            case "gi_yieldfrom":
                return self._delegate() or NONE
            case "gi_code":
                return Const(code)
            case "gi_running":
                return Const(self.is_running)
            case "gi_suspended":
                return Const(self.is_started and not self.is_running and not self.frame.finished)
            case "gi_frame" if self.frame.finished:
                return NONE
        if name.startswith("gi_"):
            raise self.refuse(f"reading the attribute {name!r}")
        return super().get_attr(tx, name)

    def children(self) -> list[Value]:
        function, args, kwargs = self.made_by
        return [] if self.is_started or self.frame.finished else [function, *args, *kwargs.values()]

    def reconstruct(self, cg: Codegen) -> None:
        if not self.is_started and not self.frame.finished and not self.is_renamed:
            from engine.trace.values.iteration import CallOf

            function, args, kwargs = self.made_by
            CallOf(operator.call, [function, *args], kwargs).reconstruct(cg)
            return
        error = Unsupported("side-effect", f"rebuilding the generator {self.frame.code.co_qualname} after the graph")
        error.born = self.born
        raise error
