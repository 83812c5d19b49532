"""Sources that read items, keys and builtin views of containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from engine.ir.introspection.python_objects import builtin_dict_keys, builtin_dict_values, digest_literals
from engine.ir.sources.base import MISSING, ConstName, FunctionSource, Source, SourceEmitter, constant_code


class GetItemSource(Source):
    """An item of a list, tuple or dict under a constant key."""

    notation: ClassVar[str] = "{0.base.expr}[{0.key!r}]"
    is_argument_link: ClassVar[bool] = True

    base: Source
    key: Any

    def module_path_part(self, *, is_above_member: bool) -> str:
        # An argument of a wrapped function, such as its `self` in `*args`, is the root module.
        return str(self.key) if is_above_member and not self.base.item_name(self) else ""

    def code(self, base: str, const: ConstName) -> str:
        return f"{base}[{constant_code(self.key, const)}]"

    def emit(self, out: SourceEmitter) -> None:
        out.subscript(self.key)

    def read(self, base: Any) -> Any:
        if isinstance(base, dict) and not dict.__contains__(base, self.key):
            raise KeyError(self.key)  # Subscripting a defaultdict would insert the key.
        return base[self.key]


class LengthSource(FunctionSource):
    """The length of a builtin container."""

    function = staticmethod(len)


class ContentsSource(FunctionSource):
    """A digest of the numbers, strings and None in a list, tuple or deque."""

    notation: ClassVar[str] = "digest({0.base.expr})"
    function = staticmethod(digest_literals)


class HasItemsSource(FunctionSource):
    """True if a list, tuple or deque has items."""

    function = staticmethod(bool)


class DictKeysSource(FunctionSource):
    """The keys of a dict in order; an item of them is a key that is no constant."""

    notation: ClassVar[str] = "list({0.base.expr})"
    function = staticmethod(builtin_dict_keys)


class DictValuesSource(FunctionSource):
    """The values of a dict in order; an item of them is read without hashing its key."""

    notation: ClassVar[str] = "list({0.base.expr}.values())"
    function = staticmethod(builtin_dict_values)


class DictGetSource(Source):
    """The result of a mapping's ``get`` for a constant key, or ``MISSING``."""

    notation: ClassVar[str] = "{0.base.expr}.get({0.key!r})"

    base: Source
    key: Any

    def code(self, base: str, const: ConstName) -> str:
        return f"{base}.get({constant_code(self.key, const)}, {const(MISSING, 'MISSING')})"

    def read(self, base: Any) -> Any:
        return base.get(self.key, MISSING)


def raw_item(container: Any, key: Any) -> Any:
    """Return an item of a dict, list or tuple; bypass an overridden ``__getitem__``."""
    kind: Any = dict if isinstance(container, dict) else list if isinstance(container, list) else tuple
    return kind.__getitem__(container, key)


class RawItemSource(FunctionSource):
    """A stored item of a dict, list or tuple whose class overrides ``__getitem__``.

    The read bypasses the override.
    """

    notation: ClassVar[str] = "{0.base.expr}.<stored>[{0.key!r}]"
    function = staticmethod(raw_item)
    key: Any


_BUILTIN_GETITEMS = (dict.__getitem__, list.__getitem__, tuple.__getitem__)


def item_source(container: Any, base: Source, key: Any) -> Source:
    """Return the source of an item; it bypasses a user's ``__getitem__``."""
    kind: Any = type(container)
    own = isinstance(container, (dict, list, tuple)) and kind.__getitem__ not in _BUILTIN_GETITEMS
    return RawItemSource(base, key) if own else GetItemSource(base, key)


def _set_elements(elements: Any) -> tuple[Any, ...]:
    """Return the elements of a set or frozenset, read by the builtin iterator."""
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


def builtin_value(value: Any, builtin_type: type) -> Any:
    """Return an instance of a builtin's subclass as an instance of the builtin."""
    return _BUILTIN_CONVERSIONS[builtin_type](value)


class BuiltinValueSource(FunctionSource):
    """An instance of a builtin's subclass, converted to the builtin class itself.

    Runs no method of the subclass.
    """

    notation: ClassVar[str] = "{0.builtin_type.__name__}({0.base.expr})"
    function = staticmethod(builtin_value)
    builtin_type: type
