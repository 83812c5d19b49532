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

from engine.ir.origin import MISSING, Entry, Fixed, Origin
from engine.ir.value_guard import Equals, IsObject
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, HeldValue, Value, force, is_none
from engine.trace.values.classes import ClassValue
from engine.trace.values.functions import MadeFunction, RealFunction
from engine.trace.values.mappings import DictValue
from engine.trace.values.methods import BoundMethod, MethodOf
from engine.trace.values.rules import special
from engine.trace.values.sequences import ListValue, TupleValue
from engine.trace.values.wrap import is_literal, wraps

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


class EnvironmentValue(HeldValue):
    """``os.environ``: each variable read is guarded."""

    def _read(self, tx: Tracer, key: Value) -> str | None:
        name = key.python(tx)
        origin = Entry(Fixed(os.environ, "os.environ"), name)
        found = os.environ.get(name)
        cause = tx.cause("an environment variable decided what was traced")
        tx.guard(IsObject(origin, MISSING, cause=cause) if found is None else Equals(origin, found, cause=cause))
        return found

    def get_item(self, tx: Tracer, key: Value) -> Value:
        found = self._read(tx, key)
        if found is None:
            raise tx.user_exception(KeyError(key.python(tx)))
        return Const(found)

    def contains(self, tx: Tracer, item: Value) -> bool:
        return self._read(tx, item) is not None

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return MethodOf(self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        if name != "get":
            raise self.refuse(f"the method {name!r}")
        found = self._read(tx, force(tx, args[0]))
        if found is not None:
            return Const(found)
        return args[1] if len(args) > 1 else kwargs.get("default", NONE)


@wraps(type(os.environ))
def _environment(tx: Tracer, real: Any, origin: Origin) -> Value:
    return EnvironmentValue(real, origin)


@special(os.fspath)
def _fspath(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, Const):
        return tx.fold(os.fspath, of.value)
    if not hasattr(of.type(), "__fspath__"):
        tx.raise_type_error(f"expected str, bytes or os.PathLike object, not {of.type().__name__}")
    return force(tx, of.get_attr(tx, "__fspath__")).call(tx, [], {})


@special(os.getenv)
def _getenv(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return EnvironmentValue(os.environ, Fixed(os.environ, "os.environ")).call_method(tx, "get", args, kwargs)


@special(inspect.signature)
def _signature(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, RealFunction):
        return tx.fixed(inspect.signature(of.held), "signature")
    if isinstance(of, BoundMethod) and isinstance(of.function, RealFunction):
        return tx.fixed(inspect.signature(types.MethodType(of.function.held, object())), "signature")
    if isinstance(of, MadeFunction):
        return tx.fixed(inspect.signature(_twin(tx, of)), "signature")
    if isinstance(of, ClassValue) and len(args) == 1 and not kwargs:
        try:
            return tx.fixed(inspect.signature(of.held), "signature")
        except (TypeError, ValueError) as error:  # one that C code makes tells nothing
            raise tx.user_exception(error) from error
    raise Unsupported("unknown-call", f"inspect.signature() of {of.describe()}")


def _twin(tx: Tracer, of: MadeFunction) -> types.FunctionType:
    """A function with the same parameters as one that the traced code made."""
    if of.annotations:
        raise Unsupported("unknown-call", "inspect.signature() of a function made with annotations")
    cells = tuple(types.CellType() for _ in of.code.co_freevars)
    made = types.FunctionType(of.code, {}, of.name, tuple(tx.constants(of.default_values)) or None, cells)
    words = of.keyword_default_values
    made.__kwdefaults__ = dict(zip(words, tx.constants(words.values()), strict=True)) or None
    return made


def _described(function: Callable[..., Any]) -> Callable[[Tracer, Args, Words], Value]:
    """A question about how a function, class or module is annotated, answered at once."""

    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        of = force(tx, args[0]) if args else NONE
        real = of.real()
        is_method = isinstance(of, BoundMethod) and isinstance(of.function, RealFunction)
        if is_method:
            real = types.MethodType(of.function.held, object())  # type: ignore[attr-defined]
        if not isinstance(real, (types.FunctionType, types.MethodType, type, types.ModuleType)) or len(args) > 1:
            raise Unsupported("unknown-call", f"{function.__name__}() of {of.describe()}")
        try:
            found = function(real, **dict(zip(kwargs, tx.constants(kwargs.values()), strict=True)))
        except (NameError, TypeError, ValueError) as error:
            raise tx.user_exception(error) from error
        return _told(tx, found)

    return rule


def _told(tx: Tracer, found: Any) -> Value:
    if type(found) is dict:
        return DictValue({name: (Const(name), _told(tx, item)) for name, item in found.items()})
    if isinstance(found, tuple):
        return TupleValue([_told(tx, item) for item in found], type(found))
    if isinstance(found, list):
        return ListValue([_told(tx, item) for item in found])
    return Const(found) if is_literal(found) else tx.fixed(found, str(found))


for _question in (inspect.get_annotations, inspect.getfullargspec, typing.get_type_hints):
    special(_question)(_described(_question))


@special(dataclasses.fields)
def _fields(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    cls = of.real() if isinstance(of.real(), type) else of.type()
    return TupleValue([tx.fixed(f, f.name) for f in dataclasses.fields(cls)])


@special(dataclasses.is_dataclass)
def _is_dataclass(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    cls = of.real() if isinstance(of.real(), type) else of.type()
    return Const(dataclasses.is_dataclass(cls))


@special(torch.jit.annotate)
def _annotate(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return args[1]


@special(vars(torch.jit)["_unwrap_optional"])
def _unwrap_optional(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if is_none(force(tx, args[0])):
        tx.raise_error(AssertionError, "Unwrapping null optional")
    return args[0]


@special(torch.fx.node.map_aggregate)
def _map_aggregate(tx: Tracer, args: Args, kwargs: Words) -> Value:
    given = dict(zip(("a", "fn"), args, strict=False)) | kwargs
    return _aggregated(tx, force(tx, given["a"]), force(tx, given["fn"]))


def _aggregated(tx: Tracer, of: Value, fn: Value) -> Value:
    if isinstance(of, TupleValue):
        items = [_aggregated(tx, force(tx, i), fn) for i in of.items]
        return TupleValue(items, of.cls if of.is_named() else tuple)
    if isinstance(of, ListValue) and of.cls is list:
        made = ListValue([_aggregated(tx, force(tx, i), fn) for i in of.items])
        return force(tx, tx.fixed(torch.fx.immutable_collections.immutable_list).call(tx, [made], {}))
    if isinstance(of, DictValue) and of.cls is dict:
        held = DictValue({k: (key, _aggregated(tx, force(tx, v), fn)) for k, (key, v) in of.entries.items()})
        return force(tx, tx.fixed(torch.fx.immutable_collections.immutable_dict).call(tx, [held], {}))
    return force(tx, fn.call(tx, [of], {}))


@special(torch.overrides.get_default_nowrap_functions)
def _not_wrapped(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return tx.fixed(torch.overrides.get_default_nowrap_functions())


@special(typing.cast)
def _cast(tx: Tracer, args: Args, kwargs: Words) -> Value:
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
