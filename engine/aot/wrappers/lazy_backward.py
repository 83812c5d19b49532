"""Backward of a compiled call: compiled lazily, with variants for undefined tangents."""

from __future__ import annotations

import contextvars
import math
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.fx
from torch.autograd.function import BackwardCFunction

from engine.aot.autograd_function_metadata import AutogradMetadata, TangentLayout
from engine.aot.fallback_kinds import AotFallback
from engine.aot.gradients.undefined_tangents import specialize_to_defined_tangents, undefined_gradients
from engine.aot.saved_tensors import (
    ALREADY_FREED_MESSAGE,
    CAN_UNPACK_SINGLE,
    TangentSet,
    retain_tensors,
    share_saved_values,
    tangent_dependencies,
    unpack_saved_tensor,
)
from engine.aot.wrappers.double_backward import EagerRerun
from engine.aot.wrappers.undefined_grad_hooks import suppress_undefined_grad_hooks
from engine.aot.wrappers.value_probe import Describe, ProbedCall, ValueProbe
from engine.interrupts.deferred_interrupts import defer_interrupts
from engine.ir.aot.aot_graph import KERNEL_GAIN_ATTR
from engine.ir.fallback import FallbackRequired
from engine.ir.graph_callable import Run
from engine.ir.graph_sources import limit_graph_sources
from engine.ir.node_values import is_scalar
from engine.process_state import make_rlock
from engine.torch_private.autograd import (
    DelayedError,
    DisableAutocast,
    get_current_graph_task_keep_graph,
    is_any_autocast_enabled,
)
from engine.torch_private.functorch import is_legacy_batchedtensor

Compile = Callable[[torch.fx.GraphModule], Run]

NODE_SECONDS = 40e-6
"""Time of a call of an ``autograd.Function`` and its backward, beyond that of the graphs."""

_EAGER_CALLS = (
    "After the first backward, calls run in ATen under eager autograd: kernels gain about {:.0f} µs a call, "
    "and the autograd node of compiled code costs about {:.0f} µs."
)

_SINGLE_TANGENT: TangentSet = frozenset((0,))
_is_batched: Callable[[torch.Tensor], bool] = is_legacy_batchedtensor
_retains_graph: Callable[[], bool] = get_current_graph_task_keep_graph

_DOUBLE_BACKWARD_MESSAGE = (
    "engine.compile cannot compute a second derivative through this compiled graph: {}. "
    "Compile with backend='eager', or leave this part uncompiled (engine.disable)."
)


@dataclass(frozen=True)
class _TangentVariant:
    """Backward for calls in which some tangents are undefined."""

    run: Run
    fills_zeros: bool
    """True if ``run`` takes zeros for undefined tangents; else it takes only defined ones."""
    undefined_grads: tuple[bool, ...] = ()
    """True for each gradient that is undefined, if ``run`` takes zero-filled tangents."""
    saved_used: frozenset[int] | None = None
    """Positions of the saved values that ``run`` reads and is called with; None for all."""


@dataclass(frozen=True)
class BackwardProbe:
    """Probe that records the values of a backward, and the names of its gradients."""

    probe: ValueProbe
    gradients: tuple[str, ...]

    def wrap(self, mark: ProbedCall, run: Run, names: Sequence[str], describe: Describe | None) -> Run:
        """Wrap ``run`` to record its values; ``names`` are those of its inputs."""
        return lambda values: self.probe.run_backward(mark, run, names, self.gradients, values, describe)


