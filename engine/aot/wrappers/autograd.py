"""Makes the forward graph differentiable: one autograd node a call, whose backward graph is compiled when it is first needed."""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.fx
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction

from engine.aot.analyse import output_args
from engine.aot.functionalize import as_computed, is_made_by_view
from engine.aot.joint import Joint
from engine.aot.partition import Halves
from engine.aot.second_time import FREED, UNPACKS_ONE, Tangents, hold, meet, meetings, read_saved
from engine.aot.undefined import NotSeparable, absent_gradients, without_tangents
from engine.aot.wrappers.again import Again, NotAgain
from engine.aot.wrappers.aliases import set_version
from engine.aot.wrappers.layer import Layer
from engine.aot.wrappers.probe import Mark, Probe
from engine.graph.randomness import drawn_from
from engine.ir.graph import is_backward
from engine.ir.inlined import INLINED, Inlined
from engine.ir.plan import Plan
from engine.records.aot import WrapperAction

Run = Callable[..., Any]
Layout = tuple[tuple[int, ...], tuple[int, ...]]
Compile = Callable[[torch.fx.GraphModule], Run]

NAME = "autograd"
_ONLY: Tangents = frozenset((0,))
_is_retained: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph

_DETACHED = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)
"""Torch's words: its own nodes say it, functions written in Python do not."""

TWICE = (
    "engine.compile cannot differentiate the gradient of this compiled graph once more: {}. "
    "Compile with backend='eager', or leave this part uncompiled (engine.disable)."
)


@dataclass(frozen=True)
class Crossing:
    """What the autograd node needs to know, in positions of the forward's inputs and results.

    The forward graph returns ``results`` results, ``tensors`` saved tensors and ``numbers`` saved numbers. ``layouts`` are sizes and
    strides that the backward expects of the tangent of each position in ``differentiable``; None where they are symbols, and are those
    of the result of the call.
    """

    inputs: int
    results: int
    tangents: tuple[str, ...]
    """Names of the backward graph's placeholders for tangents."""
    tensors: int
    numbers: int
    differentiable: tuple[int, ...]
    plain: tuple[int, ...]
    """Results that are tensors and need no gradient."""
    needing: tuple[int, ...]
    layouts: tuple[Layout | None, ...]
    views: tuple[int, ...] = ()
    """Results that the graph computes as views, where eager's tensor is none: or they could not be written to."""
    counted: tuple[int, ...] = ()
    """Inputs that have version counters."""
    writes: tuple[tuple[int, int], ...] = ()
    """``Plan.writes``: version counters must be right before a result is saved."""
    apart: tuple[int, ...] = ()
    """Inputs that require grad, and that no gradient flows to: autograd must not take what they come from for a part of this."""
    detached: tuple[int, ...] = ()
    """Saved tensors that are such inputs: saved without what they come from."""
    returned: frozenset[int] = frozenset()
    """Saved tensors that are results as well: autograd gives them back together with all others only."""
    weak: tuple[int, ...] = ()
    """Inputs that the node must not keep alive: it may ask for them once more (``Again``), but eager's would have let go of them."""
    whole: tuple[tuple[int, int], ...] = ()
    """Saved tensors with the inputs that they are, where the caller could take them out of autograd's graph before eager reads them."""


