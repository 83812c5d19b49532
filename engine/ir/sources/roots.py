"""Root sources: locals, globals, closure cells, constants, torch-function modes."""

from __future__ import annotations

from dataclasses import dataclass
from types import CellType
from typing import Any, ClassVar

import torch

from engine.ir.sources.base import MISSING, ConstName, FrameScope, GlobalsNamespace, Source


@dataclass(frozen=True)
class LocalSource(Source):
    """An argument of the frame."""

    is_argument_link: ClassVar[bool] = True

    variable_name: str

    @property
    def expr(self) -> str:
        return f"L['{self.variable_name}']"

    def code(self, base: str, const: ConstName) -> str:
        return self.variable_name

    def read(self, base: FrameScope) -> Any:
        return base.arguments[self.variable_name]


@dataclass(frozen=True)
class ClosureSource(Source):
    """What a free variable of the frame's own function holds. ``index`` is its place in ``co_freevars``."""

    variable_name: str
    index: int

    @property
    def expr(self) -> str:
        return f"C['{self.variable_name}']"

    def code(self, base: str, const: ConstName) -> str:
        return f"__cells__[{self.index}].cell_contents"

    def read(self, base: FrameScope) -> Any:
        return base.cells[self.variable_name].cell_contents


@dataclass(frozen=True)
class GlobalSource(Source):
    """A global variable of the module (or notebook) that ``namespace`` is."""

    namespace: GlobalsNamespace
    variable_name: str

    @property
    def expr(self) -> str:
        return f"G['{self.variable_name}']"

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(self.namespace.values, 'G')}[{self.variable_name!r}]"

    def read(self, base: FrameScope) -> Any:
        return self.namespace.values[self.variable_name]


@dataclass(frozen=True)
class TorchFunctionModeSource(Source):
    """A torch-function mode that is in force where the frame is entered; the outermost is number 0."""

    index: int

    @property
    def expr(self) -> str:
        return f"torch_function_mode[{self.index}]"

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(torch._C._get_function_stack_at, 'mode_at')}({self.index})"

    def read(self, base: FrameScope) -> Any:
        return torch._C._get_function_stack_at(self.index)


@dataclass(frozen=True)
class ConstantSource(Source):
    """An object that the compiled code itself keeps alive (a function reached through a guarded one). Compared by identity."""

    value: Any
    text: str

    @property
    def expr(self) -> str:
        return self.text

    def code(self, base: str, const: ConstName) -> str:
        return const(self.value, "fixed")

    def read(self, base: FrameScope) -> Any:
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantSource) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclass(frozen=True)
class OptionalGlobalSource(Source):
    """A global variable, or ``MISSING``: a global may come to hide a builtin."""

    namespace: GlobalsNamespace
    variable_name: str

    @property
    def expr(self) -> str:
        return f"G.get({self.variable_name!r})"

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(self.namespace.values, 'G')}.get({self.variable_name!r}, {const(MISSING, 'MISSING')})"

    def read(self, base: FrameScope) -> Any:
        return self.namespace.values.get(self.variable_name, MISSING)


def cell_contents_or_missing(cell: CellType) -> Any:
    """What a closure cell holds, or ``MISSING``."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


@dataclass(frozen=True)
class OptionalClosureSource(Source):
    """What a free variable of the frame's own function holds, or ``MISSING``: an empty cell may come to be filled."""

    variable_name: str
    index: int

    @property
    def expr(self) -> str:
        return f"C.get({self.variable_name!r})"

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(cell_contents_or_missing, 'contents')}(__cells__[{self.index}])"

    def read(self, base: FrameScope) -> Any:
        return cell_contents_or_missing(base.cells[self.variable_name])
