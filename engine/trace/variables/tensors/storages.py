"""Tensor storages: size in bytes and ``resize_``. Python reads their addresses."""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.graph_callable import GraphCallable
from engine.ir.guards.aliasing import SharedStorage, byte_offsets_in_storage
from engine.ir.guards.python_values import EqualsMatch
from engine.ir.introspection.fakeable_tensors import is_wrapper_subclass
from engine.ir.sources.attributes import AttrSource, MethodResultSource
from engine.ir.sources.base import Source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.emit.effects import emit_effect
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, RealObjectVariable, Variable, realize
from engine.trace.variables.builder import guarded_builder, register_builder
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.tensors.tensor import TensorVariable
from engine.trace.variables.tensors.tensor_members import register_tensor_method

_WHY = "the storage of a tensor decided what was traced"
_SIZE_METHODS = frozenset(("size", "nbytes", "__len__"))


class _StorageState:
    """Storages in one trace."""

    def __init__(self) -> None:
        self.variables: dict[int, Any] = {}
        """Storages that code read, and those of inputs, by the id of the fake's storage."""
        self.inputs_recorded = 0
        """Number of inputs whose original storage is recorded."""


def _resize(tensor: torch.Tensor, count: int) -> None:
    tensor.untyped_storage().resize_(count)


_STORAGE_NBYTES = GraphCallable("storage_nbytes", lambda tensor: tensor.untyped_storage().nbytes())
_RESIZE = GraphCallable("resize_storage", _resize, changes_state=True)


