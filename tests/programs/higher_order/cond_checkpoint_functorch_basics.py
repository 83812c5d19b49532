"""Exercise higher-order operations: autograd functions, torch.func and checkpointing."""

import torch
from functorch.experimental import control_flow
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

import engine
from tests.programs import program

SCALES = [3.0]


class TripledSquare(torch.autograd.Function):
    """A square whose backward is three times the true one, so that a missed backward shows."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad * SCALES[0]


class StraightThrough(torch.autograd.Function):
    """Rounds; gradients pass, scaled by a number."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale if ctx.needs_input_grad[0] else None, None


class WithContext(torch.autograd.Function):
    """Two results, and a context set up apart from forward."""

    @staticmethod
    def forward(x, k):
        return x * k, x + 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.k = inputs[1]
        ctx.save_for_backward(output[0])

    @staticmethod
    def backward(ctx, first, second):
        return first * ctx.k + second * ctx.saved_tensors[0], None


class Talking(torch.autograd.Function):
    """Prints in forward."""

    @staticmethod
    def forward(ctx, x):
        ctx.factor = 5
        print("forward of", tuple(x.shape))
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor


def leaf():
    """A matrix that wants a gradient."""
    return torch.randn(3, 4, requires_grad=True)


@program(lambda: (leaf(),))
def custom_function(x):
    """Forward and backward of the user's own."""
    return TripledSquare.apply(x * 2).sum()


@program(lambda: (leaf(), 2.0), lambda: (leaf(), 3.0))
def custom_function_with_number(x, scale):
    """An argument that is no tensor, and needs_input_grad."""
    return StraightThrough.apply(x, scale) + 1


@program(lambda: (leaf(),))
def custom_function_with_setup(x):
    """setup_context, and several results."""
    first, second = WithContext.apply(x, 3)
    return first + second


@program(lambda: (leaf(),), breaks=1)
def custom_function_prints(x):
    """A forward with an effect is run by Python."""
    return Talking.apply(x + 1) * 2


@program(lambda: (leaf(), 2.0), lambda: (leaf(), 5.0), breaks=1)
def custom_function_reads_global(x, scale):
    """A function called after a write that its backward reads is run by Python."""
    SCALES[0] = scale
    return TripledSquare.apply(x).sum()


@program(lambda: (leaf(), torch.randn(4)))
def vmap_closure(x, weight):
    """A mapped function that reads a tensor from outside."""
    scale = weight * 2
    return torch.func.vmap(lambda row: (row * scale).sum() * row)(x)


@program(lambda: (torch.randn(3, 4), torch.randn(4)))
def vmap_dims(x, w):
    """Some arguments are not mapped; torch's own function is."""
    return torch.vmap(lambda a, b: a * b, in_dims=(1, None), out_dims=1)(x, w[:3]), torch.vmap(torch.dot)(x, x)


@program(lambda: (torch.randn(3, 4), torch.randn(4)))
def gradient_per_row(x, w):
    """Transformations of transformations."""
    return torch.func.vmap(torch.func.grad(lambda row: (row * w).sin().sum()))(x)


@program(lambda: (torch.randn(4),))
def jacobians(x):
    """jacrev, jacfwd, hessian, grad_and_value."""
    value = torch.func.grad_and_value(lambda a, b: (a * b * b).sum(), argnums=1)(x, x + 1)
    return (
        torch.func.jacrev(torch.sin)(x),
        torch.func.jacfwd(torch.cos)(x),
        torch.func.hessian(lambda a: (a**3).sum())(x),
        value,
    )


@program(lambda: (torch.randn(3, 4),))
def gradient_without_grad(x):
    """A transformation differentiates although grad mode is off."""
    with torch.no_grad():
        return torch.func.grad(lambda a: (a * a).sum())(x)


@program(lambda: (torch.randn(3, 4),))
def mapped_function_leaks(x):
    """The mapped function notes in a list how often it ran."""
    seen = []

    def double(row):
        seen.append(row.dim())
        return row * 2

    return torch.func.vmap(double)(x), seen


@program(lambda: (torch.randn(3, 4),), breaks=1)
def mapped_function_prints(x):
    """A mapped function with an effect is run by Python."""

    def double(row):
        print("row")
        return row * 2

    return torch.func.vmap(double)(x) + 1


