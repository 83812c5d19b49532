"""Catalog of fallbacks to ATen: each kind has a page whose example programs are true."""

from __future__ import annotations

import ast
import contextlib
import pathlib
import re
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import engine
from engine import lowering
from engine.lowering.fallbacks.kinds import LOWERING_REASONS, LoweringFallback, lowering_hint
from engine.records.lowering import ExternCall
from tests.markers import needs_triton

WITHOUT_PROGRAM = {
    "forced": "it needs a kernel that does not compile, or a measurement on a GPU",
    "lowering-failed": "it is an error of the compiler",
}


def test_each_kind_has_a_page_and_a_site() -> None:
    """Kinds and pages are the same ids, and each kind is given somewhere."""
    assert {kind.id for kind in LoweringFallback} == set(LOWERING_REASONS)
    files = pathlib.Path(lowering.__path__[0]).rglob("*.py")
    text = "\n".join(p.read_text(encoding="utf-8") for p in files if p.parent.name != "fallbacks")
    assert [kind.name for kind in LoweringFallback if f"LoweringFallback.{kind.name}" not in text] == []


def test_no_kind_covers_too_much() -> None:
    """Each kind is given by at most 5 % of the places, so that its advice is specific."""
    files = [p for p in pathlib.Path(lowering.__path__[0]).rglob("*.py") if p.parent.name != "fallbacks"]
    counts = Counter(re.findall(r"LoweringFallback\.(\w+)", "\n".join(p.read_text(encoding="utf-8") for p in files)))
    assert max(counts.values()) <= 0.05 * counts.total(), counts.most_common(3)


@pytest.mark.thorough
def test_each_refusal_has_a_kind() -> None:
    """Every ``NotLowered`` is raised with a kind and a reason."""
    for path in pathlib.Path(lowering.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "NotLowered":
                assert len(node.args) == 2, f"{path}:{node.lineno}"
                assert ast.unparse(node.args[0]).startswith("LoweringFallback."), f"{path}:{node.lineno}"


@pytest.mark.parametrize("id", LOWERING_REASONS)
def test_a_page_says_why_and_what_to_do(id: str) -> None:
    """Each page has a cause and advice, and programs unless no program can show it."""
    page = LOWERING_REASONS[id]
    assert page.cause.endswith(".")
    assert page.advice
    assert all(sentence.endswith(".") for sentence in page.advice)
    assert bool(page.example_before) != (id in WITHOUT_PROGRAM)
    assert bool(page.example_after) != bool(page.no_fix)


@needs_triton
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("id", [id for id in LOWERING_REASONS if id not in WITHOUT_PROGRAM])
def test_a_program_falls_back_and_its_repair_does_not(id: str) -> None:
    """The first program falls back with a hint, the second does not; both equal eager."""
    page = LOWERING_REASONS[id]
    first, calls = outcome(page.example_before)
    found = [call for call in calls if call.kind == id]
    assert found, calls
    assert all(call.hint == ("" if call.is_library else lowering_hint(id)) for call in found)
    if page.example_after:
        second, calls = outcome(page.example_after)
        assert id not in {call.kind for call in calls}
        if not first.is_meta:
            torch.testing.assert_close(first, second)


def outcome(text: str) -> tuple[Any, list[ExternCall]]:
    """Check a compiled program against eager; return its result and its ATen calls.

    The program's text may define its own ``dynamic`` and ``x``.
    """
    with deterministic_mode_restored():
        module = types.ModuleType("lowering_example")
        vars(module).update(torch=torch, engine=engine, x=torch.arange(4.0), dynamic=None)
        exec(text, vars(module))
        f, x, dynamic = (vars(module)[name] for name in ("f", "x", "dynamic"))
        expected = f(x)
        engine.reset()
        with engine.record() as session:
            result = engine.compile(f, dynamic=dynamic)(x)
        torch.testing.assert_close(result, expected)
    records = [c.lowering for c in session.compilations if c.lowering is not None]
    return result, [call for record in records for call in record.externs]


@contextlib.contextmanager
def deterministic_mode_restored() -> Iterator[None]:
    """Undo what a program sets."""
    before = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
