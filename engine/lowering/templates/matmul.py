"""Matmul template: matches calls, fuses prologues and an epilogue, builds the kernel."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.ir.kernels.lowered_program import Buffer
from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import (
    IndexExpr,
    LoopVar,
    Size,
    last_offset,
    product,
    static_product,
    unflatten,
    variable,
)
from engine.ir.loop_ir.loop_kernel import LoopKernel, MatmulConfig, MatmulLoops
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp, R, X
from engine.ir.loop_ir.tensor_def import Coordinates, TensorDef
from engine.ir.static_sizes import static_size
from engine.lowering.bytes_and_flops import total
from engine.lowering.context import ExternNode, LoweredTensor
from engine.lowering.fusion.fusion_cost import MAX_RECOMPUTE_COST, build_unfused
from engine.lowering.fusion.fusion_group import FusionGroup
from engine.lowering.promotion import broadcast_loader

aten = torch.ops.aten

MATMUL_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
INT32_LIMIT = 1 << 31
IEEE_PRECISION = "ieee"
"""Triton's name for full float32 precision, for which tensor cores are not used."""
MAX_GRID_Y = 65_535
"""Most programs in the second dimension of a grid."""


@dataclass(frozen=True, eq=False)
class MatmulCall:
    """One matmul call: ``beta * bias + alpha * left @ right``, for a batch of matrices."""

    extern: ExternNode
    left: LoweredTensor
    right: LoweredTensor
    bias: LoweredTensor | None
    alpha: float
    beta: float
    result: TensorDef

    @property
    def batch_m_n_k(self) -> tuple[Size, Size, Size, Size]:
        """Batch, rows, columns and inner size."""
        *lead, rows, inner = self.left.shape
        return product(lead), rows, self.right.shape[-1], inner


def match_matmul(extern: ExternNode) -> MatmulCall | None:
    """Match the matmul of a call; None for other calls, and where the template is unsupported."""
    args, kwargs = extern.args, extern.kwargs
    added: Any = None
    if extern.target in (aten.mm.default, aten.bmm.default) and not kwargs:
        left, right = args
    elif extern.target in (aten.addmm.default, aten.baddbmm.default):
        added, left, right = args
    else:
        return None
    (result,) = extern.results
    operands = [t for t in (left, right, added) if t is not None]
    if result is None or any(t.is_complex for t in operands):
        return None
    if 0 in map(static_size, (*left.shape, *right.shape)) or left.dtype not in MATMUL_DTYPES:
        return None
    if left.shape[-2] == 1 or right.shape[-1] == 1:  # A matrix-vector product gains nothing from tiles.
        return None
    if (static_product(left.shape[:-2]) or 0) > MAX_GRID_Y:
        return None
    if any(t.dtype != left.dtype for t in (right, result)) or (added is not None and added.dtype not in MATMUL_DTYPES):
        return None
    alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
    if not all(isinstance(x, (int, float)) for x in (alpha, beta)):
        return None
    return MatmulCall(extern, left, right, None if beta == 0 else added, float(alpha), float(beta), result)


def matmul_precision(dtype: torch.dtype) -> str:
    """Return the precision of float32 operands, by torch's setting; empty for other dtypes."""
    if dtype != torch.float32:
        return ""
    return "tf32" if torch.get_float32_matmul_precision() != "highest" else IEEE_PRECISION


def solve_loop_vars(
    index: Coordinates, shape: tuple[Size, ...], variables: Sequence[LoopVar], coordinates: Coordinates
) -> dict[LoopVar, IndexExpr] | None:
    """Solve ``index == wanted`` for the loop variables, None if that is impossible.

    Each variable must be a mixed-radix digit of exactly one coordinate, and all variables must be covered.
    """
    values: dict[LoopVar, IndexExpr] = {v: IndexExpr() for v in variables if v.size == 1}
    for position, size, target in zip(index, shape, coordinates, strict=True):
        if position.const != 0:
            return None
        order = _mixed_radix_vars(position)
        if order is None or any(v in values for v in order):
            return None
        sizes = tuple(v.size for v in order)
        if product(sizes) != size:
            return None
        values.update(zip(order, unflatten(target, sizes), strict=True))
    return values if values.keys() == set(variables) else None


