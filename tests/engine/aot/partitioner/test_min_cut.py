"""The min-cut has networkx's capacity, and removing its edges separates source from sink."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from engine.aot.partitioner.min_cut import INFINITE, FlowNetwork


@pytest.mark.parametrize("seed", range(30))
def test_capacities_are_those_of_another_implementation(seed: int) -> None:
    """On random graphs the cut has minimal capacity, and its edges separate the two sides."""
    chance = random.Random(seed)
    count = chance.randint(2, 14)
    edges = [
        (a, b, chance.randint(0, 9)) for a in range(count) for b in range(count) if a != b and chance.random() < 0.35
    ]
    network = FlowNetwork()
    for _ in range(count):
        network.node()
    reference = nx.DiGraph()
    reference.add_nodes_from(range(count))
    for a, b, capacity in edges:
        network.edge(a, b, capacity)
        reference.add_edge(a, b, capacity=capacity)
    value, beyond = network.min_cut(0, count - 1)
    assert value == nx.maximum_flow_value(reference, 0, count - 1)
    assert 0 not in beyond
    assert count - 1 in beyond
    assert sum(c for a, b, c in edges if a not in beyond and b in beyond) == value


def test_no_cut() -> None:
    """A path that must not be cut is told by its capacity."""
    network = FlowNetwork()
    a, b = network.node(), network.node()
    network.edge(a, b, INFINITE)
    assert network.min_cut(a, b)[0] >= INFINITE
