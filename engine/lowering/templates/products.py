"""Products of matrices as kernels of a template, with what is computed just before and right after them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.ir.index import Index, Size, Var, flatten, product, unflatten, variable
from engine.ir.kernel import Buffer
from engine.ir.loops import WRITES, Builder, Coordinates, Def, LoopKernel, Op, Product, R, Tiling, X
from engine.lowering.fuse import CHEAP, Group, probed
from engine.lowering.table import ExternNode, Tensor, element

aten = torch.ops.aten

TYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDE = 1 << 31
EXACT = "ieee"
"""How Triton calls products of 32-bit numbers in full precision, which tensor cores do not make."""
HIGHEST_GRID = 65_535
"""Programs that a device's grid has in its second dimension."""


@dataclass(frozen=True, eq=False)
class Multiplied:
    """One product that a library would compute: ``beta * added + alpha * left @ right``, of so many ``matrices``."""

    extern: ExternNode
    left: Tensor
    right: Tensor
    added: Tensor | None
    alpha: float
    beta: float
    result: Def

    @property
    def sizes(self) -> tuple[Size, Size, Size, Size]:
        """Matrices, rows, columns, and the inner size."""
        *lead, rows, inner = self.left.shape
        return product(lead), rows, self.right.shape[-1], inner


def multiplied(extern: ExternNode) -> Multiplied | None:
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
    if result is None or not all(isinstance(t, Tensor) and not t.is_complex for t in given):
        return None
    sizes = [*left.shape, *right.shape]
    if any(isinstance(n, int) and n <= 0 for n in sizes) or left.dtype not in TYPES:
        return None
    if left.shape[-2] == 1 or right.shape[-1] == 1:  # a matrix and a vector: nothing for tiles
        return None
    matrices = product(left.shape[:-2])
    if isinstance(matrices, int) and matrices > HIGHEST_GRID:
        return None
    if any(t.dtype != left.dtype for t in (right, result)) or (added is not None and added.dtype not in TYPES):
        return None
    alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
    if not all(isinstance(x, (int, float)) for x in (alpha, beta)):
        return None
    return Multiplied(extern, left, right, None if beta == 0 else added, float(alpha), float(beta), result)


def precision_of(dtype: torch.dtype) -> str:
    """How exactly tensor cores take numbers of 32 bits: as torch was told to. Empty for types that leave no choice."""
    if dtype != torch.float32:
        return ""
    return "tf32" if torch.get_float32_matmul_precision() != "highest" else EXACT


def coordinates(
    index: Coordinates, shape: tuple[Size, ...], variables: Sequence[Var], wanted: Coordinates
) -> dict[Var, Index] | None:
    """What loop variables are where ``index`` is ``wanted``, None unless each variable is a digit of one coordinate and all are covered."""
    values: dict[Var, Index] = {v: Index() for v in variables if v.size == 1}
    for place, size, target in zip(index, shape, wanted, strict=True):
        if place.const != 0 or not all(isinstance(v, Var) for v in place.terms):
            return None
        order = _digits(place)
        if order is None or any(v in values for v in order):
            return None
        sizes = tuple(v.size for v in order)
        if product(sizes) != size:
            return None
        values.update(zip(order, unflatten(target, sizes), strict=True))
    return values if values.keys() == set(variables) else None


def _digits(place: Index) -> list[Var] | None:
    """The variables of a position from the slowest to the fastest, where each is as far apart as all faster ones reach; else None."""
    left, order = dict(place.terms), list[Var]()
    reach: Size = 1
    while left:
        atom = next((a for a, c in left.items() if c == reach), None)
        if not isinstance(atom, Var):
            return None
        del left[atom]
        order.insert(0, atom)
        reach = product((reach, atom.size))
    return order


@dataclass(frozen=True, eq=False)
class Fused:
    """A product with the kernels that it takes in: ``before`` compute an operand, ``after`` computes from its result.

    ``is_kept``: the result itself is stored, too.
    """

    call: Multiplied
    before: tuple[Group, ...] = ()
    after: Group | None = None
    is_kept: bool = True

    @property
    def stored(self) -> dict[Def, None]:
        """Defs that it writes."""
        made = {} if self.after is None else dict.fromkeys(self.after.stored)
        return {**made, self.call.result: None} if self.is_kept or self.after is None else made

    @property
    def members(self) -> frozenset[Def]:
        """Defs that its kernel computes by loops."""
        groups = (*self.before, *([] if self.after is None else [self.after]))
        return frozenset().union(*(g.members for g in groups))

    @property
    def origins(self) -> tuple[str, ...]:
        """Ids of the nodes in it, the product's first."""
        made = sorted(self.members, key=lambda d: d.position)
        return tuple(dict.fromkeys((*self.call.extern.origins, *(o for m in made for o in m.origins))))

    def sources(self) -> set[Def]:
        """Defs that it reads from memory."""
        given = [t for t in (self.call.left, self.call.right, self.call.added) if t is not None]
        read = {t.base for t in given}
        for group in (*self.before, *([] if self.after is None else [self.after])):
            read |= group.sources()
        return read - self.members - {self.call.result}


