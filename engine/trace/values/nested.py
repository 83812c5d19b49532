"""Functions traced into a graph of their own, inside the one under construction: bodies of higher-order operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from engine.ir.origin import Origin
from engine.trace.graph_builder import GraphBuilder
from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, Value, reached
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue
from engine.trace.values.trees import Tree, flatten

if TYPE_CHECKING:
    from engine.trace.state import Tracer


class NestedBuilder(GraphBuilder):
    """A graph inside another one. What it reads from outside becomes an input of the outer graph."""

    def __init__(self, outer: GraphBuilder) -> None:
        super().__init__()
        self.outer = outer
        self.parameters: list[torch.fx.Node] = []
        self.is_function_body = False
        """Whether it is the backward of an autograd function, which may run autograd on what it makes itself."""

    def placeholder(self, origin: Origin, fake: Any, real: Any) -> torch.fx.Node:
        return self.outer.placeholder(origin, fake, real)

    def parameter(self, fake: Any) -> torch.fx.Node:
        """A further parameter of the nested function."""
        first = next(iter(self.graph.nodes), None)
        name = f"arg_{len(self.parameters)}"
        if self.parameters:
            with self.graph.inserting_after(self.parameters[-1]):
                node = self.graph.placeholder(name)
        elif first is not None:
            with self.graph.inserting_before(first):
                node = self.graph.placeholder(name)
        else:
            node = self.graph.placeholder(name)
        node.meta["example_value"] = fake
        self.parameters.append(node)
        return node

    def outside(self) -> list[torch.fx.Node]:
        """The outer nodes that this graph reads, in order."""
        used = (n for node in self.graph.nodes for n in node.all_input_nodes if n.graph is not self.graph)
        return list(dict.fromkeys(used))

    def lift(self, outside: Sequence[torch.fx.Node]) -> None:
        """Make a parameter of each of these outer nodes, read or not."""
        lifted = {used: self.parameter(used.meta["example_value"]) for used in outside}
        for node in list(self.graph.nodes):
            for used in node.all_input_nodes:
                if used.graph is not self.graph:
                    node.replace_input_with(used, lifted[used])

    def reads_outside(self) -> bool:
        """Whether this graph uses tensors of the outer one."""
        return any(isinstance(n.meta.get("example_value"), torch.Tensor) for n in self.outside())

    def discard(self) -> None:
        """Take all nodes back, so that outer nodes lose these users."""
        for node in reversed(list(self.graph.nodes)):
            self.graph.erase_node(node)


@contextmanager
def nested(tx: Tracer, *, may_note: bool = False) -> Iterator[NestedBuilder]:
    """Operations go into a new graph until the block ends; it must change nothing outside.

    Raises:
        Unsupported: the block changed an object that exists outside; with ``may_note``, a tensor.
    """
    outer = tx.graph
    builder = NestedBuilder(outer)
    outside = tx.outside_changes
    fakes = [value.fake for value, _ in tx.input_tensors]
    graph: GraphBuilder | None = outer
    while graph is not None:
        fakes.extend(v for n in graph.graph.nodes if isinstance(v := n.meta.get("example_value"), torch.Tensor))
        graph = graph.outer if isinstance(graph, NestedBuilder) else None
    versions = [(fake, _version_of(fake)) for fake in fakes]
    grad = torch.is_grad_enabled()
    tx.graph = builder
    try:
        yield builder
        if torch.is_grad_enabled() != grad:
            raise Unsupported("side-effect", "the body of a higher-order operation switches grad mode")
    except BaseException:
        builder.discard()
        raise
    finally:
        tx.graph = outer
        torch._C._set_grad_enabled(grad)
    changed = any(_version_of(fake) != version for fake, version in versions)
    if changed or (not may_note and outside != tx.outside_changes):
        builder.discard()
        raise Unsupported("side-effect", "the body of a higher-order operation changes something outside")


def _version_of(fake: torch.Tensor) -> int:
    return 0 if fake.is_inference() else fake._version


def twin(tx: Tracer, builder: NestedBuilder, fake: torch.Tensor) -> TensorValue:
    """A parameter of the nested graph that looks like ``fake``."""
    copy = looks_like(tx, fake)
    return TensorValue(builder.parameter(copy), copy)


def looks_like(tx: Tracer, fake: torch.Tensor) -> torch.Tensor:
    """A new fake leaf with the same metadata."""
    with tx.fake_mode, torch.no_grad():
        copy = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    copy.requires_grad_(fake.requires_grad)
    return copy


def result_like(tx: Tracer, fake: torch.Tensor, *, requires_grad: bool) -> torch.Tensor:
    """A new fake that is the result of an operation, with the same metadata."""
    with tx.fake_mode, torch.no_grad():
        copy = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    if not requires_grad or not (copy.is_floating_point() or copy.is_complex()):
        return copy
    copy.requires_grad_()
    with tx.fake_mode, torch.enable_grad():
        return torch.ops.aten.alias(copy)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Body:
    """A function's graph: what it returns, how that is packed, and what it read from outside."""

    builder: NestedBuilder
    outputs: tuple[Value, ...]
    tree: Tree

    def fakes(self) -> list[Any]:
        """The fake values of what it returns."""
        return [
            v.value if isinstance(v, Const) else v.fake if isinstance(v, TensorValue) else v.sym  # type: ignore[attr-defined]
            for v in self.outputs
        ]

    def module(self) -> torch.fx.GraphModule:
        """The finished graph."""
        return self.builder.module("NestedGraph")


