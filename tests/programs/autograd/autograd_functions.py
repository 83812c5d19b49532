"""``torch.autograd.Function``: how it is applied, with what, and what its context knows."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.autograd import Function
from torch.torch_version import TorchVersion

from tests.programs import program

#: Whether ``apply`` takes arguments by name: torch before 2.13 raises a TypeError.
TAKES_KEYWORDS = TorchVersion(torch.__version__) >= (2, 13)


def leaf(*sizes: int) -> torch.Tensor:
    """Numbers that record gradients."""
    return (torch.arange(float(torch.Size(sizes).numel())).reshape(sizes) + 1).requires_grad_()


class Scaled(Function):
    """Takes a number by name, or not at all."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: int = 2, shift: int = 3) -> torch.Tensor:
        ctx.count = len(ctx.needs_input_grad)
        return x * factor + shift

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return (grad * ctx.count, *[None] * (ctx.count - 1))


class Set(Function):
    """Fills in its defaults, since its context is made apart."""

    @staticmethod
    def forward(x: torch.Tensor, factor: int = 2, shift: int = 3) -> torch.Tensor:
        return x * factor + shift

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.factor, _ = inputs

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.factor, None, None


@program(lambda: (leaf(3),), breaks=0 if TAKES_KEYWORDS else 1)
def by_name(x: torch.Tensor) -> Any:
    """Arguments given by name go where the forward has them."""
    return Scaled.apply(x, factor=5), Set.apply(x), Set.apply(shift=1, x=x)


@program(lambda: (leaf(3),), steady=False)  # torch warns of it once
def of_an_instance(x: torch.Tensor) -> Any:
    """Made an object first, as old code does."""
    return Scaled().apply(x, 4)


@program(lambda: (leaf(3),), breaks=1)
def wrongly_named(x: torch.Tensor) -> Any:
    """A name that the forward does not have."""
    try:
        return Scaled.apply(x, other=1)
    except TypeError as error:
        return x * 2, str(error)


class Loud(torch.autograd.Function):
    """Print between the parts of forward, and keep what backward needs on the context."""

    @staticmethod
    def forward(ctx, x, module, scale):
        """Half of it before the output, half behind."""
        y = x.sin() * scale
        print("half way", ctx.needs_input_grad)
        ctx.scale = scale
        ctx.save_for_backward(x, y)
        far = module(y).cos()
        ctx.mark_non_differentiable(far)
        ctx.set_materialize_grads(False)
        return y, far, x

    @staticmethod
    def backward(ctx, grad, grad_far, grad_x):
        """The derivative of the first and of the last."""
        x, y = ctx.saved_tensors
        print("back", grad_far)
        return grad * x.cos() * ctx.scale + y + (0 if grad_x is None else grad_x), None, None


FAR = torch.nn.LayerNorm(3)


@program(lambda: (torch.ones(2, 3).requires_grad_(), 2.0), breaks=2)
def forward_that_prints(x, scale):
    """A forward that prints is still compiled, and so are the modules that it calls."""
    y, far, same = Loud.apply(x * 1, FAR, scale)
    return y + far + same, far.requires_grad, type(y.grad_fn) is Loud._backward_cls


class Clipped(torch.autograd.Function):
    """Returns a mask, too, and creates no zeros as gradients."""

    @staticmethod
    def forward(ctx, x, limit, sizes):
        """The clipped argument and where it is inside."""
        inside = x.abs() <= limit
        ctx.save_for_backward(inside)
        ctx.mark_non_differentiable(inside)
        ctx.set_materialize_grads(False)
        return x.clamp(-limit, limit) * sum(sizes), inside

    @staticmethod
    def backward(ctx, grad, grad_inside):
        """None for None, as of the mask."""
        assert grad_inside is None
        (inside,) = ctx.saved_tensors
        return None if grad is None else grad * inside, None, None


class InPlace(torch.autograd.Function):
    """Writes to its argument."""

    @staticmethod
    def forward(ctx, x):
        """Returns what it wrote to."""
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        """The derivative."""
        return grad * 2


class Observer(torch.nn.Module):
    """Records what it sees before it applies functions."""

    def __init__(self):
        """Starts with nothing seen."""
        super().__init__()
        self.calls, self.low = 0, None

    def forward(self, x):
        """The functions read only their arguments, whatever was recorded."""
        self.calls += 1
        self.low = x.detach().min()
        y, inside = Clipped.apply(x * 2, 3.0, [1, 2])
        InPlace.apply(y)
        return y + self.low, inside, self.calls


@program(lambda: (torch.arange(4.0).requires_grad_(), Observer()), breaks=0)
def functions_applied_after_mutations(x, observer):
    """A module that was written needs no graph break at functions that do not read it."""
    return observer(x)


class Doubled(torch.autograd.Function):
    """Writes to its argument, and prints."""

    @staticmethod
    def forward(ctx, x):
        """Returns what it wrote to."""
        print("doubled")
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        """The derivative."""
        return grad * 2


@program(lambda: (torch.ones(2, 3).requires_grad_(),), breaks=1)
def forward_that_writes_and_prints(x):
    """The argument and the result are one tensor."""
    y = x * 1
    z = Doubled.apply(y)
    return z + 1, y, z is y


