"""Scheduler: fuses definitions into kernels, from the last definition to the first.

A definition (``TensorDef``) is one tensor with its loop body; a ``FusionGroup`` is one kernel. Each definition joins a
kernel that reads it, or starts a new kernel. In this backward order, the reading kernel already has the index of each
element that it reads, so fusing means evaluating the body at that index. Every decision is recorded with its reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch

from engine.interrupts.deferred_interrupts import deliver_interrupts
from engine.ir.introspection.operator_facts import facts_of, runs_for_effect
from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import (
    IndexExpr,
    LoopVar,
    Size,
    contiguous_strides,
    exact_quotient,
    flatten,
    is_bijection,
    product,
    sizes_equal,
    static_product,
    symbols_of,
    unflatten,
    variable,
)
from engine.ir.loop_ir.tensor_def import Coordinates, MemoryRead, TensorDef
from engine.ir.static_sizes import static_size, static_sizes
from engine.lowering.context import ExternNode, StepVisitor, lowered_tensors
from engine.lowering.fusion_cost import (
    MAX_RECOMPUTE_COST,
    MAX_WASTED_COST,
    build_unfused,
    bytes_saved,
    has_costly_op,
    has_no_reads,
    is_cheap_to_recompute,
    reads_sparsely,
    row_major_strides,
    scans_rows,
    stored_bytes,
    wasted_cost,
)
from engine.lowering.match_strided_view import strided_view_of
from engine.records.lowering import AutotuneChoice, FusionDecision
from engine.torch_private.pytree import tree_leaves

SCAN_IS_SCALAR = "A CPU scans a row one element at a time, and computes costly arithmetic many elements at a time."

MAX_MEMBERS = 48
"""Maximum number of definitions that one kernel computes."""

MAX_READS = 20
"""Maximum number of tensors that one kernel reads."""

MIN_REDUCTION_ROWS = 64
"""Minimum number of rows of a large kernel that reduces each row in one program."""

LARGE_KERNEL_ELEMENTS = 1 << 14
"""Elements from which on a kernel counts as large."""

MAX_HELD_RATIO = 4
"""Maximum bytes of results computed long before use, as a multiple of a saved load's."""


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

    def accept(self, visitor: StepVisitor) -> None:
        """Visit this step of a schedule."""
        visitor.visit_group(self)

    def analyze(self) -> None:
        """Evaluate the bodies of the stores to find what the kernel reads, and at which index."""
        inner = self.reduction_vars or ()
        self.builder = LoopBuilder(self.members, frozenset(inner), self.reduction_index())
        for made, index in self.stores.items():
            self.builder.load(made, index)
        self.reads = {}
        for demand in dict.fromkeys(self.builder.memory_reads):
            self.reads.setdefault(demand.source, []).append(demand)

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


@dataclass(frozen=True)
class Schedule:
    """Kernels and ATen calls in topological order, with the reason for each decision."""

    steps: tuple[Any, ...]
    """Fusion groups, ATen calls, and templates that replace either."""
    decisions: tuple[FusionDecision, ...]
    choices: tuple[AutotuneChoice, ...] = ()


def fuse(
    defs: list[TensorDef],
    externs: list[ExternNode],
    realized: set[TensorDef],
    no_fuse: Collection[TensorDef] = frozenset(),
    unbacked_definitions: Mapping[str, TensorDef] = MappingProxyType({}),
    *,
    is_cpu: bool = False,
) -> Schedule:
    """Assign every definition that is needed to a kernel.

    ``realized``: definitions that must be in memory, the outputs and arguments of ATen calls. ``no_fuse``:
    definitions that are not fused into their readers. ``unbacked_definitions``: for each unbacked symbol, the result
    of the ATen call that defines it. ``is_cpu``: kernels run on the CPU.
    """
    starts = {made.initial_def for made in defs if made.initial_def is not None}
    scheduler = Scheduler(externs, realized | starts, no_fuse, unbacked_definitions, is_cpu=is_cpu)
    for made in reversed(defs):
        deliver_interrupts()
        if made.is_computed:
            scheduler.schedule_def(made)
    scheduler.fuse_horizontally()
    return Schedule(scheduler.topological_order(defs), tuple(scheduler.decisions))


