"""Functions traced into a graph of their own, inside the one under construction: bodies of higher-order operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from engine.ir.origin import Origin
from engine.trace.graph_builder import GraphBuilder
from engine.trace.signals import Unsupported
from engine.trace.values.base import Value, force
from engine.trace.values.sequences import TupleValue
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer


class NestedBuilder(GraphBuilder):
    """A graph inside another one. What it reads from outside becomes an input of the outer graph."""

    def __init__(self, outer: GraphBuilder) -> None:
        super().__init__()
        self.outer = outer
        self.parameters = 0

    def placeholder(self, origin: Origin, fake: Any, real: Any) -> torch.fx.Node:
        return self.outer.placeholder(origin, fake, real)

    def parameter(self, fake: Any) -> torch.fx.Node:
        """A further parameter of the nested function."""
        before = self._first
        if before is None:
            node = self.graph.placeholder(f"arg_{self.parameters}")
        else:
            with self.graph.inserting_before(before):
                node = self.graph.placeholder(f"arg_{self.parameters}")
        node.meta["example_value"] = fake
        self.parameters += 1
        return node

    def lift(self) -> list[torch.fx.Node]:
        """Make parameters of the outer nodes that this graph reads; returns those nodes in order."""
        lifted: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in list(self.graph.nodes):
            for used in node.all_input_nodes:
                if used.graph is not self.graph:
                    if used not in lifted:
                        lifted[used] = self.parameter(used.meta["example_value"])
                    node.replace_input_with(used, lifted[used])
        return list(lifted)

    def reads_outside(self) -> bool:
        """Whether this graph uses nodes of the outer one."""
        return any(used.graph is not self.graph for node in self.graph.nodes for used in node.all_input_nodes)

    def discard(self) -> None:
        """Take all nodes back, so that outer nodes lose these users."""
        for node in reversed(list(self.graph.nodes)):
            self.graph.erase_node(node)


@contextmanager
def nested(tx: Tracer) -> Iterator[NestedBuilder]:
    """Operations go into a new graph until the block ends; it must change nothing outside.

    Raises:
        Unsupported: the block changed an object that exists outside.
    """
    outer = tx.graph
    builder = NestedBuilder(outer)
    mutated, written = dict(tx.mutated), dict(tx.globals_written)
    fakes = [value.fake for value, _ in tx.input_tensors]
    fakes.extend(v for n in outer.graph.nodes if isinstance(v := n.meta.get("example_value"), torch.Tensor))
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
    if changed or mutated != tx.mutated or written != tx.globals_written:
        builder.discard()
        raise Unsupported("side-effect", "the body of a higher-order operation changes something outside")


def _version_of(fake: torch.Tensor) -> int:
    return 0 if fake.is_inference() else fake._version


def twin(tx: Tracer, builder: NestedBuilder, fake: torch.Tensor) -> TensorValue:
    """A parameter of the nested graph that looks like ``fake``."""
    with tx.fake_mode, torch.no_grad():
        copy = fake.clone()
    copy.requires_grad_(fake.requires_grad)
    return TensorValue(builder.parameter(copy), copy)


def flatten(tx: Tracer, value: Value, into: list[Value]) -> bool:
    """Collect a tensor, a number, or a tuple of them; whether it was one value alone."""
    value = force(tx, value)
    if isinstance(value, TupleValue) and value.cls is tuple:
        for item in value.items:
            if not flatten(tx, item, into):
                raise Unsupported("unsupported-argument", "nested containers from the body of a higher-order operation")
        return False
    if not isinstance(value, (TensorValue, SymValue)):
        raise Unsupported(
            "unsupported-argument", f"a {value.type().__name__} from the body of a higher-order operation"
        )
    into.append(value)
    return True
