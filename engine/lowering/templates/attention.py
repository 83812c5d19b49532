"""Attention as kernels of a template: which calls it can take the place of, and with which tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from engine.ir.attention import FORWARD, KEYS, QUERIES, SUMS, AttentionKernel, Blocks, Lying
from engine.ir.index import Index, Size, Var, flatten, variable
from engine.ir.loops import Def
from engine.lowering.table import ExternNode, Tensor
from engine.lowering.templates.products import HIGHEST_GRID, TYPES, WIDE, precision_of

aten = torch.ops.aten

WIDEST = 256
"""Width of a key beyond which no block fits."""
NARROW = 32
"""Rows and columns of a block of 32-bit numbers, whose products fill many registers."""
FORWARD_BLOCKS = (
    Blocks(128, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(128, 128, 8, 3), Blocks(128, 64, 8, 3), Blocks(64, 128, 4, 3), Blocks(64, 32, 4, 3),
)  # fmt: skip
BACKWARD_BLOCKS = (
    Blocks(64, 64, 4, 2), Blocks(64, 128, 8, 2), Blocks(128, 64, 8, 2), Blocks(64, 64, 8, 2), Blocks(32, 64, 4, 2), Blocks(32, 32, 4, 2),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Attending:
    """One call of attention, forward or backward, by the roles of its tensors.

    ``rest`` are results that a template does not compute: they hold a generator's state, which no call without dropout looks at.
    """

    extern: ExternNode
    given: Mapping[str, Tensor]
    results: Mapping[str, Def]
    is_causal: bool
    scale: float
    rest: tuple[Def, ...] = ()

    @property
    def is_backward(self) -> bool:
        """Whether it computes gradients."""
        return "grad" in self.given


@dataclass(frozen=True, eq=False)
class Attended:
    """A call of attention that kernels of the template compute; ``sums`` is memory that the backward's kernels share."""

    call: Attending
    blocks: Blocks
    sums: Def | None = None

    @property
    def stored(self) -> dict[Def, None]:
        """Defs that it writes."""
        return dict.fromkeys(
            (*self.call.results.values(), *self.call.rest, *([] if self.sums is None else [self.sums]))
        )

    def sources(self) -> set[Def]:
        """Defs that it reads from memory."""
        return {t.base for t in self.call.given.values()}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Its kernels, in order."""
        return (SUMS, KEYS, QUERIES) if self.call.is_backward else (FORWARD,)


FORWARDS = (
    "attention",
    "attention_with_backward",
    *(f"_scaled_dot_product_{n}_attention" for n in ("flash", "efficient", "cudnn")),
)
BACKWARDS = ("attention_backward", *(f"{name}_backward" for name in FORWARDS[2:]))
RESULTS = dict.fromkeys(FORWARDS, ("out", "logsumexp")) | dict.fromkeys(
    BACKWARDS, ("grad_query", "grad_key", "grad_value", "grad_mask")
)
"""By operator: the roles of its results, in order."""
ROLES = {"attn_mask": "mask", "attn_bias": "mask", "grad_out": "grad", "grad_out_": "grad"}
"""The roles of arguments that go by other names."""
GIVEN = ("query", "key", "value", "mask", "grad", "out", "logsumexp")


def attending(extern: ExternNode) -> Attending | None:
    """The attention that a call computes; None for other calls, and for what the template does not do."""
    target = extern.target
    made = RESULTS.get(target._schema.name.partition("::")[2]) if isinstance(target, torch._ops.OpOverload) else None
    if made is None:
        return None
    names = [a.name for a in target._schema.arguments]
    named = {ROLES.get(k, k): v for k, v in (*zip(names, extern.args, strict=False), *extern.kwargs.items())}
    is_partial = not all(named.get("grad_input_mask", [True])[:3])
    if named.get("dropout_p") or named.get("return_debug_mask") or is_partial:
        return None
    given = {role: named[role] for role in GIVEN if named.get(role) is not None}
    if not all(isinstance(t, Tensor) and not t.is_complex and _is_near(t) for t in given.values()):
        return None
    results = {r: d for r, d in zip(made, extern.results, strict=False) if d is not None and d.shape}
    rest = [r for r in extern.results[len(made) :] if r is not None]
    if "grad_mask" in results and not _is_of_scores(results["grad_mask"], given):
        rest.append(results.pop("grad_mask"))
    width, scale = given["query"].shape[-1], named.get("scale")
    if scale is None and isinstance(width, int) and width:
        scale = width**-0.5
    if not isinstance(scale, float):
        return None
    found = Attending(extern, given, results, bool(named.get("is_causal")), scale, tuple(rest))
    return found if _has_sizes(found, bool(named.get("enable_gqa"))) and _has_types(found) else None


def _is_of_scores(made: Def, given: Mapping[str, Tensor]) -> bool:
    """Whether a gradient of a mask has an element for each score."""
    query, key, mask = given["query"], given["key"], given.get("mask")
    scores = (*query.shape[:3], key.shape[2]) if len(query.shape) == 4 else ()
    return mask is not None and made.shape == scores and made.dtype == mask.dtype


def _is_near(value: Tensor) -> bool:
    """Whether a tensor is in memory, and each head's rows can be counted in 32 bits."""
    placed = place_of(value)
    if placed is None or not all(isinstance(n, int) for n in value.shape):
        return False
    return all(n * abs(s) < WIDE for n, s in zip(value.shape[2:], placed[0][2:], strict=True))