class Scheduler:
    """State of one scheduling run."""

    def __init__(
        self,
        externs: list[ExternNode],
        kept: set[TensorDef],
        apart: Collection[TensorDef] = frozenset(),
        unbacked_definitions: Mapping[str, TensorDef] = MappingProxyType({}),
        *,
        is_cpu: bool = False,
    ) -> None:
        self.unbacked_definitions = unbacked_definitions
        self._is_cpu = is_cpu
        self.groups: list[FusionGroup] = []
        self.realized = kept
        self.no_fuse = apart
        self.externs = externs
        self.owner: dict[TensorDef, FusionGroup | ExternNode] = {
            r: e for e in externs for r in e.results if r is not None
        }
        self.extern_readers: dict[TensorDef, list[ExternNode]] = {}
        self.extern_inputs: dict[int, set[TensorDef]] = {
            id(e): {*e.input_defs(), *self._symbol_definitions(_symbols_of_call(e), e)} for e in externs
        }
        draws = [e for e in externs if facts_of(e.target).draws_random]
        for earlier, later in pairwise(draws):  # calls that share a generator must run in program order
            self.extern_inputs[id(later)].update(earlier.output_defs)
        for earlier, later in pairwise(e for e in externs if runs_for_effect(e.target)):
            mark = TensorDef(f"after_{earlier.node.name}", torch.int64, (), (), "effect", earlier.origins)
            self.owner[mark] = earlier
            self.extern_inputs[id(later)].add(mark)
        for extern in externs:
            for base in self.extern_inputs[id(extern)]:
                self.extern_readers.setdefault(base, []).append(extern)
        self.decisions: list[FusionDecision] = []
        self._group_count = 0

    def record_decision(self, made: TensorDef, group: FusionGroup, fused: bool, reason: str) -> None:
        """Record a fusion decision, unless all definitions come from the same ATen nodes."""
        if made.node_ids and all(made.node_ids == m.node_ids for m in group.members if m is not made):
            return
        traffic = bytes_saved(made)
        saved, moved = (traffic, None) if fused else (None, traffic)
        self.decisions.append(FusionDecision(made.node_ids, _group_origins(group), fused, reason, saved, moved))

    def step_inputs(self, step: FusionGroup | ExternNode) -> set[TensorDef]:
        """Return the definitions that a step reads from memory or that define its symbols."""
        if not isinstance(step, FusionGroup):
            return self.extern_inputs[id(step)]
        return (
            step.input_defs() | self._symbol_definitions(_symbols_of_group(step))
            if self.unbacked_definitions
            else step.input_defs()
        )

    def _symbol_definitions(self, symbols: Iterable[str], apart_from: ExternNode | None = None) -> set[TensorDef]:
        """Return the definitions of symbols, without the results of one call."""
        own = () if apart_from is None else apart_from.results
        return {
            self.unbacked_definitions[s]
            for s in symbols
            if s in self.unbacked_definitions and self.unbacked_definitions[s] not in own
        }

    def has_path(self, first: FusionGroup | ExternNode, last: FusionGroup | ExternNode) -> bool:
        """Return True if ``last`` depends, directly or not, on a result of ``first``."""
        seen: set[int] = set()
        stack: list[FusionGroup | ExternNode] = [last]
        while stack:
            step = stack.pop()
            for source in self.step_inputs(step):
                owner = self.owner.get(source)
                if owner is None or id(owner) in seen:
                    continue
                if owner is first:
                    return True
                seen.add(id(owner))
                stack.append(owner)
        return False

    def schedule_def(self, made: TensorDef) -> None:
        """Assign one definition to a kernel."""
        readers = [g for g in self.groups if g.reads_of(made)]
        is_kept = made in self.realized
        if not readers and not is_kept:
            return
        if made.kind == "scatter" or made in self.no_fuse:
            self._new_group(made)
            return
        if has_no_reads(made):
            for group in readers:
                self._fuse_into(made, group)
            if is_kept:
                self._new_group(made)
            return
        readers = self._merge_readers(made, readers)
        if made.kind == "reduction":
            for group in readers:
                split_loop_vars(made, group)
        if not is_kept and len(readers) > 1:
            readers = self._inline_into_sparse_readers(made, readers)
        if not is_kept and len(readers) > 1 and is_cheap_to_recompute(made, len(readers) - 1):
            refused = [g for g in readers if self._why_not_fusible(made, g, stored=False) is not None]
            if not refused:
                for group in readers:
                    self._fuse_into(made, group)
                    self.record_decision(made, group, True, "It is cheap, so each kernel that reads it recomputes it.")
                return
        noted: set[int] = set()
        for group in readers:
            if len(readers) == 1 and (beside := self._cheaper_stored_source(made, group)) is not None:
                why = f"An earlier step needs {beside.name} in memory. Fusion with that step saves more reads."
                self.record_decision(made, group, False, why)
                break
            others: list[FusionGroup | ExternNode] = [g for g in readers if g is not group]
            others += [g for g in self.groups if g is not group and made in g.scatter_bases]
            others += self.extern_readers.get(made, [])
            is_stored = bool(others) or is_kept
            reason = self._why_not_fusible(made, group, stored=is_stored)
            if reason is None and any(self.has_path(other, group) for other in others):
                reason = (
                    "Another step reads it, and this kernel needs the result of that step. One kernel cannot hold both."
                )
            if reason is None:
                self._fuse_into(made, group, stored=is_stored)
                self.record_decision(made, group, True, _why_fused(made, is_stored))
                for other in readers:
                    if other is not group and id(other) not in noted:
                        self.record_decision(made, other, False, self._why_separate(group, other))
                return
            self.record_decision(made, group, False, reason)
            noted.add(id(group))
        self._new_group(made)

    def _why_separate(self, group: FusionGroup, other: FusionGroup) -> str:
        """Return the reason why a kernel loads a tensor that another kernel stores."""
        if self.has_path(group, other):
            return "Another kernel stores it, and a step between the two kernels needs it first. This kernel loads it."
        if loop_mapping(group, other) is None and loop_mapping(other, group) is None:
            return "Another kernel stores it. This kernel has other loops and loads it."
        return "Another kernel stores it. This kernel accesses it in another order and loads it."

    def _inline_into_sparse_readers(self, made: TensorDef, readers: list[FusionGroup]) -> list[FusionGroup]:
        """Inline a definition into its sparse readers; return the others.

        If other kernels read all of a residual sum, its sparse readers load it too. Recomputing a chain of such sums
        would keep all of its summands in memory.
        """
        sparse = [g for g in readers if reads_sparsely(made, g)]
        rest = [g for g in readers if g not in sparse]
        if rest and sum(source.kind != "input" for source in build_unfused(made).read_tensors.values()) > 1:
            return [*rest, *sparse]
        for group in sparse:
            if not self._why_not_fusible(made, group, stored=False):
                self._fuse_into(made, group)
                self.record_decision(
                    made, group, True, "The kernel reads only a few of its elements and recomputes them."
                )
            else:
                rest.append(group)
        return rest

    def _cheaper_stored_source(self, made: TensorDef, group: FusionGroup) -> TensorDef | None:
        """Return a stored source whose kernel should compute ``made``, instead of ``group``.

        An ATen call reads the source before ``group`` runs. If ``group`` computed ``made``, it would load the source
        again, which costs more bytes than loading ``made``.
        """
        own = stored_bytes(made)
        if made.kind not in ("pointwise", "reduction") or own is None or not self.extern_readers:
            return None
        behind = self._memory_sources(made)
        for source in sorted(behind, key=lambda d: d.program_order):
            if not source.is_computed or source in group.reads or not self._must_be_stored_before(source, group):
                continue
            shared = self._memory_sources(source) & behind
            again = sum(stored_bytes(s) or 0 for s in (source, *(shared - group.reads.keys())))
            if again > own * (1 if made in self.realized else 2) and _has_same_iterations(made, source):
                return source
        return None

    def _must_be_stored_before(self, source: TensorDef, group: FusionGroup) -> bool:
        """Return True if ``group`` depends on an ATen call that reads ``source``."""
        return any(self.has_path(call, group) for call in self.extern_readers.get(source, ()))

    def _memory_sources(self, made: TensorDef) -> set[TensorDef]:
        """Return the definitions in memory that ``made`` is computed from."""
        found: set[TensorDef] = set()
        stack, seen = [made], {made}
        while stack:
            for source in build_unfused(stack.pop()).read_tensors.values():
                if source.is_computed and source not in self.realized and source.kind != "scatter":
                    if source not in seen:
                        seen.add(source)
                        stack.append(source)
                else:
                    found.add(source)
        return found

    def _merge_readers(self, made: TensorDef, readers: list[FusionGroup]) -> list[FusionGroup]:
        """Merge kernels that read the same elements in the same order."""
        result: list[FusionGroup] = []
        for group in readers:
            for i, known in enumerate(result):
                united = self._try_merge(known, group, made)
                if united is not None:
                    result[i] = united
                    break
            else:
                result.append(group)
        return result

    def _try_merge(self, first: FusionGroup, second: FusionGroup, shared: TensorDef) -> FusionGroup | None:
        if first.reduction_vars is None and second.reduction_vars is not None:
            first, second = second, first
        if len(first.members) + len(second.members) > MAX_MEMBERS:
            return None
        values, alike = loop_mapping(first, second), "have the same loops"
        if values is None or not _read_same_elements(first, second, shared, values):
            # On a CPU, the bytes saved do not pay for storing a result long before it is read.
            values, alike = None if self._is_cpu else element_mapping(first, second, shared), "visit the same elements"
        if values is None or self.has_path(first, second) or self.has_path(second, first):
            return None
        if self._would_wait(first, second, shared) or self._would_wait(second, first, shared):
            return None
        stored = {**first.stores, **{m: tuple(i.replace(values) for i in index) for m, index in second.stores.items()}}
        self._group_count += 1
        united = FusionGroup(
            self._group_count,
            first.loop_vars,
            first.reduction_vars if first.reduction_vars is not None else _map_reduction_vars(second, values),
            stored,
            first.members | second.members,
            has_scan=first.has_scan or second.has_scan,
        )
        united.analyze()
        if len(united.input_defs()) > MAX_READS:
            return None
        self.groups = [g for g in self.groups if g not in (first, second)]
        self.groups.append(united)
        for made in stored:
            self.owner[made] = united
        self.decisions.append(
            FusionDecision(
                _group_origins(first),
                _group_origins(second),
                True,
                f"Both {alike} and read {shared.name}, which is then loaded once.",
                bytes_saved(shared, 1),
            )
        )
        return united

    def _would_wait(self, early: FusionGroup, late: FusionGroup, shared: TensorDef) -> bool:
        """Return True if large results of ``late`` are needed after steps that read ``early``.

        Merging ``late`` into ``early`` would keep them in memory for long, only to save one load of a small tensor.
        """
        held = sum(stored_bytes(made) or 0 for made in late.stores)
        if held <= MAX_HELD_RATIO * (stored_bytes(shared) or held):
            return False
        read_first = [made.program_order for step in self._steps_reading(early) for made in step.output_defs]
        waits_for = [
            max((d.program_order for d in self.step_inputs(step) - late.stores.keys()), default=-1)
            for step in self._steps_reading(late)
        ]
        return bool(read_first and waits_for) and min(waits_for) > min(read_first)

    def _steps_reading(self, group: FusionGroup) -> list[FusionGroup | ExternNode]:
        found: list[FusionGroup | ExternNode] = [e for made in group.stores for e in self.extern_readers.get(made, ())]
        return found + [g for g in self.groups if not group.stores.keys().isdisjoint(g.reads)]

    def _new_group(self, made: TensorDef) -> FusionGroup:
        """Start a new kernel that loops over the dimensions in memory order."""
        self._group_count += 1
        dims = memory_order(made)
        variables = {d: LoopVar(f"i{d}", made.loop_ranges[d]) for d in dims}
        index = tuple(variable(variables[d]) if d in variables else IndexExpr() for d in range(len(made.loop_ranges)))
        inner: tuple[LoopVar, ...] | None = None
        if made.kind == "reduction":
            inner = tuple(LoopVar(f"r{k}", n) for k, n in enumerate(made.ranges) if n != 1)
        elif made.kind == "scan":
            inner = (variables[made.scan_axis],) if made.scan_axis in variables else None
        order = tuple(variables[d] for d in dims)
        order += tuple(v for v in inner or () if v not in order)
        group = FusionGroup(self._group_count, order, inner, {made: index}, {made}, has_scan=made.kind == "scan")
        group.analyze()
        self.groups.append(group)
        self.owner[made] = group
        return group

    def _fuse_into(self, made: TensorDef, group: FusionGroup, *, stored: bool = False) -> None:
        demands = group.reads_of(made)
        if made.kind == "reduction" and group.reduction_vars is None:
            group.loop_vars, group.reduction_vars = add_reduction_vars(made, group, demands[0].index)
        if made.kind == "scan" and group.reduction_vars is None:
            axis = _axis_variable(made, demands[0].index)
            group.reduction_vars = None if axis is None else (axis,)
        group.has_scan |= made.kind == "scan"
        group.members.add(made)
        if stored:
            group.stores[made] = next(
                d.index for d in demands if not d.is_masked and self._is_storable(made, group, d.index)
            )
            self.owner[made] = group
        group.analyze()

    def _is_storable(self, made: TensorDef, group: FusionGroup, index: Coordinates) -> bool:
        return is_bijection(index, made.shape, group.loop_vars) or (
            group.reduction_vars is not None and is_bijection(index, made.shape, group.outer_vars)
        )

    def _why_not_fusible(self, made: TensorDef, group: FusionGroup, *, stored: bool) -> str | None:
        """Return the reason why a definition cannot join its reader, None if it can."""
        demands = group.reads_of(made)
        if made in group.scatter_bases:
            return "The kernel updates a copy of it, so all its elements must be stored first."
        if len(group.members) >= MAX_MEMBERS:
            return f"The kernel already computes {MAX_MEMBERS} tensors."
        if len(group.input_defs()) >= MAX_READS:
            return f"The kernel already reads {MAX_READS} tensors."
        if made.kind == "reduction":
            return self._why_not_fusible_reduction(made, group, demands)
        if made.kind == "scan":
            return self._why_not_fusible_scan(made, group, demands)
        if self._is_cpu and has_costly_op(build_unfused(made)) and any(scans_rows(m) for m in group.members):
            return SCAN_IS_SCALAR
        whole = [d for d in demands if self._is_storable(made, group, d.index)]
        if stored and not any(not d.is_masked for d in whole):
            return "It must also be stored, and this kernel does not visit each of its elements exactly once."
        if len(whole) == len(demands) == 1:
            return None
        if self._is_cpu and any(d.is_masked for d in demands) and wasted_cost(group, made) > MAX_WASTED_COST:
            return "A CPU takes longer to compute it where it is not needed, as in other parts of a concatenation."
        return _why_not_recomputed(made, group, demands)

    def _why_not_fusible_reduction(self, made: TensorDef, group: FusionGroup, demands: list[MemoryRead]) -> str | None:
        if len({d.index for d in demands}) != 1:
            return "The kernel reads the reduction at several indices, and each would repeat the reduction."
        index = demands[0].index
        if demands[0].is_masked:
            return "The kernel reads the reduction only under a condition (a mask)."
        if group.reduction_vars is not None:
            if not is_bijection(index, made.shape, group.outer_vars):
                return "The kernel's rows differ from the rows of the reduction."
            if not sizes_equal(product(v.size for v in group.reduction_vars), product(made.ranges)):
                return "The kernel's rows have another length than the rows of the reduction."
            return None
        used = _used_vars(index)
        ordered = tuple(v for v in group.loop_vars if v in used)
        if not is_bijection(index, made.shape, ordered):
            return "The kernel does not read the results of the reduction row by row."
        rest = [v for v in group.loop_vars if v not in used]
        if rest and not sizes_equal(product(v.size for v in rest), product(made.ranges)):
            return "The kernel's rows have another length than the rows of the reduction."
        rows, total = static_product(v.size for v in ordered), static_product((group.numel,))
        is_large = total is not None and total >= LARGE_KERNEL_ELEMENTS
        if rest and is_large and rows is not None and rows < MIN_REDUCTION_ROWS:
            return f"There are only {rows} rows: one program per row would leave most of the GPU idle."
        return None

    def _why_not_fusible_scan(self, made: TensorDef, group: FusionGroup, demands: list[MemoryRead]) -> str | None:
        index = demands[0].index
        axis = _axis_variable(made, index)
        if (
            len({d.index for d in demands}) != 1
            or demands[0].is_masked
            or not is_bijection(index, made.shape, group.loop_vars)
            or axis is None
        ):
            return "The kernel does not read the result of the scan in order."
        if group.reduction_vars is not None and group.reduction_vars != (axis,):
            return "The kernel's rows are not along the dimension of the scan."
        return SCAN_IS_SCALAR if self._is_cpu and scans_rows(made) and has_costly_op(group.builder) else None

    def fuse_horizontally(self) -> None:
        """Merge independent kernels that read the same elements in the same order."""
        shared: dict[TensorDef, list[FusionGroup]] = {}
        for group in self.groups:
            for source in sorted(group.input_defs(), key=lambda d: d.program_order):
                shared.setdefault(source, []).append(group)
        for source, readers in shared.items():
            present = [g for g in readers if g in self.groups]
            if len(present) > 1 and stored_bytes(source) != 0:
                self._merge_readers(source, present)

    def topological_order(self, defs: list[TensorDef]) -> tuple[FusionGroup | ExternNode, ...]:
        """Sort the steps topologically; otherwise in program order."""
        done: set[int] = set()
        result: list[FusionGroup | ExternNode] = []
        steps: list[FusionGroup | ExternNode] = [*self.groups, *self.externs]

        def visit(step: FusionGroup | ExternNode) -> None:
            if id(step) in done:
                return
            done.add(id(step))
            for source in sorted(self.step_inputs(step), key=lambda d: d.program_order):
                owner = self.owner.get(source)
                if owner is not None and owner is not step:
                    visit(owner)
            result.append(step)

        def first(step: FusionGroup | ExternNode) -> int:
            if isinstance(step, FusionGroup):
                return min(d.program_order for d in step.stores)
            made = [d.program_order for d in step.results if d is not None]
            # A call without results may check an assumption of later steps.
            return min(made, default=max((d.program_order for d in self.step_inputs(step)), default=-1))

        for step in sorted(steps, key=first):
            visit(step)
        return tuple(result)


