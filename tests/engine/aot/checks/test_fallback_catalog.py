"""Each kind in the AOT fallback catalog has a page whose programs behave as stated."""

from __future__ import annotations

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
from engine.aot.fallback_kinds import AOT_REASONS, AotFallback
from engine.ir.fallback import Fallback, FallbackKind
from engine.torch_private.pytree import tree_leaves, tree_map

NOT_RECORDED = {"double-backward-input-freed", "double-backward-of-mutated-input"}
"""Kinds of fallbacks that a backward makes, after the compilation is recorded."""


def test_each_kind_has_a_page() -> None:
    """Kinds and pages are the same ids; no title is used twice."""
    assert {kind.id for kind in AotFallback} == set(AOT_REASONS)
    assert len({page.title for page in AOT_REASONS.values()}) == len(AOT_REASONS)


def test_no_kind_covers_too_much() -> None:
    """Each kind is given by at most 5 % of the places, so that its advice is specific."""
    files = [p for p in pathlib.Path(engine.__path__[0]).rglob("*.py") if p.name != "fallback_kinds.py"]
    counts = Counter(re.findall(r"AotFallback\.(\w+)", "\n".join(p.read_text(encoding="utf-8") for p in files)))
    assert max(counts.values()) <= 0.05 * counts.total(), counts.most_common(3)
    assert counts.keys() == {kind.name for kind in AotFallback}


@pytest.mark.parametrize("id", AOT_REASONS)
def test_a_page_says_why_and_what_to_do(id: str) -> None:
    """Each page has a cause, a hint and two programs."""
    page = AOT_REASONS[id]
    assert page.cause.endswith(".")
    assert page.hints
    assert all(hint.endswith((".", ")")) for hint in page.hints)
    assert page.example_before
    assert page.example_after


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("id", AOT_REASONS)
def test_a_program_falls_back_and_its_repair_does_not(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's first program falls back for its reason, and the second does not fall back.

    Both return what eager returns. The compilation's record has the fallback.
    """
    made: list[str] = []

    def init(fallback: Fallback, kind: FallbackKind, reason: str, node: str = "") -> None:
        made.append(kind.id)
        initialize(fallback, kind, reason, node)

    initialize = Fallback.__init__
    monkeypatch.setattr(Fallback, "__init__", init)
    page = AOT_REASONS[id]
    with engine.record() as session:
        first = outcome(page.example_before)
    assert id in made
    recorded = {c.aot.fallback.kind for c in session.compilations if c.aot is not None and c.aot.fallback is not None}
    assert id in recorded or id in NOT_RECORDED
    made.clear()
    second = outcome(page.example_after)
    assert made == []
    if not isinstance(first, Exception) and _has_values(first):  # some programs raise without a compiler
        torch.testing.assert_close(first, second)


def outcome(text: str) -> Any:
    """Return the result of a compiled program, which is that of eager.

    The program may define ``x``, ``dynamic``, ``no_grad``, and ``use(f, x)``, which calls the function.
    """
    results = []
    for is_compiled in (False, True):
        with anomaly_mode_restored():
            module = types.ModuleType("aot_example")
            vars(module).update(torch=torch, engine=engine, x=torch.arange(4.0), dynamic=None, no_grad=False)
            vars(module).update(use=lambda f, x: f(x))
            exec(text, vars(module))
            f, x, dynamic, no_grad, use = (vars(module)[name] for name in ("f", "x", "dynamic", "no_grad", "use"))
            engine.reset()
            with torch.no_grad() if no_grad else contextlib.nullcontext():
                compiled = engine.compile(f, backend="aot_eager", dynamic=dynamic) if is_compiled else f
                results.append(result_of(use, compiled, x))
    expected, result = results
    assert type(expected) is type(result), (expected, result)
    if not isinstance(result, Exception) and _has_values(result):
        torch.testing.assert_close(result, expected)
    return result


def result_of(use: Any, f: Any, x: Any) -> Any:
    """What a call returns, as plain values, or the exception that it raises."""
    try:
        result = use(f, x)
    except Exception as error:
        return error
    return tree_map(lambda t: getattr(t, "a", t).detach(), result)


def _has_values(result: Any) -> bool:
    return not any(t.is_meta for t in tree_leaves(result))


@contextlib.contextmanager
def anomaly_mode_restored() -> Iterator[None]:
    """Undo what a program sets."""
    before = torch.is_anomaly_enabled()
    try:
        yield
    finally:
        torch.autograd.set_detect_anomaly(before)