@program(lambda: (leaf(),))
def checkpointed(x):
    """Recomputation changes no value."""
    return checkpoint(lambda a: torch.sin(a) * 2, x, use_reentrant=False)


@program(lambda: (torch.randn(3, 4), leaf()), lambda: (leaf(), torch.randn(3, 4)), lambda: (leaf(), leaf()))
def checkpointed_by_the_function(x, weight):
    """A reentrant checkpoint differentiates its arguments, not what its function closes over."""
    first = checkpoint(lambda a: torch.sin(a) * weight, x, use_reentrant=True)
    second = checkpoint(lambda a: torch.sin(a) * weight, x, use_reentrant=False)
    return first, second, first.requires_grad, second.requires_grad, torch.is_grad_enabled()


@program(lambda: (leaf(), torch.randn(3, 4)), breaks=1)
def detached_in_a_checkpoint(x, y):
    """A result that a reentrant checkpoint's function detaches requires a gradient."""
    return checkpoint(lambda a, b: (a * b, a.detach() + b), x, y, use_reentrant=True)


@program(lambda: (leaf(), []), breaks=1)
def checkpointed_with_effects(x, seen):
    """What a checkpointed function changes, the backward changes again: Python runs it."""

    def body(a):
        seen.append(len(seen))
        return torch.sin(a) * 2

    return checkpoint(body, x, use_reentrant=False)


@program(lambda: (torch.randn(3, 4),))
def annotated_for_scripts(x):
    """Annotations for TorchScript are the values that they annotate."""
    parts = torch.jit.annotate(list[torch.Tensor], [])
    parts.append(x * 2)
    return torch.jit.annotate(torch.Tensor, parts[0]), torch.jit.is_scripting()


@program(lambda: (torch.randn(3, 4), torch.tensor([0, 3, 1])))
def modules_made(x, labels):
    """Losses and activations made where they are used; each call has its own."""
    act = torch.nn.GELU(approximate="tanh")
    drop = torch.nn.Dropout(0.5)
    drop.eval()
    return torch.nn.CrossEntropyLoss(label_smoothing=0.1)(act(x), labels), drop(x), drop.training


@program(lambda: (torch.randn(3, 4),))
def type_limits(x):
    """finfo as attribute and argument."""
    limits = torch.finfo(x.dtype)
    return x.masked_fill(x < 0, limits.min).clamp(max=limits.max), limits.eps, torch.iinfo(torch.int8).max


LAYER = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
torch.nn.init.eye_(LAYER[0].weight)
torch.nn.init.ones_(LAYER[0].bias)


@program(lambda: (torch.randn(3, 4), {"0.weight": torch.randn(4, 4), "0.bias": torch.randn(4)}))
def other_parameters(x, parameters):
    """A module runs with other parameters, and with its own again."""
    return torch.func.functional_call(LAYER, parameters, (x,)) + LAYER(x)


@program(lambda: (torch.randn(3, 4), {"0.weight": torch.randn(4, 4)}))
def gradients_of_parameters(x, parameters):
    """torch.func.grad through functional_call."""
    return torch.func.grad(lambda w: torch.func.functional_call(LAYER, {"0.weight": w}, (x,)).sum())(
        parameters["0.weight"]
    )


@torch._dynamo.assume_constant_result
def block_size():
    """Declared constant."""
    return int("".join(sorted("4")))


@program(lambda: (torch.randn(3, 4),))
def constant_results(x):
    """A function that is run while tracing, and checks that hold."""
    torch._check(x.shape[0] == 3)
    torch._assert(x.dim() == 2, "a matrix is wanted")
    return x.view(-1, block_size()), torch.is_inference_mode_enabled(), torch.overrides.is_tensor_like(x)


@program(lambda: (torch.randn(3, 4),))
def tensors_with_attributes(x):
    """Attributes on an argument and on results, read back, and absent ones."""
    x.seen = getattr(x, "seen", 0) + 1
    y = x * 2
    y.parent = x
    y.note = "doubled"
    z = y.add_(1)
    return z, z.note, hasattr(y.detach(), "note"), x.seen


class Shifted(torch.nn.Module):
    """A module without a constructor of its own."""

    def forward(self, x):
        return x + 1


