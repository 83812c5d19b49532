"""Instances of Python subclasses of dict, list, set, tuple, numbers and strings.

Attributes work as on any object, contents as in the builtin class.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

from engine.bytecode.opcodes import VERSION
from engine.frame_code.codegen_runtime.containers import new_container
from engine.ir.guards.aliasing import SameObject
from engine.ir.guards.python_values import EqualsMatch
from engine.ir.introspection.python_objects import is_heap_type
from engine.ir.introspection.python_operators import COMPARE_BY_METHOD, METHODS
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.sources.containers import BuiltinValueSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.operators.arithmetic import call_special_by_name
from engine.trace.variables.base import (
    NONE,
    Args,
    ConstantVariable,
    Kwargs,
    NotPythonConstant,
    RealObjectVariable,
    Variable,
    realize,
)
from engine.trace.variables.builder import is_literal, register_builder, register_builder_if
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.reconstruct_calls import emit_store_attributes
from engine.trace.variables.containers.dict_subclasses import call_inherited_dict_method
from engine.trace.variables.containers.dicts import DictVariable, build_dict, iterate_pairs, mapping_entries
from engine.trace.variables.containers.iterators import SequenceIteratorVariable
from engine.trace.variables.containers.sequences import (
    ListVariable,
    SequenceVariable,
    TupleVariable,
    read_items,
    sequence_items,
)
from engine.trace.variables.containers.sets import SetVariable, build_set
from engine.trace.variables.objects.class_lookup import find_in_class, find_python_method, is_data_descriptor
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable
from engine.trace.variables.stdlib.string_format import format_proxy


class _ReprsInProgress(set[int]):
    """Ids of the variables of one trace whose ``repr`` has not returned."""


SCALARS: tuple[type, ...] = (int, float, complex, str, bytes)
_CONTAINERS = (collections.OrderedDict, collections.defaultdict, dict, list, set, frozenset, tuple)
_BUILTIN_BASES: tuple[type, ...] = (*_CONTAINERS, *SCALARS)


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

    inner: Variable
    is_filled_by_new = True
    """False if the contents are mutable: they are set after ``__new__``."""

    @property
    def builtin_contents(self) -> Variable:
        return self.inner

    @property
    def set_contents(self) -> SetVariable | None:
        return self.inner.set_contents

    @property
    def dict_contents(self) -> DictVariable | None:
        return self.inner.dict_contents

    @property
    def sequence_contents(self) -> SequenceVariable | None:
        return self.inner.sequence_contents

    def describe(self) -> str:
        return f"{self.cls.__name__} object of {self.inner.describe()}"

    def child_variables(self) -> list[Variable]:
        return [*self.inner.child_variables(), *super().child_variables()]

    def call_c_method(self, tx: Tracer, owner: type, name: str, args: Args, kwargs: Kwargs) -> Variable | None:
        if owner is object:
            return super().call_c_method(tx, owner, name, args, kwargs)
        return self.call_builtin_method(tx, name, [realize(tx, a) for a in args], kwargs)

    def call_builtin_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        """Call a method of the builtin class, not an override in the subclass."""
        match name:
            case "__init__":
                self.init_contents(tx, args, kwargs)
                return NONE
            case "__len__" | "__getitem__" | "__iter__" | "__contains__":
                return call_special_by_name(tx, self.inner, name, args, kwargs)
            case "__reversed__":
                kind: Any = type(reversed([])) if issubclass(self.cls, list) else reversed
                return SequenceIteratorVariable(list(reversed(sequence_items(tx, self.inner))), kind)
        return self.call_contents_method(tx, name, args, kwargs)

    def call_contents_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        """Call a method of the builtin class on the contents."""
        if name == "__repr__":
            return ConstantVariable(self._repr(tx))
        if name in COMPARE_BY_METHOD and len(args) == 1:
            args = [args[0].builtin_contents]  # the C operation ignores overrides
        result = self.inner.call_method(tx, name, args, kwargs)
        return self.returned_contents(result) if result is self.inner else result

    def returned_contents(self, contents: Variable) -> Variable:
        """Return the result of a method that returns the contents themselves."""
        return self

    def _repr(self, tx: Tracer) -> str:
        """Return the ``repr``, with ``...`` for an object inside its own repr."""
        in_progress = tx.state_of(_ReprsInProgress)
        if id(self) in in_progress:
            return self.recursive_repr()
        in_progress.add(id(self))
        try:
            return self.contents_repr(tx)
        finally:
            in_progress.discard(id(self))

    def contents_repr(self, tx: Tracer) -> str:
        """Return the ``repr`` of the builtin class."""
        raise NotImplementedError

    def recursive_repr(self) -> str:
        """Return the ``repr`` inside the object's own ``repr``."""
        raise NotImplementedError

    def as_python_constant(self, tx: Tracer) -> Any:
        raise NotPythonConstant(self)

    def as_graph_operand(self, tx: Tracer) -> Variable | None:
        return self.inner.as_graph_operand(tx) or super().as_graph_operand(tx)

    def as_operator_value(self, tx: Tracer, classes: dict[type, type]) -> Any:
        raise NotPythonConstant(self)

    def overridden_methods(self) -> set[str]:
        """Return the special methods of the builtin class that Python code overrides.

        Operators, comparisons and conversions must call these methods.
        """
        base = builtin_base_of(self.cls)
        subclasses = self.cls.__mro__[: self.cls.__mro__.index(base)]
        special_names = {name for cls in subclasses for name in vars(cls) if name.startswith("__")}
        return (special_names - _IGNORED_METHODS) & set(dir(base))

    def _hashes_as_contents(self) -> bool:
        return not self.overridden_methods() & {"__eq__", "__hash__"}

    def init_contents(self, tx: Tracer, args: Args, kwargs: Kwargs) -> None:
        """Implement ``__init__`` of the builtin class; ``__new__`` filled immutable contents."""

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        return self.inner.as_node_arg(tx)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(new_container, self.cls, *([self.new_argument()] if self.is_filled_by_new else []))
        self.fill_or_defer(cg)

    def new_argument(self) -> Variable:
        """Return the argument of ``__new__`` for immutable contents."""
        return self.inner

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that pops the object on the stack and sets its contents and attributes.

        The contents are only set on an object created while tracing.
        """
        if self.source is None and not self.is_filled_by_new:
            cg.body.emit("COPY", 1)
            self.inner.fill(cg)
            self.fill_builtin_attributes(cg)
        super().fill(cg)

    def fill_builtin_attributes(self, cg: PyCodegen) -> None:
        """Emit code that sets the attributes of the builtin class on the object on the stack."""


class DictSubclassVariable(BuiltinSubclassVariable):
    """An instance of a subclass of dict, OrderedDict or defaultdict."""

    inner: DictVariable
    is_filled_by_new = False

    def __post_init__(self) -> None:
        self.inner.subclass_instance = self

    @property
    def default_factory(self) -> Variable | None:
        """The ``default_factory`` of a ``defaultdict``; None for other dicts."""
        is_default = builtin_base_of(self.cls) is collections.defaultdict
        return self.inner.default_factory or NONE if is_default else None

    def child_variables(self) -> list[Variable]:
        return [*filter(None, [self.default_factory]), *super().child_variables()]

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        factory = self.default_factory if name == "default_factory" else None
        return super().get_attr(tx, name) if factory is None else factory

    def call_builtin_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        by_subclass = call_inherited_dict_method(tx, self, name, args, kwargs)
        if by_subclass is not None:
            return by_subclass
        missing = self.lookup_special_method(tx, "__missing__") if name == "__getitem__" else None
        if missing is not None and not self.inner.contains(tx, args[0]):
            return realize(tx, missing.call(tx, args, {}))
        return super().call_builtin_method(tx, name, args, kwargs)

    def init_contents(self, tx: Tracer, args: Args, kwargs: Kwargs) -> None:
        self.inner.call_method(tx, "__init__", args, kwargs)

    def contents_repr(self, tx: Tracer) -> str:
        factory = self.default_factory
        if builtin_base_of(self.cls) is dict:
            entries = [(format_proxy(tx, key), format_proxy(tx, value)) for key, value in self.inner.entries.values()]
            return f"{{{', '.join(f'{key!r}: {value!r}' for key, value in entries)}}}"
        if factory is None and not self.inner.entries:
            return f"{self.cls.__name__}()"
        if factory is None and VERSION >= (3, 12) and self._overrides_in_python("keys", "__getitem__"):
            pairs = [format_proxy(tx, TupleVariable(list(pair))) for pair in iterate_pairs(tx, self)]
        elif factory is None and VERSION < (3, 12) and self._overrides_in_python("items"):
            pairs = [format_proxy(tx, pair) for pair in sequence_items(tx, self.call_method(tx, "items", [], {}))]
        else:
            pairs = [format_proxy(tx, TupleVariable(list(pair))) for pair in mapping_entries(tx, self.inner)]
        pairs_text = repr(collections.OrderedDict(pairs))  # shows pairs or a dict, depending on the Python version
        pairs_text = pairs_text.removeprefix("OrderedDict(").removesuffix(")")
        shown_factory = "" if factory is None else f"{format_proxy(tx, factory)!r}, "
        return f"{self.cls.__name__}({shown_factory}{pairs_text if factory is None else repr(dict(pairs))})"

    def _overrides_in_python(self, *names: str) -> bool:
        """Return True if Python code overrides one of these methods."""
        return any(find_python_method(self.cls, name) is not None for name in names)

    def recursive_repr(self) -> str:
        return "{...}" if builtin_base_of(self.cls) is dict else "..."

    def fill_builtin_attributes(self, cg: PyCodegen) -> None:
        factory = self.default_factory
        emit_store_attributes(cg, [] if factory is None else [("default_factory", factory)])


class ListSubclassVariable(BuiltinSubclassVariable):
    """An instance of a subclass of list."""

    inner: ListVariable
    is_filled_by_new = False

    def call_builtin_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name == "__iter__":
            return SequenceIteratorVariable(self.inner.items, type(iter([])), iterable=self)
        return super().call_builtin_method(tx, name, args, kwargs)

    def init_contents(self, tx: Tracer, args: Args, kwargs: Kwargs) -> None:
        cls: Any = self.cls
        if kwargs and cls.__new__ is list.__new__:
            tx.fold_constant(list, **dict.fromkeys(kwargs))
        self.inner.call_method(tx, "__init__", args, {})

    def contents_repr(self, tx: Tracer) -> str:
        return f"[{', '.join(repr(format_proxy(tx, item)) for item in self.inner.items)}]"

    def recursive_repr(self) -> str:
        return "[...]"


class TupleSubclassVariable(BuiltinSubclassVariable):
    """An instance of a subclass of tuple."""

    inner: TupleVariable

    def returned_contents(self, contents: Variable) -> Variable:
        return TupleVariable(list(self.inner.items))  # even the whole slice is a new plain tuple

    def hash_key(self, tx: Tracer) -> Any:
        return self.inner.hash_key(tx)

    def contents_repr(self, tx: Tracer) -> str:
        items = [repr(format_proxy(tx, item)) for item in self.inner.items]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"

    def recursive_repr(self) -> str:
        return "(...)"


class SetSubclassVariable(BuiltinSubclassVariable):
    """An instance of a subclass of set or frozenset."""

    inner: SetVariable

    @property
    def is_filled_by_new(self) -> bool:  # type: ignore[override]
        return self.inner.builtin_class is frozenset

    def call_contents_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name in METHODS and len(args) == 1:
            args = [args[0].builtin_contents]  # the C operation ignores overrides
        return super().call_contents_method(tx, name, args, kwargs)

    def returned_contents(self, contents: Variable) -> Variable:
        return SetVariable(dict(self.inner.elements), None, frozenset) if self.is_filled_by_new else self

    def init_contents(self, tx: Tracer, args: Args, kwargs: Kwargs) -> None:
        if not self.is_filled_by_new:
            self.inner.call_method(tx, "__init__", args, kwargs)

    def hash_key(self, tx: Tracer) -> Any:
        if self.is_filled_by_new and self._hashes_as_contents():
            return self.inner.hash_key(tx)
        return super().hash_key(tx)

    def contents_repr(self, tx: Tracer) -> str:
        items = [repr(format_proxy(tx, item)) for item in self.inner.iteration_order(tx)]
        return f"{self.cls.__name__}({{{', '.join(items)}}})" if items else f"{self.cls.__name__}()"

    def recursive_repr(self) -> str:
        return f"{self.cls.__name__}(...)"

    def new_argument(self) -> Variable:
        return SetVariable(self.inner.elements, None, frozenset)


class ScalarSubclassVariable(BuiltinSubclassVariable):
    """An instance of a subclass of int, float, complex, str or bytes."""

    inner: ConstantVariable

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        attribute = find_in_class(self.cls, name)
        if attribute is not None and is_data_descriptor(attribute.raw) and attribute.owner is builtin_base_of(self.cls):
            return self.inner.get_attr(tx, name)  # for example ``real`` of a complex number
        return super().get_attr(tx, name)

    def call_contents_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        """Fold a method of a number or string, with the arguments as builtin instances."""
        if name == "__format__" and args[0].as_python_constant(tx) == "":
            return realize(tx, tx.wrap_static(str).call(tx, [self], {}))
        builtin_args = [as_builtin(a) for a in args]
        if name.startswith("__") and not all(tx.is_python_constant(a) for a in builtin_args):
            return ConstantVariable(NotImplemented)
        return self.inner.call_method(tx, name, builtin_args, kwargs)

    def as_python_constant(self, tx: Tracer) -> Any:
        if self.overridden_methods():
            raise NotPythonConstant(self)
        return self.inner.value

    def as_operator_value(self, tx: Tracer, classes: dict[type, type]) -> Any:
        """Return the number or string of a class whose own methods returned NotImplemented."""
        base: type = type(self.inner.value)
        overridden = dict.fromkeys(self.overridden_methods() & METHODS.keys(), lambda *operands: NotImplemented)
        if not overridden and base in (str, bytes):
            return self.inner.value
        return classes.setdefault(self.cls, type(self.cls.__name__, (base,), overridden))(self.inner.value)

    def hash_key(self, tx: Tracer) -> Any:
        return self.inner.hash_key(tx) if self._hashes_as_contents() else super().hash_key(tx)


_VARIABLE_CLASSES: dict[type, type[BuiltinSubclassVariable]] = {
    **dict.fromkeys((dict, collections.OrderedDict, collections.defaultdict), DictSubclassVariable),
    list: ListSubclassVariable,
    tuple: TupleSubclassVariable,
    **dict.fromkeys((set, frozenset), SetSubclassVariable),
    **dict.fromkeys(SCALARS, ScalarSubclassVariable),
}


def as_builtin(value: Variable) -> Variable:
    """Return a scalar subclass instance as its builtin value, as C code reads it."""
    contents: Variable = value.builtin_contents
    return contents if contents.is_constant else value


_IGNORED_METHODS = frozenset(
    "__module__ __dict__ __weakref__ __new__ __init__ __doc__ __init_subclass__ __getattribute__ __class_getitem__".split()
)
"""Special methods that no operation on the builtin contents calls."""


def new_builtin_subclass(cls: type, inner: Variable | None = None) -> BuiltinSubclassVariable:
    """Create an instance of a builtin subclass: empty, or with its contents if immutable."""
    base = builtin_base_of(cls)
    if inner is None:
        make = _EMPTY_CONTENTS.get(base)
        inner = DictVariable({}, None, cls) if make is None else make(cls)
    return _VARIABLE_CLASSES[base](cls, None, NotImplemented, inner)


_EMPTY_CONTENTS: dict[type, Callable[[type], Variable]] = {
    list: lambda cls: ListVariable([], None, cls),
    set: lambda cls: SetVariable({}, None, cls),
    collections.defaultdict: lambda cls: DictVariable({}, None, cls, NONE),
}
"""Constructors of empty contents, by builtin class; a dict for the others."""


def _builtin_new_rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Implement ``int.__new__(cls, ...)`` and ``__new__`` of the other builtin classes."""
    of = realize(tx, args[0])
    cls = of.as_class()
    base = None if cls is None else builtin_base_of(cls)
    if base is None:
        raise Unsupported("builtin-subclass", f"__new__ of {of.describe()}")
    return call_builtin_new(tx, cls, base, args[1:], kwargs)


