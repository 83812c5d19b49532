"""Generators that an earlier graph left half-way, and made again: what they are about to do is traced, and they are ended after the graph."""

from __future__ import annotations

from types import GeneratorType
from typing import TYPE_CHECKING, Any

from engine.bytecode.decode import decode
from engine.bytecode.liveness import reached_from
from engine.bytecode.resume import IS_FRESH, Halt, Resumed, free_names, halt_of, resumed
from engine.ir.origin import STACK, Attr, Item, Namespace, Origin
from engine.ir.value_guard import Equals, IsObject
from engine.trace.signals import Unsupported
from engine.trace.support import halt
from engine.trace.values.base import NULL, Const, Value
from engine.trace.values.cells import CellValue
from engine.trace.values.generators import GeneratorValue

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Frame, Tracer

_WRITES_CELLS = frozenset(("STORE_DEREF", "DELETE_DEREF", "LOAD_CLOSURE", "MAKE_CELL"))


class WaitingGenerator(GeneratorValue):
    """A real generator that ``rebuild`` made and that has not gone on since: its body is traced, and the real one is ended after the graph."""

    def __init__(self, real: Any, origin: Origin, frame: Frame, mark: Halt) -> None:
        super().__init__(frame, 0, (Const(None), [], {}))
        self.held = real
        self.origin = origin
        self.mark = mark
        self.is_started = True

    def real(self) -> Any:
        return self.held

    def begins_step(self, tx: Tracer) -> None:
        super().begins_step(tx)
        self.born = self.born or tx.root_executed

    def children(self) -> list[Value]:
        return []

    def half_way(self) -> Unsupported:
        """Its steps are left to Python."""
        error = Unsupported("outside-iterator", "a generator that came from outside is half-way at the end")
        error.born = self.born
        return error

    def fill(self, cg: Codegen) -> None:
        """End the real generator, which is on the stack.

        Raises:
            Unsupported: its body is half-way at another place by now.
        """
        if not self.frame.finished:
            raise self.half_way()
        cg.helper(halt, 1)
        cg.const(self.mark)
        cg.out.call(2)
        cg.out.emit("POP_TOP")


def waiting_generator(tx: Tracer, real: GeneratorType[Any, Any, Any], origin: Origin) -> WaitingGenerator | None:
    """The value for a real generator, where what it is about to do is known."""
    code = real.gi_code
    mark = halt_of(code)
    made = None if mark is None or mark.code is None else mark.code()
    known = None if made is None else resumed(made)
    base = None if known is None else known.base()
    if mark is None or made is None or known is None or base is None or real.gi_frame is None:
        return None
    body = decode(base)
    follows = reached_from(body, known.index + 1)
    writes = any(body.ops[n].opname in _WRITES_CELLS for n in follows)
    if writes or not real.gi_frame.f_locals.get(IS_FRESH):
        return None
    why = tx.cause("a generator goes on from where an earlier graph ended")
    variables = Attr(Attr(origin, "gi_frame"), "f_locals")
    tx.guard(IsObject(Attr(origin, "gi_code"), code, cause=why))
    tx.guard(Equals(Item(variables, IS_FRESH), True, cause=why))
    return WaitingGenerator(real, origin, _frame_of(tx, real, variables, made, known, base), mark)


def _frame_of(tx: Tracer, real: Any, origin: Origin, made: Any, known: Resumed, base: Any) -> Frame:
    """The frame of the body as it waits: what is on its stack came as parameters."""
    from engine.trace.state import Frame

    values = real.gi_frame.f_globals
    parent = tx.frames[-1]
    frame = Frame(base, Namespace(values, str(values.get("__name__", ""))), parent, parent.spans())
    held = real.gi_frame.f_locals
    frame.index = known.index + 1
    frame.op = frame.decoded.ops[known.index]
    names = made.co_varnames[: made.co_argcount]
    stack = [name for name in names if name.startswith(STACK)]
    for place in range(_depth(made) - 1):  # on top is what the ``yield`` hands out
        name = f"{STACK}{place}"
        frame.stack.append(tx.lazy(held[name], Item(origin, name)) if name in stack else NULL)
    for name in names[len(stack) :]:
        frame.locals[name] = tx.lazy(held[name], Item(origin, name))
    for name in free_names(base):
        frame.cells[name] = CellValue(tx.lazy(held[name], Item(origin, name)) if name in held else None)
    return frame


def _depth(made: Any) -> int:
    """How many places of the stack the code begins with putting together."""
    depth = 0
    for op in decode(made).ops[_set_up(made) :]:
        if op.opname == "JUMP_FORWARD":
            return depth
        depth += 1
    return depth


def _set_up(made: Any) -> int:
    """Index of the first instruction after the first RESUME."""
    return next(op.index for op in decode(made).ops if op.opname == "RESUME") + 1
