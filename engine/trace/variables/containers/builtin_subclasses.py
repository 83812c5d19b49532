"""Instances of Python subclasses of dict, list, set, tuple, numbers and strings.

Attributes work as on any object, contents as in the builtin class.
"""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import TYPE_CHECKING, Any, TypeGuard

from engine.bytecode.opcodes import VERSION
from engine.ir.guards.aliasing import SameObject
from engine.ir.guards.python_values import EqualsMatch
from engine.ir.introspection.python_objects import is_heap_type
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.sources.containers import BuiltinValueSource
from engine.trace.codegen_runtime.containers import new_container, refill_list
from engine.trace.exc import Unsupported
from engine.trace.operators.table import COMPARE_BY_METHOD, METHODS
from engine.trace.variables.base import NONE, ConstantVariable, NotPythonConstant, Variable, realize
from engine.trace.variables.builder import register_builder, register_builder_if
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.containers.dict_subclasses import call_inherited_dict_method
from engine.trace.variables.containers.dicts import DictVariable, build_dict, iterate_pairs, mapping_entries
from engine.trace.variables.containers.iterators import SequenceIteratorVariable
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable, read_items, sequence_items
from engine.trace.variables.containers.sets import SetVariable, build_set
from engine.trace.variables.objects.class_lookup import find_in_class
from engine.trace.variables.objects.classes import ClassVariable
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable
from engine.trace.variables.stdlib.string_format import format_proxy

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer


class _ReprsInProgress:
    """Objects of one trace whose ``repr`` has not returned."""

    def __init__(self) -> None:
        self.variable_ids: set[int] = set()


SCALARS: tuple[type, ...] = (int, float, complex, str, bytes)
_BUILTIN_BASES: tuple[type, ...] = (
    collections.OrderedDict,
    collections.defaultdict,
    dict,
    list,
    set,
    frozenset,
    tuple,
    *SCALARS,
)


def builtin_base_of(cls: type) -> Any:
    """Return the builtin container or scalar class that ``cls`` derives from, or None."""
    for base in cls.__mro__:
        if base in _BUILTIN_BASES:
            return base
        if not is_heap_type(base):
            return None
    return None


