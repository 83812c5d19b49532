"""Synthetic bases: pass one flat tensor for inputs over one storage if one is mutated.

The functional graph creates the views itself. The idea is torch's (AOTAutograd's ``AOTSyntheticBaseWrapper``).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
import torch.fx

from engine.aot.fallback_kinds import AotFallback
from engine.aot.layout_mutation import is_layout_mutated, mutated_layout
from engine.aot.node_properties import is_as_strided, is_data_access, may_mutate, output_args
from engine.aot.output_aliasing import OutputAliasAnalyzer
from engine.aot.storage_geometry import end_byte, has_internal_overlap, storage_id
from engine.aot.version_counters import (
    _shares_counter,
    has_version_counter,
    input_write_count,
    set_version_counter,
    shares_version_counter,
    version_counter_writes,
    write_count,
)
from engine.aot.wrappers import error_fallback, input_mutations, output_aliases
from engine.aot.wrappers.base import PreCompileResult, TracedCall
from engine.aot.wrappers.codegen import WrapperCode, join_wrapper_code
from engine.aot.wrappers.replace_placeholders import replace_placeholders
from engine.group_pairs import group_pairs
from engine.ir.aot.aot_metadata import AotMetadata, InputAliasInfo, OutputAliasInfo
from engine.ir.fallback import FallbackRequired
from engine.ir.graph_callable import GraphCallable, Run
from engine.ir.guards.aliasing import SharedStorage
from engine.ir.node_values import fake_tensors
from engine.ir.traced_frame import GraphInput
from engine.records.aot import WrapperAction
from engine.torch_private.autograd import CreationMeta, get_creation_meta

NAME = "synthetic bases"
NEEDS = attrgetter("has_several_inputs")


_MAX_BASE_BYTES = 1 << 22
"""Size in bytes up to which a base may be much larger than its members."""


@dataclass(frozen=True)
class ViewBaseLayout:
    """Layout of the base tensor that inputs with shared storage are views of."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool

    def matches(self, members: Sequence[torch.Tensor]) -> bool:
        """Return True if these are views of one such tensor, tracked by autograd and mutable."""
        base = view_base(members[0])
        if (tuple(base.shape), base.stride(), base.storage_offset()) != (self.sizes, self.strides, 0):
            return False
        if base.requires_grad != self.requires_grad or (base.requires_grad and base.is_leaf):
            return False
        return all(view_base(m) is base and (m is base or _has_default_creation_meta(m)) for m in members)


def view_base(member: torch.Tensor) -> torch.Tensor:
    """Return the tensor that autograd considers this one a view of; itself if it is no view."""
    return member if member._base is None else member._base


def _has_default_creation_meta(member: torch.Tensor) -> bool:
    default: Any = CreationMeta.DEFAULT
    return bool(get_creation_meta(member) == default)


@dataclass(frozen=True)
class SyntheticBase:
    """Flat tensor over the storage of some inputs, from the storage's start.

    ``as_strided`` counts from there.
    """

    members: tuple[int, ...]
    dtype: torch.dtype
    length: int
    """Length in elements."""
    start_bytes: tuple[int, ...]
    """Byte offset of each member from the start of the storage."""
    layout: ViewBaseLayout | None = None
    """Layout of the tensor that autograd considers the members views of.

    Set if gradients are needed; that tensor is then the base.
    """

    def build(self, first: torch.Tensor) -> torch.Tensor:
        """Return the base, built from its first member."""
        if self.layout is not None:
            return view_base(first)
        empty = torch.empty(0, dtype=self.dtype, device=first.device)
        return empty.set_(first.untyped_storage(), 0, (self.length,), (1,))


@dataclass(frozen=True)
class SyntheticBaseMetadata:
    """Synthetic bases, inputs passed unchanged, and the calling convention of the outer call."""

    bases: tuple[SyntheticBase, ...]
    unaliased_inputs: tuple[int, ...]
    outer_metadata: AotMetadata
    version_writes: tuple[tuple[int, int], ...]
    """Version bumps: (a member that has the counter, bump)."""
    shared_counter_groups: tuple[tuple[int, ...], ...]
    """Members assumed to share one bumped version counter; checked at run time."""
    run_eager: Run
    """Runs the call in eager if view bases or version counters of members are not as assumed."""


