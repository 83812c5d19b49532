"""Generators that are being run."""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING

from engine.bytecode.resume import NOTHING, VALUE, Point, free_names, resume_code
from engine.bytecode.resume import NULL as NULL_KIND
from engine.trace.signals import Unsupported
from engine.trace.support import half_way, used_up
from engine.trace.values.base import NONE, NULL, Const, Value, force, is_none
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
        self.used_by: Frame | None = None
        """The innermost frame that may hold it, once it was found half-way."""
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

    def delegate(self) -> Value | None:
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

    def begins_step(self, tx: Tracer) -> None:
        """The body is about to run on."""
        tx.mutating(self)

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
                return self.delegate() or NONE
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
        if self.is_started and not self.frame.finished:
            return [*self.frame.stack, *(self.frame.locals[n] for n in self._locals()), *self._cells()]
        function, args, kwargs = self.made_by
        return [function, *args, *kwargs.values()]

    def _locals(self) -> tuple[str, ...]:
        return tuple(sorted(self.frame.locals))

    def _cells(self) -> list[Value]:
        return [self.frame.cells[name] for name in free_names(self.frame.code)]

    def reconstruct(self, cg: Codegen) -> None:
        if self.is_started and not self.frame.finished:
            self._waiting(cg)
            return
        if self.is_renamed:
            raise self.half_way()
        function, args, kwargs = self.made_by
        if self.frame.finished:
            cg.helper(used_up, 0)
            cg.load_all([function, *args, *kwargs.values()])
            cg.call_keywords(1 + len(args), tuple(kwargs))
            return
        from engine.trace.values.iteration import CallOf

        CallOf(operator.call, [function, *args], kwargs).reconstruct(cg)

    def _waiting(self, cg: Codegen) -> None:
        """Push a generator over the same code that begins at the present ``yield``."""
        from engine.trace.nested_breaks import looks_at_frame

        frame = self.frame
        cells, names = free_names(frame.code), self._locals()
        is_plain = all(n.isidentifier() for n in names) and all(c in frame.cells for c in cells)
        if self.is_running or frame.handled or not is_plain or looks_at_frame(frame) or cg.is_reaching(self):
            raise self.half_way()
        kinds = tuple(NULL_KIND if value is NULL else VALUE for value in frame.stack)
        code = resume_code(frame.code, Point(frame.op.index, (*kinds, NOTHING), names))
        cg.helper(half_way, 0)
        cg.const(code)
        cg.namespace(frame.globals)
        for name in ("__name__", "__qualname__"):
            cg.load(self.names[name])
        cg.out.emit("BUILD_TUPLE", 2)
        cg.load_all([frame.cells[name] for name in cells])
        cg.out.emit("BUILD_TUPLE", len(cells))
        values = [*(v for v in frame.stack if v is not NULL), *(frame.locals[n] for n in names)]
        cg.load_all(values)
        cg.out.call(4 + len(values))

    def half_way(self) -> Unsupported:
        """Why a graph cannot end here: Python makes the generator instead."""
        error = Unsupported("side-effect", f"rebuilding the generator {self.frame.code.co_qualname} after the graph")
        error.born = self.born
        return error