def call_builtin_new(tx: Tracer, cls: Any, base: Any, args: Args, kwargs: Kwargs) -> Variable:
    """Call ``__new__`` of the builtin class ``base`` for a subclass, or for ``base`` itself."""
    if base in _MUTABLE_BASES:
        return new_builtin_subclass(cls)
    if base in (tuple, frozenset, float) and cls.__init__ is not base.__init__:
        kwargs = {}  # __new__ ignores keyword arguments if the subclass defines __init__
    if base is tuple:
        if kwargs or len(args) > 1:
            tx.fold_constant(tuple, *[()] * len(args), **dict.fromkeys(kwargs))
        contents: Any = TupleVariable(list(sequence_items(tx, args[0])) if args else [], tuple)
    else:
        contents = realize(tx, tx.wrap_static(base).call(tx, list(args), kwargs))
    if cls is base:
        return contents  # type: ignore[no-any-return]
    contents = contents.builtin_contents
    if base in SCALARS and not contents.is_constant:
        raise Unsupported(
            "builtin-subclass", f"{cls.__qualname__} is created from a number that is not known while tracing"
        )
    if base is frozenset:
        contents = SetVariable(dict(contents.elements), None, cls)
    return new_builtin_subclass(cls, contents)


_MUTABLE_BASES = (collections.OrderedDict, collections.defaultdict, dict, list, set)
for _base in _BUILTIN_BASES:
    if "__new__" in vars(_base) and _base is not tuple:
        register_rule(_base.__new__)(_builtin_new_rule)


