"""Find a pattern graph in a graph, and put another graph in the place of a match."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.node_values import nodes_in

_Map = dict[torch.fx.Node, torch.fx.Node]


@dataclass(frozen=True)
class PatternGraph:
    """A traced function: ``inputs`` by parameter (None: unused), and the nodes of its results."""

    module: torch.fx.GraphModule
    inputs: tuple[torch.fx.Node | None, ...]
    results: tuple[torch.fx.Node, ...]


@dataclass
class PatternMatch:
    """One match: nodes of the pattern with nodes of the graph."""

    nodes: _Map
    inputs: tuple[torch.fx.Node, ...]
    results: tuple[torch.fx.Node, ...]
    graph_nodes: list[torch.fx.Node] = field(default_factory=list)

    @property
    def is_stale(self) -> bool:
        """True if a node of the match was erased."""
        return any(n._erased for n in self.graph_nodes)


def pattern_graph(module: torch.fx.GraphModule, sources: Mapping[str, str], fn: Callable[..., Any]) -> PatternGraph:
    """Return a traced function as a pattern.

    ``sources``: source expressions of placeholders by name.
    """
    by_parameter = {sources.get(n.name): n for n in module.graph.find_nodes(op="placeholder")}
    parameters = inspect.signature(fn).parameters
    output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    return PatternGraph(
        module, tuple(by_parameter.get(f"L[{p!r}]") for p in parameters), tuple(nodes_in(output.args[0]))
    )


def find_matches(
    module: torch.fx.GraphModule, pattern: PatternGraph, *, exact: bool, at: PatternMatch | None = None
) -> list[PatternMatch]:
    """Return the matches of a pattern that do not overlap, in the order of the graph.

    Not ``exact``: numbers, and lists of numbers, may differ. ``at``: look only for this match again.
    """
    matches: list[PatternMatch] = []
    matched: set[torch.fx.Node] = set()
    order = {n: i for i, n in enumerate(module.graph.nodes)}
    candidates = list(module.graph.nodes) if at is None else [at.results[0]]
    for node in candidates:
        match = _match_at(node, pattern, exact=exact)
        if match is None or matched.intersection(match.graph_nodes) or not _is_replaceable(match, order):
            continue
        matched.update(match.graph_nodes)
        matches.append(match)
    return matches


def _match_at(node: torch.fx.Node, pattern: PatternGraph, *, exact: bool) -> PatternMatch | None:
    """Match the first result of a pattern with a node.

    Further results are looked for among the users of matched nodes.
    """
    nodes: _Map = {}
    if not _match_nodes(pattern.results[0], node, nodes, exact):
        return None
    for result in pattern.results[1:]:
        if result in nodes:
            continue
        near = {u: None for n in tuple(nodes.values()) for u in n.users if u not in nodes.values()}
        for other in near:
            trial = dict(nodes)
            if _match_nodes(result, other, trial, exact):
                nodes = trial
                break
        else:
            return None
    used = [p for p in pattern.inputs if p is not None]
    if len(used) != len(pattern.inputs) or any(p not in nodes for p in used):
        return None
    inner = [n for p, n in nodes.items() if p.op != "placeholder"]
    return PatternMatch(nodes, tuple(nodes[p] for p in used), tuple(nodes[r] for r in pattern.results), inner)


def _match_nodes(pattern: torch.fx.Node, candidate: torch.fx.Node, nodes: _Map, exact: bool) -> bool:
    """Match a node of the pattern, and what it is computed from; ``nodes`` gets the pairs."""
    if pattern in nodes:
        return nodes[pattern] is candidate
    if pattern.op == "placeholder":
        nodes[pattern] = candidate
        return True
    if pattern.op != candidate.op or pattern.target != candidate.target or pattern.op == "get_attr":
        return False
    if candidate in nodes.values():
        return False
    nodes[pattern] = candidate
    pairs = ((pattern.args, candidate.args), (dict(pattern.kwargs), dict(candidate.kwargs)))
    return all(_match_arguments(a, b, nodes, exact) for a, b in pairs)


def _match_arguments(pattern: Any, candidate: Any, nodes: _Map, exact: bool) -> bool:
    pair = (nodes_in((pattern,)), nodes_in((candidate,)))
    if pair[0] == [pattern] or pair[1] == [candidate]:
        return pair[0] == [pattern] and pair[1] == [candidate] and _match_nodes(pattern, candidate, nodes, exact)
    items, candidate_items = _items(pattern), _items(candidate)
    if items is None or candidate_items is None:
        if items is not candidate_items:
            return False
        return repr(pattern) == repr(candidate) or (not exact and _is_number(pattern) and _is_number(candidate))
    if not exact and not any(pair) and all(map(_is_number, (*items, *candidate_items))):
        return True
    return len(items) == len(candidate_items) and all(
        _match_arguments(a, b, nodes, exact) for a, b in zip(items, candidate_items, strict=True)
    )


def _items(value: Any) -> list[Any] | None:
    """Return the items of a container, those of a dict by key; None for other values."""
    if hasattr(value, "items"):
        return [part for key in sorted(value) for part in (key, value[key])]
    return list(value) if hasattr(value, "__iter__") and not hasattr(value, "encode") else None


def _is_number(value: Any) -> bool:
    return hasattr(value, "__floordiv__")


def _is_replaceable(match: PatternMatch, order: Mapping[torch.fx.Node, int]) -> bool:
    """Return True if nothing between the matched nodes, nor they themselves, writes to memory."""
    positions = [order[n] for n in match.graph_nodes]
    between = [n for n, position in order.items() if min(positions) <= position <= max(positions)]
    return not any(facts_of_node(n).writes or facts_of_node(n).running_stats for n in between)


def substitute(module: torch.fx.GraphModule, match: PatternMatch, replacement: PatternGraph) -> None:
    """Compute the results of a match by another graph; erase nodes that nothing reads."""
    graph = module.graph
    order = {n: i for i, n in enumerate(graph.nodes)}
    copies: _Map = {p: n for p, n in zip(replacement.inputs, match.inputs, strict=True) if p is not None}
    ready = max((order[i] for i in match.inputs), default=-1)
    last = max((order[n] for n in match.graph_nodes), default=ready)
    last_node = list(graph.nodes)[last]
    for node in _body(replacement.module):
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), copies.__getitem__)
        target: Any = node.target
        if node.op == "get_attr":
            target = _free_name(module, f"{node.target}_of_pattern")
            setattr(module, target, getattr(replacement.module, str(node.target)))
        with graph.inserting_after(last_node):
            copies[node] = last_node = graph.create_node(node.op, target, args, kwargs)
    for old, new in zip(match.results, replacement.results, strict=True):
        old.replace_all_uses_with(copies[new], delete_user_cb=order.__contains__)
    for node in sorted(match.graph_nodes, key=order.__getitem__, reverse=True):
        if not node.users:
            graph.erase_node(node)


def _body(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    return (n for n in module.graph.nodes if n.op not in ("placeholder", "output"))


def _free_name(module: torch.fx.GraphModule, name: str) -> str:
    number = 0
    while hasattr(module, f"{name}_{number}"):
        number += 1
    return f"{name}_{number}"
