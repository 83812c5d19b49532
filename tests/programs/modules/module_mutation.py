"""Exercise modules that change while they run, odd attributes and shared parameters."""

import copy
import functools

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs import call, program


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),))
class NonPersistentBuffer(nn.Module):
    """A buffer outside the state dict, replaced by forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(4), persistent=False)

    def forward(self, x):
        self.average = 0.9 * self.average + 0.1 * x.mean(0)
        return x - self.average


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),))
class BufferOnFirstCall(nn.Module):
    """A buffer registered in the first call."""

    def forward(self, x):
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.tril(torch.ones(4, 4)))
        return x @ self.mask


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),))
class LayerOnFirstCall(nn.Module):
    """A submodule made when the width of the input is first seen."""

    def __init__(self):
        super().__init__()
        self.layer = None

    def forward(self, x):
        if self.layer is None:
            self.layer = nn.Linear(x.shape[-1], 3)
        return self.layer(x)


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),))
class ParameterReplaced(nn.Module):
    """forward puts another parameter in place of one."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        y = x * self.weight
        self.weight = nn.Parameter(self.weight.detach() * 2)
        return y * self.weight


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),), steady=False)
class ListGrows(nn.Module):
    """A ModuleList appended to while running."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x):
        self.layers.append(nn.Identity())
        for layer in self.layers:
            x = layer(x)
        return x, len(self.layers)


@program(lambda: (torch.randn(2, 4),))
class ContainerMethods(nn.Module):
    """len, in, slices, keys, negative and computed indices of all containers."""

    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.table = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh()})
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(3)])
        self.named = nn.ParameterDict({"x": nn.Parameter(torch.randn(4)), "y": nn.Parameter(torch.randn(4))})

    def forward(self, x):
        x = self.seq[:2](x) + self.seq[-1](x)
        for w in self.weights:
            x = x * w
        x = x + self.weights[-1] + self.weights[1:][0]
        if "a" in self.table and "z" not in self.table:
            x = self.table["a"](x)
        for key in self.named.keys():
            x = x + self.named[key]
        for _, value in self.named.items():
            x = x - value
        return x, len(self.seq), len(self.table), len(self.weights), len(self.named), list(self.table.keys())


@program(lambda: (torch.randn(2, 4),))
class SharedTensors(nn.Module):
    """A parameter has two names, a module two parents, and a buffer is a view of a parameter."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.again = self.a
        self.register_buffer("part", self.a.weight.detach()[:2])

    def forward(self, x):
        return self.again(self.b(self.a(x))) @ self.part.T


class Forwarding(nn.Module):
    """Hands unknown attributes on to what it wraps."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, x):
        return self.inner(x) * self.scale + self.weight.sum()


class Inner(nn.Linear):
    """Has an attribute that the wrapper has not."""

    def __init__(self):
        super().__init__(4, 4)
        self.scale = 3.0


@program(lambda: (torch.randn(2, 4),))
class GetattrForwards(nn.Module):
    """A wrapper whose ``__getattr__`` reads from the wrapped module."""

    def __init__(self):
        super().__init__()
        self.outer = Forwarding(Inner())

    def forward(self, x):
        return self.outer(x) + self.outer.bias + self.outer.in_features


class OwnCall(nn.Module):
    """Overrides ``__call__``."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def __call__(self, x, **kwargs):
        return super().__call__(x + 1, **kwargs) * 2

    def forward(self, x, power=1):
        return self.linear(x) ** power


@program(lambda: (torch.randn(2, 4),))
class CallOverridden(nn.Module):
    """A submodule with a ``__call__`` of its own around the usual one."""

    def __init__(self):
        super().__init__()
        self.inner = OwnCall()

    def forward(self, x):
        return self.inner(x, power=2)


@program(lambda: (torch.randn(2, 4),))
class RootCallOverridden(OwnCall):
    """The compiled module itself overrides ``__call__``."""


