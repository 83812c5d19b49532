"""``copy.copy``, ``copy.deepcopy`` and pickle, by the reduce protocol of the classes."""

from __future__ import annotations

import codecs
import collections
import copy
import functools
import io
import pickle
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from engine.trace.exc import Unsupported
from engine.trace.operators import arithmetic
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, is_none, realize
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.builtin_functions import BuiltinVariable
from engine.trace.variables.callables.functions import FunctionVariable, UserFunctionVariable
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
from engine.trace.variables.objects.class_lookup import class_source, find_in_class, find_python_method, is_plain_class
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


CopyFunction = Callable[[Variable], Variable]


@dataclass(frozen=True, slots=True)
class ReduceParts:
    """Result of ``__reduce_ex__``: constructor, arguments, state, list items and dict items.

    ``uses_new``: the constructor is a class, and its ``__new__`` creates the instance.
    """

    constructor: Variable
    args: Args
    state: Variable = NONE
    list_items: Args = field(default_factory=list)
    dict_items: list[tuple[Variable, Variable]] = field(default_factory=list)
    uses_new: bool = False


def _call_python_method(tx: Tracer, of: Variable, name: str, args: Args) -> Variable | None:
    """Call a method that Python code defines, or return None."""
    is_python = find_python_method(of.python_type(), name) is not None
    return of.call_user_method(tx, name, args) if is_python else None


def reduce_object(tx: Tracer, of: Variable, protocol: int) -> ReduceParts:
    """Reduce an object as ``__reduce_ex__(protocol)`` does.

    Raises:
        Unsupported: C code without a rule reduces the object.
    """
    made = _call_python_method(tx, of, "__reduce_ex__", [ConstantVariable(protocol)])
    made = made or _call_python_method(tx, of, "__reduce__", [])
    return _reduce_in_c(of, tx, protocol) if made is None else _parse_reduce_result(tx, of, made)


@functools.singledispatch
def _reduce_in_c(of: Variable, tx: Tracer, protocol: int) -> ReduceParts:
    """Reduce an object whose class leaves that to C code."""
    raise Unsupported("copy", f"copying or pickling {of.describe()}")


@_reduce_in_c.register(FunctoolsPartialVariable)
def _reduce_partial(of: FunctoolsPartialVariable, tx: Tracer, protocol: int) -> ReduceParts:
    return _parse_reduce_result(tx, of, of.call_builtin_method(tx, "__reduce__", [], {}))


@_reduce_in_c.register(SliceVariable)
def _reduce_slice(of: SliceVariable, tx: Tracer, protocol: int) -> ReduceParts:
    return ReduceParts(tx.wrap_static(slice), list(of.bounds))


@_reduce_in_c.register(SetVariable)
def _reduce_set(of: SetVariable, tx: Tracer, protocol: int) -> ReduceParts:
    if of.cls not in (set, frozenset):
        raise Unsupported("copy", f"copying or pickling {of.describe()}")
    return ReduceParts(tx.wrap_static(of.cls), [ListVariable(list(of.elements.values()))])


@_reduce_in_c.register(UserDefinedObjectVariable)
def _reduce_plain_object(of: UserDefinedObjectVariable, tx: Tracer, protocol: int) -> ReduceParts:
    if type(of) is not UserDefinedObjectVariable or not is_plain_class(of.cls):
        raise Unsupported("copy", f"copying or pickling {of.describe()}")
    return _default_reduce(of, tx, protocol)


_SIMPLE_NAMESPACE = types.SimpleNamespace


def _parse_reduce_result(tx: Tracer, of: Variable, result: Variable) -> ReduceParts:
    """Parse the result tuple of ``__reduce__``."""
    result = realize(tx, result)
    if not isinstance(result, TupleVariable) or not 2 <= len(result.items) <= 5:
        raise Unsupported("copy", f"the result of __reduce__ of {of.describe()} is used")
    parts = [realize(tx, i) for i in result.items] + [NONE] * 3
    items = [] if is_none(parts[3]) else list(sequence_items(tx, parts[3]))
    pairs = [] if is_none(parts[4]) else [sequence_items(tx, p) for p in sequence_items(tx, parts[4])]
    return ReduceParts(parts[0], list(sequence_items(tx, parts[1])), parts[2], items, [(p[0], p[1]) for p in pairs])


@_reduce_in_c.register(BuiltinSubclassVariable)
@_reduce_in_c.register(SimpleNamespaceVariable)
def _default_reduce(of: UserDefinedObjectVariable, tx: Tracer, protocol: int) -> ReduceParts:
    """Implement ``object.__reduce_ex__``."""
    if find_python_method(of.cls, "__getnewargs_ex__") is not None:
        raise Unsupported("copy", f"__getnewargs_ex__ of {of.describe()} is called")
    has_args = find_python_method(of.cls, "__getnewargs__") is not None
    slots = _slots(tx, of)
    if protocol < 2 and (has_args or slots or _has_new(of.cls)):
        raise Unsupported("pickle", f"a pickle of {of.describe()} by an old protocol")
    given = _call_python_method(tx, of, "__getnewargs__", [])
    args = None if given is None else list(tx.unpack_iterable(given))
    made_class = tx.objects.new_classes.get(of.cls)
    cls = tx.wrap(of.cls, class_source(of.cls)) if made_class is None else made_class
    contents = _reduce_contents(of.builtin_contents, tx, of, args)
    return replace(contents, constructor=cls, state=_read_state(tx, of, slots))


