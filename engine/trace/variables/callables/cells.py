"""Closures' cells."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from engine.ir.guards.python_values import IdMatch
from engine.ir.sources.attributes import AttrSource, CellContentsSource, OptionalCellContentsSource
from engine.ir.sources.base import MISSING, Source
from engine.ir.sources.roots import ClosureSource, OptionalClosureSource
from engine.trace.variables.base import Variable

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer


class CellVariable(Variable):
    """A closure cell. Its content lives here; None while it is empty."""

    __slots__ = ("content", "is_class_cell", "name", "real_object", "root_frame_name", "source", "was_empty")
    is_mutable = True

    def __init__(
        self, content: Variable | None, source: Source | None = None, real_object: Any = None, root_name: str = ""
    ) -> None:
        self.content = content
        self.source = source
        self.real_object = real_object
        self.root_frame_name = root_name
        """Set for the root frame's own cells: generated code reaches them by this name."""
        self.was_empty = content is None
        self.is_class_cell = False
        """Whether it is the ``__class__`` cell of a class that the traced code makes."""

    def python_type(self) -> type:
        return types.CellType

    def set_content(self, tx: Tracer, value: Variable | None) -> None:
        """Change what it holds."""
        tx.record_mutation(self)
        self.content = value

    def guard_empty(self, tx: Tracer) -> None:
        """Someone has looked and found nothing in it: a cell that exists may be filled at the next call."""
        if not self.was_empty:
            return
        cause = tx.guard_cause("the closure variable was empty")
        match self.source:
            case ClosureSource(variable, index):
                tx.add_guard(IdMatch(OptionalClosureSource(variable, index), MISSING, cause=cause))
            case CellContentsSource(base, index, variable):
                tx.add_guard(IdMatch(OptionalCellContentsSource(base, index, variable), MISSING, cause=cause))

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "cell_contents" and self.content is not None:
            return self.content
        return super().get_attr(tx, name)

    def child_variables(self) -> list[Variable]:
        return [] if self.content is None else [self.content]

    def reconstruct(self, cg: PyCodegen) -> None:
        if self.root_frame_name:
            cg.body.closure(cg.cell_arg(self.root_frame_name))
            return
        if isinstance(self.source, CellContentsSource):
            cg.load_source(AttrSource(self.source.base, "__closure__"))
            cg.body.subscript(self.source.index)
            return
        cg.body.callable(lambda: cg.load_const(types.CellType))
        if cg.is_cyclic(self) and self.content is not None:
            cg.body.call(0)
            cg.cache_top(self)
            cg.defer_fill(self)
            return
        if self.content is not None:
            cg.load(self.content)
        cg.body.call(0 if self.content is None else 1)

    def fill(self, cg: PyCodegen) -> None:
        """Put the present content into the existing cell on top of the stack, and pop it."""
        if self.content is None:
            cg.body.emit("DELETE_ATTR", "cell_contents")
            return
        cg.load(self.content)
        cg.body.emit("SWAP", 2)
        cg.body.emit("STORE_ATTR", "cell_contents")


def build_cell(tx: Tracer, cell: types.CellType, contents: Source) -> CellVariable:
    """The value for an existing cell; ``contents`` is the origin of what it holds."""
    known = tx.variables_by_id.get(id(cell))
    if known is not None:
        assert isinstance(known[0], CellVariable)
        return known[0]
    try:
        content: Variable | None = tx.make_lazy(cell.cell_contents, contents)
    except ValueError:
        content = None
    value = CellVariable(content, contents, cell)
    tx.variables_by_id[id(cell)] = (value, cell)
    return value
