"""Catalog of reasons not to save a result in the disk cache."""

from __future__ import annotations

import pathlib

import pytest

import engine
from engine.cache.fallback_kinds import CACHE_REASONS, CacheFallback


def test_each_kind_has_a_page_and_a_site() -> None:
    """Kinds and pages are the same ids, and each kind is given somewhere."""
    assert {kind.id for kind in CacheFallback} == set(CACHE_REASONS)
    files = pathlib.Path(engine.__path__[0]).rglob("*.py")
    text = "\n".join(p.read_text(encoding="utf-8") for p in files if p.name != "fallback_kinds.py")
    assert [kind.name for kind in CacheFallback if f"CacheFallback.{kind.name}" not in text] == []


@pytest.mark.parametrize("kind", CacheFallback)
def test_a_page_says_why_and_what_to_do(kind: CacheFallback) -> None:
    """Each page has a cause and a hint."""
    page = CACHE_REASONS[kind.id]
    assert page.cause.endswith(".")
    assert kind.hint.endswith(".")
