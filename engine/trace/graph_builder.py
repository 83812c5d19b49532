"""The fx graph under construction: placeholders, nodes with fake results, and outputs.

Placeholders are created at first use, outputs when the generated code needs them.
"""

from __future__ import annotations

import contextlib
import keyword
import operator
import re
from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.fx

from engine.ir.guards.base import user_expr
from engine.ir.node_metadata import CHECKPOINT_KEY, CHECKPOINT_POLICY_KEY, USER_TEXT, NodeProvenance, set_provenance
from engine.ir.sources.base import Source
from engine.ir.traced_frame import ConstSlot, GraphInput, TracedGraph
from engine.torch_private.functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, Variable

VMAP_META = "mapped"
"""Key in the metadata of placeholders: True if the input is batched by an active ``vmap``."""


class GraphBuilder:
    """Builder of one fx graph.

    Each node has the user's span and stack as provenance, and its fake value in ``meta["example_value"]``.
    """

    outer: GraphBuilder | None = None
    """Builder of the graph around a subgraph."""
    is_autograd_function_body = False
    """True for the backward of an autograd function: it may run autograd on its intermediates."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.inputs: list[GraphInput] = []
        self._placeholders: dict[Source, torch.fx.Node] = {}
        self._first_op: torch.fx.Node | None = None
        self.tensor_variables: WeakValueDictionary[torch.fx.Node, Variable] = WeakValueDictionary()
        """The one variable of each tensor node, while anything references it."""
        self.op_count = 0
        """Number of nodes that compute something."""
        self.submodules: dict[str, torch.fx.GraphModule] = {}
        """Graphs of subgraph bodies, by the attribute name that nodes use."""
        self._checkpoint_region: int | None = None
        self._checkpoint_count = 0
        self._sac_policy: Any = None

    def placeholder(self, source: Source, fake: Any, real: Any) -> torch.fx.Node:
        """Return the placeholder of ``source``; create it at the first call."""
        placeholder = self._placeholders.get(source)
        if placeholder is not None:
            return placeholder
        name = self._placeholder_name(source)
        with self.graph.inserting_before(self._first_op) if self._first_op is not None else contextlib.nullcontext():
            node = self.graph.placeholder(name)
        node.target = node.name  # The parameter name in the graph's code. Two sources may suggest one name.
        node.meta["example_value"] = fake
        node.meta[VMAP_META] = _is_vmapped(real)
        node.meta[USER_TEXT] = user_expr(source)
        self._placeholders[source] = node
        version = fake._version if isinstance(fake, torch.Tensor) and not fake.is_inference() else 0
        self.inputs.append(GraphInput(node.name, source, fake, real, version))
        return node

    def _placeholder_name(self, source: Source) -> str:
        text = re.sub(r"[LGC]\['(\w+)'\]", r"\1", source.named_expr)
        text = re.sub(r"\W+", "_", text).strip("_")
        text = text.removeprefix("self_") or "input"
        # fx strips underscores at both ends, calls its module ``self``, and reads operators from the name ``torch``.
        text = f"self_{text}" if text[0].isdigit() or text.strip("_").lower() in ("torch", "self", "") else text
        return f"{text}_" if keyword.iskeyword(text) else text

    def create_node(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], source: NodeProvenance
    ) -> torch.fx.Node:
        """Append a node that computes something."""
        node = self.graph.create_node(op, _printable_target(target, args), args, kwargs)
        if self._first_op is None:
            self._first_op = node
        set_provenance(node, source)
        if self._checkpoint_region is not None:
            node.meta["custom"][CHECKPOINT_KEY] = self._checkpoint_region
            if self._sac_policy is not None:
                node.meta["custom"][CHECKPOINT_POLICY_KEY] = self._sac_policy
        self.op_count += 1
        return node

    @contextlib.contextmanager
    def checkpoint_region(self, policy: Any = None) -> Iterator[None]:
        """Put the nodes created inside into an activation checkpoint region.

        A nested region is part of the outer one. ``policy`` decides per operator whether its result is saved
        (``create_selective_checkpoint_contexts``).
        """
        outer, last = self._checkpoint_region, self._sac_policy
        self._sac_policy = policy if outer is None else last
        if outer is None:
            self._checkpoint_region, self._checkpoint_count = self._checkpoint_count, self._checkpoint_count + 1
        try:
            yield
        finally:
            self._checkpoint_region, self._sac_policy = outer, last

    def owner_of(self, tx: Tracer, target: Any, args: Args) -> GraphBuilder:
        """Return the graph to which a new node belongs: this one, or one outside a subgraph."""
        return self

    def add_subgraph(self, name: str, module: torch.fx.GraphModule, source: NodeProvenance) -> torch.fx.Node:
        """Add a subgraph and return the ``get_attr`` node that reads it."""
        number = sum(submodule.startswith(f"{name}_") for submodule in self.submodules)
        self.submodules[f"{name}_{number}"] = module
        node = self.create_node("get_attr", f"{name}_{number}", (), {}, source)
        node.meta["example_value"] = module
        return node

    def to_graph_module(self, class_name: str) -> torch.fx.GraphModule:
        """Return the graph as a module with its subgraphs."""
        return torch.fx.GraphModule(self.submodules, self.graph, class_name=class_name)

    def erase_last_node(self, node: torch.fx.Node) -> None:
        """Erase the node that was appended last."""
        if node is self._first_op:
            self._first_op = None
        self.graph.erase_node(node)
        self.op_count -= 1

    def erase_last_input(self, source: Source) -> None:
        """Erase the placeholder that was created last; no node may use it."""
        self.graph.erase_node(self._placeholders.pop(source))
        self.inputs.pop()

    def finish(self, outputs: list[torch.fx.Node]) -> TracedGraph | None:
        """Return the graph with these outputs as a module, or None if it does nothing.

        Raises:
            Unsupported: a tensor created inside a subgraph is used outside it.
        """
        self._check_no_foreign_nodes(outputs)
        self._erase_unused_getitems(set(outputs))
        if not outputs and not self.op_count:
            return None
        self.graph.output(tuple(outputs))
        module = self.to_graph_module("TracedGraph")
        inputs = {i.name: i for i in self.inputs}
        in_order = tuple([inputs[node.name] for node in self.graph.find_nodes(op="placeholder")])
        return TracedGraph(ConstSlot("graph"), module, in_order)

    def _check_no_foreign_nodes(self, outputs: list[torch.fx.Node]) -> None:
        graphs = {operand.graph for node in self.graph.nodes for operand in node.all_input_nodes}
        if not graphs | {node.graph for node in outputs} <= {self.graph}:
            raise Unsupported(
                "higher-order-side-effect",
                "a tensor leaves the body of a higher-order operator, but is not one of its results",
            )

    def _erase_unused_getitems(self, outputs: set[torch.fx.Node]) -> None:
        for node in reversed(list(self.graph.nodes)):
            if node.op == "call_function" and node.meta.get("is_item") and not node.users and node not in outputs:
                self.graph.erase_node(node)


@contextlib.contextmanager
def emitting_into(tx: Tracer, builder: GraphBuilder) -> Iterator[None]:
    """Emit nodes into another graph until the block ends."""
    outer, tx.graph = tx.graph, builder
    try:
        yield
    finally:
        tx.graph = outer


def _is_vmapped(real: Any) -> bool:
    """Return True if the tensor is batched by a ``vmap`` that is running now."""
    while isinstance(real, torch.Tensor) and is_functorch_wrapped_tensor(real):
        if is_batchedtensor(real):
            return True
        real = get_unwrapped(real)
    return False


def _printable_target(target: Any, args: tuple[Any, ...]) -> Any:
    """Return a target whose call fx prints correctly.

    fx prints a power as an operator without parentheses, so ``-1 ** n`` would negate the power.
    """
    is_negated = target is operator.pow and isinstance(args[0], (int, float)) and repr(args[0]).startswith("-")
    return pow if is_negated else target
