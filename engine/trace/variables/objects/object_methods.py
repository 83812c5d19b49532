"""Methods of ``object`` called on a user-defined object, not on an override of its class."""

from __future__ import annotations

from collections.abc import Callable

from engine.trace.annotations import Tracer
from engine.trace.operators.arithmetic import is_same_object
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, is_not_implemented, realize
from engine.trace.variables.objects.class_lookup import has_user_method
from engine.trace.variables.objects.instance_attributes import InstanceVariable

ObjectMethod = Callable[["Tracer", InstanceVariable, Args, Kwargs], Variable]
NOT_IMPLEMENTED = ConstantVariable(NotImplemented)


def _attribute_name(tx: Tracer, args: Args) -> str:
    return str(realize(tx, args[0]).as_python_constant(tx))


def _setattr(tx: Tracer, of: InstanceVariable, args: Args, kwargs: Kwargs) -> Variable:
    of.generic_set_attr(tx, _attribute_name(tx, args), args[1])
    return NONE


def _delattr(tx: Tracer, of: InstanceVariable, args: Args, kwargs: Kwargs) -> Variable:
    of.generic_del_attr(tx, _attribute_name(tx, args))
    return NONE


def _init(tx: Tracer, of: InstanceVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Extra arguments are allowed only if ``__new__`` is overridden but ``__init__`` is not."""
    for name, owner in (("__init__", "object"), ("__new__", of.cls.__name__)) if args or kwargs else ():
        if has_user_method(of.cls, name) == (name == "__init__"):
            tx.raise_type_error(f"{owner}.__init__() takes exactly one argument (the instance to initialize)")
    return NONE


def _eq(tx: Tracer, of: InstanceVariable, args: Args, kwargs: Kwargs) -> Variable:
    return ConstantVariable(True) if is_same_object(tx, of, args[0]) else NOT_IMPLEMENTED


def _ne(tx: Tracer, of: InstanceVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Return the inverse of ``__eq__``."""
    if is_same_object(tx, of, args[0]):
        return ConstantVariable(False)
    equal = of.call_user_method(tx, "__eq__", [args[0]])
    if equal is None or is_not_implemented(equal):
        return NOT_IMPLEMENTED
    return ConstantVariable(not equal.is_truthy(tx))


def _format(tx: Tracer, of: InstanceVariable, args: Args, kwargs: Kwargs) -> Variable:
    if realize(tx, args[0]).as_python_constant(tx) != "":
        raise of.unsupported("object's method '__format__'", "unsupported-method")
    return realize(tx, tx.wrap_static(str).call(tx, [of], {}))


OBJECT_METHODS: dict[str, ObjectMethod] = {
    "__setattr__": _setattr,
    "__delattr__": _delattr,
    "__getattribute__": lambda tx, of, args, kwargs: of.object_getattribute(tx, _attribute_name(tx, args)),
    "__init__": _init,
    "__init_subclass__": lambda tx, of, args, kwargs: NONE,
    "__eq__": _eq,
    "__ne__": _ne,
    **dict.fromkeys(("__lt__", "__le__", "__gt__", "__ge__"), lambda tx, of, args, kwargs: NOT_IMPLEMENTED),
    "__str__": lambda tx, of, args, kwargs: realize(tx, tx.wrap_static(repr).call(tx, [of], {})),
    "__format__": _format,
}