@dataclass
class LazyBackward:
    """Backward of one compiled graph, compiled at its first call in the forward's context.

    It is called with the autograd node, the saved values, and a tangent or None per differentiable result. It returns
    the gradients.
    """

    graph: torch.fx.GraphModule
    metadata: AutogradMetadata
    compile: Compile
    """Compiles a backward graph to ``run(values) -> tuple``; ``run`` empties its list."""
    compile_to_aten: Compile
    """Compiles it to ATen instead, for tangents that compiled code does not support."""
    rerun: EagerRerun
    """Eager rerun, for gradients that must be differentiable themselves."""
    probe: BackwardProbe | None = None
    describe: Describe | None = None
    """Returns statistics of each node of ``graph`` for given input values."""
    forward_gain: float | None = None
    """Seconds that the forward's kernels gain; None if the traced graph must not run."""
    record_eager_calls: Callable[[str], None] | None = None
    """Records in one sentence why later calls run under eager autograd."""
    runs_as_traced: bool = False
    """Later calls run under eager autograd: kernels gain less than this node costs."""
    _context: contextvars.Context = field(default_factory=contextvars.copy_context)
    _lock: threading.RLock = field(default_factory=make_rlock)
    _all_defined: Run | None = None
    _all_defined_aten: Run | None = None
    _variants: dict[tuple[TangentSet, bool], _TangentVariant] = field(default_factory=dict)
    _dependencies: frozenset[TangentSet] | None = None
    _still_needed: dict[TangentSet, frozenset[int] | None] = field(default_factory=dict)
    """Saved tensors still needed, by the set of tangents whose backward ran; None if none are."""

    def __call__(
        self, ctx: Any, values: list[Any], tangents: list[Any], layouts: Sequence[TangentLayout]
    ) -> Sequence[Any]:
        """Return the gradients of the inputs that require grad, in their order.

        Saved tensors are freed unless the graph is retained.
        """
        defined = self._defined_tangents(ctx, tangents) if self.metadata.tracks_freed_tangents else _SINGLE_TANGENT
        if torch.is_grad_enabled():
            return self._double_backward(ctx, values, tangents, layouts, defined)
        layouts_needed: Sequence[Any] = self.metadata.tangent_layouts
        if layouts:
            free = iter(layouts)
            layouts_needed = [static or next(free) for static in layouts_needed]
        is_absent = is_foreign = False
        for n, (size, stride) in enumerate(layouts_needed):
            tangent = tangents[n]
            if tangent is None:
                is_absent = True
            elif _is_unsupported_tangent(tangent):
                is_foreign = True
            elif tangent.stride() != stride or tangent.is_conj() or tangent.is_neg():
                tangents[n] = match_tangent_layout(tangent.resolve_conj().resolve_neg(), size, stride)
        variant = self._variant(defined, is_foreign=is_foreign) if is_absent else None
        names = () if self.probe is None else self._value_names(tangents, variant)
        if variant is None:
            run = self._compile_all_defined_aten() if is_foreign else self._all_defined or self._compile_all_defined()
        else:
            run = variant.run
            if variant.saved_used is not None:
                values[:] = [v for n, v in enumerate(values) if n in variant.saved_used]
            tangents[:] = (
                self._fill_zeros(tangents, layouts_needed)
                if variant.fills_zeros
                else [t for t in tangents if t is not None]
            )
        if self.probe is not None and ctx.mark is not None:
            run = self.probe.wrap(ctx.mark, run, names, self.describe if variant is None else None)
        values += tangents
        tangents.clear()
        inputs: Sequence[Any] = () if variant is None else ctx.inputs
        self._release_saved(ctx, defined)
        if is_any_autocast_enabled():
            with DisableAutocast():
                gradients: Sequence[Any] = run(values)
        else:
            gradients = run(values)
        if variant is None:
            return gradients
        if variant.undefined_grads:
            gradients = [None if nothing else g for g, nothing in zip(gradients, variant.undefined_grads, strict=True)]
        if _is_autograd_node(ctx):
            suppress_undefined_grad_hooks(self._inputs_without_grad(inputs, gradients))
        return gradients

    def on_all_undefined(self, ctx: Any) -> None:
        """Handle a backward without any defined tangent.

        In eager mode no node runs then, and all nodes keep their saved tensors.
        """
        if not _is_autograd_node(ctx):
            return
        suppress_undefined_grad_hooks(
            self._inputs_without_grad(getattr(ctx, "inputs", ()), [None] * len(self.metadata.grad_inputs))
        )
        if self.metadata.num_saved_tensors and not _retains_graph():  # autograd frees what the node saved
            is_used = self.metadata.tracks_freed_tangents and ctx.freed
            self._retain(
                ctx, self._saved_needed_after(ctx.freed) if is_used else range(self.metadata.num_saved_tensors)
            )

    def unpack_retained(self, ctx: Any) -> Sequence[torch.Tensor]:
        """Return the saved tensors that were retained by a backward without defined tangents."""
        return [ctx.held.unpack(n) for n in range(self.metadata.num_saved_tensors)]

    def _retain(self, ctx: Any, needed_after: Collection[int] | None) -> None:
        """Retain the saved tensors at positions ``needed_after``. None: no tensor."""
        own = self.metadata.saved_results
        read = partial(unpack_saved_tensor, ctx, returned=own) if ctx.held is None else ctx.held.unpack
        ctx.held = None if needed_after is None else retain_tensors(read, needed_after, own)

    def _inputs_without_grad(self, inputs: Sequence[Any], gradients: Sequence[Any]) -> Iterator[torch.Tensor]:
        for n, gradient in zip(self.metadata.grad_inputs, gradients, strict=True):
            held = inputs[n] if gradient is None and inputs else None
            value = held() if isinstance(held, weakref.ref) else held
            if isinstance(value, torch.Tensor):
                yield value

    def through_aten(self) -> LazyBackward:
        """Return an equivalent backward that runs through ATen; nothing is compiled yet."""
        return LazyBackward(self.graph, self.metadata, self.compile_to_aten, self.compile_to_aten, self.rerun)

    def unpack_saved(self, ctx: Any, tangents: Sequence[Any]) -> Sequence[Any]:
        """Return the saved tensors if some tangents are undefined; None for those not needed.

        As in eager, tensors that are not needed may have been mutated since.
        """
        if _is_autograd_node(ctx):
            defined = self._defined_tangents(ctx, tangents)
            is_foreign = any(t is not None and _is_unsupported_tangent(t) for t in tangents)
            if ctx.held is not None:
                read = self._variant(defined, is_foreign=is_foreign).saved_used
                return [
                    ctx.held.unpack(n) if read is None or n in read else None
                    for n in range(self.metadata.num_saved_tensors)
                ]
            if CAN_UNPACK_SINGLE and not is_foreign:
                used = self._variant(defined, is_foreign=False).saved_used
                if used is not None and not (used & self.metadata.saved_results):
                    return [
                        unpack_saved_tensor(ctx, n) if n in used else None
                        for n in range(self.metadata.num_saved_tensors)
                    ]
        saved: Sequence[Any] = ctx.saved_tensors
        return saved

    def _value_names(self, tangents: Sequence[Any], variant: _TangentVariant | None) -> Sequence[str]:
        """Return names of the graph's inputs, without undefined tangents that are not zero-filled."""
        names = [n.name for n in self.graph.graph.nodes if n.op == "placeholder"]
        if variant is None or variant.fills_zeros:
            return names
        absent = {n for n, t in zip(self.metadata.tangent_names, tangents, strict=True) if t is None}
        saved = self.metadata.num_saved_tensors + self.metadata.num_saved_scalars
        unused = {
            n for k, n in enumerate(names[:saved]) if variant.saved_used is not None and k not in variant.saved_used
        }
        return [n for n in names if n not in absent and n not in unused]

    def _double_backward(
        self, ctx: Any, values: list[Any], tangents: list[Any], layouts: Sequence[TangentLayout], defined: TangentSet
    ) -> Sequence[Any]:
        """Return gradients under ``create_graph``.

        If the call cannot be rerun, the gradients raise when they are differentiated.
        """
        try:
            if self.rerun.why_unsupported:
                raise FallbackRequired(AotFallback.DOUBLE_BACKWARD_OF_MUTATED_INPUT, self.rerun.why_unsupported)
            random = ctx.random if self.rerun.rng_devices else ()
            gradients = self.rerun.gradients(_live_inputs(ctx.inputs), ctx.versions, random, tangents)
        except FallbackRequired as error:
            message = _DOUBLE_BACKWARD_MESSAGE.format(error)
        else:
            self._release_saved(ctx, defined)
            return gradients
        with torch.no_grad():
            gradients_again = self(ctx, [_detached(v) for v in values], [_detached(t) for t in tangents], layouts)
        tensors = [g.detach().requires_grad_() for g in gradients_again if g is not None]
        delayed: Any = DelayedError(message, len(tensors))(*tensors) if tensors else ()
        guarded = iter((delayed,) if isinstance(delayed, torch.Tensor) else delayed)
        return [None if g is None else next(guarded) for g in gradients_again]

    def take_scalars(self, ctx: Any, defined: tuple[int, ...]) -> tuple[Any, ...]:
        """Return saved scalars and symbolic tangent layouts, to inline the graph in another one.

        Releases everything else that the call saved. ``defined`` are the positions of the defined tangents.
        """
        variant_key = frozenset(defined)
        if self.metadata.tracks_freed_tangents:
            self._check_not_freed(ctx, variant_key)
        self._release_saved(ctx, variant_key)
        numbers = list(ctx.numbers) if self.metadata.num_saved_scalars else []
        for size, stride in ctx.layouts if None in self.metadata.tangent_layouts else ():
            numbers += [*size, *stride]
        return tuple(numbers)

    def specialize(self, mask: tuple[bool, ...]) -> tuple[torch.fx.GraphModule, bool]:
        """Return the graph for these defined tangents, and True if it takes zeros for the others."""
        if all(mask):
            return self.graph, False
        defined = frozenset(n for n, is_there in enumerate(mask) if is_there)
        specialized = self._specialized_graph(defined)
        return (
            (specialized, False)
            if specialized is not None
            else (_with_undefined_grads(self.graph, self._tangent_names(defined)), True)
        )

    def _defined_tangents(self, ctx: Any, tangents: Sequence[Any]) -> TangentSet:
        defined = frozenset(n for n, t in enumerate(tangents) if t is not None)
        self._check_not_freed(ctx, defined)
        return defined

    def _check_not_freed(self, ctx: Any, defined: TangentSet) -> None:
        if ctx.freed and share_saved_values(self._tangent_dependencies(), defined, ctx.freed):
            raise RuntimeError(ALREADY_FREED_MESSAGE)

    def _release_saved(self, ctx: Any, defined: TangentSet) -> None:
        """Free the saved values of the call that eager would free, unless the graph is retained.

        A call that saved nothing can be differentiated any number of times, as in eager.
        """
        if _retains_graph():
            return
        if self.metadata.tracks_freed_tangents:
            ctx.freed |= defined
            needed_after = (
                self._saved_needed_after(ctx.freed)
                if len(defined) < len(self.metadata.differentiable_results)
                else None
            )
            self._retain(ctx, needed_after)
            if needed_after is not None:
                ctx.maybe_clear_saved_tensors()
                return
        ctx.maybe_clear_saved_tensors()
        if self.metadata.num_saved_tensors:
            ctx.held, ctx.inputs = None, ()

    def _saved_needed_after(self, freed: TangentSet) -> frozenset[int] | None:
        """Return positions of saved tensors that eager may still read after ``freed`` tangents.

        None if eager would raise for every further tangent.
        """
        with self._lock:
            if freed not in self._still_needed:
                count = len(self.metadata.differentiable_results)
                still = frozenset(
                    n
                    for n in range(count)
                    if not share_saved_values(self._tangent_dependencies(), frozenset((n,)), freed)
                )
                self._still_needed[freed] = self._saved_used_by(still) if still else None
            return self._still_needed[freed]

    def _saved_used_by(self, tangents: TangentSet) -> frozenset[int]:
        """Return positions of saved tensors that a backward of all or one of these tangents reads."""
        read: set[int] = set()
        for some in (tangents, *(frozenset((n,)) for n in tangents)):
            graph = self._specialized_graph(some)
            if graph is None:
                return frozenset(range(self.metadata.num_saved_tensors))
            saved = [n for n in graph.graph.nodes if n.op == "placeholder"][: self.metadata.num_saved_tensors]
            read.update(k for k, n in enumerate(saved) if n.users)
        return frozenset(read)

    def _tangent_dependencies(self) -> frozenset[TangentSet]:
        if self._dependencies is None:
            self._dependencies = tangent_dependencies(
                self.graph, self.metadata.num_saved_tensors, self.metadata.tangent_names
            )
        return self._dependencies

    def _compile_all_defined(self) -> Run:
        with self._lock, defer_interrupts():
            if self._all_defined is None:
                # Restores the recording session, and all other context variables, from when the forward was compiled.
                self._all_defined = self._compile_in_context(self.compile, self.graph)
            return self._all_defined

    def _compile_in_context(self, compile: Compile, graph: torch.fx.GraphModule) -> Run:
        """Compile a graph in the forward's context; the first decides how later calls run."""
        run = self._context.copy().run(_compile_without_modes, compile, graph)
        if self.forward_gain is not None:
            gain = self.forward_gain + getattr(run, KERNEL_GAIN_ATTR, math.inf)
            self.runs_as_traced, self.forward_gain = gain < NODE_SECONDS, None
            if self.runs_as_traced and self.record_eager_calls is not None:
                self.record_eager_calls(_EAGER_CALLS.format(max(gain, 0.0) * 1e6, NODE_SECONDS * 1e6))
        return run

    def _compile_all_defined_aten(self) -> Run:
        with self._lock, defer_interrupts():
            if self._all_defined_aten is None:
                self._all_defined_aten = self.compile_to_aten(self.graph)
            return self._all_defined_aten

    def _variant(self, defined: TangentSet, *, is_foreign: bool) -> _TangentVariant:
        variant = self._variants.get((defined, is_foreign))
        if variant is not None:
            return variant
        with self._lock, defer_interrupts():
            if (defined, is_foreign) not in self._variants:
                self._variants[defined, is_foreign] = self._make_variant(defined, is_foreign=is_foreign)
            return self._variants[defined, is_foreign]

    def _make_variant(self, defined: TangentSet, *, is_foreign: bool) -> _TangentVariant:
        graph = self._specialized_graph(defined)
        if graph is None:
            compiled = (
                self._compile_all_defined_aten() if is_foreign else self._all_defined or self._compile_all_defined()
            )
            return _TangentVariant(compiled, True, undefined_gradients(self.graph, self._tangent_names(defined)))
        saved = [n for n in graph.graph.nodes if n.op == "placeholder"][
            : self.metadata.num_saved_tensors + self.metadata.num_saved_scalars
        ]
        # Saved scalars define symbols of sizes and numbers, also where no node reads them.
        read = frozenset(k for k, n in enumerate(saved) if n.users or is_scalar(n))
        for k, node in enumerate(saved):
            if k not in read:
                graph.graph.erase_node(node)
        graph.recompile()
        compile_graph = self.compile_to_aten if is_foreign else self.compile
        return _TangentVariant(self._compile_in_context(compile_graph, graph), False, saved_used=read)

    def _specialized_graph(self, defined: TangentSet) -> torch.fx.GraphModule | None:
        """Return the graph for these tangents alone; None if the others must be zero-filled."""
        names = self.metadata.tangent_names
        return specialize_to_defined_tangents(self.graph, set(names) - self._tangent_names(defined), names)

    def _tangent_names(self, defined: TangentSet) -> set[str]:
        return {self.metadata.tangent_names[n] for n in defined}

    def _fill_zeros(self, tangents: Sequence[Any], layouts: Sequence[TangentLayout]) -> list[Any]:
        fakes = {n.name: n.meta["val"] for n in self.graph.graph.nodes if n.name in self.metadata.tangent_names}
        filled = []
        for name, tangent, (size, stride) in zip(self.metadata.tangent_names, tangents, layouts, strict=True):
            like = fakes[name]
            filled.append(
                torch.empty_strided(size, stride, dtype=like.dtype, device=like.device).zero_()
                if tangent is None
                else tangent
            )
        return filled


