"""Walks over syntax trees see what ``ast.walk`` sees, but contexts and operators."""

from __future__ import annotations

import ast

from tests.syntax_trees import WITHOUT_PARTS, walk

SOURCE = "def f(a, *, b=1):\n    return [not a < i <= b and -i for i in range(3) if i % 2 or i in (a, b)]\n"


def test_walk_sees_all_nodes_in_order() -> None:
    """Nodes come in the order of ``ast.walk``."""
    tree = ast.parse(SOURCE)
    assert walk(tree) == [node for node in ast.walk(tree) if not isinstance(node, WITHOUT_PARTS)]


def test_operators_lead_nowhere() -> None:
    """All trees share their operators, and a library may note a parent on them."""
    tree, other = ast.parse(SOURCE), ast.parse("a < b")
    shared = next(node for node in ast.walk(other) if isinstance(node, ast.Lt))
    shared.parent = other.body[0].value  # type: ignore[attr-defined]
    try:
        assert len(walk(tree)) < 60
    finally:
        del shared.parent  # type: ignore[attr-defined]
