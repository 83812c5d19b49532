"""Exercise torch.func: containers, keywords, auxiliary results, pullbacks and nesting."""

import torch
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.torch_version import TorchVersion

from tests.programs import program

#: Whether ``jacfwd`` counts where its basis starts in numbers: torch before 2.13 reads them from a tensor.
COUNTS_IN_NUMBERS = TorchVersion(torch.__version__) >= (2, 13)
#: Whether ``one_hot`` has a form in Python: the one in C++, all that torch before 2.12 has, reads the classes.
HAS_ONE_HOT_IN_PYTHON = TorchVersion(torch.__version__) >= (2, 12)


@program(lambda: ({"w": torch.randn(3), "b": torch.randn(3)}, torch.randn(3)))
def gradients_of_dict(params, x):
    """The gradient has the container of the argument."""
    return grad(lambda p, a: ((p["w"] * a + p["b"]) ** 2).sum())(params, x)


@program(lambda: (torch.randn(3), torch.randn(3)))
def gradient_with_aux(x, y):
    """has_aux, and several argnums."""

    def loss(a, b):
        out = a * b
        return out.sin().sum(), {"out": out, "more": (a, b)}

    return grad(loss, argnums=(0, 1), has_aux=True)(x, y), grad_and_value(loss, has_aux=True)(x, y)


@program(lambda: (torch.randn(3), torch.randn(3)))
def gradient_with_keywords(x, y):
    """Keyword arguments."""
    return grad(lambda a, *, scale, power=2: ((a * scale) ** power).sum())(x, scale=y)


@program(lambda: (torch.randn(4, 3), torch.randn(3)))
def mapped_containers(x, y):
    """Containers in and out, some of them not mapped."""

    def row(pair, other):
        return {"sum": pair[0] + other["y"], "both": (pair[0] * pair[1], pair[1])}

    return vmap(row, in_dims=((0, 0), None))((x, x + 1), {"y": y})


@program(lambda: (torch.randn(3, 4),))
def mapped_out_dims(x):
    """out_dims for each result; a negative in_dim."""
    return vmap(lambda a: (a * 2, a.sum()), in_dims=-1, out_dims=(1, 0))(x)


@program(lambda: (torch.randn(3, 4),))
def mapped_with_number(x):
    """A number is not mapped."""
    return vmap(lambda a, n: a * n, in_dims=(0, None))(x, 3)


@program(lambda: (torch.randn(5, 4), torch.randn(4)))
def mapped_in_chunks(x, w):
    """chunk_size."""
    return vmap(lambda a: (a * w).cumsum(0), chunk_size=2)(x)


@program(lambda: (torch.randn(3, 4), torch.randn(5, 4)))
def mapped_twice(x, y):
    """vmap of vmap: all pairs."""
    return vmap(lambda a: vmap(lambda b: (a - b).pow(2).sum())(y))(x)


@program(lambda: (torch.randn(3, 4),), lambda: (torch.randn(5, 4),))
def mapped_at_random(x):
    """Random numbers, different for each row or the same."""
    return (
        vmap(lambda a: a + torch.rand(4), randomness="different")(x),
        vmap(lambda a: a + torch.rand(4), randomness="same")(x),
    )


@program(lambda: (torch.randn(3),))
def forward_derivative(x):
    """jvp, with an auxiliary result."""
    return jvp(torch.sin, (x,), (torch.ones_like(x),)), jvp(lambda a: (a * a, a + 1), (x,), (x,), has_aux=True)


@program(lambda: (torch.randn(3), torch.randn(3)))
def pullback(x, y):
    """vjp: the function it returns is called twice."""
    out, back = vjp(lambda a, b: a.sin() * b, x, y)
    return out, back(torch.ones_like(out)), back(out)


@program(lambda: (torch.randn(3),))
def pullback_of_containers(x):
    """vjp with containers and an auxiliary result."""
    out, back, aux = vjp(lambda a: ({"y": a * a, "z": a.exp()}, a.sum()), x, has_aux=True)
    return out, back({"y": x, "z": x}), aux


@program(lambda: (torch.randn(3, 3),))
def pullback_mapped(x):
    """vmap over a pullback: rows of a Jacobian."""
    out, back = vjp(lambda a: a.sin().sum(0), x)
    return vmap(back)(torch.eye(3)), out


@program(lambda: (torch.randn(3),), breaks=3, steady=False)
def linearized(x):
    """linearize."""
    out, push = linearize(lambda a: a.sin() * a, x)
    return out, push(torch.ones(3)), push(x)


@program(lambda: (torch.randn(3), torch.randn(3)))
def jacobians_of_several(x, y):
    """argnums and auxiliary results of Jacobians."""
    return (
        jacrev(lambda a, b: a * b.sum(), argnums=(0, 1))(x, y),
        jacfwd(lambda a, b: (a.sin() * b, a), argnums=1, has_aux=True)(x, y),
    )


@program(lambda: (torch.randn(3),), breaks=1)
def derivatives_that_print(x):
    """A function that prints breaks; what torch maps over its basis is never compiled."""

    def scaled(y):
        print("scaled")
        return y.sin() * y.sum()

    return jacfwd(scaled)(x) + 1


