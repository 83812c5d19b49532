"""Tensors changed in place: data, layout, with and without gradients, forbidden writes."""

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


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@program(lambda: (torch.randn(6),))
def overlapping_elements_in_a_callee(x):
    """A function of the user writes to a view whose elements share memory."""
    return Doubled.apply(x.as_strided((2, 2), (1, 1))), x.sum()


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
    """An update as optimizers make it."""
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


def twice(made):
    """One tensor in two places."""
    return made, made


@program(lambda: (torch.zeros(2), torch.zeros(2)), lambda: twice(torch.zeros(2)), steady=False)
def marks_on_tensors(x, y):
    """What is set on one argument is found on the other where the two are one tensor."""
    x.mark = 1
    y.mark = 2
    return x + x.mark, y.mark


@program(
    lambda: (torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)),
    lambda: twice(torch.ones(2, requires_grad=True)),
    steady=False,
)
def gradients_of_two(x, y):
    """``.grad`` of two leaves, which may be one; a gradient changed after it was set."""
    x.grad = torch.full((2,), 3.0)
    y.grad = torch.full((2,), 5.0)
    x.grad.mul_(2)
    return x.grad + 1, y.grad + 1, x.grad is y.grad


@program(lambda: (torch.ones(2, requires_grad=True),), breaks=1)
def gradient_that_is_refused(x):
    """A gradient of another shape is refused by torch, and ``.grad`` stays as it was."""
    x.grad = torch.ones(2)
    try:
        x.grad = torch.ones(3)
    except RuntimeError as error:
        return str(error)[:20], x.grad * 2
    return x.grad


@program(lambda: (torch.ones(2, requires_grad=True),), breaks=1)
def gradient_over_a_break(x):
    """A gradient that is set before a break is there behind it."""
    x.grad = x.detach() * 2
    print(x.grad)
    x.grad = x.grad + 1
    return x.grad * 2


class ZeroedModel(torch.nn.Module):
    """Gradients made and removed by the module's own method."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))

    def forward(self, x):
        for p in self.parameters():
            p.grad = torch.ones_like(p)
        total = sum(p.grad.sum() for p in self.parameters())
        self.zero_grad()
        return self.net(x), total, [p.grad is None for p in self.parameters()]


program(lambda: (torch.randn(2, 2),), lambda: (torch.randn(2, 2),))(ZeroedModel)


@program(lambda: (leaf(2, 3), torch.ones(3)), lambda: (torch.ones(2, 3), torch.ones(3)), breaks=2)
def row_of_a_parameter_by_a_number(w, g):
    """A ``no_grad`` row is written after a graph break at ``item()``; its history is not read."""
    with torch.no_grad():
        w[1] += g.sum().item() / 4 % 2
    return w + 1


@program(lambda: (torch.arange(6.0).reshape(3, 2).t(),), lambda: (torch.ones(2, 3),))
def product_under_the_same_name(x):
    """``@=`` mutates no tensor: it rebinds the name to the product and leaves the operand."""
    product = x
    product @= torch.eye(3) * 2
    return product, x.detach(), x + 1


@program(lambda: (made(2, 3), []), lambda: (leaf(2, 3), []), lambda: (made(2, 3), []), breaks=1)
def row_of_a_leaf_after_a_result(x, log):
    """A leaf does not run the graph of a tensor with history: its write raises."""
    log.append(1)
    x.t()[0].mul_(3.0)
    return x.detach() + 1


@program(
    lambda: (torch.arange(12, dtype=torch.float64).reshape(2, 6),),
    lambda: (torch.arange(40, dtype=torch.float64).reshape(8, 5) / 7,),
)
def copied_before_it_is_written(x):
    """A kernel stores the input's new value in place and reads a copy of the old one after it."""
    before = x.clone()
    x[:, 1:] += 0.7
    before.add_(x.flip(0), alpha=2)
    x += 0.25
    total = torch.stack([before + x + x, before * 0.3 + 0.3]).sum(0)
    total.add_(x / 0.3, alpha=2)
    return total
