"""torch.nn modules: parameters, buffers, containers, hooks, modes."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs import program


@program(lambda: (torch.randn(2, 4),))
class Linear(nn.Module):
    """One linear layer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x)


@program(lambda: (torch.randn(2, 4),))
class Mlp(nn.Module):
    """Sequential with activations, normalized."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4), nn.Tanh())

    def forward(self, x):
        return self.net(x) + x


@program(lambda: (torch.randn(2, 4),))
class Blocks(nn.Module):
    """A ModuleList in a loop, indexed, sliced and enumerated."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.relu(block(x))
        for i, block in enumerate(self.blocks[1:]):
            x = x * (i + 1) + block(x)
        return self.blocks[-1](x), len(self.blocks)


@program(lambda: (torch.randn(2, 4), "left"), lambda: (torch.randn(2, 4), "right"))
class Named(nn.Module):
    """A ModuleDict and a ParameterDict by key."""

    def __init__(self):
        super().__init__()
        self.paths = nn.ModuleDict({"left": nn.Linear(4, 2), "right": nn.Identity()})
        self.scales = nn.ParameterDict({"left": nn.Parameter(torch.ones(1)), "right": nn.Parameter(torch.zeros(1))})

    def forward(self, x, key):
        total = self.paths[key](x) * self.scales[key]
        for name, module in self.paths.items():
            if name != key:
                total = total.sum() + module(x).sum()
        return total


@program(lambda: (torch.randn(2, 4),))
class OwnParameters(nn.Module):
    """Parameters, a buffer and plain attributes used directly."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("offset", torch.arange(4.0))
        self.register_parameter("missing", None)
        self.eps = 1e-5
        self.sizes = [4, 2]

    def forward(self, x):
        if self.missing is None:
            x = x / (x.norm() + self.eps)
        return x * self.weight + self.offset[: self.sizes[0]]


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),))
class CountsInBuffer(nn.Module):
    """A buffer that forward changes in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.steps += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),), steady=False)
class WritesAttributes(nn.Module):
    """forward rebinds attributes: a number, a tensor, a buffer."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.cache = None
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x):
        self.calls += 1
        self.cache = x * 2
        self.last = x.mean(0)
        return self.cache + self.calls


@program(lambda: (torch.randn(4, 3),), lambda: (torch.randn(4, 3),))
class BatchNorm(nn.Module):
    """Batch normalization in training updates its running statistics."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(x)


@program(lambda: (torch.randn(4, 3),))
class BatchNormEval(BatchNorm):
    """Batch normalization in evaluation."""

    def __init__(self):
        super().__init__()
        self.eval()


@program(lambda: (torch.randn(8, 8),), lambda: (torch.randn(8, 8),))
class Dropout(nn.Module):
    """Dropout in training takes the random numbers that plain PyTorch takes."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        return self.drop(x) * 2


@program(lambda: (torch.randn(8, 8),))
class DropoutEval(Dropout):
    """Dropout in evaluation does nothing."""

    def __init__(self):
        super().__init__()
        self.eval()


@program(lambda: (torch.randn(2, 4),), steady=False)
class SwitchesMode(nn.Module):
    """forward looks at self.training and switches it."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(1.0)

    def forward(self, x):
        y = self.drop(x)
        if self.training:
            self.eval()
        return y + self.drop(x)


@program(lambda: (torch.randn(1, 3, 8, 8),))
class Convolution(nn.Module):
    """A small convolutional network."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.head(x.mean((2, 3)))


@program(lambda: (torch.randint(0, 10, (2, 5)),))
class Embedding(nn.Module):
    """Embeddings with positions."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(10, 4, padding_idx=0)
        self.positions = nn.Embedding(8, 4)

    def forward(self, ids):
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))


@program(lambda: (torch.randn(2, 4),))
class SharedWeights(nn.Module):
    """One parameter under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


@program(lambda: (torch.randn(2, 4),))
class NestedNamed(nn.Module):
    """Modules in modules; walking over parameters and children."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)))

    def forward(self, x):
        total = sum(p.pow(2).sum() for p in self.inner.parameters())
        names = [name for name, _ in self.inner.named_children()]
        return self.inner(x) + total, names, self.inner[1][1].weight.shape


@program(lambda: (torch.randn(2, 4),))
class WithHooks(nn.Module):
    """Forward hooks on a child run in order."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.linear.register_forward_hook(lambda module, args, output: output + 1)

    def forward(self, x):
        return self.linear(x)


@program(lambda: (torch.randn(2, 4),))
class CallsOwnMethods(nn.Module):
    """Methods, static methods and properties of the module itself."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @property
    def scale(self):
        return 0.5

    @staticmethod
    def activate(x):
        return torch.sigmoid(x)

    def project(self, x, *, twice=False):
        y = self.linear(x)
        return self.linear(y) if twice else y

    def forward(self, x):
        return self.activate(self.project(x, twice=True)) * self.scale


class ParentModule(nn.Module):
    """A forward for children to refine."""

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return self.linear(x)


@program(lambda: (torch.randn(2, 4),))
class SuperForward(ParentModule):
    """forward calls the parent's forward."""

    def forward(self, x):
        return super().forward(x) + super().forward(-x)


@program(lambda: (torch.randn(5, 2, 3),), breaks=0)
class Recurrent(nn.Module):
    """A GRU cell unrolled by a Python loop."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x):
        h = x.new_zeros(x.shape[1], 4)
        states = []
        for step in x:
            h = self.cell(step, h)
            states.append(h)
        return torch.stack(states)


@program(lambda: (torch.randn(2, 4),), breaks=1)
class PrintsInForward(nn.Module):
    """A print in the middle of forward."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        x = self.a(x)
        print("norm below 1e9:", bool(x.norm() < 1e9))
        return self.b(x)


@program(lambda: (torch.randn(2, 4),), breaks=0)
class NumberedChildren(nn.Sequential):
    """A Sequential called itself: its parameters' paths begin with digits."""

    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 4), nn.Softplus()))


@program(lambda: (torch.randn(2, 4),), breaks=0)
class AwkwardNames(nn.Module):
    """Names of children, parameters and arguments are keywords, dunders or torch functions."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict(
            {"in": nn.Linear(4, 4), "0-first": nn.Linear(4, 4), "self": nn.Linear(4, 4), "été": nn.ReLU()}
        )
        self.register_parameter("add", nn.Parameter(torch.ones(4)))
        self.register_buffer("return", torch.ones(4))

    def forward(self, torch_, mul=2.0):
        x = self.layers["in"](torch_)
        x = self.layers["été"](self.layers["0-first"](x))
        return self.layers["self"](x) * mul + self.add + getattr(self, "return")


@program(lambda: (torch.randn(2, 5, 4),))
class RecurrentLayers(nn.Module):
    """LSTM and GRU, behind a linear layer that needs a gradient."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.gru = nn.GRU(4, 3, num_layers=2, bidirectional=True)

    def forward(self, x):
        y, (hidden, _) = self.lstm(self.embed(x))
        return self.gru(y)[0], hidden


@program(lambda: (torch.randn(2, 4),))
class GradientsAlreadyWanted(nn.Module):
    """requires_grad_ where nothing changes, and a list of parameters by position."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(3)])

    def forward(self, x):
        self.weights[0].requires_grad_()
        for weight in self.weights:
            x = x * weight
        return x + self.weights[-1]
