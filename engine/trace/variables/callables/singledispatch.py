"""functools.singledispatch in traced code."""

from __future__ import annotations

import functools
import inspect
import types
from dataclasses import dataclass
from typing import Any

from engine.ir.guards.python_values import DictKeysMatch, IdMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import ConstantSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.codegen_runtime.functions_and_classes import make_singledispatch
from engine.trace.exc import Unsupported
from engine.trace.variables.base import (
    NONE,
    Args,
    AttributeDictVariable,
    Kwargs,
    Variable,
    is_none,
    realize,
)
from engine.trace.variables.callable_registry import RULES_BY_CODE, register_rule
from engine.trace.variables.callables.functions import (
    UserFunctionVariable,
)
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import TupleVariable

_FUNCTION_NAME_ATTRS = ("__name__", "__qualname__", "__module__", "__doc__")


def _check_has_argument(tx: Tracer, name: str, args: Args) -> None:
    if not args:
        tx.raise_type_error(f"{name} requires at least 1 positional argument")


def _call_external_singledispatch(tx: Tracer, of: UserFunctionVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Call an external singledispatch function; guard on its registry.

    The implementation depends on the class of the first argument and on the registered classes.
    """
    real: Any = of.real_object
    _check_has_argument(tx, real.__name__, args)
    registered = inspect.getclosurevars(real.dispatch).nonlocals["registry"]
    known = tx.objects.variables_by_id.get(id(registered))
    if known is not None and id(known[0]) in tx.side_effects.mutated_variables:
        raise Unsupported("singledispatch", f"{of.describe()} is called; traced code registered implementations on it")
    cls = realize(tx, args[0]).python_type()
    chosen = real.dispatch(cls)
    assert of.source is not None
    registry = AttrSource(of.source, "registry")
    why = f"its implementation for {cls.__name__} was looked up"
    tx.guard(DictKeysMatch, registry, tuple(real.registry), why=why)
    found = next(k for k, v in real.registry.items() if v is chosen)
    tx.guard(IdMatch, GetItemSource(registry, found), chosen, why=why)
    return tx.wrap(chosen, ConstantSource(chosen, chosen.__qualname__)).call(tx, args, kwargs)


_SINGLEDISPATCH_CODE = functools.singledispatch(len).__code__  # type: ignore[attr-defined]
RULES_BY_CODE[id(_SINGLEDISPATCH_CODE)] = (_SINGLEDISPATCH_CODE, _call_external_singledispatch)


class SingleDispatchVariable(AttributeDictVariable):
    """``functools.singledispatch(function)`` created while tracing.

    ``registry`` maps classes to implementations, ``object`` first.
    """

    __slots__ = ("attributes", "registry")
    cls = types.FunctionType

    is_mutable = True

    def __init__(self, function: Variable) -> None:
        self.registry: dict[Any, Variable] = {object: function}
        self.attributes: dict[str, Variable] = {}

    def _find_implementation(self, cls: Any) -> Variable:
        found = self.registry.get(cls)
        return vars(functools)["_find_impl"](cls, self.registry) if found is None else found

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        name = realize(tx, self.get_attr(tx, "__name__")).as_python_constant(tx)
        _check_has_argument(tx, name, args)
        return realize(tx, self._find_implementation(realize(tx, args[0]).python_type())).call(tx, args, kwargs)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in self.attributes:
            return self.attributes[name]
        if name in ("register", "dispatch"):
            return BuiltinMethodVariable(self, name)
        if name == "__wrapped__":
            return self.registry[object]
        if name in _FUNCTION_NAME_ATTRS:
            return realize(tx, self.registry[object]).get_attr(tx, name)
        if name == "registry":
            raise self.unsupported("reading the registry", "singledispatch")
        return super().get_attr(tx, name)

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        self.write_attr(tx, name, value)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name == "dispatch":
            return self._find_implementation(_dispatch_class(tx, args[0]))
        if name == "register":
            given = dict(zip(("cls", "func"), args, strict=False)) | kwargs
            return self._register(tx, realize(tx, given["cls"]), realize(tx, given.get("func", NONE)))
        return super().call_method(tx, name, args, kwargs)

    def _register(self, tx: Tracer, cls: Variable, function: Variable) -> Variable:
        if not is_none(function):
            tx.side_effects.record_mutation(self)
            self.registry[_dispatch_class(tx, cls)] = function
            return function
        if cls.as_class() is None and not cls.lacks_methods("__call__"):
            return self._register(tx, _annotated_class(tx, cls), cls)
        return _RegisterDecoratorVariable(self, cls)

    def child_variables(self) -> list[Variable]:
        return [*self.registry.values(), *self.attributes.values()]

    def reconstruct(self, cg: PyCodegen) -> None:
        implementations = TupleVariable(list(self.registry.values()))
        cg.call(make_singledispatch, tuple(self.registry), implementations, DictVariable.from_str_keys(self.attributes))


@dataclass(frozen=True, eq=False)
class _RegisterDecoratorVariable(Variable):
    """The decorator that ``dispatcher.register(cls)`` returns."""

    __slots__ = ("dispatcher", "registered_class")
    dispatcher: SingleDispatchVariable
    registered_class: Variable
    cls = types.FunctionType

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return self.dispatcher.call_method(tx, "register", [self.registered_class, *args], kwargs)


def _dispatch_class(tx: Tracer, value: Variable) -> Any:
    found = realize(tx, value)
    if found.as_class() is None:
        raise Unsupported("singledispatch", f"singledispatch on {found.describe()}")
    return found.as_class()


def _annotated_class(tx: Tracer, function: Variable) -> Variable:
    """Return the class that annotates the first parameter of an implementation."""
    annotations = tx.unpack_string_mapping(realize(tx, function.get_attr(tx, "__annotations__")))
    found = realize(tx, next(iter(annotations.values()), NONE))
    if found.as_class() is None:
        raise Unsupported("singledispatch", f"singledispatch on the annotations of {function.describe()}")
    return found


@register_rule(functools.singledispatch)
def _singledispatch(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return SingleDispatchVariable(realize(tx, args[0] if args else kwargs["func"]))