class BuiltinSubclassVariable(UserDefinedObjectVariable):
    """An instance of a builtin subclass: ``inner`` holds its contents.

    Methods that Python code overrides are traced.
    """

    def __init__(self, cls: type, origin: Source | None, held: Any, inner: Variable) -> None:
        super().__init__(cls, origin, held)
        self.inner = inner

    @property
    def builtin_contents(self) -> Variable:
        return self.inner

    def describe(self) -> str:
        return f"{self.cls.__name__} object of {self.inner.describe()}"

    def child_variables(self) -> list[Variable]:
        return [*self.inner.child_variables(), *filter(None, [self._default_factory()]), *super().child_variables()]

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        factory = self._default_factory() if name == "default_factory" else None
        if factory is not None:
            return factory
        found = find_in_class(self.cls, name) if isinstance(self.inner, ConstantVariable) else None
        if found is not None and isinstance(found[1], _C_DESCRIPTOR_TYPES) and found[0] is builtin_base_of(self.cls):
            return self.inner.get_attr(tx, name)  # for example ``real`` of a complex number
        return super().get_attr(tx, name)

    def call_c_method(
        self, tx: Tracer, owner: type, name: str, args: list[Variable], kwargs: dict[str, Variable]
    ) -> Variable | None:
        if owner is object:
            return super().call_c_method(tx, owner, name, args, kwargs)
        return self.call_builtin_method(tx, name, [realize(tx, a) for a in args], kwargs)

    def call_builtin_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        """Call a method of the builtin class, not an override in the subclass."""
        if isinstance(self.inner, DictVariable):
            by_subclass = call_inherited_dict_method(tx, self, name, args, kwargs)
            if by_subclass is not None:
                return by_subclass
        match name:
            case "__init__":
                return self._init_contents(tx, args, kwargs)
            case "__len__":
                return self.inner.length(tx)
            case "__getitem__" if isinstance(self.inner, DictVariable):
                return self._dict_getitem(tx, args[0])
            case "__repr__" if not isinstance(self.inner, ConstantVariable):
                return ConstantVariable(self._repr(tx))
            case "__iter__":
                return self.inner.get_iterator(tx)
            case "__contains__":
                return ConstantVariable(self.inner.contains(tx, args[0]))
            case "copy" | "__copy__" if isinstance(self.inner, DictVariable) and not args:
                if builtin_base_of(self.cls) is dict:
                    return DictVariable(dict(self.inner.entries))
                factory = [] if self._default_factory() is None else [self._default_factory() or NONE]
                return realize(tx, tx.wrap_static(self.cls).call(tx, [*factory, self], {}))
            case "__getitem__":
                return self.inner.get_item(tx, args[0])
            case "__reversed__":
                kind: Any = type(reversed([])) if isinstance(self.inner, ListVariable) else reversed
                return SequenceIteratorVariable(list(reversed(sequence_items(tx, self.inner))), kind)
        if isinstance(self.inner, ConstantVariable):
            return self._scalar_method(tx, name, args, kwargs)
        is_binary = name in COMPARE_BY_METHOD or (isinstance(self.inner, SetVariable) and name in METHODS)
        if is_binary and len(args) == 1:  # the C operation reads the builtin contents and ignores overrides
            args = [realize(tx, args[0]).builtin_contents]
        result = self.inner.call_method(tx, name, args, kwargs)
        if result is not self.inner:
            return result
        if isinstance(result, TupleVariable):  # a slice of a tuple subclass is a new plain tuple, even the whole slice
            return TupleVariable(list(result.items))
        return SetVariable(dict(result.elements), None, result.builtin_class) if _is_frozenset(result) else self

    def _repr(self, tx: Tracer) -> str:
        """Return the ``repr``, with ``...`` for an object inside its own repr."""
        is_named = isinstance(self.inner, SetVariable) or builtin_base_of(self.cls) in _CLASSES_NAMED_IN_REPR
        in_progress = tx.state_of(_ReprsInProgress).variable_ids
        if id(self) in in_progress:
            if isinstance(self.inner, SetVariable):
                return f"{self.cls.__name__}(...)"
            return "..." if is_named else _RECURSIVE_REPR[builtin_base_of(self.cls)]
        in_progress.add(id(self))
        try:
            return f"{self.cls.__name__}({self._contents_repr(tx)})" if is_named else self._builtin_repr(tx)
        finally:
            in_progress.discard(id(self))

    def _builtin_repr(self, tx: Tracer) -> str:
        """Return the repr of the builtin class, which does not contain the subclass name."""
        if isinstance(self.inner, DictVariable):
            pairs = [(format_proxy(tx, key), format_proxy(tx, value)) for key, value in self.inner.entries.values()]
            return f"{{{', '.join(f'{key!r}: {value!r}' for key, value in pairs)}}}"
        items = [repr(format_proxy(tx, item)) for item in sequence_items(tx, self.inner)]
        if isinstance(self.inner, ListVariable):
            return f"[{', '.join(items)}]"
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"

    def _contents_repr(self, tx: Tracer) -> str:
        """Return the contents part of a repr that starts with the class name."""
        if not self.inner.is_truthy(tx) and self._default_factory() is None:
            return ""
        if isinstance(self.inner, SetVariable):
            return f"{{{', '.join(repr(format_proxy(tx, item)) for item in self.inner.iteration_order(tx))}}}"
        if self._default_factory() is None and VERSION >= (3, 12) and self._overrides_in_python("keys", "__getitem__"):
            pairs = [format_proxy(tx, TupleVariable(list(pair))) for pair in iterate_pairs(tx, self)]
        elif self._default_factory() is None and VERSION < (3, 12) and self._overrides_in_python("items"):
            pairs = [format_proxy(tx, pair) for pair in sequence_items(tx, self.call_method(tx, "items", [], {}))]
        else:
            pairs = [format_proxy(tx, TupleVariable(list(pair))) for pair in mapping_entries(tx, self.inner)]
        plain = repr(collections.OrderedDict(pairs))  # shows pairs or a dict, depending on the Python version
        plain = plain.removeprefix("OrderedDict(").removesuffix(")")
        return (
            plain
            if self._default_factory() is None
            else f"{format_proxy(tx, self._default_factory() or NONE)!r}, {dict(pairs)!r}"
        )

    def _overrides_in_python(self, *names: str) -> bool:
        """Return True if Python code overrides one of these methods."""
        found = [find_in_class(self.cls, name) for name in names]
        return any(f is not None and isinstance(f[1], types.FunctionType) for f in found)

    def _default_factory(self) -> Variable | None:
        """Return the ``default_factory`` of a ``defaultdict``; None for other containers."""
        is_default = isinstance(self.inner, DictVariable) and builtin_base_of(self.cls) is collections.defaultdict
        return (self.inner.default_factory or NONE) if is_default else None  # type: ignore[attr-defined]

    def _scalar_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        """Fold a method of a number or string, with the arguments as builtin instances."""
        if name == "__format__" and realize(tx, args[0]).as_python_constant(tx) == "":
            return realize(tx, tx.wrap_static(str).call(tx, [self], {}))
        given = [as_builtin(a) for a in args]
        if name.startswith("__") and not all(tx.is_python_constant(a) for a in given):
            return ConstantVariable(NotImplemented)
        return self.inner.call_method(tx, name, given, kwargs)

    def as_python_constant(self, tx: Tracer) -> Any:
        if not isinstance(self.inner, ConstantVariable) or self.overridden_methods():
            raise NotPythonConstant
        return self.inner.value

    def as_graph_operand(self, tx: Tracer) -> Variable | None:
        return self.inner.as_graph_operand(tx) or super().as_graph_operand(tx)

    def as_operator_value(self, tx: Tracer, classes: dict[type, type]) -> Any:
        """Return the number or string of a class whose own methods returned NotImplemented."""
        if not isinstance(self.inner, ConstantVariable):
            raise NotPythonConstant
        value = self.inner.value
        own = dict.fromkeys(self.overridden_methods() & METHODS.keys(), _return_not_implemented)
        is_number = isinstance(value, (int, float, complex))
        if not own and not is_number:
            return value
        return classes.setdefault(self.cls, type(self.cls.__name__, (type(value),), own))(value)

    def overridden_methods(self) -> set[str]:
        """Return the special methods of the builtin class that Python code overrides.

        Operators, comparisons and conversions must call these methods.
        """
        base = builtin_base_of(self.cls)
        own = self.cls.__mro__[: self.cls.__mro__.index(base)]
        return {n for c in own for n in vars(c) if n.startswith("__") and n not in _IGNORED_METHODS and n in dir(base)}

    def _dict_getitem(self, tx: Tracer, key: Variable) -> Variable:
        """Implement ``dict.__getitem__``: a missing key calls ``__missing__`` of the class."""
        missing = self.lookup_special_method(tx, "__missing__")
        if missing is None:
            return self.inner.get_item(tx, key)
        if self.inner.contains(tx, key):
            return self.inner.get_item(tx, key)
        return realize(tx, missing.call(tx, [key], {}))

    def _init_contents(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        if isinstance(self.inner, DictVariable):
            self.inner.call_method(tx, "__init__", args, kwargs)
        elif isinstance(self.inner, SetVariable) and self.inner.builtin_class is set:
            if kwargs or len(args) > 1:
                tx.fold_constant(self.inner.builtin_class, *[()] * len(args), **dict.fromkeys(kwargs))
            self.inner.call_method(tx, "__init__", args, {})
        elif isinstance(self.inner, ListVariable):
            if kwargs and _has_builtin_new(self.cls, list):
                tx.fold_constant(list, **dict.fromkeys(kwargs))
            self.inner.call_method(tx, "__init__", args, {})
        return NONE

    def hash_key(self, tx: Tracer) -> Any:
        if isinstance(self.inner, TupleVariable) or (
            not self.overridden_methods() & {"__eq__", "__hash__"}
            and (
                isinstance(self.inner, ConstantVariable)
                or (isinstance(self.inner, SetVariable) and self.inner.builtin_class is frozenset)
            )
        ):
            return self.inner.hash_key(tx)
        return super().hash_key(tx)

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        return self.inner.as_node_arg(tx)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_helper(new_container, 0)
        cg.load_const(self.cls)
        if isinstance(self.inner, TupleVariable):
            cg.load_all(self.inner.items)
            cg.body.emit("BUILD_TUPLE", len(self.inner.items))
            cg.body.call(2)
        elif isinstance(self.inner, ConstantVariable):
            cg.load_const(self.inner.value)
            cg.body.call(2)
        elif _is_frozenset(self.inner):
            cg.load(SetVariable(self.inner.elements, None, frozenset))
            cg.body.call(2)
        else:
            cg.body.call(1)
        cg.cache_top(self)
        self.fill_or_defer(cg)

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that pops the object on the stack and sets its contents and attributes.

        The contents are only set on an object created while tracing.
        """
        if (
            self.source is None
            and not isinstance(self.inner, (TupleVariable, ConstantVariable))
            and not _is_frozenset(self.inner)
        ):
            cg.body.emit("COPY", 1)
            fill_builtin_contents(cg, self.inner)
            factory = self._default_factory()
            if factory is not None:
                cg.body.emit("COPY", 1)
                cg.load(factory)
                cg.body.emit("SWAP", 2)
                cg.body.emit("STORE_ATTR", "default_factory")
        super().fill(cg)


def _has_builtin_new(cls: Any, base: Any) -> bool:
    """Return True if a subclass inherits ``__new__`` from the builtin class."""
    return cls.__new__ is base.__new__


def as_builtin(value: Variable) -> Variable:
    """Return a scalar subclass instance as its builtin value, as C code reads it."""
    return (
        value.inner
        if isinstance(value, BuiltinSubclassVariable) and isinstance(value.inner, ConstantVariable)
        else value
    )


def _return_not_implemented(*operands: Any) -> Any:
    return NotImplemented


def _is_frozenset(inner: Variable) -> TypeGuard[SetVariable]:
    return isinstance(inner, SetVariable) and inner.builtin_class is frozenset


_RECURSIVE_REPR: dict[type, str] = {dict: "{...}", list: "[...]", tuple: "(...)"}
_CLASSES_NAMED_IN_REPR = (collections.OrderedDict, collections.defaultdict)
_C_DESCRIPTOR_TYPES = (types.MemberDescriptorType, types.GetSetDescriptorType)
_IGNORED_METHODS = frozenset(
    (
        "__module__",
        "__dict__",
        "__weakref__",
        "__new__",
        "__init__",
        "__doc__",
        "__init_subclass__",
        "__getattribute__",
        "__class_getitem__",
    )
)
"""Special methods that no operation on the builtin contents calls."""


def fill_builtin_contents(cg: PyCodegen, inner: Variable) -> None:
    """Emit code that pops the container on the stack and replaces its contents.

    The code calls the C methods, not overrides of the subclass.
    """
    if isinstance(inner, ListVariable):
        cg.load_helper(refill_list, 1)
        cg.load_all(inner.items)
        cg.body.emit("BUILD_LIST", len(inner.items))
        cg.body.call(2)
        cg.body.emit("POP_TOP")
        return
    inner.fill(cg)


def new_builtin_subclass(cls: type, inner: Variable | None = None) -> BuiltinSubclassVariable:
    """Create an instance of a builtin subclass: empty, or with its contents if immutable."""
    base = builtin_base_of(cls)
    if inner is None:
        if base is list:
            inner = ListVariable([], None, cls)
        elif base is set:
            inner = SetVariable({}, None, cls)
        else:
            inner = DictVariable({}, None, cls, NONE if base is collections.defaultdict else None)
    return BuiltinSubclassVariable(cls, None, NotImplemented, inner)


def _builtin_new_rule(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """Implement ``int.__new__(cls, ...)`` and ``__new__`` of the other builtin classes."""
    of = realize(tx, args[0])
    base = builtin_base_of(of.real_object) if isinstance(of, ClassVariable) else None
    if base is None:
        raise Unsupported("builtin-subclass", f"__new__ of {of.describe()}")
    return call_builtin_new(tx, of.real_object, base, args[1:], kwargs)  # type: ignore[attr-defined]


def call_builtin_new(tx: Tracer, cls: Any, base: Any, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """Call ``__new__`` of the builtin class ``base`` for a subclass, or for ``base`` itself."""
    if base in _MUTABLE_BASES:
        return new_builtin_subclass(cls)
    if base in (tuple, frozenset, float) and cls.__init__ is not base.__init__:
        kwargs = {}  # __new__ ignores keyword arguments if the subclass defines __init__
    if base is tuple:
        if kwargs or len(args) > 1:
            tx.fold_constant(tuple, *[()] * len(args), **dict.fromkeys(kwargs))
        made: Variable = TupleVariable(list(sequence_items(tx, args[0])) if args else [], tuple)
    else:
        made = realize(tx, tx.wrap_static(base).call(tx, list(args), kwargs))
    if cls is base:
        return made
    if isinstance(made, BuiltinSubclassVariable):
        made = made.inner
    if base in SCALARS and not isinstance(made, ConstantVariable):
        raise Unsupported(
            "builtin-subclass", f"{cls.__qualname__} is created from a number that is not known while tracing"
        )
    if isinstance(made, SetVariable):
        made = SetVariable(dict(made.elements), None, cls)
    return new_builtin_subclass(cls, made)


_MUTABLE_BASES = (collections.OrderedDict, collections.defaultdict, dict, list, set)
for _base in _BUILTIN_BASES:
    if "__new__" in vars(_base) and _base is not tuple:
        register_rule(_base.__new__)(_builtin_new_rule)


def _is_container_object(real: Any) -> bool:
    return isinstance(real, (dict, list, set, frozenset, tuple, *SCALARS)) and (
        builtin_base_of(type(real)) is not None and type(real) not in _BUILTIN_BASES
    )


@register_builder_if(60, _is_container_object)
def _container_object(tx: Tracer, real: Any, origin: Source) -> Variable:
    inner: Variable
    if isinstance(real, dict):
        inner = build_dict(tx, real, origin)
    elif isinstance(real, list):
        inner = ListVariable(read_items(tx, real, origin), origin, type(real))
    elif isinstance(real, tuple):
        inner = TupleVariable(read_items(tx, real, origin))
    elif isinstance(real, (set, frozenset)):
        inner = build_set(tx, real, origin)
    else:
        base = builtin_base_of(type(real))
        tx.guard_type(real, origin, "its value decided what was traced")
        at = BuiltinValueSource(origin, base)
        inner = ConstantVariable(at.read(real), at)
        tx.add_guard(EqualsMatch(at, inner.value, cause=tx.guard_cause("its value decided what was traced")))
    made = BuiltinSubclassVariable(type(real), origin, real, inner)
    if isinstance(real, dict) and getattr(real, "__dict__", None) is real:
        # The object is its own __dict__: attributes and entries are shared.
        tx.add_guard(
            SameObject(AttrSource(origin, "__dict__"), origin, True, cause=tx.guard_cause("it is its own __dict__"))
        )
        made.shared_dict = made
    return made


class DataclassFieldVariable(Variable):
    """A ``dataclasses.Field``, which is immutable."""

    def __init__(self, real_object: dataclasses.Field[Any], source: Source) -> None:
        self.real_object = real_object
        self.source = source

    def python_type(self) -> type:
        return dataclasses.Field

    def as_python_object(self) -> Any:
        return self.real_object

    def hash_key(self, tx: Tracer) -> Any:
        return self.real_object

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        found = getattr(self.real_object, name)
        return ConstantVariable(found) if isinstance(found, (str, bool, type(None))) else tx.wrap_static(found)


@register_builder(dataclasses.Field)
def _field(tx: Tracer, real: Any, origin: Source) -> Variable:
    return DataclassFieldVariable(real, origin)
