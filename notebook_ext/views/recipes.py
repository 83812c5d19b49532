"""Recipes of the reference pages, by the view that they apply to."""

from __future__ import annotations

from typing import Any

from engine.records.session import Session

PAGE = "notebooks/reference/RECIPES.md"
_GRAPH = (
    "Count the operators of each graph",
    "Count the bytes that a graph writes",
    "Count the floating-point operations of products",
    "Name the largest value of a graph, with your line",
    "See what a pass changed",
    "Replace one operator by another",
    "Find a pattern and replace it, with values compared",
    "Drop a multiplication by one",
    "Compute matrix products in bfloat16",
    "Let one pass run before another",
    "A pass that breaks the graph is undone",
)
_KERNELS = (
    "Fuse bias and gelu into an operator of your own",
    "Lower an operator of your own to ATen, so that it fuses",
    "Find the operator that a backend computes wrongly",
    "Shrink a failing call to the operators that it needs",
    "Find the operators that a backend makes slower than eager",
    "Try other settings of a kernel, and keep the fastest",
)
_EDIT = ("Edit a graph as text", "Keep an edited graph in a file", "A file that shows a graph to someone else")


def recipes(session: Session) -> dict[str, Any]:
    """Return the page of recipes, and the titles that apply to each view of a session."""
    del session  # all parts take a session
    return {"page": PAGE, "titles": recipes_by_view()}


def recipes_by_view() -> dict[str, tuple[str, ...]]:
    """Return the titles of the recipes that apply to each view."""
    return {
        "graph": _GRAPH,
        "kernels": _KERNELS,
        "edit": _EDIT,
        "recompiles": ("Fail a test that compiles twice",),
        "aot": ("A backend in a few lines",),
    }
