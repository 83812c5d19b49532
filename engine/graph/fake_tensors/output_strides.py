"""Strides of eager's new tensors and views, computed from sizes and strides.

The rules follow TensorIterator's order of dimensions. Sizes and strides may be symbols. No guard is added:
a condition on symbols is decided by their size hints, and raises ``UnknownStrides`` for unbacked symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.torch_private.symbolic_shapes import statically_known_true

Sizes = Sequence[Any]
SizesAndStrides = tuple[Sizes, Sizes]
"""Sizes and strides."""


class UnknownStrides(Exception):
    """The strides depend on unbacked symbols, or no rule applies."""


def sizes_equal(a: Sizes, b: Sizes) -> bool:
    """Return True if two size tuples are equal."""
    return len(a) == len(b) and all(_is_true_by_hint(x == y) for x, y in zip(a, b, strict=True))


def contiguous(shape: Sizes) -> tuple[Any, ...]:
    """Return the strides of a contiguous tensor."""
    return _strides_in_order(shape, _row_major_order(shape), least=1)


def empty_like_strides(shape: Sizes, strides: Sizes) -> tuple[Any, ...]:
    """Return the strides of a new tensor like one of these sizes and strides.

    A non-overlapping dense tensor passes on its strides; otherwise only its order of dimensions is used.
    """
    if _is_dense_in_order(shape, strides, _row_major_order(shape)) or _is_non_overlapping_and_dense(shape, strides):
        return tuple(strides)
    return _strides_in_order(shape, _dimension_order(shape, [strides]), least=1)


def suggested_format_strides(shape: Sizes, of: SizesAndStrides) -> tuple[Any, ...]:
    """Return contiguous strides, or channels-last strides if ``of`` is channels last."""
    size, strides = of
    if len(size) not in (4, 5) or len(shape) != len(size) or not _suggests_channels_last(size, strides):
        return contiguous(shape)
    return _strides_in_order(shape, [1, *range(len(shape) - 1, 1, -1), 0], least=1)


def elementwise_strides(shape: Sizes, operands: Sequence[SizesAndStrides]) -> tuple[Any, ...]:
    """Return the strides of an elementwise result.

    A number that becomes a tensor is an operand without dimensions.

    Raises:
        UnknownStrides: an operand has more dimensions than the result, so the operator is not elementwise.
    """
    if any(len(size) > len(shape) for size, _ in operands):
        raise UnknownStrides
    if all(sizes_equal(size, shape) for size, _ in operands):
        alike = _same_shape_strides(shape, [strides for _, strides in operands])
        if alike is not None:
            return alike
    order = _dimension_order(shape, [_broadcast_strides(shape, *o) for o in operands])
    return _strides_in_order(shape, order, least=1 if order == _row_major_order(shape) else 0)


def view_strides(shape: Sizes, of: SizesAndStrides) -> tuple[Any, ...]:
    """Return the strides of a ``view`` with other sizes.

    Raises:
        UnknownStrides: also if there is no such view.
    """
    size, old = of
    if any(_is_true_by_hint(n == 0) for n in size):
        return tuple(old) if sizes_equal(size, shape) else contiguous(shape)
    if not size:
        return (1,) * len(shape)
    strides: list[Any] = []
    step, old_numel, new_numel = old[-1], 1, 1
    d = len(shape) - 1
    for n in range(len(size) - 1, -1, -1):
        old_numel = old_numel * size[n]
        if n and (_is_true_by_hint(size[n - 1] == 1) or _is_true_by_hint(old[n - 1] == old_numel * step)):
            continue
        while d >= 0 and (_is_true_by_hint(shape[d] == 1) or not _is_true_by_hint(new_numel == old_numel)):
            strides.append(new_numel * step)
            new_numel = new_numel * shape[d]
            d -= 1
        if not _is_true_by_hint(new_numel == old_numel):
            raise UnknownStrides
        step, old_numel, new_numel = old[n - 1], 1, 1
    if d >= 0:
        raise UnknownStrides
    return tuple(reversed(strides))


def expand_strides(shape: Sizes, of: SizesAndStrides) -> tuple[Any, ...]:
    """Return the strides of ``expand``: 0 in all dimensions of a tensor that had none."""
    size, old = of
    if not size:
        return (0,) * len(shape)
    more = len(shape) - len(size)
    strides = _broadcast_strides(shape, size, old)[more:]
    for n in range(more - 1, -1, -1):
        strides.insert(0, shape[n + 1] * strides[0] if _is_true_by_hint(shape[n] == 1) else 0)
    return tuple(strides)


def _row_major_order(shape: Sizes) -> list[int]:
    return list(reversed(range(len(shape))))


def _suggests_channels_last(size: Sizes, strides: Sizes) -> bool:
    """Return True if strides follow channels-last order.

    The strides must grow from the channels over the last dimensions to the first one; this is torch's test for
    a suggested memory format.
    """
    least: Any = 0
    if _is_true_by_hint(strides[1] == 0):
        return False
    for d in (1, *range(len(size) - 1, 1, -1), 0):
        if (
            _is_true_by_hint(size[d] == 0)
            or _is_true_by_hint(strides[d] < least)
            or (d == 0 and _is_true_by_hint(least == strides[1]))
        ):
            return False
        least = strides[d]
        if not _is_true_by_hint(size[d] == 1) and not _is_true_by_hint(size[d] == 0):
            least = least * size[d]
    return True


def _same_shape_strides(shape: Sizes, strides: Sequence[Sizes]) -> tuple[Any, ...] | None:
    """Return the strides for operands of one shape, or None if their strides differ.

    Contiguous if all are contiguous, channels last if all are channels last, else their common strides if these
    are non-overlapping and dense.
    """
    for order in [_row_major_order(shape), [1, 3, 2, 0]] if len(shape) == 4 else [_row_major_order(shape)]:
        if all(_is_dense_in_order(shape, s, order) for s in strides):
            return _strides_in_order(shape, order, least=1)
    if all(sizes_equal(s, strides[0]) for s in strides[1:]) and _is_non_overlapping_and_dense(shape, strides[0]):
        return tuple(strides[0])
    return None


def _is_dense_in_order(shape: Sizes, strides: Sizes, order: Sequence[int]) -> bool:
    """Return True if the strides are dense in this order of dimensions, innermost first.

    A tensor without elements counts as contiguous.
    """
    if order == _row_major_order(shape) and any(_is_true_by_hint(n == 0) for n in shape):
        return True
    expected: Any = 1
    for d in order:
        if not _is_true_by_hint(shape[d] == 1):
            if not _is_true_by_hint(strides[d] == expected):
                return False
            expected = expected * shape[d]
    return True


def _is_non_overlapping_and_dense(shape: Sizes, strides: Sizes) -> bool:
    """Return True if the strides are non-overlapping and dense, in any order of dimensions."""
    placed: list[int] = []
    for d, size in enumerate(shape):
        if not _is_true_by_hint(size == 1):
            n = next((k for k, e in enumerate(placed) if _is_true_by_hint(strides[d] < strides[e])), len(placed))
            placed.insert(n, d)
    return _is_dense_in_order(shape, strides, [*placed, *(d for d in range(len(shape)) if d not in placed)])


def _broadcast_strides(shape: Sizes, size: Sizes, strides: Sizes) -> list[Any]:
    """Return an operand's strides in the dimensions of the result.

    The stride is 0 in a dimension that is missing or broadcast.
    """
    more = len(shape) - len(size)
    own = [
        0 if _is_true_by_hint(n == 1) and not _is_true_by_hint(w == 1) else s
        for n, s, w in zip(size, strides, shape[more:], strict=True)
    ]
    return [0] * more + own


def _dimension_order(shape: Sizes, operands: Sequence[Sizes]) -> list[int]:
    """Return the order of dimensions, innermost first.

    An insertion sort that skips pairs that the operands leave ambiguous.
    """
    order = _row_major_order(shape)
    for i in range(1, len(order)):
        inner = i
        for outer in range(i - 1, -1, -1):
            comparison = _compare_dims(order[outer], order[inner], shape, operands)
            if comparison > 0:
                order[outer], order[inner] = order[inner], order[outer]
                inner = outer
            elif comparison < 0:
                break
    return order


def _compare_dims(a: int, b: int, shape: Sizes, operands: Sequence[Sizes]) -> int:
    """Compare two dimensions: -1 if ``a`` belongs inside ``b``, 1 if outside, 0 if ambiguous."""
    for strides in operands:
        left, right = strides[a], strides[b]
        if _is_true_by_hint(left == 0) or _is_true_by_hint(right == 0):
            continue
        if _is_true_by_hint(left < right):
            return -1
        if not _is_true_by_hint(left == right) or _is_true_by_hint(shape[a] > shape[b]):
            return 1
    return 0


def _strides_in_order(shape: Sizes, order: Sequence[int], *, least: int) -> tuple[Any, ...]:
    """Return the strides of a new tensor for an order of dimensions, innermost first.

    ``least`` is the factor that an empty dimension contributes; 0 means its size.
    """
    strides: list[Any] = [1] * len(shape)
    step: Any = 1
    for d in order:
        strides[d] = step
        step = step * (least if least and _is_true_by_hint(shape[d] == 0) else shape[d])
    return tuple(strides)


def _is_true_by_hint(fact: Any) -> bool:
    """Return True if a condition holds by its size hints; adds no guard."""
    if isinstance(fact, bool):
        return fact
    if statically_known_true(fact):
        return True
    if fact.node.hint is None:
        raise UnknownStrides
    return bool(fact.node.hint)
