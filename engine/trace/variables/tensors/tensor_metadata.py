"""What can be asked of a tensor that its guards do not tell: where it starts in its memory, how often it was changed, who else sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.ir.guards.python_values import EqualsMatch, HasAttrGuard
from engine.ir.sources.attributes import AttrSource, MethodResultSource
from engine.trace.exc import Unsupported
from engine.trace.variables.base import ConstantVariable, Variable

if TYPE_CHECKING:
    import torch

    from engine.trace.tracer import Tracer
    from engine.trace.variables.tensors.tensor import TensorVariable

_WHY = "where a tensor lies, or who else sees it, decided what was traced"
METADATA_ATTRIBUTES = frozenset(("output_nr", "retains_grad", "_version"))
METADATA_METHODS = frozenset(("storage_offset", "is_shared", "is_set_to"))


def metadata_attribute(tx: Tracer, of: TensorVariable, name: str) -> Variable | None:
    """``tensor.output_nr`` and its like; None for one that the fake of a tensor made while tracing tells.

    Raises:
        Unsupported: nothing known tells it.
    """
    if name == "_version":
        return _version(tx, of)
    if of.real_object is None or of.source is None:
        return None
    found = getattr(of.real_object, name)
    tx.add_guard(EqualsMatch(AttrSource(of.source, name), found, cause=tx.guard_cause(_WHY)))
    return ConstantVariable(found)


def _version(tx: Tracer, of: TensorVariable) -> Variable | None:
    """How often a tensor was changed: of an input, as often as before the call and since then."""
    memory = of.fake.untyped_storage()._cdata
    for value, before in tx.input_tensors:
        if value.source is None or value.real_object is None or value.fake.is_inference():
            continue
        if value is of or of.fake._base is value.fake:
            found = value.real_object._version
            tx.add_guard(EqualsMatch(AttrSource(value.source, "_version"), found, cause=tx.guard_cause(_WHY)))
            return ConstantVariable(found + of.fake._version - before)
        if value.fake.untyped_storage()._cdata == memory:
            raise of.unsupported("reading the attribute '_version'")
    return None


def metadata_method(tx: Tracer, of: TensorVariable, name: str) -> Variable | None:
    """``tensor.storage_offset()`` and its like; None for what the fake tells, once guards say the same of the inputs.

    Raises:
        Unsupported: two tensors are compared by their memory.
    """
    if name == "is_set_to":
        raise Unsupported("unknown-call", "Tensor.is_set_to is called")
    if name == "is_shared" and of.real_object is None:
        return None
    is_moved = bool(tx.data_assigned_inputs)
    if is_moved and name == "is_shared":
        raise of.unsupported(f"the method {name!r}")
    inputs = [of] if of.real_object is not None and not is_moved else [v for v, _ in tx.input_tensors]
    for value in inputs:
        if value.source is None or value.real_object is None or value.fake.layout != value.real_object.layout:
            raise of.unsupported(f"the method {name!r}")
        tx.add_guard(
            EqualsMatch(
                MethodResultSource(value.source, name), getattr(value.real_object, name)(), cause=tx.guard_cause(_WHY)
            )
        )
    if of.real_object is not None and not is_moved:
        return ConstantVariable(
            getattr(of.real_object, name)() if name != "storage_offset" else _storage_offset(tx, of, of.real_object)
        )
    return ConstantVariable(int(of.fake.storage_offset())) if name == "storage_offset" else None


def _storage_offset(tx: Tracer, of: TensorVariable, held: torch.Tensor) -> int:
    """Where an input starts in its memory now: where it did when it came, unless it was laid out anew since."""
    came = tx.input_layouts.get(id(of.fake))
    return int(held.storage_offset()) + (0 if came is None else int(of.fake.storage_offset() - came[2]))


def has_mark(tx: Tracer, of: TensorVariable, name: str) -> bool:
    """Whether an attribute makes a tensor of another class count as a parameter or a buffer."""
    if name in of.attr_writes:
        return of.attr_writes[name].is_truthy(tx)
    if of.real_object is None or of.source is None:
        return False
    own = getattr(of.real_object, "__dict__", {})
    tx.add_guard(
        HasAttrGuard(of.source, name, name in own, cause=tx.guard_cause("whether it is marked decided what was traced"))
    )
    return bool(own.get(name))