class UntypedStorageVariable(Variable):
    """An ``UntypedStorage`` of a traced tensor: one variable for all tensors that share it."""

    __slots__ = ("fake_storage", "input_tensors", "resize_count", "tensor")
    cls = torch.UntypedStorage

    is_mutable = True
    reconstruct_before_break = True

    def __init__(self, tensor: TensorVariable) -> None:
        self.tensor = tensor
        self.fake_storage = tensor.fake.untyped_storage()
        """Storage of the fake tensor. The reference prevents reuse of its address."""
        self.input_tensors: list[TensorVariable] = []
        """Input tensors that view this storage."""
        self.resize_count = 0
        """Number of resizes in traced code."""

    def describe(self) -> str:
        return f"the storage of a {self.tensor.describe()}"

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "device":
            return ConstantVariable(self.tensor.fake.device)
        if name in ("is_cuda", "is_hpu"):
            return ConstantVariable(self.tensor.fake.device.type == name.removeprefix("is_"))
        if name == "_cdata":
            raise Unsupported("data-ptr", "the address of a storage is read")
        if callable(getattr(torch.UntypedStorage, name, None)):
            return BuiltinMethodVariable(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if kwargs or name not in (*_SIZE_METHODS, "data_ptr", "resize_", "element_size"):
            raise Unsupported("storage-access", f"UntypedStorage.{name} is called")
        if name == "resize_" and len(args) == 1:
            return self._resize(tx, realize(tx, args[0]))
        if args:
            raise Unsupported("storage-access", f"UntypedStorage.{name} is called with arguments")
        if name == "data_ptr":
            raise Unsupported("data-ptr", "UntypedStorage.data_ptr is called")
        return ConstantVariable(1) if name == "element_size" else self.length(tx)

    def is_same_as(self, tx: Tracer, other: Variable) -> bool | None:
        if other.python_type() is not torch.UntypedStorage:
            return None
        raise self.unsupported("comparing", "storage-access")

    def length(self, tx: Tracer) -> Variable:
        if self.input_tensors and not self.resize_count:
            input_tensor = self.input_tensors[0]
            assert input_tensor.source is not None
            if input_tensor.real_object is None or input_tensor.fake._has_symbolic_sizes_strides:
                raise self.unsupported("the storage size of an argument with dynamic shape", "storage-access")
            nbytes = input_tensor.real_object.untyped_storage().nbytes()
            size_source = MethodResultSource(MethodResultSource(input_tensor.source, "untyped_storage"), "nbytes")
            tx.guard(EqualsMatch, size_source, nbytes, why=_WHY)
            return ConstantVariable(nbytes)
        count: Any = self.fake_storage.nbytes()
        if isinstance(count, int):
            return ConstantVariable(count)
        return emit_node(tx, "call_function", _STORAGE_NBYTES, [self.current_tensor()])

    def current_tensor(self) -> TensorVariable:
        """Return the tensor; it must still use this storage."""
        if self.tensor.fake.untyped_storage()._cdata != self.fake_storage._cdata:
            raise self.unsupported("an operation after its tensor got new memory", "storage-access")
        return self.tensor

    def _resize(self, tx: Tracer, count: Variable) -> Variable:
        if tx.in_subgraph() or self.current_tensor().fake.is_inference():
            raise Unsupported("storage-access", "UntypedStorage.resize_ is called")
        node, number = count.as_node_arg(tx)
        if type(number) not in (int, torch.SymInt):
            raise Unsupported("storage-access", "UntypedStorage.resize_ is called without a number")
        emit_effect(tx, _RESIZE, (self.tensor.node(tx), node))
        tx.side_effects.record_mutation(self)
        with tx.symbols.fake_mode:
            self.fake_storage.resize_(number)
        self.resize_count += 1
        tx.inputs.graph_sets_data |= bool(self.input_tensors)
        return self

    child_fields = ("tensor",)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call_method(self.current_tensor(), "untyped_storage")


@register_tensor_method("untyped_storage")
def _untyped_storage(tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable | None:
    if args or kwargs:
        return None
    fake = tensor.fake
    if is_wrapper_subclass(fake) or fake.layout is not torch.strided or tx.in_subgraph():
        raise Unsupported("storage-access", "Tensor.untyped_storage is called")
    record_input_storages(tx)
    storage = fake.untyped_storage()._cdata
    variables = tx.state_of(_StorageState).variables
    variable: UntypedStorageVariable = variables.setdefault(storage, UntypedStorageVariable(tensor))
    if len(variable.input_tensors) > 1:
        first, *others = variable.input_tensors
        origins = [v.source for v in others if v.source is not None]
        assert first.source is not None
        starts = byte_offsets_in_storage(first.real_object, *(v.real_object for v in others))
        tx.guard(SharedStorage, first.source, tuple(origins), tuple(s or 0 for s in starts), why=_WHY)
    return variable


@register_tensor_method("data_ptr")
def _data_ptr(tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable | None:
    raise Unsupported("data-ptr", "Tensor.data_ptr is called")


def record_input_storages(tx: Tracer) -> None:
    """Record the storages of the inputs before any of them is replaced."""
    state = tx.state_of(_StorageState)
    for value, _ in tx.inputs.input_tensors[state.inputs_recorded :]:
        if not is_wrapper_subclass(value.fake) and value.fake.layout is torch.strided:
            storage = state.variables.setdefault(value.fake.untyped_storage()._cdata, UntypedStorageVariable(value))
            storage.input_tensors.append(value)
    state.inputs_recorded = len(tx.inputs.input_tensors)


class ExternalStorageVariable(RealObjectVariable):
    """A storage object passed in from outside the frame."""

    source: Source
    is_mutable = True

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "device":
            return tx.wrap(self.real_object.device, AttrSource(self.source, name))
        if callable(getattr(torch.UntypedStorage, name, None)):
            return BuiltinMethodVariable(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if args or kwargs or name not in _SIZE_METHODS:
            raise Unsupported("storage-access", f"UntypedStorage.{name} is called")
        return self.length(tx)

    def length(self, tx: Tracer) -> Variable:
        if any(s.resize_count for s in tx.state_of(_StorageState).variables.values()):
            raise self.unsupported("reading its size after a resize", "storage-access")
        nbytes = self.real_object.nbytes()
        tx.guard(EqualsMatch, MethodResultSource(self.source, "nbytes"), nbytes, why=_WHY)
        return ConstantVariable(nbytes)


register_builder(torch.UntypedStorage)(guarded_builder(ExternalStorageVariable, "it is a storage", by_type=True))