def _with_undefined_grads(module: torch.fx.GraphModule, defined: set[str]) -> torch.fx.GraphModule:
    """Copy a graph; gradients that depend on no defined tangent become None."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    output = next(iter(reversed(graph.nodes)))
    pairs = zip(output.args[0], undefined_gradients(module, defined), strict=True)
    output.args = (tuple(None if nothing else g for g, nothing in pairs),)
    return torch.fx.GraphModule(module, graph)


def match_tangent_layout(tangent: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """Return a tangent with the strides that the backward was traced with.

    Returns the tangent itself if the strides differ only in dimensions of size 1.
    """
    if all(n == 1 or a == b for n, a, b in zip(size, tangent.stride(), stride, strict=True)):
        return tangent
    copy = torch.empty_strided(size, stride, dtype=tangent.dtype, device=tangent.device)
    return copy.copy_(tangent)


def _live_inputs(inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs of a call.

    Raises:
        FallbackRequired: an input has been freed.
    """
    live: list[Any] = []
    for reference in inputs:
        if not isinstance(reference, weakref.ref):
            live.append(reference)
            continue
        value: Any = reference()
        if value is None:
            raise FallbackRequired(
                AotFallback.DOUBLE_BACKWARD_INPUT_FREED, "an input was freed; keep a reference to it until the backward"
            )
        value._fix_weakref()  # autograd may still hold a tensor that Python has released
        live.append(value)
    return live


def _is_unsupported_tangent(tangent: torch.Tensor) -> bool:
    """Return True for tangents that compiled code does not support.

    These are subclasses, sparse tensors and batched tensors (``is_grads_batched``).
    """
    return type(tangent) is not torch.Tensor or tangent.layout is not torch.strided or _is_batched(tangent)


def _is_autograd_node(ctx: Any) -> bool:
    """Return True if autograd runs the node.

    A captured backward passes another object instead, with its own saved tensors.
    """
    return issubclass(type(ctx), BackwardCFunction)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _compile_without_modes(compile: Compile, graph: torch.fx.GraphModule) -> Run:
    """Compile without grad mode and autocast, whatever the backward's thread has enabled."""
    with torch.no_grad(), DisableAutocast(), limit_graph_sources():
        return compile(graph)