@functools.singledispatch
def _reduce_contents(inner: Variable, tx: Tracer, of: Variable, args: Args | None) -> ReduceParts:
    """Reduce the builtin contents of an object; ``args`` are those of ``__getnewargs__``.

    A number, string or tuple is an argument of ``__new__``.
    """
    own = [] if inner is of else [inner]
    return ReduceParts(NONE, own if args is None else args, uses_new=True)


@_reduce_contents.register(ListVariable)
def _reduce_list_contents(inner: ListVariable, tx: Tracer, of: Variable, args: Args | None) -> ReduceParts:
    return ReduceParts(NONE, args or [], list_items=list(inner.items), uses_new=True)


@_reduce_contents.register(DictVariable)
def _reduce_dict_contents(inner: DictVariable, tx: Tracer, of: Variable, args: Args | None) -> ReduceParts:
    base = builtin_base_of(of.python_type())
    pairs = [sequence_items(tx, pair) for pair in sequence_items(tx, of.call_method(tx, "items", [], {}))]
    if base is collections.defaultdict:
        args = [inner.default_factory or NONE]
    return ReduceParts(NONE, args or [], dict_items=[(p[0], p[1]) for p in pairs], uses_new=base is dict)


@_reduce_contents.register(SetVariable)
def _reduce_set_contents(inner: SetVariable, tx: Tracer, of: Variable, args: Args | None) -> ReduceParts:
    return ReduceParts(NONE, [ListVariable(list(inner.elements.values()))])


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
    state = _call_python_method(tx, of, "__getstate__", [])
    if state is not None:
        return state
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
    held = cls.as_python_object()
    if _has_new(held):
        return realize(tx, cls.get_attr(tx, "__new__")).call(tx, [cls, *args], {})
    base = builtin_base_of(held)
    if base is not None:
        return call_builtin_new(tx, held, base, args, {})
    kind = SimpleNamespaceVariable if held is _SIMPLE_NAMESPACE else UserDefinedObjectVariable
    return kind(held, None, NotImplemented)


def _apply_state(tx: Tracer, made: Variable, state: Variable) -> None:
    if _call_python_method(tx, made, "__setstate__", [state]) is not None:
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


@register_rule(copy.copy)
def _copy(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0])
    if of.is_copied_by_reference:
        return of
    made = _copy_builtin(of, tx) or _call_python_method(tx, of, "__copy__", [])
    if made is not None:
        return made
    if builtin_base_of(of.python_type()) is collections.defaultdict:
        return realize(tx, of.get_attr(tx, "copy")).call(tx, [], {})
    return rebuild_from_reduce(tx, reduce_object(tx, of, 4), lambda value: value, lambda made: None)


@functools.singledispatch
def _copy_builtin(of: Variable, tx: Tracer) -> Variable | None:
    """Return ``copy.copy`` of a builtin container or slice; None for anything else."""
    return None


@_copy_builtin.register(SliceVariable)
def _copy_slice(of: SliceVariable, tx: Tracer) -> Variable | None:
    return of


@_copy_builtin.register(TupleVariable)
def _copy_tuple(of: TupleVariable, tx: Tracer) -> Variable | None:
    return of if of.cls is tuple or of.is_namedtuple() else None


@_copy_builtin.register(ListVariable)
def _copy_list(of: ListVariable, tx: Tracer) -> Variable | None:
    return ListVariable(list(of.items), None, of.cls, of.maxlen)


@_copy_builtin.register(SetVariable)
def _copy_set(of: SetVariable, tx: Tracer) -> Variable | None:
    return of.call_method(tx, "copy", [], {})


@_copy_builtin.register(DictVariable)
def _copy_dict(of: DictVariable, tx: Tracer) -> Variable | None:
    made = of.call_method(tx, "copy", [], {})
    if isinstance(made, DictVariable):
        made.attributes.update(of.attributes)
    return made


class DeepcopyMemoVariable(DictVariable):
    """The memo dict that ``deepcopy`` passes to ``__deepcopy__``: copies by object id."""

    __slots__ = ("copies",)

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
    if of.is_copied_by_reference:
        return of
    own = _call_python_method(tx, of, "__deepcopy__", [memo])
    if own is not None:
        made = own
    elif isinstance(of, TensorVariable) and not of.fake.requires_grad:
        made = of.call_method(tx, "clone", [], {})
    else:
        made = _copy_container(of, deep, keep) or rebuild_from_reduce(tx, reduce_object(tx, of, 4), deep, keep)
    keep(made)
    return made


