"""Products of matrices as kernels of a template, with what is computed just before and right after them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.ir.kernels.lowered_program import Buffer
from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr, LoopVar, Size, flatten, product, unflatten, variable
from engine.ir.loop_ir.loop_kernel import LoopKernel, MatmulConfig, MatmulLoops
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp, R, X
from engine.ir.loop_ir.tensor_def import Coordinates, TensorDef
from engine.lowering.context import ExternNode, LoweredTensor
from engine.lowering.fusion_cost import MAX_RECOMPUTE_COST, build_unfused
from engine.lowering.promotion import broadcast_loader
from engine.lowering.scheduler import FusionGroup

aten = torch.ops.aten

MATMUL_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
INT32_LIMIT = 1 << 31
IEEE_PRECISION = "ieee"
"""How Triton calls products of 32-bit numbers in full precision, which tensor cores do not make."""
MAX_GRID_Y = 65_535
"""Programs that a device's grid has in its second dimension."""


@dataclass(frozen=True, eq=False)
class MatmulCall:
    """One product that a library would compute: ``beta * added + alpha * left @ right``, of so many ``matrices``."""

    extern: ExternNode
    left: LoweredTensor
    right: LoweredTensor
    bias: LoweredTensor | None
    alpha: float
    beta: float
    result: TensorDef

    @property
    def batch_m_n_k(self) -> tuple[Size, Size, Size, Size]:
        """Matrices, rows, columns, and the inner size."""
        *lead, rows, inner = self.left.shape
        return product(lead), rows, self.right.shape[-1], inner


def match_matmul(extern: ExternNode) -> MatmulCall | None:
    """The product that a call computes; None for other calls, and for products that no template does."""
    args, kwargs = extern.args, extern.kwargs
    added: Any = None
    if extern.target in (aten.mm.default, aten.bmm.default) and not kwargs:
        left, right = args
    elif extern.target in (aten.addmm.default, aten.baddbmm.default):
        added, left, right = args
    else:
        return None
    (result,) = extern.results
    given = [t for t in (left, right, added) if t is not None]
    if result is None or not all(isinstance(t, LoweredTensor) and not t.is_complex for t in given):
        return None
    sizes = [*left.shape, *right.shape]
    if any(isinstance(n, int) and n <= 0 for n in sizes) or left.dtype not in MATMUL_DTYPES:
        return None
    if left.shape[-2] == 1 or right.shape[-1] == 1:  # a matrix and a vector: nothing for tiles
        return None
    matrices = product(left.shape[:-2])
    if isinstance(matrices, int) and matrices > MAX_GRID_Y:
        return None
    if any(t.dtype != left.dtype for t in (right, result)) or (added is not None and added.dtype not in MATMUL_DTYPES):
        return None
    alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
    if not all(isinstance(x, (int, float)) for x in (alpha, beta)):
        return None
    return MatmulCall(extern, left, right, None if beta == 0 else added, float(alpha), float(beta), result)


def matmul_precision(dtype: torch.dtype) -> str:
    """How exactly tensor cores take numbers of 32 bits: as torch was told to. Empty for types that leave no choice."""
    if dtype != torch.float32:
        return ""
    return "tf32" if torch.get_float32_matmul_precision() != "highest" else IEEE_PRECISION


def solve_loop_vars(
    index: Coordinates, shape: tuple[Size, ...], variables: Sequence[LoopVar], wanted: Coordinates
) -> dict[LoopVar, IndexExpr] | None:
    """What loop variables are where ``index`` is ``wanted``, None unless each variable is a digit of one coordinate and all are covered."""
    values: dict[LoopVar, IndexExpr] = {v: IndexExpr() for v in variables if v.size == 1}
    for place, size, target in zip(index, shape, wanted, strict=True):
        if place.const != 0 or not all(isinstance(v, LoopVar) for v in place.terms):
            return None
        order = _mixed_radix_vars(place)
        if order is None or any(v in values for v in order):
            return None
        sizes = tuple(v.size for v in order)
        if product(sizes) != size:
            return None
        values.update(zip(order, unflatten(target, sizes), strict=True))
    return values if values.keys() == set(variables) else None


def _mixed_radix_vars(place: IndexExpr) -> list[LoopVar] | None:
    """The variables of a position from the slowest to the fastest, where each is as far apart as all faster ones reach; else None."""
    left, order = dict(place.terms), list[LoopVar]()
    reach: Size = 1
    while left:
        atom = next((a for a, c in left.items() if c == reach), None)
        if not isinstance(atom, LoopVar):
            return None
        del left[atom]
        order.insert(0, atom)
        reach = product((reach, atom.size))
    return order


@dataclass(frozen=True, eq=False)
class FusedMatmul:
    """A product with the kernels that it takes in: ``before`` compute an operand, ``after`` computes from its result.

    ``is_kept``: the result itself is stored, too.
    """

    matmul: MatmulCall
    prologues: tuple[FusionGroup, ...] = ()
    epilogue: FusionGroup | None = None
    stores_result: bool = True

    @property
    def output_defs(self) -> dict[TensorDef, None]:
        """Defs that it writes."""
        made = {} if self.epilogue is None else dict.fromkeys(self.epilogue.stores)
        return {**made, self.matmul.result: None} if self.stores_result or self.epilogue is None else made

    @property
    def members(self) -> frozenset[TensorDef]:
        """Defs that its kernel computes by loops."""
        groups = (*self.prologues, *([] if self.epilogue is None else [self.epilogue]))
        return frozenset().union(*(g.members for g in groups))

    @property
    def origins(self) -> tuple[str, ...]:
        """Ids of the nodes in it, the product's first."""
        made = sorted(self.members, key=lambda d: d.program_order)
        return tuple(dict.fromkeys((*self.matmul.extern.origins, *(o for m in made for o in m.node_ids))))

    def input_defs(self) -> set[TensorDef]:
        """Defs that it reads from memory."""
        given = [t for t in (self.matmul.left, self.matmul.right, self.matmul.bias) if t is not None]
        read = {t.definition for t in given}
        for group in (*self.prologues, *([] if self.epilogue is None else [self.epilogue])):
            read |= group.input_defs()
        return read - self.members - {self.matmul.result}


