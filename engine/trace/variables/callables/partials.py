"""Variable for functools.partial and its subclasses, external or created while tracing."""

from __future__ import annotations

import builtins
import functools
from typing import Any

from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, full_type_name, is_none, realize
from engine.trace.variables.builder import register_builder_if
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.objects.class_lookup import find_in_class
from engine.trace.variables.objects.constructor_registry import C_CLASS_CONSTRUCTORS
from engine.trace.variables.objects.instance_dicts import has_string_keys
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable
from engine.trace.variables.stdlib.string_format import FormatProxy, format_proxy


def _partial_base_of(cls: builtins.type) -> Any:
    """Return the C ``partial`` class among the bases of ``cls``; None for any other class."""
    return functools.partial if issubclass(cls, functools.partial) else None


class FunctoolsPartialVariable(UserDefinedObjectVariable):
    """A ``functools.partial``: the wrapped function and its bound arguments."""

    __slots__ = ("_in_repr", "function", "keywords", "positional")

    def __init__(
        self,
        function: Variable,
        positional: TupleVariable,
        keywords: DictVariable,
        cls: builtins.type = functools.partial,
        origin: Source | None = None,
        held: Any = NotImplemented,
    ) -> None:
        super().__init__(cls, origin, held)
        self.function = function
        self.positional = positional
        self.keywords = keywords
        self._in_repr = False

    @property
    def keyword_arguments(self) -> Kwargs:
        """The keyword arguments by name."""
        return {str(k): v for k, (_, v) in self.keywords.entries.items()}

    def describe(self) -> str:
        return self.cls.__name__

    def lookup_special_method(self, tx: Tracer, name: str) -> Variable | None:
        return (
            BuiltinMethodVariable(self, name)
            if self._is_defined_in_c(name)
            else super().lookup_special_method(tx, name)
        )

    def _is_defined_in_c(self, name: str) -> bool:
        found = find_in_class(self.cls, name)
        return found is not None and found[0] is _partial_base_of(self.cls)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "__dict__" or not self._is_defined_in_c(name):
            return super().get_attr(tx, name)
        match name:
            case "func":
                return self.function
            case "args":
                return self.positional
            case "keywords":
                return self.keywords
        return (
            BuiltinMethodVariable(self, name)
            if callable(getattr(self.cls, name))
            else tx.fold_constant(getattr, self.cls, name)
        )

    def has_generic_setattr(self, base: builtins.type) -> bool:
        return base is _partial_base_of(self.cls)

    def del_attr(self, tx: Tracer, name: str) -> None:
        if name == "__dict__":
            tx.raise_type_error("cannot delete __dict__")
        super().del_attr(tx, name)

    def generic_set_attr(self, tx: Tracer, name: str, value: Variable | None) -> None:
        if name in ("func", "args", "keywords"):
            tx.raise_error(AttributeError, "readonly attribute")
        super().generic_set_attr(tx, name, value)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        is_c_method = self._is_defined_in_c(name) and callable(getattr(self.cls, name))
        if name.startswith("object.") or is_c_method:
            return self.call_builtin_method(tx, name, args, kwargs)
        return realize(tx, self.get_attr(tx, name)).call(tx, args, kwargs)

    def call_c_method(self, tx: Tracer, owner: builtins.type, name: str, args: Args, kwargs: Kwargs) -> Variable | None:
        if owner is object:
            return super().call_c_method(tx, owner, name, args, kwargs)
        return self.call_builtin_method(tx, name, [realize(tx, a) for a in args], kwargs)

    def call_builtin_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        """Call a method of the C class."""
        match name:
            case "__call__":
                return self.call_partial(tx, args, kwargs)
            case "__repr__":
                return ConstantVariable(self._repr(tx))
            case "__reduce__":
                return self._reduce(tx)
            case "__setstate__" if len(args) == 1:
                return self._set_state(tx, realize(tx, args[0]))
        return super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        if not self._is_defined_in_c("__call__"):
            return super().call(tx, args, kwargs)
        return self.call_partial(tx, args, kwargs)

    def call_partial(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        """Call the wrapped function with the bound arguments and the given ones."""
        function = realize(tx, self.function)
        if tx.call_stack.direct_callee is self:
            tx.call_stack.direct_callee = function
        if any(realize(tx, key).python_type() is not str for key, _ in self.keywords.entries.values()):
            tx.raise_type_error("keywords must be strings")
        return function.call(tx, [*self.positional.items, *args], {**self.keyword_arguments, **kwargs})

    def _repr(self, tx: Tracer) -> str:
        real: Any = functools.partial(_FunctionReprPlaceholder(tx, self.function))
        name = f"functools.{self.cls.__name__}" if _partial_base_of(self.cls) is self.cls else full_type_name(self.cls)
        if self._in_repr:
            return "..."
        self._in_repr = True
        try:
            args = tuple(format_proxy(tx, item) for item in self.positional.items)
            words = {format_proxy(tx, k): format_proxy(tx, v) for k, v in self.keywords.entries.values()}
            real.__setstate__((real.func, args, words, None))
            return name + repr(real).removeprefix("functools.partial")
        finally:
            self._in_repr = False

    def _state_dict(self, tx: Tracer) -> Variable:
        own = self.current_attributes(tx)
        return DictVariable(dict(own)) if own else NONE

    def _reduce(self, tx: Tracer) -> Variable:
        state = TupleVariable([self.function, self.positional, self.keywords, self._state_dict(tx)])
        return TupleVariable([tx.wrap_static(self.cls), TupleVariable([self.function]), state])

    def _set_state(self, tx: Tracer, state: Variable) -> Variable:
        parts = [realize(tx, i) for i in sequence_items(tx, state)] if issubclass(state.python_type(), tuple) else []
        function, args, words, attributes = parts if len(parts) == 4 else [NONE] * 4
        fits = not function.lacks_methods("__call__") and issubclass(args.python_type(), tuple)
        if not fits or not (is_none(words) or issubclass(words.python_type(), dict)):
            tx.raise_type_error("invalid partial state")
        if self.source is not None:
            raise self.unsupported("__setstate__ of a partial created outside the function", "unsupported-method")
        tx.side_effects.record_mutation(self)
        self.function = function
        self.positional = (
            args if type(args) is TupleVariable and args.cls is tuple else TupleVariable(_builtin_items(args, tx))
        )
        self.keywords = DictVariable({}) if is_none(words) else _as_plain_dict(words)
        for name in self.current_attributes(tx):
            self.write_attr(tx, name, None)
        for key, value in [] if is_none(attributes) else tx.unpack_string_mapping(attributes).items():
            self.write_attr(tx, key, value)
        return NONE

    def child_variables(self) -> list[Variable]:
        return [self.function, self.positional, self.keywords, *super().child_variables()]

    def reconstruct(self, cg: PyCodegen) -> None:
        if cg.is_cyclic(self) or not has_string_keys(self.keywords):
            raise Unsupported(
                "rebuild-value",
                "rebuilding a partial function that contains itself, or has unusual keywords, after the graph",
            )
        base = functools.partial if issubclass(self.cls, functools.partial) else _partial_base_of(self.cls)
        cg.call(base.__new__, self.cls, self.function, *self.positional.items, **self.keyword_arguments)
        cg.body.emit("COPY", 1)
        self.fill(cg)


class _FunctionReprPlaceholder(FormatProxy):
    """Placeholder for the wrapped function while the ``repr`` is built."""

    def __call__(self) -> None:
        raise TypeError


def _builtin_items(value: Variable, tx: Tracer) -> Args:
    return list(sequence_items(tx, value.builtin_contents))


def _as_plain_dict(value: Variable) -> DictVariable:
    inner = value.builtin_contents
    if not isinstance(inner, DictVariable):
        raise value.unsupported("using it as keyword arguments", "builtin-arguments")
    return inner if inner.cls is dict and inner is value else DictVariable(dict(inner.entries))


def make_partial(
    function: Variable, args: Args, kwargs: Kwargs, cls: builtins.type = functools.partial
) -> FunctoolsPartialVariable:
    """Create a new partial."""
    words = DictVariable({name: (ConstantVariable(name), value) for name, value in kwargs.items()})
    return FunctoolsPartialVariable(function, TupleVariable(list(args)), words, cls)


def _construct_partial(tx: Tracer, cls: Any, args: Args, kwargs: Kwargs) -> Variable:
    if not args:
        tx.raise_type_error("type 'partial' takes at least one argument")
    inner = realize(tx, args[0])
    if inner.lacks_methods("__call__"):
        tx.raise_type_error("the first argument must be callable")
    # A partial of a partial is flattened, unless the inner one has attributes.
    if (
        type(inner) is FunctoolsPartialVariable
        and _partial_base_of(inner.cls) is _partial_base_of(cls)
        and not inner.current_attributes(tx)
    ):
        inner_words = {**inner.keyword_arguments, **kwargs}
        return make_partial(inner.function, [*inner.positional.items, *args[1:]], inner_words, cls)
    return make_partial(inner, list(args[1:]), kwargs, cls)


C_CLASS_CONSTRUCTORS[functools.partial] = _construct_partial


@register_rule(functools.partial.__new__)
def _new(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    cls = realize(tx, args[0]) if args else NONE
    if cls.as_class() is None or _partial_base_of(cls.as_class()) is None:
        raise Unsupported("builtin-arguments", "partial.__new__ is called")
    return _construct_partial(tx, cls.as_class(), args[1:], kwargs)


def _is_partial(real: Any) -> bool:
    return _partial_base_of(type(real)) is not None


@register_builder_if(20, _is_partial)
def _partial(tx: Tracer, real: functools.partial[Any], origin: Source) -> Variable:
    tx.guard_type(real, origin, "it was called")
    args: Any = tx.wrap(real.args, AttrSource(origin, "args"))
    kwargs: Any = tx.wrap(real.keywords, AttrSource(origin, "keywords"))
    return FunctoolsPartialVariable(
        tx.wrap(real.func, AttrSource(origin, "func")), args, kwargs, type(real), origin, real
    )
