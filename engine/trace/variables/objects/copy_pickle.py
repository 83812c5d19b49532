"""``copy.copy``, ``copy.deepcopy`` and pickle, by the reduce protocol of the classes."""

from __future__ import annotations

import codecs
import collections
import copy
import io
import pickle
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.trace.exc import Unsupported
from engine.trace.operators import arithmetic
from engine.trace.variables.base import NONE, ConstantVariable, LazyVariable, Variable, is_none, realize
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.builtin_functions import BuiltinVariable
from engine.trace.variables.callables.functions import FunctionVariable, UserFunctionVariable
from engine.trace.variables.callables.lru_cache import LruCacheVariable
from engine.trace.variables.callables.partials import FunctoolsPartialVariable
from engine.trace.variables.containers.builtin_subclasses import (
    BuiltinSubclassVariable,
    builtin_base_of,
    call_builtin_new,
)
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.iterators import (
    DictOrSetIteratorVariable,
    RangeIteratorVariable,
    SequenceIteratorVariable,
)
from engine.trace.variables.containers.sequences import (
    ListVariable,
    RangeVariable,
    SliceVariable,
    TupleVariable,
    sequence_items,
)
from engine.trace.variables.containers.sets import SetVariable
from engine.trace.variables.objects.class_lookup import class_source, find_in_class, is_plain_class
from engine.trace.variables.objects.classes import ClassVariable
from engine.trace.variables.objects.id_and_hash import IdKey
from engine.trace.variables.objects.instance_dicts import dict_entries
from engine.trace.variables.objects.python_modules import PythonModuleVariable
from engine.trace.variables.objects.simple_namespace import SimpleNamespaceVariable
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable
from engine.trace.variables.tensors.tensor import TensorVariable

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer

Args = list[Variable]
Kwargs = dict[str, Variable]
CopyFunction = Callable[[Variable], Variable]


@dataclass(frozen=True)
class ReduceParts:
    """Result of ``__reduce_ex__``: constructor, arguments, state, list items and dict items.

    ``uses_new``: the constructor is a class, and its ``__new__`` creates the instance.
    """

    constructor: Variable
    args: Args
    state: Variable
    list_items: Args
    dict_items: list[tuple[Variable, Variable]]
    uses_new: bool = False


def _python_method(tx: Tracer, of: Variable, name: str) -> Variable | None:
    """Return a bound method that Python code defines, or None."""
    found = find_in_class(of.python_type(), name)
    if found is None or not isinstance(found[1], types.FunctionType) or not isinstance(of, UserDefinedObjectVariable):
        return None
    return of.lookup_special_method(tx, name)


def reduce_object(tx: Tracer, of: Variable, protocol: int) -> ReduceParts:
    """Reduce an object as ``__reduce_ex__(protocol)`` does.

    Raises:
        Unsupported: C code without a rule reduces the object.
    """
    by_protocol, plain = _python_method(tx, of, "__reduce_ex__"), _python_method(tx, of, "__reduce__")
    if by_protocol is not None:
        return _parse_reduce_result(tx, of, by_protocol.call(tx, [ConstantVariable(protocol)], {}))
    if plain is not None:
        return _parse_reduce_result(tx, of, plain.call(tx, [], {}))
    if isinstance(of, FunctoolsPartialVariable):
        return _parse_reduce_result(tx, of, of.call_builtin_method(tx, "__reduce__", [], {}))
    if isinstance(of, SliceVariable):
        return ReduceParts(tx.wrap_static(slice), list(of.bounds), NONE, [], [])
    if isinstance(of, SetVariable) and of.cls in (set, frozenset):
        return ReduceParts(tx.wrap_static(of.cls), [ListVariable(list(of.elements.values()))], NONE, [], [])
    is_known = type(of) in (UserDefinedObjectVariable, SimpleNamespaceVariable) and (
        is_plain_class(of.python_type()) or of.python_type() is _SIMPLE_NAMESPACE
    )
    if not isinstance(of, BuiltinSubclassVariable) and not is_known:
        raise Unsupported("copy", f"copying or pickling {of.describe()}")
    assert isinstance(of, UserDefinedObjectVariable)
    cls = (
        tx.wrap(of.cls, class_source(of.cls))
        if of.cls not in tx.objects.new_classes
        else tx.objects.new_classes[of.cls]
    )
    return _default_reduce(tx, of, cls, protocol)


