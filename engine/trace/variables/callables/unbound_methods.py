"""Methods called through their class."""

from __future__ import annotations

from typing import Any

from engine.trace.annotations import Tracer
from engine.trace.variables.base import Args, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import UNBOUND_METHOD_RULES
from engine.trace.variables.callables.builtin_arity import check_method_arity
from engine.trace.variables.exceptions.type_errors import check_unbound_receiver


def call_unbound_method(tx: Tracer, held: Any, args: Args, kwargs: Kwargs) -> Variable | None:
    """Trace ``list.append(x, 1)`` as ``x.append(1)``; None unless it is a method of a C class."""
    owner = getattr(held, "__objclass__", None)
    if owner is None:
        return None
    check_unbound_receiver(tx, held, [realize(tx, a) for a in args[:1]])
    if not args:
        return None
    of = realize(tx, args[0])
    if not issubclass(of.python_type(), owner):
        return None
    name = held.__name__
    check_method_arity(tx, owner, name, args[1:], kwargs)
    by_owner = UNBOUND_METHOD_RULES.get(owner)
    made = None if by_owner is None else by_owner(tx, of, name, args[1:], kwargs)
    return of.call_c_method(tx, owner, name, args[1:], kwargs) if made is None else made
