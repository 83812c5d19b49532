"""Scheduler: fuses definitions into kernels, from the last definition to the first.

A definition (``TensorDef``) is one tensor with its loop body; a ``FusionGroup`` is one kernel
(``group`` in the code). A step of the schedule is a group or an ATen call. Each definition joins a kernel that reads
it, or starts a new kernel. In this backward order, the reading kernel already has the index of each
element that it reads, so fusing means evaluating the body at that index. Every decision is recorded with its reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch

from engine.group_pairs import group_pairs
from engine.interrupts.deferred_interrupts import deliver_interrupts
from engine.ir.introspection.operator_facts import facts_of, runs_for_effect
from engine.ir.loop_ir.index_expr import (
    IndexExpr,
    LoopVar,
    product,
    sizes_equal,
    static_product,
    symbols_of,
    variable,
)
from engine.ir.loop_ir.tensor_def import TensorDef
from engine.lowering.context import ExternNode, lowered_tensors, strided_view_of
from engine.lowering.fusion.align_loops import (
    add_reduction_vars,
    axis_variable,
    element_mapping,
    follow_reads,
    loop_mapping,
    map_reduction_vars,
    memory_order,
    read_same_elements,
    split_loop_vars,
)
from engine.lowering.fusion.fusion_cost import (
    build_unfused,
    bytes_saved,
    has_no_reads,
    is_cheap_to_recompute,
    reads_sparsely,
    stored_bytes,
)
from engine.lowering.fusion.fusion_group import FusionGroup
from engine.lowering.fusion.value_checks import partly_read_checks
from engine.lowering.fusion.why_not_fused import (
    MAX_MEMBERS,
    MAX_READS,
    MAX_STRIDED_ROW,
    is_storable,
    why_fused,
    why_not_fusible,
)
from engine.records.lowering import AutotuneChoice, FusionDecision
from engine.torch_private.pytree import tree_leaves

MIN_LONG_ROWS = 512
"""Minimum number of such rows that busy the GPU with other work than their reduction."""


MAX_EARLY_RESULT_RATIO = 4
"""Maximum bytes of results computed long before use, as a multiple of a saved load's."""

STORE_AND_LOAD = 2
"""Transfers of a result that another kernel reads: one store and one load."""


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
    starts = {tensor_def.initial_def for tensor_def in defs if tensor_def.initial_def is not None}
    stored = realized | starts
    stored |= partly_read_checks(defs, stored, is_cpu=is_cpu)
    scheduler = Scheduler(externs, stored, no_fuse, unbacked_definitions, is_cpu=is_cpu)
    for tensor_def in reversed(defs):
        deliver_interrupts()
        if tensor_def.is_computed:
            scheduler.schedule_def(tensor_def)
    scheduler.fuse_horizontally()
    for group in scheduler.groups:
        follow_reads(group)
    return Schedule(scheduler.topological_order(), tuple(scheduler.decisions))


