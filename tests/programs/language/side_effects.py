"""Exercise mutation the caller sees: in-place operations, globals, attributes, aliases."""

import random

import torch

from tests.programs import program

TABLE = {"calls": 0}
LOG = []
LIMIT = 3
STATE = torch.zeros(3)


@program(lambda: (torch.randn(3),))
def in_place_on_argument(x):
    """An in-place operation on the argument is seen by the caller."""
    x.add_(1)
    x.mul_(2)
    return x.sum()


@program(lambda: (torch.randn(3),))
def returns_mutated_argument(x):
    """The tensor that comes back is the one that went in."""
    x += 1
    return x


@program(lambda: (torch.randn(4, 4),))
def setitem_on_argument(x):
    """Slices of the argument are assigned."""
    x[0] = 1.0
    x[:, 1] = x[:, 2]
    x[1:3, 1:3] += 5
    return x.sum()


@program(lambda: (torch.randn(4, 4),))
def mutation_through_view(x):
    """A view of the argument is changed in place, then the argument read."""
    row = x[0]
    row.zero_()
    flat = x.view(-1)
    flat[3] = 9
    return x * 1


@program(lambda: (torch.randn(4),))
def mutation_before_and_after(x):
    """Values read before an in-place change keep what they were."""
    before = x + 0
    alias = x
    x.neg_()
    return before, alias + 0, before - alias


@program(lambda: (torch.randn(3), torch.zeros(3)))
def copy_into(x, out):
    """copy_, fill_ and the out= argument."""
    out.copy_(x * 2)
    scratch = torch.empty(3)
    torch.add(x, 1, out=scratch)
    scratch[0].fill_(7)
    return scratch


@program(lambda: (torch.randn(4),))
def output_is_input(x):
    """An argument returned untouched, twice."""
    return x, x, x + 1


@program(lambda: (torch.randn(4),))
def output_is_view_of_input(x):
    """A view of an argument shares its memory."""
    return x[1:], x.view(2, 2), x.detach()


@program(lambda: (torch.randn(4),))
def outputs_alias_each_other(x):
    """Two results that share memory with each other, not with the argument."""
    y = x + 1
    return y, y.view(2, 2), y[0], y


@program(lambda: (lambda t: (t, t))(torch.randn(3)))
def same_tensor_twice(a, b):
    """One tensor given as two arguments; a change of one is a change of both."""
    a.add_(1)
    return a * b, a is b


@program(lambda: (lambda t: (t[:3], t[1:]))(torch.randn(4)))
def overlapping_arguments(a, b):
    """Two arguments that overlap in memory."""
    a.add_(10)
    return b * 1


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), steady=False)
def global_counter(x):
    """A global number is rebound."""
    global LIMIT
    LIMIT += 1
    return x + LIMIT


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), steady=False)
def global_containers(x):
    """A global dict and a global list are written."""
    TABLE["calls"] += 1
    TABLE["last"] = x
    LOG.append(x.sum())
    return x * TABLE["calls"]


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),))
def global_tensor_mutated(x):
    """A global tensor is changed in place."""
    STATE.add_(x)
    return STATE * 2


@program(lambda: (torch.randn(3),), breaks=1)
def prints_tensor(x):
    """Printing a tensor shows its values, in order with everything else."""
    y = x + 1
    print("y is", y)
    return y * 2


@program(lambda: (torch.randn(3), 4), breaks=2)
def prints_text(x, n):
    """Printing plain text, formatted numbers and shapes."""
    print("start")
    print(f"shape {tuple(x.shape)} n={n:>4} {n / 3:.3f} {'a' if n else 'b'!r}")
    return x * n


@program(lambda: (torch.randn(3),), breaks=1)
def prints_in_loop(x):
    """A break in every round of a loop."""
    for i in range(3):
        x = x * 2
        print(i, x)
    return x


@program(lambda: (torch.randn(3),))
def random_numbers(x):
    """Random tensors take the same numbers from the generator as plain PyTorch."""
    return torch.rand(3) + x, torch.randn_like(x), torch.randint(0, 10, (4,)), torch.bernoulli(torch.full((3,), 0.5))


@program(lambda: (torch.randn(64),))
def functional_dropout(x):
    """Dropout draws the mask that plain PyTorch draws."""
    return torch.nn.functional.dropout(x, 0.5), torch.nn.functional.dropout(x, 0.5, training=False)


