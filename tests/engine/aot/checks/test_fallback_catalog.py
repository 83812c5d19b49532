"""Each kind in the AOT fallback catalog has a page whose programs behave as stated."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import engine
from engine.aot.fallback_kinds import AOT_REASONS, AotFallback

WITH_PROGRAM = [id for id in AOT_REASONS if AOT_REASONS[id].example_before]


def test_each_kind_has_a_page() -> None:
    """Kinds and pages are the same ids; no title is used twice."""
    assert {kind.id for kind in AotFallback} == set(AOT_REASONS)
    assert len({page.title for page in AOT_REASONS.values()}) == len(AOT_REASONS)


@pytest.mark.parametrize("id", AOT_REASONS)
def test_a_page_says_why_and_what_to_do(id: str) -> None:
    """Each page has a cause and a hint; programs come in pairs."""
    page = AOT_REASONS[id]
    assert page.cause.endswith(".")
    assert page.hints
    assert all(hint.endswith((".", ")")) for hint in page.hints)
    assert bool(page.example_before) == bool(page.example_after)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("id", WITH_PROGRAM)
def test_a_program_falls_back_and_its_repair_does_not(id: str) -> None:
    """The page's first program falls back for its reason, and the second does not fall back.

    Both return what eager returns.
    """
    page = AOT_REASONS[id]
    first, kinds = outcome(page.example_before)
    assert id in kinds
    second, kinds = outcome(page.example_after)
    assert kinds == []
    if not isinstance(first, Exception):  # some programs raise without a compiler
        torch.testing.assert_close(first, second)


def outcome(text: str) -> tuple[Any, list[str]]:
    """Result of a compiled program, which is that of eager, and the kinds of its fallbacks."""
    results, kinds = [], []
    for is_compiled in (False, True):
        with anomaly_mode_restored():
            module = types.ModuleType("aot_example")
            vars(module).update(torch=torch, engine=engine, x=torch.arange(4.0), dynamic=None, no_grad=False)
            exec(text, vars(module))
            f, x, dynamic, no_grad = (vars(module)[name] for name in ("f", "x", "dynamic", "no_grad"))
            engine.reset()
            with engine.record() as session, torch.no_grad() if no_grad else contextlib.nullcontext():
                results.append(
                    result_of(engine.compile(f, backend="aot_eager", dynamic=dynamic) if is_compiled else f, x)
                )
            kinds += [c.aot.fallback.kind for c in session.compilations if c.aot is not None and c.aot.fallback]
    expected, result = results
    assert type(expected) is type(result), (expected, result)
    if not isinstance(result, Exception):
        torch.testing.assert_close(result, expected)
    return result, kinds


def result_of(f: Any, x: Any) -> Any:
    """What a call returns, as plain values, or the exception that it raises."""
    try:
        result = f(x)
    except Exception as error:
        return error
    return getattr(result, "a", result).detach()


@contextlib.contextmanager
def anomaly_mode_restored() -> Iterator[None]:
    """Undo what a program sets."""
    before = torch.is_anomaly_enabled()
    try:
        yield
    finally:
        torch.autograd.set_detect_anomaly(before)
