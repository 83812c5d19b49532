"""Combining blocks in Triton's interpreter gives what combining elements gives."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.runtime.triton_interpreter.fold_blocks import reduce_by_halves, scan_by_doubling
from tests.markers import needs_triton

pytestmark = needs_triton


def tensor(data: Any) -> Any:
    """A block of whole numbers, as the interpreter holds it."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.core.tensor(TensorHandle(data, tl.int64), tl.block_type(tl.int64, list(data.shape)))


class Affine:
    """Compose functions ``a * x + b``: the order of the operands matters."""

    def __init__(self) -> None:
        self.call_count = 0

    def fn(self, a: Any, b: Any, a_after: Any, b_after: Any) -> tuple[Any, Any]:
        """Apply the second function to the result of the first."""
        self.call_count += 1
        first, second = a.handle.data, a_after.handle.data
        return tensor(first * second), tensor(b.handle.data * second + b_after.handle.data)


def affine_blocks() -> tuple[Any, Any]:
    """Blocks of both coefficients."""
    generator = np.random.default_rng(0)
    return tensor(generator.integers(1, 3, (4, 8))), tensor(generator.integers(-5, 5, (4, 8)))


def arrays(blocks: Any) -> list[Any]:
    """The numbers of blocks."""
    return [block.handle.data for block in blocks]


def same(found: Any, wanted: Any) -> None:
    """Assert that blocks have the same numbers, shapes and types."""
    for mine, its in zip(found, wanted, strict=True):
        assert mine.type == its.type
        np.testing.assert_array_equal(mine.handle.data, its.handle.data, strict=True)


@pytest.mark.parametrize("keep_dims", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_reduction_combines_in_order(axis: int, keep_dims: bool) -> None:
    """A reduction keeps the order of the elements, and calls once a halving."""
    from triton.runtime.interpreter import ReduceOps

    combine, by_element = Affine(), Affine()
    blocks = affine_blocks()
    found = reduce_by_halves(never)(ReduceOps(axis, combine, keep_dims), blocks)
    same(found, ReduceOps(axis, by_element, keep_dims).generic_reduce(blocks))
    assert combine.call_count == (2, 3)[axis]


def test_a_reduction_of_all_elements_gives_one() -> None:
    """Without an axis, all elements are combined in the order of memory."""
    from triton.runtime.interpreter import ReduceOps

    blocks = affine_blocks()
    found = reduce_by_halves(never)(ReduceOps(None, Affine(), False), blocks)
    flat = tuple(tensor(data.ravel()) for data in arrays(blocks))
    same(found, ReduceOps(0, Affine(), False).generic_reduce(flat))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_combines_in_order(axis: int) -> None:
    """A scan combines each element with all before it, and calls once a doubling."""
    from triton.runtime.interpreter import ScanOps

    combine = Affine()
    blocks = affine_blocks()
    found = scan_by_doubling(never)(ScanOps(axis, combine, False), blocks)
    same(found, ScanOps(axis, Affine(), False).generic_scan(blocks))
    assert combine.call_count == (2, 3)[axis]


def test_a_combine_function_that_needs_scalars_gets_them() -> None:
    """A function that branches on an operand is called once an element."""
    from triton.runtime.interpreter import ReduceOps, ScanOps

    larger = SimpleNamespace(fn=lambda a, b: a if a.handle.data > b.handle.data else b)
    blocks = affine_blocks()[1:]
    reduced = reduce_by_halves(ReduceOps.generic_reduce)(ReduceOps(1, larger, False), blocks)
    scanned = scan_by_doubling(ScanOps.generic_scan)(ScanOps(1, larger, False), blocks)
    np.testing.assert_array_equal(arrays(reduced)[0], arrays(blocks)[0].max(1))
    np.testing.assert_array_equal(arrays(scanned)[0], np.maximum.accumulate(arrays(blocks)[0], 1))


def never(*arguments: Any) -> Callable[..., Any]:
    """Stand for the way that takes single elements, which must not be taken."""
    raise AssertionError("the elements were combined one by one")