def _symbols_of_group(group: FusionGroup) -> frozenset[str]:
    """Return the symbols in a kernel's sizes and indices."""
    sizes = [v.size for v in group.loop_vars]
    for made in (*group.members, *group.input_defs()):
        sizes += [*made.shape, *made.stride, *made.ranges]
    indices = (op.index for op in group.builder.ops if op.index is not None)
    sizes += [op.value for op in group.builder.ops if op.name == "number"]
    return symbols_of(sizes).union(*(i.symbols() for i in indices))


def _symbols_of_call(extern: ExternNode) -> frozenset[str]:
    """Return the symbols in an ATen call's arguments and in the layouts of its results."""
    found: list[object] = []
    leaves = tree_leaves((extern.args, extern.kwargs))
    for value in lowered_tensors(leaves):
        placed = strided_view_of(value)
        found += [*value.definition.shape, *value.definition.stride, *value.shape]
        found += [] if placed is None else [*placed[0], placed[1]]
    found += [getattr(getattr(value, "node", None), "expr", value) for value in leaves]
    for made in extern.results:
        found += [] if made is None else [*made.shape, *made.stride]
    return symbols_of(found)


def _group_origins(group: FusionGroup) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(o for made in sorted(group.members, key=lambda d: d.program_order) for o in made.node_ids)
    )


