"""Names of what a wrapper takes as ``*args`` and ``**kwargs``, and of what its cells hold."""

from __future__ import annotations

import inspect
import itertools
import sys
import traceback
import weakref
from collections.abc import Iterator, Mapping
from types import CellType, FrameType, FunctionType
from typing import Any

from engine.ir.user_code_files import is_installed_file

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
    num_parameters = inner.co_argcount + inner.co_kwonlyargcount
    own = code.co_argcount + code.co_kwonlyargcount
    names_left = iter(code.co_varnames[own:])
    item_names: dict[str, ItemNames] = {}
    if code.co_flags & inspect.CO_VARARGS:
        item_names[next(names_left)] = dict(enumerate(inner.co_varnames[code.co_argcount : inner.co_argcount]))
    if code.co_flags & inspect.CO_VARKEYWORDS:
        item_names[next(names_left)] = {name: name for name in inner.co_varnames[:num_parameters]}
    return item_names


def name_arguments(arguments: Mapping[str, Any], names: Mapping[str, ItemNames]) -> dict[str, Any]:
    """Return a wrapper's arguments under the names of the function that it wraps."""
    return {label: value for label, _, _, value in _labelled(arguments, names)}


def with_named(
    arguments: Mapping[str, Any], named: Mapping[str, Any], names: Mapping[str, ItemNames]
) -> dict[str, Any]:
    """Return a wrapper's arguments with the values that ``named`` has for them."""
    items: dict[str, Any] = {name: {} for name in arguments}
    for label, name, key, _ in _labelled(arguments, names):
        if name in names:
            items[name][key] = named[label]
        else:
            items[name] = named[label]
    positional = [name for name in names if name in arguments and type(arguments[name]) is not dict]
    return items | {name: tuple(items[name].values()) for name in positional}


def _labelled(arguments: Mapping[str, Any], names: Mapping[str, ItemNames]) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield (label, argument, key of an item, value).

    An item whose name is taken is labelled by its place: ``kwargs['x']``.
    """
    used_names = {name for name in arguments if name not in names}
    for name, value in arguments.items():
        if name not in names:
            yield name, name, None, value
            continue
        for key, item in value.items() if type(value) is dict else enumerate(value):
            label = names[name].get(key, "")
            if not label or label in used_names:
                label = f"{name}[{key!r}]"
            used_names.add(label)
            yield label, name, key, item


def _innermost(function: FunctionType) -> Any:
    """Return the code of the function below all wrappers; None if it is not written in Python."""
    try:
        inner = inspect.unwrap(function)
    except ValueError:
        return None
    return getattr(inner, "__code__", None)


def referent_name(function: FunctionType, cell: CellType) -> str:
    """Return the user's variable that holds what a library function's cell weakly refers to.

    A learning rate scheduler wraps ``opt.step`` in such a function. Empty for other cells, and if no calling
    frame of the user's code has a name for the object.
    """
    if not is_installed_file(function.__code__.co_filename):
        return ""
    try:
        referent = weakref.ref.__call__(cell.cell_contents)
    except (TypeError, ValueError):  # no weak reference, or an empty cell
        return ""
    frames = list(_calling_frames_of_user())
    # Globals first: on Python 3.12 and older, reading the locals of a function prolongs their lives.
    scopes = itertools.chain((f.f_globals for f in frames), (f.f_locals for f in frames))
    names = (n for scope in scopes for n, v in list(scope.items()) if v is referent and not n.startswith("_"))
    return next(names, "") if referent is not None else ""


def _calling_frames_of_user() -> Iterator[FrameType]:
    """Yield the calling frames of the user's code, innermost first."""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        module = str(frame.f_globals.get("__name__", ""))
        if not is_installed_file(frame.f_code.co_filename) and not module.startswith("engine."):
            yield frame
