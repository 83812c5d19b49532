"""Where results lie: what is asked of their strides, and views of them, are eager's."""

import functools

import torch
import torch.nn.functional as F

from tests.programs import program


@program(lambda: (torch.randn(1, 2, 4),), lambda: (torch.randn(1, 2, 4, requires_grad=True),))
def numbers_with_one_row(x):
    """A number beside a tensor preserves the stride of a size-1 dimension, also in its views."""
    y = x.transpose(1, 0) * 2
    return y, y.stride(), y.transpose(1, 0), (1 - x.transpose(1, 0)).permute(2, 1, 0), y.transpose(1, 0) > 0


@program(lambda: (torch.randn(5, 4, 3), torch.randn(3, 4)), lambda: (torch.randn(5, 1, 3), torch.randn(3, 4)))
def broadcast_of_two_orders(x, y):
    """Of operands that lie otherwise the first decides, where it is not broadcast."""
    made = torch.xlogy(x, y.t()), torch.copysign(x, y.t()), torch.logical_and(x, y.t()), torch.lerp(x, x + y.t(), 0.5)
    return made, [m.stride() for m in made], [m.permute(2, 0, 1) for m in made]


@program(
    lambda: (torch.randn(4, 3, 5).transpose(1, 2), torch.rand(5)),
    lambda: (torch.randn(4, 2, 3, 5).permute(2, 1, 3, 0), torch.rand(2)),
    lambda: (torch.randn(3, 2, 4, 4).to(memory_format=torch.channels_last), torch.rand(2)),
)
def normalized_over_a_batch(x, weight):
    """On the CPU a batch is normalized into rows, or channels last, whatever it came as."""
    made = F.batch_norm(x, weight * 0, weight * 1, weight, weight, training=True)
    return made, made.stride(), made.transpose(0, 1), made[1:]


@program(lambda: (torch.arange(6).reshape(2, 3),))
def one_hot_of_columns(x):
    """One-hot vectors lie in rows, whatever tells the classes."""
    made = F.one_hot(x.t(), 6)
    return made, made.stride(), made.view(-1), made.permute(2, 0, 1)


@program(lambda: (torch.randn(3, 4, 1),))
def likes_of_what_lies_oddly(x):
    """New tensors that lie as another one do so also in dimensions of one element."""
    odd = x.as_strided((4, 1, 3), (3, 7, 1))
    made = torch.zeros_like(odd), torch.ones_like(odd), odd.flip(0), odd.masked_fill(odd > 0, 1.0), F.hardtanh(odd)
    return made, [m.stride() for m in made], [m.transpose(0, 1) for m in made]


@program(lambda: (torch.randn(1, 3, 4), torch.randn(4, 4)))
def views_with_one_row(x, y):
    """Views of other sizes, and products made of them, have eager's strides in size-1 dims."""
    odd = x.as_strided((1, 3, 4), (5, 4, 1))
    made = odd.view(1, 3, 1, 4), odd.view(3, 4, 1), odd.unflatten(0, (1, 1)), torch.einsum("aij,jk->aik", x, y)
    return made, [m.stride() for m in made]


@program(lambda: (torch.rand(4, 4), torch.rand(4, 4)))
def losses_without_reduction(x, y):
    """Losses by element lie as what they are of does."""
    made = F.binary_cross_entropy(x.t(), y, reduction="none"), F.mse_loss(x.t(), y.t(), reduction="none"), 2 ** x.t()
    return made, [m.stride() for m in made], [m.t() for m in made]


@program(lambda: (torch.arange(4.0).view(1, 4).transpose(0, 1)[-1:],))
def other_type_of_one_element(x):
    """One element with strides of its own, seen as another type."""
    return x.view(torch.int32), x.unsqueeze(1).view(torch.int32)


