"""Takes tensor subclasses apart before the graph and puts them together after it: the functional graph sees plain tensors only.

The protocol is torch's for traceable wrapper subclasses (``__tensor_flatten__``, ``__tensor_unflatten__``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from engine.aot.analyse import is_reshaped, output_args
from engine.aot.views import NotFunctional, storage_of, writes_to
from engine.aot.wrappers.aliases import set_version
from engine.aot.wrappers.rewrite import rewritten
from engine.aot.wrappers.wrapper import Call, Change, Run
from engine.ir.frame import GraphInput
from engine.ir.guard import NoOverlap
from engine.ir.in_graph import InGraph
from engine.ir.origin import Attr
from engine.records.aot import WrapperAction

NAME = "tensor subclasses"


@dataclass(frozen=True)
class Parts:
    """How a subclass is put together; parts that are subclasses themselves are nested."""

    type: Any
    names: tuple[str, ...]
    context: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]
    inside: tuple[Parts | None, ...]
    """Per name: the parts of the part, None for a plain tensor."""

    def take(self, whole: Any) -> Iterator[Any]:
        """The plain tensors inside, in order."""
        for name, inside in zip(self.names, self.inside, strict=True):
            part = getattr(whole, name)
            if inside is None:
                yield part
            else:
                yield from inside.take(part)

    def paths(self) -> Iterator[tuple[str, ...]]:
        """How each plain tensor is reached."""
        for name, inside in zip(self.names, self.inside, strict=True):
            for rest in ((),) if inside is None else inside.paths():
                yield (name, *rest)

    def build(self, *plain: Any) -> Any:
        """The subclass around plain tensors."""
        return self._build(iter(plain))

    def _build(self, plain: Iterator[Any]) -> Any:
        parts = {
            name: next(plain) if inside is None else inside._build(plain)
            for name, inside in zip(self.names, self.inside, strict=True)
        }
        return self.type.__tensor_unflatten__(parts, self.context, self.size, self.stride)


@dataclass(frozen=True)
class Output:
    """One output of the call as it was: an input itself, or made from results ``first`` and following."""

    first: int
    parts: Parts | None = None
    given: int | None = None


@dataclass(frozen=True)
class Subclasses:
    """Per input its parts, None for what is passed as it is; how often each is written to; and the outputs."""

    inputs: tuple[Parts | None, ...]
    writes: tuple[int, ...]
    outputs: tuple[Output, ...]


def pre_compile(call: Call) -> Change | None:
    """Let the graph take the tensors inside of subclasses; None where there is no subclass.

    Raises:
        NotFunctional: gradients are needed through one, its sizes vary, or an output is a view of one.
    """
    given = tuple(_parts(i.name, i.fake) if is_traceable_wrapper_subclass(i.fake) else None for i in call.inputs)
    outputs = output_args(call.graph.graph)
    if not any(given) and not any(_is_wrapper(_fake(o)) for o in outputs):
        return None
    for i, parts in zip(call.inputs, given, strict=True):
        if parts is not None:
            _check(i)
    inputs = tuple(plain for i, parts in zip(call.inputs, given, strict=True) for plain in _plain(i, parts))
    planned = _outputs(call, outputs)
    graph = _rewritten(call, given, planned)
    writes = tuple(
        0 if p is None or i.fake.is_inference() else writes_to(i.fake) - i.version
        for i, p in zip(call.inputs, given, strict=True)
    )
    return Change(
        Call(graph, inputs), _actions(call, given, planned), Subclasses(given, writes, planned), _guards(inputs)
    )


def _fake(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None


def _is_wrapper(value: Any) -> bool:
    return is_traceable_wrapper_subclass(value)


def _check(i: GraphInput) -> None:
    if torch.is_grad_enabled() and (i.fake.requires_grad or i.real.requires_grad):
        raise NotFunctional(f"gradients are needed through {i.name}, a {type(i.fake).__name__}")
    if is_reshaped(i.fake, i.real):
        raise NotFunctional(f"the shape or layout of {i.name}, a {type(i.fake).__name__}, is changed in place")


def _parts(name: str, fake: Any) -> Parts:
    if fake._has_symbolic_sizes_strides:
        raise NotFunctional(f"{name} is a {type(fake).__name__} whose sizes vary")
    names, context = fake.__tensor_flatten__()
    inside = tuple(
        _parts(name, getattr(fake, n)) if is_traceable_wrapper_subclass(getattr(fake, n)) else None for n in names
    )
    return Parts(type(fake), tuple(names), context, tuple(fake.shape), tuple(fake.stride()), inside)


def _plain(i: GraphInput, parts: Parts | None) -> Iterator[GraphInput]:
    if parts is None:
        yield i
        return
    for path, fake, real in zip(parts.paths(), parts.take(i.fake), parts.take(i.real), strict=True):
        origin: Any = i.origin
        for name in path:
            origin = Attr(origin, name)
        # Inside a subclass torch counts no writes: those to the whole say whether a part may have changed.
        version = 0 if i.fake.is_inference() or writes_to(i.fake) == i.version else -1
        yield GraphInput("_".join((i.name, *path)), origin, fake, real, version)


def _outputs(call: Call, outputs: Sequence[Any]) -> tuple[Output, ...]:
    shared = [storage_of(f) for i in call.inputs if isinstance(i.fake, torch.Tensor) for f in _insides(i.fake)]
    found: list[Output] = []
    first = 0
    for node in outputs:
        fake = _fake(node)
        given = next((n for n, i in enumerate(call.inputs) if _is_wrapper(fake) and i.fake is fake), None)
        if given is not None:
            found.append(Output(first, given=given))
            continue
        parts = _parts(str(node), fake) if _is_wrapper(fake) else None
        if parts is not None:
            inside = [storage_of(f) for f in parts.take(fake)]
            if fake._is_view() or any(s in shared for s in inside) or len(set(inside)) < len(inside):
                raise NotFunctional(f"{node} is a {type(fake).__name__} over memory that others see")
            shared += inside
        found.append(Output(first, parts))
        first += 1 if parts is None else len(list(parts.paths()))
    return tuple(found)


def _insides(fake: Any) -> Iterator[Any]:
    if not is_traceable_wrapper_subclass(fake):
        yield fake
        return
    for name in fake.__tensor_flatten__()[0]:
        yield from _insides(getattr(fake, name))


def _rewritten(call: Call, given: Sequence[Parts | None], outputs: Sequence[Output]) -> torch.fx.GraphModule:
    def place(copy: torch.fx.Graph, n: int, node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> torch.fx.Node:
        parts = given[n]
        if parts is None:
            return copy.node_copy(node)
        return _put_together(copy, call.inputs[n], parts, node)

    def returned(copy: torch.fx.Graph, values: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        for output, value, old in zip(outputs, values, output_args(call.graph.graph), strict=True):
            if output.given is None:
                found += [value] if output.parts is None else _taken_apart(copy, value, _fake(old), output.parts)
        return found

    return rewritten(call.graph, place, returned=returned)


def _put_together(copy: torch.fx.Graph, i: GraphInput, parts: Parts, node: torch.fx.Node) -> torch.fx.Node:
    plain = []
    for given in _plain(i, parts):
        plain.append(copy.placeholder(given.name))
        plain[-1].meta["example_value"] = given.fake
    made = copy.create_node("call_function", InGraph("put_together", parts.build), tuple(plain), name=node.name)
    made.meta.update(node.meta)
    return made


def _taken_apart(copy: torch.fx.Graph, node: torch.fx.Node, fake: Any, parts: Parts) -> list[torch.fx.Node]:
    found = []
    for path in parts.paths():
        part, value = node, fake
        for name in path:
            part, value = copy.call_function(_part, (part, name)), getattr(value, name)
            part.meta.update(node.meta, example_value=value)
        found.append(part)
    return found


def _get_part(whole: Any, name: str) -> Any:
    return getattr(whole, name)


_part = InGraph("part", _get_part)


def _actions(call: Call, given: Sequence[Parts | None], outputs: Sequence[Output]) -> tuple[WrapperAction, ...]:
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
    return (*taken, *made)


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


def post_compile(change: Change, run: Run) -> Run:
    """Takes apart, runs, counts the writes to whole tensors, and puts together."""
    plan: Subclasses = change.plan
    counted = [(n, w) for n, w in enumerate(plan.writes) if w]

    def call(*inputs: Any) -> tuple[Any, ...]:
        plain: list[Any] = []
        for value, parts in zip(inputs, plan.inputs, strict=True):
            plain += [value] if parts is None else parts.take(value)
        versions = [(inputs[n], inputs[n]._version + w) for n, w in counted]
        results = run(*plain)
        for whole, version in versions:
            set_version((whole,), (version,))
        return tuple(_output(o, inputs, results) for o in plan.outputs)

    return call


def _output(output: Output, inputs: Sequence[Any], results: Sequence[Any]) -> Any:
    if output.given is not None:
        return inputs[output.given]
    if output.parts is None:
        return results[output.first]
    count = len(list(output.parts.paths()))
    return output.parts.build(*results[output.first : output.first + count])
