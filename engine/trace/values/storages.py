"""Storages: the memory behind tensors, its size in bytes, where it lies, and giving it another size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from engine.ir.in_graph import InGraph
from engine.ir.origin import Asked, Attr, Origin
from engine.ir.relation_guard import NoOverlap, SharesMemory, starts_in_one
from engine.ir.unbacked import is_unbacked
from engine.ir.value_guard import Equals
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, HeldValue, Value, force
from engine.trace.values.methods import MethodOf
from engine.trace.values.nested import NestedBuilder
from engine.trace.values.tensor import TensorValue, is_subclass
from engine.trace.values.wrap import wraps

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

_WHY = "the memory of a tensor decided what was traced"
_SIZES = frozenset(("size", "nbytes", "__len__"))


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _resize(tensor: torch.Tensor, count: int) -> None:
    tensor.untyped_storage().resize_(count)


_BYTES = InGraph("storage_bytes", _bytes_of)
_RESIZE = InGraph("resize_storage", _resize, changes_state=True)


class StorageValue(Value):
    """The memory of a tensor that the tracer knows: one value for all tensors that view it."""

    is_mutable = True
    is_dated = True

    def __init__(self, tensor: TensorValue) -> None:
        self.tensor = tensor
        self.memory = tensor.fake.untyped_storage()
        """Of the fake; held, so that no other storage comes to lie there."""
        self.inputs: list[TensorValue] = []
        """Those from outside that view it."""
        self.resizes = 0
        """How often the traced code gave it another size."""

    def type(self) -> type:
        return torch.UntypedStorage

    def describe(self) -> str:
        return f"the storage of a {self.tensor.describe()}"

    def key(self, tx: Tracer) -> Any:
        return self

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "device":
            return Const(self.tensor.fake.device)
        if name in ("is_cuda", "is_hpu"):
            return Const(self.tensor.fake.device.type == name.removeprefix("is_"))
        if name == "_cdata":
            return Address(tx, self, None, name)
        if callable(getattr(torch.UntypedStorage, name, None)):
            return MethodOf(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs or name not in (*_SIZES, "data_ptr", "resize_", "element_size"):
            raise Unsupported("unknown-call", f"UntypedStorage.{name} is called")
        if name == "resize_" and len(args) == 1:
            return self._resize(tx, force(tx, args[0]))
        if args:
            raise Unsupported("unknown-call", f"UntypedStorage.{name} is called with arguments")
        if name == "data_ptr":
            return Address(tx, self, None)
        return Const(1) if name == "element_size" else self.length(tx)

    def length(self, tx: Tracer) -> Value:
        if self.inputs and not self.resizes:
            given = self.inputs[0]
            assert given.origin is not None
            if given.held is None or any(not isinstance(s, int) for s in given.fake.shape):
                raise self.refuse("the size of what was given from outside and has sizes that change")
            found = given.held.untyped_storage().nbytes()
            place = Asked(Asked(given.origin, "untyped_storage"), "nbytes")
            tx.guard(Equals(place, found, cause=tx.cause(_WHY)))
            return Const(found)
        count = self.memory.nbytes()
        return Const(count) if isinstance(count, int) else emit(tx, "call_function", _BYTES, [self.viewed()])

    def viewed(self) -> TensorValue:
        """The tensor, which must still be one that views this memory."""
        if self.tensor.fake.untyped_storage()._cdata != self.memory._cdata:
            raise self.refuse("an operation, once its tensor has other memory,")
        return self.tensor

    def _resize(self, tx: Tracer, count: Value) -> Value:
        if isinstance(tx.graph, NestedBuilder) or self.viewed().fake.is_inference():
            raise Unsupported("unknown-call", "UntypedStorage.resize_ is called")
        node, number = count.graph_arg(tx)
        if type(number) not in (int, torch.SymInt):
            raise Unsupported("unknown-call", "UntypedStorage.resize_ is called with what is no number")
        refuse_if_addressed(tx, self.tensor)
        added = tx.graph.add("call_function", _RESIZE, (self.tensor.node(tx), node), {}, tx.node_origin())
        added.meta["example_value"] = None
        tx.note_handlers()
        tx.mutating(self)
        with tx.fake_mode:
            self.memory.resize_(number)
        self.resizes += 1
        tx.gives_data |= bool(self.inputs)
        return self

    def children(self) -> list[Value]:
        return [self.tensor]

    def reconstruct(self, cg: Codegen) -> None:
        _call(cg, self.viewed(), "untyped_storage")


class Address(Value):
    """``data_ptr()`` of a storage or of a tensor in it, or a storage's own: of two, traced code may learn whether they are one."""

    is_mutable = True
    is_dated = True

    def __init__(self, tx: Tracer, storage: StorageValue, tensor: TensorValue | None, name: str = "data_ptr") -> None:
        self.storage = storage
        self.name = name
        self.tensor = tensor
        self.bytes = storage.memory.nbytes()
        self.resizes = storage.resizes
        tx.addresses.add(self)
        self.offset: Any = 0 if tensor is None else tensor.fake.storage_offset() * tensor.fake.element_size()

    def type(self) -> type:
        return int

    def describe(self) -> str:
        return "the address of a tensor's memory"

    def children(self) -> list[Value]:
        return [self.storage if self.tensor is None else self.tensor]

    def is_current(self) -> bool:
        """Whether the memory lies where it lay when it was asked."""
        viewed = self.storage.tensor if self.tensor is None else self.tensor
        if viewed.fake.untyped_storage()._cdata != self.storage.memory._cdata or self.storage.resizes != self.resizes:
            return False
        return not isinstance(self.bytes, int) or bool(self.storage.memory.nbytes() == self.bytes)

    def is_known(self) -> bool:
        """Whether it is of memory that holds something, as far as sizes tell without assuming any."""
        known = not is_unbacked((self.bytes, self.offset))
        return known and bool(self.bytes > 0) and self.is_current()

    def reconstruct(self, cg: Codegen) -> None:
        if not self.is_current():
            raise self.refuse("rebuilding, once the memory was changed,")
        if self.name == "data_ptr":
            _call(cg, self.children()[0], self.name)
        else:
            cg.load(self.storage)
            cg.out.attribute(self.name)


