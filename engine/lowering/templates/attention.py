"""Attention template: matches calls, lists candidate block sizes, builds the kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from engine.ir.kernels.attention_kernel import (
    DELTA_KERNEL,
    FORWARD_KERNEL,
    GRAD_KEY_VALUE_KERNEL,
    GRAD_QUERY_KERNEL,
    AttentionBlocks,
    AttentionKernel,
    AttentionOperand,
)
from engine.ir.loop_ir.index_expr import LoopVar, Size, flatten, last_offset, variable
from engine.ir.loop_ir.tensor_def import TensorDef
from engine.ir.node_values import called_overload
from engine.ir.static_sizes import are_positive_sizes, static_size, static_sizes
from engine.lowering.context import ExternNode, LoweredTensor
from engine.lowering.templates.matmul import INT32_LIMIT, MATMUL_DTYPES, MAX_GRID_Y, matmul_precision
from engine.lowering.templates.matmul_configs import next_power_of_two

aten = torch.ops.aten

MAX_HEAD_DIM = 256
"""Largest head dim for which a block fits."""
MAX_FLOAT32_BLOCK = 32
"""Largest block side for float32, whose products take many registers."""
FORWARD_BLOCKS = (
    AttentionBlocks(128, 64, 4, 3), AttentionBlocks(64, 64, 4, 3), AttentionBlocks(128, 128, 8, 3), AttentionBlocks(128, 64, 8, 3), AttentionBlocks(64, 128, 4, 3), AttentionBlocks(64, 32, 4, 3),
)  # fmt: skip
BACKWARD_BLOCKS = (
    AttentionBlocks(64, 64, 4, 2), AttentionBlocks(64, 128, 8, 2), AttentionBlocks(128, 64, 8, 2), AttentionBlocks(64, 64, 8, 2), AttentionBlocks(32, 64, 4, 2), AttentionBlocks(32, 32, 4, 2),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One attention call, forward or backward, with its tensors by role.

    ``unused_results`` are results that the template does not compute. They hold a generator's state, which nothing
    reads without dropout.
    """

    extern: ExternNode
    operands: Mapping[str, LoweredTensor]
    results: Mapping[str, TensorDef]
    is_causal: bool
    scale: float
    unused_results: tuple[TensorDef, ...] = ()

    @property
    def is_backward(self) -> bool:
        """True if the call computes gradients."""
        return "grad" in self.operands


@dataclass(frozen=True, eq=False)
class AttentionTemplate:
    """An attention call that the template computes; the backward kernels share ``delta``."""

    call: AttentionCall
    blocks: AttentionBlocks
    delta: TensorDef | None = None

    @property
    def output_defs(self) -> dict[TensorDef, None]:
        """Definitions that the kernels write."""
        return dict.fromkeys(
            (*self.call.results.values(), *self.call.unused_results, *([] if self.delta is None else [self.delta]))
        )

    def input_defs(self) -> set[TensorDef]:
        """Return the definitions that the kernels read from memory."""
        return {t.definition for t in self.call.operands.values()}

    @property
    def kernel_kinds(self) -> tuple[str, ...]:
        """Kinds of the kernels, in launch order."""
        return (DELTA_KERNEL, GRAD_KEY_VALUE_KERNEL, GRAD_QUERY_KERNEL) if self.call.is_backward else (FORWARD_KERNEL,)


FORWARD_OPS = (
    "attention",
    "attention_with_backward",
    *(f"_scaled_dot_product_{n}_attention" for n in ("flash", "efficient", "cudnn")),
)
BACKWARD_OPS = ("attention_backward", *(f"{name}_backward" for name in FORWARD_OPS[2:]))
RESULT_ROLES = dict.fromkeys(FORWARD_OPS, ("out", "logsumexp")) | dict.fromkeys(
    BACKWARD_OPS, ("grad_query", "grad_key", "grad_value", "grad_mask")
)
"""Roles of the results of each operator, in order."""
ARGUMENT_ROLES = {"attn_mask": "mask", "attn_bias": "mask", "grad_out": "grad", "grad_out_": "grad"}
"""Roles of arguments whose name is not their role."""
OPERAND_ROLES = ("query", "key", "value", "mask", "grad", "out", "logsumexp")


