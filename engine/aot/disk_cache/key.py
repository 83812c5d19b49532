"""Disk cache key: digest of the graph, inputs, torch state, versions and engine code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from engine.aot.storage_geometry import storage_id
from engine.aot.version_counters import shares_version_counter
from engine.aot.view_replay import creation_meta
from engine.aot.wrappers.base import TracedCall
from engine.cache.custom_op_key import find_python_aten_override
from engine.cache.environment_key import torch_flags_key, version_key
from engine.cache.fallback_kinds import CacheFallback, NotCached
from engine.cache.function_key import stable_method_name, stable_name
from engine.cache.serialize_symbols import shape_env_facts
from engine.cache.serialize_values import Data, serialize_target, serialize_value
from engine.ir.introspection.stale_view_grad_fn import is_leaf_without_regeneration
from engine.ir.introspection.symbols import has_unbacked_symbols
from engine.ir.introspection.torch_global_state import GLOBAL_STATES
from engine.ir.node_metadata import checkpoint_of, policy_of
from engine.ir.traced_frame import GraphInput
from engine.torch_private.operators import OpOverload, OpOverloadPacket

_KEYED_STATES = (
    "grad_mode inference_mode autocast default_device default_dtype float32_matmul_precision cuda_devices deterministic "
    "deterministic_warn_only anomaly"
).split()
_REQUIRED_STATES = {"torch_function_modes": (), "dispatch_modes": (), "functorch": None}


def cache_key(call: TracedCall, *, trains: bool, settings: Sequence[Any]) -> str:
    """Return the key under which the result of compiling ``call`` is cached.

    Raises:
        NotCached: the result depends on something that cannot be written, or that another process lacks.
    """
    if any(has_unbacked_symbols(i.fake) for i in call.inputs):
        raise NotCached(CacheFallback.UNSERIALIZABLE_SIZE, "an argument has an unbacked size")
    for name, value in _REQUIRED_STATES.items():
        if GLOBAL_STATES[name].read() != value:
            raise NotCached(CacheFallback.UNSERIALIZABLE_VALUE, f"{GLOBAL_STATES[name].label} is active")
    if replaced := find_python_aten_override():
        raise NotCached(
            CacheFallback.CODE_NOT_DETERMINED,
            f"{replaced} has a kernel that other code registered, and its code cannot be read",
        )
    parts = {
        "made by": version_key(),
        "state": [[n, serialize_value(GLOBAL_STATES[n].read())] for n in _KEYED_STATES],
        "switches": torch_flags_key(),
        "how": [trains, *settings],
        "inputs": _inputs(call.inputs),
        "sizes": shape_env_facts([*(i.fake for i in call.inputs), *example_values(call.graph)]),
        "graph": [_node(n) for n in call.graph.graph.nodes],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def example_values(graph: torch.fx.GraphModule) -> list[Any]:
    """Return the example values of the graph's nodes."""
    return [n.meta.get("example_value") for n in graph.graph.nodes]


def _inputs(inputs: Sequence[GraphInput]) -> Data:
    return [
        [i.name, i.initial_version, _fake(i.fake), _real(i.example_value), _aliases_key(inputs, n)]
        for n, i in enumerate(inputs)
    ]


def _aliases_key(inputs: Sequence[GraphInput], n: int) -> Data:
    """Describe which earlier inputs share the input's storage, and how.

    The description says which one is a view of the other, and whether they share a version counter.
    """
    fake = inputs[n].fake
    if not inputs[n].is_tensor:
        return []
    before = [(m, i.fake) for m, i in enumerate(inputs[:n]) if i.is_tensor]
    return [
        [m, _storage_relation(other, fake), _storage_relation(inputs[m].example_value, inputs[n].example_value)]
        for m, other in before
        if storage_id(other) == storage_id(fake)
    ]


def _storage_relation(a: torch.Tensor, b: torch.Tensor) -> Data:
    bases = [a is b, a._base is b, b._base is a, a._base is not None and a._base is b._base]
    return [*bases, storage_id(a) == storage_id(b), shares_version_counter(a, b)]


def _real(real: Any) -> Data:
    if not isinstance(real, torch.Tensor):
        return serialize_value(real)
    look = [
        list(real.shape),
        list(real.stride()),
        real.storage_offset(),
        real.requires_grad,
        is_leaf_without_regeneration(real),
    ]
    kinds = [type(real).__name__, isinstance(real, torch.nn.Parameter), creation_meta(real)]
    return [*kinds, *look, real._is_view(), real.is_inference(), real.untyped_storage().nbytes()]


def _fake(value: Any) -> Data:
    if isinstance(value, (tuple, list)):
        return [_fake(v) for v in value]
    if not isinstance(value, torch.Tensor):
        return serialize_value(value)
    look = [str(value.dtype), str(value.device), str(value.layout)]
    geometry = serialize_value([list(value.shape), list(value.stride()), value.storage_offset()])
    flags = [
        value.is_conj(),
        value.is_neg(),
        value.is_inference(),
        value.requires_grad,
        value._is_view(),
        creation_meta(value),
    ]
    version = -1 if value.is_inference() else value._version
    return [*look, *geometry, *flags, version, serialize_value(value.untyped_storage().nbytes())]


def _node(node: torch.fx.Node) -> Data:
    if node.op not in ("placeholder", "call_function", "call_method", "output"):
        raise NotCached(CacheFallback.UNSERIALIZABLE_VALUE, f"{node.name} is an attribute of the graph")
    target = str(node.target)
    if node.op == "call_function":
        target = _function_name(node.target)
    elif node.op == "call_method":
        target = _method_name(target)
    arguments = serialize_value((node.args, dict(node.kwargs)), lambda n: n.name)
    value = _fake(node.meta.get("example_value")) if node.op != "output" else None
    if policy_of(node) is not None:
        raise NotCached(
            CacheFallback.CODE_NOT_DETERMINED, "a user-defined policy chooses what an activation checkpoint saves"
        )
    return [node.op, node.name, target, arguments, value, node.meta.get("version"), checkpoint_of(node)]


def _function_name(target: Any) -> str:
    """Return a name that finds this same function in any process."""
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return serialize_target(target)
    if name_in_key := stable_name(target):
        return name_in_key
    name = getattr(target, "__qualname__", "") or getattr(target, "__name__", "") or target
    raise NotCached(CacheFallback.CODE_NOT_DETERMINED, f"{name} is a function that may not exist in another process")


def _method_name(name: str) -> str:
    """Return the name of a tensor method and of the function that implements it."""
    if name_in_key := stable_method_name(name):
        return f"{name} {name_in_key}"
    raise NotCached(CacheFallback.CODE_NOT_DETERMINED, f"{name} is a method that may not exist in another process")
