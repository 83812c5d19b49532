"""Tensors that share memory: arguments, results with arguments, and results with results."""

import copy

import numpy as np
import torch

from tests.programs import program


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def overlapping(first, second, size=12):
    whole = torch.randn(size)
    return first(whole), second(whole)


def twice(x):
    return x, x


@program(lambda: twice(torch.randn(3)), lambda: (torch.randn(3), torch.randn(3)))
def one_tensor_as_two_arguments(x, y):
    """A write through one name shows through the other only when both name one tensor."""
    x.add_(1)
    return x * y, y


@program(
    lambda: overlapping(lambda t: t[:8], lambda t: t[4:]),
    lambda: (torch.randn(8), torch.randn(8)),
    lambda: overlapping(lambda t: t[2:10], lambda t: t[4:]),
)
def arguments_that_overlap(x, y):
    """Two views of one memory, then two memories, then the views elsewhere."""
    x.mul_(2)
    return y + 1, x[1:], y[0]


@program(lambda: overlapping(lambda t: t.view(3, 4), lambda t: t.view(torch.int32)[2:]))
def memory_as_floats_and_integers(x, bits):
    """The same memory as another type."""
    bits.bitwise_and_(0x7FFFFFFF)
    return x.sqrt(), bits


@program(lambda: (lambda z: (z, torch.view_as_real(z)))(torch.randn(4, dtype=torch.complex64)))
def complex_and_its_parts(z, parts):
    """A complex tensor and its pairs of floats."""
    parts[:, 1].zero_()
    return z.abs(), z.real, parts


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Flattened(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.view(-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.view(ctx.shape) * 3


@program(lambda: (leaf(3, 4),))
def views_made_by_autograd_functions(x):
    """An input or view returned by a custom autograd function has that function's gradient."""
    return Tripled.apply(x * 2), Flattened.apply(x * 3)


@program(lambda: (leaf(3, 4),))
def views_of_arguments_made_by_autograd_functions(x):
    """The same of an argument itself, which the result is a view of."""
    return Tripled.apply(x), Flattened.apply(x)


@program(lambda: (leaf(3, 4),))
def views_of_views_made_by_autograd_functions(x):
    """A view of what such a function returns."""
    return Tripled.apply(x.sin())[1:].t()


@program(lambda: (torch.randn(3), torch.randn(2, 2), leaf(3)))
def writes_in_lists(x, y, z):
    """Operators over lists write to tensors, which counts as a write to each."""
    torch._foreach_mul_([x, y], 2.0)
    torch._foreach_add_([x], [z.detach()])
    return x * z, y._version, x._version


@program(lambda: overlapping(lambda t: t[:8], lambda t: t[4:]))
def writes_in_lists_to_shared_memory(x, y):
    """A list's tensor shares memory with another argument."""
    torch._foreach_mul_([x], 2.0)
    return y * 1


@program(lambda: (torch.randn(3, 4),))
def writes_in_lists_to_what_they_share(x):
    """Foreach operators write a repeated tensor twice, adjacent views once; all writes count."""
    torch._foreach_add_([x, x], 1)
    torch._foreach_mul_([x[:, 0], x[:, 1:]], 3)
    torch._foreach_sub_([x[0], x[1]], [x[1], x[0]])
    return x * 1, x._version


def of_one_made(first, second):
    whole = leaf(4, 4) * 2
    return first(whole), second(whole)


@program(
    lambda: of_one_made(lambda t: t[:, ::2], lambda t: t[1:]),
    lambda: of_one_made(lambda t: t[:, :3], lambda t: t[:, 1:]),
    lambda: of_one_made(lambda t: t.diagonal(), lambda t: t.t()),
    lambda: of_one_made(lambda t: t, lambda t: t.detach()),
    lambda: of_one_made(lambda t: t, lambda t: t.detach().view(torch.int32)),
)
def one_of_two_views_written_where_gradients_are_needed(x, y):
    """A write shows in a strided, detached or retyped alias; gradients use the old values."""
    z = x * 3
    x.mul_(2)
    return z + 1, x.cos(), y * 1


@program(lambda: (leaf(6) * 2,), lambda: (torch.randn(6),))
def every_other_element_written_by_the_others(x):
    """Views that lie between each other's elements share none."""
    y, z = x[::2], x[1::2]
    y.add_(z)
    return x * 1, z + y


@program(lambda: (leaf(4),), lambda: (torch.randn(4),))
def inference_mode_around_a_part(x):
    """What is made inside belongs to the mode, and the rest goes on with gradients."""
    y = x * 2
    with torch.inference_mode():
        z = x.sin()
        w = z * 2
    return y + 1, z, w, z.is_inference(), y.is_inference(), w.requires_grad


@program(lambda: (leaf(4),))
def inference_tensors_are_not_saved(x):
    """Saving an inference tensor for a gradient is an error; a clone of one has no such limit."""
    with torch.inference_mode():
        y = x.sin()
    return x * y.clone()


@program(lambda: (torch.randn(4),))
def written_in_inference_mode(x):
    """A write to an argument in the mode."""
    with torch.inference_mode():
        x.add_(1)
        y = x[1:]
    return x * 2, y


@program(lambda: (torch.randn(4, 4),))
def product_written_over_its_operand(x):
    """What such a product reads is being written."""
    y = x * 1
    torch.cumsum(x, 0, out=x)
    return x, y


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@program(lambda: (torch.randn(3),), lambda: (leaf(3) * 2,))
def autograd_functions_without_gradients(x):
    """Marking an argument dirty bumps its version; a returned argument is a new alias of it."""
    with torch.no_grad():
        y = Marked.apply(x)
        z = Whole.apply(x)
    return y is x, z is x, y.requires_grad, z.requires_grad, x._version, z


@program(lambda: (leaf(3) * 2,), breaks=1)
def view_made_by_hand_without_gradients(x):
    """It may not be written to, and says why."""
    with torch.no_grad():
        y = Flattened.apply(x)
    try:
        y.mul_(2)
    except RuntimeError as error:
        return str(error)
    return y


@program(lambda: (lambda t: (t, t[0]))(torch.randn(4, 4)), lambda: (torch.randn(4, 4), torch.randn(4)))
def one_of_several_results_is_a_view(x, y):
    """Each result of a multi-tensor operator is a view of its own argument, even if aliased."""
    _, wide = torch.broadcast_tensors(x, y)
    return wide.t()


@program(lambda: overlapping(lambda t: t[:8], lambda t: t.detach()[4:].view(2, 4)))
def a_detached_alias(x, y):
    """Two aliases with no base in common."""
    y.t().copy_(x.view(4, 2))
    return x, y.sum(0)


@program(lambda: (torch.randn(3, 4),))
def views_of_an_argument(x):
    """Every way of seeing an argument."""
    return x, x.t(), x[0], x.detach(), x.data, x[:, 1:].view_as(x[:, 1:]), x.view(-1)[2:], x.expand(2, 3, 4)


@program(lambda: (torch.randn(3, 4),))
def views_of_a_result(x):
    """Results that share memory with each other."""
    y = x * 2
    return y.t(), y[0], y, y.detach(), y.view(-1)[3:]


@program(lambda: (torch.randn(3, 4),))
def a_view_whose_base_is_lost(x):
    """Only a view of what was computed is returned."""
    return (x + 1)[1:].t()


@program(lambda: (leaf(3, 4),))
def views_with_history(x):
    """Gradients through results that share memory."""
    y = x.sin()
    a, b = y.t(), y[0]
    return a, b, y


@program(lambda: (leaf(4, 3),))
def views_among_several(x):
    """The parts of a split, all of them views of one."""
    return x.exp().split(2)


@program(lambda: (torch.randn(6), torch.randn(6)))
def swapped(x, y):
    """The contents of two arguments change places."""
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return x, y


@program(lambda: (torch.randn(6),))
def a_result_twice(x):
    """The same object in several places of the result."""
    y = x + 1
    return {"a": y, "b": [y, x], "c": (x,)}


@program(lambda: (torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),))
def channels_last_view(x):
    """Strides of a result follow its argument's."""
    y = x.relu()
    return y, y[:, 0], y.permute(0, 2, 3, 1)


@program(lambda: (torch.randn(0, 3), torch.randn(4)))
def nothing_to_see(x, y):
    """Views of no elements, and of one."""
    x.add_(1)
    return x.t(), x.view(3, 0), y[0:0], y[0]


@program(lambda: (torch.arange(12.0)[2:8],), lambda: (torch.arange(12.0),))
def seen_by_place(x):
    """``as_strided`` counts from the start of the storage."""
    return x.as_strided((2, 2), (2, 1), 3), x * 1


@program(lambda: (torch.randn(3, 4), torch.randn(2, 3)), lambda: (torch.randn(5, 4), torch.randn(2, 5)))
def operands_given_back(x, y):
    """Operators that have nothing to do give back their operand itself, also where sizes vary."""
    kept = torch.nn.functional.dropout(x, 0.5, training=False)
    same = kept is x, y.contiguous() is y, torch.dropout(y, 0.0, True) is y, y.to(torch.float32) is y
    kept.add_(1)
    return same, kept, x * 2, x.shape[0]


@program(lambda: (torch.arange(6.0).reshape(2, 3),), lambda: (torch.arange(6.0)[:].reshape(2, 3),))
def what_views_are_of(x):
    """``_base`` of inputs, new tensors and views of either matches eager, as do writes to it."""
    made = x + 1
    flat = made.t()
    flat._base.add_(1)
    given = x.view(-1)
    kept = [flat._base is made, flat[0]._base is made, made._base is None, made.detach()._base is None]
    return flat, made, kept, given._base is x, x._base is None, given._base.shape


@program(lambda: (torch.arange(6.0).reshape(2, 3) + 0,), lambda: (torch.arange(6.0)[:].reshape(2, 3),))
def written_through_what_is_viewed(x):
    """A write to ``_base`` is seen by the input, and by what else looks at it."""
    first = x[0]
    first._base.mul_(2)
    return first + 1, x.sum()


WHOLE = torch.arange(20.0)


@program(
    lambda: (WHOLE[:5],),
    lambda: (WHOLE[3:8],),
    lambda: (WHOLE[4:9],),
    lambda: (WHOLE[2:9],),
)
def where_a_tensor_starts(x):
    """Reading an input's storage offset adds a guard, also when read through a view of it."""
    return x.storage_offset(), x[1:].storage_offset(), (x * 2)[2:].storage_offset(), x + 1, x.nbytes


@program(
    lambda: (torch.ones(3), torch.ones(4, requires_grad=True).unbind()[0]),
    lambda: (torch.ones(3).share_memory_(), torch.ones(4, requires_grad=True).unbind()[1]),
    lambda: (torch.nn.Buffer(torch.ones(3)), torch.ones(4, requires_grad=True).unbind()[1]),
)
def who_else_sees_it(x, y):
    """Reading an input's shared-memory flag, ``output_nr`` or buffer mark also adds a guard."""
    made = torch.nn.Buffer(x * 2)
    return (
        x.is_shared(),
        (x + 1).is_shared(),
        y.output_nr,
        isinstance(x, torch.nn.Buffer),
        isinstance(made, torch.nn.Buffer),
    )


@program(
    lambda: (torch.ones(3), torch.ones(3)),
    lambda: (torch.ones(3).add_(1), torch.ones(3)),
    breaks=1,
)
def how_often_it_was_changed(x, y):
    """An input's version counter, and ``is_set_to`` of two tensors, are read in Python."""
    made = y * 2
    made.add_(1)
    return x._version, made._version, x.is_set_to(x), x + 1


def _over_one_array(first, second):
    """Two tensors over parts of one array: each has a storage of its own."""
    whole = np.arange(6, dtype=np.float32)
    return torch.from_numpy(whole[first]), torch.from_numpy(whole[second])


@program(
    lambda: (torch.ones(4), torch.ones(4)),
    lambda: _over_one_array(slice(0, 4), slice(0, 4)),
    lambda: _over_one_array(slice(0, 4), slice(2, 6)),
    lambda: _over_one_array(slice(1, 3), slice(3, 5)),
    steady=False,
    breaks=1,
)
def storages_over_one_array(x, y):
    """A write to one of them shows in the other where their memory meets."""
    x.add_(1)
    return y * 2


@program(
    lambda: (lambda a: (torch.ones(3), a, torch.from_numpy(a)))(np.zeros(3, dtype=np.float32)),
    steady=False,
    breaks=1,
)
def array_beside_its_tensor(x, array, t):
    """An array, and a tensor over its memory."""
    t.add_(1)
    array[0] = 5
    return t + x, array


@program(lambda: (torch.randn(4, requires_grad=True),))
def chunks_that_are_no_views(x):
    """Unsafe chunks have a history each, although a write to one shows in the whole tensor."""
    y = x * 2
    first, second = y.unsafe_chunk(2)
    first.mul_(3)
    return first, second, *x.unsafe_split(2)


@program(lambda: (torch.randn(4, 3), torch.rand(3)), lambda: (torch.randn(4, 3, requires_grad=True), torch.rand(3)))
def statistics_that_are_the_weight(x, weight):
    """Running statistics are written before the weight is read, which may be them."""
    made = torch.nn.functional.batch_norm(x, torch.zeros(3), weight, weight, None, training=True)
    return made, weight * 1


def _batches(*chosen):
    def batch(numbers):
        rows = [torch.arange(3.0) + n for n in range(3)]
        return ([rows[n] for n in numbers],)

    return [lambda numbers=numbers: batch(numbers) for numbers in chosen]


@program(*_batches((0, 0, 1), (1, 2, 1), (2, 1, 1), (0, 1, 2), (1, 1, 1)))
def batch_with_repeated_rows(rows):
    """Which rows of a batch are one tensor differs from call to call."""
    first, *others = rows
    return torch.stack(rows) * first.sum(), first, others, rows[1].view(-1)


@program(*_batches((0, 0, 1), (1, 2, 1), (2, 1, 1), (0, 1, 2), (1, 1, 1)))
def repeated_rows_compared(rows):
    """One row may be another one, a key twice, or copied once."""
    copied = copy.deepcopy(rows)
    return rows[0] is rows[1], len(set(rows)), copied[0] is copied[2], rows[0] + 1


@program(*_batches((0, 0, 1), (1, 2, 1), (2, 1, 1), (0, 1, 2), (1, 1, 1)))
def repeated_rows_written(rows):
    """A write to one row shows in each row that is the same tensor."""
    rows[0].mul_(3)
    rows[2].seen = True
    return rows[1] + 1, hasattr(rows[0], "seen")


@program(*_batches((0, 0, 1), (1, 2, 1), (2, 2, 2)))
def repeated_rows_given_data(rows):
    """Other data of one row is the data of each row that is the same tensor."""
    rows[0].data = torch.zeros(2)
    return rows[1] + 1, rows[2].shape