def _why_fused(made: TensorDef, is_stored: bool) -> str:
    if made.kind == "reduction":
        return "The kernel has the same rows: it reduces a row and continues with that row before the next one."
    if is_stored:
        return "The kernel visits each of its elements once: it computes, uses and stores the element."
    return "Only this kernel reads it. Each element is computed where it is used and never written to memory."


def _used_vars(index: Coordinates) -> frozenset[LoopVar]:
    return frozenset().union(*(i.variables() for i in index)) if index else frozenset()


def _axis_variable(made: TensorDef, index: Coordinates) -> LoopVar | None:
    atom = index[made.scan_axis].single_atom()
    var = None if atom is None else atom.as_variable()
    return var if var is not None and sizes_equal(var.size, made.shape[made.scan_axis]) else None


def add_reduction_vars(
    made: TensorDef, group: FusionGroup, index: Coordinates
) -> tuple[tuple[LoopVar, ...], tuple[LoopVar, ...]]:
    """Return ``(all, reduction)`` variables of a pointwise kernel that fuses a reduction.

    The kernel reads the reduction at ``index``.
    """
    used = _used_vars(index)
    rest = tuple(v for v in group.loop_vars if v not in used)
    if rest:
        return group.loop_vars, rest
    inner = tuple(LoopVar(f"r{k}", n) for k, n in enumerate(made.ranges) if n != 1)
    return (*group.loop_vars, *inner), inner