@program(lambda: (torch.randn(3), torch.randn(3)), breaks=0 if COUNTS_IN_NUMBERS else 1)
def hessian_of_two(x, y):
    """Second derivatives; a derivative of a derivative."""
    return hessian(lambda a, b: (a * a * b).sum(), argnums=(0, 1))(x, y), grad(
        lambda a: grad(lambda b: (b**3).sum())(a).sum()
    )(x)


@program(lambda: (torch.randn(4, 3), torch.randn(4, 2)))
def gradients_per_sample(x, y):
    """Per-sample gradients of a model, the classic use."""
    model = LAYER
    params = {k: v.detach() for k, v in model.named_parameters()}

    def loss(p, a, b):
        return ((functional_call(model, p, (a.unsqueeze(0),)) - b.unsqueeze(0)) ** 2).mean()

    return vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)


LAYER = torch.nn.Linear(3, 2)
torch.nn.init.ones_(LAYER.weight)
torch.nn.init.zeros_(LAYER.bias)


@program(lambda: (torch.randn(2, 3), torch.randn(2, 3)))
def models_in_one(x, y):
    """An ensemble: stacked parameters, one model."""
    stacked = {
        "weight": torch.stack([LAYER.weight, LAYER.weight * 2]).detach(),
        "bias": torch.stack([LAYER.bias, LAYER.bias + 1]).detach(),
    }
    return vmap(lambda p, a: functional_call(LAYER, p, (a,)), in_dims=(0, 0))(stacked, torch.stack([x, y]))


@program(lambda: (torch.randn(3, 4, requires_grad=True),))
def gradient_through_vmap(x):
    """Ordinary gradients through a mapped function."""
    return vmap(lambda a: a.sin() * a.sum())(x)


@program(lambda: (torch.randn(4, 3),))
def made_then_used(x):
    """A transformed function kept in a variable, passed on and used twice."""
    mapped = vmap(torch.dot)

    def apply(f, a, b):
        return f(a, b)

    return apply(mapped, x, x) + mapped(x, x + 1)


MAPPED = vmap(torch.dot)


@program(lambda: (torch.randn(4, 3),))
def made_outside(x):
    """A transformed function made where the module was loaded."""
    return MAPPED(x, x)


@vmap
def per_row(row):
    return row / row.sum()


@program(lambda: (torch.rand(4, 3),))
def decorated(x):
    """vmap as a decorator."""
    return per_row(x)


@program(lambda: (torch.tensor([0, 2, 1]), torch.randn(3)), breaks=0 if HAS_ONE_HOT_IN_PYTHON else 2)
def classes_under_derivatives(labels, x):
    """``one_hot`` of an outside tensor reads its values under forward and reverse modes."""

    def scaled(y):
        return (torch.nn.functional.one_hot(labels, 4) * y[:, None]).sin()

    return jacfwd(scaled)(x), jacrev(scaled)(x)


NOTES = []


@program(lambda: (torch.ones(3),), steady=False)  # the notes of the call before are there
def notes_while_transformed(x):
    """A differentiated and mapped function has its side effects once, as in Python."""
    NOTES.clear()
    told = {}

    def square(a):
        NOTES.append(a.dim())
        told["n"] = told.get("n", 0) + 1
        return (a * a).sum()

    return torch.func.grad(square)(x), torch.vmap(torch.func.grad(square))(x), list(NOTES), told


@program(lambda: (torch.randn(3, 4), torch.randn(3, 4)))
def rows_written_to(x, y):
    """A mapped function's in-place write shows in the mapped tensor and its view."""
    view = x[1:]
    added = vmap(lambda a, b: a.add_(b).sum())(x, y)
    vmap(lambda a: a.mul_(2))(view)
    return added, x, view


@program(lambda: (torch.randn(3, 4), torch.tensor([1, 3, 0])))
def positions_of_rows(x, at):
    """``vmap`` reads and writes rows at an index per row, which cannot become an int."""

    def picked(row, n):
        changed = row.clone()
        changed[n] = 5
        return row[n], changed, row[None, n]

    return vmap(picked)(x, at), vmap(lambda n: x[n, 1:])(at % 3)


@program(lambda: (torch.full((2, 3), 0.5),))
def mapped_function_returns_its_argument(x):
    """``vmap`` of an in-place operator, or of the identity, returns the tensor that it got."""
    same = vmap(torch.Tensor.acos_)(x) is x, vmap(lambda t: t)(x) is x, vmap(vmap(lambda t: t.sin_()))(x) is x
    return (*same, vmap(lambda t: t.add_(1), in_dims=1, out_dims=1)(x) is x, vmap(lambda t: t + 0)(x) is x, x)


MODELS = [torch.nn.Linear(4, 2, dtype=torch.float64) for _ in range(3)]
for number, model in enumerate(MODELS):
    torch.nn.init.constant_(model.weight, number)
    torch.nn.init.ones_(model.bias)


@program(lambda: (torch.randn(5, 4, dtype=torch.float64),))
def ensemble_of_modules(x):
    """The parameters of several modules are stacked, and one module runs with each."""
    params, buffers = stack_module_state(MODELS)
    run = vmap(lambda p, b, rows: functional_call(MODELS[0], (p, b), (rows,)), in_dims=(0, 0, None))
    return run(params, buffers, x), params["weight"].is_leaf
