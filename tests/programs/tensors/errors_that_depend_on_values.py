"""Operators that raise for some values, which fake tensors do not have."""

import math
import random

import torch
import torch.nn.functional as F

from tests.programs import outcomes_of, program


@program(lambda: (torch.arange(5) % 3,), lambda: (torch.arange(5) % 3 - 1,), lambda: (torch.arange(0),))
def one_hot_out_of_range(x):
    """Class values must be in range; the error of eager is raised."""
    return outcomes_of(
        lambda: F.one_hot(x, 1) * 2, lambda: F.one_hot(x, 3) * 2, lambda: F.one_hot(x, num_classes=4).sum()
    )


@program(lambda: (torch.eye(3), torch.tensor([0, 7])))
def indices_out_of_range(x, at):
    """Kernels check indices when they run."""
    return outcomes_of(
        lambda: x[at], lambda: x.index_select(0, at), lambda: F.embedding(at, x), lambda: F.nll_loss(x[:2], at)
    )


@program(lambda: (torch.tensor([0.5, 2.0]), torch.tensor([1, 200])), lambda: (torch.rand(2), torch.tensor([1, 2])))
def operands_out_of_range(x, zero):
    """Decomposed operators check the values of their operands."""
    return outcomes_of(
        lambda: F.binary_cross_entropy(x, torch.ones(2)),
        lambda: F.binary_cross_entropy(torch.full((2,), 0.5), x),
        lambda: torch.fake_quantize_per_channel_affine(torch.ones(2, 2), torch.ones(2), zero.int(), 0, 0, 127),
    )


@program(lambda: (torch.arange(3),))
def calls_with_wrong_arguments(x):
    """Missing, unknown or mistyped arguments raise eager's errors; keywords work."""
    return outcomes_of(
        lambda: F.one_hot(input=x, num_classes=4),
        lambda: torch.set_grad_enabled(),
        lambda: torch.set_grad_enabled(wrong=True),
        lambda: torch.set_grad_enabled(torch.tensor(True)),
    )


@program(lambda: (torch.arange(3), []), lambda: (torch.zeros(3, dtype=torch.int64), []))
def numbers_drawn_after_an_error(x, log):
    """Python draws no number after an operator that raises."""
    y = F.one_hot(x, 1)
    log.append("after")
    return y * random.random()


@program(lambda: (torch.arange(3),), lambda: (torch.zeros(3, dtype=torch.int64),))
def only_a_number_is_drawn_after_an_error(x):
    """The same where a number is the only effect."""
    return F.one_hot(x, 1) * random.random()


@program(lambda: (torch.arange(3), []), lambda: (torch.zeros(3, dtype=torch.int64), []))
def dropout_in_a_try_block_before_an_error(x, log):
    """Random numbers of a try block are drawn once, also where a later operator raises."""
    try:
        y = F.dropout(x.float(), 0.5)
    finally:
        log.append("drawn")
    return y, F.one_hot(x, 1)


@program(*[lambda s=s: (torch.arange(4), s, []) for s in (2.5, 3.5, 2, True)], breaks=1)
def number_of_another_type(x, s, log):
    """A factor must have the type of the tensor, also where the number varies between calls."""
    y = x.add(x, alpha=s)
    log.append(1)
    return y


@program(lambda: (torch.ones(2, 3, dtype=torch.float64), []), lambda: (torch.ones(2, 3), []), breaks=1)
def product_of_two_types(x, log):
    """A product of operands of two types raises before what follows it."""
    y = x @ torch.ones(3)
    log.append(1)
    return y


@program(
    *[lambda n=n, k=k: (torch.ones(k, 3), n) for n, k in ((0, 2), (1, 4), (1, 1), (2, 3), (-2, 1), (4, 4))], breaks=3
)
def index_that_varies_out_of_range(x, n):
    """An index that varies is compared with the size, also where nothing reads the item."""
    return outcomes_of(lambda: x[n], lambda: [x[n], x * 2][1], lambda: [x.select_scatter(x[0], 0, n), x * 3][1])