def _is_unchanged_by_copy(element: Variable, copied: Variable) -> bool:
    return copied is getattr(element, "realized", element)


@functools.singledispatch
def _copy_container(of: Variable, deep: CopyFunction, keep: Callable[[Variable], None]) -> Variable | None:
    """Copy a builtin container and its items; return None for anything else."""
    return None


@_copy_container.register(ListVariable)
def _copy_list_items(of: ListVariable, deep: CopyFunction, keep: Callable[[Variable], None]) -> Variable | None:
    made = ListVariable([], None, of.cls, of.maxlen)
    keep(made)
    made.items.extend(map(deep, list(of.items)))
    return made


@_copy_container.register(TupleVariable)
def _copy_tuple_items(of: TupleVariable, deep: CopyFunction, keep: Callable[[Variable], None]) -> Variable | None:
    parts = [deep(i) for i in of.items]
    is_same = of.cls is tuple and all(map(_is_unchanged_by_copy, of.items, parts))
    return of if is_same else TupleVariable(parts, of.cls)


@_copy_container.register(DictVariable)
def _copy_dict_items(of: DictVariable, deep: CopyFunction, keep: Callable[[Variable], None]) -> Variable | None:
    made = DictVariable({}, None, of.cls, of.default_factory)
    keep(made)
    for stands_for, (key, value) in list(of.entries.items()):
        copied_key = deep(key)
        if copied_key is not key and not isinstance(copied_key, ConstantVariable):
            raise Unsupported("copy", "copy.deepcopy() of a dict whose keys are copied")
        made.entries[stands_for] = (copied_key, deep(value))
    made.attributes.update((name, deep(value)) for name, value in of.attributes.items())
    return made


@_copy_container.register(SetVariable)
def _copy_set_items(of: SetVariable, deep: CopyFunction, keep: Callable[[Variable], None]) -> Variable | None:
    pairs = ((element, deep(element)) for element in of.elements.values())
    if all(isinstance(copied, ConstantVariable) or _is_unchanged_by_copy(e, copied) for e, copied in pairs):
        return SetVariable(dict(of.elements), None, of.cls)
    return None


# The pickle module.


@dataclass(frozen=True, eq=False)
class PickledBytesVariable(Variable):
    """Pickled bytes, represented by their reduced contents, from which loads rebuilds objects."""

    __slots__ = ("contents",)
    contents: Variable

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

    __slots__ = ("is_constructor_known", "parts")

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
        if isinstance(of, (ConstantVariable, RangeVariable)):
            return of
        if isinstance(of, _PICKLED_BY_NAME):
            return self._save_global(of)

        def keep(made: Variable) -> None:
            self.memo[id(of)] = (made, of)

        made = _copy_iterator(of, self.save) or _copy_container(of, self.save, keep)
        if made is None:
            made = PickledObjectVariable()
            keep(made)
            parts = reduce_object(self.tx, of, self.protocol)
            make, args = self.save(parts.constructor), [self.save(a) for a in parts.args]
            made.is_constructor_known = True
            state, items = self.save(parts.state), [self.save(i) for i in parts.list_items]
            entries = [(self.save(k), self.save(v)) for k, v in parts.dict_items]
            made.parts = ReduceParts(make, args, state, items, entries, parts.uses_new)
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


_PICKLED_BY_NAME = (FunctionVariable, ClassVariable, BuiltinVariable, PythonModuleVariable)


@functools.singledispatch
def _copy_iterator(of: Variable, copied: CopyFunction) -> Variable | None:
    """Copy an iterator with its iterable; return None for anything else."""
    return None


@_copy_iterator.register(DictOrSetIteratorVariable)
def _copy_dict_iterator(of: DictOrSetIteratorVariable, copied: CopyFunction) -> Variable | None:
    return SequenceIteratorVariable([copied(i) for i in of.remaining_items()], type(iter([])), ListVariable([]))


@_copy_iterator.register(SequenceIteratorVariable)
def _copy_sequence_iterator(of: SequenceIteratorVariable, copied: CopyFunction) -> Variable | None:
    if type(of) is not SequenceIteratorVariable or of.cls not in _SEQUENCE_ITERATOR_TYPES:
        return None
    items = [copied(i) for i in of.items]
    made = SequenceIteratorVariable(items, of.cls, None if of.iterable is None else ListVariable(items))
    made.position = of.position
    return made


@_copy_iterator.register(RangeIteratorVariable)
def _copy_range_iterator(of: RangeIteratorVariable, copied: CopyFunction) -> Variable | None:
    made = RangeIteratorVariable(of.value)
    made.position = of.position
    return made


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
        else:
            made = _copy_iterator(of, self.load) or _copy_container(of, self.load, keep) or of
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
