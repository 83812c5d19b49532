"""Rules for getattr, setattr, delattr, hasattr, vars, dir, locals and functools.wraps."""

from __future__ import annotations

import inspect

from engine.ir.guards.python_values import HasAttrGuard
from engine.ir.introspection.python_objects import has_static_attribute
from engine.ir.sources.attributes import AttrSource
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported, UserException
from engine.trace.operators import arithmetic
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import register_bound_rule, register_rule
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import ListVariable, sequence_items


def _attribute_name(tx: Tracer, value: Variable) -> str:
    name = realize(tx, value)
    if not issubclass(name.python_type(), str):
        tx.raise_type_error(f"attribute name must be string, not '{name.python_type().__name__}'")
    return str(name.as_python_constant(tx))


def read_attribute(tx: Tracer, of: Variable, name: str, default: Variable | None = None) -> Variable:
    """Return an attribute, or the default; guard that an object from outside does not get it."""
    try:
        return of.get_attr(tx, name)
    except UserException as error:
        if not issubclass(error.exception.python_type(), AttributeError):
            raise
        value = _attribute_set_outside(tx, of, name) or default
        if value is None:
            raise
        return value
    except Unsupported:
        if not _has_real_attributes(tx, of) or not of.lacks_methods(name, "__getattr__"):
            raise
        value = _attribute_set_outside(tx, of, name) or default
        if value is None:
            tx.raise_error(AttributeError, f"'{of.python_type().__name__}' object has no attribute '{name}'")
        return value


def _has_real_attributes(tx: Tracer, of: Variable) -> bool:
    """Return True for an object from outside whose attributes traced code cannot change."""
    if of.source is None or of.source.is_fixed or tx.objects.object_from_outside(of) is NotImplemented:
        return False
    return type(of).del_attr is Variable.del_attr


def _attribute_set_outside(tx: Tracer, of: Variable, name: str) -> Variable | None:
    """Return an attribute that the user set on an instance of a library class.

    Guard that the attribute is missing if it is.
    """
    if of.source is None or of.source.is_fixed:
        return None
    real = tx.objects.object_from_outside(of)
    if not has_static_attribute(real, name):
        tx.guard(HasAttrGuard, of.source, name, False, why=f"it has no attribute {name!r}")
        return None
    own = getattr(real, "__dict__", {}) if _has_real_attributes(tx, of) else {}
    return tx.wrap(own[name], AttrSource(of.source, name)) if name in own else None


@register_rule(getattr)
def _getattr(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return read_attribute(tx, realize(tx, args[0]), _attribute_name(tx, args[1]), *args[2:])


@register_bound_rule(hasattr)
def _hasattr(tx: Tracer, of: Variable, name: Variable) -> Variable:
    missing = ConstantVariable(None)
    return ConstantVariable(read_attribute(tx, of, _attribute_name(tx, name), missing) is not missing)


@register_rule(setattr)
def _setattr(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    realize(tx, args[0]).set_attr(tx, _attribute_name(tx, args[1]), args[2])
    return NONE


@register_bound_rule(delattr)
def _delattr(tx: Tracer, of: Variable, name: Variable) -> Variable:
    of.del_attr(tx, _attribute_name(tx, name))
    return NONE


@register_rule(vars)
def _vars(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if not args:
        return _locals(tx, args, kwargs)
    of = realize(tx, args[0])
    if of.lacks_methods("__dict__"):
        tx.raise_type_error("vars() argument must have __dict__ attribute")
    return of.get_attr(tx, "__dict__")


@register_rule(dir)
def _dir(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if not args:
        raise Unsupported("frame-inspection", "dir() of the frame")
    of = realize(tx, args[0])
    if of.is_user_object:
        custom = of.lookup_special_method(tx, "__dir__")
        if custom is not None:
            return ListVariable(arithmetic.sort_items(tx, list(sequence_items(tx, custom.call(tx, [], {}))), {}))
        names = [str(realize(tx, k).as_python_constant(tx)) for k in sequence_items(tx, of.get_attr(tx, "__dict__"))]
        return tx.from_python(sorted({*dir(of.python_type()), *names}))
    return arithmetic.fold_constant_call(tx, dir, args, kwargs)


@register_rule(locals)
def _locals(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    frame = tx.frame
    code = frame.code
    if not code.co_flags & inspect.CO_OPTIMIZED:  # a class body
        return DictVariable.from_str_keys(frame.locals)
    mapping = DictVariable({})
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        value = frame.locals.get(name)
        if value is None and name in frame.cells:
            value = frame.cells[name].content
        if value is not None:
            mapping.set_item(tx, ConstantVariable(name), value)
    return mapping
