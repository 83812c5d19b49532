"""Classes that traced code creates by ``type(...)`` and ``namedtuple(...)`` of constants.

Python runs class statements, and calls that define methods.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.frame import is_trusted_module
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, UserErrors, Variable, realize
from engine.trace.variables.builder import is_literal
from engine.trace.variables.callable_registry import register_break, register_rule
from engine.trace.variables.callables.reconstruct_calls import CallExpressionVariable
from engine.trace.variables.objects.class_lookup import has_user_method
from engine.trace.variables.objects.classes import ClassVariable


class NewClassVariable(ClassVariable):
    """A class created while tracing.

    ``real_object`` is the class of the trace; each compiled call creates its own by ``construction_call``.
    """

    construction_call: Variable

    is_mutable = True

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        raise self.unsupported_attribute("setting", name)

    child_fields = ("construction_call",)

    def reconstruct(self, cg: PyCodegen) -> None:
        self.construction_call.reconstruct(cg)


def _create_class(tx: Tracer, make: Callable[..., type], args: Args, kwargs: Kwargs) -> NewClassVariable:
    values, keywords = tx.as_python_constants(args), tx.as_python_keywords(kwargs)
    with UserErrors(tx, TypeError, ValueError):
        real = make(*values, **keywords)
    new_class = NewClassVariable(real, None, CallExpressionVariable(make, args, kwargs))
    tx.objects.variables_by_id[id(real)] = (new_class, real)
    tx.objects.new_classes[real] = new_class
    return new_class


def create_class_by_type_call(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Implement ``type(name, bases, namespace)`` of constants.

    Raises:
        Unsupported: the class has mutable entries or methods, or code of the user runs when it is created.
    """
    bases, namespace = (realize(tx, a) for a in args[1:])
    entries = namespace.dict_contents if namespace.python_type() is dict else None
    values = [] if entries is None else [realize(tx, v).as_python_object() for v in entries.values()]
    parents = [realize(tx, b).as_class() for b in bases.argument_items()]
    has_hooks = any(type(p) is not type or has_user_method(p, "__init_subclass__") for p in parents)
    if entries is None or kwargs or has_hooks or not all(map(is_literal, values)):
        raise Unsupported("class-creation", "type() creates a class with methods, or from bases with hooks")
    named: dict[str, Variable] = {"__module__": ConstantVariable(tx.frame.globals.name)}
    named.update(tx.unpack_string_mapping(namespace))
    return _create_class(tx, type, [args[0], bases, entries.from_str_keys(named)], {})


_CLASS_STATEMENT = "a class statement runs, or a decorator of one"


class LibraryClassVariable(Variable):
    """A class created by a class statement in library code, which often does not use it."""

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        raise Unsupported("class-creation", _CLASS_STATEMENT)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        raise Unsupported("class-creation", _CLASS_STATEMENT)

    def reconstruct(self, cg: PyCodegen) -> None:
        raise Unsupported("class-creation", _CLASS_STATEMENT)


@register_rule(builtins.__build_class__)
def _run_class_statement(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    bases = [realize(tx, a).as_class() for a in args[2:]]
    if tx.call_stack.frames[-1].is_trusted and all(is_trusted_module(b.__module__) for b in bases) and not kwargs:
        return LibraryClassVariable()
    raise Unsupported("class-creation", _CLASS_STATEMENT)


register_break("class-creation", _CLASS_STATEMENT, dataclasses.dataclass, functools.total_ordering)
_NAMEDTUPLE: Any = vars(collections)["namedtuple"]


@register_rule(_NAMEDTUPLE)
def _named_tuple(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return _create_class(tx, _NAMEDTUPLE, args, {"module": ConstantVariable(tx.frame.globals.name), **kwargs})