def _mixed_radix_vars(position: IndexExpr) -> list[LoopVar] | None:
    """Return the variables of a mixed-radix index, the slowest first; None for other indices."""
    terms_left, order = dict(position.terms), list[LoopVar]()
    reach: Size = 1
    while terms_left:
        atom = next((a for a, c in terms_left.items() if c == reach), None)
        var = None if atom is None else atom.as_variable()
        if var is None:
            return None
        del terms_left[var]
        order.insert(0, var)
        reach = product((reach, var.size))
    return order


@dataclass(frozen=True, eq=False)
class FusedMatmul:
    """A matmul with the kernels that are fused into it.

    ``prologues`` compute operands, ``epilogue`` computes from the result. ``stores_result``: the result itself is
    stored, too.
    """

    matmul: MatmulCall
    prologues: tuple[FusionGroup, ...] = ()
    epilogue: FusionGroup | None = None
    stores_result: bool = True

    @property
    def output_defs(self) -> dict[TensorDef, None]:
        """Definitions that the kernel writes."""
        outputs = {} if self.epilogue is None else dict.fromkeys(self.epilogue.stores)
        return {**outputs, self.matmul.result: None} if self.stores_result or self.epilogue is None else outputs

    @property
    def members(self) -> frozenset[TensorDef]:
        """Definitions that the kernel computes by loops."""
        groups = (*self.prologues, *([] if self.epilogue is None else [self.epilogue]))
        return frozenset().union(*(g.members for g in groups))

    @property
    def origins(self) -> tuple[str, ...]:
        """Ids of the nodes in the kernel, those of the matmul first."""
        ordered = sorted(self.members, key=lambda d: d.program_order)
        return tuple(dict.fromkeys((*self.matmul.extern.origins, *(o for m in ordered for o in m.node_ids))))

    def input_defs(self) -> set[TensorDef]:
        """Return the definitions that the kernel reads from memory."""
        operands = [t for t in (self.matmul.left, self.matmul.right, self.matmul.bias) if t is not None]
        read = {t.definition for t in operands}
        for group in (*self.prologues, *([] if self.epilogue is None else [self.epilogue])):
            read |= group.input_defs()
        return read - self.members - {self.matmul.result}


def can_fuse_epilogue(group: FusionGroup, call: MatmulCall) -> bool:
    """Return True if a kernel loops over exactly the result of a matmul, so that it can fuse."""
    if (
        group.reduction_vars is not None
        or group.has_scan
        or any(member.kind != "pointwise" for member in group.members)
    ):
        return False
    demands = group.reads_of(call.result)
    if not demands or len({d.index for d in demands}) != 1 or demands[0].is_masked:
        return False
    return solve_loop_vars(demands[0].index, call.result.shape, group.loop_vars, _result_index(call)[0]) is not None


def can_fuse_prologue(group: FusionGroup, operand: LoweredTensor) -> bool:
    """Return True if a kernel computes only an operand, and is cheap enough to run per tile."""
    if group.reduction_vars is not None or group.has_scan or set(group.stores) != {operand.definition}:
        return False
    if any(member.kind != "pointwise" for member in group.members):
        return False
    return (
        sum(op.cost for member in group.members for op in build_unfused(member).ops) <= MAX_RECOMPUTE_COST
        and len(group.input_defs()) <= 2
    )


def _result_index(call: MatmulCall) -> tuple[Coordinates, tuple[LoopVar, LoopVar, LoopVar, LoopVar, LoopVar]]:
    """Return the index of a result element, and the variables of the matmul.

    The variables are matrix, row, column, inner index of the left operand, and inner index of the right operand.
    """
    matrices, rows, cols, inner = call.batch_m_n_k
    result = (
        LoopVar("matrix", matrices),
        LoopVar("row", rows),
        LoopVar("col", cols),
        LoopVar("inner", inner),
        LoopVar("inner_down", inner),
    )
    lead = [variable(result[0])] if len(call.result.shape) == 3 else []
    return (*lead, variable(result[1]), variable(result[2])), result


