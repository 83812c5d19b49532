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
from engine.trace.values.storages import StorageValue, note_inputs, refuse_if_addressed
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
        Unsupported: the value is no plain tensor of its device and layout, or something holds its address.
    """
    data: Any = force(tx, value)
    refused = Unsupported("side-effect", "the attribute 'data' of a tensor is set")
    if data is tensor and tensor.type() in (torch.Tensor, torch.nn.Parameter):
        return  # a conversion that had nothing to do: its memory is its own already
    if not isinstance(data, TensorValue) or data is tensor or isinstance(tx.graph, NestedBuilder):
        raise refused
    mine, new = tensor.fake, data.fake
    alike = mine.device == new.device and mine.layout == new.layout
    if not alike or (mine._is_view() and mine.requires_grad) or mine.is_inference() or new.is_inference():
        raise refused
    if any(v.type() not in (torch.Tensor, torch.nn.Parameter) for v in (tensor, data)):
        raise refused
    if mine.requires_grad and not (new.dtype.is_floating_point or new.dtype.is_complex):
        raise refused
    note_inputs(tx)
    refuse_if_addressed(tx, tensor)
    node = tx.graph.add("call_function", _SET_DATA, (tensor.node(tx), data.node(tx)), {}, tx.node_origin())
    node.meta["example_value"] = None
    tx.note_handlers()
    tx.changes += 1
    with tx.fake_mode:
        mine.data = new
    tensor.sizes.clear()
    if tensor.origin is not None and tensor not in tx.moved:
        tx.moved.append(tensor)


def _set_memory(tensor: torch.Tensor, *source: Any) -> None:
    with torch.no_grad():
        tensor.set_(*source)


def _set_storage(tensor: torch.Tensor, other: torch.Tensor, *place: Any) -> None:
    with torch.no_grad():
        tensor.set_(other.untyped_storage(), *place)


_SET_MEMORY = InGraph("set_memory", _set_memory, changes_state=True)
_SET_STORAGE = InGraph("set_storage", _set_storage, changes_state=True)


def set_memory(tx: Tracer, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``tensor.set_(...)``: a tensor that the traced code made becomes another view of some memory, or of none.

    Raises:
        Unsupported: autograd is concerned, the tensor comes from outside, or what is given is of another kind.
    """
    refused = Unsupported("unknown-call", "Tensor.set_ is called")
    names = ("source", "storage_offset", "size", "stride")
    if len(args) > len(names) or kwargs.keys() - set(names[len(args) :]) or isinstance(tx.graph, NestedBuilder):
        raise refused
    given = dict(zip(names, args, strict=False)) | kwargs
    if len(given) not in (0, 1, 4):
        raise refused
    source = force(tx, given["source"]) if given else None
    by_storage = isinstance(source, StorageValue)
    other = source.viewed() if isinstance(source, StorageValue) else source
    if other is not None and not isinstance(other, TensorValue):
        raise refused
    concerned = [tensor] if other is None else [tensor, other]
    if (
        tensor.origin is not None
        or any(v.type() is not torch.Tensor or v.fake.is_inference() for v in concerned[: 1 + (not by_storage)])
        or any(v.fake.requires_grad for v in concerned[: 1 + (not by_storage)])
        or any(v.fake.dtype != tensor.fake.dtype or v.fake.device != tensor.fake.device for v in concerned)
        or tensor.fake._is_view()
    ):
        raise refused
    note_inputs(tx)
    place = [force(tx, given[n]).graph_arg(tx) for n in names[1:] if n in given]
    node = tx.graph.add(
        "call_function",
        _SET_STORAGE if by_storage else _SET_MEMORY,
        (*(v.node(tx) for v in concerned), *(p[0] for p in place)),
        {},
        tx.node_origin(),
    )
    fakes = [v.fake for v in concerned]
    try:
        evaluate(tx, "call_function", _set_storage if by_storage else _set_memory, [*fakes, *(p[1] for p in place)], {})
    except BaseException:
        tx.graph.forget(node)
        raise
    node.meta["example_value"] = None
    tx.note_handlers()
    tx.changes += 1
    tensor.sizes.clear()
    if other is not None and other.origin is not None:
        tx.gives_data = True
    return tensor