def trace_body(
    tx: Tracer,
    function: Value,
    parameters: Callable[[NestedBuilder], list[Value]],
    *,
    copies_inputs: bool = False,
    may_note: bool = False,
    may_write: bool = False,
) -> Body:
    """Trace ``function`` on what ``parameters`` makes of the new graph. With ``copies_inputs``, an argument that is returned is cloned.

    Raises:
        Unsupported: it changes something outside, or an argument; it returns what is no tree of tensors; or an argument or a free
            variable as it is. With ``may_note``, containers outside may change (the body runs once, as in Python); with ``may_write``,
            arguments may be written to in place (who runs the graph hands it what Python would).
    """
    outside = None if may_note else _Outside(tx)
    with nested(tx, may_note=may_note) as builder:
        inside = parameters(builder)
        given: list[Value] = []
        for value in inside:
            flatten(tx, value, given)
        versions = [(v.fake, _version_of(v.fake)) for v in given if isinstance(v, TensorValue)]
        result = function.call(tx, inside, {})
        leaves: list[Value] = []
        tree = flatten(tx, result, leaves)
        if copies_inputs:
            leaves = [_apart(tx, v, given) for v in leaves]
        if not may_write and any(_version_of(fake) != version for fake, version in versions):
            raise Unsupported("side-effect", "the body of a higher-order operation changes an argument in place")
        nodes = [v.graph_arg(tx)[0] for v in leaves]
        builder.graph.output(tuple(nodes))
    if outside is not None:
        outside.check()
    return Body(builder, tuple(leaves), tree)


def _apart(tx: Tracer, value: Value, given: list[Value]) -> Value:
    """A returned value that shares memory with nothing outside the body."""
    if not isinstance(value, TensorValue):
        return value
    inner = value.made_by is not None and value.made_by.graph is tx.graph.graph
    shared = any(isinstance(g, TensorValue) and shares_memory(value.fake, g.fake) for g in given)
    return value.call_method(tx, "clone", [], {}) if shared or not inner else value


def shares_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two fakes view one storage."""
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


class _Outside:
    """Python values that exist before a body is traced, to tell whether it changed one of them."""

    def __init__(self, tx: Tracer) -> None:
        self._tx = tx
        self._before = tx.changed
        tx.changed = []
        self._frames = list(tx.frames)

    def check(self) -> None:
        """End watching.

        Raises:
            Unsupported: a value that the frames around the body hold was changed.
        """
        changed, self._tx.changed = self._tx.changed, self._before
        if self._before is not None and changed:
            self._before.extend(changed)
        if not changed:
            return
        reachable = self._reachable()
        if any(id(v) in reachable for v in changed):
            raise Unsupported("side-effect", "the body of a higher-order operation changes something outside")

    def _reachable(self) -> set[int]:
        todo: list[Value] = []
        for frame in self._frames:
            todo += [*frame.stack, *frame.locals.values(), *frame.cells.values()]
            todo += [] if frame.function is None else frame.function.children()
        return {id(value) for value in reached(todo)}


def lift_all(bodies: Sequence[Body]) -> list[torch.fx.Node]:
    """Give all bodies the same further parameters: the outer nodes that any of them reads. Returns those nodes."""
    outside = list(dict.fromkeys(node for body in bodies for node in body.builder.outside()))
    for body in bodies:
        body.builder.lift(outside)
    return outside


def outer_value(node: torch.fx.Node) -> Value:
    """A value for a node that was lifted."""
    value = node.meta["example_value"]
    return TensorValue(node, value) if isinstance(value, torch.Tensor) else SymValue(node, value)
