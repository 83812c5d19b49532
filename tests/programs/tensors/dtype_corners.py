"""Zeros with a sign, integers that no float holds, and sums in narrow dtypes."""

import torch
import torch.nn.functional as F

from tests.programs import program

INFINITY = float("inf")


def zeros_and_more(dtype=torch.float32):
    """Zeros with either sign among others, enough for vectors and a rest."""
    return torch.tensor([-0.0, 0.0, -1.0, 1.0, -7.0, 7.0, -2.5, INFINITY, -INFINITY] * 4).to(dtype)


@program(lambda: (zeros_and_more(),))
def signs_of_zeros(x):
    """Limit zeros, and round quotients to zero.

    A limit that equals a zero leaves its sign. A quotient that rounds to zero has the sign of the ratio.
    """
    results = (
        x.clamp(min=0),
        x.clamp(max=0),
        F.relu6(x),
        F.hardtanh(x, 0, 6),
        x // 3,
        x // -3.0,
        torch.div(x, -3.0, rounding_mode="floor"),
        torch.div(x, x + 9.0, rounding_mode="floor"),
    )
    return [(value, value.signbit() & (value == 0)) for value in results]


@program(lambda: (torch.tensor([2**31 - 1, -(2**31), 0, -1, 1, 2, 2**24 + 1] * 3, dtype=torch.int32),))
def thresholds_of_integers(x):
    """Integers stay exact, and the numbers are rounded towards zero."""
    return F.threshold(x, -0.5, -1.0), F.threshold(x, 1.7, 2.9), F.threshold(x.long() * 2**31, 3, -7)


@program(lambda: (zeros_and_more(torch.float16), zeros_and_more(torch.bfloat16)))
def roots_of_narrow_floats(x, y):
    """On the CPU, float16 has powers where other dtypes have roots."""
    return [(value, value.signbit() & (value == 0)) for value in (x**0.5, x**-0.5, y**0.5, y**-0.5)]


@program(lambda: (torch.tensor([2049, 0, 10**5, -(10**5), 7, 0, 3, -3] * 8),))
def sums_in_narrow_dtypes(x):
    """Each element is converted first: it may be rounded, or overflow."""
    y = x.view(8, 8) + 0.25
    return (
        x.sum(dtype=torch.bool),
        y.sum(1, dtype=torch.bool),
        x.prod(dtype=torch.bool),
        y.sum(0, dtype=torch.float16),
        x[:2].sum(dtype=torch.float16),
        y.prod(1, dtype=torch.float16),
        y.cumsum(0, dtype=torch.float16),
        y.sum(0, dtype=torch.int8),
    )


@program(lambda: (torch.ones(8),))
def scan_in_bool(x):
    """No kernel scans in bool."""
    return (x + 1).cumsum(0, dtype=torch.bool)