def is_epilogue(group: Group, call: Multiplied) -> bool:
    """Whether a kernel walks exactly the elements of a product's result, and can be done where they are made."""
    if group.inner is not None or group.has_scan or any(made.kind != "pointwise" for made in group.members):
        return False
    demands = group.demands_of(call.result)
    if not demands or len({d.index for d in demands}) != 1 or demands[0].is_masked:
        return False
    return coordinates(demands[0].index, call.result.shape, group.vars, _places(call)[0]) is not None


def is_prologue(group: Group, operand: Tensor) -> bool:
    """Whether a kernel computes nothing but an operand, so cheaply that it may be done again for each tile."""
    if group.inner is not None or group.has_scan or set(group.stored) != {operand.base}:
        return False
    if any(made.kind != "pointwise" for made in group.members):
        return False
    return sum(op.cost for made in group.members for op in probed(made).ops) <= CHEAP and len(group.sources()) <= 2


def _places(call: Multiplied) -> tuple[Coordinates, tuple[Var, Var, Var, Var, Var]]:
    """Where a product's element is, and the variables: matrix, row, column, inner across, inner down."""
    matrices, rows, cols, inner = call.sizes
    made = Var("matrix", matrices), Var("row", rows), Var("col", cols), Var("inner", inner), Var("inner_down", inner)
    lead = [variable(made[0])] if len(call.result.shape) == 3 else []
    return (*lead, variable(made[1]), variable(made[2])), made


class _TileBuilder(Builder):
    """Writes the operations of one product's kernel: where the result is read, the product stands."""

    def __init__(self, fused: Fused, members: Collection[Def], is_wide: bool) -> None:
        self.multiplied = fused.call
        self.place, self.vars = _places(fused.call)
        _, _, col, across, _ = self.vars
        super().__init__(members, frozenset((col, across)), is_wide=is_wide)
        self._finished: Op | None = None

    def load(self, source: Def, index: Coordinates) -> Op:
        """One element of a tensor; of the product's result, the sum that has just been made."""
        if source is not self.multiplied.result:
            return super().load(source, index)
        if self._finished is None:
            outer, self._origins = self._origins, self.multiplied.extern.origins
            self._finished = self._sum()
            self._origins = outer
        return self._finished

    def _sum(self) -> Op:
        call, (matrix, row, col, across, down) = self.multiplied, self.vars
        lead = [variable(matrix)] if len(call.result.shape) == 3 else []
        left = self._held(call.left, (*lead, variable(row), variable(across)))
        right = self._held(call.right, (*lead, variable(down), variable(col)))
        value = self._write("dot", (left, right), torch.float32, space=frozenset((X, R)))
        value.label = "product"
        if call.alpha != 1.0:
            value = self.call("mul", value, self.constant(call.alpha, torch.float32))
        if call.added is not None:
            added = element(call.added, torch.float32, call.result.shape)(self, self.place)
            if call.beta != 1.0:
                added = self.call("mul", added, self.constant(call.beta, torch.float32))
            value = self.call("add", value, added)
        return value

    def _held(self, operand: Tensor, index: Coordinates) -> Op:
        """An operand in the type that tensor cores take: as it is in memory where nothing is computed on the way."""
        made = operand.at(self, index)
        if made.name == "to" and made.args[0].name == "load" and made.args[0].dtype == operand.dtype:
            return made.args[0]
        return made if made.dtype == operand.dtype else self._write("to", (made,), operand.dtype, value=operand.dtype)


def product_kernel(
    fused: Fused, tiling: Tiling, id: str, prefix: str, names: tuple[str, ...], buffers: Mapping[str, Buffer]
) -> LoopKernel:
    """The operations of a product and of what it takes in, over rows and columns of its result."""
    call = fused.call
    is_wide = any(_last(buffers[d.name]) >= WIDE for d in (*fused.sources(), *fused.stored))
    builder = _TileBuilder(fused, fused.members, is_wide)
    matrix, row, col, across, down = builder.vars
    stored: list[tuple[Def, Coordinates]] = []
    if fused.after is not None:
        (index,) = {d.index for d in fused.after.demands_of(call.result)}
        values = coordinates(index, call.result.shape, fused.after.vars, builder.place)
        assert values is not None
        stored = [(made, tuple(i.replace(values) for i in place)) for made, place in fused.after.stored.items()]
    if call.result in fused.stored:
        stored.append((call.result, builder.place))
    for made, place in sorted(stored, key=lambda item: item[0].position):
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
        product=Product(across, down, matrix, tiling, precision_of(call.left.dtype)),
    )


def _last(buffer: Buffer) -> int:
    last = flatten([Index({}, s - 1) for s in buffer.shape], buffer.stride).const
    return last if isinstance(last, int) else 0


def _flops(call: Multiplied, cost: int) -> int | None:
    """Operations of the product, and ``cost`` for each element of its result; None for symbolic sizes."""
    matrices, rows, cols, inner = call.sizes
    made = product((matrices, rows, cols))
    return 2 * made * inner + made * cost if isinstance(made, int) and isinstance(inner, int) else None


def _bytes(ops: Sequence[Op], buffers: Mapping[str, Buffer]) -> int | None:
    """Bytes of all that is read or written, each once; None for symbolic sizes."""
    touched = {(op.buffer, op.name in WRITES) for op in ops if op.buffer}
    counts = [(product(buffers[n].shape), buffers[n].dtype.itemsize) for n, _ in touched]
    return sum(c * w for c, w in counts if isinstance(c, int)) if all(isinstance(c, int) for c, _ in counts) else None
