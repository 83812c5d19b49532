"""Exercise Python functions that compute sizes and numbers from dynamic ones."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch.torch_version import TorchVersion

from tests.programs import program

#: Whether a copy into a part of unknown size stays in a graph: torch before 2.13 asks if the sizes are equal.
COPIES_UNKNOWN_SIZES = TorchVersion(torch.__version__) >= (2, 13)


def images():
    """Calls with images of several heights."""
    return [lambda n=n: (torch.arange(2.0 * 3 * n * 8).reshape(2, 3, n, 8),) for n in (5, 7, 10, 13)]


@program(*images())
def scaled(x):
    """Sizes are rounded in each of Python's ways."""
    h = x.shape[2]
    sizes = int(h * 1.5), math.ceil(h / 2), math.floor(h * 0.7), round(h / 3), math.trunc(h / 4) + 1
    return [F.interpolate(x, size=(size, 8)).sum((0, 1)) for size in sizes], sizes


@program(*images())
def parts(x):
    """How many parts of four there are decides the size of what is padded."""
    n = x.size(2)
    padded = F.pad(x, (0, 0, 0, math.ceil(n / 4) * 4 - n))
    return padded[:, :, : int(math.sqrt(n))] * n**-0.5, padded.shape, round(n / 3, 2), float(n)


@program(*images())
def decided(x):
    """What was calculated decides branches: of that the compiled code is sure."""
    n = x.shape[2]
    if math.sqrt(n) > 3 or round(n / 2) == 3:
        return x * math.sin(n)
    if math.prod(x.shape[1:]) > 200:
        return x + x.shape.numel()
    return x - math.log2(n)


@program(*images())
def truths(x):
    """Comparisons of sizes as tensors."""
    n = x.shape[2]
    return torch.tensor(n > 6), torch.tensor([n > 6, n % 2 == 0]), torch.tensor(n), torch.tensor([n / 2, 1]), x * 2


@program(*[lambda n=n: (torch.arange(6.0), n, [n, 3 * n]) for n in (2.5, 3.25, 1.75, 4.5, 0.125, 9.0)])
def numbers_of_math(x, n, pair):
    """Functions without a symbolic form are computed before the graph runs."""
    pair[0] += 1.0
    decayed = 0.05 + 0.9 * math.exp(-1.0 * pair[0] / 20.0) + math.exp(-n)
    more = math.erf(n), math.log(1 + n), math.pow(n, 1.5), math.copysign(2, -n), math.comb(math.floor(n) + 9, 2)
    return x * decayed + math.degrees(math.radians(n)), decayed, more, x + 1 if math.isclose(n, 100.0) else x


@program(*[lambda n=n: (torch.ones(n + 2, 3), 0.3 * n, {"k": [n + 1]}) for n in (1, 2, 3, 4, 0, 7)])
def numbers_of_several(x, a, d):
    """Functions of several numbers and sizes, and sums that sympy would round otherwise."""
    n, k = x.shape[0], d["k"][0]
    total = a % 0.7 + 0.1 + a * k
    more = math.hypot(a, k), math.log(n / k), math.comb(n, k), a // (k + 0.5), total, total == a % 0.7 + 0.1 + a * k
    return x * math.exp(-a / k) + math.atan2(n, x.shape[1]), more, x + 1 if total > 2.0 else x


@program(*[lambda n=n: (torch.arange(3.0), n % 2 == 0, [n > 1, n == 0, True]) for n in range(5)])
def bools_in_tensors(x, flag, flags):
    """Bools that change become numbers of 0 and 1 in tensors, and decide branches as before."""
    made = torch.tensor(flags), torch.tensor([flag, 2]), torch.tensor([flags, flags], dtype=torch.float32)
    return x * made[0], made, torch.tensor(flag), x + 1 if flags[1] else x, flag is True, [flag, not flag]


@program(*[lambda n=n: (torch.arange(6.0), n) for n in (2.5, 3.25, -1.75, 4.5, 0.0, 9.0)])
def numbers(x, n):
    """A number that is no whole one changes; one that has no root is no surprise."""
    try:
        root = math.sqrt(n)
    except ValueError as error:
        root = str(error)
    more = math.floor(n), math.ceil(n), int(n), round(n, 1), round(n), n.is_integer(), math.tanh(n)
    return x * math.floor(n) + round(n), x[: abs(int(n))], root, more, n and 2, (x + 1 if n else x)