def crossing(joint: Joint, halves: Halves, requiring: Collection[int], *, is_given: bool) -> Crossing:
    """What a joint graph and its halves mean for the autograd node.

    ``requiring`` are the inputs that require grad. ``is_given``: the inputs are the caller's, not made of them.
    """
    nodes = output_args(halves.forward.graph)
    tensors = [k for k, n in enumerate(nodes[: halves.results]) if isinstance(_value(n), torch.Tensor)]
    flowing = {n for n, g in zip(joint.needing, output_args(halves.backward.graph), strict=True) if g is not None}
    apart = tuple(sorted(set(requiring) - flowing)) if flowing else ()
    names = {n.name for k, n in enumerate(halves.forward.graph.nodes) if k in apart}
    shown = {str(n) for n in nodes[: halves.results]}
    places = {n.name: k for k, n in enumerate(halves.forward.graph.nodes) if k in flowing} if is_given else {}
    read = _read_by_autograd(halves.backward)
    return Crossing(
        inputs=len(joint.inputs),
        results=halves.results,
        tangents=halves.tangent_names,
        tensors=len(halves.tensors),
        numbers=len(halves.numbers),
        differentiable=joint.differentiable,
        plain=tuple(k for k in tensors if k not in joint.differentiable),
        needing=joint.needing,
        layouts=tuple(map(_layout, halves.tangents)),
        counted=tuple(n for n, i in enumerate(joint.plan.inputs) if i.is_tensor and i.is_counted),
        views=tuple(k for k in tensors if is_made_by_view(nodes[k])),
        writes=as_computed(joint.plan, halves.forward).writes,
        apart=apart,
        detached=tuple(n for n, name in enumerate(halves.tensors) if name in names),
        returned=frozenset(n for n, name in enumerate(halves.tensors) if name in shown),
        weak=tuple(n for n, i in enumerate(joint.plan.inputs) if i.is_tensor and is_given),
        whole=tuple(
            (n, places[name])
            for n, name in enumerate(halves.tensors)
            if name in places and name in read and not isinstance(joint.inputs[places[name]], torch.nn.Parameter)
        ),
    )


def _read_by_autograd(backward: torch.fx.GraphModule) -> set[str]:
    """Names of saved values that autograd's own operators read, not views or others that are computed again: what eager saves."""
    return {n.name for n in backward.graph.nodes if n.op == "placeholder" and any(map(is_backward, n.users))}


def _value(node: Any) -> Any:
    return node.meta["val"] if isinstance(node, torch.fx.Node) else node


def _layout(tangent: torch.Tensor) -> Layout | None:
    size, stride = tuple(tangent.shape), tangent.stride()
    return (size, stride) if all(isinstance(n, int) for n in (*size, *stride)) else None


def pre_compile(crossing: Crossing, names: Sequence[str], again: Again) -> tuple[WrapperAction, ...]:
    """One action an input that gradients flow to, one for what is saved, one a result that stands outside of autograd."""
    why = "the traced graph differentiates with respect to it"
    actions = [WrapperAction(names[n], "gets a gradient from the backward graph", why) for n in crossing.needing]
    actions += [
        WrapperAction(f"result {n}", "marked as not differentiable", "eager's needs no gradient")
        for n in crossing.plain
    ]
    saved = f"{crossing.tensors} tensors and {crossing.numbers} numbers saved"
    actions.append(WrapperAction("between forward and backward", saved, "the backward graph reads them"))
    actions.append(WrapperAction("backward", "compiled when it is first needed", "many calls are never differentiated"))
    twice = f"refused: {again.reason}" if again.reason else "runs the call again as traced, under eager autograd"
    actions.append(
        WrapperAction("backward under create_graph", twice, "its gradients are to be differentiated themselves")
    )
    return tuple(actions)


def eager_where_unknown(as_traced: Run, plan: Plan, needing: Sequence[int]) -> Layer:
    """Where the traced graph runs as it is.

    Functorch transforms and forward-mode differentiation must see its operators; and writing to a leaf that needs a gradient is eager's
    error to raise.
    """
    unknown = ["transforms()", "forward_ad._current_level >= 0"]
    unknown += [f"i{n}.is_leaf" for n in needing if plan.inputs[n].written and not plan.inputs[n].is_hidden]
    call = f"return as_traced({', '.join(f'i{n}' for n in range(len(plan.inputs)))})"
    names = {"as_traced": as_traced, "transforms": torch._C._are_functorch_transforms_active, "forward_ad": forward_ad}
    return Layer(before=(f"if {' or '.join(unknown)}:", f"    {call}"), names=names)