class Tagged(nn.Module):
    """Writes every attribute in capitals, and reads properties."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.log = []

    def __setattr__(self, name, value):
        if name == "gain":
            value = value * 2
        super().__setattr__(name, value)

    @property
    def doubled(self):
        return self.linear.weight * 2

    @functools.cached_property
    def rank(self):
        return self.linear.weight.dim()


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),))
class SetattrOverridden(Tagged):
    """``__setattr__``, properties and cached properties of a module."""

    def forward(self, x):
        self.gain = 2
        return F.linear(x, self.doubled) * self.gain * self.rank


@program(lambda: (torch.randn(2, 4),))
class FunctionAsAttribute(nn.Module):
    """Functions, lambdas, partials and methods as module attributes; an instance ``forward``."""

    def __init__(self):
        super().__init__()
        self.activation = F.gelu
        self.scale = lambda t: t * 2
        self.clip = functools.partial(torch.clamp, min=-1.0)
        self.inner = nn.Linear(4, 4)
        self.apply_inner = self.inner.forward
        plain = self.inner.forward
        self.inner.forward = lambda t: plain(t) + 1

    def forward(self, x):
        return self.clip(self.scale(self.activation(self.apply_inner(x)))) + self.inner(x)


@program(lambda: (torch.randn(2, 4),))
class NestedStructures(nn.Module):
    """Modules in plain lists, tuples and dicts, and tensors in plain attributes."""

    def __init__(self):
        super().__init__()
        self.hidden = [nn.Linear(4, 4), (nn.ReLU(), {"last": nn.Linear(4, 2)})]
        self.offsets = {"a": torch.ones(4), "b": [torch.zeros(2)]}

    def forward(self, x):
        first, (act, rest) = self.hidden
        return rest["last"](act(first(x + self.offsets["a"]))) + self.offsets["b"][0]


@program(lambda: (torch.randn(2, 4),), breaks=1)
class CopiesItself(nn.Module):
    """A copy of a submodule made in forward."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        twin = copy.deepcopy(self.inner)
        return twin(x) + self.inner(x)


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),))
class ModeSwitches(nn.Module):
    """forward switches a submodule to evaluation and back."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        self.norm.eval()
        y = self.norm(x)
        self.norm.train()
        return y + self.norm(x)


@program(lambda: (torch.randn(2, 4),))
class WalksItself(nn.Module):
    """named_parameters, children, apply-like loops, and type tests over modules()."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4)))

    def forward(self, x):
        norm = sum(p.pow(2).sum() for p in self.parameters())
        names = [n for n, _ in self.named_modules()]
        count = sum(isinstance(m, nn.Linear) for m in self.modules())
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                x = x + p
        first = self.get_submodule("net.0")
        weight = self.get_parameter("net.2.0.weight")
        return first(x) @ weight + norm, names, count, len(list(self.children()))


class Quantity(torch.Tensor):
    """A parameter class with a torch function of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


@program(lambda: (torch.randn(2, 4),))
class TrainableFlags(nn.Module):
    """Parameters without gradients beside others with them."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.free = nn.Linear(4, 4)

    def forward(self, x):
        trainable = [p for p in self.parameters() if p.requires_grad]
        return self.free(self.frozen(x)), len(trainable)


@program(lambda: (torch.randn(3, 4),), lambda: (torch.randn(3, 4),))
class HalfPrecision(nn.Module):
    """Parameters of two dtypes, cast in forward."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4).to(torch.bfloat16)
        self.b = nn.Linear(4, 4).double()

    def forward(self, x):
        return self.b(self.a(x.to(self.a.weight.dtype)).to(next(self.b.parameters()).dtype))


@program(lambda: (torch.randn(2, 4),))
class FunctionalCall(nn.Module):
    """functional_call with replaced parameters, also of tied ones."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.inner[1].weight = self.inner[0].weight

    def forward(self, x):
        state = {k: v * 2 for k, v in self.inner.named_parameters()}
        return torch.func.functional_call(self.inner, state, (x,))


@program(lambda: (torch.randn(2, 4),))
class EmaInside(nn.Module):
    """A moving average of parameters kept beside them, updated without gradients."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.average = copy.deepcopy(self.net).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for slow, fast in zip(self.average.parameters(), self.net.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)
        return self.net(x) - self.average(x)


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 6),))
class LazyInside(nn.Module):
    """A lazy layer materialized outside, then used."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LazyLinear(3)
        self.layer(torch.ones(1, 4))

    def forward(self, x):
        return self.layer(x[:, :4])


@program(lambda: (torch.randn(6, 4),), lambda: (torch.randn(6, 4),))
class LazyFirstCall(nn.Module):
    """Lazy layers that take their sizes from the first call."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.LazyLinear(3), nn.Tanh(), nn.LazyBatchNorm1d(), nn.LazyLinear(2))

    def forward(self, x):
        return self.net(x)


@program(lambda: (torch.randn(2, 4), []), lambda: (torch.randn(2, 4), [1]))
class LazyAfterSideEffects(nn.Module):
    """A lazy layer infers its sizes after earlier side effects and reads none of them."""

    def __init__(self):
        super().__init__()
        self.last, self.sizes = nn.LazyLinear(2), []

    def forward(self, x, seen):
        """What is noted is noted once."""
        self.sizes.append(x.size(0))
        seen.append(x.size(1))
        return self.last(x), seen


class LazyOnes(nn.LazyLinear):
    """A lazy layer whose weights depend on what was noted."""

    def reset_parameters(self):
        """Ones, one time for each note."""
        super().reset_parameters()
        if not self.has_uninitialized_params():
            self.weight.data.fill_(float(len(NOTES)))


NOTES = []


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),), breaks=1)
class LazyThatLooks(nn.Module):
    """A lazy layer of the user's own looks at what was changed before."""

    def __init__(self):
        super().__init__()
        self.last = LazyOnes(2)

    def forward(self, x):
        """The note is there when the weights are made."""
        NOTES.append(1)
        return self.last(x)


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),), breaks=1)
class LazyAfterRandomNumbers(nn.Module):
    """A lazy layer initialized after a dropout preserves the order of random numbers."""

    def __init__(self):
        super().__init__()
        self.drop, self.last = nn.Dropout(0.5), nn.LazyLinear(2)

    def forward(self, x):
        return self.last(self.drop(x))


