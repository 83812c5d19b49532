"""Examples: for each break reason, a minimal function with the break and one without it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class BreakExample:
    """Source code of two functions ``f(x)`` with a tensor ``x``: with and without the break.

    ``before`` has the break, ``after`` has none. ``torch`` and ``engine`` are imported.
    """

    before: str
    after: str


def _example(before: str, after: str) -> BreakExample:
    return BreakExample(textwrap.dedent(before).strip(), textwrap.dedent(after).strip())


BREAK_EXAMPLES: dict[str, BreakExample] = {
    "tensor-jump": _example(
        """
        def f(x):
            if x.sum() > 0:
                return x + 1
            return x - 1
        """,
        """
        def f(x):
            return torch.where(x.sum() > 0, x + 1, x - 1)
        """,
    ),
    "data-dependent": _example(
        """
        def f(x):
            scales = [1.0, 2.0, 4.0, 8.0]
            return x * scales[x.argmax().item()]
        """,
        """
        def f(x):
            scales = torch.tensor([1.0, 2.0, 4.0, 8.0])
            return x * scales[x.argmax()]
        """,
    ),
    "dynamic-output": _example(
        """
        def f(x):
            total = 0
            for value in x[x > 1]:
                total = total + value
            return total
        """,
        """
        def f(x):
            return torch.where(x > 1, x, 0).sum()
        """,
    ),
    "print": _example(
        """
        def f(x):
            y = x * 2
            print(y)
            return y + 1
        """,
        """
        def f(x):
            y = x * 2
            return y + 1, y  # printed by the caller
        """,
    ),
    "unknown-call": _example(
        """
        def f(x):
            scale = eval("2 + 1")
            return x * scale
        """,
        """
        SCALE = eval("2 + 1")

        def f(x):
            return x * SCALE
        """,
    ),
    "outside-iterator": _example(
        """
        scales = map(int, "123")

        def f(x):
            for scale in scales:
                x = x * scale
            return x
        """,
        """
        scales = [1, 2, 3]

        def f(x):
            for scale in scales:
                x = x * scale
            return x
        """,
    ),
    "disabled": _example(
        """
        @engine.disable
        def shift(y):
            return y + 1

        def f(x):
            return shift(x * 2)
        """,
        """
        def shift(y):
            return y + 1

        def f(x):
            return shift(x * 2)
        """,
    ),
    "asked": _example(
        """
        def f(x):
            y = x * 2
            engine.graph_break()
            return y + 1
        """,
        """
        def f(x):
            y = x * 2
            return y + 1
        """,
    ),
    "unsupported-operation": _example(
        """
        def f(x):
            scales = [2, 3, 5, 7]
            return x * scales[x.argmax()]
        """,
        """
        def f(x):
            scales = torch.tensor([2, 3, 5, 7])
            return x * scales.take(x.argmax())
        """,
    ),
    "unsupported-opcode": _example(
        """
        async def double(x):
            return x * 2

        def f(x):
            try:
                double(x + 1).send(None)
            except StopIteration as done:
                return done.value
        """,
        """
        def double(x):
            return x * 2

        def f(x):
            return double(x + 1)
        """,
    ),
    "unsupported-argument": _example(
        """
        class Place:
            def __index__(self):
                return 1

        def f(x):
            return torch.narrow(x, 0, Place(), 1)
        """,
        """
        def f(x):
            return torch.narrow(x, 0, 1, 1)
        """,
    ),
    "generator-frame": _example(
        """
        def f(x):
            for scale in (1, 2):
                yield x * scale
        """,
        """
        def f(x):
            return [x * scale for scale in (1, 2)]
        """,
    ),
    "async-frame": _example(
        """
        async def f(x):
            return x * 2
        """,
        """
        def f(x):  # called by the coroutine
            return x * 2
        """,
    ),
    "depth": _example(
        """
        def grow(x, times):
            return x if times == 0 else grow(x + 1, times - 1)

        def f(x):  # engine.config.inline_depth is 60
            return grow(x, 100)
        """,
        """
        def f(x):
            for _ in range(50):
                x = x + 1
            return x
        """,
    ),
    "budget": _example(
        """
        def f(x):
            total = 0
            for n in range(10_000_000):
                total += n
            return x + total
        """,
        """
        def f(x):
            return x + sum(range(1000))
        """,
    ),
    "raises": _example(
        """
        def f(x):
            if x.dim() != 2:
                raise ValueError(f"x has {x.dim()} dimensions")
            return x * 2
        """,
        """
        def f(x):
            return x.reshape(-1, 2) * 2
        """,
    ),
    "side-effect": _example(
        """
        import itertools

        def f(x):
            rounds = itertools.cycle([x, x * 2])
            first = next(rounds)
            return first, rounds
        """,
        """
        import itertools

        def f(x):
            return x, itertools.cycle([x * 2, x])
        """,
    ),
    "still-running": _example(
        """
        def rows(x):
            try:
                yield x.absent
            except AttributeError:
                yield x
                yield x * 2

        def f(x):
            found = rows(x)
            first = next(found)
            print(first.shape)
            return first + next(found)
        """,
        """
        def rows(x):
            yield x
            yield x * 2

        def f(x):
            found = rows(x)
            return next(found) + next(found)
        """,
    ),
    "global-state": _example(
        """
        from torch.utils.flop_counter import FlopCounterMode

        @engine.compile(backend="eager")
        def twice(x):
            return x * 2

        @engine.disable
        def counted(x):
            with FlopCounterMode(display=False):
                return twice(x)

        def f(x):
            return counted(x)
        """,
        """
        def twice(x):
            return x * 2

        def f(x):
            return twice(x)
        """,
    ),
    "fake-tensor": _example(
        """
        @engine.compile(backend="eager")
        def twice(row):
            return row.repeat(2)

        @engine.disable
        def length(x):
            mode = torch._subclasses.FakeTensorMode()
            return twice(mode.from_tensor(x)).shape[0]

        def f(x):
            return x * length(x)
        """,
        """
        def twice(row):
            return row.repeat(2)

        def f(x):
            return x * twice(x).shape[0]
        """,
    ),
}
"""Example of each break reason; ``internal`` (an internal error) has none."""
