"""One kernel while the scheduler decides what it computes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.group_pairs import group_pairs
from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr, LoopVar, Size, flatten, product, variable
from engine.ir.loop_ir.tensor_def import Coordinates, MemoryRead, TensorDef
from engine.lowering.fusion.fusion_cost import row_major_strides


@dataclass(eq=False)
class FusionGroup:
    """One kernel during scheduling. ``reduction_vars`` is None while nothing is reduced.

    ``stores`` maps each stored definition to its index. ``members`` are all definitions that the kernel computes.
    """

    number: int
    loop_vars: tuple[LoopVar, ...]
    reduction_vars: tuple[LoopVar, ...] | None
    stores: dict[TensorDef, Coordinates]
    members: set[TensorDef]
    builder: LoopBuilder = field(default_factory=LoopBuilder)
    has_scan: bool = False
    reads: dict[TensorDef, list[MemoryRead]] = field(default_factory=dict)

    @property
    def outer_vars(self) -> tuple[LoopVar, ...]:
        """Loop variables that are not reduced over."""
        return (
            self.loop_vars
            if self.reduction_vars is None
            else tuple(v for v in self.loop_vars if v not in self.reduction_vars)
        )

    @property
    def numel(self) -> Size:
        """Number of runs of the innermost body."""
        return product(v.size for v in (*self.outer_vars, *(self.reduction_vars or ())))

    @property
    def output_defs(self) -> Iterable[TensorDef]:
        """Definitions that the kernel writes."""
        return self.stores

    def analyze(self) -> None:
        """Evaluate the bodies of the stores to find what the kernel reads, and at which index."""
        inner = self.reduction_vars or ()
        self.builder = LoopBuilder(self.members, frozenset(inner), self.reduction_index())
        for tensor_def, index in self.stores.items():
            self.builder.load(tensor_def, index)
        self.reads = group_pairs((read.source, read) for read in dict.fromkeys(self.builder.memory_reads))

    def reduction_index(self) -> IndexExpr:
        """Return the flat index in a row; reduced dimensions are in the order of a result's.

        That order may differ from the memory order of the loops, for example if the results are channels-last.
        """
        inner = self.reduction_vars or ()
        for index in () if self.has_scan or len(inner) < 2 else self.stores.values():
            dims = {v: d for d, i in enumerate(index) for v in i.variables()}
            if dims.keys() >= set(inner):
                inner = tuple(sorted(inner, key=dims.__getitem__))
                break
        return flatten([variable(v) for v in inner], row_major_strides(inner))

    def reads_of(self, source: TensorDef) -> list[MemoryRead]:
        """Return the reads of a definition that this kernel does not compute."""
        return self.reads.get(source, [])

    def input_defs(self) -> set[TensorDef]:
        """Return the definitions that the kernel loads or that its scatters start from."""
        return {*self.reads, *self.scatter_bases}

    @property
    def scatter_bases(self) -> set[TensorDef]:
        """Definitions that the scatters of the kernel start from."""
        return {m.initial_def for m in self.stores if m.initial_def is not None}
