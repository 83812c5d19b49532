"""AOT fallbacks have a kind with a stable id, a reason, a hint and the causing node."""

from __future__ import annotations

import pathlib
from collections import Counter

import pytest
import torch

import engine
from engine.aot.checks import eligibility
from engine.aot.fallback_kinds import AotFallback
from engine.ir.fallback import Fallback, FallbackRequired
from engine.records.aot import AotRecord

ENGINE = pathlib.Path(engine.__file__).parent


def test_ids_are_unique_and_every_kind_has_a_hint() -> None:
    """Each kind has an id of its own, and says what to do in a sentence."""
    assert [id for id, n in Counter(k.id for k in AotFallback).items() if n > 1] == []
    assert all(k.hint.endswith((".", ")")) and k.hint[0].isupper() for k in AotFallback)


def test_every_kind_is_used_and_none_covers_too_much() -> None:
    """Each kind is given somewhere in the engine, and none by more than 5 % of the places."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in ENGINE.rglob("*.py") if p.name != "fallback_kinds.py")
    counts = {k: text.count(f"AotFallback.{k.name}") for k in AotFallback}
    assert [k.name for k, n in counts.items() if n == 0] == []
    assert max(counts.values()) <= 0.05 * sum(counts.values())


def test_each_module_of_checks_holds_one_check() -> None:
    """Each file beside the base and the list holds exactly one of the checks that run."""
    modules = sorted(c.__module__.rpartition(".")[2] for c in eligibility.CHECKS)
    files = sorted(p.stem for p in (ENGINE / "aot" / "checks").glob("*.py"))
    assert modules == [f for f in files if f not in ("__init__", "base", "eligibility")]


def test_a_fallback_names_its_node() -> None:
    """The reason starts with the node's name, and the exception carries the value."""
    node = torch.fx.Graph().placeholder("x")
    made = Fallback.for_node(node, AotFallback.OUT_RESIZED, "resizes its out= tensor")
    assert (made.reason, made.node) == ("x resizes its out= tensor", "x")
    with pytest.raises(FallbackRequired, match="resizes") as raised:
        raise FallbackRequired(made.kind, made.reason, made.node)
    assert raised.value.fallback == made


def test_the_record_has_the_fallback() -> None:
    """The record of a graph that falls back holds the kind, the reason, the hint and the node."""

    @engine.compile
    def half(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).unsafe_chunk(2)[0]

    with engine.record() as session:
        assert torch.equal(half(torch.ones(2)), torch.full((1,), 2.0))
    aot = session.compilations[0].aot
    assert aot is not None and aot.fallback is not None and aot.mode == "eager"
    assert aot.fallback.kind == AotFallback.UNSAFE_VIEW_ESCAPES.id
    assert aot.fallback.hint == AotFallback.UNSAFE_VIEW_ESCAPES.hint
    assert aot.fallback.node and aot.fallback.node in aot.note
    assert AotRecord.from_dict(aot.to_dict()) == aot
