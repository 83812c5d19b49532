"""Views, reshapes, indexing, joining: operators that move elements without computing."""

import torch
import torch.nn.functional as F

from tests.programs import program


@program(lambda: (torch.randn(2, 3, 4),))
def view_and_reshape(x):
    """view, reshape and flatten, with inferred sizes."""
    return x.view(6, 4), x.reshape(-1, 3), x.flatten(), x.flatten(1), x.view(2, -1)


@program(lambda: (torch.randn(2, 3, 4),))
def transposes(x):
    """Transposed views keep their strides."""
    return x.transpose(0, 2), x.permute(1, 2, 0), x.mT, x.movedim(0, -1), x[0].t(), x[0].T


@program(lambda: (torch.randn(2, 3, 4),))
def compute_on_transposed(x):
    """Computing on a transposed view gives what PyTorch gives, strides included."""
    return x.transpose(1, 2) + 1, x.permute(2, 0, 1) * x.permute(2, 0, 1), x.transpose(1, 2).contiguous()


@program(lambda: (torch.randn(3, 1, 4), torch.randn(3, 1)))
def squeeze_unsqueeze(x, y):
    """Dimensions of size one come and go."""
    return x.squeeze(1), y.unsqueeze(0), y[:, None], y[None], x.squeeze(), y[..., None]


@program(lambda: (torch.randn(3, 1),))
def expand_repeat(x):
    """expand shares memory, repeat copies."""
    return x.expand(3, 5), x.repeat(2, 3), x.expand(2, 3, 1), x.expand(3, 4) + 1, torch.broadcast_to(x, (2, 3, 4)) * 2


@program(lambda: (torch.randn(6, 5),))
def basic_slices(x):
    """Slices with steps, negative bounds and Ellipsis."""
    return x[1:3], x[:, ::2], x[-2:], x[..., -1], x[2], x[1:-1, 1:-1], x[0, 0], x[None, 0]


@program(lambda: (torch.randn(6, 5), torch.tensor([0, 2, 4])))
def index_tensors(x, i):
    """Indexing by an index tensor, by a list, and by two at once."""
    return x[i], x[:, i], x[[0, 1]], x[i, i], x[i[:, None], i]


@program(lambda: (torch.randn(4, 4),), breaks=0, skip={})
def boolean_mask_where(x):
    """A mask used by where and masked_fill, whose shapes do not depend on data."""
    mask = torch.ones(4, 4).tril().bool()
    return x.masked_fill(~mask, float("-inf")), torch.where(mask, x, 0.0)


@program(lambda: (torch.randn(6),))
def boolean_mask_index(x):
    """Indexing by a mask makes a shape that depends on data."""
    y = x[x > 0]
    return y * 2


@program(lambda: (torch.randn(4, 6), torch.randint(0, 6, (4, 2))))
def gather_and_select(x, i):
    """gather, index_select, take_along_dim and narrow."""
    return (
        x.gather(1, i),
        x.index_select(0, torch.tensor([1, 3])),
        torch.take_along_dim(x, i, 1),
        x.narrow(1, 2, 3),
        x.select(1, 0),
    )


@program(lambda: (torch.randn(4, 6), torch.randint(0, 6, (4, 2))))
def scatter_out_of_place(x, i):
    """scatter, scatter_add, index_add into a new tensor; index_put into one of infinity."""
    ones, zeros = torch.ones(4, 2), torch.tensor([0, 0])
    lowest = torch.full((8,), -torch.inf).index_put((torch.arange(1, 4),), x[1, :3])
    return x.scatter(1, i, ones), x.scatter_add(1, i, ones), x.index_add(0, zeros, torch.ones(2, 6)), lowest


@program(lambda: (torch.randn(2, 3), torch.randn(2, 3)))
def cat_and_stack(a, b):
    """Joining tensors along old and new dimensions."""
    return (
        torch.cat([a, b]),
        torch.cat((a, b), dim=1),
        torch.stack([a, b], -1),
        torch.vstack([a, b]),
        torch.hstack([a, b]),
    )


@program(lambda: (torch.randn(6, 4),))
def split_chunk_unbind(x):
    """Splitting gives tuples of views."""
    q, k = x.chunk(2)
    a, b, c = x.split([1, 2, 3])
    return q + k, a, b * c[:2], x.unbind(1), torch.split(x, 4)


@program(lambda: (torch.randn(3, 4),))
def shape_arithmetic(x):
    """Sizes are numbers to compute with."""
    rows, columns = x.shape
    return x.view(columns, rows), x.size(0) * 2, x.numel(), x.dim(), len(x), x.shape, x.size(), x.shape[-1] ** -0.5 * x


@program(lambda: (torch.randn(4, 4),))
def triangles(x):
    """tril, triu and diagonals."""
    return x.tril(), x.triu(1), x.diagonal(), torch.diag(x[0])


@program(lambda: (torch.randn(2, 5),))
def flips_and_rolls(x):
    """Reordering elements."""
    return x.flip(1), x.roll(2, 1), torch.flip(x, [0, 1]), x.sort(dim=1), x.argsort(1), x.topk(2)


@program(lambda: (torch.randn(2, 3, 4),))
def einsum_and_bmm(x):
    """Contractions written in several ways."""
    return torch.einsum("bij,bkj->bik", x, x), torch.bmm(x, x.transpose(1, 2)), x @ x.mT, torch.matmul(x, torch.ones(4))


@program(lambda: (torch.randn(2, 4, 4),))
def pad_and_unfold(x):
    """Padding with constants, sliding windows."""
    return (
        torch.nn.functional.pad(x, (1, 2), value=0.5),
        x.unfold(1, 2, 1),
        torch.nn.functional.pad(x, (1, 1, 1, 1), mode="reflect"),
    )