def pre_compile(call: TracedCall) -> PreCompileResult[TracedCall] | None:
    """Replace inputs over one storage by one flat input if one is mutated; else return None.

    Raises:
        FallbackRequired: gradients are needed through inputs that are not slices of one tensor, sizes are symbolic,
            an input overlaps itself or is lazily conjugated, or ``as_strided`` may read any of the memory.
    """
    groups = [g for g in _groups_sharing_storage(call.inputs) if _is_mutated(call, g)]
    if not groups:
        return None
    if any(is_as_strided(n) for n in call.graph.graph.nodes):
        shared = " and ".join(call.inputs[n].name for n in groups[0])
        raise FallbackRequired(
            AotFallback.SHARED_INPUTS_AS_STRIDED,
            f"{shared} share memory, one of them is mutated, and as_strided may read any part of it",
        )
    bases = tuple(_base(call.inputs, g) for g in groups)
    members = {n: (k, b.start_bytes[at]) for k, b in enumerate(bases) for at, n in enumerate(b.members)}
    passed = tuple(n for n in range(len(call.inputs)) if n not in members)
    plan, results = _plan(call, members)
    _check_view_grad_fns(call.inputs, plan, groups)
    inputs, graph = _replace_inputs_by_bases(call, bases, members, results)
    why = "one of them is mutated: the write must be visible in the others"
    names = [" and ".join(call.inputs[n].name for n in b.members) for b in bases]
    actions = tuple(WrapperAction(name, "passed as one flat tensor (a synthetic base)", why) for name in names)
    guards = tuple(_guard(call.inputs, b) for b in bases)
    counted = {n: None for n in members if has_version_counter(call.inputs[n])}
    as_traced = error_fallback.wrap_eager_run(types.MethodType(type(call.graph).forward, call.graph))
    counts = version_counter_writes(call.inputs, counted)
    loose = [n for b in bases if b.layout is None for n in b.members if n in counted]
    as_one = tuple(
        tuple(n for n in loose if _shares_counter(call.inputs, n, first))
        for first, writes in counts
        if writes and first in loose
    )
    metadata = SyntheticBaseMetadata(bases, passed, plan, counts, tuple(ns for ns in as_one if len(ns) > 1), as_traced)
    return PreCompileResult(TracedCall(graph, inputs), actions, metadata, guards)


def _groups_sharing_storage(inputs: Sequence[GraphInput]) -> list[list[int]]:
    strided = (n for n, i in enumerate(inputs) if i.has_real_tensor and i.example_value.layout == torch.strided)
    by_storage = group_pairs((storage_id(inputs[n].example_value), n) for n in strided)
    return [g for g in by_storage.values() if len(g) > 1]


def _is_mutated(call: TracedCall, group: Sequence[int]) -> bool:
    group_inputs = [call.inputs[n] for n in group]
    if any(i.fake.is_inference() for i in group_inputs) or any(is_data_access(n) for n in call.graph.graph.nodes):
        return any(may_mutate(n) for n in call.graph.graph.nodes)
    return any(
        write_count(i.fake) != i.initial_version or is_layout_mutated(i.fake, i.example_value) for i in group_inputs
    )


