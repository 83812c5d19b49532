"""Sources that read an attribute, a member, a type or a cell."""

from __future__ import annotations

import keyword
from typing import Any, ClassVar

from engine.ir.sources.base import MISSING, ConstName, FunctionSource, Source, SourceEmitter
from engine.ir.sources.roots import cell_contents_or_missing


class AttrSource(Source):
    """An attribute, read by plain attribute access; only for reads that run no user code."""

    base: Source
    attribute: str

    def code(self, base: str, const: ConstName) -> str:
        if not is_attribute_name(self.attribute):
            return f"{const(getattr, 'getattr')}({base}, {self.attribute!r})"
        return f"{base}.{self.attribute}"

    def emit(self, out: SourceEmitter) -> None:
        out.attribute(self.attribute)

    def read(self, base: Any) -> Any:
        return getattr(base, self.attribute)


def is_attribute_name(text: str) -> bool:
    """Return True if the attribute can be written after a dot.

    ``setattr`` and ``__dict__`` accept any string.
    """
    return text.isidentifier() and not keyword.iskeyword(text)


class ModuleMemberSource(Source):
    """A parameter, buffer or submodule, read from its table.

    The read bypasses ``nn.Module.__getattr__``. ``table`` is "_parameters", "_buffers" or "_modules".
    """

    base: Source
    table: str
    member_name: str

    def module_path_part(self, *, is_above_member: bool) -> str:
        return self.member_name

    @property
    def expr(self) -> str:
        return (
            f"{self.base.expr}.{self.member_name}"
            if self.member_name.isidentifier()
            else f"{self.base.expr}[{self.member_name}]"
        )

    def code(self, base: str, const: ConstName) -> str:
        return f"{base}.{self.table}[{self.member_name!r}]"

    @property
    def member_table(self) -> str:
        return self.table

    def emit(self, out: SourceEmitter) -> None:
        out.subscript(self.member_name)

    def read(self, base: Any) -> Any:
        return getattr(base, self.table)[self.member_name]


class CellContentsSource(Source):
    """The contents of closure cell number ``index`` of a function."""

    may_be_unbound: ClassVar[bool] = True

    base: Source
    index: int
    variable_name: str

    def code(self, base: str, const: ConstName) -> str:
        return f"{base}.__closure__[{self.index}].cell_contents"

    def emit(self, out: SourceEmitter) -> None:
        out.attribute("__closure__")
        out.subscript(self.index)
        out.attribute("cell_contents")

    def read(self, base: Any) -> Any:
        return base.__closure__[self.index].cell_contents


class TypeSource(FunctionSource):
    """The class of a value, by ``type()``."""

    function = staticmethod(type)


class InstanceDictGetSource(Source):
    """An entry of an instance ``__dict__``, or ``MISSING``.

    An instance attribute that is set later may shadow the class attribute.
    """

    notation: ClassVar[str] = "{0.base.expr}.__dict__.get({0.attribute!r})"

    base: Source
    attribute: str

    def code(self, base: str, const: ConstName) -> str:
        return f"{base}.__dict__.get({self.attribute!r}, {const(MISSING, 'MISSING')})"

    def read(self, base: Any) -> Any:
        return base.__dict__.get(self.attribute, MISSING)


class OptionalCellContentsSource(Source):
    """The contents of closure cell number ``index`` of a function, or ``MISSING``."""

    notation: ClassVar[str] = "{0.base.expr}.__closure__[{0.index}]"

    base: Source
    index: int
    variable_name: str

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(cell_contents_or_missing, 'contents')}({base}.__closure__[{self.index}])"

    def read(self, base: Any) -> Any:
        return cell_contents_or_missing(base.__closure__[self.index])


class ModuleHooksSource(Source):
    """The first non-empty hook table of a module, or an empty table if it has no hooks.

    Its length shows if a call of the module runs hooks.
    """

    notation: ClassVar[str] = "{0.base.expr}.<hooks>"

    base: Source

    TABLES: ClassVar[tuple[str, ...]] = (
        "_forward_pre_hooks",
        "_forward_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
    )

    def code(self, base: str, const: ConstName) -> str:
        return "(" + " or ".join(f"{base}.{table}" for table in self.TABLES) + ")"

    def read(self, base: Any) -> Any:
        hooks: Any = {}
        for table in self.TABLES:
            hooks = hooks or getattr(base, table)
        return hooks


class MethodResultSource(Source):
    """The result of a method without arguments, for example ``storage_offset()`` of a tensor.

    ``__subclasses__()`` of a class is read in this way too.
    """

    base: Source
    method: str

    def code(self, base: str, const: ConstName) -> str:
        return f"{base}.{self.method}()"

    def emit(self, out: SourceEmitter) -> None:
        out.call(self.read)

    def read(self, base: Any) -> Any:
        return getattr(base, self.method)()