_SIMPLE_NAMESPACE = types.SimpleNamespace


def _parse_reduce_result(tx: Tracer, of: Variable, told: Variable) -> ReduceParts:
    """Parse the result tuple of ``__reduce__``."""
    told = realize(tx, told)
    if not isinstance(told, TupleVariable) or not 2 <= len(told.items) <= 5:
        raise Unsupported("copy", f"the result of __reduce__ of {of.describe()} is used")
    parts = [realize(tx, i) for i in told.items] + [NONE] * 3
    items = [] if is_none(parts[3]) else list(sequence_items(tx, parts[3]))
    pairs = [] if is_none(parts[4]) else [sequence_items(tx, p) for p in sequence_items(tx, parts[4])]
    return ReduceParts(parts[0], list(sequence_items(tx, parts[1])), parts[2], items, [(p[0], p[1]) for p in pairs])


def _default_reduce(tx: Tracer, of: UserDefinedObjectVariable, cls: Variable, protocol: int) -> ReduceParts:
    if _python_method(tx, of, "__getnewargs_ex__") is not None:
        raise Unsupported("copy", f"__getnewargs_ex__ of {of.describe()} is called")
    args: Args = []
    items: Args = []
    entries: list[tuple[Variable, Variable]] = []
    asked = _python_method(tx, of, "__getnewargs__")
    slots = _slots(tx, of)
    if protocol < 2 and (asked is not None or slots or _has_new(of.cls)):
        raise Unsupported("pickle", f"a pickle of {of.describe()} by an old protocol")
    if asked is not None:
        args = list(sequence_items(tx, asked.call(tx, [], {})))
    by_new = True
    if isinstance(of, BuiltinSubclassVariable):
        inner, base = of.inner, builtin_base_of(of.cls)
        if isinstance(inner, ListVariable):
            items = list(inner.items)
        elif isinstance(inner, DictVariable):
            pairs = [sequence_items(tx, pair) for pair in sequence_items(tx, of.call_method(tx, "items", [], {}))]
            entries = [(pair[0], pair[1]) for pair in pairs]
            by_new = base is dict
            args = [inner.default_factory or NONE] if base is collections.defaultdict else args
        elif isinstance(inner, SetVariable):
            args, by_new = [ListVariable(list(inner.elements.values()))], False
        elif asked is None:
            args = [inner]
    return ReduceParts(cls, args, _read_state(tx, of, slots), items, entries, by_new)


def _has_new(cls: type) -> bool:
    found = find_in_class(cls, "__new__")
    return found is not None and isinstance(found[1], (types.FunctionType, staticmethod))


def _slots(tx: Tracer, of: UserDefinedObjectVariable) -> dict[str, Variable]:
    names = [
        name
        for base in of.cls.__mro__
        for name, entry in vars(base).items()
        if type(entry) is types.MemberDescriptorType and base.__flags__ & (1 << 9)
    ]
    if names and of.source is not None and not of.is_constructed:
        raise Unsupported("copy", f"copying or pickling {of.describe()}, which has __slots__")
    return {name: value for name in names if (value := of.attr_writes.get(name)) is not None}


def _read_state(tx: Tracer, of: UserDefinedObjectVariable, slots: dict[str, Variable]) -> Variable:
    asked = _python_method(tx, of, "__getstate__")
    if asked is not None:
        return realize(tx, asked.call(tx, [], {}))
    own: Variable = NONE
    if not of.has_no_dict() or of.python_type() is _SIMPLE_NAMESPACE:
        held = of.get_attr(tx, "__dict__")
        entries = dict_entries(held)
        if entries:
            own = held if held is of else DictVariable(dict(entries))
    return TupleVariable([own, DictVariable.from_str_keys(slots)]) if slots else own


