"""What a compiled result depends on, as one digest: the graph, its inputs, torch's state, the versions, and our own code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from engine.aot.views import counts_with, made_as, storage_of
from engine.aot.wrappers.wrapper import Call
from engine.graph.code_text import known_by_name, method_known
from engine.graph.foreign import traced_in_place
from engine.graph.made_by import switches, versions
from engine.graph.plain import Data, NotPlain, target_name, to_plain
from engine.graph.symbols import assumptions
from engine.ir.frame import GraphInput
from engine.ir.global_state import GLOBAL_STATES
from engine.ir.graph import checkpoint_of, policy_of
from engine.ir.unbacked import is_unbacked
from engine.ir.view_history import is_leaf

_STATES = (
    "grad_mode inference_mode autocast default_device default_dtype float32_matmul_precision cuda_devices deterministic "
    "deterministic_warn_only anomaly"
).split()
_ABSENT = {"torch_function_modes": (), "dispatch_modes": (), "functorch": None}


def key_of(call: Call, *, trains: bool, how: Sequence[Any]) -> str:
    """The digest that the result of compiling ``call`` is found by.

    Raises:
        NotPlain: the result depends on something that cannot be written down, or that another process cannot have.
    """
    if any(is_unbacked(i.fake) for i in call.inputs):
        raise NotPlain("a size of an argument is known to the running graph only")
    for name, value in _ABSENT.items():
        if GLOBAL_STATES[name].read() != value:
            raise NotPlain(f"{GLOBAL_STATES[name].words} is in use")
    if replaced := traced_in_place():
        raise NotPlain(f"{replaced} has a kernel of somebody else's, whose code cannot be read")
    parts = {
        "made by": versions(),
        "state": [[n, to_plain(GLOBAL_STATES[n].read())] for n in _STATES],
        "switches": switches(),
        "how": [trains, *how],
        "inputs": _inputs(call.inputs),
        "sizes": assumptions([*(i.fake for i in call.inputs), *values_of(call.graph)]),
        "graph": [_node(n) for n in call.graph.graph.nodes],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def values_of(graph: torch.fx.GraphModule) -> list[Any]:
    """What tracing found the graph's nodes to be."""
    return [n.meta.get("example_value") for n in graph.graph.nodes]


def _inputs(inputs: Sequence[GraphInput]) -> Data:
    return [[i.name, i.version, _fake(i.fake), _real(i.real), _shared(inputs, n)] for n, i in enumerate(inputs)]


def _shared(inputs: Sequence[GraphInput], n: int) -> Data:
    """Which inputs before this one see the same memory, and how: what one is a view of, and whether they count their writes together."""
    fake = inputs[n].fake
    if not isinstance(fake, torch.Tensor):
        return []
    before = [(m, i.fake) for m, i in enumerate(inputs[:n]) if isinstance(i.fake, torch.Tensor)]
    return [
        [m, _related(other, fake), _related(inputs[m].real, inputs[n].real)]
        for m, other in before
        if storage_of(other) == storage_of(fake)
    ]


def _related(a: torch.Tensor, b: torch.Tensor) -> Data:
    bases = [a is b, a._base is b, b._base is a, a._base is not None and a._base is b._base]
    return [*bases, storage_of(a) == storage_of(b), counts_with(a, b)]


def _real(real: Any) -> Data:
    if not isinstance(real, torch.Tensor):
        return to_plain(real)
    look = [list(real.shape), list(real.stride()), real.storage_offset(), real.requires_grad, is_leaf(real)]
    kinds = [type(real).__name__, isinstance(real, torch.nn.Parameter), made_as(real)]
    return [*kinds, *look, real._is_view(), real.is_inference(), real.untyped_storage().nbytes()]


def _fake(value: Any) -> Data:
    if isinstance(value, (tuple, list)):
        return [_fake(v) for v in value]
    if not isinstance(value, torch.Tensor):
        return to_plain(value)
    look = [str(value.dtype), str(value.device), str(value.layout)]
    place = to_plain([list(value.shape), list(value.stride()), value.storage_offset()])
    flags = [
        value.is_conj(),
        value.is_neg(),
        value.is_inference(),
        value.requires_grad,
        value._is_view(),
        made_as(value),
    ]
    version = -1 if value.is_inference() else value._version
    return [*look, *place, *flags, version, to_plain(value.untyped_storage().nbytes())]


def _node(node: torch.fx.Node) -> Data:
    if node.op not in ("placeholder", "call_function", "call_method", "output"):
        raise NotPlain(f"{node.name} is held by the graph")
    target = str(node.target)
    if node.op == "call_function":
        target = _function_name(node.target)
    elif node.op == "call_method":
        target = _method_name(target)
    given = to_plain((node.args, dict(node.kwargs)), lambda n: n.name)
    value = _fake(node.meta.get("example_value")) if node.op != "output" else None
    if policy_of(node) is not None:
        raise NotPlain("a policy of the user's own chooses what a checkpoint saves")
    return [node.op, node.name, target, given, value, node.meta.get("version"), checkpoint_of(node)]


def _function_name(target: Any) -> str:
    """A name that leads to this very function in any process."""
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return target_name(target)
    if found := known_by_name(target):
        return found
    name = getattr(target, "__qualname__", "") or getattr(target, "__name__", "") or target
    raise NotPlain(f"{name} is a function that another process may not have")


def _method_name(name: str) -> str:
    """The name of a method of tensors, and of the function that it is."""
    if found := method_known(name):
        return f"{name} {found}"
    raise NotPlain(f"{name} is a method that another process may not have")