def _call(cg: Codegen, of: Value, name: str) -> None:
    def load() -> None:
        cg.load(of)
        cg.out.attribute(name)

    cg.out.callable(load)
    cg.out.call(0)


def equal_addresses(tx: Tracer, left: Value, right: Value) -> bool | None:
    """Whether two addresses are one; None where neither is any.

    Raises:
        Unsupported: only the running graph knows.
    """
    if not isinstance(left, Address) and not isinstance(right, Address):
        return None
    if isinstance(left, Address) and isinstance(right, Address) and left.name == right.name:
        if left.is_known() and right.is_known() and left.storage is right.storage:
            return bool(left.offset == right.offset)
        if left.is_known() and right.is_known() and _are_apart(tx, left.storage, right.storage):
            return False
    raise (left if isinstance(left, Address) else right).refuse("comparing an address")


def refuse_if_addressed(tx: Tracer, tensor: TensorValue) -> None:
    """Called before a tensor gets other memory.

    Raises:
        Unsupported: the traced code holds the address of what it has.
    """
    place = tensor.fake.untyped_storage()._cdata
    if any(a.storage.memory._cdata == place for a in tx.addresses):
        raise Unsupported("side-effect", "a tensor gets other memory while something holds the address of what it has")


def same_storage(tx: Tracer, left: Value, right: Value) -> bool | None:
    """Whether two storages are one object; None where both are from outside, or neither is any.

    Raises:
        Unsupported: only the running graph knows.
    """
    kinds = [isinstance(v, StorageValue) for v in (left, right)]
    if not any(kinds) or not issubclass(left.type(), torch.UntypedStorage) or left.type() is not right.type():
        return None
    if isinstance(left, StorageValue) and isinstance(right, StorageValue) and _are_apart(tx, left, right):
        return False
    raise left.refuse("comparing")


def _are_apart(tx: Tracer, left: StorageValue, right: StorageValue) -> bool:
    """Whether two exist at the same time, so that they lie in different places; of two from outside it is taken for granted."""
    if tx.gives_data or tx.moved or not (left.inputs or right.inputs):
        return False
    if left.inputs and right.inputs:
        origins = [s.inputs[0].origin for s in (left, right)]
        assert origins[0] is not None
        assert origins[1] is not None
        tx.guard(NoOverlap(origins[0], (origins[1],), cause=tx.cause(_WHY)))
    return True


def storage_of(tx: Tracer, tensor: TensorValue) -> StorageValue:
    """``tensor.untyped_storage()``.

    Raises:
        Unsupported: the tensor has none of its own.
    """
    fake = tensor.fake
    if is_subclass(fake) or fake.layout is not torch.strided or isinstance(tx.graph, NestedBuilder):
        raise Unsupported("unknown-call", "Tensor.untyped_storage is called")
    note_inputs(tx)
    place = fake.untyped_storage()._cdata
    found: StorageValue = tx.storages.setdefault(place, StorageValue(tensor))
    if len(found.inputs) > 1:
        first, *others = found.inputs
        origins = [v.origin for v in others if v.origin is not None]
        assert first.origin is not None
        starts = starts_in_one(first.held, *(v.held for v in others))
        tx.guard(SharesMemory(first.origin, tuple(origins), tuple(s or 0 for s in starts), cause=tx.cause(_WHY)))
    return found


def address_of(tx: Tracer, tensor: TensorValue) -> Value:
    """``tensor.data_ptr()``.

    Raises:
        Unsupported: it has no elements, or no memory of its own.
    """
    if is_unbacked(tensor.fake.shape) or tensor.fake.numel() == 0:
        raise Unsupported("unknown-call", "Tensor.data_ptr is called")
    return Address(tx, storage_of(tx, tensor), tensor)


def note_inputs(tx: Tracer) -> None:
    """Remember whose memory the inputs have so far, before any of them gets another."""
    for value, _ in tx.input_tensors[tx.storages_noted :]:
        if not is_subclass(value.fake) and value.fake.layout is torch.strided:
            storage = tx.storages.setdefault(value.fake.untyped_storage()._cdata, StorageValue(value))
            storage.inputs.append(value)
    tx.storages_noted = len(tx.input_tensors)


class OutsideStorage(HeldValue):
    """A storage from outside."""

    is_mutable = True

    def get_attr(self, tx: Tracer, name: str) -> Value:
        assert self.origin is not None
        if name == "device":
            return tx.wrap(self.held.device, Attr(self.origin, name))
        if callable(getattr(torch.UntypedStorage, name, None)):
            return MethodOf(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args or kwargs or name not in _SIZES:
            raise Unsupported("unknown-call", f"UntypedStorage.{name} is called")
        return self.length(tx)

    def length(self, tx: Tracer) -> Value:
        assert self.origin is not None
        if any(s.resizes for s in tx.storages.values()):
            raise self.refuse("its size, after one was changed,")
        found = self.held.nbytes()
        tx.guard(Equals(Asked(self.origin, "nbytes"), found, cause=tx.cause(_WHY)))
        return Const(found)


@wraps(torch.UntypedStorage)
def _storage(tx: Tracer, real: torch.UntypedStorage, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it is a storage")
    return OutsideStorage(real, origin)
