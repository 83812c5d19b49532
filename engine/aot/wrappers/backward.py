"""The backward half of a compiled call: compiled when it is first needed, and again for calls in which some gradients are absent."""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.fx
from torch.autograd.function import BackwardCFunction

from engine.aot.second_time import FREED, UNPACKS_ONE, Tangents, hold, meet, meetings, read_saved
from engine.aot.undefined import NotSeparable, absent_gradients, without_tangents
from engine.aot.wrappers.again import Again, NotAgain
from engine.aot.wrappers.crossing import Crossing, Layout
from engine.aot.wrappers.probe import Mark, Probe
from engine.aot.wrappers.unreached import keep_quiet

Run = Callable[..., Any]
Compile = Callable[[torch.fx.GraphModule], Run]

_ONLY: Tangents = frozenset((0,))
_is_batched: Callable[[torch.Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
_is_retained: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph

_TWICE = (
    "engine.compile cannot differentiate the gradient of this compiled graph once more: {}. "
    "Compile with backend='eager', or leave this part uncompiled (engine.disable)."
)


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
class Noting:
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
    """The same, for tangents that compiled code does not know."""
    again: Again
    """For gradients that are to be differentiated themselves."""
    noted: Noting | None = None
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
        there = self._there(ctx, tangents) if self.crossing.is_watched else _ONLY
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
            elif _is_foreign(tangent):
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
        inputs: Sequence[Any] = () if variant is None else ctx.inputs
        self._let_go(ctx, there)
        if torch._C._is_any_autocast_enabled():
            with torch._C._DisableAutocast():
                found: Sequence[Any] = run(values)
        else:
            found = run(values)
        if variant is None:
            return found
        if variant.nothing:
            found = [None if nothing else g for g, nothing in zip(found, variant.nothing, strict=True)]
        if _is_node(ctx):
            keep_quiet(self._unreached(inputs, found))
        return found

    def unreached(self, ctx: Any) -> None:
        """A backward that brings nothing: eager's nodes would not run, and would go on holding what they saved."""
        if not _is_node(ctx):
            return
        keep_quiet(self._unreached(getattr(ctx, "inputs", ()), [None] * len(self.crossing.needing)))
        if self.crossing.tensors and not _is_retained():  # autograd frees what the node saved
            is_used = self.crossing.is_watched and ctx.freed
            self._hold(ctx, self._left_after(ctx.freed) if is_used else range(self.crossing.tensors))

    def held(self, ctx: Any) -> Sequence[torch.Tensor]:
        """The saved tensors of a call that a backward came by without bringing anything."""
        return [ctx.held.read(n) for n in range(self.crossing.tensors)]

    def _hold(self, ctx: Any, left: Collection[int] | None) -> None:
        """Keep what of the saved tensors is ``left``, when autograd lets go of all; None for nothing."""
        own = self.crossing.returned
        read = partial(read_saved, ctx, returned=own) if ctx.held is None else ctx.held.read
        ctx.held = None if left is None else hold(read, left, own)

    def _unreached(self, inputs: Sequence[Any], gradients: Sequence[Any]) -> Iterator[torch.Tensor]:
        for n, gradient in zip(self.crossing.needing, gradients, strict=True):
            held = inputs[n] if gradient is None and inputs else None
            value = held() if isinstance(held, weakref.ref) else held
            if isinstance(value, torch.Tensor):
                yield value

    def interpreted(self) -> Backward:
        """The same through ATen, with nothing compiled yet."""
        return Backward(self.graph, self.crossing, self.interpret, self.interpret, self.again)

    def read(self, ctx: Any, tangents: Sequence[Any]) -> Sequence[Any]:
        """The saved tensors for a call in which some tangents are absent; None for those that the others do not need.

        As in eager, those may have been written to since.
        """
        if _is_node(ctx):
            there = self._there(ctx, tangents)
            is_foreign = any(t is not None and _is_foreign(t) for t in tangents)
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
            why = _TWICE.format(error)
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
        if self.crossing.is_watched:
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

        Where eager's saves nothing either, it may be differentiated any number of times.
        """
        if _is_retained():
            return
        if self.crossing.is_watched:
            ctx.freed |= there
            left = self._left_after(ctx.freed) if len(there) < len(self.crossing.differentiable) else None
            self._hold(ctx, left)
            if left is not None:
                ctx.maybe_clear_saved_tensors()
                return
        ctx.maybe_clear_saved_tensors()
        if self.crossing.tensors:
            ctx.held, ctx.inputs = None, ()

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


def _is_foreign(tangent: torch.Tensor) -> bool:
    """Whether compiled code does not know such a tangent: a subclass, a sparse one, or many in one (``is_grads_batched``)."""
    return type(tangent) is not torch.Tensor or tangent.layout is not torch.strided or _is_batched(tangent)


def _is_node(ctx: Any) -> bool:
    """Whether autograd runs the node: a captured backward shows something else instead, with saved tensors of its own."""
    return issubclass(type(ctx), BackwardCFunction)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _undisturbed(compile: Compile, graph: torch.fx.GraphModule) -> Run:
    """Compile without gradients and without autocast, whatever the thread that runs the backward has on."""
    with torch.no_grad(), torch._C._DisableAutocast():
        return compile(graph)
