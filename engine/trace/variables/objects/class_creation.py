"""Classes and descriptors that traced code creates.

A real stand-in, built at trace time, answers attribute reads. Each compiled call creates its own class.
"""

from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import enum
import functools
import operator
import types
import typing
from collections.abc import Callable
from typing import Any, cast

from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.codegen_runtime.functions_and_classes import build_class
from engine.trace.exc import TracerException, Unsupported, UserException
from engine.trace.frame import is_trusted_module
from engine.trace.inline import run_class_body
from engine.trace.variables.base import (
    Args,
    ConstantVariable,
    Kwargs,
    NotPythonConstant,
    UserErrors,
    Variable,
    is_none,
    realize,
)
from engine.trace.variables.builder import is_literal
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.builtin_functions import BuiltinVariable
from engine.trace.variables.callables.cells import CellVariable
from engine.trace.variables.callables.descriptors import DescriptorVariable, has_binding_rule
from engine.trace.variables.callables.functions import NestedUserFunctionVariable
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.callables.partials import make_partial
from engine.trace.variables.callables.reconstruct_calls import CallExpressionVariable, emit_store_attributes
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.objects.class_lookup import (
    ABSTRACT_CLASS_FLAG,
    find_in_class,
)
from engine.trace.variables.objects.classes import ClassVariable
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

ANNOTATION_VALUE, ANNOTATION_FORWARD_REFERENCE = 1, 3
"""Two members of ``annotationlib.Format``, which Python has from 3.14 on."""


class _StandIn:
    """Placeholder inside a stand-in class for a value without a plain Python object."""


def real_stand_in(tx: Tracer, value: Variable) -> Any:
    """Return a real object that represents ``value`` inside a stand-in class.

    Reading it through the tracer returns ``value`` again.
    """
    return _stand_in(realize(tx, value), tx)


@functools.singledispatch
def _stand_in(value: Variable, tx: Tracer) -> Any:
    real = value.as_python_object()
    return _dummy_instance(tx, value) if real is NotImplemented or value.source is None else real


@_stand_in.register(ConstantVariable)
@_stand_in.register(ClassVariable)
@_stand_in.register(BuiltinVariable)
def _real_object(value: Variable, tx: Tracer) -> Any:
    return value.as_python_object()


@_stand_in.register(TupleVariable)
def _constant_tuple(value: TupleVariable, tx: Tracer) -> Any:
    return value.as_python_constant(tx) if tx.is_python_constant(value) else _dummy_instance(tx, value)


def _dummy_instance(tx: Tracer, value: Variable) -> Any:
    made: Any = _StandIn()
    if type(value) is UserDefinedObjectVariable and not value.cls.__flags__ & ABSTRACT_CLASS_FLAG:
        made = object.__new__(value.cls)
    tx.objects.variables_by_id[id(made)] = (value, made)
    return made