def can_fuse_epilogue(group: FusionGroup, call: MatmulCall) -> bool:
    """Whether a kernel walks exactly the elements of a product's result, and can be done where they are made."""
    if group.reduction_vars is not None or group.has_scan or any(made.kind != "pointwise" for made in group.members):
        return False
    demands = group.reads_of(call.result)
    if not demands or len({d.index for d in demands}) != 1 or demands[0].is_masked:
        return False
    return solve_loop_vars(demands[0].index, call.result.shape, group.loop_vars, _result_index(call)[0]) is not None


def can_fuse_prologue(group: FusionGroup, operand: LoweredTensor) -> bool:
    """Whether a kernel computes nothing but an operand, so cheaply that it may be done again for each tile."""
    if group.reduction_vars is not None or group.has_scan or set(group.stores) != {operand.definition}:
        return False
    if any(made.kind != "pointwise" for made in group.members):
        return False
    return (
        sum(op.cost for made in group.members for op in build_unfused(made).ops) <= MAX_RECOMPUTE_COST
        and len(group.input_defs()) <= 2
    )


def _result_index(call: MatmulCall) -> tuple[Coordinates, tuple[LoopVar, LoopVar, LoopVar, LoopVar, LoopVar]]:
    """Where a product's element is, and the variables: matrix, row, column, inner across, inner down."""
    matrices, rows, cols, inner = call.batch_m_n_k
    made = (
        LoopVar("matrix", matrices),
        LoopVar("row", rows),
        LoopVar("col", cols),
        LoopVar("inner", inner),
        LoopVar("inner_down", inner),
    )
    lead = [variable(made[0])] if len(call.result.shape) == 3 else []
    return (*lead, variable(made[1]), variable(made[2])), made


class _MatmulBuilder(LoopBuilder):
    """Writes the operations of one product's kernel: where the result is read, the product stands."""

    def __init__(self, fused: FusedMatmul, members: Collection[TensorDef], is_wide: bool) -> None:
        self.matmul = fused.matmul
        self.result_index, self.loop_vars = _result_index(fused.matmul)
        _, _, col, across, _ = self.loop_vars
        super().__init__(members, frozenset((col, across)), is_wide=is_wide)
        self._result_op: LoopIROp | None = None

    def load(self, source: TensorDef, index: Coordinates) -> LoopIROp:
        """One element of a tensor; of the product's result, the sum that has just been made."""
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
        """An operand in the type that tensor cores take: as it is in memory where nothing is computed on the way."""
        made = operand.load(self, index)
        if made.name == "to" and made.args[0].name == "load" and made.args[0].dtype == operand.dtype:
            return made.args[0]
        return made if made.dtype == operand.dtype else self._emit("to", (made,), operand.dtype, value=operand.dtype)


def matmul_kernel(
    fused: FusedMatmul,
    tiling: MatmulConfig,
    id: str,
    prefix: str,
    names: tuple[str, ...],
    buffers: Mapping[str, Buffer],
) -> LoopKernel:
    """The operations of a product and of what it takes in, over rows and columns of its result."""
    call = fused.matmul
    is_wide = any(_last_offset(buffers[d.name]) >= INT32_LIMIT for d in (*fused.input_defs(), *fused.output_defs))
    builder = _MatmulBuilder(fused, fused.members, is_wide)
    matrix, row, col, across, down = builder.loop_vars
    stored: list[tuple[TensorDef, Coordinates]] = []
    if fused.epilogue is not None:
        (index,) = {d.index for d in fused.epilogue.reads_of(call.result)}
        values = solve_loop_vars(index, call.result.shape, fused.epilogue.loop_vars, builder.result_index)
        assert values is not None
        stored = [(made, tuple(i.replace(values) for i in place)) for made, place in fused.epilogue.stores.items()]
    if call.result in fused.output_defs:
        stored.append((call.result, builder.result_index))
    for made, place in sorted(stored, key=lambda item: item[0].program_order):
        builder.store(made, place, builder.load(made, place))
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


def _last_offset(buffer: Buffer) -> int:
    last = flatten([IndexExpr({}, s - 1) for s in buffer.shape], buffer.stride).const
    return last if isinstance(last, int) else 0


def _flops(call: MatmulCall, cost: int) -> int | None:
    """Operations of the product, and ``cost`` for each element of its result; None for symbolic sizes."""
    matrices, rows, cols, inner = call.batch_m_n_k
    made = product((matrices, rows, cols))
    return 2 * made * inner + made * cost if isinstance(made, int) and isinstance(inner, int) else None


def _bytes(ops: Sequence[LoopIROp], buffers: Mapping[str, Buffer]) -> int | None:
    """Bytes of all that is read or written, each once; None for symbolic sizes."""
    touched = {(op.buffer, op.name in WRITE_OPS) for op in ops if op.buffer}
    counts = [(product(buffers[n].shape), buffers[n].dtype.itemsize) for n, _ in touched]
    return sum(c * w for c, w in counts if isinstance(c, int)) if all(isinstance(c, int) for c, _ in counts) else None
