"""Passes one flat tensor over a memory that several inputs see and one of them writes to: the functional graph makes their views itself.

The idea of synthetic bases is torch's (AOTAutograd's ``AOTSyntheticBaseWrapper``).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from engine.aot.analyse import is_as_strided, is_mutating, is_reshaped, output_args
from engine.aot.outputs import OutputPlanner
from engine.aot.views import (
    NotFunctional,
    counts_with,
    end_of,
    overlaps,
    storage_of,
    view_in_place,
    writes_to,
)
from engine.aot.wrappers import aliases, errors, mutations
from engine.aot.wrappers.aliases import set_version
from engine.aot.wrappers.layer import Layer, weave
from engine.aot.wrappers.rewrite import rewritten
from engine.aot.wrappers.wrapper import Call, Change, Run
from engine.ir.frame import GraphInput
from engine.ir.in_graph import InGraph
from engine.ir.plan import InputPlan, OutputPlan, Plan
from engine.ir.relation_guard import SharesMemory
from engine.records.aot import WrapperAction

NAME = "synthetic bases"
_LARGE = 1 << 22
"""Bytes up to which a base may see much more than its members do."""


@dataclass(frozen=True)
class Layout:
    """What a tensor looks like that members are views of."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    needs_gradient: bool

    def fits(self, members: Sequence[torch.Tensor]) -> bool:
        """Whether these are views of one such tensor, made where autograd looked on, and may be written to."""
        whole = whole_of(members[0])
        if (tuple(whole.shape), whole.stride(), whole.storage_offset()) != (self.sizes, self.strides, 0):
            return False
        if whole.requires_grad != self.needs_gradient or (whole.requires_grad and whole.is_leaf):
            return False
        return all(whole_of(m) is whole and (m is whole or _is_plain_view(m)) for m in members)


def whole_of(member: torch.Tensor) -> torch.Tensor:
    """The tensor that autograd sees this one as a view of; itself where it is none."""
    return member if member._base is None else member._base


def _is_plain_view(member: torch.Tensor) -> bool:
    default: Any = torch._C._autograd.CreationMeta.DEFAULT
    return bool(torch._C._autograd._get_creation_meta(member) == default)


@dataclass(frozen=True)
class Base:
    """A flat tensor over the memory of some inputs, from the start of their storage: what ``as_strided`` counts from."""

    members: tuple[int, ...]
    dtype: torch.dtype
    length: int
    """In elements."""
    starts: tuple[int, ...]
    """Per member, in bytes after the start of the storage."""
    layout: Layout | None = None
    """Of the tensor that autograd sees the members as views of, where gradients are needed: then it is the base."""

    def make(self, first: torch.Tensor) -> torch.Tensor:
        """The base, from its first member."""
        if self.layout is not None:
            return whole_of(first)
        empty = torch.empty(0, dtype=self.dtype, device=first.device)
        return empty.set_(first.untyped_storage(), 0, (self.length,), (1,))


@dataclass(frozen=True)
class Bases:
    """The bases, which inputs are passed as they are, and the calling convention of the traced call around them."""

    bases: tuple[Base, ...]
    passed: tuple[int, ...]
    plan: Plan
    counts: tuple[tuple[int, int], ...]
    """Version counters: (a member that has it, by how much it is moved on)."""
    counted_as_one: tuple[tuple[int, ...], ...]
    """Members taken to have one version counter that is moved on, where nothing else holds them to it."""
    as_traced: Run
    """Runs a call whose members autograd does not see as it did, or count apart where they were counted as one."""


def pre_compile(call: Call) -> Change | None:
    """Put one flat input in the place of inputs that share memory, where one is written to; None when nothing is to be done.

    Raises:
        NotFunctional: gradients are needed through what is no view of one tensor, sizes vary, or an input sees some of its memory twice.
    """
    groups = [g for g in _groups(call.inputs) if _is_changed(call, g)]
    if not groups:
        return None
    if any(is_as_strided(n) for n in call.graph.graph.nodes):
        shared = " and ".join(call.inputs[n].name for n in groups[0])
        raise NotFunctional(f"{shared} share memory, one of them is written to, and as_strided may see any of it")
    bases = tuple(_base(call.inputs, g) for g in groups)
    members = {n: (k, b.starts[at]) for k, b in enumerate(bases) for at, n in enumerate(b.members)}
    passed = tuple(n for n in range(len(call.inputs)) if n not in members)
    plan, results = _plan(call, members)
    _check_histories(call.inputs, plan, groups)
    inputs, graph = _with_bases(call, bases, members, results)
    why = "one of them is written to, which must show in the others"
    names = [" and ".join(call.inputs[n].name for n in b.members) for b in bases]
    actions = tuple(WrapperAction(name, "passed as one flat tensor over their memory", why) for name in names)
    guards = tuple(_guard(call.inputs, b) for b in bases)
    counted = {n: None for n in members if _has_version(call.inputs[n])}
    as_traced = errors.once(types.MethodType(type(call.graph).forward, call.graph))
    counts = counts_of(call.inputs, counted)
    loose = [n for b in bases if b.layout is None for n in b.members if n in counted]
    as_one = tuple(
        tuple(n for n in loose if _is_one(call.inputs, n, first))
        for first, writes in counts
        if writes and first in loose
    )
    made = Bases(bases, passed, plan, counts, tuple(ns for ns in as_one if len(ns) > 1), as_traced)
    return Change(Call(graph, inputs), actions, made, guards)