class Scheduler:
    """State of one scheduling run."""

    def __init__(
        self,
        externs: list[ExternNode],
        realized: set[TensorDef],
        no_fuse: Collection[TensorDef] = frozenset(),
        unbacked_definitions: Mapping[str, TensorDef] = MappingProxyType({}),
        *,
        is_cpu: bool = False,
    ) -> None:
        self.unbacked_definitions = unbacked_definitions
        self._is_cpu = is_cpu
        self.groups: list[FusionGroup] = []
        self.realized = realized
        self.no_fuse = no_fuse
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

    def record_decision(self, tensor_def: TensorDef, group: FusionGroup, fused: bool, reason: str) -> None:
        """Record a fusion decision, unless all definitions come from the same ATen nodes."""
        if tensor_def.node_ids and all(tensor_def.node_ids == m.node_ids for m in group.members if m is not tensor_def):
            return
        traffic = bytes_saved(tensor_def)
        saved, moved = (traffic, None) if fused else (None, traffic)
        self.decisions.append(FusionDecision(tensor_def.node_ids, _group_origins(group), fused, reason, saved, moved))

    def step_inputs(self, step: FusionGroup | ExternNode) -> set[TensorDef]:
        """Return the definitions that a step reads from memory or that define its symbols."""
        if not isinstance(step, FusionGroup):
            return self.extern_inputs[id(step)]
        return (
            step.input_defs() | self._symbol_definitions(_symbols_of_group(step))
            if self.unbacked_definitions
            else step.input_defs()
        )

    def _symbol_definitions(self, symbols: Iterable[str], excluded: ExternNode | None = None) -> set[TensorDef]:
        """Return the definitions of symbols, without the results of one call."""
        excluded_results = () if excluded is None else excluded.results
        return {
            self.unbacked_definitions[s]
            for s in symbols
            if s in self.unbacked_definitions and self.unbacked_definitions[s] not in excluded_results
        }

    def has_path(self, first: FusionGroup | ExternNode, last: FusionGroup | ExternNode) -> bool:
        """Return True if ``last`` depends, directly or not, on a result of ``first``."""
        visited: set[int] = set()
        stack: list[FusionGroup | ExternNode] = [last]
        while stack:
            step = stack.pop()
            for source in self.step_inputs(step):
                owner = self.owner.get(source)
                if owner is None or id(owner) in visited:
                    continue
                if owner is first:
                    return True
                visited.add(id(owner))
                stack.append(owner)
        return False

    def schedule_def(self, tensor_def: TensorDef) -> None:
        """Assign one definition to a kernel; each phase may settle it."""
        readers = [g for g in self.groups if g.reads_of(tensor_def)]
        is_realized = tensor_def in self.realized
        if not readers and not is_realized:
            return  # dead code
        if tensor_def.kind == "scatter" or tensor_def in self.no_fuse:
            self._new_group(tensor_def)
        elif has_no_reads(tensor_def):
            self._recompute_without_reads(tensor_def, readers)
        else:
            readers = self._prepare_readers(tensor_def, readers)
            if not self._recompute_in_all(tensor_def, readers) and not self._fuse_into_one(tensor_def, readers):
                self._new_group(tensor_def)

    def _recompute_without_reads(self, tensor_def: TensorDef, readers: list[FusionGroup]) -> None:
        """Compute a definition that reads nothing in every reader; store it if realized."""
        for group in readers:
            self._fuse_into(tensor_def, group)
        if tensor_def in self.realized:
            self._new_group(tensor_def)

    def _prepare_readers(self, tensor_def: TensorDef, readers: list[FusionGroup]) -> list[FusionGroup]:
        """Merge readers where possible; return those that do not recompute a few elements."""
        readers = self._merge_readers(tensor_def, readers)
        if tensor_def.kind == "reduction":
            for group in readers:
                split_loop_vars(tensor_def, group)
        if tensor_def not in self.realized and len(readers) > 1:
            readers = self._inline_into_sparse_readers(tensor_def, readers)
        return readers

    def _recompute_in_all(self, tensor_def: TensorDef, readers: list[FusionGroup]) -> bool:
        """Compute a cheap definition in each of several readers; return False if impossible."""
        if tensor_def in self.realized or len(readers) < 2 or not is_cheap_to_recompute(tensor_def, len(readers) - 1):
            return False
        if any(why_not_fusible(tensor_def, g, stored=False, is_cpu=self._is_cpu) is not None for g in readers):
            return False
        for group in readers:
            self._fuse_into(tensor_def, group)
            self.record_decision(tensor_def, group, True, "It is cheap, so each kernel that reads it recomputes it.")
        return True

    def _fuse_into_one(self, tensor_def: TensorDef, readers: list[FusionGroup]) -> bool:
        """Fuse a definition into the first reader that can compute it; the others load it."""
        recorded: set[int] = set()
        for group in readers:
            if len(readers) == 1 and (source := self._cheaper_stored_source(tensor_def, group)) is not None:
                why = f"An earlier step needs {source.name} in memory. Fusion with that step saves more reads."
                self.record_decision(tensor_def, group, False, why)
                return False
            if (reduced := self._reduction_of_other_rows(tensor_def, group)) is not None:
                why = f"It needs {reduced.name}, a reduction of other rows. Stored by that kernel, it is loaded once."
                self.record_decision(tensor_def, group, False, why)
                recorded.add(id(group))
                continue
            other_steps: list[FusionGroup | ExternNode] = [g for g in readers if g is not group]
            other_steps += [g for g in self.groups if g is not group and tensor_def in g.scatter_bases]
            other_steps += self.extern_readers.get(tensor_def, [])
            is_stored = bool(other_steps) or tensor_def in self.realized
            reason = why_not_fusible(tensor_def, group, stored=is_stored, is_cpu=self._is_cpu)
            if reason is None and any(self.has_path(other, group) for other in other_steps):
                reason = (
                    "Another step reads it, and this kernel needs the result of that step. One kernel cannot hold both."
                )
            if reason is None:
                self._fuse_into(tensor_def, group, stored=is_stored)
                self.record_decision(tensor_def, group, True, why_fused(tensor_def, is_stored))
                for other in readers:
                    if other is not group and id(other) not in recorded:
                        self.record_decision(tensor_def, other, False, self._why_separate(group, other))
                return True
            self.record_decision(tensor_def, group, False, reason)
            recorded.add(id(group))
        return False

    def _why_separate(self, group: FusionGroup, other: FusionGroup) -> str:
        """Return the reason why a kernel loads a tensor that another kernel stores."""
        if self.has_path(group, other):
            return "Another kernel stores it, and a step between the two kernels needs it first. This kernel loads it."
        if loop_mapping(group, other) is None and loop_mapping(other, group) is None:
            return "Another kernel stores it. This kernel has other loops and loads it."
        return "Another kernel stores it. This kernel accesses it in another order and loads it."

    def _inline_into_sparse_readers(self, tensor_def: TensorDef, readers: list[FusionGroup]) -> list[FusionGroup]:
        """Inline a definition into its sparse readers; return the others.

        If other kernels read all of a residual sum, its sparse readers load it too. Recomputing a chain of such sums
        would keep all of its summands in memory.
        """
        sparse = [g for g in readers if reads_sparsely(tensor_def, g)]
        dense_readers = [g for g in readers if g not in sparse]
        if (
            dense_readers
            and sum(source.kind != "input" for source in build_unfused(tensor_def).read_tensors.values()) > 1
        ):
            return [*dense_readers, *sparse]
        for group in sparse:
            if not why_not_fusible(tensor_def, group, stored=False, is_cpu=self._is_cpu):
                self._fuse_into(tensor_def, group)
                self.record_decision(
                    tensor_def, group, True, "The kernel reads only a few of its elements and recomputes them."
                )
            else:
                dense_readers.append(group)
        return dense_readers

    def _cheaper_stored_source(self, tensor_def: TensorDef, group: FusionGroup) -> TensorDef | None:
        """Return a stored source whose kernel should compute ``tensor_def``, instead of ``group``.

        An ATen call reads the source before ``group`` runs. If ``group`` computed ``tensor_def``, it would load the source
        again, which costs more bytes than loading ``tensor_def``.
        """
        result_bytes = stored_bytes(tensor_def)
        if tensor_def.kind not in ("pointwise", "reduction") or result_bytes is None or not self.extern_readers:
            return None
        sources = self._memory_sources(tensor_def)
        for source in sorted(sources, key=lambda d: d.program_order):
            if not source.is_computed or source in group.reads or not self._must_be_stored_before(source, group):
                continue
            shared = self._memory_sources(source) & sources
            reloaded_bytes = sum(stored_bytes(s) or 0 for s in (source, *(shared - group.reads.keys())))
            traffic = result_bytes * (1 if tensor_def in self.realized else STORE_AND_LOAD)
            if reloaded_bytes > traffic and _has_same_iterations(tensor_def, source):
                return source
        return None

    def _reduction_of_other_rows(self, tensor_def: TensorDef, group: FusionGroup) -> TensorDef | None:
        """Return a reduction whose kernel should compute ``tensor_def``, not ``group``.

        Its rows are not those of ``group``: each iteration of ``group`` would load its result again. Costly sources of
        both would be stored for ``group``, which takes more bytes than storing ``tensor_def``.
        """
        outer, own = static_product(v.size for v in group.outer_vars), stored_bytes(tensor_def)
        if group.reduction_vars is None or tensor_def.kind != "pointwise" or outer is None or own is None:
            return None
        stack, seen, reloaded = [tensor_def], {tensor_def}, 0
        reduction: TensorDef | None = None
        while stack:
            for source in build_unfused(stack.pop()).read_tensors.values():
                if source in seen:
                    continue
                seen.add(source)
                if source.kind == "reduction" and source.is_computed and (static_product(source.shape) or 0) > outer:
                    reduction = reduction or source
                elif source.kind == "pointwise" and source not in self.realized and is_cheap_to_recompute(source):
                    stack.append(source)
                elif source not in group.reads:
                    reloaded += (stored_bytes(source) or 0) * (STORE_AND_LOAD if source.kind == "pointwise" else 1)
        traffic = own * (1 if tensor_def in self.realized else STORE_AND_LOAD)
        return reduction if reloaded > traffic else None

    def _must_be_stored_before(self, source: TensorDef, group: FusionGroup) -> bool:
        """Return True if ``group`` depends on an ATen call that reads ``source``."""
        return any(self.has_path(call, group) for call in self.extern_readers.get(source, ()))

    def _memory_sources(self, tensor_def: TensorDef) -> set[TensorDef]:
        """Return the definitions in memory that ``tensor_def`` is computed from."""
        sources: set[TensorDef] = set()
        stack, visited = [tensor_def], {tensor_def}
        while stack:
            for source in build_unfused(stack.pop()).read_tensors.values():
                if source.is_computed and source not in self.realized and source.kind != "scatter":
                    if source not in visited:
                        visited.add(source)
                        stack.append(source)
                else:
                    sources.add(source)
        return sources

    def _merge_readers(self, tensor_def: TensorDef, readers: list[FusionGroup]) -> list[FusionGroup]:
        """Merge kernels that read the same elements in the same order."""
        result: list[FusionGroup] = []
        for group in readers:
            for i, candidate in enumerate(result):
                merged = self._try_merge(candidate, group, tensor_def)
                if merged is not None:
                    result[i] = merged
                    break
            else:
                result.append(group)
        return result

    def _try_merge(self, first: FusionGroup, second: FusionGroup, shared: TensorDef) -> FusionGroup | None:
        if first.reduction_vars is None and second.reduction_vars is not None:
            first, second = second, first
        if len(first.members) + len(second.members) > MAX_MEMBERS:
            return None
        values, similarity = loop_mapping(first, second), "have the same loops"
        if values is None or not read_same_elements(first, second, shared, values):
            # On a CPU, the bytes saved do not pay for storing a result long before it is read.
            is_apart = self._is_cpu or _needs_own_order(first, second)
            values = None if is_apart else element_mapping(first, second, shared)
            similarity = "visit the same elements"
        if values is None or self.has_path(first, second) or self.has_path(second, first):
            return None
        if self._delays_large_results(first, second, shared) or self._delays_large_results(second, first, shared):
            return None
        stored = {**first.stores, **{m: tuple(i.replace(values) for i in index) for m, index in second.stores.items()}}
        self._group_count += 1
        merged = FusionGroup(
            self._group_count,
            first.loop_vars,
            first.reduction_vars if first.reduction_vars is not None else map_reduction_vars(second, values),
            stored,
            first.members | second.members,
            has_scan=first.has_scan or second.has_scan,
        )
        merged.analyze()
        if len(merged.input_defs()) > MAX_READS:
            return None
        self.groups = [g for g in self.groups if g not in (first, second)]
        self.groups.append(merged)
        for tensor_def in stored:
            self.owner[tensor_def] = merged
        self.decisions.append(
            FusionDecision(
                _group_origins(first),
                _group_origins(second),
                True,
                f"Both {similarity} and read {shared.name}, which is then loaded once.",
                bytes_saved(shared, 1),
            )
        )
        return merged

    def _delays_large_results(self, early: FusionGroup, late: FusionGroup, shared: TensorDef) -> bool:
        """Return True if large results of ``late`` are needed after steps that read ``early``.

        Merging ``late`` into ``early`` would keep them in memory for long, only to save one load of a small tensor.
        """
        late_bytes = sum(stored_bytes(tensor_def) or 0 for tensor_def in late.stores)
        if late_bytes <= MAX_EARLY_RESULT_RATIO * (stored_bytes(shared) or late_bytes):
            return False
        read_first = [
            tensor_def.program_order for step in self._steps_reading(early) for tensor_def in step.output_defs
        ]
        waits_for = [
            max((d.program_order for d in self.step_inputs(step) - late.stores.keys()), default=-1)
            for step in self._steps_reading(late)
        ]
        return bool(read_first and waits_for) and min(waits_for) > min(read_first)

    def _steps_reading(self, group: FusionGroup) -> list[FusionGroup | ExternNode]:
        steps: list[FusionGroup | ExternNode] = [
            e for tensor_def in group.stores for e in self.extern_readers.get(tensor_def, ())
        ]
        return steps + [g for g in self.groups if not group.stores.keys().isdisjoint(g.reads)]

    def _new_group(self, tensor_def: TensorDef) -> FusionGroup:
        """Start a new kernel that loops over the dimensions in memory order."""
        self._group_count += 1
        dims = memory_order(tensor_def)
        variables = {d: LoopVar(f"i{d}", tensor_def.loop_ranges[d]) for d in dims}
        index = tuple(
            variable(variables[d]) if d in variables else IndexExpr() for d in range(len(tensor_def.loop_ranges))
        )
        inner: tuple[LoopVar, ...] | None = None
        if tensor_def.kind == "reduction":
            inner = tuple(LoopVar(f"r{k}", n) for k, n in enumerate(tensor_def.ranges) if n != 1)
        elif tensor_def.kind == "scan":
            inner = (variables[tensor_def.scan_axis],) if tensor_def.scan_axis in variables else None
        order = tuple(variables[d] for d in dims)
        order += tuple(v for v in inner or () if v not in order)
        group = FusionGroup(
            self._group_count, order, inner, {tensor_def: index}, {tensor_def}, has_scan=tensor_def.kind == "scan"
        )
        group.analyze()
        self.groups.append(group)
        self.owner[tensor_def] = group
        return group

    def _fuse_into(self, tensor_def: TensorDef, group: FusionGroup, *, stored: bool = False) -> None:
        memory_reads = group.reads_of(tensor_def)
        if tensor_def.kind == "reduction" and group.reduction_vars is None:
            group.loop_vars, group.reduction_vars = add_reduction_vars(tensor_def, group, memory_reads[0].index)
        if tensor_def.kind == "scan" and group.reduction_vars is None:
            axis = axis_variable(tensor_def, memory_reads[0].index)
            group.reduction_vars = None if axis is None else (axis,)
        group.has_scan |= tensor_def.kind == "scan"
        group.members.add(tensor_def)
        if stored:
            group.stores[tensor_def] = next(
                d.index for d in memory_reads if not d.is_masked and is_storable(tensor_def, group, d.index)
            )
            self.owner[tensor_def] = group
        group.analyze()

    def fuse_horizontally(self) -> None:
        """Merge independent kernels that read the same elements in the same order."""
        reads = ((d, g) for g in self.groups for d in sorted(g.input_defs(), key=lambda d: d.program_order))
        for source, readers in group_pairs(reads).items():
            present = [g for g in readers if g in self.groups]
            if len(present) > 1 and stored_bytes(source) != 0:
                self._merge_readers(source, present)

    def topological_order(self) -> tuple[FusionGroup | ExternNode, ...]:
        """Sort the steps topologically; otherwise in program order.

        Calls that read numbers from inputs come first: what computes with a number may raise, and no input may be
        written before it does.
        """
        emitted: set[int] = set()
        result: list[FusionGroup | ExternNode] = []
        steps: list[FusionGroup | ExternNode] = [*self.groups, *self.externs]

        def visit(step: FusionGroup | ExternNode) -> None:
            if id(step) in emitted:
                return
            emitted.add(id(step))
            for source in sorted(self.step_inputs(step), key=lambda d: d.program_order):
                owner = self.owner.get(source)
                if owner is not None and owner is not step:
                    visit(owner)
            result.append(step)

        def program_position(step: FusionGroup | ExternNode) -> int:
            if isinstance(step, FusionGroup):
                return min(d.program_order for d in step.stores)
            tensor_def = [d.program_order for d in step.results if d is not None]
            # A call without results may check an assumption of later steps.
            return min(tensor_def, default=max((d.program_order for d in self.step_inputs(step)), default=-1))

        for step in sorted(steps, key=lambda step: (not self._reads_number_of_inputs(step), program_position(step))):
            visit(step)
        return tuple(result)

    def _reads_number_of_inputs(self, step: FusionGroup | ExternNode) -> bool:
        """Return True if a call reads a number computed from inputs by steps of one element."""
        if getattr(step, "target", None) is not torch.ops.aten._local_scalar_dense.default:
            return False
        pending, seen = self.step_inputs(step), {id(step)}
        while pending:
            owners = {id(o): o for d in pending if (o := self.owner.get(d)) is not None and id(o) not in seen}
            if any(d.shape != () for owner in owners.values() for d in owner.output_defs):
                return False
            seen |= owners.keys()
            pending = {d for owner in owners.values() for d in self.step_inputs(owner)}
        return True


