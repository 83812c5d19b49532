"""Variable for closure cells."""

from __future__ import annotations

import types
from typing import Any

from bytecode.instr import FreeVar

from engine.ir.guards.python_values import IdMatch
from engine.ir.sources.attributes import AttrSource, CellContentsSource, OptionalCellContentsSource
from engine.ir.sources.base import MISSING, Source
from engine.ir.sources.roots import ClosureSource, OptionalClosureSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Variable
from engine.trace.variables.slotted_type import state


class CellVariable(Variable):
    """A closure cell that holds its own content; None while it is empty."""

    content: Variable | None
    source: Source | None = None
    real_object: Any = None
    root_frame_name: str = ""
    """Variable name of a cell of the root frame; generated code loads the cell by it."""
    was_empty: bool = state(False)
    cls = types.CellType
    is_mutable = True
    is_loaded_by_source = False

    def __post_init__(self) -> None:
        self.was_empty = self.content is None

    def set_content(self, tx: Tracer, value: Variable | None) -> None:
        """Set the content; None empties the cell."""
        tx.side_effects.record_mutation(self)
        self.content = value

    def guard_empty(self, tx: Tracer) -> None:
        """Guard that an external cell is empty, since traced code observed that."""
        if not self.was_empty:
            return
        cause = tx.guard_cause("the closure variable was empty")
        match self.source:
            case ClosureSource(variable, index):
                tx.guards.add(IdMatch(OptionalClosureSource(variable, index), MISSING, cause=cause))
            case CellContentsSource(base, index, variable):
                tx.guards.add(IdMatch(OptionalCellContentsSource(base, index, variable), MISSING, cause=cause))

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "cell_contents" and self.content is not None:
            return self.content
        return super().get_attr(tx, name)

    child_fields = ("content",)

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
            cg.defer_fill(self)
            return
        if self.content is not None:
            cg.load(self.content)
        cg.body.call(0 if self.content is None else 1)

    def emit_mutation(self, cg: PyCodegen) -> str:
        match self.source:
            case ClosureSource(variable):
                if self.content is None:
                    cg.body.emit("DELETE_DEREF", FreeVar(variable))
                else:
                    cg.load(self.content)
                    cg.body.emit("STORE_DEREF", FreeVar(variable))
                return f"the closure variable {variable} is set"
            case CellContentsSource(base, index, variable):
                if self.content is None:
                    raise Unsupported("closure-variable", "a closure variable of another function is deleted")
                cg.load(self.content)
                cg.load_source(AttrSource(base, "__closure__"))
                cg.body.subscript(index)
                cg.body.emit("STORE_ATTR", "cell_contents")
                return f"the closure variable {variable} is set"
        raise Unsupported("closure-variable", "a closure variable is set")

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that pops the existing cell on the stack and sets its content."""
        if self.content is None:
            cg.body.emit("DELETE_ATTR", "cell_contents")
            return
        cg.load(self.content)
        cg.body.emit("SWAP", 2)
        cg.body.emit("STORE_ATTR", "cell_contents")


def build_cell(tx: Tracer, cell: types.CellType, contents: Source) -> CellVariable:
    """Return the variable of an existing cell; ``contents`` is the source of its content."""
    variable = tx.objects.variables_by_id.get(id(cell))
    if variable is not None:
        assert isinstance(variable[0], CellVariable)
        return variable[0]
    try:
        content: Variable | None = tx.make_lazy(cell.cell_contents, contents)
    except ValueError:
        content = None
    value = CellVariable(content, contents, cell)
    tx.objects.variables_by_id[id(cell)] = (value, cell)
    return value
