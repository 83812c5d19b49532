"""String formatting of variables: Python's ``%`` and ``format`` run on proxies.

The proxies trace ``__str__``, ``__repr__`` and ``__format__`` of each part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from engine.trace.annotations import Tracer
from engine.trace.operators.operand import CONSTANT_OPERATORS
from engine.trace.variables.base import ConstantVariable, NotPythonConstant, Variable, realize
from engine.trace.variables.slotted_type import SlottedType, state


class _FormattedContainers(metaclass=SlottedType):
    """Proxies of containers while a container is formatted."""

    proxies: dict[int, Any] | None = state(None)
    """The proxies by variable id; None while nothing is formatted."""


class TextProxy:
    """A proxy of a variable for string formatting, which ``%`` does not treat as a mapping."""

    def __init__(self, tx: Tracer, value: Variable) -> None:
        self.__tx = tx
        self.__value = value

    def __text(self, function: Any, *rest: Variable) -> str:
        tx = self.__tx
        shown = realize(tx, tx.wrap_static(function).call(tx, [self.__value, *rest], {}))
        return str(shown.as_python_constant(tx))

    def __str__(self) -> str:
        return self.__text(str)

    def __repr__(self) -> str:
        return self.__text(repr)

    def __format__(self, spec: str) -> str:
        return self.__text(format, ConstantVariable(spec))

    def __getattr__(self, name: str) -> Any:
        return format_proxy(self.__tx, self.__value.get_attr(self.__tx, name))


class FormatProxy(TextProxy):
    """A proxy whose items a format string may read."""

    def __init__(self, tx: Tracer, value: Variable) -> None:
        super().__init__(tx, value)
        self.__tx = tx
        self.__value = value

    def __getitem__(self, key: Any) -> Any:
        return format_proxy(self.__tx, self.__value.get_item(self.__tx, ConstantVariable(key)))


def format_proxy(tx: Tracer, value: Variable) -> Any:
    """Return a Python object whose text is that of the variable."""
    with _proxies(tx) as known:
        return _proxy_for(tx, realize(tx, value), known)


def _proxy_for(tx: Tracer, value: Variable, known: dict[int, Any]) -> Any:
    if id(value) in known:
        return known[id(value)]
    made = value.format_contents(tx, known)
    if made is not None:
        return made
    try:
        return value.as_python_constant(tx)
    except NotPythonConstant:
        return FormatProxy(tx, value)


@contextlib.contextmanager
def _proxies(tx: Tracer) -> Iterator[dict[int, Any]]:
    """Provide the proxies of containers, by ``id`` of their variables, during one formatting."""
    formatted = tx.state_of(_FormattedContainers)
    if formatted.proxies is not None:
        yield formatted.proxies
        return
    formatted.proxies = {}
    try:
        yield formatted.proxies
    finally:
        formatted.proxies = None


def entry_proxies(tx: Tracer, entries: Iterable[tuple[Variable, Variable]]) -> Iterator[tuple[Any, Any]]:
    """Yield the proxies of the keys and values of a dict."""
    for key, value in entries:
        yield hashable_proxy(format_proxy(tx, key)), format_proxy(tx, value)


def hashable_proxy(of: Any) -> Any:
    """Return the object, or a hashable one with the same ``repr``."""
    try:
        hash(of)
    except TypeError:
        return ReprText(repr(of))
    return of


class ReprText(metaclass=SlottedType):
    """An object with this ``repr``."""

    text: str

    def __repr__(self) -> str:
        return self.text


def container_repr(tx: Tracer, value: Variable) -> str | None:
    """Return ``repr`` of a builtin container, or None if the type is not supported."""
    with _proxies(tx) as known:
        made = known[id(value)] if id(value) in known else value.format_contents(tx, known)
        return None if made is None else repr(made)


def _format_text(tx: Tracer, text: str, value: Variable) -> Variable:
    """Trace ``text % value``."""

    def format_now() -> str:
        proxy = format_proxy(tx, value)
        return text % (TextProxy(tx, value) if is_no_mapping and isinstance(proxy, FormatProxy) else proxy)

    is_no_mapping = value.lacks_methods("__getitem__")
    return tx.fold_constant(format_now)


CONSTANT_OPERATORS[str.__mod__] = _format_text
