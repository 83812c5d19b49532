"""Methods called through their class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.trace.variables.base import Variable, realize
from engine.trace.variables.callables.builtin_arity import check_method_arity
from engine.trace.variables.exceptions.type_errors import check_unbound_receiver

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer


def call_unbound_method(tx: Tracer, held: Any, args: list[Variable], kwargs: dict[str, Variable]) -> Variable | None:
    """Trace ``list.append(x, 1)`` as ``x.append(1)``; None unless it is a method of a C class."""
    owner = getattr(held, "__objclass__", None)
    if owner is None:
        return None
    check_unbound_receiver(tx, held, [realize(tx, a) for a in args[:1]])
    if not args:
        return None
    from engine.trace.variables.containers.dict_subclasses import call_dict_method_on_ordered

    of = realize(tx, args[0])
    if not issubclass(of.python_type(), owner):
        return None
    name = held.__name__
    check_method_arity(tx, owner, name, args[1:], kwargs)
    by_dict = call_dict_method_on_ordered(tx, owner, of, name, args[1:], kwargs)
    if by_dict is not None:
        return by_dict
    from engine.trace.variables.callables.partials import FunctoolsPartialVariable
    from engine.trace.variables.containers.builtin_subclasses import BuiltinSubclassVariable
    from engine.trace.variables.exceptions.exceptions import ExceptionVariable
    from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

    if isinstance(of, ExceptionVariable) and issubclass(owner, BaseException):
        return of.call_c_method(tx, name, args[1:], kwargs)
    if isinstance(of, (BuiltinSubclassVariable, FunctoolsPartialVariable)) and owner is not object:
        return of.call_builtin_method(tx, name, [realize(tx, a) for a in args[1:]], kwargs)
    if isinstance(of, UserDefinedObjectVariable):
        if owner is not object:
            return None
        name = f"object.{name}"
    return of.call_method(tx, name, args[1:], kwargs)