def post_compile(crossing: Crossing, forward: Run, backward: Backward) -> Run:
    """``forward`` as a function that autograd knows the backward of."""
    scope: dict[str, Any] = {"run": forward, "backward": backward, "set_version": set_version, "ref": weakref.ref}
    scope |= {"DETACHED": _DETACHED, "NOTHING": frozenset()}
    again = backward.again
    scope |= {"drawn_from": drawn_from, "devices": again.devices}
    noted = backward.noted
    scope |= {} if noted is None else {"mark": noted.probe.mark}
    exec(compile(_text(crossing, again, is_noted=noted is not None), "<engine autograd>", "exec"), scope)
    node = type(
        "CompiledFunction",
        (torch.autograd.Function,),
        {
            "forward": staticmethod(scope["forward"]),
            "backward": staticmethod(scope["differentiate"]),
            INLINED: inlined(crossing, backward),
        },
    )
    # Function.apply looks for functorch transforms, under which compiled graphs never run.
    apply: Run = super(torch.autograd.Function, node).apply  # type: ignore[misc]
    return _past_autograd(apply, crossing) if crossing.apart else apply


def _past_autograd(apply: Run, c: Crossing) -> Run:
    """``apply`` where autograd looks for tensors among the arguments, and finds none in a tuple."""
    given = ", ".join(f"i{n}" for n in range(c.inputs))
    passed = ", ".join(f"(i{n},)" if n in c.apart else f"i{n}" for n in range(c.inputs))
    scope: dict[str, Any] = {"apply": apply}
    exec(compile(f"def call({given}):\n    return apply({passed})", "<engine autograd>", "exec"), scope)
    call: Run = scope["call"]
    return call


def inlined(crossing: Crossing, backward: Backward) -> Inlined:
    """What a captured backward needs to hold this one's graph in place of its node."""
    places = {n: k for k, n in enumerate(crossing.needing)}
    fakes = {n.name: n.meta["val"] for n in backward.graph.graph.nodes if n.op == "placeholder"}
    tangents = [fakes[name] for name in crossing.tangents]
    return Inlined(
        backward.graph,
        crossing.tensors,
        crossing.numbers,
        crossing.differentiable,
        tuple(known or tangent.dim() for known, tangent in zip(crossing.layouts, tangents, strict=True)),
        tuple(places.get(n) for n in range(crossing.inputs)),
        backward.open,
        backward.standing_for,
        laid_out,
    )