def match_attention(extern: ExternNode) -> AttentionCall | None:
    """Match the attention of a call; None for other calls and where unsupported."""
    target = called_overload(extern.target)
    roles = None if target is None else RESULT_ROLES.get(target._schema.name.partition("::")[2])
    if target is None or roles is None:
        return None
    names = [a.name for a in target._schema.arguments]
    named = {ARGUMENT_ROLES.get(k, k): v for k, v in (*zip(names, extern.args, strict=False), *extern.kwargs.items())}
    is_partial = not all(named.get("grad_input_mask", [True])[:3])
    if named.get("dropout_p") or named.get("return_debug_mask") or is_partial:
        return None
    operands = {role: named[role] for role in OPERAND_ROLES if named.get(role) is not None}
    if not all(not t.is_complex and _is_addressable_in_32_bits(t) for t in operands.values()):
        return None
    results = {r: d for r, d in zip(roles, extern.results, strict=False) if d is not None and d.shape}
    unused = [r for r in extern.results[len(roles) :] if r is not None]
    if "grad_mask" in results and not _has_score_shape(results["grad_mask"], operands):
        unused.append(results.pop("grad_mask"))
    width, scale = static_size(operands["query"].shape[-1]), named.get("scale")
    if scale is None and width:
        scale = width**-0.5
    if not isinstance(scale, float):
        return None
    call = AttentionCall(extern, operands, results, bool(named.get("is_causal")), scale, tuple(unused))
    return call if _supports_sizes(call, bool(named.get("enable_gqa"))) and _supports_dtypes(call) else None


def _has_score_shape(tensor_def: TensorDef, operands: Mapping[str, LoweredTensor]) -> bool:
    """Return True if the gradient of a mask has one element for each score."""
    query, key, mask = operands["query"], operands["key"], operands.get("mask")
    scores = (*query.shape[:3], key.shape[2]) if len(query.shape) == 4 else ()
    return mask is not None and tensor_def.shape == scores and tensor_def.dtype == mask.dtype


def _is_addressable_in_32_bits(value: LoweredTensor) -> bool:
    """Return True if a tensor is in memory, and int32 can index the rows of each head."""
    placed = static_strides_of(value)
    shape = static_sizes(value.shape)
    if placed is None or shape is None:
        return False
    return all(n * abs(s) < INT32_LIMIT for n, s in zip(shape[2:], placed[0][2:], strict=True))


def static_strides_of(value: LoweredTensor) -> tuple[tuple[int, ...], int] | None:
    """Return static ``(strides, offset)`` of a tensor in memory, None for other tensors."""
    variables = tuple(LoopVar(f"v{d}", n) for d, n in enumerate(value.shape))
    index = tuple(variable(v) for v in variables)
    flat = flatten(value.index_map(index) if value.index_map else index, value.definition.stride)
    numbers = static_sizes((flat.const, *(flat.terms.get(v, 0) for v in variables)))
    return (numbers[1:], numbers[0]) if numbers is not None and flat.terms.keys() <= set(variables) else None


def _supports_sizes(call: AttentionCall, shares_keys: bool) -> bool:
    query, key, value = (call.operands[r].shape for r in ("query", "key", "value"))
    if any(len(shape) != 4 or not are_positive_sizes(shape) for shape in (query, key, value)):
        return False
    if max(int(query[3]), int(value[3])) > MAX_HEAD_DIM or key[1] != value[1] or query[0] != key[0]:
        return False
    if int(query[0]) * int(query[1]) > MAX_GRID_Y:
        return False
    if query[1] != key[1] and (not shares_keys or int(query[1]) % int(key[1])):
        return False
    if call.is_causal and query[2] != key[2] and call.extern.target.namespace != "engine":
        return False  # Libraries differ in the corner at which the causal diagonal starts.
    results = (*call.results.values(), *call.unused_results)
    return static_sizes(n for d in results for n in (*d.shape, *d.stride)) is not None


def _supports_dtypes(call: AttentionCall) -> bool:
    dtype, mask = call.operands["query"].dtype, call.operands.get("mask")
    if dtype not in MATMUL_DTYPES or any(
        call.operands[r].dtype != dtype for r in ("key", "value", "grad", "out") if r in call.operands
    ):
        return False
    if any(r == "logsumexp" and len(d.shape) < 3 for r, d in call.results.items()):
        return False
    if mask is not None and (mask.dtype not in (torch.bool, *MATMUL_DTYPES) or len(mask.shape) > 4):
        return False
    return not call.is_backward or {"grad_query", "grad_key", "grad_value"} <= call.results.keys()


