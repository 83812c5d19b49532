"""Names of the arguments that a decorator's wrapper takes as ``*args`` and ``**kwargs``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

ItemNames = Mapping[Any, str]
"""Names of the items of an argument, by index or key."""


def wrapped_parameters(function: FunctionType) -> dict[str, ItemNames]:
    """Return the wrapped function's names of the items of ``*args`` and ``**kwargs``.

    Empty for a function that ``functools.wraps`` did not mark as a wrapper. The wrapper is taken to hand its
    arguments on in their order, as the names are for display only.
    """
    code = function.__code__
    if not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or not hasattr(function, "__wrapped__"):
        return {}
    inner = _innermost(function)
    if inner is None:
        return {}
    known = inner.co_argcount + inner.co_kwonlyargcount
    own = code.co_argcount + code.co_kwonlyargcount
    others = iter(code.co_varnames[own:])
    found: dict[str, ItemNames] = {}
    if code.co_flags & inspect.CO_VARARGS:
        found[next(others)] = dict(enumerate(inner.co_varnames[code.co_argcount : inner.co_argcount]))
    if code.co_flags & inspect.CO_VARKEYWORDS:
        found[next(others)] = {name: name for name in inner.co_varnames[:known]}
    return found


def name_arguments(arguments: Mapping[str, Any], names: Mapping[str, ItemNames]) -> dict[str, Any]:
    """Return a wrapper's arguments under the names of the function that it wraps."""
    return {label: value for label, _, _, value in _labelled(arguments, names)}


def with_named(
    arguments: Mapping[str, Any], named: Mapping[str, Any], names: Mapping[str, ItemNames]
) -> dict[str, Any]:
    """Return a wrapper's arguments with the values that ``named`` has for them."""
    found: dict[str, Any] = {name: {} for name in arguments}
    for label, name, key, _ in _labelled(arguments, names):
        if name in names:
            found[name][key] = named[label]
        else:
            found[name] = named[label]
    positional = [name for name in names if name in arguments and type(arguments[name]) is not dict]
    return found | {name: tuple(found[name].values()) for name in positional}


def _labelled(arguments: Mapping[str, Any], names: Mapping[str, ItemNames]) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield (label, argument, key of an item, value).

    An item whose name is taken is labelled by its place: ``kwargs['x']``.
    """
    taken = {name for name in arguments if name not in names}
    for name, value in arguments.items():
        if name not in names:
            yield name, name, None, value
            continue
        for key, item in value.items() if type(value) is dict else enumerate(value):
            label = names[name].get(key, "")
            if not label or label in taken:
                label = f"{name}[{key!r}]"
            taken.add(label)
            yield label, name, key, item


def _innermost(function: FunctionType) -> Any:
    """Return the code of the function below all wrappers; None if it is not written in Python."""
    try:
        inner = inspect.unwrap(function)
    except ValueError:
        return None
    return getattr(inner, "__code__", None)
