"""Tuples, lists, ranges, slices and deques."""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from engine.ir import exact
from engine.ir.origin import Attr, Origin, item_origin
from engine.ir.value_guard import Equals, LengthIs
from engine.trace.signals import UserException
from engine.trace.values.base import NONE, Const, LazyText, NotConstant, Value, force, type_name
from engine.trace.values.refusals import index_stand_in, is_iterable
from engine.trace.values.wrap import makes, wraps, wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


def sequence_items(tx: Tracer, value: Value) -> list[Value]:
    """The items of a tuple or list, or of whatever else can be iterated to its end."""
    value = force(tx, value)
    if isinstance(value, SequenceValue):
        return value.items
    iterator = force(tx, value.iterate(tx))
    items: list[Value] = []
    while (item := iterator.step(tx)) is not None:
        items.append(item)
    return items


_ITERATORS: dict[type, type] = {cls: type(iter(cls())) for cls in (list, tuple, collections.deque)}


class SequenceValue(Value):
    """What tuples and lists share: ``items``, bottom first, maybe lazy."""

    items: list[Value]

    def python(self, tx: Tracer) -> Any:
        return self._make(tx.constants(self.items))

    def _make(self, items: list[Any]) -> Any:
        return self.type()(items)

    def children(self) -> list[Value]:
        return self.items

    def describe(self) -> str:
        inside = ", ".join(i.describe() for i in self.items[:4]) + (", ..." if len(self.items) > 4 else "")
        return f"{self.type().__name__} of {len(self.items)} [{inside}]"

    def truth(self, tx: Tracer) -> bool:
        return bool(self.items)

    def length(self, tx: Tracer) -> Value:
        return Const(len(self.items))

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        pairs = [force(tx, i).graph_arg(tx) for i in self.items]
        return self._make_arg([p[0] for p in pairs]), self._make_arg([p[1] for p in pairs])

    def _make_arg(self, items: list[Any]) -> Any:
        return items

    def get_item(self, tx: Tracer, key: Value) -> Value:
        index = key.python(tx) if isinstance(key, SliceValue) else index_of(tx, key)
        if isinstance(index, slice):
            return self.part(tx.sliced(self.items, index))
        if not isinstance(index, int):
            tx.raise_type_error(
                f"{self.type().__name__} indices must be integers or slices, not {type(index).__name__}"
            )
        if not -len(self.items) <= index < len(self.items):
            tx.raise_error(IndexError, f"{self.type().__name__} index out of range")
        found: Value = self.items[index]
        return found

    def part(self, items: list[Value]) -> Value:
        """A slice of the same type."""
        raise NotImplementedError

    def contains(self, tx: Tracer, item: Value) -> bool:
        from engine.trace.operations import same_or_equal

        return any(same_or_equal(tx, force(tx, i), item) for i in self.items)

    def iterate(self, tx: Tracer) -> Value:
        from engine.trace.values.iterators import SequenceIterator

        cls = self.type()
        return SequenceIterator(self.items, _ITERATORS.get(cls, type(iter(()))), source=self)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        from engine.trace.values.methods import MethodOf

        if self.lacks(name):
            if self.origin is not None and self.type().__dictoffset__:
                raise self.refuse(f"reading the attribute {name!r}")
            tx.raise_error(AttributeError, f"'{type_name(self.type())}' object has no attribute '{name}'")
        if name == "__class__":
            return tx.fixed(self.type())
        if name == "__doc__":
            return Const(self.type().__doc__)
        return MethodOf(self, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from engine.trace.operations import same_or_equal

        args = [force(tx, a) for a in args]
        match name:
            case "index" if 1 <= len(args) <= 3 and not kwargs:
                for n in range(len(self.items))[slice(*(index_of(tx, a) for a in args[1:]), *_TO_THE_END[len(args)])]:
                    if n >= len(self.items):  # comparing took items away
                        break
                    if same_or_equal(tx, force(tx, self.items[n]), args[0]):
                        return Const(n)
                _raise_missing(tx, args[0], self.type())
            case "count":
                return Const(sum(same_or_equal(tx, force(tx, i), args[0]) for i in self.items))
            case "__len__":
                return self.length(tx)
            case "__getitem__":
                return self.get_item(tx, args[0])
            case "__iter__":
                return self.iterate(tx)
            case "__contains__":
                return Const(self.contains(tx, args[0]))
        return self._other(tx, name, args, kwargs)

    def _other(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from engine.trace.operations import operator_method

        return operator_method(tx, self, name, args, kwargs)


def _raise_missing(tx: Tracer, wanted: Value, kind: type) -> None:
    """Raise what ``index`` raises where nothing is equal to ``wanted``."""
    from engine.trace.values.exceptions import ExceptionValue
    from engine.trace.values.symbolic import SymValue

    if issubclass(kind, tuple):
        tx.raise_error(ValueError, "tuple.index(x): x not in tuple")
    where = f" is not in {'deque' if issubclass(kind, collections.deque) else 'list'}"
    if isinstance(wanted, SymValue):
        raise UserException(ExceptionValue(ValueError, [LazyText([(wanted, _REPR, ""), where])]))
    text = force(tx, tx.fixed(repr).call(tx, [wanted], {})).python(tx)
    tx.raise_error(ValueError, f"{text}{where}")


_REPR = 2
"""The conversion ``!r`` of an f-string."""

_TO_THE_END: dict[int, tuple[None, ...]] = {1: (None,), 2: (None,), 3: ()}
"""What a slice from the bounds of ``index`` lacks, by the number of its arguments."""


def index_of(tx: Tracer, key: Value) -> Any:
    """A key as a Python int where it is one; what stands in for an object that is none."""
    from engine.trace.values.objects import ObjectValue
    from engine.trace.values.tensor import TensorValue

    if isinstance(key, TensorValue):
        raise key.refuse("using its value as an index")
    if isinstance(key, ObjectValue) and key.method(tx, "__index__") is not None:
        key = key.call_special(tx, "__index__", [])
    if isinstance(key, ObjectValue) and not tx.is_constant(key):
        return index_stand_in(key)
    value = key.python(tx)
    return int(value) if isinstance(value, bool) else value


class TupleValue(SequenceValue):
    """A tuple, named tuple, ``torch.Size`` or structseq: ``cls`` says which."""

    __slots__ = ("cls", "items", "origin")

    def __init__(self, items: list[Value], cls: type = tuple, origin: Origin | None = None) -> None:
        self.items = items
        self.cls = cls
        self.origin = origin

    def type(self) -> type:
        return self.cls

    def _make(self, items: list[Any]) -> Any:
        if self.is_named():
            return self.cls(*items)
        return self.cls(items)

    def is_named(self) -> bool:
        """Whether it is a ``collections.namedtuple``."""
        return self.cls is not tuple and hasattr(self.cls, "_fields") and issubclass(self.cls, tuple)

    def _make_arg(self, items: list[Any]) -> Any:
        return tuple(items)

    def part(self, items: list[Value]) -> Value:
        if self.cls is tuple and len(items) == len(self.items) and all(map(operator.is_, items, self.items)):
            return self
        return TupleValue(items, torch.Size if self.cls is torch.Size else tuple)

    def key(self, tx: Tracer) -> Any:
        return tuple(force(tx, i).key(tx) for i in self.items)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        from engine.trace.values.classes import class_attribute
        from engine.trace.values.methods import MethodOf

        if self.is_named():
            if name in self.cls._fields:  # type: ignore[attr-defined]
                return self.items[self.cls._fields.index(name)]  # type: ignore[attr-defined]
            if name == "_fields":
                return tx.from_python(self.cls._fields)  # type: ignore[attr-defined]
            found = class_attribute(tx, self.cls, name, self)
            if found is not None and not hasattr(tuple, name):
                return found
            if name == "__getnewargs__":
                return MethodOf(self, name)
        elif self.cls.__module__ == "torch.return_types" and (index := _structseq_index(self.cls, name)) is not None:
            return self.items[index]
        return super().get_attr(tx, name)

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        self._refuse_change(tx, lambda of: setattr(of, name, None))
        super().set_attr(tx, name, value)

    def del_attr(self, tx: Tracer, name: str) -> None:
        self._refuse_change(tx, lambda of: delattr(of, name))
        super().del_attr(tx, name)

    def _refuse_change(self, tx: Tracer, change: Callable[[Any], None]) -> None:
        """Raise the AttributeError of a named tuple whose fields cannot be set."""
        if not self.is_named() or self.cls.__dictoffset__:
            return
        try:
            change(tuple.__new__(self.cls, [None] * len(self.items)))
        except AttributeError as error:
            raise tx.user_exception(error) from error

    def _other(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.is_named():
            match name:
                case "_replace":
                    fields = self.cls._fields  # type: ignore[attr-defined]
                    return TupleValue([kwargs.get(f, i) for f, i in zip(fields, self.items, strict=True)], self.cls)
                case "__getnewargs__" if not args:
                    return TupleValue(list(self.items))
                case "_asdict":
                    from engine.trace.values.mappings import DictValue

                    fields = self.cls._fields  # type: ignore[attr-defined]
                    return DictValue.of(dict(zip(fields, self.items, strict=True)))
            if not hasattr(tuple, name):
                return force(tx, self.get_attr(tx, name)).call(tx, args, kwargs)
        if name == "numel" and self.cls is torch.Size:
            import math

            return force(tx, tx.fixed(math.prod).call(tx, [TupleValue(list(self.items))], {}))
        return super()._other(tx, name, args, kwargs)

    def reconstruct(self, cg: Codegen) -> None:
        if self.cls is tuple:
            cg.load_all(self.items)
            cg.out.emit("BUILD_TUPLE", len(self.items))
            return
        cg.out.callable(lambda: cg.const(self.cls))
        cg.load_all(self.items)
        if self.is_named():
            cg.out.call(len(self.items))
            return
        cg.out.emit("BUILD_TUPLE", len(self.items))
        cg.out.call(1)


def _structseq_index(cls: type, name: str) -> int | None:
    fields = [f for f in dir(cls) if type(getattr(cls, f)).__name__ == "member_descriptor"]
    for f in fields:
        if f == name:
            sample = cls(range(cls.n_fields))  # type: ignore[attr-defined]
            return int(getattr(sample, name))
    return None


class ListValue(SequenceValue):
    """A list (or deque). Its contents live here; every alias is this same object.

    A list from outside may be one that nobody has looked into: ``read`` gives what it holds, and ``added`` is what has been put at its end.
    """

    __slots__ = ("added", "cls", "maxlen", "origin", "read")
    is_mutable = True

    def __init__(
        self,
        items: list[Value],
        origin: Origin | None = None,
        cls: type = list,
        maxlen: int | None = None,
        read: Callable[[], list[Value]] | None = None,
    ) -> None:
        self.added = items
        self.origin = origin
        self.cls = cls
        self.maxlen = maxlen
        self.read = read

    @property
    def items(self) -> list[Value]:
        """What it holds; asking for that takes its length for granted."""
        if self.read is not None:
            read, self.read = self.read, None
            self.added = [*read(), *self.added]
        return self.added

    @items.setter
    def items(self, items: list[Value]) -> None:
        self.added, self.read = items, None

    def type(self) -> type:
        return self.cls

    def children(self) -> list[Value]:
        return self.added

    def describe(self) -> str:
        return super().describe() if self.read is None else "a list that nobody has looked into"

    def _make(self, items: list[Any]) -> Any:
        return collections.deque(items, self.maxlen) if self.cls is collections.deque else items

    def key(self, tx: Tracer) -> Any:
        return tx.raise_type_error(f"unhashable type: '{type_name(self.cls)}'")

    def part(self, items: list[Value]) -> ListValue:
        if self.cls is not collections.deque:
            return ListValue(items)
        kept = items if self.maxlen is None else items[max(0, len(items) - self.maxlen) :]
        return ListValue(kept, None, self.cls, self.maxlen)

    def set_item(self, tx: Tracer, key: Value, value: Value) -> None:
        tx.mutating(self)
        if isinstance(key, SliceValue):
            if not is_iterable(force(tx, value)):
                self._do(tx, operator.setitem, key.python(tx), None)  # refused, in the words of this version of Python
            self._do(tx, operator.setitem, key.python(tx), list(sequence_items(tx, value)))
            return
        self._do(tx, operator.setitem, index_of(tx, key), value)

    def del_item(self, tx: Tracer, key: Value) -> None:
        tx.mutating(self)
        self._do(tx, operator.delitem, key.python(tx) if isinstance(key, SliceValue) else index_of(tx, key))

    def _do(self, tx: Tracer, change: Callable[..., Any], *args: Any) -> Any:
        """Do with the items what Python does with its own list, or raise what it raises of a list or deque like this one."""
        try:
            return change(self.items, *args)
        except (IndexError, TypeError, ValueError, OverflowError, MemoryError) as error:
            try:
                change(self._make(list(self.items)), *args)
            except type(error) as real:
                raise tx.user_exception(real) from real
            raise

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "maxlen" and self.cls is collections.deque:
            return Const(self.maxlen)
        return super().get_attr(tx, name)

    def append(self, tx: Tracer, value: Value) -> None:
        """``self.append(value)``."""
        tx.mutating(self)
        self.added.append(value)
        if self.maxlen is not None and len(self.items) > self.maxlen:
            del self.items[0]

    def _other(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        match name:
            case "append" if len(args) == 1:
                self.append(tx, args[0])
                return NONE
            case "copy" | "__copy__" if hasattr(self.cls, name):
                return ListValue(list(self.items), None, self.cls, self.maxlen)
            case "__init__":
                tx.mutating(self)
                self.items.clear()
                return self._other(tx, "extend", args, {}) if args else NONE
            case "pop" | "popleft":
                return self._pop(tx, name, args)
        method = _LIST_METHODS.get(name)
        if method is None or not hasattr(self.cls, name):
            return super()._other(tx, name, args, kwargs)
        tx.mutating(self)
        method(self, tx, args, kwargs)
        return NONE

    def _pop(self, tx: Tracer, name: str, args: list[Value]) -> Value:
        tx.mutating(self)
        if self.cls is collections.deque:
            if not self.items:
                tx.raise_error(IndexError, "pop from an empty deque")
            return self.items.pop(0 if name == "popleft" else -1)
        return self._do(tx, list.pop, *[index_of(tx, a) for a in args])  # type: ignore[no-any-return]

    def reconstruct(self, cg: Codegen) -> None:
        if self.cls is not list:
            cg.out.callable(lambda: cg.const(self.cls))
            cg.load_all(self.items)
            cg.out.emit("BUILD_LIST", len(self.items))
            cg.const(self.maxlen)
            cg.out.call(2)
            return
        if cg.is_reaching(self):
            cg.out.emit("BUILD_LIST", 0)
            cg.remember(self)
            cg.fill_later(self)
            return
        cg.load_all(self.items)
        cg.out.emit("BUILD_LIST", len(self.items))

    def fill(self, cg: Codegen) -> None:
        """Put the present contents into the existing list on top of the stack, and pop it."""
        if self.read is not None:
            cg.load_all(self.added)
            cg.out.emit("BUILD_LIST", len(self.added))
            cg.out.emit("LIST_EXTEND", 1)
            cg.out.emit("POP_TOP")
            return
        if self.cls is list:
            cg.load_all(self.items)
            cg.out.emit("BUILD_LIST", len(self.items))
            cg.out.emit("SWAP", 2)
            cg.const(None)
            cg.const(None)
            cg.out.emit("BUILD_SLICE", 2)
            cg.out.emit("STORE_SUBSCR")
            return
        from engine.trace.support import refill_deque

        cg.helper(refill_deque, 1)
        cg.load_all(self.items)
        cg.out.emit("BUILD_LIST", len(self.items))
        cg.out.call(2)
        cg.out.emit("POP_TOP")


def _extend(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> None:
    for item in _one_by_one(tx, args[0], self):
        self.added.append(item)
        if self.maxlen is not None:
            del self.items[: max(0, len(self.items) - self.maxlen)]


def _one_by_one(tx: Tracer, value: Value, into: ListValue) -> Iterator[Value]:
    """Items of anything that can be iterated; what Python code gives is asked for only when the last one is in its place, and ``into`` as it is now."""
    from engine.trace.values.iterators import SequenceIterator

    value = force(tx, value)
    if isinstance(value, SequenceValue):
        yield from list(value.items)
        return
    iterator = force(tx, value.iterate(tx))
    if (
        isinstance(iterator, SequenceIterator) and iterator.items is into.added
    ):  # an instance of a subclass, given itself
        yield from list(into.items)
        return
    while (item := iterator.step(tx)) is not None:
        yield item


def _extendleft(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> None:
    for item in _one_by_one(tx, args[0], self):
        self.items.insert(0, item)
        if self.maxlen is not None:
            del self.items[self.maxlen :]


def _rotate(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> None:
    turned = collections.deque(self.items)
    self._do(tx, lambda _, *by: turned.rotate(*by), *[index_of(tx, a) for a in args])
    self.items[:] = turned


def _insert(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> None:
    if self.maxlen is not None and len(self.items) >= self.maxlen:
        tx.raise_error(IndexError, "deque already at its maximum size")
    self._do(tx, lambda items, *at: items.insert(*at), index_of(tx, args[0]), args[1])


def _clear(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> None:
    self.items.clear()


def _reverse(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> None:
    self.items.reverse()


def _appendleft(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> None:
    self.items.insert(0, args[0])
    if self.maxlen is not None and len(self.items) > self.maxlen:
        self.items.pop()


def _remove(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> None:
    from engine.trace.operations import same_or_equal

    for n, item in enumerate(self.items):
        if same_or_equal(tx, force(tx, item), args[0]):
            del self.items[n]
            return
    absent = (
        "list.remove(x): x not in list"
        if self.cls is list
        else f"{self.cls.__name__}.remove(x): x not in {self.cls.__name__}"
    )
    tx.raise_error(ValueError, absent)


def _sort(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> None:
    from engine.trace.operations import sorted_items

    items, self.items[:] = list(self.items), []  # which is what the list holds meanwhile
    in_order = items
    noted: list[Value] = []
    noted_outside, tx.changed = tx.changed, noted
    try:
        in_order = sorted_items(tx, items, kwargs)
    finally:
        self.items[:] = in_order
        tx.changed = noted_outside
        if noted_outside is not None:
            noted_outside += noted
    if any(value is self for value in noted):
        tx.raise_error(ValueError, "list modified during sort")


_LIST_METHODS: dict[str, Callable[[ListValue, Any, list[Value], dict[str, Value]], None]] = {
    "extend": _extend,
    "extendleft": _extendleft,
    "rotate": _rotate,
    "insert": _insert,
    "clear": _clear,
    "reverse": _reverse,
    "appendleft": _appendleft,
    "remove": _remove,
    "sort": _sort,
}


class RangeValue(Value):
    """A range with known bounds."""

    def __init__(self, value: range, origin: Origin | None = None) -> None:
        self.value = value
        self.origin = origin

    def type(self) -> type:
        return range

    def describe(self) -> str:
        return repr(self.value)

    def python(self, tx: Tracer) -> Any:
        return self.value

    def key(self, tx: Tracer) -> Any:
        return self.value

    def truth(self, tx: Tracer) -> bool:
        return bool(self.value)

    def length(self, tx: Tracer) -> Value:
        return tx.fold(len, self.value)

    def contains(self, tx: Tracer, item: Value) -> bool:
        return item.python(tx) in self.value

    def get_item(self, tx: Tracer, key: Value) -> Value:
        return tx.fold(lambda: self.value[key.python(tx)])

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return tx.constant_attr(Const(self.value), name)

    def iterate(self, tx: Tracer) -> Value:
        from engine.trace.values.iterators import RangeIterator

        return RangeIterator(self.value)

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(range))
        for bound in (self.value.start, self.value.stop, self.value.step):
            cg.const(bound)
        cg.out.call(3)


class SliceValue(Value):
    """``a:b:c``; its parts may be symbols."""

    def __init__(self, parts: list[Value], origin: Origin | None = None) -> None:
        self.parts = parts
        self.origin = origin

    def type(self) -> type:
        return slice

    def python(self, tx: Tracer) -> Any:
        from engine.trace.values.tensor import TensorValue

        forced = [force(tx, p) for p in self.parts]
        if any(isinstance(p, TensorValue) for p in forced):
            raise NotConstant
        return slice(*(p.python(tx) for p in forced))

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        pairs = [force(tx, p).graph_arg(tx) for p in self.parts]
        return slice(*(p[0] for p in pairs)), slice(*(p[1] for p in pairs))

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return self.parts[("start", "stop", "step").index(name)]
        return tx.constant_attr(Const(self.python(tx)), name)

    def children(self) -> list[Value]:
        return self.parts

    def reconstruct(self, cg: Codegen) -> None:
        cg.load_all(self.parts)
        cg.out.emit("BUILD_SLICE", 3)


def items_of(tx: Tracer, real: Any, origin: Origin) -> list[Value]:
    """The items of a real sequence, guarded by its type and length."""
    why = "it was unpacked, indexed or iterated"
    tx.guard_type(real, origin, why)
    tx.guard(LengthIs(origin, exact.length_of(real), cause=tx.cause(why)))
    plainly = list if isinstance(real, list) else tuple if isinstance(real, tuple) else collections.deque
    return [tx.lazy(item, item_origin(real, origin, n)) for n, item in enumerate(plainly.__iter__(real))]


@wraps(list)
def _list(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it was used as a list")
    return ListValue([], origin, read=lambda: items_of(tx, real, origin))


@wraps(collections.deque)
def _deque(tx: Tracer, real: Any, origin: Origin) -> Value:
    value = ListValue(items_of(tx, real, origin), origin, collections.deque, real.maxlen)
    tx.guard(Equals(Attr(origin, "maxlen"), real.maxlen, cause=tx.cause("its bound decides what it keeps")))
    return value


@wraps(tuple)
def _tuple(tx: Tracer, real: Any, origin: Origin) -> Value:
    return TupleValue(items_of(tx, real, origin), tuple, origin)


def _is_size_or_named(real: Any) -> bool:
    kind: Any = type(real)
    return kind is torch.Size or kind.__module__ == "torch.return_types" or is_plainly_named(kind)


@functools.lru_cache(maxsize=1024)
def is_plainly_named(cls: type) -> bool:
    """Whether instances are named tuples that do what tuples do and take no other attributes."""
    if not (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        return False
    own = {n for c in cls.__mro__[: cls.__mro__.index(tuple)] for n in vars(c) if n in _ASKED_OF_TUPLES}
    return cls.__dictoffset__ == 0 and not own


_ASKED_OF_TUPLES = frozenset(
    "__add__ __mul__ __rmul__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __len__ __iter__ __getitem__ __contains__ "
    "__bool__ __str__ __reversed__ __radd__ __sub__ __neg__ __getattr__ __getattribute__ __call__".split()
)


@wraps_if(10, _is_size_or_named)
def _named(tx: Tracer, real: Any, origin: Origin) -> Value:
    return TupleValue(items_of(tx, real, origin), type(real), origin)


@wraps(range)
def _range(tx: Tracer, real: range, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it was iterated")
    for name in ("start", "stop", "step"):
        tx.guard(Equals(Attr(origin, name), getattr(real, name), cause=tx.cause("it was iterated")))
    return RangeValue(real, origin)


@wraps(slice)
def _slice(tx: Tracer, real: slice, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it was used as an index")
    return SliceValue([tx.lazy(getattr(real, n), Attr(origin, n)) for n in ("start", "stop", "step")], origin)


@makes(list)
def _make_list(tx: Tracer, value: list[Any]) -> Value:
    return ListValue([tx.from_python(v) for v in value])


@makes(tuple, torch.Size)
def _make_tuple(tx: Tracer, value: tuple[Any, ...]) -> Value:
    return TupleValue([tx.from_python(v) for v in value], type(value))


@makes(collections.deque)
def _make_deque(tx: Tracer, value: collections.deque[Any]) -> Value:
    return ListValue([tx.from_python(v) for v in value], None, collections.deque, value.maxlen)


@makes(range)
def _make_range(tx: Tracer, value: range) -> Value:
    return RangeValue(value)


@makes(slice)
def _make_slice(tx: Tracer, value: slice) -> Value:
    return SliceValue([tx.from_python(v) for v in (value.start, value.stop, value.step)])
