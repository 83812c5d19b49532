"""Tuples from outside the frame that grow before anything reads them."""

import torch

from tests.programs import program

TUPLES = [lambda n=n: (torch.ones(2), tuple(range(n))) for n in (2, 3, 0, 1, 5)]


@program(*TUPLES)
def appended_unread(x, seen):
    """Nothing but emptiness is guarded; the result is a new tuple."""
    longer = (*seen,) if x.dim() > 5 else seen + (x + 1,)  # noqa: RUF005 - the operator is what is tested
    longer += (None, x)
    return longer, seen


@program(*TUPLES)
def appended_and_read(x, seen):
    """Reading the longer tuple reads the shorter one, in any order."""
    longer = seen + (x, 1)  # noqa: RUF005
    found = len(longer), longer[-1], longer[:1], [type(i).__name__ for i in longer]
    return x * 2, found, longer[2:], len(seen), bool(seen), bool(longer), longer is seen


@program(*TUPLES)
def added_to_itself(x, seen):
    """Both operands of the sum are unread."""
    twice = seen + seen
    return x + 1, twice, twice is seen, seen + () is seen, () + seen is seen, twice == seen * 2, hash(twice)


@program(*TUPLES)
def identity_of_the_new_part(x, seen):
    """An empty tuple plus a tuple is the second one itself."""
    part = (x.sin(), 1)
    both = seen + part
    return both is part, both, part, isinstance(both, tuple), {both[-1:]: 1}


@program(*TUPLES)
def tested_and_sent_on(x, seen):
    """Truth needs no length."""
    x = x.cos() if seen else x.sin()
    return (x, *seen) if not seen else seen, x


@program(lambda: (torch.ones(2), 4), lambda: (torch.ones(2), 6), lambda: (torch.ones(2), 9), breaks=1)
def scores_of_a_loop(x, n):
    """A tuple grows by one in each step, and the step breaks the graph."""
    scores = past = ()
    for _ in range(n):
        x = x * 0.5 + 1
        scores += (x,)
        past = ((x, x.sin()), *past[:1])
        if x.max() > 100:
            break
    return torch.stack(scores), past


@program(*TUPLES[:2], breaks=1)
def unhappy_operands(x, seen):
    """Errors are Python's, before and after a break."""
    found = []
    for other in ([1], None, "ab"):
        try:
            seen + other
        except TypeError as error:
            found.append(str(error))
    print(len(found))
    return found, x + 1, (seen + (1,)).count(1), (seen + (3,)).index(3)  # noqa: RUF005
