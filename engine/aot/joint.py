"""Traces a graph together with its backward: one functional graph from inputs and tangents to results and gradients.

The idea of tracing autograd's own backward over functional fake tensors is torch's (AOTAutograd's joint graph).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    get_proxy_slot,
    track_tensor_tree,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from engine.aot.absence import following, is_users, minds_absence
from engine.aot.analyse import is_mutating, is_reshaped
from engine.aot.functionalize import Interpreter, Tracing, fake_mode_of, labelled, trace, unwrap
from engine.aot.views import NotFunctional
from engine.graph.passes.drop_aliases import drop_aliases
from engine.graph.passes.drop_dead import drop_dead
from engine.graph.passes.watch import PASSES, Watch
from engine.graph.rules import FUNCTIONAL, check
from engine.graph.tokens import hand_tokens
from engine.ir.frame import GraphInput
from engine.ir.graph import BACKWARD, NodeOrigin, origin_of, set_origin
from engine.ir.plan import Plan


@dataclass(frozen=True)
class Joint:
    """The joint graph: placeholders are the inputs, then one tangent for each position in ``differentiable``.

    It returns ``plan.results`` results, then one gradient for each position in ``needing`` (None: nothing flows there).
    """

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    plan: Plan
    differentiable: tuple[int, ...]
    """Positions of results that gradients flow back from."""
    needing: tuple[int, ...]
    """Positions of inputs that gradients flow to."""
    whole: tuple[tuple[Any, int], ...] = ()
    """The traced fake values that results hold, each with the position of its result."""


def trace_joint(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput], compilation: str) -> Joint:
    """Trace ``graph`` and its backward to functional ATen, in the grad mode of the caller. Symbolic sizes stay symbolic.

    Raises:
        NotFunctional: see ``functionalize``; or gradients would flow otherwise than in eager.
        IllegalGraph: the outcome would break a rule.
    """
    changed = next((i.name for i in inputs if isinstance(i.fake, torch.Tensor) and is_reshaped(i.fake, i.real)), None)
    if changed is not None:
        raise NotFunctional(f"the shape or layout of {changed} is changed in place, and gradients are needed")
    if not torch.is_grad_enabled():
        raise NotFunctional("gradients are switched on inside of a call without them")
    tracing = _Differentiating(labelled(graph, compilation), inputs, fake_mode_of(graph, inputs))
    with torch.autograd.set_multithreading_enabled(False):
        module, fakes, plan = trace(tracing, graph, inputs)
    _tangents_first(module, len(inputs))
    watch = Watch(module)
    with watch.watching("drop_aliases"):
        drop_aliases(module)
    with watch.watching("drop_dead"):
        drop_dead(module)
    module.meta[PASSES] = (*module.meta.get(PASSES, ()), *watch.records)
    module.recompile()
    check(module, FUNCTIONAL, f"joint graph of {compilation}")
    if any(n.target is torch.ops.aten.mkldnn_rnn_layer.default for n in module.graph.nodes):
        # Over fake tensors it gives no workspace, which its backward reads.
        raise NotFunctional("a recurrent layer under autocast has no backward apart from eager's")
    for i in (plan.inputs[n] for n in tracing.needing):
        if i.writes and not i.written:
            # Eager forbids this to leaves: with no data to copy back, nothing else would raise.
            raise NotFunctional(f"{i.name}, which requires grad, is changed in place, though not its data")
    return Joint(module, fakes, plan, tracing.differentiable, tracing.needing, tracing.whole)


class _Seen(torch.autograd.Function):
    """An input as the graph is given it: no leaf any more, so that it may be written to in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return grads[0]


def _writes_to_list(node: torch.fx.Node) -> bool:
    """Whether an operator writes to each tensor of its first argument, a list."""
    return (
        node.op == "call_function"
        and getattr(node.target, "__name__", "").startswith("_foreach_")
        and is_mutating(node)
    )