def place_of(value: Tensor) -> tuple[tuple[int, ...], int] | None:
    """``(strides, offset)`` of a tensor in memory whose sizes are numbers; None for others."""
    variables = tuple(Var(f"v{d}", n) for d, n in enumerate(value.shape))
    index = tuple(variable(v) for v in variables)
    flat = flatten(value.mapping(index) if value.mapping else index, value.base.stride)
    if not flat.terms.keys() <= set(variables) or not isinstance(flat.const, int):
        return None
    strides = tuple(flat.terms.get(v, 0) for v in variables)
    return (strides, flat.const) if all(isinstance(s, int) for s in strides) else None  # type: ignore[return-value]


def _has_sizes(call: Attending, shares_keys: bool) -> bool:
    query, key, value = (call.given[r].shape for r in ("query", "key", "value"))
    if any(len(shape) != 4 or not all(isinstance(n, int) and n > 0 for n in shape) for shape in (query, key, value)):
        return False
    if max(int(query[3]), int(value[3])) > WIDEST or key[1] != value[1] or query[0] != key[0]:
        return False
    if int(query[0]) * int(query[1]) > HIGHEST_GRID:
        return False
    if query[1] != key[1] and (not shares_keys or int(query[1]) % int(key[1])):
        return False
    if call.is_causal and query[2] != key[2] and call.extern.target.namespace != "engine":
        return False  # libraries do not agree on which corner the diagonal begins in
    made = (*call.results.values(), *call.rest)
    return all(isinstance(n, int) for d in made for n in (*d.shape, *d.stride))


def _has_types(call: Attending) -> bool:
    dtype, mask = call.given["query"].dtype, call.given.get("mask")
    if dtype not in TYPES or any(
        call.given[r].dtype != dtype for r in ("key", "value", "grad", "out") if r in call.given
    ):
        return False
    if any(r == "logsumexp" and len(d.shape) < 3 for r, d in call.results.items()):
        return False
    if mask is not None and (mask.dtype not in (torch.bool, *TYPES) or len(mask.shape) > 4):
        return False
    return not call.is_backward or {"grad_query", "grad_key", "grad_value"} <= call.results.keys()


