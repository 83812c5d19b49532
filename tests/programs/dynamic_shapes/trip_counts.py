"""Ranges whose bounds change between calls, read in every way, also across breaks."""

import torch

from tests.programs import call, program

COUNTS = [lambda n=n: (torch.ones(3), n) for n in (3, 4, 6, 2, 1, 0, -2, 5)]


@program(*COUNTS, breaks=1)
def break_in_the_body(x, n):
    """One entry per place serves every trip count."""
    for i in range(n):
        x = x.cos() + i
        if x.sum() < 0:
            return x, i
    return x - n


@program(*COUNTS, breaks=1)
def numbered_downward(x, n):
    """Both the first number and the step are not the usual ones."""
    seen = []
    for i in range(n, -1, -2):
        x = x * i
        print(i)
        seen.append(i)
    return x, seen


@program(*[lambda a=a, b=b: (torch.ones(3), a, b) for a, b in ((1, 3), (2, 5), (4, 4), (3, 9))], breaks=1)
def between_two_numbers(x, first, last):
    """Both bounds vary; numbers of the range are symbols."""
    for i in range(first, last):
        print(i)
        x = x + i * 0.5
    return x


@program(*COUNTS)
def read_whole(x, n):
    """Everything that needs all numbers specializes."""
    numbers = range(n)
    listed = [*numbers], list(zip("abc", numbers, strict=False)), len(numbers), bool(numbers), 2 in numbers
    return x + sum(numbers), listed, numbers == range(n), hash(numbers), numbers.stop, list(reversed(numbers))


@program(*COUNTS[:4], breaks=1)
def carried_over_a_break(x, n):
    """The range itself and an advanced iterator over it."""
    numbers = range(1, n, 2)
    rest = iter(numbers)
    first = next(rest)
    print(first)
    return x * first, numbers, list(rest), repr(numbers)


@program(*COUNTS[:4])
def as_index_of_a_tensor(x, n):
    """A range selects elements as a list does."""
    return torch.arange(8.0)[range(n)], x


@program(*[lambda n=n: (torch.ones(3), n) for n in (3, 4, 5)])
def returned_unread(x, n):
    """Nobody iterates, so nothing specializes."""
    return x * n, range(n), iter(range(n)).__length_hint__()


@program(*[lambda n=n: call(torch.ones(n + 1, 2), n) for n in (2, 3, 4)], breaks=1)
def rows(x, n):
    """Numbers of the range index a tensor."""
    total = x.new_zeros(2)
    for i in range(n):
        total = total + x[i] * x[i + 1 :].sum(0)
        print("row")
    return total


@program(*[lambda n=n: (torch.full((2,), 0.1 * n),) for n in (1, 2, 3)], breaks=1)
def adaptive_steps(y):
    """Numbers that a loop changes around a break; Python rounds the sum at each step."""
    t, h, steps = 0.0, 0.1, 0
    while t < 0.5:
        y = y + h * y.cos()
        error = (y.sum() * 0.01).item()
        t = t + h + error * 0.01
        h = h * min(1.5, 0.9 / (error + 0.5))
        steps += 1
    return y, t, h, steps
