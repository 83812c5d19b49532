"""Variables for Python functions: external ones and those created while tracing."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from engine.bytecode.opcodes import docstring_of
from engine.frame_code.codegen_runtime.functions import make_function
from engine.ir.annotations import is_disabled
from engine.ir.guards.python_values import CodeMatch, IdMatch, LengthMatch
from engine.ir.sources.attributes import AttrSource, CellContentsSource
from engine.ir.sources.base import GlobalsNamespace, Source
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import ConstantSource
from engine.ir.unwrap_compiled import unwrap_compiled
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.frame import is_trusted_module
from engine.trace.graph_breaks.reasons import unknown_call_kind
from engine.trace.inline import bind_arguments, inline_call
from engine.trace.operators.arithmetic import fold_constant_call
from engine.trace.variables.base import (
    NONE,
    Args,
    AttributeDictVariable,
    ConstantVariable,
    Kwargs,
    NotPythonConstant,
    UserErrors,
    Variable,
    describe_attribute_writes,
    is_none,
    realize,
)
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import (
    DISABLE_DYNAMO_CODE,
    MARKED_FUNCTION_RULES,
    RULES_BY_CODE,
    find_rule,
)
from engine.trace.variables.callables.cells import CellVariable, build_cell
from engine.trace.variables.callables.methods import BoundMethodVariable, BuiltinMethodVariable
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import TupleVariable
from engine.trace.variables.nn_modules.optimizer_inlining import unwrap_disabled_optimizer_function
from engine.trace.variables.objects.instance_attributes import InstanceVariable
from engine.trace.variables.objects.instance_dicts import InstanceDictVariable
from engine.trace.variables.slotted_type import fresh, state
from engine.trace.variables.torch_api.trace_rules import can_constant_fold, is_in_graph_function, may_inline


class FunctionVariable(Variable):
    """Base class of Python functions: code, defaults and cells, as inlining needs them."""

    __slots__ = ()

    is_copied_by_reference = True
    code: types.CodeType
    namespace: GlobalsNamespace

    def describe(self) -> str:
        return f"function {self.code.co_name}"

    def defaults(self, tx: Tracer) -> list[Variable]:
        """Return the defaults of the last positional parameters."""
        raise NotImplementedError

    def keyword_defaults(self, tx: Tracer) -> dict[str, Variable]:
        """Return the defaults of keyword-only parameters."""
        raise NotImplementedError

    def cells(self, tx: Tracer) -> list[CellVariable]:
        """Return the cells in the order of ``co_freevars``."""
        raise NotImplementedError

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name == "__get__":
            return self if is_none(realize(tx, args[0])) else BoundMethodVariable(args[0], self)
        return super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return inline_call(tx, self, args, kwargs)


class UserFunctionVariable(InstanceVariable, FunctionVariable):
    """A Python function from outside the traced code, with the attributes set on it."""

    is_trusted: bool = state(False)

    def __post_init__(self) -> None:
        self.is_trusted = is_trusted_module(self.real_object.__module__)

    def describe(self) -> str:
        return ".".join(filter(None, (self.real_object.__module__, self.real_object.__qualname__)))

    def as_python_constant(self, tx: Tracer) -> Any:
        if self.is_trusted:
            return self.real_object
        raise NotPythonConstant(self)

    def hash_key(self, tx: Tracer) -> Any:
        if not self.is_trusted:
            tx.guard_identity(self.real_object, self._function_source, "it is a key of a dict or an element of a set")
        return self.real_object

    @property
    def _function_source(self) -> Source:
        assert self.source is not None
        return ConstantSource(self.real_object, self.real_object.__qualname__) if self.is_trusted else self.source

    def defaults(self, tx: Tracer) -> list[Variable]:
        defaults = self.real_object.__defaults__ or ()
        base = AttrSource(self._function_source, "__defaults__")
        if defaults and not self.is_trusted:
            why = "the number of its defaults decides which parameters have one"
            tx.guard(LengthMatch, base, len(defaults), why=why)
        return [self._default(tx, d, GetItemSource(base, n)) for n, d in enumerate(defaults)]

    def keyword_defaults(self, tx: Tracer) -> dict[str, Variable]:
        defaults = self.real_object.__kwdefaults__ or {}
        base = AttrSource(self._function_source, "__kwdefaults__")
        return {k: self._default(tx, d, GetItemSource(base, k)) for k, d in defaults.items()}

    def _default(self, tx: Tracer, real: Any, source: Source) -> Variable:
        return tx.make_lazy(real, ConstantSource(real, source.expr) if self.is_trusted else source)

    def cells(self, tx: Tracer) -> list[CellVariable]:
        return [
            build_cell(tx, cell, CellContentsSource(self._function_source, n, name))
            for n, (name, cell) in enumerate(
                zip(self.code.co_freevars, self.real_object.__closure__ or (), strict=True)
            )
        ]

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        direct, tx.call_stack.direct_callee = tx.call_stack.direct_callee is self, None
        rule = find_rule(self.real_object)
        if rule is not None:
            if kwargs or len(args) > self.code.co_argcount:
                bind_arguments(tx, self, args, kwargs)
            return rule(tx, args, kwargs)
        if can_constant_fold(self.real_object):
            return fold_constant_call(tx, self.real_object, args, kwargs)
        inner = unwrap_compiled(self.real_object)
        if inner is not self.real_object:
            original = realize(tx, tx.wrap(inner, ConstantSource(inner, getattr(inner, "__qualname__", "original"))))
            tx.call_stack.direct_callee = original if direct else None
            return original.call(tx, args, kwargs)
        by_code = RULES_BY_CODE.get(id(self.code))
        if by_code is not None:
            return by_code[1](tx, self, args, kwargs)
        is_off = is_disabled(self.real_object)
        if is_off or self.code is DISABLE_DYNAMO_CODE:
            inner = unwrap_disabled_optimizer_function(self.real_object)
            if inner is not None:
                return realize(tx, tx.wrap_static(inner)).call(tx, args, kwargs)
        if is_off:
            raise Unsupported("disabled", f"{self.describe()} is called")
        for is_marked, marked_rule in MARKED_FUNCTION_RULES:
            if is_marked(self.real_object):
                return marked_rule(tx, self, args, kwargs)
        if is_in_graph_function(self.real_object):
            try:
                return emit_node(tx, "call_function", self.real_object, args, kwargs)
            except Unsupported as error:
                # The graph cannot take an argument, but the function body may still be inlined.
                if error.kind != "unsupported-argument":
                    raise
        if not may_inline(self.real_object):
            raise Unsupported(unknown_call_kind(self.real_object), f"{self.describe()} is called")
        tx.call_stack.direct_callee = self if direct else None
        return super().call(tx, args, kwargs)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "__call__":
            return self
        if name == "__get__":
            return BuiltinMethodVariable(self, name)
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return tx.from_python(getattr(self.real_object, name))
        if name == "__code__":
            return ConstantVariable(self.code)
        if name == "__annotations__":  # Python 3.14 evaluates them at the first read
            with UserErrors(tx, Exception):
                annotations = self.real_object.__annotations__
            return tx.wrap(annotations, AttrSource(self._function_source, name))
        if name == "__dict__" and self.is_trusted and not self.real_object.__dict__:
            return DictVariable({})
        if name in ("__globals__", "__closure__"):
            raise self.unsupported_attribute("reading", name)
        if hasattr(self.real_object, name) and (hasattr(self.cls, name) or self.is_trusted) and name != "__dict__":
            return tx.wrap(getattr(self.real_object, name), AttrSource(self._function_source, name))
        return super().get_attr(tx, name)

    def generic_set_attr(self, tx: Tracer, name: str, value: Variable | None) -> None:
        if self.is_trusted or hasattr(self.cls, name):
            raise self.unsupported_attribute("setting", name)
        super().generic_set_attr(tx, name, value)

    def describe_mutation(self) -> str:
        return describe_attribute_writes(self.attr_writes)


class NestedUserFunctionVariable(AttributeDictVariable, FunctionVariable):
    """A function created while tracing: a closure, a lambda or a comprehension."""

    cls = types.FunctionType

    name: str
    default_values: list[Variable] = fresh(list)
    keyword_default_values: dict[str, Variable] = fresh(dict)
    cell_values: list[CellVariable] = fresh(list)
    annotations: dict[str, Variable] = fresh(dict)
    _annotations: Variable | None = state(None)
    annotate: Variable | None = state(None)
    """The function that returns the annotations, from Python 3.14 on."""

    is_mutable = True

    def defaults(self, tx: Tracer) -> list[Variable]:
        return self.default_values

    def keyword_defaults(self, tx: Tracer) -> dict[str, Variable]:
        return self.keyword_default_values

    def cells(self, tx: Tracer) -> list[CellVariable]:
        return self.cell_values

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in self.attributes:
            return self.attributes[name]
        getter = _FUNCTION_ATTRIBUTES.get(name)
        if getter is not None:
            return getter(tx, self)
        if not hasattr(types.FunctionType, name):
            tx.raise_error(AttributeError, f"'function' object has no attribute '{name}'")
        return super().get_attr(tx, name)

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        tx.side_effects.record_mutation(self)
        if name == "__name__":
            self.name = str(realize(tx, value).as_python_constant(tx))
            return
        if name == "__defaults__":
            self.default_values = [] if is_none(realize(tx, value)) else list(tx.unpack_iterable(value))
            return
        if name == "__annotate__" and name in vars(types.FunctionType):
            self.annotate = None if is_none(realize(tx, value)) else realize(tx, value)
            if self.annotate is not None:
                self._annotations, self.annotations = None, {}
            return
        if name in ("__kwdefaults__", "__annotations__"):
            entries = {} if is_none(realize(tx, value)) else tx.unpack_string_mapping(value)
            if name == "__annotations__":
                self._annotations = None if is_none(realize(tx, value)) else realize(tx, value)
                self.annotations = entries
                self.annotate = None
            else:
                self.keyword_default_values = entries
            return
        if name in ("__code__", "__dict__", "__closure__", "__globals__"):
            raise self.unsupported(f"setting {name}", "attribute-write")
        self.attributes[name] = value

    def del_attr(self, tx: Tracer, name: str) -> None:
        if name.startswith("__"):
            raise self.unsupported_attribute("deleting", name)
        if name not in self.attributes:
            tx.raise_error(AttributeError, f"'function' object has no attribute '{name}'")
        self.write_attr(tx, name, None)

    def annotation_dict(self, tx: Tracer) -> Variable:
        """Return ``f.__annotations__``: always one and the same mutable dict."""
        if self._annotations is None and self.annotate is not None:
            self._annotations = realize(tx, realize(tx, self.annotate).call(tx, [ConstantVariable(_VALUE_FORMAT)], {}))
        elif self._annotations is None:
            self._annotations = DictVariable.from_str_keys(self.annotations)
        return self._annotations

    def _annotation_variables(self) -> list[Variable]:
        if self._annotations is not None:
            return [self._annotations]
        return [*self.annotations.values(), *([] if self.annotate is None else [self.annotate])]

    def child_variables(self) -> list[Variable]:
        return [
            *self.default_values,
            *self.keyword_default_values.values(),
            *self.cell_values,
            *self.attributes.values(),
            *self._annotation_variables(),
        ]

    def reconstruct(self, cg: PyCodegen) -> None:
        if self._annotations is None and self.annotations:
            self._annotations = DictVariable.from_str_keys(self.annotations)
        cg.call(
            make_function,
            *(self.code, self.namespace.values, self.name, self.code.co_qualname),
            TupleVariable(self.default_values) if self.default_values else None,
            _dict_or_none(self.keyword_default_values),
            TupleVariable(list(self.cell_values)),
            _dict_or_none(self.attributes),
            self._annotations,
            self.annotate if self._annotations is None else None,
        )


_VALUE_FORMAT = 1
"""``annotationlib.Format.VALUE``: ``__annotate__`` returns the annotations themselves."""


_FUNCTION_ATTRIBUTES: dict[str, Callable[[Tracer, NestedUserFunctionVariable], Variable]] = {
    "__call__": lambda tx, of: of,
    "__get__": lambda tx, of: BuiltinMethodVariable(of, "__get__"),
    "__name__": lambda tx, of: ConstantVariable(of.name),
    "__qualname__": lambda tx, of: ConstantVariable(of.code.co_qualname),
    "__module__": lambda tx, of: ConstantVariable(of.namespace.name),
    "__doc__": lambda tx, of: ConstantVariable(docstring_of(of.code)),
    "__code__": lambda tx, of: ConstantVariable(of.code),
    "__annotations__": lambda tx, of: of.annotation_dict(tx),
    "__annotate__": lambda tx, of: NONE if of.annotate is None else of.annotate,
    "__dict__": InstanceDictVariable,
    "__defaults__": lambda tx, of: TupleVariable(list(of.default_values)) if of.default_values else NONE,
    "__kwdefaults__": lambda tx, of: _dict_or_none(of.keyword_default_values),
    "__closure__": lambda tx, of: TupleVariable(list(of.cell_values)) if of.cell_values else NONE,
    "__type_params__": lambda tx, of: tx.from_python(()),
}
for _name in ("__annotate__", "__type_params__"):
    if _name not in vars(types.FunctionType):  # in this version of Python
        del _FUNCTION_ATTRIBUTES[_name]


def _dict_or_none(entries: dict[str, Variable]) -> Variable:
    return DictVariable.from_str_keys(dict(entries)) if entries else NONE


@register_builder(types.FunctionType)
def _function(tx: Tracer, real: types.FunctionType, source: Source) -> Variable:
    namespace = GlobalsNamespace(real.__globals__, str(real.__globals__.get("__name__", "")))
    value = UserFunctionVariable(
        cls=types.FunctionType, source=source, real_object=real, code=real.__code__, namespace=namespace
    )
    if unwrap_compiled(real) is not real:
        tx.guard(IdMatch, source, real, why=f"the compiled function {real.__qualname__} was inlined")
    elif not value.is_trusted:
        why = f"the function {real.__qualname__} was inlined"
        tx.guard(CodeMatch, source, real.__code__, real.__globals__, why=why)
    elif not source.is_fixed:
        tx.guard(IdMatch, source, real, why=f"the function {real.__qualname__} was called")
    return value
