"""The same function called with other shapes, dtypes, layouts and values."""

import torch

from tests.programs import program


def mlp(x, w):
    return torch.relu(x @ w).sum(-1)


@program(
    lambda: (torch.randn(2, 4), torch.randn(4, 5)),
    lambda: (torch.randn(3, 4), torch.randn(4, 5)),
    lambda: (torch.randn(7, 4), torch.randn(4, 5)),
    steady=True,
)
def batch_size_varies(x, w):
    """The first dimension changes."""
    return mlp(x, w)


@program(
    lambda: (torch.randn(1, 4),),
    lambda: (torch.randn(5, 4),),
    lambda: (torch.randn(6, 4),),
    lambda: (torch.randn(1, 4),),
)
def batch_of_one(x):
    """A size of one is special, and comes back."""
    return x + torch.ones(x.shape[0], 1), x.softmax(0)


@program(
    lambda: (torch.randn(3),), lambda: (torch.randn(3, dtype=torch.float64),), lambda: (torch.randint(0, 5, (3,)),)
)
def dtype_varies(x):
    """Another dtype is another case."""
    return x * 2 + 1


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3, 4),), lambda: (torch.randn(2, 3, 4),))
def rank_varies(x):
    """Another number of dimensions is another case."""
    return x.sum(-1), x.dim()


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3, requires_grad=True),))
def requires_grad_varies(x):
    """The same shape with and without gradients."""
    return (x * x).sum()


@program(lambda: (torch.randn(3), torch.randn(3)), lambda: (lambda t: (t, t))(torch.randn(3)))
def aliasing_varies(a, b):
    """Two tensors first, one tensor twice later."""
    return a * b + (1 if a is b else 2)


@program(lambda: ([torch.randn(2)],), lambda: ([torch.randn(2), torch.randn(2)],))
def list_length_varies(xs):
    """A longer list is another case."""
    return sum(xs)


@program(lambda: (torch.randn(3),), lambda: ([torch.randn(3)],), lambda: ("text",))
def type_varies(x):
    """Another type of argument is another case."""
    if isinstance(x, torch.Tensor):
        return x + 1
    if isinstance(x, list):
        return x[0] - 1
    return x + "!"


@program(*[(lambda n: lambda: (torch.randn(3), n))(n) for n in range(12)])
def more_values_than_the_limit(x, n):
    """More different constants than the recompile limit allows still give right answers."""
    if n % 2 == 0:
        return x * n
    return x - n


@program(
    lambda: (torch.randn(2, 3), torch.randn(2, 3)),
    lambda: (torch.randn(4, 3), torch.randn(1, 3)),
    lambda: (torch.randn(4, 3), torch.randn(4, 3)),
)
def broadcasting_varies(x, y):
    """A dimension that broadcasts in one call and not in another."""
    return x + y


@program(lambda: (torch.randn(0, 3),), lambda: (torch.randn(4, 3),))
def empty_batch(x):
    """An empty batch, then a full one."""
    return x * 2, x.sum(0)


class Model(torch.nn.Module):
    """A module that looks at its sizes."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        batch, length, _ = x.shape
        return self.linear(x).view(batch * length, -1).sum(0), batch * length


@program(lambda: (torch.randn(2, 3, 4),), lambda: (torch.randn(3, 3, 4),), lambda: (torch.randn(3, 5, 4),))
class TwoSizesVary(Model):
    """Two dimensions change, one after the other."""