def split_loop_vars(made: TensorDef, group: FusionGroup) -> None:
    """Split loop variables where the kernel reads ``made`` at their quotient or remainder.

    Afterward the kernel reads ``made`` at an index of plain loop variables.
    """
    for _ in range(4):  # a variable may have to be split several times
        found = next((c for d in group.reads_of(made) for c in map(_find_div_or_mod, d.index) if c is not None), None)
        if found is None or found[0] not in group.loop_vars:
            return
        var, by = found
        quotient = exact_quotient(var.size, by)
        if quotient is None:
            return
        high, low = LoopVar(f"{var.name}h", quotient), LoopVar(f"{var.name}l", by)
        value = {var: variable(high) * by + variable(low)}

        def cut(
            variables: tuple[LoopVar, ...], pair: tuple[LoopVar, LoopVar] = (high, low), old: LoopVar = var
        ) -> tuple[LoopVar, ...]:
            return tuple(n for v in variables for n in (pair if v == old else (v,)) if n.size != 1)

        group.loop_vars = cut(group.loop_vars)
        group.reduction_vars = None if group.reduction_vars is None else cut(group.reduction_vars)
        group.stores = {m: tuple(i.replace(value) for i in index) for m, index in group.stores.items()}
        group.analyze()


def _find_div_or_mod(index: IndexExpr) -> tuple[LoopVar, Size] | None:
    """Return ``(v, k)`` if an index contains ``v // k`` or ``v % k``, else None."""
    found = (atom.divided_variable() for atom in index.terms)
    return next((pair for pair in found if pair is not None), None)


