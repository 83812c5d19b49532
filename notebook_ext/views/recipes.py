"""Recipes: short programs, by the view that they apply to."""

from __future__ import annotations

import functools
import pathlib
import re
import symtable
from typing import Any

from engine.records.session import Session

FILE = pathlib.Path(__file__).parents[1] / "recipes.md"
_BLOCK = re.compile(r"(?:## ([^\n]+)\n\n)?```python\n(.*?)```", re.DOTALL)
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
    """Return the titles that apply to each view of a session, and the program of each title."""
    del session  # all parts take a session
    return {"titles": recipes_by_view(), "programs": programs()}


@functools.cache
def programs() -> dict[str, str]:
    """Return each recipe by title as a whole program: with the blocks above it that it needs."""
    blocks = _BLOCK.findall(FILE.read_text(encoding="utf-8"))
    names = [_names(text) for _, text in blocks]
    found = {}
    for index, (title, text) in enumerate(blocks):
        parts, needed = [text], set(names[index][1])
        for (_, above), (bound, read) in zip(reversed(blocks[:index]), reversed(names[:index]), strict=True):
            if bound & needed:
                parts.insert(0, above)
                needed = (needed - bound) | read
        if title:
            found[title] = "\n\n".join(part.strip() for part in parts) + "\n"
    return found


def _names(text: str) -> tuple[set[str], set[str]]:
    """Return the global names that a block binds, and those that it only reads."""
    tables = [symtable.symtable(text, "recipe", "exec")]
    for table in tables:
        tables.extend(table.get_children())
    bound = {s.get_name() for s in tables[0].get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    read = {s.get_name() for s in tables[0].get_symbols() if s.is_referenced()}
    read.update(s.get_name() for table in tables[1:] for s in table.get_symbols() if s.is_global())
    return bound, read - bound


def recipes_by_view() -> dict[str, tuple[str, ...]]:
    """Return the titles of the recipes that apply to each view."""
    return {
        "graph": _GRAPH,
        "kernels": _KERNELS,
        "edit": _EDIT,
        "recompiles": ("Fail a test that compiles twice",),
        "aot": ("A backend in a few lines",),
    }
