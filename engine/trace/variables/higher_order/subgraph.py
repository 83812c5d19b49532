"""Traces functions into subgraphs of the current graph: bodies of higher-order operators."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.ir.introspection.symbols import has_unbacked_symbols
from engine.ir.sources.base import Source
from engine.torch_private.autograd import set_grad_enabled
from engine.trace.annotations import Frame, Tracer
from engine.trace.exc import Unsupported
from engine.trace.graph_builder import GraphBuilder
from engine.trace.variables.base import Args, Variable, reachable_variables, realize
from engine.trace.variables.higher_order.pytrees import TreeSpec, flatten_variable
from engine.trace.variables.tensors.sym_node import SymNodeVariable
from engine.trace.variables.tensors.tensor import TensorVariable


class SubgraphBuilder(GraphBuilder):
    """Builder of a subgraph. Sources read inside it become inputs of the outer graph."""

    def __init__(self, outer: GraphBuilder) -> None:
        super().__init__()
        self.outer: GraphBuilder = outer
        self.parameters: list[torch.fx.Node] = []

    def placeholder(self, source: Source, fake: Any, real: Any) -> torch.fx.Node:
        return self.outer.placeholder(source, fake, real)

    def owner_of(self, tx: Tracer, target: Any, args: Args) -> GraphBuilder:
        """Return the graph to which a new node belongs.

        Arithmetic on numbers from outside the subgraph goes to the outer graph: its result may be used after the
        subgraph.
        """
        if getattr(target, "__module__", "") != operator.add.__module__:
            return self
        inputs = [realize(tx, a) for a in args]
        numbers: list[Any] = [v for v in inputs if v.sym is not None]
        if not numbers or any(v.depends_on_unbacked_float or has_unbacked_symbols(v.sym) for v in numbers):
            return self
        if not all(v.sym is not None or v.is_constant for v in inputs):
            return self
        owner: GraphBuilder = self
        while owner.outer is not None and all(v.node.graph is not owner.graph for v in numbers):
            owner = owner.outer
        return owner

    def add_parameter(self, fake: Any) -> torch.fx.Node:
        """Add an input to the subgraph."""
        graph, earlier = self.graph, self.parameters
        with graph.inserting_after(earlier[-1]) if earlier else graph.inserting_before():
            node = graph.placeholder(f"arg_{len(earlier)}")
        node.meta["example_value"] = fake
        self.parameters.append(node)
        return node

    def free_variables(self) -> list[torch.fx.Node]:
        """Return the outer nodes that the subgraph reads, in order of use."""
        used = (n for node in self.graph.nodes for n in node.all_input_nodes if n.graph is not self.graph)
        return list(dict.fromkeys(used))

    def lift_free_variables(self, outside: Sequence[torch.fx.Node]) -> None:
        """Add an input for each of these outer nodes, used or not, and replace the uses."""
        lifted = {used: self.add_parameter(used.meta["example_value"]) for used in outside}
        for node in list(self.graph.nodes):
            for used in node.all_input_nodes:
                if used.graph is not self.graph:
                    node.replace_input_with(used, lifted[used])

    def has_free_tensors(self) -> bool:
        """Return True if the subgraph reads tensors of the outer graph."""
        return bool(tensor_values(self.free_variables()))

    def discard(self) -> None:
        """Erase all nodes, which removes them from the users of outer nodes."""
        for node in reversed(list(self.graph.nodes)):
            self.graph.erase_node(node)


@contextmanager
def building_subgraph(tx: Tracer, *, allow_side_effects: bool = False) -> Iterator[SubgraphBuilder]:
    """Collect operations in a new subgraph until the block ends.

    Raises:
        Unsupported: the block mutated an outer object; with ``allow_side_effects``, an outer tensor.
    """
    outer = tx.graph
    builder = SubgraphBuilder(outer)
    mutations_before = tx.side_effects.external_mutation_count
    fakes = [value.fake for value, _ in tx.inputs.input_tensors]
    graph: GraphBuilder | None = outer
    while graph is not None:
        fakes += tensor_values(graph.graph.nodes)
        graph = graph.outer
    versions = [(fake, _version_of(fake)) for fake in fakes]
    grad = torch.is_grad_enabled()
    tx.graph = builder
    try:
        yield builder
        if torch.is_grad_enabled() != grad:
            raise Unsupported("higher-order-side-effect", "the body of a higher-order operator changes grad mode")
    except BaseException:
        builder.discard()
        raise
    finally:
        tx.graph = outer
        set_grad_enabled(grad)
    changed = any(_version_of(fake) != version for fake, version in versions)
    if changed or (not allow_side_effects and mutations_before != tx.side_effects.external_mutation_count):
        builder.discard()
        raise Unsupported("higher-order-side-effect", "the body of a higher-order operator has a side effect")


def _version_of(fake: torch.Tensor) -> int:
    return 0 if fake.is_inference() else fake._version


def add_parameter_like(tx: Tracer, builder: SubgraphBuilder, fake: torch.Tensor) -> TensorVariable:
    """Add an input to the subgraph with the metadata of ``fake``."""
    copy = fake_leaf_like(tx, fake)
    return TensorVariable(builder.add_parameter(copy), copy)


def add_parameter_for(tx: Tracer, builder: SubgraphBuilder, value: Variable) -> Variable:
    """Add an input to the subgraph for a tensor or symbol; any other value stays as it is."""
    if value.fake is not None:
        return add_parameter_like(tx, builder, value.fake)
    return value if value.sym is None else SymNodeVariable(builder.add_parameter(value.sym), value.sym)


def fake_leaf_like(tx: Tracer, fake: torch.Tensor) -> torch.Tensor:
    """Create a fake leaf tensor with the same metadata."""
    with tx.symbols.fake_mode, torch.no_grad():
        copy = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    copy.requires_grad_(fake.requires_grad)
    return copy


def fake_result_like(tx: Tracer, fake: torch.Tensor, *, requires_grad: bool) -> torch.Tensor:
    """Create a fake tensor with the same metadata that is the output of an operation."""
    with tx.symbols.fake_mode, torch.no_grad():
        copy = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    if not requires_grad or not (copy.is_floating_point() or copy.is_complex()):
        return copy
    copy.requires_grad_()
    with tx.symbols.fake_mode, torch.enable_grad():
        return torch.ops.aten.alias(copy)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TracedSubgraph:
    """A traced subgraph: its outputs, their tree, and the outer nodes it reads."""

    builder: SubgraphBuilder
    outputs: tuple[Variable, ...]
    output_tree: TreeSpec

    def unwrap_single_output(self) -> None:
        """Make a graph with one output return it without a tuple."""
        output = self.builder.graph.output_node()
        output.args = (output.args[0][0],)  # type: ignore[index]

    def module(self) -> torch.fx.GraphModule:
        """Return the finished graph module."""
        return self.builder.to_graph_module("NestedGraph")


def trace_subgraph(
    tx: Tracer,
    function: Variable,
    parameters: Callable[[SubgraphBuilder], list[Variable]],
    *,
    clone_returned_inputs: bool = False,
    allow_side_effects: bool = False,
    allow_input_mutation: bool = False,
) -> TracedSubgraph:
    """Trace ``function`` into a subgraph, on the inputs that ``parameters`` adds to it.

    ``clone_returned_inputs`` clones inputs that are returned.
    ``allow_side_effects`` allows mutation of outer containers: the body runs once, as in Python.
    ``allow_input_mutation`` allows in-place mutation of inputs: the caller passes the tensors that Python would.

    Raises:
        Unsupported: the function mutates an outer object or an input, or its result is not a tree of tensors,
            symbols and constants.
    """
    frames = list(tx.call_stack.frames)
    with (
        tx.side_effects.recording_mutations() as changed,
        building_subgraph(tx, allow_side_effects=allow_side_effects) as builder,
    ):
        arguments = parameters(builder)
        inputs: list[Variable] = []
        for value in arguments:
            flatten_variable(tx, value, inputs)
        versions = [(v.fake, _version_of(v.fake)) for v in inputs if v.fake is not None]
        result = function.call(tx, arguments, {})
        leaves: list[Variable] = []
        tree = flatten_variable(tx, result, leaves)
        if clone_returned_inputs:
            leaves = [_clone_if_aliased(tx, v, inputs) for v in leaves]
        if not allow_input_mutation and any(_version_of(fake) != version for fake, version in versions):
            raise Unsupported("higher-order-side-effect", "the body of a higher-order operator mutates an argument")
        nodes = [v.as_node_arg(tx)[0] for v in leaves]
        builder.graph.output(tuple(nodes))
    if not allow_side_effects:
        _check_no_outer_mutation(frames, changed)
    return TracedSubgraph(builder, tuple(leaves), tree)


def _clone_if_aliased(tx: Tracer, value: Variable, inputs: list[Variable]) -> Variable:
    """Clone an output that aliases an input or an outer tensor."""
    if value.fake is None:
        return value
    inner = value.as_node_arg(tx)[0].graph is tx.graph.graph
    shared = any(g.fake is not None and shares_storage(value.fake, g.fake) for g in inputs)
    return value.call_method(tx, "clone", [], {}) if shared or not inner else value


def shares_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if two fake tensors have the same storage."""
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _check_no_outer_mutation(frames: Sequence[Frame], changed: Sequence[Variable]) -> None:
    """Check that no mutated variable is reachable from frames outside of the subgraph.

    Raises:
        Unsupported: one is.
    """
    todo: list[Variable] = []
    for frame in frames if changed else ():
        todo += [*frame.stack, *frame.locals.values(), *frame.cells.values()]
        todo += [] if frame.function is None else frame.function.child_variables()
    if not {id(v) for v in changed}.isdisjoint(id(v) for v in reachable_variables(todo)):
        raise Unsupported("higher-order-side-effect", "the body of a higher-order operator has a side effect")


def lift_shared_free_variables(bodies: Sequence[TracedSubgraph]) -> list[torch.fx.Node]:
    """Add the free variables of all subgraphs as inputs to each; return the outer nodes."""
    outside = list(dict.fromkeys(node for body in bodies for node in body.builder.free_variables()))
    for body in bodies:
        body.builder.lift_free_variables(outside)
    return outside


def tensor_values(nodes: Iterable[torch.fx.Node]) -> list[torch.Tensor]:
    """Return the fake tensors that these nodes compute."""
    values = (node.meta.get("example_value") for node in nodes)
    return [value for value in values if isinstance(value, torch.Tensor)]


def variable_for_node(node: torch.fx.Node) -> Variable:
    """Create a variable for a lifted node."""
    for fake in tensor_values([node]):
        return TensorVariable(node, fake)
    return SymNodeVariable(node, node.meta["example_value"])
