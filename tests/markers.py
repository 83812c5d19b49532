"""Conditions on which tests run."""

from __future__ import annotations

import importlib.util
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import pytest

MANY_CASES, QUICK_SHARE = 3, 32
"""A test with more cases than the first number runs one in the second in ``make quick``."""

LONG_FILES = (
    "tests/notebooks/test_run_notebooks.py",
    "tests/engine/lowering/test_values_match_eager.py",
    "tests/notebooks/test_binder.py",
    "tests/engine/test_reproducers.py",
    "tests/notebooks/test_packaging.py",
    "tests/engine/lowering/test_op_coverage.py",
    "tests/notebooks/test_exercise_checks.py",
    "tests/engine/lowering/test_fuzz_graphs.py",
    "tests/engine/planning/test_plan_step.py",
    "tests/engine/test_minimize.py",
    "tests/engine/observe/test_ranks.py",
    "tests/engine/lowering/templates/test_templates.py",
    "tests/engine/test_tune_kernels.py",
    "tests/notebook_ext/test_doctor_command.py",
)
"""Files with tests that take long, without those of the browser, which come first anyway."""

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


def long_tests_first(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the items with long ones at the beginning of each worker's share.

    xdist cuts the items into a share for each worker, and workers that are done take over what others have at their
    end. A long test that began there would leave the other workers without work. The first share begins with the browser.
    """
    files: dict[str, list[pytest.Item]] = {name: [] for name in LONG_FILES}
    others = []
    for item in items:
        files.get(item.nodeid.partition("::")[0], others).append(item)
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for number, group in enumerate(filter(None, files.values())):
        shares[1 + number % (workers - 1) if workers > 1 else 0] += group
    ordered: list[pytest.Item] = []
    for number, share in enumerate(shares):
        size = (len(items) - len(ordered)) // (workers - number)
        room = size - len(share)
        if not 0 <= room <= len(others):
            return list(items)
        ordered += [*share, *others[:room]]
        del others[:room]
    return ordered
