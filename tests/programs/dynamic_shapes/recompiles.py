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
    lambda: (torch.randn(2, 4, 6)[:, 1:3, :2],),
    lambda: (torch.randn(2, 5, 7)[:, 1:3, :2],),
    lambda: (torch.randn(2, 8, 9)[:, 1:3, :2],),
    steady=True,
)
def strides_of_a_slice_vary(x):
    """A slice of the same size is taken from tensors of growing width."""
    x.mul_(2)
    return x.transpose(0, 1).contiguous(), x.reshape(-1) + 1, x.is_contiguous()


def recurrent_layers():
    torch.manual_seed(0)
    layers = [make(4, 3, 2, batch_first=first) for make in (torch.nn.GRU, torch.nn.LSTM) for first in (True, False)]
    return torch.nn.ModuleList(layers)


@program(
    lambda: (recurrent_layers(), torch.randn(2, 3, 4, requires_grad=True)),
    lambda: (recurrent_layers(), torch.randn(4, 6, 4, requires_grad=True)),
    lambda: (recurrent_layers(), torch.randn(3, 7, 4, requires_grad=True)),
    steady=True,
)
def length_of_recurrent_layers_varies(layers, x):
    """One entry fits all lengths and batch sizes of an RNN."""
    return [layer(x) for layer in layers]


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


@program(*[(lambda r: lambda: (torch.randn(3), r))(r) for r in (0.5, 0.25, 0.125, 2.0, -1.0)])
def float_varies(x, rate):
    """A float that changes, used in tensor and in Python arithmetic."""
    return x * rate - rate / 2, x + rate**2


@program(*[(lambda r: lambda: (torch.randn(3), r))(r) for r in (1.5, 7.25, -3.75, 6.0, -6.0, -1e-300, 2.0**60, 0.0)])
def float_divided(x, t):
    """Whole part and remainder of a float that changes."""
    return x * (t // 1), x + t % 2, t // 4, t % 0.25, divmod(t, 2.0), -t // 2


@program(*[(lambda r: lambda: (torch.randn(3), r))(r) for r in (1.0, 2.5, 0.5, 3.0)])
def float_decides(x, p):
    """A float that changes and decides between branches."""
    return x.abs() ** p if p > 1.5 else x + p


@program(*[(lambda n: lambda: (torch.randn(4, 3), n))(n) for n in (0, 1, 2, 3)])
def int_from_zero(x, n):
    """An int that counts up from zero, as an index, a size and a number."""
    return x[n], x[:n].sum(0), torch.ones(n + 1) * n


class Scheduled(torch.nn.Module):
    """A module whose float and int attributes change in every call."""

    def __init__(self):
        super().__init__()
        self.step = 0
        self.rate = 1.0

    def forward(self, x):
        self.step += 1
        self.rate = self.rate * 0.5
        return x * self.rate + self.step


@program(*[lambda: (torch.randn(3),)] * 5)
class AttributesCount(Scheduled):
    """Attributes counted and decayed by forward."""


@program(
    lambda: (torch.randn(4, 7),),
    lambda: (torch.randn(5, 7),),
    lambda: (torch.randn(5, 8),),
    lambda: (torch.randn(6, 9),),
)
def one_size_decides(x):
    """A size that changes and is compared with a number."""
    if x.shape[1] == 7:
        return x * 2
    return x[:, : x.shape[0]].sum(-1)
