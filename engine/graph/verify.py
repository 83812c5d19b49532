"""FX graph verifier: runs after tracing, after functionalization and between passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.fx

from engine.ir.introspection.operator_facts import facts_of
from engine.ir.node_values import called_overload

Rule = Callable[[torch.fx.GraphModule], Iterator[str]]


class GraphVerificationError(ValueError):
    """An internal stage produced an invalid graph; the text names the nodes and rules."""

    def __init__(self, title: str, faults: tuple[str, ...]) -> None:
        self.violations = faults
        super().__init__(f"{title}: {'; '.join(faults)}")


def inputs_come_first(module: torch.fx.GraphModule) -> Iterator[str]:
    """Check that placeholders precede all other nodes."""
    begun = False
    for node in module.graph.nodes:
        if node.op == "placeholder" and begun:
            yield f"the input {node.name} is after the first operation"
        begun = begun or node.op != "placeholder"


def one_output_at_the_end(module: torch.fx.GraphModule) -> Iterator[str]:
    """Check that the only output node is last and returns a flat tuple or list."""
    nodes = list(module.graph.nodes)
    outputs = [n for n in nodes if n.op == "output"]
    if len(outputs) != 1 or nodes[-1] is not outputs[0]:
        yield "the graph does not end with exactly one output"
    elif not isinstance(outputs[0].args[0], (tuple, list)):
        yield "the output is not a tuple"


def defined_before_use(module: torch.fx.GraphModule) -> Iterator[str]:
    """Check that every node reads only earlier nodes."""
    defined: set[torch.fx.Node] = set()
    for node in module.graph.nodes:
        for read in node.all_input_nodes:
            if read not in defined:
                yield f"{node.name} reads {read.name}, which is not defined before it"
        defined.add(node)


def values_have_fakes(module: torch.fx.GraphModule) -> Iterator[str]:
    """Check that nodes have a fake value in ``meta["example_value"]`` or ``meta["val"]``.

    Outputs and operators without results need none.
    """
    for node in module.graph.nodes:
        if node.op == "output" or _returns_nothing(node) or is_body(node):
            continue
        if "val" not in node.meta and "example_value" not in node.meta:
            yield f"{node.name} has no fake value"


def is_body(node: torch.fx.Node) -> bool:
    """Return True if a node is the body of a higher-order operator, without a fake value."""
    return node.op == "get_attr" and any(map(callable, [getattr(node.graph.owning_module, str(node.target), None)]))


def _returns_nothing(node: torch.fx.Node) -> bool:
    called = called_overload(node.target)
    return called is not None and not called._schema.returns


def calls_only_functions(module: torch.fx.GraphModule) -> Iterator[str]:
    """Check that only operators and functions are called, no modules and no methods."""
    for node in module.graph.nodes:
        if node.op in ("call_module", "call_method"):
            yield f"{node.name} is a {node.op}"


def is_functional(module: torch.fx.GraphModule) -> Iterator[str]:
    """Check that no operator mutates an argument."""
    for node in module.graph.nodes:
        if facts_of(called_overload(node.target)).writes:
            yield f"{node.name} ({node.target}) mutates one of its arguments"


WELL_FORMED_RULES: tuple[Rule, ...] = (inputs_come_first, one_output_at_the_end, defined_before_use)
FUNCTIONAL_RULES: tuple[Rule, ...] = (*WELL_FORMED_RULES, values_have_fakes, calls_only_functions, is_functional)


def verify_graph(module: torch.fx.GraphModule, rules: tuple[Rule, ...], title: str) -> None:
    """Check a graph against rules.

    Raises:
        GraphVerificationError: At least one rule is violated.
    """
    faults = tuple(fault for rule in rules for fault in rule(module))
    if faults:
        raise GraphVerificationError(title, faults)