def memory_order(made: TensorDef) -> list[int]:
    """Return the dimensions by descending stride, without those of size 1."""
    dims = [d for d, n in enumerate(made.loop_ranges) if n != 1]
    strides = static_sizes(made.stride)
    if made.kind != "scatter" and strides is not None:
        return sorted(dims, key=lambda d: -strides[d])
    return dims


def loop_mapping(first: FusionGroup, second: FusionGroup) -> dict[LoopVar, IndexExpr] | None:
    """Express the second kernel's variables by the first's; None if their loops differ."""
    sizes = [v.size for v in first.loop_vars]
    if [v.size for v in second.loop_vars] == sizes and (
        first.reduction_vars is None
        or second.reduction_vars is None
        or _reduction_positions(first) == _reduction_positions(second)
    ):
        if first.reduction_vars is None and second.reduction_vars is not None:
            return None
        return dict(zip(second.loop_vars, (variable(v) for v in first.loop_vars), strict=True))
    if first.reduction_vars is not None and second.reduction_vars is not None:
        if not sizes_equal(product(v.size for v in first.outer_vars), product(v.size for v in second.outer_vars)):
            return None
        if not sizes_equal(
            product(v.size for v in first.reduction_vars), product(v.size for v in second.reduction_vars)
        ):
            return None
        return {
            **_flat_mapping(first.outer_vars, second.outer_vars),
            **_flat_mapping(first.reduction_vars, second.reduction_vars),
        }
    if first.reduction_vars is None and second.reduction_vars is None and sizes_equal(first.numel, second.numel):
        return _flat_mapping(first.loop_vars, second.loop_vars)
    return None


