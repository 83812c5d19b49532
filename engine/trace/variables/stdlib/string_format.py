"""String formatting of variables: Python's ``%`` and ``format`` run on proxies.

The proxies trace ``__str__``, ``__repr__`` and ``__format__`` of each part.
"""

from __future__ import annotations

import contextlib
import operator
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


class FormatProxy:
    """A proxy of a variable for string formatting."""


_NUMBERS = {"__float__": float, "__int__": int, "__index__": operator.index}


def _make_proxy(tx: Tracer, value: Variable, has_items: bool = True) -> Any:
    """Return a proxy with the class name and the conversions to numbers of the value.

    Errors show the class name. ``%`` treats an object with items as a mapping.
    """

    def constant(function: Any, *rest: Variable) -> Any:
        return realize(tx, tx.wrap_static(function).call(tx, [value, *rest], {})).as_python_constant(tx)

    methods: dict[str, Any] = {
        "__str__": lambda _: str(constant(str)),
        "__repr__": lambda _: str(constant(repr)),
        "__format__": lambda _, spec: str(constant(format, ConstantVariable(spec))),
        "__getattr__": lambda _, name: format_proxy(tx, value.get_attr(tx, name)),
    }
    if has_items:
        methods["__getitem__"] = lambda _, key: format_proxy(tx, value.get_item(tx, ConstantVariable(key)))
    for name, convert in _NUMBERS.items():
        if not value.lacks_methods(name):
            methods[name] = lambda _, convert=convert: constant(convert)
    return type(value.python_type().__name__, (FormatProxy,), methods)()


def format_proxy(tx: Tracer, value: Variable) -> Any:
    """Return a Python object whose text is that of the variable."""
    with _proxies(tx) as proxies:
        return _proxy_for(tx, realize(tx, value), proxies)


def _proxy_for(tx: Tracer, value: Variable, proxies: dict[int, Any]) -> Any:
    if id(value) in proxies:
        return proxies[id(value)]
    container = value.format_contents(tx, proxies)
    if container is not None:
        return container
    try:
        return value.as_python_constant(tx)
    except NotPythonConstant:
        return _make_proxy(tx, value)


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
    with _proxies(tx) as proxies:
        container = proxies[id(value)] if id(value) in proxies else value.format_contents(tx, proxies)
        return None if container is None else repr(container)


def _format_text(tx: Tracer, text: str, value: Variable) -> Variable:
    """Trace ``text % value``."""

    def format_now() -> str:
        proxy = format_proxy(tx, value)
        if is_no_mapping and isinstance(proxy, FormatProxy):
            proxy = _make_proxy(tx, value, False)
        return str.__mod__(text, proxy)

    is_no_mapping = value.lacks_methods("__getitem__")
    return tx.fold_constant(format_now)


CONSTANT_OPERATORS[str.__mod__] = _format_text