class _Watching(Interpreter):
    """Notes which numbers autograd gave to what each node did, to know a backward operator's node again."""

    differentiates = True

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph)
        self.numbers: list[int] = []
        self.origins: list[NodeOrigin] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        self.numbers.append(torch._C._autograd._get_sequence_nr())
        self.origins.append(origin_of(n))
        listed = self.fetch_args_kwargs_from_env(n)[0][0] if _writes_to_list(n) else ()
        known = [t._version for t in listed]
        made = super().run_node(n)
        # Functional tensors in lists are written to without being counted, and autograd would not know that what it saved has changed.
        if uncounted := [t for t, v in zip(listed, known, strict=True) if t._version == v]:
            torch.autograd.graph.increment_version(uncounted)
        return made

    def origin(self, number: int) -> NodeOrigin | None:
        """The origin of the node during whose run autograd gave out this number."""
        position = bisect.bisect_right(self.numbers, number) - 1
        return self.origins[position] if position >= 0 else None


class _Differentiating(Tracing):
    """One run of the graph over functional tensors under autograd, then of its backward."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: Sequence[GraphInput], mode: Any) -> None:
        super().__init__(graph, inputs)
        self._mode = mode
        self._mutates = any(map(is_mutating, graph.graph.nodes))
        self._watching = _Watching(graph)
        self.differentiable: tuple[int, ...] = ()
        self.needing = tuple(
            n for n, i in enumerate(inputs) if isinstance(i.real, torch.Tensor) and i.real.requires_grad
        )

    def interpreter(self) -> Interpreter:
        return self._watching

    def given(self, originals: list[Any]) -> list[Any]:
        given = list(originals)
        for n in self.needing:
            originals[n].requires_grad_(True)
            if self._mutates:
                given[n] = _Seen.apply(originals[n])  # type: ignore[no-untyped-call]
        self._histories = {n: given[n].grad_fn for n in self.needing}
        self._given = given
        return given

    def run(self, *args: Any) -> tuple[Any, ...]:
        grad = torch.is_grad_enabled()
        results, sources, originals = self.results(args)
        torch._C._set_grad_enabled(grad)
        self.hidden = frozenset(n for n in self._written if n in self._histories and self._is_unseen(n))
        assert self._outputs is not None
        hidden = {self._written[n] for n in self.hidden} | self._outputs.detached
        self.differentiable = tuple(
            k for k, s in enumerate(sources) if isinstance(s, torch.Tensor) and s.requires_grad and k not in hidden
        )
        self._check_outputs()
        if not self.differentiable:
            return results
        if name := minds_absence([sources[k] for k in self.differentiable]):
            raise NotFunctional(
                f"the backward of {name} is told which of its results a gradient comes back to, and calls may differ in that"
            )
        watched = [*zip((i.name for i in self._inputs), self._given, strict=True), *(("a result", s) for s in sources)]
        before = [_state_of(value) for _, value in watched]
        gradients = self._gradients(results, sources, [originals[n] for n in self.needing])
        for (name, value), was in zip(watched, before, strict=True):
            if not _is_as_it_was(value, was):
                raise NotFunctional(f"{name} is changed in place by a backward of the user's own")
        return (*results, *gradients)

    @property
    def whole(self) -> tuple[tuple[Any, int], ...]:
        """See ``Joint.whole``."""
        assert self._outputs is not None
        return tuple(self._outputs.whole)

    def _is_unseen(self, position: int) -> bool:
        return self._given[position].grad_fn is self._histories[position]

    def _check_outputs(self) -> None:
        """Results need gradients exactly where eager's do: the traced fake values tell."""
        assert self._outputs is not None
        for fake, position in self._outputs.whole:
            needs = fake.requires_grad and position not in self._outputs.detached
            if needs != (position in self.differentiable):
                raise NotFunctional("an output would need a gradient where eager's needs none, or the other way round")

    def _gradients(self, results: Sequence[Any], sources: Sequence[Any], leaves: list[Any]) -> list[Any]:
        needed = [sources[k] for k in self.differentiable]
        tangents = [self._tangent(n, results[k]) for n, k in enumerate(self.differentiable)]
        marks = _Marks(self._watching.origin)
        hooks = list(marks.hook(needed))
        try:
            with FunctionalTensorMode() as mode, torch._C._DisableAutocast(), torch.no_grad():
                hand_tokens(mode)
                functional = [FunctionalTensor.to_functional(t) for t in tangents]
                given = [_state_of(t) for t in functional]
                found = torch.autograd.grad(needed, leaves, functional, allow_unused=True)
                names = [self._inputs[n].name for n in self.needing]
                marks.finish(dict(zip(names, found, strict=True)))
                if not all(map(_is_as_it_was, functional, given)):
                    raise NotFunctional(
                        "a gradient that the caller may hold is changed in place by a backward of the user's own"
                    )
        finally:
            marks.mark(None)
            for hook in hooks:
                hook.remove()
        if marks.looks_at:
            raise NotFunctional(f"the backward of {marks.looks_at} looks at its gradients, and may refuse them")
        if len(tangents) > 1:
            self._check_flowing(tangents, marks.by_users)
        return [self._gradient(n, g) for n, g in zip(self.needing, found, strict=True)]

    def _check_flowing(self, tangents: Sequence[torch.Tensor], by_users: Sequence[tuple[str, Any]]) -> None:
        """What a function of the user's gives whatever it is given must be missing where autograd does not call it, which the graph would not tell."""
        if not by_users:
            return
        proxies = get_proxy_mode()
        assert proxies is not None
        late = following(proxies.tracer.graph, [n for t in tangents if (n := _node_of(t)) is not None])
        for name, gradient in by_users:
            if _node_of(unwrap(gradient)) not in late:
                raise NotFunctional(
                    f"the backward of {name} gives a gradient that does not depend on what it is given, and calls may not need it"
                )

    def _gradient(self, position: int, gradient: Any) -> Any:
        if isinstance(gradient, FunctionalTensor):
            return unwrap(gradient)
        if is_traceable_wrapper_subclass(gradient):
            name = self._inputs[position].name
            raise NotFunctional(f"the gradient of {name}, a plain tensor, would be a {type(gradient).__name__}")
        return gradient

    def _tangent(self, number: int, result: torch.Tensor) -> torch.Tensor:
        """A new input of the graph, laid out as the result is."""
        proxies = get_proxy_mode()
        assert proxies is not None
        with disable_proxy_modes_tracing(), self._mode:
            if is_non_overlapping_and_dense_or_false(result):
                tangent = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=result.device)
            else:
                tangent = torch.empty(result.shape, dtype=result.dtype, device=result.device)
        proxy = proxies.tracer.create_proxy("placeholder", f"tangent_{number}", (), {})
        set_origin(proxy.node, NodeOrigin(note="the gradient that comes back to a result"))
        track_tensor_tree(tangent, proxy, constant=None, tracer=proxies.tracer)
        return tangent


