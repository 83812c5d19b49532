"""Raise Python's TypeError for wrong arguments of C callables, before any rule runs."""

from __future__ import annotations

import collections
from typing import Any

from engine.ir.introspection.callable_arity import arity_of
from engine.trace.annotations import Tracer
from engine.trace.variables.base import Args, Kwargs, UserErrors


def check_arity(tx: Tracer, real: Any, args: Args, kwargs: Kwargs, receiver: tuple[Any, ...] = ()) -> None:
    """Raise Python's TypeError if a C callable does not accept these arguments."""
    arity = arity_of(real)
    if arity is None or arity.accepts(len(receiver) + len(args), kwargs):
        return
    with UserErrors(tx, TypeError):
        real(*receiver, *[object()] * len(args), **dict.fromkeys(kwargs, object()))


_CONTAINERS: tuple[type, ...] = (
    *(list, dict, set, frozenset, tuple),
    *(collections.deque, collections.OrderedDict, collections.defaultdict),
)


def check_method_arity(tx: Tracer, cls: type, name: str, args: Args, kwargs: Kwargs) -> None:
    """Raise Python's TypeError if a builtin container method does not accept these arguments."""
    method = getattr(cls, name, None)
    if cls in _CONTAINERS and method is not None:
        check_arity(tx, method, args, kwargs, (cls(),))
