"""Closures' cells."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from engine.ir.origin import MISSING, Attr, CellOf, Closure, MaybeCellOf, MaybeClosure, Origin
from engine.ir.value_guard import IsObject
from engine.trace.values.base import Value

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class CellValue(Value):
    """A closure cell. Its content lives here; None while it is empty."""

    __slots__ = ("content", "held", "is_class_cell", "name", "origin", "root_name", "was_empty")
    is_mutable = True

    def __init__(
        self, content: Value | None, origin: Origin | None = None, held: Any = None, root_name: str = ""
    ) -> None:
        self.content = content
        self.origin = origin
        self.held = held
        self.root_name = root_name
        """Set for the root frame's own cells: generated code reaches them by this name."""
        self.was_empty = content is None
        self.is_class_cell = False
        """Whether it is the ``__class__`` cell of a class that the traced code makes."""

    def type(self) -> type:
        return types.CellType

    def set(self, tx: Tracer, value: Value | None) -> None:
        """Change what it holds."""
        tx.mutating(self)
        self.content = value

    def guard_empty(self, tx: Tracer) -> None:
        """Someone has looked and found nothing in it: a cell that exists may be filled at the next call."""
        if not self.was_empty:
            return
        cause = tx.cause("the closure variable was empty")
        match self.origin:
            case Closure(variable, index):
                tx.guard(IsObject(MaybeClosure(variable, index), MISSING, cause=cause))
            case CellOf(base, index, variable):
                tx.guard(IsObject(MaybeCellOf(base, index, variable), MISSING, cause=cause))

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "cell_contents" and self.content is not None:
            return self.content
        return super().get_attr(tx, name)

    def children(self) -> list[Value]:
        return [] if self.content is None else [self.content]

    def reconstruct(self, cg: Codegen) -> None:
        if self.root_name:
            cg.out.closure(cg.cell_arg(self.root_name))
            return
        if isinstance(self.origin, CellOf):
            cg.load_origin(Attr(self.origin.base, "__closure__"))
            cg.out.item(self.origin.index)
            return
        cg.out.callable(lambda: cg.const(types.CellType))
        if cg.is_reaching(self) and self.content is not None:
            cg.out.call(0)
            cg.remember(self)
            cg.fill_later(self)
            return
        if self.content is not None:
            cg.load(self.content)
        cg.out.call(0 if self.content is None else 1)

    def fill(self, cg: Codegen) -> None:
        """Put the present content into the existing cell on top of the stack, and pop it."""
        if self.content is None:
            cg.out.emit("DELETE_ATTR", "cell_contents")
            return
        cg.load(self.content)
        cg.out.emit("SWAP", 2)
        cg.out.emit("STORE_ATTR", "cell_contents")


def real_cell(tx: Tracer, cell: types.CellType, contents: Origin) -> CellValue:
    """The value for an existing cell; ``contents`` is the origin of what it holds."""
    known = tx.known.get(id(cell))
    if known is not None:
        assert isinstance(known[0], CellValue)
        return known[0]
    try:
        content: Value | None = tx.lazy(cell.cell_contents, contents)
    except ValueError:
        content = None
    value = CellValue(content, contents, cell)
    tx.known[id(cell)] = (value, cell)
    return value
