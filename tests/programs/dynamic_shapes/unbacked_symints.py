"""Exercise unbacked symbols: numbers and sizes from tensor values stay in the graph."""

import math

import torch
from torch.torch_version import TorchVersion

from tests.programs import program

#: Whether a copy into a part of unknown size stays in a graph: torch before 2.13 asks if the sizes are equal.
COPIES_UNKNOWN_SIZES = TorchVersion(torch.__version__) >= (2, 13)


def pair():
    """A number and a table."""
    return torch.tensor(2), torch.arange(24.0).reshape(4, 6)


def values():
    """Numbers, some of them zero."""
    return (torch.tensor([1.0, 2.0, 0.0, 3.0]),)


@program(values)
def items_in_list(x):
    """Numbers gathered in a list."""
    return [x[i].item() for i in range(3)]


@program(pair, lambda: (torch.tensor(1), torch.randn(4, 6)), breaks=1)
def item_decides(n, x):
    """A number decides a branch."""
    k = n.item()
    if k > 1:
        return x * k
    return x - k


@program(pair)
def item_as_extent(n, x):
    """A number as the size of new tensors and of views."""
    k = n.item()
    return (
        torch.zeros(k) + 1,
        x.narrow(0, 0, k),
        torch.arange(k),
        torch.full((k, 2), 2.0),
        x[0].expand(k, 6),
        x.repeat(k, 1),
    )


@program(pair)
def checked_item(n, x):
    """A number of which something is checked."""
    k = n.item()
    torch._check(k >= 0)
    torch._check(k <= x.shape[0], lambda: f"{k} is too many")
    return x[:k].sum()


@program(pair)
def check_fails(n, x):
    """A check that does not hold raises with its message."""
    k = n.item()
    torch._check(k > 10, lambda: f"k was {k}")
    return x * k


@program(values)
def listed(x):
    """A tensor's numbers unpacked."""
    a, b, c, d = x.tolist()
    return a + b, c * d, x * a


@program(values)
def split_by_lengths(x):
    """Lengths given as a tensor."""
    return x.split(torch.tensor([1, 2, 1]).tolist())


@program(values)
def masked(x):
    """How many elements a mask keeps."""
    y = x[x > 0]
    return y * 2, y.shape[0], y.numel(), torch.cat([y, x])


@program(values)
def sums_of_masked(x):
    """Two sizes that turn out equal."""
    return x[x > 0] + x[x < 5][:3]


@program(values)
def broadcast_after_all(x):
    """Two unknown sizes, one of which is one when the graph runs."""
    y, z = x[x > 0], x[x > 2]
    w = y + z
    return w, w.shape == z.shape


@program(values)
def distinct(x):
    """Distinct values, and where they are."""
    found, where = torch.unique(x, return_inverse=True)
    return found.shape, found[where], torch.bincount(x.long())


@program(values)
def positions(x):
    """Where a condition holds."""
    (where,) = torch.where(x > 0)
    return x[where], torch.zeros(4).index_add(0, where, x[where])


@program(values, breaks=1)
def loop_over_positions(x):
    """A loop whose length depends on values."""
    total = 0
    for i in torch.nonzero(x > 0).squeeze(1):
        total = total + x[i]
    return total


@program(lambda: (torch.zeros(3),), breaks=1)
def not_a_number(x):
    """NaN is not equal to itself, whatever algebra says."""
    k = (x / x).sum().item()
    return k - k, not (k != k), k == k, math.isnan(k)


@program(*[(lambda v: lambda: (torch.full((2,), v),))(v) for v in (1.0, 2.5, float("nan"), float("inf"))])
def canceled_numbers(x):
    """Algebra says 0 and 1; NaN and infinity say NaN."""
    k = x.amax().item()
    return x * (k - k), x + k * 0, torch.full((2,), k / k)


@program(values)
def truth_as_number(x):
    """A truth multiplied."""
    every = (x > 0).all().item()
    return x * every, every


@program(pair)
def one_position(n, x):
    """A tensor of one integer as an index, alone and among others."""
    return x[n], x[n, 1], x[1, n], x[n, :n], x[..., n], x[n, None], x[:n], x[n:], x[None, n, ..., 1:n]


@program(pair, breaks=0 if COPIES_UNKNOWN_SIZES else 1)
def one_position_written(n, x):
    """Writes through such indices."""
    x = x.clone()
    x[n] = 1
    x[n, n] = 2.0
    x[:, n] = torch.arange(4.0)
    x[:n] += 1
    x[n].add_(1)
    return x


