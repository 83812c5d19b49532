"""How eager lays out new tensors and views, told from sizes and strides: the orders of dimensions that its operators go by.

All of it takes symbols, and asks for no guard: what depends on what a symbol is is as it is in this call, and raises ``Unknown`` where
that is known to the running graph only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx.experimental.symbolic_shapes import statically_known_true

Sizes = Sequence[Any]
Layout = tuple[Sizes, Sizes]
"""Sizes and strides."""


class Unknown(Exception):
    """It depends on what only the running graph knows."""


def are_same(a: Sizes, b: Sizes) -> bool:
    """Whether two rows of sizes are one."""
    return len(a) == len(b) and all(_is(x == y) for x, y in zip(a, b, strict=True))


def in_rows(shape: Sizes) -> tuple[Any, ...]:
    """Strides of a contiguous tensor."""
    return _in_order(shape, _rows(shape), least=1)


def as_empty_like(shape: Sizes, strides: Sizes) -> tuple[Any, ...]:
    """Strides of a new tensor that is to lie as one does: its own where elements lie one after another, else those by its order."""
    if _lies(shape, strides, _rows(shape)) or _fills(shape, strides):
        return tuple(strides)
    return _in_order(shape, _order(shape, [strides]), least=1)


def by_suggestion(shape: Sizes, of: Layout) -> tuple[Any, ...]:
    """Strides of a new tensor that lies in rows, or channels last where ``of`` does."""
    size, strides = of
    if len(size) not in (4, 5) or len(shape) != len(size) or not _suggests_channels_last(size, strides):
        return in_rows(shape)
    return _in_order(shape, [1, *range(len(shape) - 1, 1, -1), 0], least=1)


def by_operands(shape: Sizes, operands: Sequence[Layout]) -> tuple[Any, ...]:
    """Strides of what is computed element by element; a number that is made a tensor is an operand without dimensions.

    Raises:
        Unknown: this is something else: an operand has more dimensions.
    """
    if any(len(size) > len(shape) for size, _ in operands):
        raise Unknown
    if all(are_same(size, shape) for size, _ in operands):
        alike = _of_alike(shape, [strides for _, strides in operands])
        if alike is not None:
            return alike
    order = _order(shape, [_broadcast(shape, *o) for o in operands])
    return _in_order(shape, order, least=1 if order == _rows(shape) else 0)


def of_view(shape: Sizes, of: Layout) -> tuple[Any, ...]:
    """Strides of a view of other sizes of the same elements.

    Raises:
        Unknown: there is no such view, too.
    """
    size, old = of
    if any(_is(n == 0) for n in size):
        return tuple(old) if are_same(size, shape) else in_rows(shape)
    if not size:
        return (1,) * len(shape)
    strides: list[Any] = []
    step, held, seen = old[-1], 1, 1
    d = len(shape) - 1
    for n in range(len(size) - 1, -1, -1):
        held = held * size[n]
        if n and (_is(size[n - 1] == 1) or _is(old[n - 1] == held * step)):
            continue
        while d >= 0 and (_is(shape[d] == 1) or not _is(seen == held)):
            strides.append(seen * step)
            seen = seen * shape[d]
            d -= 1
        if not _is(seen == held):
            raise Unknown
        step, held, seen = old[n - 1], 1, 1
    if d >= 0:
        raise Unknown
    return tuple(reversed(strides))


def _rows(shape: Sizes) -> list[int]:
    return list(reversed(range(len(shape))))


def _suggests_channels_last(size: Sizes, strides: Sizes) -> bool:
    """Whether strides grow from the channels by the last dimensions to the first, as torch asks of a layout before it keeps it."""
    least: Any = 0
    if _is(strides[1] == 0):
        return False
    for d in (1, *range(len(size) - 1, 1, -1), 0):
        if _is(size[d] == 0) or _is(strides[d] < least) or (d == 0 and _is(least == strides[1])):
            return False
        least = strides[d]
        if not _is(size[d] == 1) and not _is(size[d] == 0):
            least = least * size[d]
    return True


def _of_alike(shape: Sizes, strides: Sequence[Sizes]) -> tuple[Any, ...] | None:
    """Of operands of one shape: rows if all lie in rows, channels last if all do, else as all lie, if they lie alike without gaps."""
    for order in [_rows(shape), [1, 3, 2, 0]] if len(shape) == 4 else [_rows(shape)]:
        if all(_lies(shape, s, order) for s in strides):
            return _in_order(shape, order, least=1)
    if all(are_same(s, strides[0]) for s in strides[1:]) and _fills(shape, strides[0]):
        return tuple(strides[0])
    return None


def _lies(shape: Sizes, strides: Sizes, order: Sequence[int]) -> bool:
    """Whether elements lie one after another by this order of dimensions, innermost first. Without elements they lie in rows."""
    if order == _rows(shape) and any(_is(n == 0) for n in shape):
        return True
    expected: Any = 1
    for d in order:
        if not _is(shape[d] == 1):
            if not _is(strides[d] == expected):
                return False
            expected = expected * shape[d]
    return True


def _fills(shape: Sizes, strides: Sizes) -> bool:
    """Whether elements lie one after another in any order."""
    placed: list[int] = []
    for d, size in enumerate(shape):
        if not _is(size == 1):
            n = next((k for k, e in enumerate(placed) if _is(strides[d] < strides[e])), len(placed))
            placed.insert(n, d)
    return _lies(shape, strides, [*placed, *(d for d in range(len(shape)) if d not in placed)])


def _broadcast(shape: Sizes, size: Sizes, strides: Sizes) -> list[Any]:
    """Strides of an operand for the dimensions of the result: 0 where it has none, or one element for several."""
    more = len(shape) - len(size)
    own = [0 if _is(n == 1) and not _is(w == 1) else s for n, s, w in zip(size, strides, shape[more:], strict=True)]
    return [0] * more + own


def _order(shape: Sizes, operands: Sequence[Sizes]) -> list[int]:
    """Dimensions, innermost first: an insertion sort that goes past what the operands do not tell apart."""
    order = _rows(shape)
    for i in range(1, len(order)):
        inner = i
        for outer in range(i - 1, -1, -1):
            way = _compared(order[outer], order[inner], shape, operands)
            if way > 0:
                order[outer], order[inner] = order[inner], order[outer]
                inner = outer
            elif way < 0:
                break
    return order


def _compared(a: int, b: int, shape: Sizes, operands: Sequence[Sizes]) -> int:
    """Whether dimension ``a`` is to lie inside of ``b`` (-1), around it (1), or the operands do not tell (0)."""
    for strides in operands:
        left, right = strides[a], strides[b]
        if _is(left == 0) or _is(right == 0):
            continue
        if _is(left < right):
            return -1
        if not _is(left == right) or _is(shape[a] > shape[b]):
            return 1
    return 0


def _in_order(shape: Sizes, order: Sequence[int], *, least: int) -> tuple[Any, ...]:
    """Strides of a new tensor by an order of dimensions, innermost first; ``least``: what an empty dimension counts for."""
    strides: list[Any] = [1] * len(shape)
    step: Any = 1
    for d in order:
        strides[d] = step
        step = step * (least if least and _is(shape[d] == 0) else shape[d])
    return tuple(strides)


def _is(fact: Any) -> bool:
    """Whether it is so, asking for no guard."""
    if isinstance(fact, bool):
        return fact
    if statically_known_true(fact):
        return True
    if fact.node.hint is None:
        raise Unknown
    return bool(fact.node.hint)
