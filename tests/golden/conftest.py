"""The fixture of golden pairs."""

from __future__ import annotations

from tests.golden.pairs import pair

__all__ = ["pair"]
