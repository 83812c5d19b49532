"""In-place writes to bool and integer tensors, which cannot hold the computation dtype."""

import torch

from tests.programs import program


@program(lambda: (torch.ones(3, dtype=torch.bool),))
def no_kernel_in_place(x):
    """There is a running sum of truths, but none in place: the numbers are what they were."""
    try:
        x.logical_not_()
        x.cumsum_(0)
    except NotImplementedError as error:
        return x, str(error)
    return x


@program(lambda: (torch.ones(3, dtype=torch.int32),), breaks=1)
def fractions_in_place(x):
    """Whole numbers cannot hold what they would be multiplied by."""
    try:
        x.add_(1)
        x.ldexp_(x)
    except RuntimeError as error:
        return x, str(error)
    return x
