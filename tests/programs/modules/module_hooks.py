"""Exercise module hooks of every kind, and parameters computed from others."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from tests.programs import program


def doubled(module, args):
    """Pre-hook that replaces the arguments."""
    return (args[0] * 2, *args[1:])


@program(lambda: (torch.randn(2, 4),))
class PreHookReplaces(nn.Module):
    """A pre-hook with a tuple, one with a bare value, one with nothing."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.one.register_forward_pre_hook(doubled)
        self.two.register_forward_pre_hook(lambda module, args: args[0] + 1)
        self.three.register_forward_pre_hook(lambda module, args: None)

    def forward(self, x):
        return self.three(self.two(self.one(x)))


class Scaled(nn.Module):
    """Takes a keyword."""

    def forward(self, x, *, scale=1.0, shift=None):
        x = x * scale
        return x if shift is None else x + shift


@program(lambda: (torch.randn(2, 4),))
class HooksWithKeywords(nn.Module):
    """Hooks before and after that see and change keyword arguments."""

    def __init__(self):
        super().__init__()
        self.inner = Scaled()
        self.inner.register_forward_pre_hook(
            lambda module, args, kwargs: (args, {**kwargs, "shift": kwargs["scale"]}), with_kwargs=True
        )
        self.inner.register_forward_hook(
            lambda module, args, kwargs, output: output - kwargs["scale"], with_kwargs=True
        )

    def forward(self, x):
        return self.inner(x, scale=3.0)


@program(lambda: (torch.randn(2, 4),), steady=False)
class HookOrder(nn.Module):
    """Hooks run in the order of registration, those with prepend first."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.seen = []
        for name in ("a", "b"):
            self.inner.register_forward_hook(lambda module, args, output, name=name: self.seen.append(name))
        self.inner.register_forward_hook(lambda module, args, output: self.seen.append("first"), prepend=True)

    def forward(self, x):
        return self.inner(x), list(self.seen)


@program(lambda: (torch.randn(2, 4),), steady=False)
class FeaturesByHook(nn.Module):
    """Hooks that collect intermediate results in a dict of the outer module."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.features = {}
        for name, module in self.net.named_children():
            module.register_forward_hook(self.keeper(name))

    def keeper(self, name):
        def hook(module, args, output):
            self.features[name] = output

        return hook

    def forward(self, x):
        y = self.net(x)
        return y, self.features["1"].sum() + y.sum()


@program(lambda: (torch.randn(2, 4, requires_grad=True),), breaks=1)
class FullBackwardHook(nn.Module):
    """A full backward hook that scales what flows back."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.inner.register_full_backward_hook(lambda module, grad_in, grad_out: tuple(g * 2 for g in grad_in))

    def forward(self, x):
        return self.inner(x).relu()


@program(lambda: (torch.randn(2, 4, requires_grad=True),), breaks=1)
class FullBackwardPreHook(nn.Module):
    """A hook on the gradient before it enters the module."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.inner.register_full_backward_pre_hook(lambda module, grad_out: (grad_out[0] * 3,))

    def forward(self, x):
        return self.inner(x).relu()


@program(lambda: (torch.randn(2, 4, requires_grad=True),))
class HookOnActivation(nn.Module):
    """A hook on an intermediate tensor's gradient, registered in forward."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        y = self.inner(x)
        y.register_hook(lambda grad: grad * 2)
        return (y * y).sum()


@program(lambda: (torch.randn(2, 4),), breaks=2, steady=False)
class HookRegisteredInside(nn.Module):
    """A hook registered, used and removed within forward."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        handle = self.inner.register_forward_hook(lambda module, args, output: output + 1)
        y = self.inner(x)
        handle.remove()
        return y - self.inner(x)


@program(lambda: (torch.randn(2, 4),), breaks=7, steady=False)
class HooksAroundOneCall(nn.Module):
    """Hooks last for one call: prepended ones, ones with keywords, one bound to a block."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        seen = []
        first = self.one.register_forward_hook(lambda module, args, output: seen.append(output * 2))
        before = self.two.register_forward_pre_hook(lambda module, args, kw: ((args[0] + 1,), kw), with_kwargs=True)
        with self.one.register_forward_hook(
            lambda module, args, output: seen.append(output * 3), prepend=True
        ) as inner:
            y = self.two(self.one(x))
        y = y + self.two(self.one(x))
        before.remove()
        first.remove()
        inner.remove()
        filed = [inner.id in self.one._forward_hooks, len(self.one._forward_hooks)]
        return self.two(self.one(y)), seen, filed


@program(lambda: (torch.randn(2, 4),), breaks=2, steady=False)
class HooksThatStay(nn.Module):
    """The first call adds hooks to each layer; handle ids follow the order of creation."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.numbers = []
        self.seen = []

    def forward(self, x):
        handles = []
        if not self.numbers:
            for layer in self.layers:
                handles.append(layer.register_forward_hook(self.keep))
            handles.append(self.layers[0].register_forward_hook(self.keep, prepend=True))
        y = self.layers(x)
        if handles:
            self.numbers = [handle.id - handles[0].id for handle in handles]
        return y, list(self.seen)

    def keep(self, module, args, output):
        self.seen.append(output.detach().sum())