@program(*[lambda n=n: (torch.arange(6.0), n) for n in (2, 3, 4)])
def complex_numbers(x, n):
    """A changing number beside a complex one."""
    return x * (n + 1j), x * complex(n, 2)


@program(*[lambda n=n: (torch.tensor(n),) for n in (2.25, 3.75, 5.5)])
def read_from_tensors(x):
    """Numbers that a tensor holds."""
    n = x.item()
    return torch.tensor(n) * 2, torch.tensor([[n], [2.0]]), torch.ones(math.floor(n)), math.ceil(n), round(n)


def pieces():
    """A table, and how many of its rows are asked for."""
    return [lambda n=n: (torch.arange(24.0).reshape(8, 3), torch.tensor(n)) for n in (2, 3, 5)]


@program(*pieces(), steady=False)
def within_bounds(x, n):
    """An unbacked number is checked to be a bounded size; torch warns of such checks once."""
    k = n.item()
    torch._check_is_size(k, max=x.size(0))
    return x.narrow(0, 1, k) * 2


@program(*[lambda n=n: (torch.arange(6.0), n, np.int64(12)) for n in (5, 7, 11, 14)])
def greatest(x, n, large):
    """``max`` and ``min`` of a dynamic number and other types keep the winner's type."""
    greater = max(n, 8), max(n, 8.5), max(n, large) + 0, max(n, n + 0.0), max(float(n), 2)
    return x * n, greater, min(n, 8.5), min(n, True), n + True, n > True


@program(*[lambda n=n: (torch.arange(6.0), n) for n in (2.5, 1.7, 0.1, 1e300, 3.3)])
def rounded_at_each_step(x, n):
    """Python rounds at each step, which algebra does not: what follows is as Python has it."""
    decided = n * 0.1 * 10 == n, (n + 0.1) - 0.1 == n, n * 3 / 3 == n
    return x + 1 if decided[0] else x - 1, decided, n * 0.7 * 0.3, n - n / 3


@program(*[lambda n=n: (torch.arange(20.0), n) for n in (5, 7, 9, 11)])
def sizes_of_rounded_products(x, n):
    """So it is with sizes: 29 hundredths of a hundred are 28.999..."""
    few = int(n * 0.29 * 100) % 7 + 1
    return x[:few] if int(n * 0.57 * 100) == 57 * n else x[few:], few, ~n


@program(*[lambda n=n: (torch.arange(3.0), n) for n in (2.5, 1.5, float("nan"), float("inf"), 0.0, -0.0, 4.5)])
def no_number(x, n):
    """What is no number equals not even itself, and infinity less itself is none."""
    return (x + 1 if n == n else x - 1), (x * 2 if n - n == 0 else x), (x * 3 if n * 0 == 0 else x)


@program(*[lambda i=i: (torch.arange(40.0).reshape(10, 4), i) for i in (5, 6, 8, -2, -9)])
def positions(x, i):
    """Rows and elements at positions that change, read and written."""
    y = x.clone()
    y[i] = 0.0
    y[i - 1, 1:3] += 2.0
    return x[i], x[..., i, :2], x[i, None], x[x.shape[0] - 1], x[i][1] + x[-1, i % 4], y


@program(*[lambda i=i: (torch.arange(24.0).reshape(6, 4), i) for i in (2, 3, 6, -7, 9)], breaks=1)
def positions_out_of_range(x, i):
    """A position that is not there is told in Python's words."""
    try:
        return x[i] * 2
    except IndexError as error:
        return str(error)


@program(*[lambda k=k: (torch.arange(12.0).reshape(4, 3), k, k / 4) for k in (2, 3, 5, 6)])
def views_of_calculated_sizes(x, k, f):
    """Returned views have sizes that Python calculates from ints and floats."""
    wide = x.sum(0).expand(1 + math.ceil(k * f), -1)
    return wide, (x * 2).view(-1)[: round(f * 2) + 1], torch.tensor([k, k == 3]), torch.tensor([k > 2, k == 3])


