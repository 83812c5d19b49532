"""Layouts changed in place (``t_``, ``squeeze_``, ``as_strided_``), with views and writes."""

import torch

from tests.programs import program


def square():
    """A leaf, so that its gradient tells what was computed."""
    return (torch.arange(1.0, 10.0).view(3, 3).requires_grad_(),)


@program(square)
def view_made_before(x):
    """A row is written to after what it is a row of was transposed: it stays the row."""
    y = x * 2
    row = y[1:]
    y.t_()
    row.mul_(3)
    return y * 2


@program(square)
def view_made_after(x):
    """What is a row now was a column: the gradient stops where numbers were written over."""
    y = x.clone()
    seen = y.view(3, 3)
    seen.transpose_(0, -1)
    seen[0].fill_(7)
    return y * 2, seen


@program(square)
def dimension_taken_away(x):
    """A view without its first dimension, which is written to."""
    y = x * 2
    seen = y.unsqueeze(0)
    seen.squeeze_(0)
    seen[0].mul_(3)
    return y, seen


@program(lambda: (torch.arange(1.0, 5.0).requires_grad_(),), breaks=1)
def view_across_a_break(x):
    """A view whose base was changed before the break, and is written to after it, follows."""
    base = x * 1.5
    y = base[:]
    base.swapaxes_(0, -1)
    print("between")
    base[:1].mul_(2)
    return y * 1


@program(lambda: (torch.arange(-5.0, 7.0).view(3, 4),))
def seen_by_place(x):
    """The first two numbers in memory, after a write through another layout."""
    x.t_()
    x.masked_fill_(x > 0, 0.5)
    y = x.as_strided((2,), (1,))
    return y.amax(0), y


@program(lambda: (torch.arange(12.0).view(2, 2, 3)[:, :1],))
def view_of_what_has_gaps(x):
    """It is refused, whether or not somebody reads it."""
    return x.view(-1)


@program(lambda: (torch.arange(12.0).view(2, 2, 3)[:, :1],))
def unread_view_of_what_has_gaps(x):
    """It is refused, although nobody reads it."""
    x.view(-1)
    return x + 1


@program(lambda: (torch.tensor(2.0, requires_grad=True),), breaks=1)
def leaf_with_a_longer_shape(x):
    """A leaf's gradient has the shape autograd first recorded, as that node is still alive."""
    y = x * 2
    with torch.no_grad():
        x.unsqueeze_(0)
    return x.expand_as(x), y.detach()


@program(lambda: (torch.arange(6.0),), lambda: (torch.arange(7.0),), lambda: (torch.arange(8.0),))
def sizes_before_and_after(x):
    """Sizes are read anew where the layout has changed since."""
    before = x.expand(2, *x.shape)
    x.unsqueeze_(0)
    x.add_(1)
    return before, x.expand(2, *x.shape), x.shape, x.size(0)


@program(*(lambda k=k: (torch.arange(1.0 * (3 + k) * (4 + k)).view(3 + k, 4 + k).select(0, -1),) for k in range(3)))
def strided_from_a_number(x):
    """A view that starts at a number, of what starts elsewhere at each call."""
    made = x.as_strided((2,), (1,), 1)
    return made, made + x.storage_offset()


@program(*(lambda k=k: (torch.arange(9.0 * (6 + 2 * k)).view(9, -1)[1 + k : 5 + k],) for k in range(3)))
def strided_from_its_start(x):
    """A view of a view that is written to, from where it starts."""
    rows = x[1:]
    rows.mul_(2)
    return rows.as_strided((2,), (1,), rows.storage_offset())


@program(lambda: (torch.arange(6.0).view(2, 3).requires_grad_(),))
def layout_changed_without_gradients(x):
    """A tensor that requires grad changes its layout under ``no_grad``, after a write there."""
    with torch.no_grad():
        x.mul_(2)
        x.unsqueeze_(0).squeeze_(0)
    return x.sin(), x[1] * x
