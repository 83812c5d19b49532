"""Sources that read items, keys and builtin views of containers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from engine.ir.sources.base import MISSING, ConstName, Source


@dataclass(frozen=True)
class GetItemSource(Source):
    """An item of a list, tuple or dict under a constant key."""

    is_argument_link: ClassVar[bool] = True

    base: Source
    key: Any

    @property
    def expr(self) -> str:
        return f"{self.base.expr}[{self.key!r}]"

    def code(self, base: str, const: ConstName) -> str:
        plain = type(self.key) in (int, str, bool, type(None))
        return f"{base}[{self.key!r}]" if plain else f"{base}[{const(self.key, 'key')}]"

    def read(self, base: Any) -> Any:
        if isinstance(base, dict) and not dict.__contains__(base, self.key):
            raise KeyError(self.key)  # asking a defaultdict would put the key in
        return base[self.key]


@dataclass(frozen=True)
class DictKeyAtSource(Source):
    """The ``index``-th key of a dict, in its order: a key that is no constant."""

    base: Source
    index: int

    @property
    def expr(self) -> str:
        return f"list({self.base.expr})[{self.index}]"

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(list, 'list')}({base})[{self.index}]"

    def read(self, base: Any) -> Any:
        return list(base)[self.index]


@dataclass(frozen=True)
class DictValueAtSource(Source):
    """What the ``index``-th entry of a dict holds, in its order: reached without asking its key for a hash or a comparison."""

    base: Source
    index: int

    @property
    def expr(self) -> str:
        return f"list({self.base.expr}.values())[{self.index}]"

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(self.value_at, 'entry')}({base}, {self.index})"

    def read(self, base: Any) -> Any:
        return self.value_at(base, self.index)

    @staticmethod
    def value_at(held: dict[Any, Any], index: int) -> Any:
        """What entry number ``index`` of a dict holds."""
        return next(itertools.islice(dict.values(held), index, None))


@dataclass(frozen=True)
class DictGetSource(Source):
    """What ``get`` of a mapping gives for a constant key, ``MISSING`` where there is none."""

    base: Source
    key: Any

    @property
    def expr(self) -> str:
        return f"{self.base.expr}.get({self.key!r})"

    def code(self, base: str, const: ConstName) -> str:
        return f"{base}.get({const(self.key, 'key')}, {const(MISSING, 'MISSING')})"

    def read(self, base: Any) -> Any:
        return base.get(self.key, MISSING)


def raw_item(container: Any, key: Any) -> Any:
    """An item of a dict, list or tuple past any ``__getitem__`` of its class."""
    kind: Any = dict if isinstance(container, dict) else list if isinstance(container, list) else tuple
    return kind.__getitem__(container, key)


@dataclass(frozen=True)
class RawItemSource(Source):
    """An item of a dict, list or tuple whose class has a ``__getitem__`` of its own: what is stored, not what that makes of it."""

    base: Source
    key: Any

    @property
    def expr(self) -> str:
        return f"{self.base.expr}.<stored>[{self.key!r}]"

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(raw_item, 'stored_item')}({base}, {const(self.key, 'key')})"

    def read(self, base: Any) -> Any:
        return raw_item(base, self.key)


_BUILTIN_GETITEMS = (dict.__getitem__, list.__getitem__, tuple.__getitem__)


def item_source(container: Any, base: Source, key: Any) -> Source:
    """How an item of a real container is reached."""
    kind: Any = type(container)
    own = isinstance(container, (dict, list, tuple)) and kind.__getitem__ not in _BUILTIN_GETITEMS
    return RawItemSource(base, key) if own else GetItemSource(base, key)


def _set_elements(elements: Any) -> tuple[Any, ...]:
    """The elements of a set or frozenset, by the iterator of the builtin class itself."""
    base: Any = frozenset if isinstance(elements, frozenset) else set
    return tuple(base.__iter__(elements))


_BUILTIN_CONVERSIONS: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
    set: set.copy,
    frozenset: frozenset.copy,
    tuple: _set_elements,
}


@dataclass(frozen=True)
class BuiltinValueSource(Source):
    """What an instance of a subclass of a builtin class is as an instance of that class itself; runs no method of the subclass."""

    base: Source
    builtin_type: type

    @property
    def expr(self) -> str:
        return f"{self.builtin_type.__name__}({self.base.expr})"

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(_BUILTIN_CONVERSIONS[self.builtin_type], f'plain_{self.builtin_type.__name__}')}({base})"

    def read(self, base: Any) -> Any:
        return _BUILTIN_CONVERSIONS[self.builtin_type](base)