@_stand_in.register(NestedUserFunctionVariable)
def _stub_function(function: NestedUserFunctionVariable, tx: Tracer) -> Any:
    """Create a function that looks like a traced one; a call of it raises Unsupported."""
    if function.stub is not None:
        return function.stub

    def stub(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported("class-creation", f"{function.code.co_qualname} is called while a class is created")

    try:
        annotations = {name: real_stand_in(tx, v) for name, v in function.annotations.items()}
    except NotPythonConstant:
        annotations = {}
    annotate = None if function.annotate is None else _annotate_stand_in(tx, realize(tx, function.annotate))
    stub.__name__ = function.name
    stub.__qualname__ = function.code.co_qualname
    stub.__module__ = function.namespace.name
    if annotate is None:
        stub.__annotations__ = annotations
    else:
        vars_of_stub: Any = stub
        vars_of_stub.__annotate__ = annotate
    doc = realize(tx, function.get_attr(tx, "__doc__"))
    stub.__doc__ = doc.constant if doc.is_constant else None
    for name, value in function.attributes.items():
        setattr(stub, name, real_stand_in(tx, value))
    tx.objects.variables_by_id[id(stub)] = (function, stub)
    function.stub = stub
    return stub


def _annotate_stand_in(tx: Tracer, function: Variable) -> Callable[[int], dict[str, Any]]:
    """Return an ``__annotate__`` that traces the one of a traced function or class.

    It gives values where forward references are allowed: both are equal if every name has a value.
    """

    def annotate(format: int, /) -> dict[str, Any]:
        given = ConstantVariable(ANNOTATION_VALUE if format == ANNOTATION_FORWARD_REFERENCE else format)
        try:
            found = tx.unpack_string_mapping(function.call(tx, [given], {}))
        except UserException as error:
            raise Unsupported("class-creation", "annotations cannot be evaluated yet") from error
        return {name: real_stand_in(tx, value) for name, value in found.items()}

    return annotate


class NewDescriptorVariable(DescriptorVariable):
    """A property, classmethod, staticmethod, cached_property or dataclass field.

    Traced code created it. ``real_object`` is its stand-in, built from the stand-ins of its arguments.
    """

    __slots__ = ("args", "kwargs")

    def __init__(self, real_object: Any, args: Args, kwargs: Kwargs) -> None:
        super().__init__(real_object, None)
        self.args = args
        self.kwargs = kwargs

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if not hasattr(self.real_object, name):
            return super().get_attr(tx, name)
        if name not in _DESCRIPTOR_METHODS:
            return realize(tx, tx.wrap_static(getattr(self.real_object, name), name))
        if not has_binding_rule(self.real_object):
            raise self.unsupported_attribute("reading", name)
        return BuiltinMethodVariable(self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name not in _ACCESSOR_DECORATORS or not hasattr(self.real_object, name):
            return super().call_method(tx, name, args, kwargs)
        parts: list[Any] = [self.real_object.fget, self.real_object.fset, self.real_object.fdel]
        parts[_ACCESSOR_DECORATORS.index(name)] = real_stand_in(tx, args[0])
        return NewDescriptorVariable(property(*parts), [tx.from_python(p) for p in parts], {})

    def child_variables(self) -> list[Variable]:
        return [*self.args, *self.kwargs.values()]

    def reconstruct(self, cg: PyCodegen) -> None:
        cls = self.python_type()
        cg.call(dataclasses.field if cls is dataclasses.Field else cls, *self.args, **self.kwargs)


_ACCESSOR_DECORATORS = ("getter", "setter", "deleter")
_DESCRIPTOR_METHODS = (*_ACCESSOR_DECORATORS, "__get__", "__set__", "__delete__", "__set_name__")


@_stand_in.register(NewDescriptorVariable)
def _descriptor_stand_in(value: NewDescriptorVariable, tx: Tracer) -> Any:
    return value.real_object


def _descriptor_rule(cls: Any) -> Callable[[Tracer, Args, Kwargs], Variable]:
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        for value in (*args, *kwargs.values()):
            forced = realize(tx, value)
            is_known = (
                forced.is_constant or forced.is_copied_by_reference or forced.python_type() in _DESCRIPTOR_CLASSES
            )
            if not is_known and not tx.is_python_constant(forced):
                raise Unsupported("class-creation", f"{cls.__name__}() of {forced.describe()}")
        real = [real_stand_in(tx, a) for a in args]
        words = {name: real_stand_in(tx, v) for name, v in kwargs.items()}
        with UserErrors(tx, TypeError, ValueError):
            held = cls(*real, **words)
        made = NewDescriptorVariable(held, list(args), dict(kwargs))
        tx.objects.variables_by_id[id(held)] = (made, held)
        return made

    return rule


_DESCRIPTOR_CLASSES: tuple[Any, ...] = (
    property,
    classmethod,
    staticmethod,
    functools.cached_property,
    functools.partialmethod,
    abc.abstractproperty,
    dataclasses.Field,
)
for _cls in (*_DESCRIPTOR_CLASSES[:-1], dataclasses.field):
    register_rule(_cls)(_descriptor_rule(_cls))


class NewClassVariable(ClassVariable):
    """A class created while tracing.

    ``construction_call`` creates it in generated code; ``later_steps`` are the changes since then.
    """

    __slots__ = ("class_cell", "construction_call", "entries", "later_steps")

    is_mutable = True

    def __init__(self, held: type, recipe: Variable, cell: CellVariable | None) -> None:
        super().__init__(held, None)
        self.construction_call = recipe
        self.class_cell = cell
        self.later_steps: list[tuple[str, Variable]] = []
        self.entries: dict[str, tuple[Any, Variable]] = {}
        """Class entries from the body and later steps, as (stand-in entry, variable)."""

    def as_python_constant(self, tx: Tracer) -> Any:
        return self.real_object

    def traced_entry(self, name: str, entry: Any) -> Variable | None:
        """Return the variable behind an entry of the class; None if binding it finds out.

        ``entry`` is the entry in the real stand-in class.
        """
        known = self.entries.get(name)
        if known is not None and known[0] is entry and not hasattr(type(entry), "__get__"):
            return known[1]
        return ConstantVariable(entry) if is_literal(entry) else None

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        tx.side_effects.record_mutation(self)
        with UserErrors(tx, TypeError, AttributeError):
            entry = real_stand_in(tx, value)
            type.__setattr__(self.real_object, name, entry)
        self.entries[name] = entry, value
        self.later_steps.append((name, value))

    def del_attr(self, tx: Tracer, name: str) -> None:
        raise self.unsupported_attribute("deleting", name)

    def child_variables(self) -> list[Variable]:
        return [self.construction_call, *(value for _, value in self.later_steps)]

    def reconstruct(self, cg: PyCodegen) -> None:
        if self.class_cell is not None:
            cg.call(types.CellType)
            cg.cache_top(self.class_cell)
            cg.body.emit("POP_TOP")
        self.construction_call.reconstruct(cg)
        cg.cache_top(self)
        for name, value in self.later_steps:
            if name:
                emit_store_attributes(cg, [(name, value)])
                continue
            cg.call(operator.call, value, self)
            cg.body.emit("POP_TOP")


def _register_class(tx: Tracer, made: NewClassVariable) -> NewClassVariable:
    tx.objects.variables_by_id[id(made.real_object)] = (made, made.real_object)
    tx.objects.new_classes[made.real_object] = made
    return made


_TRUSTED_METACLASSES = (type, abc.ABCMeta, enum.EnumMeta, type(typing.Protocol))
"""Metaclasses that run no user code, except methods whose stubs raise Unsupported."""


def create_class(tx: Tracer, name: str, bases: list[Variable], entries: dict[str, Variable], words: Kwargs) -> Variable:
    """Run a class statement after its body.

    Raises:
        Unsupported: the class creation runs user code that cannot be traced.
    """
    resolved = types.resolve_bases(tuple(real_stand_in(tx, b) for b in bases))
    chosen = {"metaclass": real_stand_in(tx, words["metaclass"])} if "metaclass" in words else {}
    with UserErrors(tx, TypeError):
        meta = types.prepare_class(name, resolved, chosen)[0]
    hook = _init_subclass_owner(resolved)
    if hook is not None:
        raise Unsupported("metaclass", f"creating a subclass runs {hook.__name__}.__init_subclass__")
    if not _is_trusted_metaclass(meta):
        raise Unsupported("metaclass", f"a class is created by the metaclass {meta.__name__}")
    recipe = _make_construction_call(build_class, name, bases, entries, words)
    return _build_stand_in_class(
        tx, bases, entries, recipe, lambda given, space: build_class(name, given, space, **_real_kwargs(tx, words))
    )


def _real_kwargs(tx: Tracer, words: Kwargs) -> dict[str, Any]:
    return {word: real_stand_in(tx, v) for word, v in words.items()}


def _is_trusted_metaclass(meta: type) -> bool:
    return meta in _TRUSTED_METACLASSES or is_trusted_module(meta.__module__)


def _init_subclass_owner(bases: tuple[type, ...]) -> type | None:
    """Return the user-defined class whose ``__init_subclass__`` runs for a new subclass."""
    for base in bases:
        found = find_in_class(base, "__init_subclass__")
        if found is not None and found[0] is not object and not is_trusted_module(found[0].__module__):
            return found[0]
    return None


def _build_stand_in_class(
    tx: Tracer,
    bases: list[Variable],
    entries: dict[str, Variable],
    recipe: Variable,
    build: Callable[[tuple[Any, ...], dict[str, Any]], Any],
) -> NewClassVariable:
    """Build the real stand-in class with ``build`` and return its variable.

    ``build`` gets the stand-ins of the bases and of the class body entries.
    """
    cell = cast("CellVariable | None", entries.get("__classcell__"))
    namespace: dict[str, Any] = {}
    late: dict[str, Any] = {}
    for key, value in entries.items():
        if key in ("__classcell__", "__classdictcell__"):
            continue
        entry = _real_entry(tx, key, value)
        if realize(tx, value).is_user_object:
            late[key], entry = entry, None
        namespace[key] = entry
    try:
        held = build(tuple(real_stand_in(tx, b) for b in bases), namespace)
    except (TracerException, NotPythonConstant):
        raise
    except Exception as error:
        raise tx.make_user_exception(error) from error
    made = _register_class(tx, NewClassVariable(held, recipe, cell))
    if cell is not None:
        cell.content = made
    made.entries = {key: (entry, entries[key]) for key, entry in namespace.items()}
    for key, entry in late.items():
        type.__setattr__(held, key, entry)
        _set_name(tx, made, key, realize(tx, entries[key]))
    return made


def _real_entry(tx: Tracer, key: str, value: Variable) -> Any:
    forced = realize(tx, value)
    if key in ("__annotate_func__", "__annotate__") and not is_none(forced):
        return _annotate_stand_in(tx, forced)
    if key in ("__annotations__", "__slots__", "__match_args__") and tx.is_python_constant(forced):
        return forced.as_python_constant(tx)
    return real_stand_in(tx, forced)


def _set_name(tx: Tracer, made: NewClassVariable, key: str, of: Variable) -> None:
    of.call_user_method(tx, "__set_name__", [made, ConstantVariable(key)])


def _make_construction_call(
    function: Any, name: str, bases: list[Variable], entries: dict[str, Variable], words: Kwargs
) -> Variable:
    listed = DictVariable.from_str_keys(entries)
    return CallExpressionVariable(function, [ConstantVariable(name), TupleVariable(list(bases)), listed], dict(words))


@register_rule(builtins.__build_class__)
def _build_class(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    body, name = realize(tx, args[0]), realize(tx, args[1]).as_python_constant(tx)
    if not isinstance(body, NestedUserFunctionVariable):
        raise Unsupported(
            "class-creation", "a class is created from a function that was created outside the traced function"
        )
    bases = [realize(tx, b) for b in args[2:]]
    for base in (*bases, *(realize(tx, v) for v in kwargs.values())):
        if not tx.is_python_constant(base):
            raise Unsupported("class-creation", f"a class is created with {base.describe()}")
    entries = run_class_body(tx, body)
    return create_class(tx, str(name), bases, entries, kwargs)


def create_class_by_type_call(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Implement ``type(name, bases, namespace)``."""
    name = realize(tx, args[0]).as_python_constant(tx)
    namespace = realize(tx, args[2])
    bases = [realize(tx, b) for b in sequence_items(tx, args[1])]
    is_plain = issubclass(namespace.python_type(), dict) and all(b.as_class() is not None for b in bases)
    if not is_plain or type(name) is not str:
        raise Unsupported("class-creation", "a class is created")
    entries = tx.unpack_string_mapping(namespace)
    if "__module__" not in entries:
        entries["__module__"] = ConstantVariable(tx.frame.globals.name)
    return create_class(tx, name, bases, entries, kwargs)


def class_decorator_rule(function: Any) -> Callable[[Tracer, Args, Kwargs], Variable]:
    """Build the rule of a class decorator that updates a class or returns a new one.

    The decorator may take keyword arguments first.
    """

    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        of = realize(tx, args[0]) if args else None
        if of is None:
            return make_partial(tx.wrap_static(function), [], dict(kwargs))
        words = tx.as_python_keywords(kwargs)
        made = tx.objects.new_classes.get(of.as_class())
        if made is None:
            raise Unsupported("class-creation", f"{function.__name__}() of {of.describe()}")
        tx.side_effects.record_mutation(of)
        with UserErrors(tx, TypeError, ValueError):
            held = function(made.real_object, **words)
        if held is not made.real_object:  # dataclass(slots=True) creates a new class
            return _register_class(
                tx, NewClassVariable(held, CallExpressionVariable(functools.partial(function, **words), [of], {}), None)
            )
        made.later_steps.append(
            ("", ConstantVariable(functools.partial(function, **words)) if words else tx.wrap_static(function))
        )
        return made

    return rule


register_rule(dataclasses.dataclass)(class_decorator_rule(dataclasses.dataclass))
register_rule(functools.total_ordering)(class_decorator_rule(functools.total_ordering))


_NAMEDTUPLE: Any = vars(collections)["namedtuple"]


@register_rule(_NAMEDTUPLE)
def _named_tuple(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    constants = tx.as_python_constants(args)
    words = tx.as_python_keywords(kwargs)
    words.setdefault("module", tx.frame.globals.name)
    with UserErrors(tx, TypeError, ValueError):
        held = _NAMEDTUPLE(*constants, **words)
    recipe = CallExpressionVariable(_NAMEDTUPLE, list(args), {**kwargs, "module": ConstantVariable(words["module"])})
    return _register_class(tx, NewClassVariable(held, recipe, None))
