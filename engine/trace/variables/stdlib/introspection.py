"""Rules for standard library functions that run while tracing instead of being inlined."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, UserErrors, Variable, is_none, realize
from engine.trace.variables.builder import is_literal
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.functions import NestedUserFunctionVariable, UserFunctionVariable
from engine.trace.variables.callables.methods import BoundMethodVariable
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable
from engine.trace.variables.objects.classes import ClassVariable

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer


@register_rule(inspect.signature)
def _signature(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0])
    if isinstance(of, UserFunctionVariable):
        return tx.wrap_static(inspect.signature(of.real_object), "signature")
    if isinstance(of, BoundMethodVariable) and isinstance(of.function, UserFunctionVariable):
        return tx.wrap_static(inspect.signature(types.MethodType(of.function.real_object, object())), "signature")
    if isinstance(of, NestedUserFunctionVariable):
        return tx.wrap_static(inspect.signature(_function_with_same_signature(tx, of)), "signature")
    if isinstance(of, ClassVariable) and len(args) == 1 and not kwargs:
        with UserErrors(tx, TypeError, ValueError):  # functions from C may have no signature
            return tx.wrap_static(inspect.signature(of.real_object), "signature")
    raise Unsupported("inspect", f"inspect.signature() of {of.describe()}")


def _function_with_same_signature(tx: Tracer, of: NestedUserFunctionVariable) -> types.FunctionType:
    """Return a real function with the signature of one created in traced code."""
    if of.annotations or of.annotate is not None:
        raise Unsupported("inspect", "inspect.signature() of a function that traced code created with annotations")
    cells = tuple(types.CellType() for _ in of.code.co_freevars)
    made = types.FunctionType(of.code, {}, of.name, tuple(tx.as_python_constants(of.default_values)) or None, cells)
    words = of.keyword_default_values
    made.__kwdefaults__ = dict(zip(words, tx.as_python_constants(words.values()), strict=True)) or None
    return made


def _introspection_rule(function: Callable[..., Any]) -> Callable[[Tracer, Args, Kwargs], Variable]:
    """Return a rule that reads annotations of a function, class or module while tracing."""

    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        of = realize(tx, args[0]) if args else NONE
        real = of.as_python_object()
        is_method = isinstance(of, BoundMethodVariable) and isinstance(of.function, UserFunctionVariable)
        if is_method:
            real = types.MethodType(of.function.real_object, object())  # type: ignore[attr-defined]
        if not isinstance(real, (types.FunctionType, types.MethodType, type, types.ModuleType)) or len(args) > 1:
            raise Unsupported("inspect", f"{function.__name__}() of {of.describe()}")
        with UserErrors(tx, NameError, TypeError, ValueError):
            found = function(real, **dict(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True)))
        return _introspection_result(tx, found)

    return rule


def _introspection_result(tx: Tracer, found: Any) -> Variable:
    if type(found) is dict:
        return DictVariable(
            {name: (ConstantVariable(name), _introspection_result(tx, item)) for name, item in found.items()}
        )
    if isinstance(found, tuple):
        return TupleVariable([_introspection_result(tx, item) for item in found], type(found))
    if isinstance(found, list):
        return ListVariable([_introspection_result(tx, item) for item in found])
    return ConstantVariable(found) if is_literal(found) else tx.wrap_static(found, str(found))


for _question in (inspect.get_annotations, inspect.getfullargspec, typing.get_type_hints):
    register_rule(_question)(_introspection_rule(_question))


@register_rule(dataclasses.fields)
def _fields(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0])
    cls = of.as_python_object() if isinstance(of.as_python_object(), type) else of.python_type()
    return TupleVariable([tx.wrap_static(f, f.name) for f in dataclasses.fields(cls)])


@register_rule(torch.jit.annotate)
def _annotate(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return args[1]


@register_rule(vars(torch.jit)["_unwrap_optional"])
def _unwrap_optional(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if is_none(realize(tx, args[0])):
        tx.raise_error(AssertionError, "Unwrapping null optional")
    return args[0]


@register_rule(torch.fx.node.map_aggregate)
def _map_aggregate(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    given = dict(zip(("a", "fn"), args, strict=False)) | kwargs
    return _map_aggregate_variable(tx, realize(tx, given["a"]), realize(tx, given["fn"]))


def _map_aggregate_variable(tx: Tracer, of: Variable, fn: Variable) -> Variable:
    if isinstance(of, TupleVariable):
        items = [_map_aggregate_variable(tx, realize(tx, i), fn) for i in of.items]
        return TupleVariable(items, of.cls if of.is_namedtuple() else tuple)
    if isinstance(of, ListVariable) and of.cls is list:
        made = ListVariable([_map_aggregate_variable(tx, realize(tx, i), fn) for i in of.items])
        return realize(tx, tx.wrap_static(torch.fx.immutable_collections.immutable_list).call(tx, [made], {}))
    if isinstance(of, DictVariable) and of.cls is dict:
        held = DictVariable(
            {k: (key, _map_aggregate_variable(tx, realize(tx, v), fn)) for k, (key, v) in of.entries.items()}
        )
        return realize(tx, tx.wrap_static(torch.fx.immutable_collections.immutable_dict).call(tx, [held], {}))
    return realize(tx, fn.call(tx, [of], {}))


@register_rule(torch.overrides.get_default_nowrap_functions)
def _default_nowrap_functions(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return tx.wrap_static(torch.overrides.get_default_nowrap_functions())