class Doubled(nn.Module):
    """Holds another module, made in forward."""

    def __init__(self, inner, factor=2):
        super().__init__()
        self.inner = inner
        self.factor = factor
        self.register_buffer("offset", torch.ones(4))
        self.steps = nn.ModuleList([inner, nn.ReLU()])

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x * self.factor + self.offset


@program(lambda: (torch.randn(2, 4),))
class WrapsInForward(nn.Module):
    """A module around a submodule, made in forward and returned."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        made = Doubled(self.inner)
        chain = nn.Sequential(made, nn.Tanh())
        return chain(x), made, len(chain), [n for n, _ in made.named_parameters()]


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),))
class MadeInForward(nn.Module):
    """Layers made in forward, used once."""

    def forward(self, x):
        norm = nn.LayerNorm(4, elementwise_affine=False)
        linear = nn.Linear(4, 2)
        return linear(norm(x)).shape, nn.Softmax(dim=-1)(x)


@program(lambda: call(torch.randn(2, 4), scale=2.0), lambda: call(torch.randn(2, 4), flag=True))
class KeywordsAndDefaults(nn.Module):
    """Keyword-only arguments, defaults and catch-alls of forward."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x, *rest, scale=1.0, **options):
        return self.inner(x) * scale + len(rest) + (1 if options.get("flag") else 0)


@program(lambda: (torch.randn(2, 4),), lambda: (torch.randn(2, 4),), steady=False)
class Counter(nn.Module):
    """Counts calls, decides by the count, keeps history in a list."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.calls = 0
        self.history = []

    def forward(self, x):
        self.calls += 1
        y = self.inner(x)
        self.history.append(y.detach())
        if self.calls % 2 == 0:
            y = y + self.history[-2]
        return y


@program(lambda: (torch.randn(2, 4),), steady=False)
class ToInside(nn.Module):
    """``to()`` and ``requires_grad_()`` in forward read gradients left by the first call."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        self.inner.to(torch.float32)
        self.inner.requires_grad_(True)
        return self.inner(x.to(self.inner.weight))


@program(lambda: (torch.randn(2, 4),), steady=False)
class ZeroGradInside(nn.Module):
    """zero_grad and the gradients of parameters read in forward."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        self.inner.zero_grad()
        assert self.inner.weight.grad is None
        return self.inner(x)


class Converting(torch.nn.Module):
    """Asks in every call for the type that its layer has."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x):
        self.layer = self.layer.to(torch.float32)
        return self.layer(x)


@program(lambda: (Converting(), torch.randn(2, 3)))
def converted_to_its_own_type(model, x):
    """``module.to`` with nothing to convert."""
    return model(x).relu()


@program(*[lambda: (torch.randn(2, 4),)] * 6, steady=False)
class WarmedUp(nn.Module):
    """A module branches on values of its small tensors before and after mutating them."""

    def __init__(self):
        super().__init__()
        self.count = torch.tensor(0.0)
        self.rate = torch.tensor(0.5)

    def forward(self, x):
        if self.count == 1:
            x = x - 1
        self.count += 1
        self.count.add_(self.rate)
        if self.count.item() * 2 > 7:
            x = x * self.rate
        made = torch.zeros(()) + 1
        return x + 1 if made > 0 else x


@program(*[lambda: (torch.randn(2, 4),)] * 4, breaks=1, steady=False)
class WarmedUpByAView(nn.Module):
    """A value written to a small tensor through a view is unknown until the graph has run."""

    def __init__(self):
        super().__init__()
        self.counts = torch.zeros(3)
        self.count = self.counts[1]

    def forward(self, x):
        self.counts += 1
        return x + 1 if self.count.item() > 2 else x * 2


@program(lambda: (torch.randn(2),), steady=False)
class MembersDeleted(nn.Module):
    """A module deletes some of its members, and lists those that are left."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.shift = nn.Parameter(torch.ones(2))
        self.register_buffer("unsaved", torch.ones(2), persistent=False)
        self.act = nn.ReLU()

    def forward(self, x):
        for name in ("scale", "unsaved", "act"):
            if hasattr(self, name):
                delattr(self, name)
        left = [name for name, _ in self.named_parameters(prefix="own")]
        return x + sum(self.parameters()), left, list(self.named_children()), sorted(self._non_persistent_buffers_set)