def _is_container_object(real: Any) -> bool:
    cls = type(real)
    return builtin_base_of(cls) is not None and cls not in _BUILTIN_BASES


def _read_scalar(tx: Tracer, real: Any, source: Source) -> ConstantVariable:
    """Build the contents of a number or string; guard on its value."""
    tx.guard_type(real, source, "its value decided what was traced")
    value_source = BuiltinValueSource(source, builtin_base_of(type(real)))
    inner = ConstantVariable(value_source.read(real), value_source)
    tx.guard(EqualsMatch, value_source, inner.value, why="its value decided what was traced")
    return inner


_CONTENTS_BUILDERS: dict[type[BuiltinSubclassVariable], Callable[[Tracer, Any, Source], Variable]] = {
    DictSubclassVariable: build_dict,
    ListSubclassVariable: lambda tx, real, source: ListVariable(read_items(tx, real, source), source, type(real)),
    TupleSubclassVariable: lambda tx, real, source: TupleVariable(read_items(tx, real, source)),
    SetSubclassVariable: build_set,
    ScalarSubclassVariable: _read_scalar,
}


@register_builder_if(60, _is_container_object)
def _container_object(tx: Tracer, real: Any, source: Source) -> Variable:
    made_as = _VARIABLE_CLASSES[builtin_base_of(type(real))]
    container = made_as(type(real), source, real, _CONTENTS_BUILDERS[made_as](tx, real, source))
    if getattr(real, "__dict__", None) is real:
        # The object is its own __dict__: attributes and entries are shared.
        tx.guard(SameObject, AttrSource(source, "__dict__"), source, True, why="it is its own __dict__")
        container.shared_dict = container
    return container


class DataclassFieldVariable(RealObjectVariable):
    """A ``dataclasses.Field``, which is immutable."""

    def hash_key(self, tx: Tracer) -> Any:
        return self.real_object

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        attribute = getattr(self.real_object, name)
        return ConstantVariable(attribute) if is_literal(attribute) else tx.wrap_static(attribute)


register_builder(dataclasses.Field)(lambda tx, real, source: DataclassFieldVariable(real, source))
