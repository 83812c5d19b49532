"""Tensor metadata without a tensor guard: version counter, storage offset, shared memory.

Reading it adds a guard of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.ir.guards.python_values import EqualsMatch, HasAttrGuard
from engine.ir.sources.attributes import AttrSource, MethodResultSource
from engine.trace.annotations import Tracer
from engine.trace.variables.base import ConstantVariable, Variable
from engine.trace.variables.tensors.tensor_members import register_tensor_attribute, register_tensor_method

if TYPE_CHECKING:
    import torch

    from engine.trace.variables.tensors.tensor import TensorVariable

_WHY = "metadata of the tensor decided what was traced"


def _register_metadata_attribute(name: str) -> None:
    @register_tensor_attribute(name)
    def rule(tx: Tracer, of: TensorVariable) -> Variable | None:
        """Return the attribute; None if the fake tensor has the right value."""
        if of.real_object is None or of.source is None:
            return None
        found = getattr(of.real_object, name)
        tx.guard(EqualsMatch, AttrSource(of.source, name), found, why=_WHY)
        return ConstantVariable(found)


_register_metadata_attribute("output_nr")
_register_metadata_attribute("retains_grad")


@register_tensor_attribute("_version")
def _version(tx: Tracer, of: TensorVariable) -> Variable | None:
    """Return the version counter: an input's value before the call plus the traced mutations."""
    memory = of.fake.untyped_storage()._cdata
    for value, before in tx.inputs.input_tensors:
        if value.source is None or value.real_object is None or value.fake.is_inference():
            continue
        if value is of or of.fake._base is value.fake:
            found = value.real_object._version
            tx.guard(EqualsMatch, AttrSource(value.source, "_version"), found, why=_WHY)
            return ConstantVariable(found + of.fake._version - before)
        if value.fake.untyped_storage()._cdata == memory:
            raise of.unsupported_attribute("reading", "_version")
    return None


def _register_metadata_method(name: str) -> None:
    @register_tensor_method(name)
    def rule(tx: Tracer, of: TensorVariable, args: list[Variable], kwargs: dict[str, Variable]) -> Variable | None:
        return None if kwargs else _metadata_method(tx, of, name)


_register_metadata_method("storage_offset")
_register_metadata_method("is_shared")


def _metadata_method(tx: Tracer, of: TensorVariable, name: str) -> Variable | None:
    """Return ``tensor.storage_offset()`` and similar; None if the fake tensor's value holds.

    In the latter case the inputs that determine the value are guarded.

    Raises:
        Unsupported: the value cannot be determined while tracing.
    """
    if name == "is_shared" and of.real_object is None:
        return None
    is_moved = bool(tx.inputs.data_assigned_inputs)
    if is_moved and name == "is_shared":
        raise of.unsupported_method(name)
    inputs = [of] if of.real_object is not None and not is_moved else [v for v, _ in tx.inputs.input_tensors]
    for value in inputs:
        if value.source is None or value.real_object is None or value.fake.layout != value.real_object.layout:
            raise of.unsupported_method(name)
        tx.guard(EqualsMatch, MethodResultSource(value.source, name), getattr(value.real_object, name)(), why=_WHY)
    if of.real_object is not None and not is_moved:
        return ConstantVariable(
            getattr(of.real_object, name)() if name != "storage_offset" else _storage_offset(tx, of, of.real_object)
        )
    return ConstantVariable(int(of.fake.storage_offset())) if name == "storage_offset" else None


def _storage_offset(tx: Tracer, of: TensorVariable, held: torch.Tensor) -> int:
    """Return an input's storage offset now: its initial offset plus in-place layout changes."""
    came = tx.inputs.input_layouts.get(id(of.fake))
    return int(held.storage_offset()) + (0 if came is None else int(of.fake.storage_offset() - came[2]))


def has_mark(tx: Tracer, of: TensorVariable, name: str) -> bool:
    """Return True if the attribute marks a tensor of another class as a parameter or buffer."""
    if name in of.attr_writes:
        return of.attr_writes[name].is_truthy(tx)
    if of.real_object is None or of.source is None:
        return False
    own = getattr(of.real_object, "__dict__", {})
    tx.guard(HasAttrGuard, of.source, name, name in own, why="its dynamic mark decided what was traced")
    return bool(own.get(name))