class Counting(torch.autograd.Function):
    """Counts its calls in its class, and computes with the count."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        """The count times the argument."""
        Counting.calls += 1
        return x * Counting.calls

    @staticmethod
    def backward(ctx, grad):
        """The derivative, were it the first call."""
        return grad


@program(lambda: (torch.ones(2).requires_grad_(),), steady=False)
def forward_that_counts(x):
    """Side effects of forward happen once per call, before and after other code reads them."""
    Counting.calls = 0
    first = Counting.apply(x)
    between = Counting.calls
    return first, between, Counting.apply(x), Counting.calls


class Telling(torch.autograd.Function):
    """Tells a container what it is called with, and another object how often."""

    @staticmethod
    def forward(ctx, x, told):
        """Twice the argument."""
        told["shapes"].append(tuple(x.shape))
        told["calls"] += 1
        ctx.save_for_backward(x)
        return x * 2, x.sum()

    @staticmethod
    def backward(ctx, grad, other):
        """The derivative."""
        (x,) = ctx.saved_tensors
        return grad * 2 + other * x, None


@program(
    lambda: (torch.ones(2).requires_grad_(), {"calls": 0, "shapes": []}),
    lambda: (torch.ones(2).requires_grad_(), {"calls": 1, "shapes": []}),
    lambda: (torch.ones(2).requires_grad_(), {"calls": 5, "shapes": [(1,)]}),
)
def forward_that_tells(x, told):
    """Forward mutates outside containers once per call, with numbers that vary by call."""
    twice, total = Telling.apply(x, told)
    again, _ = Telling.apply(twice, told)
    return again, told["calls"], total


class Growing(torch.autograd.Function):
    """Its forward changes what its backward reads, when that runs."""

    @staticmethod
    def forward(ctx, x, sizes):
        """As it is."""
        sizes.append(len(sizes) + 1)
        ctx.sizes = sizes
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        """What was noted until then counts."""
        return grad * sum(ctx.sizes), None


@program(lambda: (torch.ones(2).requires_grad_(), [3]), breaks=2)
def backward_that_reads_later(x, sizes):
    """The backward sees what both forwards have noted."""
    return Growing.apply(Growing.apply(x, sizes), sizes), sizes


FACTORS = [1.0]


def times_factor(backward: Any) -> Any:
    """A decorator that says what it is around, and does more."""

    @functools.wraps(backward)
    def scaled(ctx: Any, *grads: Any) -> Any:
        return tuple(None if g is None else g * FACTORS[0] for g in backward(ctx, *grads))

    return scaled


class Decorated(Function):
    """Its backward is decorated, and takes an object."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, note: Any) -> torch.Tensor:
        return x * 2

    @staticmethod
    @times_factor
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * 3, None


@program(lambda: (leaf(3),), lambda: (leaf(3),), breaks=1, steady=False)
def decorated_backward_reads_what_is_changed_later(x: torch.Tensor) -> torch.Tensor:
    """A decorator around a backward reads what is changed once the function was applied."""
    y = Decorated.apply(x, object())
    FACTORS[0] += 1.0
    return y


class Noted(Function):
    """Gives back an object and a dict beside its tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, count: int) -> Any:
        ctx.count = count
        return x * 2, {"count": count, "names": ["a"]}, Note(count)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *others: Any) -> Any:
        return grad * ctx.count + len([o for o in others if o is None]), None


class Note:
    """What a forward makes."""

    def __init__(self, count: int) -> None:
        self.count = count


@program(lambda: (leaf(3),), lambda: (leaf(3),))
def forward_gives_back_objects(x: torch.Tensor) -> Any:
    """What else a forward gives back is made in each call, and may be changed."""
    y, found, note = Noted.apply(x, 4)
    found["names"].append("b")
    note.count += 1
    return y * note.count, found


class Remembered(Function):
    """Keeps the list that it gives back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.sizes = [2]
        return x * 2, ctx.sizes

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        return grad * sum(ctx.sizes)


@program(lambda: (leaf(3),), lambda: (leaf(3),), breaks=1)
def forward_gives_back_what_its_backward_reads(x: torch.Tensor) -> Any:
    """A list that is changed before the backward runs."""
    y, sizes = Remembered.apply(x)
    sizes.append(5)
    return y * 3


class ShiftedResult(Scaled):
    """Adds one to what ``apply`` returns."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        return super().apply(*args) + 1


class ShiftedTwice(ShiftedResult):
    """Overrides ``apply`` once more."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        return super().apply(*args) * 3


@program(lambda: (leaf(3),))
def apply_overridden(x: torch.Tensor) -> Any:
    """``apply`` of a subclass reaches torch's own through ``super()``."""
    return ShiftedResult.apply(x), ShiftedTwice.apply(x, 5)


FACTORS = [1.0]


class ScaledByList(Function):
    """Forward and backward read a list."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * FACTORS[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * FACTORS[0]


@program(lambda: (leaf(3),), breaks=1)
def list_written_before_apply(x: torch.Tensor) -> Any:
    """The forward reads what the call wrote before it."""
    FACTORS[0] = 2.0
    y = ScaledByList.apply(x)
    FACTORS[0] = 3.0
    return y