def _base(inputs: Sequence[GraphInput], group: Sequence[int]) -> SyntheticBase:
    reals = [inputs[n].example_value for n in group]
    names = " and ".join(inputs[n].name for n in group)
    if any(inputs[n].fake._has_symbolic_sizes_strides for n in group):
        raise FallbackRequired(
            AotFallback.SHARED_INPUTS_DYNAMIC,
            f"{names} share memory, one of them is mutated, and their sizes are symbolic",
        )
    if any(has_internal_overlap(r) for r in reals):
        raise FallbackRequired(
            AotFallback.SHARED_INPUTS_OVERLAP_INSIDE,
            f"{names} share memory, one of them is mutated, and the elements of one overlap in memory",
        )
    if any(r.is_conj() or r.is_neg() for r in reals):
        raise FallbackRequired(
            AotFallback.SHARED_INPUTS_LAZY_CONJUGATE,
            f"{names} share memory, one of them is mutated, and one is lazily conjugated or negated",
        )
    if torch.is_grad_enabled() and any(
        inputs[n].fake.requires_grad or inputs[n].example_value.requires_grad for n in group
    ):
        reshaped = next(
            (inputs[n].name for n in group if is_layout_mutated(inputs[n].fake, inputs[n].example_value)), None
        )
        if reshaped is not None:
            raise FallbackRequired(
                AotFallback.LAYOUT_MUTATION_NEEDS_GRAD,
                f"an in-place operation changes the shape or strides of {reshaped}, and gradients are needed",
            )
        return _make_base_from_view_base(tuple(group), reals, names)
    dtypes = {r.dtype for r in reals}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.uint8
    starts = tuple(int(r.storage_offset()) * r.element_size() for r in reals)
    # An empty tensor may start past the end of its storage; a base must not grow the storage.
    end = max((end_byte(r) for r in reals if r.numel()), default=0)
    if end > max(_MAX_BASE_BYTES, 4 * sum(r.numel() * r.element_size() for r in reals)):
        raise FallbackRequired(
            AotFallback.SHARED_INPUTS_FAR_APART,
            f"{names} share memory, one of them is mutated, and they cover only a small part of it",
        )
    return SyntheticBase(tuple(group), dtype, end // dtype.itemsize, starts)


def _make_base_from_view_base(group: tuple[int, ...], reals: Sequence[torch.Tensor], names: str) -> SyntheticBase:
    base = view_base(reals[0])
    layout = ViewBaseLayout(tuple(base.shape), base.stride(), base.requires_grad)
    is_whole = base.is_contiguous() and all(r.numel() and r.dtype == base.dtype and _can_slice(r, base) for r in reals)
    if not layout.matches(reals) or not is_whole:
        raise FallbackRequired(
            AotFallback.SHARED_INPUTS_NO_COMMON_VIEW,
            f"{names} share memory, one of them is mutated, and gradients are needed, but they are not "
            "slices of one contiguous tensor",
        )
    starts = tuple(int(r.storage_offset()) * r.element_size() for r in reals)
    return SyntheticBase(group, base.dtype, base.numel(), starts, layout)


def _guard(inputs: Sequence[GraphInput], base: SyntheticBase) -> SharedStorage:
    origins = [inputs[n].source for n in base.members]
    return SharedStorage(origins[0], tuple(origins[1:]), base.start_bytes)


def _plan(call: TracedCall, members: dict[int, Any]) -> tuple[AotMetadata, list[int]]:
    """Return the metadata of the outer call, and the outputs left to the inner graph."""
    planner = OutputAliasAnalyzer(call.inputs, (), {}, call.graph.graph, in_grad_mode=torch.is_grad_enabled())
    outputs: list[OutputAliasInfo] = []
    results: list[int] = []
    for n, node in enumerate(output_args(call.graph.graph)):
        alias = planner.analyze_alias_of_inputs(node, members)
        if alias is None:
            alias = OutputAliasInfo(str(node), "result", len(results))
            results.append(n)
        outputs.append(alias)
    inputs = tuple(_input(i, n in members) for n, i in enumerate(call.inputs))
    return AotMetadata(inputs, tuple(outputs), len(results), detached_bases=tuple(planner.roots)), results


def _check_view_grad_fns(inputs: Sequence[GraphInput], plan: AotMetadata, groups: Sequence[Sequence[int]]) -> None:
    """Raise if a mutation may invalidate the ``grad_fn`` of a returned view.

    A view of a tensor that requires grad, created under ``no_grad``, may not outlive a mutation. Traced code does not
    see mutations through another version counter.

    Raises:
        FallbackRequired: there may have been such a mutation.
    """
    for output in plan.outputs:
        aliased = inputs[output.index] if output.kind == "alias of input" else None
        if aliased is None or not aliased.example_value.requires_grad:
            continue
        group = next((g for g in groups if output.index in g), ())
        for m in group:
            if input_write_count(inputs[m]) and not shares_version_counter(aliased.fake, inputs[m].fake):
                raise FallbackRequired(
                    AotFallback.SHARED_INPUT_VIEW_INVALIDATED,
                    f"a mutation of {inputs[m].name} may invalidate the grad_fn of {output.name}, a view of {aliased.name}",
                )


def _input(i: GraphInput, is_member: bool) -> InputAliasInfo:
    if not is_member:
        return InputAliasInfo(i.name, i.is_tensor)
    layout = mutated_layout(i) if is_layout_mutated(i.fake, i.example_value) else None
    # This wrapper sets the versions of members, not the one that sets their layouts.
    return InputAliasInfo(i.name, has_version_counter=False, new_layout=layout)


def _replace_inputs_by_bases(
    call: TracedCall, bases: Sequence[SyntheticBase], members: dict[int, tuple[int, int]], results: Sequence[int]
) -> tuple[tuple[GraphInput, ...], torch.fx.GraphModule]:
    mode: Any = fake_tensors([i.fake for i in call.inputs])[0].fake_mode
    flat: list[torch.fx.Node] = []
    inputs: list[GraphInput] = []

    def add(copy: torch.fx.Graph) -> None:
        for k, b in enumerate(bases):
            first = call.inputs[b.members[0]]
            real = b.build(first.example_value)
            with mode, torch.no_grad():
                fake = torch.empty_strided(real.shape, real.stride(), dtype=b.dtype, device=real.device)
            flat.append(copy.placeholder(f"memory_{k}" if k else "memory"))
            flat[-1].meta["example_value"] = fake
            inputs.append(GraphInput(flat[-1].name, first.source, fake, real))
            if not fake.is_inference():
                torch.autograd.graph.increment_version(fake)  # an inner wrapper copies the new contents into it once

    def emit(copy: torch.fx.Graph, n: int, node: torch.fx.Node, copies: dict[torch.fx.Node, Any]) -> torch.fx.Node:
        if n not in members:
            inputs.append(call.inputs[n])
            return copy.node_copy(node)
        k, start = members[n]
        real = call.inputs[n].example_value
        if bases[k].layout is None:
            view = functools.partial(_as_strided_view, real.dtype, real.shape, real.stride(), start)
        else:
            view = functools.partial(_slice_view, real.shape, real.stride(), start // real.element_size())
        see = GraphCallable("view_of_memory", view)
        view_node = copy.create_node("call_function", see, (flat[k],), name=node.name)
        view_node.meta.update(node.meta)
        return view_node

    graph = replace_placeholders(call.graph, emit, results, add)
    return tuple(inputs), graph


def _as_strided_view(dtype: torch.dtype, sizes: Any, strides: Any, start: int, flat: torch.Tensor) -> torch.Tensor:
    """Return a member as a view of the base.

    Functionalization tracks a mutation only if, of a chain of views, no view but the first is ``as_strided``.
    """
    if flat.dtype is dtype:
        return flat.as_strided(sizes, strides, start // dtype.itemsize)
    width = dtype.itemsize
    return flat.as_strided((*sizes, width), (*(s * width for s in strides), 1), start).view(dtype).squeeze(-1)


def _slice_view(sizes: Sequence[int], strides: Sequence[int], start: int, base: torch.Tensor) -> torch.Tensor:
    """Return a member built from its base by views that autograd and functionalization track.

    The flat memory is split into rows as long as the widest stride, or a divisor of it. The rows that the member shows
    are selected, and split further in the same way.
    """
    view, first = base.view(-1), start
    order = sorted((d for d in range(len(sizes)) if sizes[d] != 1), key=lambda d: -strides[d])
    for n, d in enumerate(order[:-1]):
        reach = sum((sizes[e] - 1) * strides[e] for e in order[n + 1 :])
        width = _row_length(view.shape[-1], strides[d], first, reach)
        offset, first = divmod(first, width)
        step = strides[d] // width
        rows = view.shape[-1] // width
        view = view.narrow(-1, 0, rows * width).unflatten(-1, (rows, width))
        view = view[..., offset : offset + (sizes[d] - 1) * step + 1 : step, :]
    if not order:
        return view[first : first + 1].view(list(sizes))
    view = view[..., first : first + (sizes[order[-1]] - 1) * strides[order[-1]] + 1 : strides[order[-1]]]
    view = view.permute([order.index(d) for d in sorted(order)])
    for d in (d for d, n in enumerate(sizes) if n == 1):
        view = view.unsqueeze(d)
    return view


def _row_length(length: int, stride: int, first: int, reach: int) -> int:
    """Return the row length for a split: a divisor of the stride, or the stride.

    The divisor must also divide the length, and one row must hold all elements it shows.
    """
    parts = (stride // m for m in range(1, 65) if stride % m == 0)
    return next((w for w in parts if length % w == 0 and first % w + reach < w), stride)


def _can_slice(member: torch.Tensor, base: torch.Tensor) -> bool:
    """Return True if such views can build a member from its base; tested on a meta tensor."""
    try:
        row = torch.empty(base.numel(), device="meta")
        sliced = _slice_view(member.shape, member.stride(), int(member.storage_offset()), row)
    except RuntimeError:  # the member continues from one row into the next
        return False
    steps = [[s for n, s in zip(t.shape, t.stride(), strict=True) if n != 1] for t in (sliced, member)]
    return (sliced.shape, sliced.storage_offset(), steps[0]) == (member.shape, member.storage_offset(), steps[1])


def post_compile(change: PreCompileResult[TracedCall]) -> WrapperCode:
    """Return code that builds the bases, then sets versions, layouts and views of the members."""
    plan: SyntheticBaseMetadata = change.runtime_metadata
    names: dict[str, Any] = {f"base_{k}": b.build for k, b in enumerate(plan.bases)}
    names["as_traced"] = plan.run_eager
    before: tuple[str, ...] = ()
    everything = ", ".join(f"i{n}" for n in range(len(plan.outer_metadata.inputs)))
    for ns in plan.shared_counter_groups:
        names["is_counted_once"] = share_one_version_counter
        before += (f"if not is_counted_once({', '.join(f'i{n}' for n in ns)}):", f"    return as_traced({everything})")
    for k, b in enumerate(plan.bases):
        if b.layout is not None:
            names[f"fits_{k}"] = b.layout.matches
            members = "".join(f"i{n}, " for n in b.members)
            before += (f"if not fits_{k}(({members})):", f"    return as_traced({everything})")
    before += tuple(f"b{k} = base_{k}(i{b.members[0]})" for k, b in enumerate(plan.bases))
    arguments = (*(f"b{k}" for k in range(len(plan.bases))), *(f"i{n}" for n in plan.unaliased_inputs))
    return join_wrapper_code(
        (
            output_aliases.regenerate_outputs(plan.outer_metadata),
            _version_counter_code(plan),
            input_mutations.mutate_inputs(plan.outer_metadata),
            WrapperCode(before=before, namespace=names, arguments=arguments),
        )
    )


def share_one_version_counter(first: torch.Tensor, *views: torch.Tensor) -> bool:
    """Return True if tensors over one storage share one version counter.

    Views of one tensor do, and so do tensors detached from them.
    """
    base = view_base(first)
    return all(view_base(t) is base or shares_version_counter(base, t) for t in views)


def _version_counter_code(plan: SyntheticBaseMetadata) -> WrapperCode:
    """Return code that restores every version counter, then adds what eager counts."""
    before = tuple(f"c{n} = i{n}._version" for n, _ in plan.version_writes)
    tensors, counts = (f"i{n}, " for n, _ in plan.version_writes), (f"c{n}, " for n, _ in plan.version_writes)
    back = (f"set_version(({''.join(tensors)}), ({''.join(counts)}))",) if plan.version_writes else ()
    on = tuple(f"set_version((i{n},), (i{n}._version + {w},))" for n, w in plan.version_writes if w)
    return WrapperCode(before=before, after=(*back, *on), namespace={"set_version": set_version_counter})
