"""Read guarded values for explanations, as the check does.

After a failed guard, values are read without running user code.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from engine.ir.introspection import describe_values, python_objects
from engine.ir.sources.attributes import (
    AttrSource,
    CellContentsSource,
    ModuleMemberSource,
    OptionalCellContentsSource,
    TypeSource,
)
from engine.ir.sources.base import FrameScope, Source
from engine.ir.sources.containers import GetItemSource, RawItemSource


@dataclass(frozen=True)
class ReadResult:
    """Result of reading a source: a value or an error text.

    ``is_safe`` is False if the read was skipped because it might have run user code.
    """

    value: Any = None
    error_text: str = ""
    is_safe: bool = True

    @property
    def ok(self) -> bool:
        """True if there is a value."""
        return not self.error_text


class UnsafeRead(Exception):
    """The value cannot be read without running user code."""


class SourceReader:
    """Reads sources from one scope, each once."""

    def __init__(self, scope: FrameScope) -> None:
        self._scope = scope
        self._seen: dict[tuple[Source, bool], ReadResult] = {}

    def read(self, origin: Source, doubtful: bool = False) -> ReadResult:
        """Return the value of a source.

        ``doubtful`` means that a guard on its chain has failed, so its type may differ from the expected one.
        """
        key = (origin, doubtful)
        result = self._seen.get(key)
        if result is None:
            result = self._seen[key] = self._read(origin, doubtful)
        return result

    def _read(self, origin: Source, doubtful: bool) -> ReadResult:
        parent = origin.parent
        base: Any = self._scope
        if parent is not None:
            above = self.read(parent, doubtful)
            if not above.ok:
                return above
            base = above.value
        try:
            return ReadResult(read_static(origin, base) if doubtful and parent is not None else origin.read(base))
        except UnsafeRead as error:
            return ReadResult(error_text=str(error), is_safe=False)
        except Exception as error:
            return ReadResult(error_text=read_error_text(error))


def read_error_text(error: Exception) -> str:
    """Describe a read error in a few words."""
    if isinstance(error, KeyError):
        return f"missing: no {describe_values.describe(error.args[0])}" if error.args else "missing"
    if isinstance(error, (AttributeError, IndexError)):
        return f"missing ({type(error).__name__})"
    return f"unreadable ({type(error).__name__})"


def read_static(origin: Source, base: Any) -> Any:
    """Read one link of a source without running user code.

    Raises:
        UnsafeRead: the read might run user code.
        KeyError, IndexError, AttributeError, TypeError: there is no such value.
    """
    reader = _SAFE_READERS.get(type(origin))
    if reader is None:
        raise UnsafeRead(f"not read: {type(base).__name__} has another type than expected")
    return reader(origin, base)


def _attr(origin: AttrSource, base: Any) -> Any:
    attribute = python_objects.static_attribute(base, origin.attribute)
    if attribute is python_objects.NO_ATTRIBUTE:
        raise AttributeError(origin.attribute)
    in_class = any(
        python_objects.class_dict(c).get(origin.attribute) is attribute for c in python_objects.mro_of(type(base))
    )
    if in_class and hasattr(type(attribute), "__get__") and type(attribute) is not types.FunctionType:
        raise UnsafeRead(f"not read: {origin.attribute} is computed by {type(base).__name__}")
    return types.MethodType(attribute, base) if in_class and type(attribute) is types.FunctionType else attribute


def _item(origin: GetItemSource, base: Any) -> Any:
    if type(base) not in (list, tuple, dict, torch.Size, types.MappingProxyType):
        raise UnsafeRead(f"not read: {type(base).__name__} may compute its items")
    if type(base) is dict and type(origin.key) not in (int, str, bool, bytes, float, type(None)):
        raise UnsafeRead("not read: comparing keys may run code")
    return base[origin.key]


def _raw_item(origin: RawItemSource, base: Any) -> Any:
    if type(origin.key) not in (int, str, bool, bytes, float, type(None)):
        raise UnsafeRead("not read: comparing keys may run code")
    return origin.read(base)


def _member(origin: ModuleMemberSource, base: Any) -> Any:
    table = python_objects.instance_dict(base)[origin.table]
    if not isinstance(table, dict):
        raise TypeError(type(table).__name__)
    return dict.__getitem__(table, origin.member_name)


def _cell(origin: CellContentsSource | OptionalCellContentsSource, base: Any) -> Any:
    if type(base) is not types.FunctionType:
        raise TypeError(type(base).__name__)
    return origin.read(base)


def _type(origin: TypeSource, base: Any) -> Any:
    return type(base)


_SAFE_READERS: dict[type, Callable[[Any, Any], Any]] = {
    AttrSource: _attr,
    GetItemSource: _item,
    ModuleMemberSource: _member,
    RawItemSource: _raw_item,
    CellContentsSource: _cell,
    OptionalCellContentsSource: _cell,
    TypeSource: _type,
}
