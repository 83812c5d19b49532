"""Walks over syntax trees, for checks that read all sources."""

from __future__ import annotations

import ast

WITHOUT_PARTS = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)


def walk(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes of a tree, outer ones first, but no contexts and operators.

    They are in the order of ``ast.walk``, which takes three times as long. Contexts and operators are shared by all
    trees of a process, and libraries put attributes on them that lead into other trees.
    """
    nodes = [tree]
    for node in nodes:
        for value in vars(node).values():
            if isinstance(value, list):
                nodes += [part for part in value if isinstance(part, ast.AST) and not isinstance(part, WITHOUT_PARTS)]
            elif isinstance(value, ast.AST) and not isinstance(value, WITHOUT_PARTS):
                nodes.append(value)
    return nodes
