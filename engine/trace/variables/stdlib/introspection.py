"""Rules for library functions that read code or the interpreter while tracing."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

import torch

from engine.ir.guards.global_state import GlobalStateMatch
from engine.ir.register_once import register_each
from engine.ir.sources.roots import ConstantSource
from engine.torch_private.global_state import unwrap_optional
from engine.trace.annotations import Tracer
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, UserErrors, Variable, is_none, realize
from engine.trace.variables.builder import is_literal
from engine.trace.variables.callable_registry import register_bound_rule, register_rule
from engine.trace.variables.callables.functions import NestedUserFunctionVariable, UserFunctionVariable
from engine.trace.variables.callables.methods import BoundMethodVariable
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable


@register_rule(inspect.signature)
def _signature(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0])
    described = _function_like(of, tx)
    if described is None and len(args) == 1 and not kwargs:
        described = of.as_class()
    if described is None:
        raise Unsupported("inspect", f"inspect.signature() of {of.describe()}")
    with UserErrors(tx, TypeError, ValueError):  # functions from C may have no signature
        return tx.wrap_static(inspect.signature(described), "signature")


@functools.singledispatch
def _function_like(of: Variable, tx: Tracer) -> Any:
    """Return a real function or method with the same parameters; None for anything else."""
    return None


@_function_like.register(UserFunctionVariable)
def _user_function(of: UserFunctionVariable, tx: Tracer) -> Any:
    return of.real_object


@_function_like.register(BoundMethodVariable)
def _bound_method(of: BoundMethodVariable, tx: Tracer) -> Any:
    function = _function_like(of.function, tx)
    return None if function is None else types.MethodType(function, object())


@_function_like.register(NestedUserFunctionVariable)
def _function_with_same_signature(of: NestedUserFunctionVariable, tx: Tracer) -> types.FunctionType:
    """Return a real function with the signature of one created in traced code."""
    if of.annotations or of.annotate is not None:
        raise Unsupported("inspect", "inspect.signature() of a function that traced code created with annotations")
    cells = tuple(types.CellType() for _ in of.code.co_freevars)
    function = types.FunctionType(of.code, {}, of.name, tuple(tx.as_python_constants(of.default_values)) or None, cells)
    keyword_defaults = of.keyword_default_values
    function.__kwdefaults__ = tx.as_python_keywords(keyword_defaults) or None
    return function


@register_each(register_rule, inspect.get_annotations, inspect.getfullargspec, typing.get_type_hints)
def _introspect(function: Callable[..., Any], tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Read annotations of a function, class or module while tracing."""
    of = realize(tx, args[0]) if args else NONE
    real = _function_like(of, tx) if of.python_type() is types.MethodType else of.as_python_object()
    if not isinstance(real, (types.FunctionType, types.MethodType, type, types.ModuleType)) or len(args) > 1:
        raise Unsupported("inspect", f"{function.__name__}() of {of.describe()}")
    with UserErrors(tx, NameError, TypeError, ValueError):
        result = function(real, **tx.as_python_keywords(kwargs))
    return _introspection_result(result, tx)


@functools.singledispatch
def _introspection_result(result: Any, tx: Tracer) -> Variable:
    """Return the variable of a result; containers are new."""
    return ConstantVariable(result) if is_literal(result) else tx.wrap_static(result, str(result))


@_introspection_result.register(dict)
def _dict_result(result: dict[str, Any], tx: Tracer) -> Variable:
    return DictVariable.from_str_keys({name: _introspection_result(item, tx) for name, item in result.items()})


@_introspection_result.register(tuple)
def _tuple_result(result: tuple[Any, ...], tx: Tracer) -> Variable:
    return TupleVariable([_introspection_result(item, tx) for item in result], type(result))


@_introspection_result.register(list)
def _list_result(result: list[Any], tx: Tracer) -> Variable:
    return ListVariable([_introspection_result(item, tx) for item in result])


@register_bound_rule(dataclasses.fields)
def _fields(tx: Tracer, class_or_instance: Variable) -> Variable:
    cls = class_or_instance.as_class() or class_or_instance.python_type()
    return TupleVariable([tx.wrap_static(f, f.name) for f in dataclasses.fields(cls)])


@register_bound_rule(unwrap_optional)
def _unwrap_optional(tx: Tracer, x: Variable) -> Variable:
    return tx.raise_error(AssertionError, "Unwrapping null optional") if is_none(x) else x


@register_bound_rule(torch.fx.node.map_aggregate)
def _map_aggregate(tx: Tracer, a: Variable, fn: Variable) -> Variable:
    def map_inside(items: Iterable[Variable]) -> list[Variable]:
        return [_map_aggregate(tx, realize(tx, item), fn) for item in items]

    immutable = torch.fx.immutable_collections
    cls, sequence, mapping = a.python_type(), a.sequence_contents, a.dict_contents
    if sequence is not None and sequence is a and issubclass(cls, tuple):
        return TupleVariable(map_inside(sequence.items), cls if hasattr(cls, "_fields") else tuple)
    if sequence is not None and cls is list:
        return realize(
            tx, tx.wrap_static(immutable.immutable_list).call(tx, [ListVariable(map_inside(sequence.items))], {})
        )
    if mapping is not None and cls is dict:
        mapped = dict(zip(mapping.entries, zip(mapping.keys(), map_inside(mapping.values()), strict=True), strict=True))
        return realize(tx, tx.wrap_static(immutable.immutable_dict).call(tx, [DictVariable(mapped)], {}))
    return realize(tx, fn.call(tx, [a], {}))


@register_rule(torch.overrides.get_default_nowrap_functions)
def _default_nowrap_functions(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return tx.wrap_static(torch.overrides.get_default_nowrap_functions())


register_rule(sys.getrecursionlimit)(lambda tx, args, kwargs: ConstantVariable(tx.call_stack.recursion_limit))


@register_rule(sys.get_int_max_str_digits)
def _digits_limit(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    limit = sys.get_int_max_str_digits()
    tx.guard(GlobalStateMatch, ConstantSource(torch, "torch"), "digits", limit, why="it was read")
    return ConstantVariable(limit)


@register_rule(sys.set_int_max_str_digits)
def _set_digits_limit(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    # The tracer converts numbers to strings under the current limit.
    raise SkipFrame("interpreter-limit", "the digit limit for int to str is set")


@register_rule(sys.setrecursionlimit)
def _set_recursion_limit(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    # Compiled code needs more stack than the original calls. Only plain Python respects the new limit.
    raise SkipFrame("interpreter-limit", "the recursion limit is set")
