"""Root sources: locals, globals, closure cells, constants, torch-function modes."""

from __future__ import annotations

from dataclasses import field
from types import CellType
from typing import Any, ClassVar

from engine.ir.introspection.python_objects import EXACT_DICTS
from engine.ir.sources.base import MISSING, ConstName, FrameScope, GlobalsNamespace, Source, SourceEmitter
from engine.ir.wrapped_parameters import ItemNames
from engine.torch_private.torch_function import get_function_stack_at


class VariableSource(Source):
    """A variable of the frame, its closure or its module."""

    variable_name: str

    @property
    def user_name(self) -> str:
        return self.variable_name


class _CellSource(VariableSource):
    index: int

    @property
    def cell_index(self) -> int:
        return self.index


class LocalSource(VariableSource):
    """An argument of the frame."""

    notation: ClassVar[str] = "L['{0.variable_name}']"
    is_load_cheap: ClassVar[bool] = True

    is_argument_link: ClassVar[bool] = True
    tier: ClassVar[int] = 1

    item_names: ItemNames = field(default_factory=dict, compare=False)
    """Of a wrapper's ``*args`` or ``**kwargs``: the wrapped function's names of the items."""

    def item_name(self, item: Source) -> str:
        return self.item_names.get(getattr(item, "key", MISSING), "") if self.item_names else ""

    @property
    def parameter_name(self) -> str:
        return self.variable_name

    def code(self, base: str, const: ConstName) -> str:
        return self.variable_name

    def emit(self, out: SourceEmitter) -> None:
        out.local(self.variable_name)

    def read(self, base: FrameScope) -> Any:
        return base.arguments[self.variable_name]


class ClosureSource(_CellSource):
    """The contents of a free variable of the frame's function.

    ``index`` is its position in ``co_freevars``.
    """

    notation: ClassVar[str] = "C['{0.variable_name}']"
    may_be_unbound: ClassVar[bool] = True

    referent_name: str = field(default="", compare=False)
    """If library code holds a weak reference here: the user's name of the referent."""

    def item_name(self, item: Source) -> str:
        return self.referent_name if item.accessor == "()" else ""

    def code(self, base: str, const: ConstName) -> str:
        return f"__cells__[{self.index}].cell_contents"

    def emit(self, out: SourceEmitter) -> None:
        out.free_variable(self.variable_name)

    def read(self, base: FrameScope) -> Any:
        return base.cells[self.variable_name].cell_contents


class GlobalSource(VariableSource):
    """A global variable of the module or notebook whose globals are ``namespace``."""

    notation: ClassVar[str] = "G['{0.variable_name}']"
    may_be_unbound: ClassVar[bool] = True
    outlives_calls: ClassVar[bool] = True

    namespace: GlobalsNamespace

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(self.namespace.values, 'G')}[{self.variable_name!r}]"

    def emit(self, out: SourceEmitter) -> None:
        out.global_variable(self.namespace, self.variable_name)

    def read(self, base: FrameScope) -> Any:
        return self.namespace.values[self.variable_name]


class TorchFunctionModeSource(Source):
    """A torch-function mode that is active on frame entry; index 0 is the outermost."""

    notation: ClassVar[str] = "torch_function_mode[{0.index}]"

    index: int

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(get_function_stack_at, 'mode_at')}({self.index})"

    def emit(self, out: SourceEmitter) -> None:
        out.call_root(get_function_stack_at, self.index)

    def read(self, base: FrameScope) -> Any:
        return get_function_stack_at(self.index)


class ConstantSource(Source):
    """A constant object that the compiled code references. Compared by identity.

    Example: a function that was reached through a guarded one.
    """

    notation: ClassVar[str] = "{0.text}"
    is_fixed: ClassVar[bool] = True
    is_load_cheap: ClassVar[bool] = True
    is_constant: ClassVar[bool] = True
    outlives_calls: ClassVar[bool] = True

    value: Any
    text: str

    @property
    def exact_type(self) -> type | None:
        kind = type(self.value)
        return kind if kind in EXACT_DICTS else None  # instances of other classes may change theirs

    def code(self, base: str, const: ConstName) -> str:
        return const(self.value, "fixed")

    def emit(self, out: SourceEmitter) -> None:
        out.constant(self.value)

    def read(self, base: FrameScope) -> Any:
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantSource) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class OptionalGlobalSource(VariableSource):
    """A global variable, or ``MISSING``. A global that is set later may shadow a builtin."""

    notation: ClassVar[str] = "G.get({0.variable_name!r})"
    outlives_calls: ClassVar[bool] = True

    namespace: GlobalsNamespace

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(self.namespace.values, 'G')}.get({self.variable_name!r}, {const(MISSING, 'MISSING')})"

    def read(self, base: FrameScope) -> Any:
        return self.namespace.values.get(self.variable_name, MISSING)


def cell_contents_or_missing(cell: CellType) -> Any:
    """Return the contents of a closure cell, or ``MISSING`` if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


class OptionalClosureSource(_CellSource):
    """The contents of a free variable of the frame's function, or ``MISSING``.

    An empty cell may be filled later.
    """

    notation: ClassVar[str] = "C.get({0.variable_name!r})"

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(cell_contents_or_missing, 'contents')}(__cells__[{self.index}])"

    def read(self, base: FrameScope) -> Any:
        return cell_contents_or_missing(base.cells[self.variable_name])