class _MatmulBuilder(LoopBuilder):
    """Builds the ops of a matmul kernel; a load of the result becomes the matmul."""

    def __init__(self, fused: FusedMatmul, members: Collection[TensorDef], is_wide: bool) -> None:
        self.matmul = fused.matmul
        self.result_index, self.loop_vars = _result_index(fused.matmul)
        _, _, col, across, _ = self.loop_vars
        super().__init__(members, frozenset((col, across)), is_wide=is_wide)
        self._result_op: LoopIROp | None = None

    def load(self, source: TensorDef, index: Coordinates) -> LoopIROp:
        """Load an element of a tensor; for the result of the matmul, return the computed sum."""
        if source is not self.matmul.result:
            return super().load(source, index)
        if self._result_op is None:
            outer, self._node_ids = self._node_ids, self.matmul.extern.origins
            self._result_op = self._dot_product()
            self._node_ids = outer
        return self._result_op

    def _dot_product(self) -> LoopIROp:
        call, (matrix, row, col, across, down) = self.matmul, self.loop_vars
        lead = [variable(matrix)] if len(call.result.shape) == 3 else []
        left = self._load_operand(call.left, (*lead, variable(row), variable(across)))
        right = self._load_operand(call.right, (*lead, variable(down), variable(col)))
        value = self._emit("dot", (left, right), torch.float32, space=frozenset((X, R)))
        value.label = "product"
        if call.alpha != 1.0:
            value = self.call("mul", value, self.constant(call.alpha, torch.float32))
        if call.bias is not None:
            added = broadcast_loader(call.bias, torch.float32, call.result.shape)(self, self.result_index)
            if call.beta != 1.0:
                added = self.call("mul", added, self.constant(call.beta, torch.float32))
            value = self.call("add", value, added)
        return value

    def _load_operand(self, operand: LoweredTensor, index: Coordinates) -> LoopIROp:
        """Load an operand in its own dtype; a plain load from memory is not cast."""
        value = operand.load(self, index)
        if value.name == "to" and value.args[0].name == "load" and value.args[0].dtype == operand.dtype:
            return value.args[0]
        return value if value.dtype == operand.dtype else self._emit("to", (value,), operand.dtype, value=operand.dtype)


def matmul_kernel(
    fused: FusedMatmul,
    tiling: MatmulConfig,
    id: str,
    prefix: str,
    names: tuple[str, ...],
    buffers: Mapping[str, Buffer],
) -> LoopKernel:
    """Build the kernel of a matmul and its fused kernels, over rows and columns of the result."""
    call = fused.matmul
    parameters = [buffers[d.name] for d in (*fused.input_defs(), *fused.output_defs)]
    is_wide = any(last_offset(b.shape, b.stride) >= INT32_LIMIT for b in parameters)
    builder = _MatmulBuilder(fused, fused.members, is_wide)
    matrix, row, col, across, down = builder.loop_vars
    stored: list[tuple[TensorDef, Coordinates]] = []
    if fused.epilogue is not None:
        (index,) = {d.index for d in fused.epilogue.reads_of(call.result)}
        values = solve_loop_vars(index, call.result.shape, fused.epilogue.loop_vars, builder.result_index)
        assert values is not None
        stored = [
            (stored_def, tuple(i.replace(values) for i in position))
            for stored_def, position in fused.epilogue.stores.items()
        ]
    if call.result in fused.output_defs:
        stored.append((call.result, builder.result_index))
    for stored_def, position in sorted(stored, key=lambda item: item[0].program_order):
        builder.store(stored_def, position, builder.load(stored_def, position))
    ops = tuple(builder.ops)
    used = {op.buffer for op in ops if op.buffer}
    mine = {name: buffers[name] for name in buffers if name in used}
    return LoopKernel(
        id,
        f"{prefix}:{id}",
        names,
        ops,
        row,
        col,
        mine,
        fused.origins,
        is_wide,
        _bytes(ops, mine),
        _flops(call, sum(op.cost for op in ops)),
        matmul=MatmulLoops(across, down, matrix, tiling, matmul_precision(call.left.dtype)),
    )


def _flops(call: MatmulCall, cost: int) -> Size:
    """Count the FLOPs of the matmul, plus ``cost`` per result element."""
    matrices, rows, cols, inner = call.batch_m_n_k
    return product((matrices, rows, cols, 2 * inner + cost))


def _bytes(ops: Sequence[LoopIROp], buffers: Mapping[str, Buffer]) -> Size:
    """Count the bytes of all buffers that are read or written, each once."""
    touched = {(op.buffer, op.name in WRITE_OPS) for op in ops if op.buffer}
    return total(product((*buffers[n].shape, buffers[n].dtype.itemsize)) for n, _ in touched)
