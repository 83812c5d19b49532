"""String formatting of variables: Python's ``%`` and ``format`` run on proxies.

The proxies trace ``__str__``, ``__repr__`` and ``__format__`` of each part.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from engine.trace.variables.base import ConstantVariable, NotPythonConstant, Variable, realize

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer


class FormatProxy:
    """A proxy of a variable for Python's string formatting."""

    def __init__(self, tx: Tracer, value: Variable) -> None:
        self.__tx = tx
        self.__value = value

    def __text(self, function: Any) -> str:
        return str(
            realize(self.__tx, self.__tx.wrap_static(function).call(self.__tx, [self.__value], {})).as_python_constant(
                self.__tx
            )
        )

    def __str__(self) -> str:
        return self.__text(str)

    def __repr__(self) -> str:
        return self.__text(repr)

    def __format__(self, spec: str) -> str:
        tx = self.__tx
        return str(
            realize(tx, tx.wrap_static(format).call(tx, [self.__value, ConstantVariable(spec)], {})).as_python_constant(
                tx
            )
        )

    def __getattr__(self, name: str) -> Any:
        return format_proxy(self.__tx, self.__value.get_attr(self.__tx, name))

    def __getitem__(self, key: Any) -> Any:
        return format_proxy(self.__tx, self.__value.get_item(self.__tx, ConstantVariable(key)))


def format_proxy(tx: Tracer, value: Variable) -> Any:
    """Return a Python object whose text is that of the variable."""
    with _proxies(tx) as known:
        return _proxy_for(tx, realize(tx, value), known)


def _proxy_for(tx: Tracer, value: Variable, known: dict[int, Any]) -> Any:
    if id(value) in known:
        return known[id(value)]
    made = _container_proxy(tx, value, known)
    if made is not None:
        return made
    try:
        return value.as_python_constant(tx)
    except NotPythonConstant:
        return FormatProxy(tx, value)


@contextlib.contextmanager
def _proxies(tx: Tracer) -> Iterator[dict[int, Any]]:
    """Provide the proxies of containers, by ``id`` of their variables, during one formatting."""
    if tx.repr_placeholders is not None:
        yield tx.repr_placeholders
        return
    tx.repr_placeholders = {}
    try:
        yield tx.repr_placeholders
    finally:
        tx.repr_placeholders = None


def _container_proxy(tx: Tracer, value: Variable, known: dict[int, Any]) -> Any:
    """Return a builtin container of proxies, or None if the type is not supported.

    A recursive container gets a recursive proxy, so that Python prints ``...`` for it.
    """
    from engine.trace.variables.containers.dicts import DictVariable, DictViewVariable
    from engine.trace.variables.containers.sequences import ListVariable, TupleVariable
    from engine.trace.variables.containers.sets import SetVariable

    made: Any
    if isinstance(value, ListVariable) and value.cls in (list, collections.deque):
        made = known[id(value)] = value.cls() if value.cls is list else collections.deque(maxlen=value.maxlen)
        made.extend(format_proxy(tx, item) for item in value.items)
        return made
    if isinstance(value, TupleVariable) and value.cls is tuple:
        known[id(value)] = _ReprText("(...)")
        try:
            return tuple(format_proxy(tx, item) for item in value.items)
        finally:
            del known[id(value)]
    if isinstance(value, DictVariable) and value.cls in (dict, collections.OrderedDict, collections.defaultdict):
        made = value.cls()
        if value.cls is collections.defaultdict:
            made.default_factory = (
                format_proxy(tx, value.default_factory) if value.default_factory is not None else None
            )
        known[id(value)] = made
        made.update(
            (_hashable_proxy(format_proxy(tx, key)), format_proxy(tx, item)) for key, item in value.entries.values()
        )
        return made
    if isinstance(value, DictViewVariable):
        like: Any = collections.OrderedDict() if issubclass(value.dict_variable.cls, collections.OrderedDict) else {}
        made = known[id(value)] = getattr(like, value.view_kind)()
        like.update(
            (_hashable_proxy(format_proxy(tx, key)), format_proxy(tx, item))
            for key, item in value.dict_variable.entries.values()
        )
        return made
    if isinstance(value, SetVariable) and value.cls in (set, frozenset) and len(value.elements) == 1:
        made = value.cls()
        if value.cls is set:
            known[id(value)] = made
        parts = [_hashable_proxy(format_proxy(tx, item)) for item in value.elements.values()]
        if value.cls is set:
            made.update(parts)
        return made if value.cls is set else frozenset(parts)
    return None


def _hashable_proxy(of: Any) -> Any:
    """Return the object, or a hashable one with the same ``repr``."""
    try:
        hash(of)
    except TypeError:
        return _ReprText(repr(of))
    return of


class _ReprText:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def container_repr(tx: Tracer, value: Variable) -> str | None:
    """Return ``repr`` of a builtin container, or None if the type is not supported."""
    with _proxies(tx) as known:
        made = known[id(value)] if id(value) in known else _container_proxy(tx, value, known)
        return None if made is None else repr(made)
