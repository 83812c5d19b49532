"""Serialize plain values, records and operator names for the disk cache."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import sympy
import torch
import torch.fx

from engine.cache.custom_op_key import custom_op_fingerprint, op_overload_of
from engine.cache.fallback_kinds import CacheFallback, NotCached
from engine.cache.serialize_symbols import SymbolTable, serialize_expression, serialize_symbolic_number
from engine.graph.device_dependent_composites import composite_op as operator_of_ours
from engine.graph.device_dependent_composites import registered_composite_ops
from engine.graph.functionalize_rng import variant_by_name, variant_name
from engine.ir.aot.aot_metadata import AotMetadata, InputAliasInfo, OutputAliasInfo, ViewSpec, is_same_size
from engine.ir.introspection.symbols import SYMBOLIC_TYPES
from engine.ir.kernels.compile_triton import KernelConfig
from engine.ir.kernels.generated_kernel import GeneratedKernel, KernelArg
from engine.ir.kernels.lowered_program import AtenCall, Buffer, BufferRef, ConstantTensor, Launch, LoweredProgram
from engine.ir.triton_launches import LAUNCH_NAMESPACE
from engine.records.aot import PartitionRecord, SavedValue
from engine.records.base import Record
from engine.records.kernels import LoopOp
from engine.records.lowering import LoweringRecord
from engine.torch_private.dispatch import disable_current_modes
from engine.torch_private.fake_tensors import FakeTensor, FakeTensorMode
from engine.torch_private.higher_order_ops import auto_functionalized, auto_functionalized_v2, with_effects
from engine.torch_private.operators import HigherOrderOperator, OpOverload, OpOverloadPacket

_MAX_CONSTANT_BYTES = 1 << 12
"""Maximum size in bytes of a tensor constant that is serialized."""


Data = Any
"""JSON data."""


_SERIALIZABLE_CLASSES: Mapping[str, Any] = {
    c.__name__: c
    for c in (
        *(ViewSpec, InputAliasInfo, OutputAliasInfo, AotMetadata, PartitionRecord, SavedValue),
        *(LoweredProgram, Buffer, Launch, AtenCall, BufferRef, ConstantTensor),
        *(GeneratedKernel, KernelArg, KernelConfig),
    )
}


_RECORDS: Mapping[str, type[Record]] = {c.__name__: c for c in (LoweringRecord, LoopOp)}


_KINDS: Mapping[type, str] = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory format"}


_TORCH_ENUMS: Mapping[str, Mapping[str, Any]] = {
    name: {str(v): v for v in vars(torch).values() if isinstance(v, kind)} for kind, name in _KINDS.items()
}


Writer: TypeAlias = Callable[[Any, Callable[[Any], Data]], Data]
"""Returns a value as JSON; the second argument writes the values inside."""


def _write_fields(v: Any, go: Callable[[Any], Data]) -> Data:
    return {"class": type(v).__name__, "fields": {f.name: go(getattr(v, f.name)) for f in dataclasses.fields(v)}}


_WRITERS: Mapping[type, Writer] = {
    **dict.fromkeys((type(None), bool, int, str), lambda v, _: v),
    float: lambda v, _: {"float": repr(v)},
    complex: lambda v, _: {"complex": [repr(v.real), repr(v.imag)]},
    **dict.fromkeys((list, torch.fx.immutable_collections.immutable_list), lambda v, go: [go(i) for i in v]),
    **dict.fromkeys((tuple, torch.Size), lambda v, go: {"tuple": [go(i) for i in v]}),
    frozenset: lambda v, go: {"set": [go(i) for i in sorted(v)]},
    slice: lambda v, go: {"slice": [go(v.start), go(v.stop), go(v.step)]},
    type(...): lambda _, __: {"ellipsis": True},
    **dict.fromkeys(_KINDS, lambda v, _: {_KINDS[type(v)]: str(v)}),
    torch.device: lambda v, _: {"device": str(v)},
    torch.Tensor: lambda v, _: {"tensor": _serialize_constant(v)},
    **dict.fromkeys(_RECORDS.values(), lambda v, _: {"record": [type(v).__name__, v.to_dict()]}),
    **dict.fromkeys(_SERIALIZABLE_CLASSES.values(), _write_fields),
}
"""Writers by exact type."""


_SUBCLASS_WRITERS: tuple[tuple[tuple[type, ...], Writer], ...] = (
    ((dict,), lambda v, go: {"dict": [[go(k), go(i)] for k, i in v.items()]}),
    ((OpOverload, HigherOrderOperator), lambda v, _: {"operator": serialize_target(v)}),
    (SYMBOLIC_TYPES, lambda v, _: {"number": serialize_symbolic_number(v)}),
    ((sympy.Basic,), lambda v, _: {"relation": serialize_expression(v)}),
)
"""Writers of classes and their subclasses."""


def serialize_value(value: Any, node: Callable[[torch.fx.Node], Data] | None = None) -> Data:
    """Return a value as JSON; ``node`` returns the JSON of a graph node.

    Raises:
        NotCached: The type is not supported.
    """

    def go(v: Any) -> Data:
        write = _WRITERS.get(type(v)) or next((w for kinds, w in _SUBCLASS_WRITERS if isinstance(v, kinds)), None)
        if write is not None:
            return write(v, go)
        if isinstance(v, torch.fx.Node) and node is not None:
            return {"node": node(v)}
        raise NotCached(CacheFallback.UNSERIALIZABLE_VALUE, f"a {type(v).__name__} cannot be serialized")

    return go(value)


def deserialize_value(
    data: Data, node: Callable[[str], torch.fx.Node] | None = None, symbols: SymbolTable | None = None
) -> Any:
    """Return the value that ``serialize_value`` serialized."""

    def go(d: Data) -> Any:
        if isinstance(d, list):
            return [go(i) for i in d]
        if not isinstance(d, dict):
            return d
        if "class" in d:
            return _SERIALIZABLE_CLASSES[d["class"]](**{k: go(v) for k, v in d["fields"].items()})
        ((kind, v),) = d.items()
        return _READERS[kind](v, go) if kind in _READERS else _deserialize_reference(kind, v, node, symbols)

    return go(data)


def _deserialize_reference(
    kind: str, value: Data, node: Callable[[str], torch.fx.Node] | None, symbols: SymbolTable | None
) -> Any:
    if kind == "node":
        assert node is not None
        return node(value)
    if kind == "number":
        assert symbols is not None
        return symbols.deserialize_number(value)
    if kind == "relation":
        assert symbols is not None
        return symbols.deserialize(value)
    return _TORCH_ENUMS[kind][value]


_READERS: Mapping[str, Callable[[Data, Callable[[Data], Any]], Any]] = {
    "float": lambda v, _: float(v),
    "complex": lambda v, _: complex(float(v[0]), float(v[1])),
    "tuple": lambda v, go: tuple(go(i) for i in v),
    "dict": lambda v, go: {go(k): go(i) for k, i in v},
    "set": lambda v, go: frozenset(go(i) for i in v),
    "slice": lambda v, go: slice(*map(go, v)),
    "ellipsis": lambda v, go: Ellipsis,
    "device": lambda v, _: torch.device(v),
    "operator": lambda v, _: deserialize_target(v),
    "tensor": lambda v, _: _deserialize_constant(v),
    "record": lambda v, _: _RECORDS[v[0]].from_dict(v[1]),
}


def serialize_fake(value: Any) -> Data:
    """Return a fake value as JSON: of a tensor its metadata, not its storage.

    Raises:
        NotCached: It is no plain tensor, or the expression of a size is not supported.
    """
    if isinstance(value, (tuple, list)):
        return {"several": [serialize_fake(v) for v in value]}
    if not isinstance(value, torch.Tensor):
        return {"value": serialize_value(value)}
    if type(value) is not FakeTensor or value.layout != torch.strided or value.is_conj() or value.is_neg():
        raise NotCached(
            CacheFallback.UNSERIALIZABLE_VALUE,
            f"a {type(value).__name__} of an unsupported layout is an intermediate value",
        )
    geometry = serialize_value([list(value.shape), list(value.stride()), value.storage_offset()])
    return {"tensor": [str(value.dtype), str(value.device), *geometry]}


def deserialize_fake(data: Data, mode: FakeTensorMode, symbols: SymbolTable) -> Any:
    """Return a new fake value with the metadata that ``serialize_fake`` serialized."""
    if "several" in data:
        return tuple(deserialize_fake(d, mode, symbols) for d in data["several"])
    if "value" in data:
        return deserialize_value(data["value"], symbols=symbols)
    dtype, device = data["tensor"][:2]
    shape, stride, offset = deserialize_value(data["tensor"][2:], symbols=symbols)
    memory = torch.empty_strided(shape, stride, dtype=_TORCH_ENUMS["dtype"][dtype], device="meta")
    if not is_same_size(offset, 0):
        reach = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        memory = torch.empty(
            offset + (max(reach, 0) if isinstance(reach, int) else reach), dtype=memory.dtype, device="meta"
        ).as_strided(shape, stride, offset)
    return FakeTensor(mode, memory, torch.device(device))


_OPERATORS = (OpOverload, OpOverloadPacket)


_HIGHER_ORDER_TARGETS: Mapping[Any, str] = {
    with_effects: "with effects",
    auto_functionalized: "auto functionalized",
    auto_functionalized_v2: "auto functionalized, views",
}


_SIZE_FUNCTIONS: Mapping[Any, str] = {
    getattr(module, name): f"{module.__name__}.{name}"
    for module, names in (
        (torch, "sym_max sym_min sym_not sym_float sym_int sym_ite sym_sum"),
        (math, "ceil floor trunc"),
    )
    for name in names.split()
    if hasattr(module, name)
}
"""Functions that compute with sizes, besides those of ``operator``."""


def serialize_target(target: Any) -> str:
    """Return the name of an operator of a functional graph.

    Raises:
        NotCached: Its behavior cannot be determined from its code.
    """
    if special := _HIGHER_ORDER_TARGETS.get(target) or _SIZE_FUNCTIONS.get(target):
        return special
    if isinstance(target, OpOverload):
        if form := variant_name(target):
            return form
        name, overload = target._schema.name, target._overloadname
        if target.namespace in ("aten", "prims") or target.overloadpacket.__name__ in registered_composite_ops():
            return f"{name}.{overload}"
    if isinstance(target, _OPERATORS):
        return f"{target.name() if isinstance(target, _OPERATORS[0]) else target._qualified_op_name}#{_custom_op_fingerprint(target)}"
    name = getattr(target, "__name__", "")
    if name and getattr(operator, name, None) is target:
        return f"operator.{name}"
    raise NotCached(CacheFallback.UNSERIALIZABLE_VALUE, f"{target} is an operator that other code registered")


def _custom_op_fingerprint(target: Any) -> str:
    namespace = getattr(target, "namespace", "") or target._qualified_op_name.partition("::")[0]
    if namespace in ("aten", "prims", "engine"):
        return ""
    if namespace == LAUNCH_NAMESPACE:
        raise NotCached(CacheFallback.UNSERIALIZABLE_VALUE, f"it launches the Triton kernel {target}")
    return custom_op_fingerprint(target, _serialize_read)


def _serialize_read(value: Any) -> Data:
    """Return a value that the code of a custom operator reads, as JSON."""
    operator = op_overload_of(value)
    return serialize_value(value) if operator is None else {"operator": serialize_target(operator)}


def deserialize_target(name: str) -> Any:
    """Return the operator with this name.

    Raises:
        KeyError: It does not exist, or it has changed since its name was written.
    """
    for target, special in (*_HIGHER_ORDER_TARGETS.items(), *_SIZE_FUNCTIONS.items()):
        if name == special:
            return target
    if name.startswith("operator."):
        return getattr(operator, name.partition(".")[2])
    if (form := variant_by_name(name, deserialize_target)) is not None:
        return form
    name, _, identity = name.partition("#")
    namespace, _, operator_name = name.partition("::")
    operator_name, _, overload = operator_name.partition(".")
    if identity:
        overload_object = getattr(getattr(getattr(torch.ops, namespace), operator_name), overload or "default")
        if _custom_op_fingerprint(overload_object) != identity:
            raise KeyError(name)
        return overload_object
    if namespace == "engine":
        return operator_of_ours(operator_name)
    if namespace not in ("aten", "prims"):
        raise KeyError(name)
    return getattr(getattr(getattr(torch.ops, namespace), operator_name), overload)


def _serialize_constant(value: torch.Tensor) -> Data:
    """Return a small constant that tracing created as JSON: dtype, sizes and bytes."""
    is_plain = value.device.type == "cpu" and value.layout == torch.strided and not (value.is_conj() or value.is_neg())
    if not is_plain or value.nbytes > _MAX_CONSTANT_BYTES or not value.is_contiguous():
        raise NotCached(
            CacheFallback.UNSERIALIZABLE_VALUE,
            "a constant tensor of the graph is too large, or not a contiguous CPU tensor",
        )
    raw_bytes = value.detach().reshape(-1).view(torch.uint8).tolist() if value.numel() else []
    return [str(value.dtype), list(value.shape), bytes(raw_bytes).hex()]


def _deserialize_constant(data: Data) -> torch.Tensor:
    dtype, shape, raw_bytes = data
    kind: torch.dtype = _TORCH_ENUMS["dtype"][dtype]
    with disable_current_modes():
        if not raw_bytes:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(bytearray.fromhex(raw_bytes), dtype=torch.uint8).view(kind).reshape(shape)