def attention_kernel(step: AttentionTemplate, kind: str) -> tuple[AttentionKernel, dict[str, str]]:
    """Build one kernel of a call; return it with the buffer of each role."""
    call = step.call
    query, key, value = (call.operands[r] for r in ("query", "key", "value"))
    batch, heads, rows, width = (int(n) for n in query.shape)
    roles = {
        FORWARD_KERNEL: ("query", "key", "value", "mask"),
        DELTA_KERNEL: ("out", "grad"),
        GRAD_KEY_VALUE_KERNEL: ("query", "key", "value", "mask", "grad", "logsumexp"),
        GRAD_QUERY_KERNEL: ("query", "key", "value", "mask", "grad", "logsumexp"),
    }[kind]
    written = {
        FORWARD_KERNEL: ("out", "logsumexp"),
        DELTA_KERNEL: (),
        GRAD_KEY_VALUE_KERNEL: ("grad_key", "grad_value"),
        GRAD_QUERY_KERNEL: ("grad_query", "grad_mask"),
    }[kind]
    tensors, buffers = [], {}
    for role in roles:
        if role in call.operands:
            tensors.append(_operand(role, call.operands[role], (batch, heads, rows, int(key.shape[2]))))
            buffers[role] = call.operands[role].definition.name
    for role in written:
        if role in call.results:
            result = call.results[role]
            tensors.append(_operand(role, LoweredTensor(result.shape, result), (), written=True))
            buffers[role] = result.name
    if step.delta is not None:
        tensors.append(_operand("sums", LoweredTensor(step.delta.shape, step.delta), (), written=kind == DELTA_KERNEL))
        buffers["sums"] = step.delta.name
    bases = [
        *(call.operands[r].definition for r in roles if r in call.operands),
        *(call.results[r] for r in written if r in call.results),
    ]
    is_wide = any(last_offset(d.shape, d.stride) >= INT32_LIMIT for d in bases)
    kernel = AttentionKernel(
        kind,
        batch,
        heads,
        int(key.shape[1]),
        rows,
        int(key.shape[2]),
        width,
        int(value.shape[3]),
        call.scale,
        call.is_causal,
        matmul_precision(query.dtype),
        fit_blocks(step.blocks, rows, int(key.shape[2]), max(width, int(value.shape[3])), query.dtype.itemsize),
        tuple(tensors),
        is_wide,
    )
    return kernel, buffers


def _operand(role: str, value: LoweredTensor, sizes: tuple[int, ...], *, written: bool = False) -> AttentionOperand:
    placed = static_strides_of(value)
    assert placed is not None
    stride, offset = placed
    if role == "mask":  # Dimensions of size 1 are broadcast by stride 0.
        missing = 4 - len(stride)
        shape = (1,) * missing + tuple(value.shape)
        stride = tuple(
            0 if n == 1 and m != 1 else s for n, m, s in zip(shape, sizes, (0,) * missing + stride, strict=True)
        )
    if role in ("logsumexp", "sums"):
        stride = stride[:3]
    return AttentionOperand(role, value.dtype, stride, offset, written)


def template_candidates(call: AttentionCall) -> tuple[AttentionTemplate, ...]:
    """Return the candidate block sizes of a call, the likeliest first."""
    query, key = call.operands["query"], call.operands["key"]
    rows, cols = int(query.shape[2]), int(key.shape[2])
    width = int(max(query.shape[3], call.operands["value"].shape[3]))
    listed = BACKWARD_BLOCKS if call.is_backward else FORWARD_BLOCKS
    blocks = dict.fromkeys(fit_blocks(b, rows, cols, width, query.dtype.itemsize) for b in listed)
    return tuple(AttentionTemplate(call, b, _delta_def(call)) for b in blocks)


def _delta_def(call: AttentionCall) -> TensorDef | None:
    if not call.is_backward:
        return None
    batch, heads, rows, _ = call.operands["query"].shape
    stride: tuple[Size, ...] = (heads * rows, rows, 1)
    name = f"{call.results['grad_query'].name}_sums"
    return TensorDef(name, torch.float32, (batch, heads, rows), stride, "extern", call.extern.origins)


def fit_blocks(blocks: AttentionBlocks, rows: int, cols: int, width: int, itemsize: int) -> AttentionBlocks:
    """Limit blocks to the sequence lengths, and further for wide heads and wide dtypes."""
    high, wide = min(blocks.query_block, next_power_of_two(rows)), min(blocks.key_block, next_power_of_two(cols))
    if itemsize > 2:
        high, wide = min(high, MAX_FLOAT32_BLOCK), min(wide, MAX_FLOAT32_BLOCK)
    limit = 64 * 1024 // (max(16, next_power_of_two(width)) * itemsize)
    while high + wide > max(limit, 32):
        high, wide = (high // 2, wide) if high >= wide else (high, wide // 2)
    high, wide = max(16, high), max(16, wide)
    return replace(blocks, query_block=high, key_block=wide, num_warps=max(1, min(blocks.num_warps, high // 16)))
