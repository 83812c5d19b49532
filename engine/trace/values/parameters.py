"""Parameters made in traced code, and tensors given other memory: nodes that work on more than values, run by the graph as traced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from engine.ir.in_graph import InGraph
from engine.trace.graph_builder import evaluate
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.nested import NestedBuilder
from engine.trace.values.rules import special
from engine.trace.values.tensor import TensorValue

if TYPE_CHECKING:
    import torch.fx

    from engine.trace.state import Tracer


class MadeParameter(TensorValue):
    """A parameter that the traced code makes."""

    __slots__ = ()

    def type(self) -> type:
        return torch.nn.Parameter


def _made(data: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
    return torch.nn.Parameter(data, requires_grad)


_MAKE = InGraph("parameter", _made, changes_state=True)


@special(torch.nn.Parameter)
def _parameter(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("data", "requires_grad"), args, strict=False)) | kwargs
    data = force(tx, given.get("data", NONE))
    wanted = force(tx, given.get("requires_grad", Const(True)))
    if (
        type(data) is not TensorValue
        or not isinstance(wanted, Const)
        or data.type() not in (torch.Tensor, torch.nn.Parameter)
        or isinstance(tx.graph, NestedBuilder)
    ):
        raise Unsupported("unknown-call", "torch.nn.parameter.Parameter is created")
    return _in_graph(tx, data, bool(wanted.value))


def _in_graph(tx: Tracer, data: TensorValue, requires_grad: bool) -> Value:
    def over_fakes(fake: torch.Tensor, wanted: bool) -> torch.Tensor:
        return fake.detach().requires_grad_(wanted)

    fake = evaluate(tx, "call_function", _MAKE, [data.fake, requires_grad], {}, over_fakes)
    node = tx.graph.add("call_function", _MAKE, (data.node(tx), requires_grad), {}, tx.node_origin())
    tx.note_handlers()
    node.meta["example_value"] = fake
    node.meta["version"] = fake._version
    return MadeParameter(node, fake)


def _set_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    tensor.data = data


_SET_DATA = InGraph("set_data", _set_data, changes_state=True)


def set_data(tx: Tracer, tensor: TensorValue, value: Value) -> None:
    """``tensor.data = value``.

    Raises:
        Unsupported: the value is no plain tensor that looks like it.
    """
    data: Any = force(tx, value)
    refused = Unsupported("side-effect", "the attribute 'data' of a tensor is set")
    if data is tensor and tensor.type() in (torch.Tensor, torch.nn.Parameter):
        return  # a conversion that had nothing to do: its memory is its own already
    if not isinstance(data, TensorValue) or data is tensor or isinstance(tx.graph, NestedBuilder):
        raise refused
    mine, new = tensor.fake, data.fake
    alike = all(getattr(mine, fact) == getattr(new, fact) for fact in ("shape", "dtype", "device", "layout"))
    if not alike or mine.stride() != new.stride() or mine._is_view() or mine.is_inference() or new.is_inference():
        raise refused
    if any(v.type() not in (torch.Tensor, torch.nn.Parameter) for v in (tensor, data)):
        raise refused
    node = tx.graph.add("call_function", _SET_DATA, (tensor.node(tx), data.node(tx)), {}, tx.node_origin())
    node.meta["example_value"] = None
    tx.note_handlers()
    tx.changes += 1
    with tx.fake_mode:
        mine.data = new
    if tensor.origin is not None:
        tx.gives_data = True


def _set_memory(tensor: torch.Tensor, other: torch.Tensor) -> None:
    torch.ops.aten.set_.source_Tensor(tensor, other)


_SET_MEMORY = InGraph("set_memory", _set_memory, changes_state=True)


def set_memory(tx: Tracer, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``tensor.set_(other)``: a tensor that the traced code made becomes another view of the other's memory.

    Raises:
        Unsupported: autograd is concerned, or the tensor comes from outside.
    """
    other = force(tx, args[0]) if len(args) == 1 and not kwargs else None
    if (
        not isinstance(other, TensorValue)
        or tensor.origin is not None
        or isinstance(tx.graph, NestedBuilder)
        or any(v.type() is not torch.Tensor or v.fake.requires_grad or v.fake.is_inference() for v in (tensor, other))
        or tensor.fake.dtype != other.fake.dtype
        or tensor.fake._is_view()
    ):
        raise Unsupported("unknown-call", "Tensor.set_ is called")
    node = tx.graph.add("call_function", _SET_MEMORY, (tensor.node(tx), other.node(tx)), {}, tx.node_origin())
    node.meta["example_value"] = None
    tx.note_handlers()
    tx.changes += 1
    with tx.fake_mode, torch.no_grad():
        _set_memory(tensor.fake, other.fake)
    tensor.sizes.clear()
    if other.origin is not None:
        tx.gives_data = True
    return tensor
