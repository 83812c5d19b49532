"""What can be asked of a tensor that its guards do not tell: where it starts in its memory, how often it was changed, who else sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.ir.origin import Asked, Attr
from engine.ir.value_guard import Equals, HasAttribute
from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, Value

if TYPE_CHECKING:
    import torch

    from engine.trace.state import Tracer
    from engine.trace.values.tensor import TensorValue

_WHY = "where a tensor lies, or who else sees it, decided what was traced"
ATTRIBUTES = frozenset(("output_nr", "retains_grad", "_version"))
METHODS = frozenset(("storage_offset", "is_shared", "is_set_to"))


def attribute(tx: Tracer, of: TensorValue, name: str) -> Value | None:
    """``tensor.output_nr`` and its like; None for one that the fake of a tensor made while tracing tells.

    Raises:
        Unsupported: nothing known tells it.
    """
    if name == "_version":
        return _version(tx, of)
    if of.held is None or of.origin is None:
        return None
    found = getattr(of.held, name)
    tx.guard(Equals(Attr(of.origin, name), found, cause=tx.cause(_WHY)))
    return Const(found)


def _version(tx: Tracer, of: TensorValue) -> Value | None:
    """How often a tensor was changed: of an input, as often as before the call and since then."""
    memory = of.fake.untyped_storage()._cdata
    for value, before in tx.input_tensors:
        if value.origin is None or value.held is None or value.fake.is_inference():
            continue
        if value is of or of.fake._base is value.fake:
            found = value.held._version
            tx.guard(Equals(Attr(value.origin, "_version"), found, cause=tx.cause(_WHY)))
            return Const(found + of.fake._version - before)
        if value.fake.untyped_storage()._cdata == memory:
            raise of.refuse("reading the attribute '_version'")
    return None


def asked(tx: Tracer, of: TensorValue, name: str) -> Value | None:
    """``tensor.storage_offset()`` and its like; None for what the fake tells, once guards say the same of the inputs.

    Raises:
        Unsupported: two tensors are compared by their memory.
    """
    if name == "is_set_to":
        raise Unsupported("unknown-call", "Tensor.is_set_to is called")
    if name == "is_shared" and of.held is None:
        return None
    is_moved = bool(tx.moved)
    if is_moved and name == "is_shared":
        raise of.refuse(f"the method {name!r}")
    inputs = [of] if of.held is not None and not is_moved else [v for v, _ in tx.input_tensors]
    for value in inputs:
        if value.origin is None or value.held is None or value.fake.layout != value.held.layout:
            raise of.refuse(f"the method {name!r}")
        tx.guard(Equals(Asked(value.origin, name), getattr(value.held, name)(), cause=tx.cause(_WHY)))
    if of.held is not None and not is_moved:
        return Const(getattr(of.held, name)() if name != "storage_offset" else _start(tx, of, of.held))
    return Const(int(of.fake.storage_offset())) if name == "storage_offset" else None


def _start(tx: Tracer, of: TensorValue, held: torch.Tensor) -> int:
    """Where an input starts in its memory now: where it did when it came, unless it was laid out anew since."""
    came = tx.input_layouts.get(id(of.fake))
    return int(held.storage_offset()) + (0 if came is None else int(of.fake.storage_offset() - came[2]))


def is_marked(tx: Tracer, of: TensorValue, name: str) -> bool:
    """Whether an attribute makes a tensor of another class count as a parameter or a buffer."""
    if name in of.written:
        return of.written[name].truth(tx)
    if of.held is None or of.origin is None:
        return False
    own = getattr(of.held, "__dict__", {})
    tx.guard(HasAttribute(of.origin, name, name in own, cause=tx.cause("whether it is marked decided what was traced")))
    return bool(own.get(name))
