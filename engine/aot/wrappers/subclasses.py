"""Takes tensor subclasses apart before the graph and puts them together after it: the functional graph sees plain tensors only.

Gradients go the same way: autograd nodes around the compiled graph take those of outputs apart, and put those of inputs together.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from engine.aot.analyse import is_reshaped, needs_gradients, output_args
from engine.aot.views import NotFunctional, storage_of, writes_to
from engine.aot.wrappers.again import Again, autocast_now, devices_of
from engine.aot.wrappers.aliases import set_version
from engine.aot.wrappers.bases import counts_of
from engine.aot.wrappers.parts import Born, Gradient, Parts, taken_apart
from engine.aot.wrappers.rewrite import rewritten
from engine.aot.wrappers.wrapper import Call, Change, Run
from engine.ir.frame import GraphInput
from engine.ir.in_graph import InGraph
from engine.ir.origin import Attr
from engine.ir.relation_guard import NoOverlap
from engine.records.aot import WrapperAction

NAME = "tensor subclasses"


Place = tuple[int, tuple[str, ...], int]
"""An input, how a plain tensor inside of it is reached, and a dimension of that; -1 for an input that is a number."""


@dataclass(frozen=True)
class Output:
    """One output of the call as it was: an input itself, or made from results ``first`` and following."""

    first: int
    parts: Parts | None = None
    given: int | None = None
    needs_gradient: bool = False
    writes: int = 0
    """How often what is put together was written to."""


@dataclass(frozen=True)
class Subclasses:
    """Per input its parts, None for what is passed as it is; version counters (an input that has it, by how much it is moved on); the outputs."""

    inputs: tuple[Parts | None, ...]
    counts: tuple[tuple[int, int], ...]
    outputs: tuple[Output, ...]
    gradients: tuple[Gradient | None, ...]
    """Per input how its gradient is put together, where it is a subclass that needs one."""
    again: Again
    """For gradients of outputs that are of another kind than the outputs."""
    sizes: Mapping[sympy.Symbol, Place]
    """Where each symbol of sizes is read."""

    def known(self, inputs: Sequence[Any]) -> dict[sympy.Symbol, int]:
        """The sizes of a call."""
        return {symbol: _read(inputs[n], path, dim) for symbol, (n, path, dim) in self.sizes.items()}


def pre_compile(call: Call) -> Change | None:
    """Let the graph take the tensors inside of subclasses; None where there is no subclass.

    Raises:
        NotFunctional: one that is written to needs gradients, its sizes cannot be followed, or an output is a view of one.
    """
    given = tuple(Parts.of(i.name, i.fake) if is_traceable_wrapper_subclass(i.fake) else None for i in call.inputs)
    outputs = output_args(call.graph.graph)
    if not any(given) and not any(_is_wrapper(_fake(o)) for o in outputs):
        return None
    trains = needs_gradients(call.graph, call.inputs)
    for i, parts in zip(call.inputs, given, strict=True):
        if parts is not None:
            _check(i, trains=trains)
    gradients = tuple(
        Gradient(i.name, p) if trains and p is not None and i.real.requires_grad else None
        for i, p in zip(call.inputs, given, strict=True)
    )
    inputs = tuple(
        plain for i, p, g in zip(call.inputs, given, gradients, strict=True) for plain in _plain(i, p, g is not None)
    )
    planned = _outputs(call, outputs, trains=trains)
    if any(gradients):
        _check_apart(call, gradients, outputs)
    graph = _rewritten(call, given, gradients, planned)
    counted = [
        n
        for n, (i, p) in enumerate(zip(call.inputs, given, strict=True))
        if p is not None and not i.fake.is_inference() and not i.real.is_inference()
    ]
    counts = tuple((n, w) for n, w in counts_of(call.inputs, counted) if w)
    plan = Subclasses(given, counts, planned, gradients, _again(call, planned), _places(call, given, planned))
    return Change(Call(graph, inputs), _actions(call, given, gradients, planned), plan, _guards(inputs))


def _places(call: Call, given: Sequence[Parts | None], outputs: Sequence[Output]) -> Mapping[sympy.Symbol, Place]:
    """Where the symbols are read that the sizes of subclasses are expressions over.

    Raises:
        NotFunctional: one is no size of a plain tensor, so that the graph does not know it.
    """
    found: dict[sympy.Symbol, Place] = {}
    for n, (i, parts) in enumerate(zip(call.inputs, given, strict=True)):
        inside = [((), i.fake)] if parts is None else zip(parts.paths(), parts.take(i.fake), strict=True)
        for path, value in inside:
            sizes = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(-1, value)]
            for dim, size in sizes:
                if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                    found.setdefault(size.node.expr, (n, path, dim))
    for parts in (*given, *(o.parts for o in outputs)):
        if parts is not None and parts.varies and (unread := parts.symbols() - found.keys()):
            what = f"a {parts.type.__name__} has a size ({min(map(str, unread))}) that no tensor inside of it has"
            raise NotFunctional(what)
    return found


def _read(value: Any, path: Sequence[str], dim: int) -> int:
    for name in path:
        value = getattr(value, name)
    return int(value if dim < 0 else value.shape[dim])


def _fake(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None


def _is_wrapper(value: Any) -> bool:
    return is_traceable_wrapper_subclass(value)


def _check(i: GraphInput, *, trains: bool) -> None:
    kind = type(i.fake).__name__
    if is_reshaped(i.fake, i.real):
        raise NotFunctional(f"the shape or layout of {i.name}, a {kind}, is changed in place")
    if trains and (i.fake.is_inference() or writes_to(i.fake) != i.version):
        raise NotFunctional(f"{i.name}, a {kind}, is written to, and gradients are needed")


def _check_apart(call: Call, gradients: Sequence[Gradient | None], outputs: Sequence[Any]) -> None:
    """What gradients flow through must be floating-point tensors of their own, which no output shows."""
    taken: list[int] = []
    for i, gradient in zip(call.inputs, gradients, strict=True):
        if gradient is None:
            continue
        kind, plain = type(i.fake).__name__, list(_insides(i.fake))
        if not all(p.is_floating_point() or p.is_complex() for p in plain):
            raise NotFunctional(f"gradients are needed through {i.name}, a {kind} that holds tensors without any")
        taken += map(storage_of, plain)
    shown = [
        f for o in outputs if isinstance(f := _fake(o), torch.Tensor) and all(f is not i.fake for i in call.inputs)
    ]
    if len(set(taken)) < len(taken) or any(storage_of(p) in taken for f in shown for p in _insides(f)):
        raise NotFunctional("gradients are needed through a tensor subclass over memory that others see")


def _plain(i: GraphInput, parts: Parts | None, needs_gradient: bool = False) -> Iterator[GraphInput]:
    if parts is None:
        yield i
        return
    for path, fake, real in zip(parts.paths(), parts.take(i.fake), parts.take(i.real), strict=True):
        origin: Any = i.origin
        for name in path:
            origin = Attr(origin, name)
        # Inside a subclass torch counts no writes: those to the whole say whether a part may have changed.
        version = 0 if i.fake.is_inference() or writes_to(i.fake) == i.version else -1
        given = real.detach().requires_grad_() if needs_gradient else real
        yield GraphInput("_".join((i.name, *path)), origin, fake, given, version)


def _outputs(call: Call, outputs: Sequence[Any], *, trains: bool) -> tuple[Output, ...]:
    shared = [storage_of(f) for i in call.inputs if isinstance(i.fake, torch.Tensor) for f in _insides(i.fake)]
    found: list[Output] = []
    first = 0
    for node in outputs:
        fake = _fake(node)
        given = next((n for n, i in enumerate(call.inputs) if _is_wrapper(fake) and i.fake is fake), None)
        if given is not None:
            found.append(Output(first, given=given))
            continue
        parts = Parts.of(str(node), fake) if _is_wrapper(fake) else None
        if parts is not None:
            inside = [storage_of(f) for f in parts.take(fake)]
            if fake._is_view() or any(s in shared for s in inside) or len(set(inside)) < len(inside):
                raise NotFunctional(f"{node} is a {type(fake).__name__} over memory that others see")
            shared += inside
        needs_gradient = trains and parts is not None and fake.requires_grad
        if needs_gradient and fake.is_leaf:
            raise NotFunctional(f"{node} is a {type(fake).__name__} made inside that requires grad itself")
        writes = 0 if parts is None or fake.is_inference() else writes_to(fake)
        found.append(Output(first, parts, needs_gradient=needs_gradient, writes=writes))
        first += 1 if parts is None else len(list(parts.paths()))
    return tuple(found)


def _insides(fake: Any) -> Iterator[Any]:
    if not is_traceable_wrapper_subclass(fake):
        yield fake
        return
    parts = (getattr(fake, name) for name in fake.__tensor_flatten__()[0])
    for part in parts:
        if isinstance(part, torch.Tensor):
            yield from _insides(part)


def _rewritten(
    call: Call, given: Sequence[Parts | None], gradients: Sequence[Gradient | None], outputs: Sequence[Output]
) -> torch.fx.GraphModule:
    def place(copy: torch.fx.Graph, n: int, node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> torch.fx.Node:
        parts = given[n]
        if parts is None:
            return copy.node_copy(node)
        gradient = gradients[n]
        build = parts.build if gradient is None else gradient.put_together
        return _put_together(copy, call.inputs[n], parts, build, node)

    def returned(copy: torch.fx.Graph, values: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        for output, value, old in zip(outputs, values, output_args(call.graph.graph), strict=True):
            if output.given is None:
                found += [value] if output.parts is None else _taken_apart(copy, value, _fake(old), output)
        return found

    return rewritten(call.graph, place, returned=returned)


def _put_together(
    copy: torch.fx.Graph, i: GraphInput, parts: Parts, build: Callable[..., Any], node: torch.fx.Node
) -> torch.fx.Node:
    plain = []
    for given in _plain(i, parts):
        plain.append(copy.placeholder(given.name))
        plain[-1].meta["example_value"] = given.fake
    made = copy.create_node("call_function", InGraph("put_together", build), tuple(plain), name=node.name)
    made.meta.update(node.meta)
    return made


def _taken_apart(copy: torch.fx.Graph, node: torch.fx.Node, fake: Any, output: Output) -> list[torch.fx.Node]:
    parts = output.parts
    assert parts is not None
    if output.needs_gradient:
        return _taken_apart_with_gradients(copy, node, fake, parts)
    found = []
    for path in parts.paths():
        part, value = node, fake
        for name in path:
            part, value = copy.call_function(_part, (part, name)), getattr(value, name)
            part.meta.update(node.meta, example_value=value)
        found.append(part)
    return found


def _taken_apart_with_gradients(
    copy: torch.fx.Graph, node: torch.fx.Node, fake: Any, parts: Parts
) -> list[torch.fx.Node]:
    values = tuple(p.detach().requires_grad_() for p in parts.take(fake))
    taken = copy.call_function(InGraph("take_apart", functools.partial(taken_apart, parts)), (node,))
    taken.meta.update(node.meta, example_value=values)
    found = []
    for n, value in enumerate(values):
        found.append(copy.call_function(operator.getitem, (taken, n)))
        found[-1].meta.update(node.meta, example_value=value)
    return found


def _get_part(whole: Any, name: str) -> Any:
    return getattr(whole, name)


_part = InGraph("part", _get_part)


def _actions(
    call: Call, given: Sequence[Parts | None], gradients: Sequence[Gradient | None], outputs: Sequence[Output]
) -> tuple[WrapperAction, ...]:
    why = "the functional graph computes with plain tensors"
    taken = [
        WrapperAction(i.name, f"passed as its {' and '.join('.'.join(path) for path in p.paths())}", why)
        for i, p in zip(call.inputs, given, strict=True)
        if p is not None
    ]
    made = [
        WrapperAction(f"output {n}", f"put together as a {o.parts.type.__name__}", "eager returns the subclass")
        for n, o in enumerate(outputs)
        if o.parts is not None
    ]
    joined = [
        WrapperAction(i.name, "its gradient is put together", "eager gives the subclass a gradient of its own type")
        for i, g in zip(call.inputs, gradients, strict=True)
        if g is not None
    ]
    return (*taken, *made, *joined)


def _guards(inputs: Sequence[GraphInput]) -> tuple[NoOverlap, ...]:
    """What is written to inside must not come to be shared: the tracer sees to whole tensors only."""
    tensors = [i for i in inputs if isinstance(i.real, torch.Tensor)]
    found = []
    for i in tensors:
        if i.fake.is_inference() or writes_to(i.fake) == i.version:
            continue
        apart = [o.origin for o in tensors if storage_of(o.real) != storage_of(i.real)]
        if apart:
            found.append(NoOverlap(i.origin, tuple(apart)))
    return tuple(found)


def _again(call: Call, outputs: Sequence[Output]) -> Again:
    """How gradients are found otherwise: each output that is a subclass is one that they may come back through."""
    nodes = output_args(call.graph.graph)
    needing = tuple(n for n, i in enumerate(call.inputs) if isinstance(i.real, torch.Tensor) and i.real.requires_grad)
    names = tuple(str(node) if o.needs_gradient else None for node, o in zip(nodes, outputs, strict=True))
    given = [i.real for i in call.inputs if isinstance(i.real, torch.Tensor)]
    written = _written(call)
    reason = f"{call.inputs[min(written)].name} was written to" if written else ""
    return Again(call.graph, names, needing, written, devices_of(given), autocast_now(), reason)


def _written(call: Call) -> frozenset[int]:
    tensors = [(n, i) for n, i in enumerate(call.inputs) if isinstance(i.fake, torch.Tensor)]
    return frozenset(n for n, i in tensors if i.fake.is_inference() or writes_to(i.fake) != i.version)


def tell_unread(change: Change, unread: Collection[str]) -> None:
    """Remember of which inputs the backward reads nothing that is inside; ``unread`` names inputs of the graph that is compiled."""
    names = iter(change.call.inputs)
    plan: Subclasses = change.plan
    for parts, gradient in zip(plan.inputs, plan.gradients, strict=True):
        own = [next(names).name for _ in (parts.paths() if parts is not None else ("",))]
        if gradient is not None:
            gradient.is_read = not all(n in unread for n in own)


def post_compile(change: Change, run: Run) -> Run:
    """Takes apart, runs, counts the writes to whole tensors, not to what is inside of them, as autograd does, and puts together."""
    plan: Subclasses = change.plan
    trains = any(o.needs_gradient for o in plan.outputs)
    varies = any(p is not None and p.varies for p in (*plan.inputs, *(o.parts for o in plan.outputs)))

    def call(*inputs: Any) -> tuple[Any, ...]:
        plain: list[Any] = []
        known = plan.known(inputs) if varies else {}
        for value, parts, gradient in zip(inputs, plan.inputs, plan.gradients, strict=True):
            if parts is None:
                plain.append(value)
            else:
                plain += parts.take(value) if gradient is None else gradient.take_apart(value, known)
        versions = [(inputs[n], inputs[n]._version) for n, _ in plan.counts]
        for parts, whole in zip(plan.inputs, inputs, strict=True):
            if parts is not None:
                versions += [(p, p._version) for p in _parts_alone(parts, whole, inputs)]
        born = Born.of(plan.again, inputs) if trains else None
        results = run(*plain)
        for whole, version in versions:
            set_version((whole,), (version,))
        for n, writes in plan.counts:
            set_version((inputs[n],), (inputs[n]._version + writes,))
        return tuple(_output(n, o, inputs, results, born, known) for n, o in enumerate(plan.outputs))

    return call


def _parts_alone(parts: Parts, whole: Any, inputs: Sequence[Any]) -> Iterator[Any]:
    """The tensors inside of ``whole`` that are no inputs by themselves."""
    for plain in parts.take(whole):
        if not plain.is_inference() and all(plain is not i for i in inputs):
            yield plain


def _output(
    number: int,
    output: Output,
    inputs: Sequence[Any],
    results: Sequence[Any],
    born: Born | None,
    known: Mapping[sympy.Symbol, int],
) -> Any:
    if output.given is not None:
        return inputs[output.given]
    if output.parts is None:
        return results[output.first]
    parts = output.parts.at(known)
    count = len(list(parts.paths()))
    plain = results[output.first : output.first + count]
    made = (
        born.put_together(number, parts, plain) if born is not None and output.needs_gradient else parts.build(*plain)
    )
    if output.writes:
        set_version((made,), (output.writes,))
    return made