def _groups(inputs: Sequence[GraphInput]) -> list[list[int]]:
    by_storage: dict[int, list[int]] = {}
    for n, i in enumerate(inputs):
        if isinstance(i.real, torch.Tensor) and i.real.layout == torch.strided:
            by_storage.setdefault(storage_of(i.real), []).append(n)
    return [g for g in by_storage.values() if len(g) > 1]


def _is_changed(call: Call, group: Sequence[int]) -> bool:
    given = [call.inputs[n] for n in group]
    if any(i.fake.is_inference() for i in given) or any(_reads_data(n) for n in call.graph.graph.nodes):
        return any(is_mutating(n) for n in call.graph.graph.nodes)
    return any(writes_to(i.fake) != i.version or is_reshaped(i.fake, i.real) for i in given)


def _reads_data(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and node.target is getattr and node.args[1] == "data"


def _base(inputs: Sequence[GraphInput], group: Sequence[int]) -> Base:
    reals = [inputs[n].real for n in group]
    names = " and ".join(inputs[n].name for n in group)
    if any(inputs[n].fake._has_symbolic_sizes_strides for n in group):
        raise NotFunctional(f"{names} share memory, one of them is written to, and their sizes vary")
    if any(overlaps(r) for r in reals):
        raise NotFunctional(f"{names} share memory, one of them is written to, and one sees some of its memory twice")
    if any(r.is_conj() or r.is_neg() for r in reals):
        raise NotFunctional(f"{names} share memory, one of them is written to, and one is lazily conjugated or negated")
    if torch.is_grad_enabled() and any(inputs[n].fake.requires_grad or inputs[n].real.requires_grad for n in group):
        reshaped = next((inputs[n].name for n in group if is_reshaped(inputs[n].fake, inputs[n].real)), None)
        if reshaped is not None:
            raise NotFunctional(f"the shape or layout of {reshaped} is changed in place, and gradients are needed")
        return _base_of_autograd(tuple(group), reals, names)
    dtypes = {r.dtype for r in reals}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.uint8
    starts = tuple(int(r.storage_offset()) * r.element_size() for r in reals)
    # What has no elements may start past the end of its storage, which a base must not make longer.
    end = max((end_of(r) for r in reals if r.numel()), default=0)
    if end > max(_LARGE, 4 * sum(r.numel() * r.element_size() for r in reals)):
        raise NotFunctional(f"{names} share memory, one of them is written to, and they see little of it")
    return Base(tuple(group), dtype, end // dtype.itemsize, starts)


def _base_of_autograd(group: tuple[int, ...], reals: Sequence[torch.Tensor], names: str) -> Base:
    whole = whole_of(reals[0])
    layout = Layout(tuple(whole.shape), whole.stride(), whole.requires_grad)
    is_whole = whole.is_contiguous() and all(
        r.numel() and r.dtype == whole.dtype and _can_be_cut(r, whole) for r in reals
    )
    if not layout.fits(reals) or not is_whole:
        raise NotFunctional(
            f"{names} share memory, one of them is written to, and gradients are needed otherwise than through one tensor that they are "
            "cut from"
        )
    starts = tuple(int(r.storage_offset()) * r.element_size() for r in reals)
    return Base(group, whole.dtype, whole.numel(), starts, layout)


def _guard(inputs: Sequence[GraphInput], base: Base) -> SharesMemory:
    origins = [inputs[n].origin for n in base.members]
    return SharesMemory(origins[0], tuple(origins[1:]), base.starts)


def _plan(call: Call, members: dict[int, Any]) -> tuple[Plan, list[int]]:
    """The convention of the call as it was, and the outputs that are left to the graph inside."""
    planner = OutputPlanner(call.inputs, (), {}, call.graph.graph, in_grad_mode=torch.is_grad_enabled())
    outputs: list[OutputPlan] = []
    results: list[int] = []
    for n, node in enumerate(output_args(call.graph.graph)):
        found = planner.over_inputs(node, members)
        if found is None:
            found = OutputPlan(str(node), "result", len(results))
            results.append(n)
        outputs.append(found)
    inputs = tuple(_input(i, n in members) for n, i in enumerate(call.inputs))
    return Plan(inputs, tuple(outputs), len(results), roots=tuple(planner.roots)), results


def _check_histories(inputs: Sequence[GraphInput], plan: Plan, groups: Sequence[Sequence[int]]) -> None:
    """A view of what needs a gradient, made without one, may not outlive a write; traced code does not see writes that it counts apart.

    Raises:
        NotFunctional: there may have been such a write.
    """
    for output in plan.outputs:
        seen = inputs[output.index] if output.kind == "alias of input" else None
        if seen is None or not seen.real.requires_grad:
            continue
        others = next((g for g in groups if output.index in g), ())
        for m in others:
            if _written(inputs[m]) and not counts_with(seen.fake, inputs[m].fake):
                raise NotFunctional(
                    f"{inputs[m].name}, written to, may spoil the history of {output.name}, a view of {seen.name}"
                )


def counts_of(inputs: Sequence[GraphInput], members: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """How often each version counter is moved on: (a member that has it, by how much).

    Counters that the traced code takes for two may be one in a later call: then it is moved on twice, as in eager.

    Raises:
        NotFunctional: what the traced code takes for one counter are two.
    """
    apart: list[list[int]] = []
    for m in members:
        known = next((g for g in apart if _is_one(inputs, m, g[0])), None)
        if known is None:
            apart.append([m])
        else:
            known.append(m)
    found = []
    for group in apart:
        writes = max(_written(inputs[m]) for m in group)
        for m in group[1:]:
            if writes and not counts_with(inputs[group[0]].real, inputs[m].real):
                names = f"{inputs[group[0]].name} and {inputs[m].name}"
                raise NotFunctional(f"{names} share memory but no version counter, and one of them is written to")
        found.append((group[0], writes))
    return tuple(found)


def _is_one(inputs: Sequence[GraphInput], m: int, n: int) -> bool:
    return m == n or counts_with(inputs[m].fake, inputs[n].fake)


def _has_version(i: GraphInput) -> bool:
    return not i.fake.is_inference() and not i.real.is_inference()


def _written(i: GraphInput) -> int:
    return writes_to(i.fake) - i.version


def _input(i: GraphInput, is_member: bool) -> InputPlan:
    if not is_member:
        return InputPlan(i.name, isinstance(i.fake, torch.Tensor))
    layout = view_in_place(i) if is_reshaped(i.fake, i.real) else None
    # Versions of members are counted here, not by the wrapper that gives them their layouts.
    return InputPlan(i.name, is_counted=False, layout=layout)


def _with_bases(
    call: Call, bases: Sequence[Base], members: dict[int, tuple[int, int]], results: Sequence[int]
) -> tuple[tuple[GraphInput, ...], torch.fx.GraphModule]:
    mode: Any = next(i.fake.fake_mode for i in call.inputs if isinstance(i.fake, FakeTensor))
    flat: list[torch.fx.Node] = []
    inputs: list[GraphInput] = []

    def add(copy: torch.fx.Graph) -> None:
        for k, b in enumerate(bases):
            first = call.inputs[b.members[0]]
            real = b.make(first.real)
            with mode, torch.no_grad():
                fake = torch.empty_strided(real.shape, real.stride(), dtype=b.dtype, device=real.device)
            flat.append(copy.placeholder(f"memory_{k}" if k else "memory"))
            flat[-1].meta["example_value"] = fake
            inputs.append(GraphInput(flat[-1].name, first.origin, fake, real))
            if not fake.is_inference():
                torch.autograd.graph.increment_version(fake)  # the wrapper inside copies the new contents into it once

    def place(copy: torch.fx.Graph, n: int, node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> torch.fx.Node:
        if n not in members:
            inputs.append(call.inputs[n])
            return copy.node_copy(node)
        k, start = members[n]
        real = call.inputs[n].real
        if bases[k].layout is None:
            view = functools.partial(_see, real.dtype, real.shape, real.stride(), start)
        else:
            view = functools.partial(_part, real.shape, real.stride(), start // real.element_size())
        see = InGraph("view_of_memory", view)
        made = copy.create_node("call_function", see, (flat[k],), name=node.name)
        made.meta.update(node.meta)
        return made

    graph = rewritten(call.graph, place, results, add)
    return tuple(inputs), graph


def _see(dtype: torch.dtype, sizes: Any, strides: Any, start: int, flat: torch.Tensor) -> torch.Tensor:
    """A member's view of the base. Of views in a row only the first may be ``as_strided`` where functionalisation is to follow a write."""
    if flat.dtype is dtype:
        return flat.as_strided(sizes, strides, start // dtype.itemsize)
    width = dtype.itemsize
    return flat.as_strided((*sizes, width), (*(s * width for s in strides), 1), start).view(dtype).squeeze(-1)


def _part(sizes: Sequence[int], strides: Sequence[int], start: int, whole: torch.Tensor) -> torch.Tensor:
    """A member, made of what fills its memory by views that functionalisation and autograd can follow in a row.

    The row is cut into rows as long as the widest stride or a part of it, those that are seen are taken, and so on inside of them.
    """
    seen, first = whole.view(-1), start
    order = sorted((d for d in range(len(sizes)) if sizes[d] != 1), key=lambda d: -strides[d])
    for n, d in enumerate(order[:-1]):
        reach = sum((sizes[e] - 1) * strides[e] for e in order[n + 1 :])
        width = _width(seen.shape[-1], strides[d], first, reach)
        place, first = divmod(first, width)
        step = strides[d] // width
        rows = seen.shape[-1] // width
        seen = seen.narrow(-1, 0, rows * width).unflatten(-1, (rows, width))
        seen = seen[..., place : place + (sizes[d] - 1) * step + 1 : step, :]
    if not order:
        return seen[first : first + 1].view(list(sizes))
    seen = seen[..., first : first + (sizes[order[-1]] - 1) * strides[order[-1]] + 1 : strides[order[-1]]]
    seen = seen.permute([order.index(d) for d in sorted(order)])
    for d in (d for d, n in enumerate(sizes) if n == 1):
        seen = seen.unsqueeze(d)
    return seen


def _width(length: int, stride: int, first: int, reach: int) -> int:
    """How long to make the rows of a row: a part of the stride that leaves no rest and holds all that one row shows; else the stride."""
    parts = (stride // m for m in range(1, 65) if stride % m == 0)
    return next((w for w in parts if length % w == 0 and first % w + reach < w), stride)


def _can_be_cut(member: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether a member can be made of the tensor that fills its memory by such views: tried out."""
    try:
        row = torch.empty(whole.numel(), device="meta")
        made = _part(member.shape, member.stride(), int(member.storage_offset()), row)
    except RuntimeError:  # it goes on from one row into the next
        return False
    steps = [[s for n, s in zip(t.shape, t.stride(), strict=True) if n != 1] for t in (made, member)]
    return (made.shape, made.storage_offset(), steps[0]) == (member.shape, member.storage_offset(), steps[1])


def post_compile(change: Change, run: Any) -> Any:
    """Makes the bases, runs, and gives members their version counters, layouts and views."""
    plan: Bases = change.plan
    names: dict[str, Any] = {f"base_{k}": b.make for k, b in enumerate(plan.bases)}
    names["as_traced"] = plan.as_traced
    before: tuple[str, ...] = ()
    everything = ", ".join(f"i{n}" for n in range(len(plan.plan.inputs)))
    for ns in plan.counted_as_one:
        names["is_counted_once"] = is_counted_once
        before += (f"if not is_counted_once({', '.join(f'i{n}' for n in ns)}):", f"    return as_traced({everything})")
    for k, b in enumerate(plan.bases):
        if b.layout is not None:
            names[f"fits_{k}"] = b.layout.fits
            members = "".join(f"i{n}, " for n in b.members)
            before += (f"if not fits_{k}(({members})):", f"    return as_traced({everything})")
    before += tuple(f"b{k} = base_{k}(i{b.members[0]})" for k, b in enumerate(plan.bases))
    arguments = (*(f"b{k}" for k in range(len(plan.bases))), *(f"i{n}" for n in plan.passed))
    layers = (aliases.post_compile(plan.plan), _counting(plan), mutations.post_compile(plan.plan))
    return weave(run, plan.plan, (*layers, Layer(before=before, names=names, arguments=arguments)))


def is_counted_once(first: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether tensors over one memory have one version counter: views of one tensor do, and what is detached from them."""
    whole = whole_of(first)
    return all(whole_of(t) is whole or counts_with(whole, t) for t in others)


def _counting(plan: Bases) -> Layer:
    """Puts every counter back to what it was, whatever moved it on, and then on by what eager counts."""
    before = tuple(f"c{n} = i{n}._version" for n, _ in plan.counts)
    back = tuple(f"set_version((i{n},), (c{n},))" for n, _ in plan.counts)
    on = tuple(f"set_version((i{n},), (i{n}._version + {w},))" for n, w in plan.counts if w)
    return Layer(before=before, after=(*back, *on), names={"set_version": set_version})