@program(lambda: (torch.randn(3),))
def seeds_inside(x):
    """Setting the seed inside makes the numbers repeat."""
    torch.manual_seed(7)
    a = torch.rand(3)
    torch.manual_seed(7)
    return a, torch.rand(3), x


@program(lambda: (torch.randn(3),))
def python_random(x):
    """Numbers from Python's own generator."""
    return x * random.random() + random.randint(0, 9)


@program(lambda: (torch.randn(3),))
def attribute_on_tensor(x):
    """A Python attribute put on a tensor."""
    y = x + 1
    y.tag = "mine"
    return y, y.tag


@program(lambda: (torch.randn(3),))
def in_place_on_local(x):
    """In-place work on a tensor made inside, through several views."""
    y = torch.zeros(2, 3)
    y[0] = x
    y[1].copy_(x * 2)
    y.t()[1] += 1
    y[:, 2].neg_()
    return y


@program(lambda: (torch.randn(4), torch.tensor([0, 2])))
def index_put(x, i):
    """Assignment by an index tensor, with and without accumulation."""
    y = x.clone()
    y[i] = 0.0
    y[i] += 1
    y.index_put_((i,), torch.ones(2), accumulate=True)
    x.index_fill_(0, i, 3.0)
    return y


@program(lambda: (torch.randn(3),))
def to_python(x):
    """item() takes a value out of the graph."""
    n = x.sum().item()
    return x * n, n


@program(lambda: (torch.randn(3),))
def to_list_and_float(x):
    """tolist(), float() and int() take values out of the graph."""
    return x.tolist(), float(x[0]), int(x[1] * 10), x + 1


@program(lambda: (torch.randn(2, 3),))
def resized_view_chain(x):
    """A long chain of views, changed at its end."""
    y = x.clone()
    y.view(3, 2).t()[0].unsqueeze(0).squeeze(0).mul_(10)
    return y


def overlapping():
    """Two views of one memory."""
    base = torch.randn(3, 4)
    return base[:2], base[1:]


@program(lambda: overlapping())
def views_of_one_memory(a, b):
    """A change of one argument shows through the other."""
    before = b * 2
    a.add_(1)
    return before + b


@program(
    lambda: (lambda base: (base[:2], base[1:], torch.randn(2, 4, requires_grad=True)))(torch.randn(3, 4)), breaks=1
)
def view_gains_history(a, b, w):
    """A change of one argument makes the other one require gradients."""
    a.add_(w)
    return b.requires_grad, b * 2


@program(lambda: (torch.tensor([True, False]), torch.tensor([True, True]), []), breaks=1)
def list_grows_before_an_operation_raises(a, b, log):
    """What was done to a list before an operation that raises only when it runs stays done."""
    log.append(1)
    c = 1 - a
    log.append(2)
    return c - b


@program(lambda: (torch.ones(3), torch.tensor([1]), []), lambda: (torch.ones(3), torch.tensor([7]), []))
def list_grows_before_an_index_out_of_bounds(x, index, log):
    """The numbers of a tensor decide whether an operation raises, once a list has grown."""
    log.append(1)
    y = x[index]
    log.append(2)
    return y


@program(
    lambda: (torch.ones(3), torch.tensor([0, 1]), []),
    lambda: (torch.ones(3), torch.tensor([0, 7]), []),
)
def list_grows_and_a_tensor_is_zeroed_before_an_operation_raises(x, at, log):
    """A write and a list's growth stay done when a later operation raises only as it runs."""
    log.append(1)
    x.zero_()
    z = torch.eye(4)[at]
    log.append(z)
    return z


@program(
    lambda: (torch.nn.BatchNorm1d(3), torch.randn(4, 3), torch.tensor([1]), {}),
    lambda: (torch.nn.BatchNorm1d(3), torch.randn(4, 3), torch.tensor([7]), {}),
)
def statistics_are_updated_before_an_index_out_of_bounds(norm, x, index, seen):
    """Running statistics, random numbers and a dict's items stay after an error."""
    seen["mean"] = norm(x).mean()
    seen["dropped"] = torch.nn.functional.dropout(x)
    x.mul_(2)
    seen["taken"] = x[index]
    return seen["taken"] * 2