def kernel_of(step: Attended, kind: str) -> tuple[AttentionKernel, dict[str, str]]:
    """One kernel of a call, and the buffer of each role."""
    call = step.call
    query, key, value = (call.given[r] for r in ("query", "key", "value"))
    batch, heads, rows, width = (int(n) for n in query.shape)
    wanted = {
        FORWARD: ("query", "key", "value", "mask"),
        SUMS: ("out", "grad"),
        KEYS: ("query", "key", "value", "mask", "grad", "logsumexp"),
        QUERIES: ("query", "key", "value", "mask", "grad", "logsumexp"),
    }[kind]
    written = {
        FORWARD: ("out", "logsumexp"),
        SUMS: (),
        KEYS: ("grad_key", "grad_value"),
        QUERIES: ("grad_query", "grad_mask"),
    }[kind]
    tensors, buffers = [], {}
    for role in wanted:
        if role in call.given:
            tensors.append(_lying(role, call.given[role], (batch, heads, rows, int(key.shape[2]))))
            buffers[role] = call.given[role].base.name
    for role in written:
        if role in call.results:
            made = call.results[role]
            tensors.append(_lying(role, Tensor(made.shape, made), (), written=True))
            buffers[role] = made.name
    if step.sums is not None:
        tensors.append(_lying("sums", Tensor(step.sums.shape, step.sums), (), written=kind == SUMS))
        buffers["sums"] = step.sums.name
    bases = [
        *(call.given[r].base for r in wanted if r in call.given),
        *(call.results[r] for r in written if r in call.results),
    ]
    is_wide = any(_reach(d) >= WIDE for d in bases)
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
        precision_of(query.dtype),
        fitted(step.blocks, rows, int(key.shape[2]), max(width, int(value.shape[3])), query.dtype.itemsize),
        tuple(tensors),
        is_wide,
    )
    return kernel, buffers


def _lying(role: str, value: Tensor, sizes: tuple[int, ...], *, written: bool = False) -> Lying:
    placed = place_of(value)
    assert placed is not None
    stride, offset = placed
    if role == "mask":  # spread over what it has one of
        missing = 4 - len(stride)
        shape = (1,) * missing + tuple(value.shape)
        stride = tuple(
            0 if n == 1 and m != 1 else s for n, m, s in zip(shape, sizes, (0,) * missing + stride, strict=True)
        )
    if role in ("logsumexp", "sums"):
        stride = stride[:3]
    return Lying(role, value.dtype, stride, offset, written)


def _reach(made: Def) -> int:
    last = flatten([Index({}, s - 1) for s in made.shape], made.stride).const
    return last if isinstance(last, int) else 0


def ways(call: Attending) -> tuple[Attended, ...]:
    """Ways to cut it, the likeliest first."""
    query, key = call.given["query"], call.given["key"]
    rows, cols, width = int(query.shape[2]), int(key.shape[2]), int(max(query.shape[3], call.given["value"].shape[3]))
    known = BACKWARD_BLOCKS if call.is_backward else FORWARD_BLOCKS
    blocks = dict.fromkeys(fitted(b, rows, cols, width, query.dtype.itemsize) for b in known)
    return tuple(Attended(call, b, _sums(call)) for b in blocks)


def _sums(call: Attending) -> Def | None:
    if not call.is_backward:
        return None
    batch, heads, rows, _ = call.given["query"].shape
    stride: tuple[Size, ...] = (heads * rows, rows, 1)
    name = f"{call.results['grad_query'].name}_sums"
    return Def(name, torch.float32, (batch, heads, rows), stride, "extern", call.extern.origins)


def fitted(blocks: Blocks, rows: int, cols: int, width: int, itemsize: int) -> Blocks:
    """Blocks no longer than the sequences, and smaller ones for wide heads and wide numbers."""
    high, wide = min(blocks.rows, _power(rows)), min(blocks.cols, _power(cols))
    if itemsize > 2:
        high, wide = min(high, NARROW), min(wide, NARROW)
    limit = 64 * 1024 // (max(16, _power(width)) * itemsize)
    while high + wide > max(limit, 32):
        high, wide = (high // 2, wide) if high >= wide else (high, wide // 2)
    high, wide = max(16, high), max(16, wide)
    return replace(blocks, rows=high, cols=wide, num_warps=max(1, min(blocks.num_warps, high // 16)))


def _power(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