def rebuild_from_reduce(
    tx: Tracer, parts: ReduceParts, copied: CopyFunction, made_known: Callable[[Variable], None]
) -> Variable:
    """Rebuild an object from copies of its parts, as ``copy._reconstruct`` does.

    The callback ``made_known`` gets the new object before its state is set.
    """
    args = [copied(a) for a in parts.args]
    made = realize(
        tx, _call_new(tx, parts.constructor, args) if parts.uses_new else parts.constructor.call(tx, args, {})
    )
    made_known(made)
    if not is_none(parts.state):
        _apply_state(tx, made, realize(tx, copied(parts.state)))
    for item in parts.list_items:
        realize(tx, made.get_attr(tx, "append")).call(tx, [copied(item)], {})
    for key, value in parts.dict_items:
        made.set_item(tx, realize(tx, copied(key)), copied(value))
    return made


def _call_new(tx: Tracer, cls: Variable, args: Args) -> Variable:
    """Call ``cls.__new__(cls, *args)``."""
    held = cls.as_python_object() if cls.as_python_object() is not NotImplemented else cls.as_python_constant(tx)
    found = find_in_class(held, "__new__")
    if _has_new(held) and found is not None:
        return realize(tx, cls.get_attr(tx, "__new__")).call(tx, [cls, *args], {})
    base = builtin_base_of(held)
    if base is not None:
        return call_builtin_new(tx, held, base, args, {})
    return (
        SimpleNamespaceVariable(held, None, NotImplemented)
        if held is _SIMPLE_NAMESPACE
        else UserDefinedObjectVariable(held, None, NotImplemented)
    )


def _apply_state(tx: Tracer, made: Variable, state: Variable) -> None:
    setter = _python_method(tx, made, "__setstate__")
    if setter is not None:
        setter.call(tx, [state], {})
        return
    if isinstance(made, FunctoolsPartialVariable):
        made.call_builtin_method(tx, "__setstate__", [state], {})
        return
    own: Variable = state
    slots: Variable = NONE
    if isinstance(state, TupleVariable) and len(state.items) == 2:
        own, slots = (realize(tx, i) for i in state.items)
    if not is_none(own):
        into = realize(tx, made.get_attr(tx, "__dict__"))
        for name, value in tx.unpack_string_mapping(own.builtin_contents).items():
            into.set_item(tx, ConstantVariable(name), value)
    if not is_none(slots):
        for name, value in tx.unpack_string_mapping(slots).items():
            made.set_attr(tx, name, value)


# The copy module.


def _is_atomic(of: Variable) -> bool:
    """Return True if copying returns the same object."""
    return isinstance(
        of, (ConstantVariable, FunctionVariable, ClassVariable, BuiltinVariable, LruCacheVariable, RangeVariable)
    )


@register_rule(copy.copy)
def _copy(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0])
    if (
        _is_atomic(of)
        or isinstance(of, SliceVariable)
        or (isinstance(of, TupleVariable) and (of.cls is tuple or of.is_namedtuple()))
    ):
        return of
    if isinstance(of, ListVariable):
        return ListVariable(list(of.items), None, of.cls, of.maxlen)
    if isinstance(of, (DictVariable, SetVariable)):
        made = of.call_method(tx, "copy", [], {})
        if isinstance(of, DictVariable) and isinstance(made, DictVariable):
            made.attributes.update(of.attributes)
        return made
    own = _python_method(tx, of, "__copy__")
    if own is not None:
        return own.call(tx, [], {})
    if isinstance(of, BuiltinSubclassVariable) and builtin_base_of(of.cls) is collections.defaultdict:
        return realize(tx, of.get_attr(tx, "copy")).call(tx, [], {})
    parts = reduce_object(tx, of, 4)
    return rebuild_from_reduce(tx, parts, lambda value: value, lambda made: None)