def _state_of(value: Any) -> tuple[Any, list[str]] | None:
    """What changes with a functional tensor when it is written to, or given another layout, in place."""
    if not isinstance(value, FunctionalTensor):
        return None
    return unwrap(value), [str(n) for n in (*value.shape, *value.stride())]


def _is_as_it_was(value: Any, was: tuple[Any, list[str]] | None) -> bool:
    now = _state_of(value)
    return was is None or now is None or (was[0] is now[0] and was[1] == now[1])


def _node_of(value: torch.Tensor) -> torch.fx.Node | None:
    """What computes a tensor in the graph that is being traced; None for a constant."""
    proxies = get_proxy_mode()
    assert proxies is not None
    slot: Any = get_proxy_slot(value, proxies.tracer, None)
    node: torch.fx.Node | None = None if slot is None else slot.proxy.node
    return node


_OF_PHASES = {"LinalgEigBackward0": "linalg.eig", "LinalgEighBackward0": "linalg.eigh"}
"""Nodes of autograd that check whether a loss depends on the phase of complex vectors, their second result. Over fake tensors none does."""


class _Marks:
    """Marks nodes traced while autograd runs as the backward's, and gives them the origin of the forward node that they belong to."""

    def __init__(self, origin: Callable[[int], NodeOrigin | None]) -> None:
        self._origin = origin
        proxies = get_proxy_mode()
        assert proxies is not None
        self._graph = proxies.tracer.graph
        self._last = self._graph._root._prev
        self._sums: set[torch.fx.Node] = set()
        """Sums of gradients whose reader has not run yet."""
        self.by_users: list[tuple[str, Any]] = []
        """What functions of the user's own gave, each with the function's name."""
        self.looks_at = ""
        """An operator whose backward raises for some values of the gradients that come to it."""

    def hook(self, outputs: Sequence[torch.Tensor]) -> Iterator[Any]:
        """Hooks on every autograd node behind ``outputs``."""
        todo: list[Any] = [o.grad_fn for o in outputs]
        known = set()
        while todo:
            node = todo.pop()
            if node is None or node in known:
                continue
            known.add(node)
            todo += [n for n, _ in node.next_functions]
            if "AccumulateGrad" in node.name():
                continue
            origin = self._origin(node._sequence_nr())
            sums = None if origin is None else replace(origin, note="gradients that meet here are summed")
            yield node.register_prehook(lambda grads, origin=sums: self._mark_sums(grads, origin))
            yield node.register_hook(lambda grads, given, origin=origin: self.mark(origin))
            if (named := _OF_PHASES.get(node.name())) is not None:
                yield node.register_prehook(lambda grads, name=named: self._note_phase(name, grads))
            if is_users(node):
                name = type(node).__name__.removesuffix("Backward")
                yield node.register_hook(lambda grads, given, name=name: self._note(name, grads))

    def _note_phase(self, name: str, gradients: Sequence[Any]) -> None:
        if gradients[1] is not None and gradients[1].is_complex():
            self.looks_at = name

    def _note(self, name: str, gradients: Sequence[Any]) -> None:
        self.by_users += [(name, g) for g in gradients if isinstance(g, FunctionalTensor)]

    def mark(self, origin: NodeOrigin | None) -> None:
        """Mark what was traced since the last marking."""
        for node in self._new():
            if origin is not None:
                set_origin(node, origin)

    def _new(self) -> list[torch.fx.Node]:
        """What was traced since this was last asked, marked as the backward's."""
        node = end = self._graph._root._prev
        found = []
        while node is not self._last:
            node.meta["custom"] = {**node.meta.get("custom", {}), BACKWARD: True}
            found.append(node)
            node = node._prev
        self._last = end
        return found

    def _mark_sums(self, gradients: Sequence[Any], origin: NodeOrigin | None) -> None:
        """Mark the sums that these gradients are; others that were made meanwhile meet elsewhere, and wait."""
        self._sums.update(self._new())
        for gradient in gradients:
            self._mark_sum(gradient, origin)

    def _mark_sum(self, gradient: Any, origin: NodeOrigin | None) -> None:
        if not self._sums or not isinstance(gradient, FunctionalTensor):
            return
        todo = [_node_of(torch._from_functional_tensor(gradient.elem))]
        while todo:
            node = todo.pop()
            if node is not None and node in self._sums:
                self._sums.remove(node)
                todo += node.all_input_nodes
                if origin is not None:
                    set_origin(node, origin)

    def finish(self, gradients: Mapping[str, Any]) -> None:
        """Mark what is left, given the gradients of the inputs by name."""
        self._sums.update(self._new())
        for name, gradient in gradients.items():
            self._mark_sum(gradient, NodeOrigin(note=f"the gradients of {name} are summed"))


def _tangents_first(module: torch.fx.GraphModule, inputs: int) -> None:
    """Move the placeholders of tangents up to the inputs."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for last, node in zip(placeholders[inputs - 1 :], placeholders[inputs:], strict=False):
        if inputs:
            last.append(node)
