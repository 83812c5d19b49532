"""Conditions on which tests run."""

from __future__ import annotations

import importlib.util

import pytest

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed; it has wheels for Linux only, and CI refuses to run without it",
)
"""Marks tests that compile kernels. CI skips none of them.

``tests/conftest.py`` ends a CI run without Triton.
"""
