"""Numbers from ``numpy.random``: one stream in compiled and plain code."""

import numpy as np
import torch

from tests.programs import program


def seeded(*args):
    """Start the global generator and return the arguments."""
    np.random.seed(3)
    return args


@program(*[lambda: seeded(torch.ones(3))] * 2)
def global_generator(x):
    """Floats and integers of Python, in the order of the code."""
    scale, shift = np.random.rand(), np.random.randint(0, 4)
    x = x * scale + shift + np.random.uniform(low=-1, high=2) * np.random.normal(1.0)
    return x, scale, shift, type(shift), np.random.beta(0.4, 0.4), np.random.binomial(9, 0.5)


@program(lambda: (torch.ones(3), np.random.default_rng(0)), lambda: (torch.ones(3), np.random.default_rng(5)))
def own_generator(x, rng):
    """The caller's generator goes on behind the numbers that were taken."""
    return x * rng.random() + rng.normal() * x, rng.uniform(0, 2)


@program(lambda: (torch.ones(3), np.random.RandomState(2)), breaks=2)
def arrays_break(x, rng):
    """Arrays and seeds are Python's."""
    noise = torch.from_numpy(rng.randn(3))
    first = rng.rand()
    rng.seed(1)
    return x + noise * rng.rand(), first


@program(*[lambda: seeded(torch.ones(3))] * 3, breaks=1, steady=False)
def decided_by_a_number(x):
    """A branch on a number is Python's."""
    return x * 2 + np.random.rand() if np.random.rand() < 0.5 else x - np.random.rand()


@program(lambda: seeded(torch.ones(3)), breaks=1)
def wrong_arguments(x):
    """Errors are numpy's, and what was taken before them stays taken."""
    first = np.random.rand()
    try:
        np.random.randint(3, 3)
    except ValueError as error:
        return x * first, str(error), np.random.rand()
    return x