@program(lambda: (torch.randn(3, 4),))
def bare_module_made(x):
    """A module of the user's own that holds nothing is made where it is used."""
    shift = Shifted()
    return shift(x), shift.training


@program(lambda: (torch.ones(3, 1), torch.ones(3, 1)), lambda: (torch.ones(4, 1), torch.ones(4, 1)))
def map_with_a_number(xs, y):
    """A number beside what is mapped over."""
    return control_flow.map(lambda x, n: torch.sin(x + n), xs, y.size(0))


@torch._dynamo.assume_constant_result
def rate():
    """A constant that needs no argument."""
    return 3


@program(lambda: (torch.randn(3), {"seen": 0}))
def constant_after_change(x, told):
    """What is declared constant is asked after something from outside was changed."""
    told["seen"] += 1
    return x * rate(), told


@program(lambda: (torch.randn(4, 4),))
def call_with_all_told(x):
    """``functional_call`` takes all tensors with ``strict=True`` and can leave weights untied."""
    every = {"0.weight": x, "0.bias": x[0]}
    whole = torch.func.functional_call(LAYER, every, (x,), strict=True)
    return whole + torch.func.functional_call(LAYER, {"0.bias": x[1]}, x, tie_weights=False)


@program(lambda: (torch.ones(2),))
def compiled_where_it_is_traced(x):
    """A function compiled by the code that is compiled, with options and as a decorator."""

    @engine.compile(backend="eager")
    def shifted(y):
        return y + 1

    return shifted(x) * engine.compile(lambda y: y * 2, backend="eager")(x)


@program(lambda: (torch.tensor(True), 1.5), breaks=1)
def cond_on_a_number(pred, number):
    """torch.cond refuses operands that are not tensors, in its own words."""
    try:
        torch.cond(pred, lambda n: n + 1, lambda n: n * 2, (number,))
    except RuntimeError as error:
        return str(error)


@program(
    lambda: (torch.tensor(True), torch.randn(4, 2), torch.randn(3, 2)),
    lambda: (torch.tensor(False), torch.randn(4, 2), torch.randn(3, 2)),
)
def cond_of_two_sizes(pred, x, y):
    """The branches give tensors of different sizes: which, is known once one has run."""
    z = torch.cond(pred, lambda a, b: torch.cat([a, b]), lambda a, b: a + 1, (x, y))
    return z * 2, z.sum(0), z.shape[0]


@program(lambda: (torch.tensor(True), torch.randn(5)), lambda: (torch.tensor(False), torch.randn(7)))
def cond_of_two_sizes_that_vary(pred, x):
    """So are sizes that differ from call to call."""
    return torch.cond(pred, lambda a: a[:2] * 1, lambda a: a.sin(), (x,)).cumsum(0)


@program(lambda: (torch.tensor(True), torch.randn(3, 4)), lambda: (torch.tensor(False), torch.randn(3, 4)))
def cond_gives_numbers(pred, x):
    """``cond`` branches return different numbers, known after the run and usable as sizes."""
    y, (rows, same) = torch.cond(pred, lambda a: (a + 1, (2, 5)), lambda a: (a - 1, (3, 5)), (x,))
    made = torch.ones(rows)
    return y * rows, made, made.shape[0] == x.shape[0], rows, same


@program(lambda: (torch.tensor(True), torch.randn(3), 1.5), lambda: (torch.tensor(False), torch.randn(3), 1.5))
def cond_of_containers(pred, x, scale):
    """Operands lie in dicts and lists, results too."""
    given = {"a": x, "b": [x * scale, (x + 1,)]}
    found = torch.cond(
        pred,
        lambda of: {"sum": of["a"] + of["b"][0], "rest": [of["b"][1][0] * 2]},
        lambda of: {"sum": of["a"] - of["b"][0], "rest": [of["b"][1][0] * 3]},
        (given,),
    )
    return found["sum"] + found["rest"][0], sorted(found)


@program(lambda: (torch.randn(3, 4),))
class CheckpointWrappers(nn.Module):
    """Modules wrapped for recomputing, as libraries for training do, are looked into."""

    def __init__(self):
        super().__init__()
        self.first, self.second = checkpoint_wrapper(nn.Linear(4, 8)), checkpoint_wrapper(nn.Linear(8, 2))

    def forward(self, x):
        return self.second(self.first(x).relu())
