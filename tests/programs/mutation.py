"""Tensors changed in place: data, layout, under and without gradients, and what must not be changed."""

import torch
import torch.nn.functional as F

from tests.programs import program


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def made(*shape):
    return leaf(*shape) * 1.5


@program(lambda: (torch.randn(3, 4),))
def layout_in_place(x):
    """Sizes and strides of an argument change, after its data."""
    x.mul_(2)
    x.t_()
    x.unsqueeze_(0)
    return x.sum(1), x[0]


@program(lambda: (torch.randn(3, 4),))
def layout_of_an_intermediate(x):
    """An intermediate is transposed in place and returned."""
    y = x + 1
    y.transpose_(0, 1)
    y.squeeze_()
    return y, y[0]


@program(lambda: (torch.randn(6),))
def through_views_of_views(x):
    """A write through a view of a view shows everywhere."""
    v = x.view(2, 3)
    w = v.t()[1:]
    w.add_(10)
    v[0] = -1
    return x, v, w


@program(lambda: (torch.randn(4),))
def past_autograd(x):
    """Writes through ``detach`` and ``data``."""
    x.detach().mul_(3)
    x.data.add_(1)
    return x * 2


@program(lambda: (leaf(4), torch.randn(4)))
def a_parameter_under_no_grad(w, g):
    """An update as optimisers make it."""
    with torch.no_grad():
        w.sub_(g, alpha=0.1)
        w.clamp_(-1, 1)
    return (w * g).sum()


@program(lambda: (made(4), torch.randn(4)))
def an_argument_with_history(x, y):
    """What is written in place takes part in the backward."""
    x.mul_(y)
    x[0] = 0
    return x.sin(), x


@program(lambda: (made(3, 4),))
def a_view_of_an_argument_with_history(x):
    """A write through a view takes part in the backward of its base."""
    x[1].mul_(2)
    v = x.t()
    v[0] = v[1] * 3
    return x, v


@program(lambda: (torch.randn(4), leaf(4)))
def gradient_enters_by_a_write(x, w):
    """An argument without history gets one."""
    x.copy_(w * 2)
    return x.sum()


@program(lambda: (torch.randn(4), torch.randn(4), torch.empty(4)))
def given_as_out(x, y, out):
    """Operators that write to what they are given."""
    torch.add(x, y, out=out)
    torch.mul(out, 2, out=out)
    return out, x


@program(lambda: (torch.randn(4), torch.randn(4)))
def many_forms_of_writing(x, y):
    """Every form of writing."""
    x += y
    x[1:3] *= 2
    x[x > 0] = 0.5
    F.relu(x, inplace=True)
    x.index_add_(0, torch.tensor([0, 1]), y[:2])
    x.scatter_(0, torch.tensor([2]), 7.0)
    x[-1] = y[0]
    x.view(2, 2)[0, 1] = -3
    return x


@program(lambda: (leaf(4),), breaks=1)
def a_leaf_is_not_written(x):
    """A leaf that requires gradients refuses to be written."""
    x.add_(1)
    return x


@program(lambda: (leaf(4),), breaks=1)
def a_view_of_a_leaf_is_not_written(x):
    """So does its view."""
    x[1:].add_(1)
    return x


@program(lambda: (torch.randn(1, 4).expand(3, 4),))
def expanded_memory_is_not_written(x):
    """Memory that is seen many times refuses to be written."""
    x.add_(1)
    return x


@program(lambda: (torch.randn(4),))
def expanded_inside(x):
    """Setting all of an expanded tensor writes its memory."""
    x.expand(2, 4).zero_()
    return x + 1


@program(lambda: (torch.randn(6),))
def onto_itself(x):
    """A copy from memory that overlaps with where it goes."""
    x[1:].copy_(x[:-1])
    return x


@program(lambda: (torch.randn(6),))
def halves_of_itself(x):
    """A copy within one memory that does not overlap."""
    x[:3].copy_(x[3:])
    x[3:].mul_(2)
    return x


@program(lambda: (torch.randn(4),), lambda: (torch.randn(4),))
def half_way(x):
    """What was written before an exception stays written."""
    x.add_(1)
    return x, torch.linalg.cholesky(x.outer(x) * 0 - torch.eye(4))


@program(lambda: (torch.zeros(2), torch.randn(4)), breaks=1)
def out_of_another_size(out, x):
    """``out`` is given another size."""
    torch.sin(x, out=out.resize_(0))
    return out


@program(lambda: (torch.inference_mode()(torch.randn)(4),), breaks=1)
def an_inference_tensor_is_not_written(x):
    """Outside inference mode an inference tensor refuses to be written."""
    x.add_(1)
    return x
