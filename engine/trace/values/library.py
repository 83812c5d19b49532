"""Rules for the standard library: what is read or run while tracing rather than looked into."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.origin import MISSING, ConstantSource, DictGetSource, Source
from engine.ir.value_guard import EqualsMatch, IdMatch
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, ConstantVariable, RealObjectVariable, Variable, is_none, realize
from engine.trace.values.classes import ClassVariable
from engine.trace.values.functions import NestedUserFunctionVariable, UserFunctionVariable
from engine.trace.values.mappings import DictVariable
from engine.trace.values.methods import BoundMethodVariable, BuiltinMethodVariable
from engine.trace.values.rules import register_rule
from engine.trace.values.sequences import ListVariable, TupleVariable
from engine.trace.values.wrap import is_literal, register_builder

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Variable]
Kwargs = dict[str, Variable]


class OsEnvironVariable(RealObjectVariable):
    """``os.environ``: each variable read is guarded."""

    def _read(self, tx: Tracer, key: Variable) -> str | None:
        name = key.as_python_constant(tx)
        origin = DictGetSource(ConstantSource(os.environ, "os.environ"), name)
        found = os.environ.get(name)
        cause = tx.guard_cause("an environment variable decided what was traced")
        tx.add_guard(
            IdMatch(origin, MISSING, cause=cause) if found is None else EqualsMatch(origin, found, cause=cause)
        )
        return found

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        found = self._read(tx, key)
        if found is None:
            raise tx.make_user_exception(KeyError(key.as_python_constant(tx)))
        return ConstantVariable(found)

    def contains(self, tx: Tracer, item: Variable) -> bool:
        return self._read(tx, item) is not None

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return BuiltinMethodVariable(self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name != "get":
            raise self.unsupported(f"the method {name!r}")
        found = self._read(tx, realize(tx, args[0]))
        if found is not None:
            return ConstantVariable(found)
        return args[1] if len(args) > 1 else kwargs.get("default", NONE)


@register_builder(type(os.environ))
def _environment(tx: Tracer, real: Any, origin: Source) -> Variable:
    return OsEnvironVariable(real, origin)


@register_rule(os.fspath)
def _fspath(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0])
    if isinstance(of, ConstantVariable):
        return tx.fold_constant(os.fspath, of.value)
    if not hasattr(of.python_type(), "__fspath__"):
        tx.raise_type_error(f"expected str, bytes or os.PathLike object, not {of.python_type().__name__}")
    return realize(tx, of.get_attr(tx, "__fspath__")).call(tx, [], {})


@register_rule(os.getenv)
def _getenv(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return OsEnvironVariable(os.environ, ConstantSource(os.environ, "os.environ")).call_method(tx, "get", args, kwargs)


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
        try:
            return tx.wrap_static(inspect.signature(of.real_object), "signature")
        except (TypeError, ValueError) as error:  # one that C code makes tells nothing
            raise tx.make_user_exception(error) from error
    raise Unsupported("unknown-call", f"inspect.signature() of {of.describe()}")


def _function_with_same_signature(tx: Tracer, of: NestedUserFunctionVariable) -> types.FunctionType:
    """A function with the same parameters as one that the traced code made."""
    if of.annotations:
        raise Unsupported("unknown-call", "inspect.signature() of a function made with annotations")
    cells = tuple(types.CellType() for _ in of.code.co_freevars)
    made = types.FunctionType(of.code, {}, of.name, tuple(tx.as_python_constants(of.default_values)) or None, cells)
    words = of.keyword_default_values
    made.__kwdefaults__ = dict(zip(words, tx.as_python_constants(words.values()), strict=True)) or None
    return made


def _introspection_rule(function: Callable[..., Any]) -> Callable[[Tracer, Args, Kwargs], Variable]:
    """A question about how a function, class or module is annotated, answered at once."""

    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        of = realize(tx, args[0]) if args else NONE
        real = of.as_python_object()
        is_method = isinstance(of, BoundMethodVariable) and isinstance(of.function, UserFunctionVariable)
        if is_method:
            real = types.MethodType(of.function.real_object, object())  # type: ignore[attr-defined]
        if not isinstance(real, (types.FunctionType, types.MethodType, type, types.ModuleType)) or len(args) > 1:
            raise Unsupported("unknown-call", f"{function.__name__}() of {of.describe()}")
        try:
            found = function(real, **dict(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True)))
        except (NameError, TypeError, ValueError) as error:
            raise tx.make_user_exception(error) from error
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


@register_rule(dataclasses.is_dataclass)
def _is_dataclass(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0])
    cls = of.as_python_object() if isinstance(of.as_python_object(), type) else of.python_type()
    return ConstantVariable(dataclasses.is_dataclass(cls))


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


@register_rule(typing.cast)
def _cast(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return args[1]


for _family in (
    "copying",
    "descriptors",
    "dispatching",
    "global_names",
    "identity",
    "iteration",
    "made_classes",
    "made_mappings",
    "mapping_proxies",
    "namespaces",
    "partials",
    "patterns",
    "random_numbers",
    "references",
    "reports",
    "thread_data",
):
    importlib.import_module(f"engine.trace.values.{_family}")  # each fills in its part of the tables
