"""The map at the top of CONTRIBUTING names modules and functions that exist."""

from __future__ import annotations

import ast
import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
STEP = re.compile(r"`([A-Za-z_][\w.]*)`\s+\(`(engine/[\w/]+\.py)`\)")
ROW = re.compile(r"^\|[^|\n]+\| `(engine/[\w/]+\.py)` \| ((?:`[A-Za-z_][\w.]*`(?:, )?)+) \|$", re.MULTILINE)
STEPS = [(module, name) for name, module in STEP.findall(TEXT)]
ROWS = [(module, name) for module, names in ROW.findall(TEXT) for name in re.findall(r"`([\w.]+)`", names)]


@functools.cache
def definitions(module: str) -> frozenset[str]:
    """Top-level names of a module, and the members of its classes as ``Class.member``."""
    found: set[str] = set()
    for node in ast.parse((ROOT / module).read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        found |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)}
    return frozenset(found)


def test_names_of_the_map_exist() -> None:
    """Each name is defined in the module beside it."""
    missing = [f"{module}::{name}" for module, name in sorted({*STEPS, *ROWS}) if name not in definitions(module)]
    assert not missing, "\n".join(missing)


def test_the_map_opens_the_page_and_is_long_enough() -> None:
    """The path of one call comes first; the tables have at least 60 rows, all of them checked."""
    assert TEXT.startswith("# Contributing\n\n## How a call becomes a kernel\n")
    assert len(STEPS) >= 20
    assert len(ROWS) >= 60
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and "`engine/" in line]
    assert len(rows) == len(ROW.findall(TEXT))


def test_a_wrong_name_is_found() -> None:
    """A name that a module does not define is not taken for one that it does."""
    assert "no_such_function" not in definitions("engine/api.py")