class DeepcopyMemoVariable(DictVariable):
    """The memo dict that ``deepcopy`` passes to ``__deepcopy__``: copies by object id."""

    def __init__(self) -> None:
        super().__init__({})
        self.copies: dict[int, tuple[Variable, Variable]] = {}
        """Copies by id of the variable; the variable is stored too, so that its id stays unique."""

    def lookup(self, tx: Tracer, of: Variable) -> Variable | None:
        """Return the copy of a variable, or None."""
        known = self.copies.get(id(of))
        if known is not None:
            return known[0]
        entry = self.entries.get(IdKey(tx, of)) if self.entries and of.is_mutable else None
        return None if entry is None else entry[1]


@register_rule(copy.deepcopy)
def _deepcopy(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    given = dict(zip(("x", "memo"), args, strict=False)) | kwargs
    memo = realize(tx, given.get("memo", NONE))
    if not isinstance(memo, DeepcopyMemoVariable):
        if not is_none(memo) and (not isinstance(memo, DictVariable) or memo.entries):
            raise Unsupported("copy", "copy.deepcopy() with a user-defined memo")
        memo = DeepcopyMemoVariable()
    return _deepcopy_variable(tx, realize(tx, given["x"]), memo)


def _deepcopy_variable(tx: Tracer, of: Variable, memo: DeepcopyMemoVariable) -> Variable:
    known = memo.lookup(tx, of)
    if known is not None:
        return known

    def deep(value: Variable) -> Variable:
        return _deepcopy_variable(tx, realize(tx, value), memo)

    def keep(value: Variable) -> None:
        memo.copies[id(of)] = (value, of)

    made: Variable
    if _is_atomic(of):
        return of
    own = _python_method(tx, of, "__deepcopy__")
    if own is not None:
        made = realize(tx, own.call(tx, [memo], {}))
    elif isinstance(of, TensorVariable) and not of.fake.requires_grad:
        made = of.call_method(tx, "clone", [], {})
    else:
        made = _copy_container(of, deep, keep) or rebuild_from_reduce(tx, reduce_object(tx, of, 4), deep, keep)
    keep(made)
    return made


def _is_unchanged_by_copy(element: Variable, copied: Variable) -> bool:
    return isinstance(copied, ConstantVariable) or copied is (
        element.realized if isinstance(element, LazyVariable) else element
    )


def _copy_container(of: Variable, deep: CopyFunction, keep: Callable[[Variable], None]) -> Variable | None:
    """Copy a builtin container and its items; return None for anything else."""
    if isinstance(of, ListVariable):
        items = ListVariable([], None, of.cls, of.maxlen)
        keep(items)
        items.items.extend(map(deep, list(of.items)))
        return items
    if isinstance(of, TupleVariable):
        parts = [deep(i) for i in of.items]
        is_same = all(a is (b.realized if hasattr(b, "realized") else b) for a, b in zip(parts, of.items, strict=True))
        return of if is_same and of.cls is tuple else TupleVariable(parts, of.cls)
    if isinstance(of, DictVariable):
        entries = DictVariable({}, None, of.cls, of.default_factory)
        keep(entries)
        for stands_for, (key, value) in list(of.entries.items()):
            copied_key = deep(key)
            if not isinstance(copied_key, ConstantVariable) and copied_key is not key:
                raise Unsupported("copy", "copy.deepcopy() of a dict whose keys are copied")
            entries.entries[stands_for] = (copied_key, deep(value))
        entries.attributes.update((name, deep(value)) for name, value in of.attributes.items())
        return entries
    if isinstance(of, SetVariable) and all(_is_unchanged_by_copy(e, deep(e)) for e in of.elements.values()):
        return SetVariable(dict(of.elements), None, of.cls)
    return None


# The pickle module.


class PickledBytesVariable(Variable):
    """Pickled bytes, represented by their reduced contents, from which loads rebuilds objects."""

    def __init__(self, of: Variable) -> None:
        self.contents = of

    def python_type(self) -> type:
        return bytes

    def describe(self) -> str:
        return "bytes of a pickle"

    def is_truthy(self, tx: Tracer) -> bool:
        return True

    def reconstruct(self, cg: PyCodegen) -> None:
        raise Unsupported("rebuild-value", "rebuilding a pickle after the graph")


class PickledObjectVariable(Variable):
    """An object in a pickle, in reduced form."""

    def __init__(self) -> None:
        self.parts: ReduceParts | None = None
        self.is_constructor_known = False
        """True once its constructor is saved, so that its state may refer to the object."""

    def python_type(self) -> type:
        return object


class _Pickler:
    """Writes one pickle; a repeated object becomes a reference."""

    def __init__(self, tx: Tracer, protocol: int) -> None:
        self.tx = tx
        self.protocol = protocol
        self.memo: dict[int, tuple[Variable, Variable]] = {}

    def save(self, value: Variable) -> Variable:
        """Return the pickled form of a variable."""
        of = realize(self.tx, value)
        known = self.memo.get(id(of))
        if known is not None:
            if isinstance(known[0], PickledObjectVariable) and not known[0].is_constructor_known:
                raise Unsupported("pickle", f"pickle of {of.describe()}, which contains itself")
            return known[0]
        if isinstance(of, (FunctionVariable, ClassVariable, BuiltinVariable, PythonModuleVariable)):
            return self._save_global(of)
        if isinstance(of, (ConstantVariable, RangeVariable)):
            return of

        def keep(made: Variable) -> None:
            self.memo[id(of)] = (made, of)

        made = self._save_iterator(of) or _copy_container(of, self.save, keep)
        if made is None:
            made = PickledObjectVariable()
            keep(made)
            parts = reduce_object(self.tx, of, self.protocol)
            make, args = self.save(parts.constructor), [self.save(a) for a in parts.args]
            made.is_constructor_known = True
            made.parts = ReduceParts(
                make,
                args,
                self.save(parts.state),
                [self.save(i) for i in parts.list_items],
                [(self.save(k), self.save(v)) for k, v in parts.dict_items],
                parts.uses_new,
            )
        keep(made)
        return made

    def _save_global(self, of: Variable) -> Variable:
        """Save a function or class by name; guard on the object found by that name."""
        real = of.as_python_object()
        module, name = getattr(real, "__module__", None), getattr(real, "__qualname__", None)
        found: Any = sys.modules.get(str(module))
        for part in str(name).split("."):
            found = getattr(found, part, None)
        if real is NotImplemented or found is not real or isinstance(real, types.BuiltinMethodType):
            is_function = isinstance(real, types.BuiltinFunctionType) and isinstance(real.__self__, types.ModuleType)
            if not is_function or found is not real:
                raise Unsupported("pickle", f"pickle of {of.describe()}")
        if isinstance(of, UserFunctionVariable) and of.source is not None:
            self.tx.guard_identity(real, of.source, "it was pickled by name")
        return of

    def _save_iterator(self, of: Variable) -> Variable | None:
        """Save an iterator with a copy of its iterable; return None for anything else."""
        if isinstance(of, DictOrSetIteratorVariable):
            rest = of.remaining_items()
            return SequenceIteratorVariable([self.save(i) for i in rest], type(iter([])), ListVariable([]))
        if type(of) is SequenceIteratorVariable and of.cls in _SEQUENCE_ITERATOR_TYPES:
            items = [self.save(i) for i in of.items]
            made = SequenceIteratorVariable(items, of.cls, None if of.iterable is None else ListVariable(items))
            made.position = of.position
            return made
        if isinstance(of, RangeIteratorVariable):
            over = RangeIteratorVariable(of.value)
            over.position = of.position
            return over
        return None


_SEQUENCE_ITERATOR_TYPES: tuple[type, ...] = (type(iter([])), type(iter(())), type(iter("")), type(iter(b"")))


class _VariableUnpickler:
    """Reads one pickle."""

    def __init__(self, tx: Tracer) -> None:
        self.tx = tx
        self.memo: dict[int, Variable] = {}

    def load(self, of: Variable) -> Variable:
        """Create a new object from its pickled form."""
        known = self.memo.get(id(of))
        if known is not None:
            return known

        def keep(made: Variable) -> None:
            self.memo[id(of)] = made

        made: Variable
        if isinstance(of, PickledObjectVariable):
            assert of.parts is not None
            made = rebuild_from_reduce(self.tx, of.parts, self.load, keep)
        elif type(of) is SequenceIteratorVariable:
            items = [self.load(i) for i in of.items]
            made = SequenceIteratorVariable(items, of.cls, None if of.iterable is None else ListVariable(items))
            made.position = of.position
        elif isinstance(of, RangeIteratorVariable):
            made = RangeIteratorVariable(of.value)
            made.position = of.position
        else:
            made = _copy_container(of, self.load, keep) or of
        keep(made)
        return made


def _has_known_bytes(tx: Tracer, value: Variable, seen: set[int]) -> bool:
    """Return True if the pickle bytes are known at trace time.

    That holds for plain data in which no mutable container occurs twice.
    """
    of = realize(tx, value)
    if isinstance(of, (ConstantVariable, RangeVariable)):
        return True
    if (
        not isinstance(of, (ListVariable, TupleVariable, DictVariable, SetVariable))
        or of.python_type() not in _PLAIN_CONTAINERS
    ):
        return False
    if id(of) in seen and not isinstance(of, TupleVariable):
        return False
    seen.add(id(of))
    return all(_has_known_bytes(tx, child, seen) for child in of.child_variables())


_PLAIN_CONTAINERS = (list, tuple, dict, set, frozenset)


@register_rule(pickle.dumps)
def _dumps(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    given = dict(zip(("obj", "protocol"), args, strict=False)) | kwargs
    if "obj" not in given or set(given) - {"obj", "protocol"}:
        return arithmetic.fold_constant_call(tx, pickle.dumps, args, kwargs, "pickle.dumps()")
    of = realize(tx, given["obj"])
    if _has_known_bytes(tx, of, set()):
        return arithmetic.fold_constant_call(tx, pickle.dumps, args, kwargs, "pickle.dumps()")
    number = realize(tx, given.get("protocol", NONE)).as_python_constant(tx)
    protocol = pickle.DEFAULT_PROTOCOL if number is None else pickle.HIGHEST_PROTOCOL if number < 0 else int(number)
    if protocol > pickle.HIGHEST_PROTOCOL:
        tx.fold_constant(pickle.dumps, None, protocol)
    return PickledBytesVariable(_Pickler(tx, protocol).save(of))


@register_rule(pickle.loads)
def _loads(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    given = realize(tx, args[0]) if args else NONE
    if isinstance(given, PickledBytesVariable) and not kwargs:
        return _VariableUnpickler(tx).load(given.contents)
    if not isinstance(given, ConstantVariable) or given.python_type() is not bytes:
        raise Unsupported("pickle", "pickle.loads() of bytes that are not known while tracing")
    return tx.fold_constant(
        _load_plain, given.value, **dict(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True))
    )


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler for plain data only.

    Each call must create objects of other classes itself, by their own code, so they raise Unsupported.
    """

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if found not in _PLAIN_DATA_CLASSES:
            raise Unsupported("pickle", f"pickle.loads() of data that contains {module}.{name}")
        return found


_PLAIN_DATA_CLASSES: tuple[Any, ...] = (
    set,
    frozenset,
    complex,
    range,
    collections.OrderedDict,
    collections.deque,
    collections.defaultdict,
    codecs.encode,
)


def _load_plain(data: bytes, **words: Any) -> Any:
    found = _PlainUnpickler(io.BytesIO(data), **words).load()
    seen: set[int] = set()
    todo = [found]
    while todo:
        part = todo.pop()
        if isinstance(part, (tuple, frozenset)):
            todo += part
        elif isinstance(part, (list, dict, set, collections.deque)):
            if id(part) in seen:
                raise Unsupported("pickle", "pickle.loads() of data that contains one object twice")
            seen.add(id(part))
            todo += [x for pair in part.items() for x in pair] if isinstance(part, dict) else part
    return found