def _symbols_of_group(group: FusionGroup) -> frozenset[str]:
    """Return the symbols in a kernel's sizes and indices."""
    sizes = [v.size for v in group.loop_vars]
    for tensor_def in (*group.members, *group.input_defs()):
        sizes += [*tensor_def.shape, *tensor_def.stride, *tensor_def.ranges]
    indices = (op.index for op in group.builder.ops if op.index is not None)
    sizes += [op.value for op in group.builder.ops if op.name == "number"]
    return symbols_of(sizes).union(*(i.symbols() for i in indices))


def _symbols_of_call(extern: ExternNode) -> frozenset[str]:
    """Return the symbols in an ATen call's arguments and in the layouts of its results."""
    sizes: list[object] = []
    leaves = tree_leaves((extern.args, extern.kwargs))
    for value in lowered_tensors(leaves):
        placed = strided_view_of(value)
        sizes += [*value.definition.shape, *value.definition.stride, *value.shape]
        sizes += [] if placed is None else [*placed[0], placed[1]]
    sizes += [getattr(getattr(value, "node", None), "expr", value) for value in leaves]
    for tensor_def in extern.results:
        sizes += [] if tensor_def is None else [*tensor_def.shape, *tensor_def.stride]
    return symbols_of(sizes)


def _needs_own_order(first: FusionGroup, second: FusionGroup) -> bool:
    """Return True if ``second`` is faster in its own order than in that of ``first``.

    It scatters, or it would be computed in the few programs of a reduction of long rows.
    """
    rows, length = static_product(v.size for v in first.outer_vars), static_product((first.numel,))
    is_long = rows is not None and length is not None and length > MAX_STRIDED_ROW * rows
    has_few_programs = first.reduction_vars is not None and second.reduction_vars is None and is_long
    return any(tensor_def.kind == "scatter" for tensor_def in second.members) or (
        has_few_programs and rows is not None and rows < MIN_LONG_ROWS
    )


def _group_origins(group: FusionGroup) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(
            o for tensor_def in sorted(group.members, key=lambda d: d.program_order) for o in tensor_def.node_ids
        )
    )


def _has_same_iterations(tensor_def: TensorDef, source: TensorDef) -> bool:
    """Return True if one kernel can compute both in one pass over the elements of ``source``."""
    return sizes_equal(product((*tensor_def.shape, *tensor_def.ranges)), product((*source.shape, *source.ranges)))