def _text(c: Crossing, again: Again, *, is_noted: bool) -> str:
    inputs = "".join(f", i{n}" for n in range(c.inputs))
    results = [f"r{n}" for n in range(c.results)]
    tensors = [f"s{n}" for n in range(c.tensors)]
    numbers = [f"n{n}" for n in range(c.numbers)]
    lines = [f"def forward(ctx{inputs}):"]
    lines += [f"    (i{n},) = i{n}" for n in c.apart]
    if not again.reason:
        counted = [f"i{n}._version" if n in c.counted else "0" for n in range(c.inputs)]
        held = [f"ref(i{n})" if n in c.weak else f"i{n}" for n in range(c.inputs)]
        lines.append(f"    ctx.inputs, ctx.versions = {_tuple(held)}, {_tuple(counted)}")
    if again.devices:
        lines.append("    ctx.random = drawn_from(devices)")
    if is_noted:
        lines.append("    ctx.mark = mark()")
    lines.append(f"    {_tuple([*results, *tensors, *numbers])} = run({inputs[2:]})")
    lines += [f"    r{n} = r{n}.detach()" for n in c.views]
    lines += [f"    set_version((r{n},), ({count},))" for n, count in c.writes]
    lines += [f"    s{n} = s{n}.detach()" for n in c.detached]
    if tensors:
        lines.append(f"    ctx.save_for_backward({', '.join(tensors)})")
    if numbers:
        lines.append(f"    ctx.numbers = {_tuple(numbers)}")
    free = [k for k, layout in zip(c.differentiable, c.layouts, strict=True) if layout is None]
    if free:
        lines.append(f"    ctx.layouts = {_tuple([f'(tuple(r{k}.shape), r{k}.stride())' for k in free])}")
    if c.whole:
        lines.append(f"    ctx.leaves = {_tuple([f'i{n}.is_leaf' for _, n in c.whole])}")
    if c.plain:
        lines.append(f"    ctx.mark_non_differentiable({', '.join(f'r{n}' for n in c.plain)})")
    if len(c.differentiable) > 1:
        lines.append("    ctx.freed, ctx.held = NOTHING, None")
    lines.append("    ctx.set_materialize_grads(False)")
    lines.append(f"    return {_tuple(results)}")
    given = "".join(f", t{n}" for n in range(c.results))
    tangents = [f"t{n}" for n in c.differentiable]
    lines.append(f"def differentiate(ctx{given}):")
    saved = "ctx.saved_tensors"
    if len(tangents) > 1:
        absent = " or ".join(f"{t} is None" for t in tangents)
        saved = f"(backward.read(ctx, {_tuple(tangents)}) if ctx.held or {absent} else {saved})"
    values = ([f"*{saved}"] if tensors else []) + (["*ctx.numbers"] if numbers else [])
    lines.append(f"    values = [{', '.join(values)}]")
    for k, (n, _) in enumerate(c.whole):
        lines.append(f"    if not (ctx.leaves[{k}] or values[{n}] is None or values[{n}].grad_fn is not None):")
        lines.append("        raise RuntimeError(DETACHED)")
    lines.append(f"    tangents = [{', '.join(tangents)}]")
    lines.append(f"    gradients = backward(ctx, values, tangents, {'ctx.layouts' if free else '()'})")
    places = {n: k for k, n in enumerate(c.needing)}
    returned = [f"gradients[{places[n]}]" if n in places else "None" for n in range(c.inputs)]
    lines.append(f"    return {_tuple(returned)}")
    return "\n".join(lines)


def _tuple(values: Sequence[str]) -> str:
    return f"({''.join(f'{v}, ' for v in values)})"


@dataclass(frozen=True)
class _Variant:
    """A backward for calls in which some tangents are absent."""

    run: Run
    fills: bool
    """Whether ``run`` wants zeros for what is absent; else it wants only what is there."""
    nothing: tuple[bool, ...] = ()
    """For each gradient whether nothing flows to it, where zeros were filled in."""
    read: frozenset[int] | None = None
    """Positions of what is saved that ``run`` reads, and is given; None for all."""


@dataclass(frozen=True)
class Noted:
    """Who notes what a backward is given and returns, and what its gradients are called."""

    probe: Probe
    gradients: tuple[str, ...]

    def telling(self, mark: Mark, run: Run, given: Sequence[str]) -> Run:
        """A run that is noted; ``given`` are the names of the values that it is called with."""
        return lambda values: self.probe.backward(mark, run, given, self.gradients, values)