def _read_same_elements(
    first: FusionGroup, second: FusionGroup, shared: TensorDef, values: dict[LoopVar, IndexExpr]
) -> bool:
    """Return True if both kernels read a common element of ``shared`` in each iteration."""
    wanted = {tuple(i.replace(values) for i in d.index) for d in second.reads_of(shared)}
    return bool(wanted & {d.index for d in first.reads_of(shared)})


def element_mapping(first: FusionGroup, second: FusionGroup, shared: TensorDef) -> dict[LoopVar, IndexExpr] | None:
    """Express an elementwise kernel's variables by a reduction's; None if not possible.

    Each iteration of either reads one element of ``shared``, and the elementwise kernel in the order of memory.
    """
    if first.reduction_vars is None or second.reduction_vars is not None or first.has_scan or second.has_scan:
        return None
    rows, variables = static_product(v.size for v in first.outer_vars), [v for v in second.loop_vars if v.size != 1]
    if rows is None or rows < MIN_REDUCTION_ROWS:
        return None
    logical = contiguous_strides(shared.shape)
    for read in second.reads_of(shared):
        place, memory = flatten(read.index, logical), flatten(read.index, shared.stride)
        steps = static_sizes(memory.terms.get(v, 0) for v in variables)
        order = sorted(variables, key=lambda v, terms=place.terms: -(static_size(terms.get(v, 0)) or 0))  # type: ignore[misc]
        is_whole = is_bijection(read.index, shared.shape, second.loop_vars) and place.terms.keys() == set(variables)
        if not is_whole or steps is None or list(steps) != sorted(steps, reverse=True):
            continue
        for other in first.reads_of(shared):
            at = flatten(other.index, logical)
            values = dict(zip(order, unflatten(at, tuple(v.size for v in order)), strict=True))
            values |= {v: IndexExpr() for v in second.loop_vars if v.size == 1}
            if is_bijection(other.index, shared.shape, first.loop_vars) and place.replace(values) == at:
                return values
    return None


