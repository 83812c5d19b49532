"""Raises Python's own TypeErrors for invalid operands and arguments.

The operation runs on stand-in objects that cause the same error as the traced values.
"""

from __future__ import annotations

import builtins
import operator
import re
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.trace.annotations import Tracer
from engine.trace.variables.base import Args, Kwargs, UserErrors, Variable, type_name
from engine.trace.variables.exceptions.stand_ins import (
    NO_STAND_IN,
    SAMPLE_FACTORIES,
    container_base_of,
    has_method,
    instance_of_class_named,
)

if TYPE_CHECKING:
    from engine.trace.variables.callables.functions import FunctionVariable


def is_iterable(value: Variable) -> bool:
    """Return True if ``iter`` accepts the value, judged by its class."""
    return has_method(value.python_type(), "__iter__", "__getitem__")


def index_error_stand_in(value: Variable) -> Any:
    """Return the stand-in of an index; raise Unsupported if there is none."""
    found = value.error_stand_in()
    if found is NO_STAND_IN:
        raise value.unsupported("using it as an index")
    return found


def check_operand_types(tx: Tracer, function: Callable[..., Any], *operands: Variable) -> None:
    """Raise Python's TypeError if ``function`` raises one for these operands."""
    stands = [v.operand_stand_in(function) for v in operands]
    if any(s is NO_STAND_IN for s in stands):
        return
    with UserErrors(tx, TypeError):
        function(*stands)


def returns_not_implemented(tx: Tracer, of: Variable, name: str, other: Variable) -> bool:
    """Return True if an operator method, called by name, returns NotImplemented.

    Raises its TypeError as the user's.
    """
    stands, given = of.error_stand_in(), other.error_stand_in()
    if stands is NO_STAND_IN or given is NO_STAND_IN or not hasattr(stands, name):
        return False
    try:
        return getattr(type(stands), name)(stands, given) is NotImplemented
    except TypeError as error:
        raise tx.make_user_exception(error) from error
    except ValueError:  # raised by the stand-in
        return False


def check_argument_count(tx: Tracer, cls: builtins.type, name: str, count: int, words: list[str]) -> None:
    """Raise Python's TypeError if a container method gets a wrong number of arguments."""
    base = container_base_of(cls)
    if base is None or not hasattr(base, name):
        return
    try:
        getattr(base, name)(SAMPLE_FACTORIES[base](), *[object()] * count, **dict.fromkeys(words))
    except TypeError as error:
        if _ARGUMENT_COUNT_ERROR.search(str(error)):
            raise tx.make_user_exception(error) from error
    except Exception:  # the dummy arguments have wrong types
        return


_ARGUMENT_COUNT_ERROR = re.compile(
    r"takes|missing required argument|expected (at (least|most) )?\d+ argument|unexpected keyword"
)


def check_unbound_receiver(tx: Tracer, held: Any, args: list[Variable]) -> None:
    """Raise Python's TypeError for an unbound C method without a receiver of its class."""
    if not isinstance(held, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return
    if args and issubclass(args[0].python_type(), held.__objclass__):
        return
    with UserErrors(tx, TypeError):
        held(*[instance_of_class_named(type_name(a.python_type())) for a in args[:1]])


_OPERATION_OF_METHOD: dict[str, Callable[[Any], Any]] = {
    "__call__": lambda of: of(),
    "__getitem__": lambda of: of[0],
    "__setitem__": lambda of: operator.setitem(of, 0, 0),
    "__delitem__": lambda of: operator.delitem(of, 0),
    "__contains__": lambda of: 0 in of,
    "__len__": len,
    "__iter__": iter,
    "__next__": next,
    "__reversed__": reversed,
    "__neg__": operator.neg,
    "__pos__": operator.pos,
    "__invert__": operator.invert,
    "__abs__": abs,
    "__round__": round,
    "__int__": int,
    "__float__": float,
    "__complex__": complex,
    "__index__": operator.index,
}


def raise_missing_method(tx: Tracer, cls: builtins.type, method: str) -> Any:
    """Raise Python's TypeError for an operation whose special method the class lacks."""
    operation = _OPERATION_OF_METHOD.get(method)
    if operation is not None:
        with UserErrors(tx, TypeError):
            operation(instance_of_class_named(cls.__name__))
    return tx.raise_type_error(f"'{cls.__name__}' object has no {method}")


# Calls of Python functions.

_EMPTY_CODE: Any = (lambda: None).__code__


def raise_binding_error(tx: Tracer, function: FunctionVariable, args: Args, kwargs: Kwargs) -> Any:
    """Raise Python's TypeError for a call whose arguments cannot be bound.

    Calls a function with the same parameters and an empty body.
    """
    code, name = function.code, function.get_attr(tx, "__qualname__").as_python_constant(tx)
    empty = code.replace(
        co_code=_EMPTY_CODE.co_code,
        co_consts=_EMPTY_CODE.co_consts,
        co_names=(),
        co_freevars=(),
        co_cellvars=(),
        co_stacksize=1,
        co_exceptiontable=b"",
        co_linetable=_EMPTY_CODE.co_linetable,
    )
    stub = types.FunctionType(empty, {}, name, (None,) * len(function.defaults(tx)) or None)
    stub.__qualname__ = name
    stub.__kwdefaults__ = dict.fromkeys(function.keyword_defaults(tx)) or None
    with UserErrors(tx, TypeError):
        stub(*[None] * len(args), **dict.fromkeys(kwargs))
    raise AssertionError(f"{name} takes these arguments")


def callable_display_name(tx: Tracer, function: Variable) -> str:
    """Return the name of a callable as Python's argument errors show it."""
    real = tx.objects.real_object(function)
    if real is NotImplemented:
        qualname = function.get_attr(tx, "__qualname__").as_python_constant(tx)
        module = function.get_attr(tx, "__module__").as_python_constant(tx)
    else:
        qualname, module = getattr(real, "__qualname__", None), getattr(real, "__module__", None)
    if qualname is None:
        return str(real)
    return f"{qualname}()" if module in (None, "builtins") else f"{module}.{qualname}()"