@dataclass
class Backward:
    """The backward half of one compiled graph: compiled at its first call, in the contexts that the forward was compiled in.

    Called with the autograd node, what was saved, and a tangent or None for each differentiable result; returns gradients.
    """

    graph: torch.fx.GraphModule
    crossing: Crossing
    compile: Compile
    """Makes a backward graph runnable: ``run(values) -> tuple``, which empties the list that it is given."""
    interpret: Compile
    """The same, for tangents that compiled code does not know (tensor subclasses)."""
    again: Again
    """For gradients that are to be differentiated themselves."""
    noted: Noted | None = None
    _context: contextvars.Context = field(default_factory=contextvars.copy_context)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _whole: Run | None = None
    _interpreted: Run | None = None
    _variants: dict[tuple[Tangents, bool], _Variant] = field(default_factory=dict)
    _meetings: frozenset[Tangents] | None = None
    _left: dict[Tangents, frozenset[int] | None] = field(default_factory=dict)
    """What is still to be read after gradients of some tangents have flown; None for nothing."""

    def __call__(self, ctx: Any, values: list[Any], tangents: list[Any], layouts: Sequence[Layout]) -> Sequence[Any]:
        """The gradients of the inputs that need one, in their order. Saved tensors are let go of unless the graph is retained."""
        there = _ONLY if len(tangents) == 1 else self._there(ctx, tangents)
        if torch.is_grad_enabled():
            return self._once(ctx, values, tangents, layouts, there)
        wanted: Sequence[Any] = self.crossing.layouts
        if layouts:
            free = iter(layouts)
            wanted = [known or next(free) for known in wanted]
        is_absent = is_foreign = False
        for n, (size, stride) in enumerate(wanted):
            tangent = tangents[n]
            if tangent is None:
                is_absent = True
            elif type(tangent) is not torch.Tensor:
                is_foreign = True
            elif tangent.stride() != stride or tangent.is_conj() or tangent.is_neg():
                tangents[n] = laid_out(tangent.resolve_conj().resolve_neg(), size, stride)
        run = self._foreign() if is_foreign else self._whole or self._compiled()
        variant = self._variant(there, is_foreign=is_foreign) if is_absent else None
        names = () if self.noted is None else self._names(tangents, variant)
        if variant is not None:
            run = variant.run
            if variant.read is not None:
                values[:] = [v for n, v in enumerate(values) if n in variant.read]
            tangents[:] = self._filled(tangents, wanted) if variant.fills else [t for t in tangents if t is not None]
        if self.noted is not None and ctx.mark is not None:
            run = self.noted.telling(ctx.mark, run, names)
        values += tangents
        tangents.clear()
        self._let_go(ctx, there)
        if torch._C._is_any_autocast_enabled():
            with torch._C._DisableAutocast():
                found: Sequence[Any] = run(values)
        else:
            found = run(values)
        if variant is None or not variant.nothing:
            return found
        return [None if nothing else g for g, nothing in zip(found, variant.nothing, strict=True)]

    def interpreted(self) -> Backward:
        """The same through ATen, with nothing compiled yet."""
        return Backward(self.graph, self.crossing, self.interpret, self.interpret, self.again)

    def read(self, ctx: Any, tangents: Sequence[Any]) -> Sequence[Any]:
        """The saved tensors for a call in which some tangents are absent; None for those that the others do not need.

        As in eager, those may have been written to since.
        """
        # What a captured backward shows instead of the node has been given saved tensors of its own.
        if issubclass(type(ctx), BackwardCFunction):
            there = self._there(ctx, tangents)
            is_foreign = any(t is not None and type(t) is not torch.Tensor for t in tangents)
            if ctx.held is not None:
                read = self._variant(there, is_foreign=is_foreign).read
                return [ctx.held.read(n) if read is None or n in read else None for n in range(self.crossing.tensors)]
            if UNPACKS_ONE and not is_foreign:
                wanted = self._variant(there, is_foreign=False).read
                if wanted is not None and not (wanted & self.crossing.returned):
                    return [read_saved(ctx, n) if n in wanted else None for n in range(self.crossing.tensors)]
        found: Sequence[Any] = ctx.saved_tensors
        return found

    def _names(self, tangents: Sequence[Any], variant: _Variant | None) -> Sequence[str]:
        """What the values are called that the graph is given; tangents that are absent are left out unless they are filled in."""
        names = [n.name for n in self.graph.graph.nodes if n.op == "placeholder"]
        if variant is None or variant.fills:
            return names
        absent = {n for n, t in zip(self.crossing.tangents, tangents, strict=True) if t is None}
        saved = self.crossing.tensors + self.crossing.numbers
        unread = {n for k, n in enumerate(names[:saved]) if variant.read is not None and k not in variant.read}
        return [n for n in names if n not in absent and n not in unread]

    def _once(
        self, ctx: Any, values: list[Any], tangents: list[Any], layouts: Sequence[Layout], there: Tangents
    ) -> Sequence[Any]:
        """The gradients where autograd looks on (``create_graph``); what cannot be differentiated once more says so when it is tried."""
        try:
            if self.again.reason:
                raise NotAgain(self.again.reason)
            random = ctx.random if self.again.devices else ()
            made = self.again.gradients(_alive(ctx.inputs), ctx.versions, random, tangents)
        except NotAgain as error:
            why = TWICE.format(error)
        else:
            self._let_go(ctx, there)
            return made
        with torch.no_grad():
            found = self(ctx, [_detached(v) for v in values], [_detached(t) for t in tangents], layouts)
        tensors = [g.detach().requires_grad_() for g in found if g is not None]
        told: Any = torch._C._functions.DelayedError(why, len(tensors))(*tensors) if tensors else ()
        guarded = iter((told,) if isinstance(told, torch.Tensor) else told)
        return [None if g is None else next(guarded) for g in found]

    def open(self, ctx: Any, there: tuple[int, ...]) -> tuple[Any, ...]:
        """The numbers that a call saved, and layouts of tangents that are symbols, where the graph runs inside of another one.

        Lets go of what else the call holds; ``there`` are the tangents that came.
        """
        came = frozenset(there)
        if len(self.crossing.differentiable) > 1:
            self._check_unfreed(ctx, came)
        self._let_go(ctx, came)
        numbers = list(ctx.numbers) if self.crossing.numbers else []
        for size, stride in ctx.layouts if None in self.crossing.layouts else ():
            numbers += [*size, *stride]
        return tuple(numbers)

    def standing_for(self, mask: tuple[bool, ...]) -> tuple[torch.fx.GraphModule, bool]:
        """The graph for calls where only these tangents are there; and whether it wants zeros for the others."""
        if all(mask):
            return self.graph, False
        there = frozenset(n for n, is_there in enumerate(mask) if is_there)
        found = self._without(there)
        return (found, False) if found is not None else (_with_nothing(self.graph, self._called(there)), True)

    def _there(self, ctx: Any, tangents: Sequence[Any]) -> Tangents:
        there = frozenset(n for n, t in enumerate(tangents) if t is not None)
        self._check_unfreed(ctx, there)
        return there

    def _check_unfreed(self, ctx: Any, there: Tangents) -> None:
        if ctx.freed and meet(self._met(), there, ctx.freed):
            raise RuntimeError(FREED)

    def _let_go(self, ctx: Any, there: Tangents) -> None:
        """Free what the call holds, unless the graph is retained, but for what eager would still hold.

        What saved nothing may be differentiated any number of times.
        """
        if _is_retained():
            return
        if len(there) < len(self.crossing.differentiable):
            freed = there | ctx.freed
            left = self._left_after(freed)
            if left is not None:
                own = self.crossing.returned
                read = partial(read_saved, ctx, returned=own) if ctx.held is None else ctx.held.read
                ctx.freed, ctx.held = freed, hold(read, left, own)
                ctx.maybe_clear_saved_tensors()
                return
            ctx.freed, ctx.held = freed, None
        ctx.maybe_clear_saved_tensors()
        if self.crossing.tensors and not self.again.reason:
            ctx.inputs = ()

    def _left_after(self, freed: Tangents) -> frozenset[int] | None:
        """Positions of what is saved that eager could still read when gradients of ``freed`` have flown; None where it would complain of all."""
        with self._lock:
            if freed not in self._left:
                count = len(self.crossing.differentiable)
                still = frozenset(n for n in range(count) if not meet(self._met(), frozenset((n,)), freed))
                self._left[freed] = self._read_by(still) if still else None
            return self._left[freed]

    def _read_by(self, tangents: Tangents) -> frozenset[int]:
        """Positions of what is saved that gradients of these tangents may need, all of them or one by one."""
        read: set[int] = set()
        for some in (tangents, *(frozenset((n,)) for n in tangents)):
            graph = self._without(some)
            if graph is None:
                return frozenset(range(self.crossing.tensors))
            saved = [n for n in graph.graph.nodes if n.op == "placeholder"][: self.crossing.tensors]
            read.update(k for k, n in enumerate(saved) if n.users)
        return frozenset(read)

    def _met(self) -> frozenset[Tangents]:
        if self._meetings is None:
            self._meetings = meetings(self.graph, self.crossing.tensors, self.crossing.tangents)
        return self._meetings

    def _compiled(self) -> Run:
        with self._lock:
            if self._whole is None:
                # The session that records, and whatever else was current when the forward was compiled.
                self._whole = self._context.copy().run(_undisturbed, self.compile, self.graph)
            return self._whole

    def _foreign(self) -> Run:
        with self._lock:
            if self._interpreted is None:
                self._interpreted = self.interpret(self.graph)
            return self._interpreted

    def _variant(self, there: Tangents, *, is_foreign: bool) -> _Variant:
        with self._lock:
            if (there, is_foreign) not in self._variants:
                self._variants[there, is_foreign] = self._thinned(there, is_foreign=is_foreign)
            return self._variants[there, is_foreign]

    def _thinned(self, there: Tangents, *, is_foreign: bool) -> _Variant:
        graph = self._without(there)
        if graph is None:
            whole = self._foreign() if is_foreign else self._whole or self._compiled()
            return _Variant(whole, True, absent_gradients(self.graph, self._called(there)))
        saved = [n for n in graph.graph.nodes if n.op == "placeholder"][: self.crossing.tensors + self.crossing.numbers]
        read = frozenset(k for k, n in enumerate(saved) if n.users)
        for node in saved:
            if not node.users:
                graph.graph.erase_node(node)
        graph.recompile()
        made = self.interpret if is_foreign else self.compile
        return _Variant(self._context.copy().run(_undisturbed, made, graph), False, read=read)

    def _without(self, there: Tangents) -> torch.fx.GraphModule | None:
        """The graph for these tangents alone; None where zeros must stand for the others."""
        names = self.crossing.tangents
        try:
            made: torch.fx.GraphModule = without_tangents(self.graph, set(names) - self._called(there), names)
        except NotSeparable:
            return None
        return made

    def _called(self, there: Tangents) -> set[str]:
        return {self.crossing.tangents[n] for n in there}

    def _filled(self, tangents: Sequence[Any], wanted: Sequence[Layout]) -> list[Any]:
        fakes = {n.name: n.meta["val"] for n in self.graph.graph.nodes if n.name in self.crossing.tangents}
        filled = []
        for name, tangent, (size, _) in zip(self.crossing.tangents, tangents, wanted, strict=True):
            like = fakes[name]
            zeros = tangent is None
            filled.append(torch.zeros(size, dtype=like.dtype, device=like.device) if zeros else tangent)
        return filled