def _reduction_positions(group: FusionGroup) -> list[bool]:
    return [v in (group.reduction_vars or ()) for v in group.loop_vars]


def _flat_mapping(first: tuple[LoopVar, ...], second: tuple[LoopVar, ...]) -> dict[LoopVar, IndexExpr]:
    flat = flatten([variable(v) for v in first], row_major_strides(first))
    return dict(zip(second, unflatten(flat, tuple(v.size for v in second)), strict=True))


def _map_reduction_vars(group: FusionGroup, values: dict[LoopVar, IndexExpr]) -> tuple[LoopVar, ...] | None:
    if group.reduction_vars is None:
        return None
    return tuple(next(iter(values[v].terms)) for v in group.reduction_vars)  # type: ignore[misc]


def _why_not_recomputed(made: TensorDef, group: FusionGroup, demands: list[MemoryRead]) -> str | None:
    probe = build_unfused(made)
    cost = sum(op.cost for op in probe.ops)
    reads = len(probe.memory_reads)
    if reads == 0 and cost <= MAX_RECOMPUTE_COST:
        return None
    places = len({d.index for d in demands})
    total, own = static_product((group.numel,)), static_product(made.shape)
    if total is None or own is None:
        return (
            None
            if cost <= MAX_RECOMPUTE_COST and places == 1
            else "It would be recomputed for each element that reads it; the number depends on the sizes."
        )
    factor = places * total / max(own, 1)
    if factor <= 1:
        return None
    if (cost * factor <= MAX_RECOMPUTE_COST * 4 and reads * factor <= 16) or (
        cost <= MAX_RECOMPUTE_COST and reads <= 2 and places == 1
    ):
        return None
    return f"It would be recomputed {factor:.0f} times; to store it once is cheaper."


def _has_same_iterations(made: TensorDef, source: TensorDef) -> bool:
    """Return True if one kernel can compute both in one pass over the elements of ``source``."""
    return sizes_equal(product((*made.shape, *made.ranges)), product((*source.shape, *source.ranges)))