@program(lambda: (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),), lambda: (torch.randn(2, 3, 4, 5),))
def rolled_channels_last(x):
    """``roll`` keeps channels-last, except by whole turns or over the flattened tensor."""
    made = x.roll(-1, 0), torch.roll(x, (1, 2), (2, 3)), x.roll(2, 0), x.roll(1), x.roll((1, 3), (0, 1))
    return made, [m.stride() for m in made], torch.roll(x, -1, 0).as_strided((5, 10), (4, 1), 0)


@program(
    *(
        functools.partial(lambda n: (torch.randn(2, 3, n, n).to(memory_format=torch.channels_last),), n)
        for n in (8, 10, 12)
    )
)
def pooled_channels_last(x):
    """Pooled images of several sizes stay channels-last through what follows."""
    return F.relu(F.max_pool2d(x, 2)), F.avg_pool2d(x, 3, 2).relu() + 1


@program(
    lambda: (torch.randn(1, 5).t()[:1],),
    lambda: (torch.randn(1, 30).as_strided((3, 1), (1, 7)),),
    lambda: (torch.randn(1, 30).as_strided((4, 1), (1, 6)).requires_grad_(),),
)
def in_place_with_one_column(x):
    """An in-place operator preserves the strides of size-1 dimensions of a copy."""
    y = x.clone().mul_(2)
    z = x.detach().clone()
    z[:, 0] += 1
    return y, y.view(-1), z.add_(x.detach())


@program(
    lambda: (torch.randn(4, 8)[::2],),
    lambda: (torch.randn(6, 10)[::2],),
    lambda: (torch.randn(8, 12)[::2, ::3],),
)
def scattered_into_rows_with_gaps(x):
    """``select_scatter`` preserves gaps between rows, also of several sizes."""
    y = torch.select_scatter(x, x.select(1, 0) * 3, 1, -1)
    return y, y.stride()


@program(
    *(functools.partial(lambda n: (torch.arange(3).view(3, 1).expand(3, n), torch.randn(n, 3).t()), n) for n in (4, 5))
)
def expanded_with_another_dtype(x, y):
    """An operand of another dtype is copied first, so it decides the order of dimensions."""
    made = x + y, y < x, x.sin() + y, torch.where(x > 1, y, x)
    return made, [m.stride() for m in made], (x + y).unsqueeze(0)


@program(*(functools.partial(lambda n: (torch.randn(1, n), torch.randn(n, 1)), n) for n in (4, 5, 6)))
def expanded_rows_of_several_sizes(x, y):
    """``expand`` sets the strides of size-1 dimensions, also where sizes are symbols."""
    made = x.sum().expand_as(x), y.sum().expand_as(y), x[0, :1].expand(1, 1, x.shape[1]), y.expand(1, 2, -1, 1)
    return made, [m.stride() for m in made]


@program(lambda: (torch.randn(4, 1).as_strided((2, 1), (2, 7)),))
def indexed_writes_with_one_column(x):
    """Indexed writes, ``isin`` and ``diag_embed`` have eager's strides in size-1 dimensions."""
    first, one = torch.tensor([0]), torch.ones(())
    made = x.index_put((first,), one), x.index_copy(0, first, x[:1]), torch.isin(x, x), torch.diag_embed(x)
    return made, [m.stride() for m in made], [m.unsqueeze(0).stride() for m in made]


@program(lambda: (torch.randn(3, 4),))
def scattered_into_windows(x):
    """A write into overlapping windows changes all elements that share the memory."""
    w = (x * 2).unfold(1, 2, 1)
    return torch.select_scatter(w, w.select(1, 0) * 3, 1, -1), torch.diagonal_scatter(w, w.diagonal() * 3)


@program(
    lambda: (torch.randn(2, 8, 5),),
    lambda: (torch.randn(3, 12, 5),),
    lambda: (torch.randn(1, 4, 5),),
    lambda: (torch.randn(2, 3, 5),),
)
def padding_that_only_crops(x):
    """Negative padding keeps the order of dimensions; padding that adds elements does not."""
    columns = x.transpose(1, 2)
    last = F.pad(columns, (4 - x.shape[1], 0))
    return last, last.stride(), F.pad(x, (0, 0, 0, -x.shape[1] % 4)) * 2