def _with_nothing(module: torch.fx.GraphModule, defined: set[str]) -> torch.fx.GraphModule:
    """A copy that gives None for gradients that nothing flows to."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    output = next(iter(reversed(graph.nodes)))
    pairs = zip(output.args[0], absent_gradients(module, defined), strict=True)
    output.args = (tuple(None if nothing else g for g, nothing in pairs),)
    return torch.fx.GraphModule(module, graph)


def laid_out(tangent: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A tangent with the strides that the backward was traced with; where only strides of single elements differ, itself."""
    if all(n == 1 or a == b for n, a, b in zip(size, tangent.stride(), stride, strict=True)):
        return tangent
    made = torch.empty_strided(size, stride, dtype=tangent.dtype, device=tangent.device)
    return made.copy_(tangent)


def _alive(inputs: Sequence[Any]) -> list[Any]:
    """The inputs of a call.

    Raises:
        NotAgain: one is gone.
    """
    found: list[Any] = []
    for held in inputs:
        if not isinstance(held, weakref.ref):
            found.append(held)
            continue
        value: Any = held()
        if value is None:
            raise NotAgain("an input is not in memory any more, as nobody holds it: keep it until then")
        value._fix_weakref()  # autograd may have kept what Python let go of
        found.append(value)
    return found


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _undisturbed(compile: Compile, graph: torch.fx.GraphModule) -> Run:
    """Compile without gradients and without autocast, whatever the thread that runs the backward has on."""
    with torch.no_grad(), torch._C._DisableAutocast():
        return compile(graph)