@program(pair)
def position_too_large(n, x):
    """An index that is out of range raises what eager raises."""
    return x[n + 10]


@program(lambda: (torch.zeros(4, 6, dtype=torch.bool), torch.tensor([1, 3, 2, 5])))
def mask_of_lengths(mask, lengths):
    """A padding mask, row by row."""
    mask = mask.clone()
    for row, length in enumerate(lengths):
        mask[row, :length] = True
    return mask


@program(pair)
def size_before_change(n, x):
    """A number used as a size before an argument is changed."""
    made = torch.zeros(n.item())
    x.add_(1)
    return made, x


@program(values, breaks=1)
def nothing_left(x):
    """Whether a mask keeps anything."""
    y = x[x > 100]
    return x if y.numel() == 0 else y


@program(
    lambda: (torch.ones(2), 0.5, 0.0),
    lambda: (torch.ones(2), 1.5, 0.0),
    lambda: (torch.ones(2), 2.5, -0.0),
    lambda: (torch.ones(2), 2.5, float("inf")),
    lambda: (torch.ones(2), 3.5, float("nan")),
    steady=False,
)
def complex_of_two_numbers(x, real, imag):
    """Both parts count, also where the first has become a symbol."""
    made, named = complex(real, imag), complex(imag=imag)
    parts = (made.real, made.imag, named.real, named.imag)
    return x + 1, [repr(p) for p in parts]


@program(lambda: (torch.tensor(1.5), 2.0), breaks=1)
def complex_of_a_tensor_and_a_number(x, imag):
    """A tensor's number as the real part keeps the imaginary part beside it."""
    return complex(x, imag), x + 1


@program(lambda: (torch.tensor([3, 5, 2]), torch.ones(2)), lambda: (torch.tensor([5, 3, 2]), torch.ones(2)))
def truth_beside_constant(n, x):
    """Whether a number is large, compared with true and false: nothing need be known of it."""
    first, second = (k >= 4 for k in n.tolist()[:2])
    torch._check((first == True) | (second != False))  # noqa: E712
    return x + 1


@program(lambda: (torch.tensor([3, 5, 2]), torch.ones(2)), lambda: (torch.tensor([5, 3, 4]), torch.ones(2)), breaks=1)
def truths_in_list(n, x):
    """Conditions on unbacked numbers in a list compare equal to a list of constants."""
    large = [k >= 4 for k in n.tolist()]
    return x * 2, large[-2:] == [False, True], [i for i in range(3) if large[i] is True]


@program(
    lambda: (torch.tensor([3, 5]), torch.randn(1, 1, 6, 6)), lambda: (torch.tensor([4, 2]), torch.randn(1, 1, 6, 6))
)
def sizes_in_tensors(n, x):
    """A size for each item, given as tensors in a list."""
    return [torch.nn.functional.pad(torch.nn.functional.interpolate(x, size=(k, k)), (0, 6 - k, 0, 6 - k)) for k in n]


@program(lambda: (torch.tensor([0.5, 1.5, 2.0]),), lambda: (torch.tensor([-0.5, -1.5, 2.5]),))
def floats_that_are_checked(x):
    """Checks on an unbacked float and its int run after the graph, with their message."""
    total = x.sum().item()
    torch._check(total > 0, lambda: f"total was {total}")
    whole = int(total)
    torch._check(whole >= 0)
    torch._check(whole < 9)
    return x * total, x.new_zeros(whole)


@program(lambda: (torch.tensor([-0.5, -1.5]),))
def floats_that_fail_a_check(x):
    """The error is the one of the check that failed, after what was done before it."""
    total = x.sum().item()
    torch._check(total > 0, lambda: f"total was {total}")
    return x * total


@program(lambda: (torch.ones(2),))
def number_of_constant_written_through_view(x):
    """A write through the ``data`` of a view of a constant is seen too."""
    mask = torch.ones(3, 3).triu()
    mask.view(-1).data.add_(1)
    return x * mask.sum().item()


@program(lambda: (torch.ones(2),), breaks=1)
def numbers_of_written_constants(x):
    """Constants are written in place; the one written through ``data`` breaks."""
    masked, shifted = torch.zeros(3), torch.ones(3, 3).triu()
    masked.masked_fill_(torch.tensor([True, False, True]), 2.5)
    shifted.data.add_(1)
    if bool((shifted == 2).any()):
        x = x + 1
    return x * masked.sum().item(), shifted.sum().item()