@program(lambda: (torch.randn(3, 4),), lambda: (torch.randn(4, 3).t(),))
def strided_input(x):
    """The same shape with another memory layout is another case."""
    return x * 2, x.is_contiguous(), x.stride()


@program(lambda: (torch.randn(8)[::2],))
def sliced_input(x):
    """An input that is a strided view of a larger tensor."""
    return x + 1, x.view(4, 1), x[1:]


@program(lambda: (torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),))
def channels_last(x):
    """Memory formats survive elementwise work."""
    return torch.relu(x) + 1, x.is_contiguous(memory_format=torch.channels_last), x.contiguous()


@program(lambda: (torch.randn(3, 4),))
def as_python_values(x):
    """Facts about a tensor that are plain Python values."""
    return (
        x.dtype,
        x.device,
        x.is_floating_point(),
        x.requires_grad,
        x.ndim,
        x.element_size(),
        x.dtype.is_floating_point,
        x.device.type,
        x.layout,
        x.is_cuda,
    )


@program(
    lambda: (torch.randn(4, 3), torch.randn(8)),
    lambda: (torch.randn(8, 5), torch.randn(16)),
    lambda: (torch.randn(12, 5), torch.randn(24)),
    lambda: (torch.randn(7, 5), torch.randn(14)),
    lambda: (torch.randn(12, 6), torch.randn(25)),
    lambda: (torch.randn(16, 2), torch.randn(32)),
)
def multiples_of_sizes(x, y):
    """Branches on a changing size: a multiple of four, or twice another size."""
    n = x.shape[0]
    if n % 4 == 0:
        x = x.view(n // 4, 4, -1)
    if y.shape[0] == 2 * n:
        y = y.view(2, n)
    return x * 2, y + n, y.sum()


@program(
    lambda: (torch.randn(10),),
    lambda: (torch.randn(10)[::2],),
    lambda: (torch.randn(33)[::3],),
    lambda: (torch.randn(12)[::2],),
    lambda: (torch.randn(15),),
)
def every_second_element(x):
    """The stride of a slice follows from no size; both change from call to call."""
    if x.is_contiguous():
        return x + 1
    return x * 2


WIDE = torch.arange(200.0).reshape(20, 10)


@program(
    lambda: (WIDE[:, :5],),
    lambda: (WIDE[:9, :4],),
    lambda: (torch.ones(5, 12)[:, :7],),
    lambda: (torch.ones(7, 8),),
    lambda: (torch.ones(30, 7)[::3, ::2],),
)
def columns_of_a_wider_table(x):
    """Rows lie further apart than their own length, by a distance that changes too."""
    wider = x.as_strided((2, 2), (x.stride(0), 1))
    return x.t().contiguous() * x.stride()[0], (x * 2).sum(0), wider + x[:2, :2]


@program(
    lambda: (WIDE[:, :5].clone().requires_grad_()[:, :3], WIDE[:, 5:8]),
    lambda: (WIDE[:9, :8].clone().requires_grad_()[:, :4], WIDE[:9, 5:9]),
    lambda: (WIDE[:8, :7].clone().requires_grad_()[:, 1:6], WIDE[:8, :5]),
)
def gradients_of_columns(x, y):
    """So it is where gradients go back through them, and where two slices lie in one table."""
    return (x.sin() * y).sum(0), x @ y.t()


def lower_left(rows, columns):
    """A view of a part of a matrix."""
    return (torch.arange(float(rows * columns)).reshape(rows, columns)[1:, :2],)


@program(lambda: lower_left(4, 6), lambda: lower_left(5, 7), lambda: lower_left(6, 8), lambda: lower_left(6, 9))
def part_of_a_matrix_is_turned(x):
    """The layout of a view is changed in place, whatever the size of what it is a view of."""
    x.t_()
    return x.shape


@program(lambda: lower_left(4, 6), lambda: lower_left(5, 7), lambda: lower_left(6, 8))
def part_of_a_matrix_is_moved(x):
    """An input is made to start elsewhere in its memory, and asked where it starts."""
    before = x.storage_offset()
    x.as_strided_((2, 3), (1, 1), 1)
    return x * 2, before, x.storage_offset()


@program(lambda: (torch.randn(2, 8, 6),), lambda: (torch.randn(2, 8, 6, requires_grad=True),))
def layout_of_pooled_rows(x):
    """``max_pool1d`` output is contiguous if no gradient is recorded, else in input layout."""
    pooled = F.max_pool1d(x.transpose(1, 2), 2)
    with torch.no_grad():
        inside = torch.max_pool1d(x.transpose(1, 2), 3, stride=1)
    return pooled, pooled.is_contiguous(), pooled.stride(), inside, inside.view(-1)


@program(lambda: (torch.randn(4, 3), torch.tensor([0, 2])))
def ranges_as_positions(x, columns):
    """A range indexes like a list of its numbers, alone or with others, to read and to write."""
    y = x.clone()
    n = columns.shape[0]
    y[range(n), columns] = 9.0
    return x[range(2)], x[range(n), columns], x[:, range(0, 3, 2)], x[range(-1, -3, -1)], x[range(0)], y


@program(
    lambda: (torch.arange(6.0)[1:2], torch.arange(4.0).reshape(2, 2) - 1),
    lambda: (torch.arange(12.0).reshape(3, 4)[:1], torch.arange(4.0).reshape(2, 2) - 1),
    lambda: (torch.arange(12.0).reshape(3, 4)[1:], torch.arange(4.0).reshape(2, 2) - 1),
)
def elements_beyond_a_slice(x, y):
    """``as_strided`` reaches elements of the storage that the slice does not hold."""
    windows = x.as_strided((2, 2), (1, 4), 1)
    return torch.where(y > 0, y, windows), x.as_strided((2, 2), (3, 1)) * 2