@program(lambda: (torch.randn(2, 4),), breaks=2, steady=False)
def global_hook(x):
    """A hook on all modules, for one call."""
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: output * 2)
    try:
        return GLOBAL_LINEAR(x)
    finally:
        handle.remove()


torch.manual_seed(3)
GLOBAL_LINEAR = nn.Linear(4, 4)


class Symmetric(nn.Module):
    """Parametrization to symmetric matrices."""

    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


@program(lambda: (torch.randn(2, 4),))
class Parametrized(nn.Module):
    """A weight computed by a parametrization at each read."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        parametrize.register_parametrization(self.linear, "weight", Symmetric())

    def forward(self, x):
        return self.linear(x) + self.linear.weight.sum()


@program(lambda: (torch.randn(2, 4),))
class ParametrizedTwice(nn.Module):
    """Two parametrizations of one weight, one after the other."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        parametrize.register_parametrization(self.linear, "weight", Symmetric())
        parametrize.register_parametrization(self.linear, "weight", nn.Softplus())

    def forward(self, x):
        return self.linear(x)


@program(lambda: (torch.randn(2, 4),))
class ParametrizedCached(nn.Module):
    """Within ``parametrize.cached`` the weight is computed once."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        parametrize.register_parametrization(self.linear, "weight", Symmetric())

    def forward(self, x):
        with parametrize.cached():
            return self.linear(x) + self.linear(x + 1)


@program(lambda: (torch.randn(2, 4),))
class WeightNormed(nn.Module):
    """Weight normalization, in its form as a parametrization."""

    def __init__(self):
        super().__init__()
        self.linear = parametrizations.weight_norm(nn.Linear(4, 3))
        self.conv = parametrizations.weight_norm(nn.Conv1d(1, 2, 2), dim=None)

    def forward(self, x):
        return self.linear(x), self.conv(x[:, None])


@program(lambda: (torch.randn(2, 4),))
class WeightNormedByHook(nn.Module):
    """Weight normalization as it was before: a pre-hook that sets the weight."""

    def __init__(self):
        super().__init__()
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.linear = nn.utils.weight_norm(nn.Linear(4, 3))

    def forward(self, x):
        return self.linear(x)


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),))
class SpectralNormed(nn.Module):
    """Spectral normalization as a parametrization: buffers move at each step of training."""

    def __init__(self):
        super().__init__()
        self.linear = parametrizations.spectral_norm(nn.Linear(4, 3))

    def forward(self, x):
        return self.linear(x)


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),))
class SpectralNormedByHook(nn.Module):
    """Spectral normalization as a pre-hook."""

    def __init__(self):
        super().__init__()
        self.linear = nn.utils.spectral_norm(nn.Linear(4, 3))

    def forward(self, x):
        return self.linear(x)


@program(lambda: (torch.randn(2, 4),))
class Orthogonal(nn.Module):
    """An orthogonal weight by a parametrization."""

    def __init__(self):
        super().__init__()
        self.linear = parametrizations.orthogonal(nn.Linear(4, 4))

    def forward(self, x):
        return self.linear(x)


@program(lambda: (torch.randn(2, 4),))
class Pruned(nn.Module):
    """A pruned weight: a pre-hook that multiplies by a mask."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        prune.l1_unstructured(self.linear, "weight", amount=0.4)
        prune.ln_structured(self.linear, "weight", amount=1, n=2, dim=0)

    def forward(self, x):
        return self.linear(x)


@program(lambda: (torch.randn(2, 4),))
class StateDictInside(nn.Module):
    """forward reads its own state dict."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("scale", torch.ones(3), persistent=False)

    def forward(self, x):
        state = self.state_dict()
        return F.linear(x, state["linear.weight"]) * self.scale, list(state)


@program(lambda: (torch.randn(2, 4),))
class AlwaysCalledHook(nn.Module):
    """A hook that is called even when forward raises."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.inner.register_forward_hook(lambda module, args, output: output * 2, always_call=True)

    def forward(self, x):
        return self.inner(x)
