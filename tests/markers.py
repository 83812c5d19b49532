"""Conditions on which tests run."""

from __future__ import annotations

import importlib.util
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest

MANY_CASES, QUICK_SHARE = 3, 32
"""A test with more cases than the first number runs one in the second in ``make quick``."""

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed; it has wheels for Linux only, and CI refuses to run without it",
)
"""Marks tests that compile kernels. CI skips none of them.

``tests/conftest.py`` ends a CI run without Triton.
"""

each_kind_of_target = pytest.mark.parametrize(
    "target", ["cuda:75", "cuda:80", "cuda:90", "cuda:100", "cuda:120", "hip:gfx942", "hip:gfx1100"]
)
"""Runs a test for targets with different matrix instructions; the slow ring takes all."""


def slow_except_sample(name: str, share: int) -> tuple[pytest.MarkDecorator, ...]:
    """Return the mark of the slow ring, except for one name in ``share``."""
    return (pytest.mark.slow,) if zlib.crc32(name.encode()) % share else ()


def left_out_combinations(items: Iterable[pytest.Item]) -> Iterator[pytest.Function]:
    """Yield the cases marked ``combinations`` without a value that no chosen case has.

    Each value of each argument is in a chosen case. The choice depends on nothing but names.
    """
    cases = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("combinations"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for group in cases.values():
        left = {
            item: {(name, id(value)) for name, value in item.callspec.params.items()}
            for item in sorted(group, key=lambda item: zlib.crc32(item.nodeid.encode()))
        }
        seen: set[tuple[str, int]] = set()
        while new := max((values - seen for values in left.values()), key=len, default=set()):
            seen |= new
            del left[next(item for item, values in left.items() if new <= values)]
        yield from left


def thorough_items(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield most cases of tests that have many; which ones depends on nothing but their names."""
    cases = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append((zlib.crc32(item.nodeid.encode()), item))
    for group in cases.values():
        if len(group) > MANY_CASES:
            lowest = min(number for number, _ in group)
            yield from (item for number, item in group if number % QUICK_SHARE and number != lowest)