@program(*[lambda n=n: (torch.arange(n * 2.0).reshape(2, n), torch.arange(6.0).reshape(3, 2)) for n in (5, 3, 4, 9)])
def divided_by_negative_numbers(x, y):
    """Of a number rounded down and divided again by a negative one."""
    n = x.shape[1]
    return y[-((n // 4) // -2) % 3 :], abs(n // -4) % 4, (n // 3) // -1, x[:, : -(-n // 2)], divmod(n, -2)


@program(*[lambda n=n: (torch.arange(n * 2.0).reshape(n, 2), n * 3) for n in (5, 3, 4, 9, 14)])
def remainders_of_products(x, n):
    """Of products of sums, which algebra takes for multiples of what they are no multiples of."""
    rows = x.shape[0]
    found = (2 * rows + 2) ** 2 % 100, (2 * rows + 2) * (rows % 4) % 6, (6 * n + 18) ** 3 % 10, (4 * n + 8) * rows % 4
    return x * found[0], list(found), [found[0] == 0, [0 * rows, found[1]]]


@program(lambda: (torch.tensor([4, 5, 6]),), breaks=1)
def remainder_of_what_data_decides(x):
    """The same of a number that only the data decides."""
    n = x[0].item()
    return x * ((2 * n + 2) ** 2 % 100), n


@program(*[lambda n=n: (torch.arange(n * 4.0).reshape(n, 4).clone(),) for n in (5, 3, 4, 9)])
def layouts_changed_in_place(x):
    """An argument of a size that varies is transposed, gets a dimension and is written to."""
    y = x.sigmoid()
    x.transpose_(0, -1)
    x += x
    x.unsqueeze_(1)
    return y, x.flatten(1), x[0]


@program(lambda: (torch.randn(4, 3), torch.tensor([1, 0, 1, 1])), breaks=1)
def a_jump_over_what_values_sized(x, mask):
    """A condition that follows from a tensor of unknown size is a jump like any other."""
    chosen = x[torch.where(mask)[0]]
    low = chosen.sum(1) <= 0.9
    if low.sum() == 0:
        return x
    return (chosen.sum(1) * low).sum() / low.sum()


@program(*[lambda n=n: (torch.arange(n * 4.0).reshape(n, 4),) for n in (3, 5, 7)], steady=False)
def specialized_after_arithmetic(x):
    """A view has twice a size that a later loop makes constant."""
    return x.view(x.shape[0] * 2, 2), sum(x[n] for n in range(x.shape[0]))


@program(*images())
def products_of_what_generators_yield(x):
    """A product of sizes, over a generator and over ``map``, also with a start."""
    flat = x.reshape(math.prod(d for d in x.shape[:2]), -1)
    return flat * math.prod((d for d in x.shape), start=2), flat + math.prod(map(abs, (-2, 3)))


@program(*[lambda n=n: (torch.arange(20.0).reshape(5, 4), torch.tensor(n)) for n in (2, 3, 0)])
def row_of_a_number_read(x, n):
    """A row at a place read from a tensor has static sizes and an offset that depends on data."""
    row = x[n.item()][None, None]
    return (row[..., 2:] - row[..., :2]).clamp(min=0) * 2


@program(
    *[
        lambda n=n, at=at: (torch.zeros(4, 6), torch.randn(n, 4), torch.tensor([at]))
        for n, at in ((2, 0), (2, 4), (3, 3))
    ],
    breaks=0 if COPIES_UNKNOWN_SIZES else 1,
)
def queue_of_columns(queue, made, at):
    """New columns are written where a counter says, as in a cache of keys or a queue."""
    start, count = int(at), made.shape[0]
    queue[:, start : start + count] = made.T
    at[0] = (start + count) % 6
    return queue * 2


@program(*[lambda s=s, k=k: (torch.ones(k), s) for s, k in ((2.5, 2), (3.5, 3), (0.5, 4))])
def floats_that_algebra_makes_integers(x, s):
    """A float less itself and a float by itself are floats where a graph returns them."""
    zero, one = s - s, s / s
    size = zero + x.shape[0]
    x += zero
    return x, zero, one, size, torch.arange(3) + zero