@program(*[lambda n=n: (torch.full((3,), n), n, n / 2) for n in (3, 4, 5, 0, 7)], breaks=2)
def division_by_itself(x, n, s):
    """Algebra cancels a divisor that varies, and the division by zero still raises."""
    read = int(x[0])
    return outcomes_of(
        lambda: n // n, lambda: x * (n % n), lambda: 5 * n // n, lambda: s / s, lambda: x * (read // read)
    )


@program(*[lambda n=n: (torch.ones(3), n, n / 2) for n in (3, 4, 5, 0, 7)], breaks=1)
def quotients_that_nothing_reads(x, n, s):
    """A division whose result is not needed raises where eager does."""
    return outcomes_of(lambda: [7 // n, x * 2][1], lambda: [divmod(n, n), x * 3][1], lambda: [1 / s, x * 4][1])


@program(lambda: (torch.randn(3, 1), torch.ones(1, 1) > 0, torch.ones(1) > 0), breaks=1)
def masks_of_another_shape(x, square, row):
    """A boolean index does not broadcast, whether or not something reads the result."""
    unused = x.clone()

    def assign(target, mask):
        target[mask] = 0.5
        return target

    return outcomes_of(
        lambda: assign(x.clone(), square), lambda: assign(x.clone(), row), lambda: (assign(unused, square), x)[1]
    )


@program(*[lambda n=n: (torch.inference_mode()(torch.ones)(2, 3), torch.ones(3), n, []) for n in (1, 5)])
def written_inference_tensor(x, source, n, log):
    """What a function did before an operator raised stays done, also to an inference tensor."""

    def write():
        with torch.inference_mode():
            log.append(n)
            x.mul_(2)
            return source[torch.full((1,), n)]

    return outcomes_of(write)


def _calls_of(*operators):
    """Calls of each operator with indices in range, and with one that is out of range."""
    return [
        lambda f=f, n=n: (torch.arange(12.0).view(4, 3), torch.tensor([1, n, 0]), f) for f in operators for n in (2, 7)
    ]


@program(
    *_calls_of(
        lambda x, at: x.index_select(0, at),
        lambda x, at: F.embedding(at, x).sin(),
        lambda x, at: F.cross_entropy(x[1:], at),
        lambda x, at: x.gather(0, at.view(1, 3)),
        lambda x, at: F.one_hot(at, 5) + 1,
    )
)
def unused_results_of_indices(x, at, operator):
    """An operator that raises does so if nothing reads its result."""
    operator(x, at)
    return x * 2


@program(
    *_calls_of(
        lambda x, at: x.scatter(0, at.view(1, 3), 5.0),
        lambda x, at: x.index_put((at,), x[0]),
        lambda x, at: (at - 7) // (at - 7),
        lambda x, at: torch.searchsorted(x[:3, 0].contiguous(), x, sorter=at),
        lambda x, at: F.multi_margin_loss(x[1:], at),
    )
)
def unused_results_of_writes(x, at, operator):
    """The same for operators that write at indices, search, or divide integers."""
    operator(x, at)
    return x * 2


@program(
    *_calls_of(
        lambda x, at: x[at][:1] + 1,
        lambda x, at: F.embedding(at, x).cos()[-1],
        lambda x, at: F.cross_entropy(x[1:], at, reduction="none")[0] + 1,
        lambda x, at: (12 // (7 - at))[0] * 2,
        lambda x, at: torch.cat((x[at] + 1, x))[:1],
        lambda x, at: torch.searchsorted(x[:3, 0].contiguous(), x[0], sorter=at) + 1,
    )
)
def partly_read_results_of_indices(x, at, operator):
    """All indices are checked if only some of the elements are read."""
    return operator(x, at)


@program(
    *[lambda n=n: (torch.ones(4, 3, requires_grad=True), torch.tensor([1, n]), []) for n in (2, 7)],
)
def unused_index_in_training(x, at, log):
    """The forward raises before it returns, and before what follows it."""
    x[at] * 3
    log.append(1)
    return (x * x).sum()


@program(lambda: (torch.ones(3, dtype=torch.int64), torch.ones(3) > 0))
def unused_results_of_unsupported_types(x, mask):
    """An operator without a kernel for its operands raises if nothing reads its result."""
    mask.argmax()
    return x * 2


@program(lambda: (torch.ones(3),))
def truth_minus_tensor(x):
    """A bool minus a tensor is an error in eager, also for a tensor of floats."""
    return (True - x) * 2


@program(lambda: (torch.ones(3),))
def unused_truth_minus_tensor(x):
    """The same if nothing reads the difference."""
    True - x  # noqa: B018
    return x * 2


@program(*[lambda n=n: (torch.tensor([n, 2]),) for n in (1, 0)])
def unused_power_of_integers(x):
    """A negative power of integers raises for any value."""
    torch.pow(x, -1)
    return x * 2


class Scaled(torch.autograd.Function):
    """Multiplication by a number."""

    @staticmethod
    def forward(ctx, t, by):
        ctx.by = by
        return t * by

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.by, None


@program(*[lambda n=n: (torch.ones(3, requires_grad=True), torch.tensor([n]), []) for n in (1, 7)])
def numbers_drawn_around_an_autograd_function(x, at, log):
    """An ``autograd.Function`` in the graph changes nothing about an error."""
    log.append(1)
    y = Scaled.apply(x, 2.0) * random.random()
    z = y[at]
    log.append(2)
    return z * random.random()


@program(*[lambda n=n: (torch.ones(3, requires_grad=True) * 2, torch.tensor([n]), []) for n in (1, 7)])
def error_before_a_write_to_history(x, at, log):
    """Side effects before an error stay, and no write that follows it happens."""
    log.append(1)
    y = x[at] * random.random()
    x.mul_(2)
    log.append(2)
    return y * random.random()


@program(
    *[
        lambda v=v, d=d, s=s: (torch.tensor([1, 2, 3], dtype=d), torch.tensor([v, 1.0], dtype=s))
        for v, d, s in (
            (5.0, torch.int64, torch.float32),
            (float("nan"), torch.int64, torch.float32),
            (300.0, torch.int8, torch.int64),
            (-3.0, torch.uint8, torch.float32),
            (1e30, torch.float16, torch.float32),
        )
    ]
)
def fill_values_that_overflow(x, v):
    """A tensor that fills elements is read as a number, which must fit."""
    written = x.clone()

    def masked_write():
        written[x > 1] = v.sum()
        return written

    return outcomes_of(
        lambda: x.masked_fill(x > 1, v.sum()),
        lambda: x.clone().masked_fill_(x > 1, v.sum()),
        lambda: x.index_put((x > 1,), v[:1].to(torch.float32) if x.dtype == torch.float32 else v.sum().to(x.dtype)),
        masked_write,
        lambda: x.clone().fill_(v.sum()),
    )


@program(
    *[
        lambda d=d: (torch.tensor([1, 2, 3], dtype=d),)
        for d in (torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.uint8)
    ]
)
def fill_numbers_that_overflow(x):
    """A mask value of -1e9 is too large for float16; infinity is not."""
    return outcomes_of(
        lambda: x.masked_fill(x > 1, -1e9),
        lambda: x.masked_fill(x > 1, -1),
        lambda: x.float().masked_fill(x > 1, 1e300),
        lambda: x.float().to(x.dtype) if not x.is_floating_point() else x.masked_fill(x > 1, float("-inf")).softmax(0),
        lambda: torch.full((3,), 70000.0, dtype=x.dtype) + x,
        lambda: torch.full((3,), 300, dtype=x.dtype) + x,
        lambda: F.pad(x, (1, 1), value=1e300) * 2,
    )


@program(*[lambda v=v: (torch.tensor([1, 2, 3]), torch.tensor(v)) for v in (5.0, float("nan"))])
def unused_fill_values_that_overflow(x, v):
    """An unused fill raises as well."""
    x.masked_fill(x > 1, v)
    return x * 2


@program(lambda: (torch.ones(3),))
def range_of_bool(x):
    """No kernel makes a range of bool."""
    return torch.arange(3, dtype=torch.bool) * x


@program(lambda: (torch.ones(2),))
def unused_error_on_constants(x):
    """An unused operator on constants alone raises."""
    torch.arange(4).gather(0, torch.full((2,), 9))
    return x + 1


@program(lambda: (torch.ones(2),))
def unused_division_of_constants(x):
    """Division of constant integers by zero raises."""
    torch.ones(3, dtype=torch.int64) // torch.zeros(3, dtype=torch.int64)
    return x * 2


@program(*[lambda n=n: (torch.ones(3, requires_grad=True) * 2, torch.tensor([n]), []) for n in (1, 7)])
def error_after_a_write_to_history(x, at, log):
    """Side effects before an error stay, and the write happens once."""
    log.append(1)
    x.mul_(2)
    log.append(2)
    return x[at]


@program(*[lambda n=n: (torch.ones(3, requires_grad=True) * 2, torch.tensor([n]), []) for n in (1, 7)])
def error_after_a_write_through_data(x, at, log):
    """The same for a write that leaves the history as it is."""
    log.append(1)
    x.data.mul_(2)
    log.append(2)
    return x[at]


@program(*[lambda n=n: (torch.arange(n), torch.zeros(n, dtype=torch.long)) for n in (6, 8, 9)])
def writes_of_a_tensor_to_itself(x, at):
    """Eager refuses to scatter a tensor into itself, or to take it for its own index."""
    y = x.view_as(x)
    return outcomes_of(
        lambda: x.scatter_(0, at, x),
        lambda: x.scatter_(0, x, at),
        lambda: x.scatter_(0, at, y),
        lambda: x.index_copy_(0, at, x),
        lambda: x.index_put_((at,), x),
        lambda: x.masked_scatter_(x > 2, x),
        lambda: x.copy_(x),
        lambda: x.mul_(x),
    ), x


@program(*[lambda n=n: (torch.arange(n * 6.0).view(n, 6), torch.arange(n)) for n in (4, 5, 7)])
def writes_of_another_shape(x, rows):
    """What does not fit is an error, which fake tensors do not find."""
    return outcomes_of(
        lambda: x.index_put((rows,), x[0][:3]),
        lambda: x.index_put((rows, rows), x[0, :3]),
        lambda: x.index_put((rows,), x[None]),
        lambda: x.index_put((rows,), torch.ones(3, 2)),
        lambda: x.index_put((rows,), torch.ones(2), accumulate=True),
        lambda: x.index_put((rows, torch.arange(3)), x[0, 0]),
        lambda: x.index_put((rows,), x[:1]),
        lambda: x.index_add(0, rows[:2], x[:2, :3]),
        lambda: x.index_add(0, rows[:2], x[:2]),
        lambda: x.int().to(torch.int8).index_add(0, rows[:2], x[:2, :3].to(torch.int8)),
    )


@program(lambda: (torch.ones(4, 6),))
def softmax_over_no_dimension(x):
    """A dimension out of range is an error."""
    return x.softmax(3)


@program(lambda: (torch.ones(4, 6), torch.arange(4)))
def item_assignment_of_another_shape(x, rows):
    """The same by an item assignment, outside of a try block."""
    y = x.clone()
    y[rows, 0] = x[:1]
    return y


def _sized(*shape):
    return (torch.arange(math.prod(shape)).reshape(shape),)


@program(lambda: _sized(1, 2, 8), lambda: _sized(1, 2, 9), lambda: _sized(1, 2, 10), breaks=1)
def pooling_of_integers(x):
    """The kernel of ``max_pool1d`` without indices takes no integers, of any size."""
    pooled, indices = F.max_pool1d(x + 1, 2, return_indices=True)
    return pooled + indices, F.max_pool1d(x, 2) * 2


@program(lambda: _sized(4), lambda: _sized(5), lambda: _sized(6), lambda: (torch.randn(5),), breaks=1)
def hardshrink_of_integers(x):
    """``hardshrink`` has kernels for floats only."""
    return F.hardshrink(x, 0.25) + x.shape[0]
