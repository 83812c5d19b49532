"""Define programs that run backward and return the state that remains.

Each program creates its tensors, runs, appends what it observes to a log, and returns what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

Log = list[Any]
Program = Callable[[Log], Any]
PROGRAMS: dict[str, Program] = {}
"""By name."""


def program(run: Program) -> Program:
    """Add a program."""
    PROGRAMS[run.__name__] = run
    return run


def variant(name: str, run: Callable[..., Any], *args: Any) -> None:
    """Add a program made from a function and what is special about it."""

    def one(log: Log) -> Any:
        return run(log, *args)

    one.__name__ = name
    program(one)


def mlp() -> nn.Sequential:
    """Two linear layers around a ReLU: 4 -> 5 -> 3."""
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def grads(module: nn.Module) -> list[Any]:
    """All gradients of a module's parameters."""
    return [p.grad for p in module.parameters()]


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor that needs a gradient."""
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


class Scaled(torch.autograd.Function):
    """(x * n, y + 1) with a Python backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, n: int, y: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.n = n
        return x * n, y + 1

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * ctx.n + x * 0, None, h * 2


class Unmaterialized(torch.autograd.Function):
    """Return two copies; the backward gets None for an unused output and returns None for x."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.set_materialize_grads(False)
        return x * 1, y * 1

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        return None, h


class Cube(torch.autograd.Function):
    """x ** 3, twice differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


# Hooks and their order.


@program
def tensor_hooks(log: Log) -> Any:
    m, x = mlp(), torch.randn(2, 4)
    h = m[0](x)
    h.register_hook(lambda g: log.append(("h", g.clone())))
    for n, p in m.named_parameters():
        p.register_hook(lambda g, n=n: (log.append(n), g * 2)[1])
    m[2](m[1](h)).sum().backward()
    return grads(m)


@program
def several_hooks_on_one_tensor(log: Log) -> Any:
    x = leaf(3)
    y = x * 2
    y.register_hook(lambda g: (log.append("first"), g + 1)[1])
    y.register_hook(lambda g: (log.append(("second", g.clone())), g * 3)[1])
    removed = y.register_hook(lambda g: log.append("removed"))
    removed.remove()
    y.sum().backward()
    return x.grad


@program
def node_hooks(log: Log) -> Any:
    m, x = mlp(), leaf(2, 4)
    y = m(x)
    y.grad_fn.register_prehook(lambda gs: log.append(("pre", gs)))
    y.grad_fn.register_hook(lambda gi, go: log.append(("post", gi, go)))
    y.sum().backward()
    return grads(m), x.grad


@program
def node_hooks_that_change(log: Log) -> Any:
    x, y = leaf(3), leaf(3)
    z = x * y
    z.grad_fn.register_prehook(lambda gs: (gs[0] * 2,))
    z.grad_fn.register_hook(lambda gi, go: (gi[0] + 1, gi[1] * go[0]))
    z.sum().backward()
    return x.grad, y.grad


@program
def hooks_after_accumulation(log: Log) -> Any:
    m, x = mlp(), leaf(2, 4)
    for n, p in m.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, n=n: log.append((n, p.grad.clone())))
    m(x).sum().backward()
    return grads(m)


@program
def all_hooks_see_what_was_accumulated(log: Log) -> Any:
    m, x = mlp(), leaf(2, 4)

    def seen() -> list[bool]:
        return [p.grad is None for p in m.parameters()]

    for n, p in m.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, n=n: log.append(("after", n, p.grad.clone(), seen())))
        p.register_hook(lambda g, n=n: log.append(("hook", n, seen())))
    y, z = m(x), m(x * 2)
    (y.sum() * z.mean() + m(x).sum()).backward()
    return grads(m)


@program
def an_optimizer_in_the_backward(log: Log) -> Any:
    m, x = mlp(), torch.randn(2, 4)
    for p in m.parameters():
        optimizer = torch.optim.SGD([p], lr=0.1)

        def step(p: Any, optimizer: Any = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        m(x).square().sum().backward()
    return grads(m), [p.detach() for p in m.parameters()]


@program
def retained_gradients(log: Log) -> Any:
    m, x = mlp(), torch.randn(2, 4)
    h = m[0](x)
    h.retain_grad()
    r = m[1](h)
    r.retain_grad()
    m[2](r).sum().backward()
    return grads(m), h.grad, r.grad


@program
def module_hooks(log: Log) -> Any:
    m, x = mlp(), leaf(2, 4)
    for k in m:
        k.register_full_backward_hook(lambda mod, gi, go: log.append((type(mod).__name__, gi, go)))
        k.register_full_backward_pre_hook(lambda mod, go: log.append(("pre", type(mod).__name__)))
    m(x).sum().backward()
    return grads(m)


@program
def hook_for_several_tensors(log: Log) -> Any:
    x, y = leaf(4), leaf(4)
    a, b = x * y, x + y
    register_multi_grad_hook([a, b], lambda gs: log.append(gs))
    (a * b).sum().backward()
    return x.grad


@program
def saved_tensor_hooks(log: Log) -> Any:
    m, x = mlp(), torch.randn(2, 4)
    with saved_tensors_hooks(lambda t: (log.append("pack"), t.clone())[1], lambda t: (log.append("unpack"), t)[1]):
        y = m(x)
    y.sum().backward()
    return grads(m)


@program
def saved_tensors_packed_as_arrays(log: Log) -> Any:
    x = leaf(3)
    with saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy):
        y = (x * x.sin()).exp()
    y.sum().backward()
    return x.grad


@program
def hook_writes_to_its_gradient(log: Log) -> Any:
    x = leaf(3)
    y = x * 2
    y.register_hook(lambda g: (g.mul_(3), None)[1])
    (y + y * 2).sum().backward()
    return x.grad


@program
def hook_writes_to_what_was_saved(log: Log) -> Any:
    x = leaf(3)
    y = x * 2
    z, w = y.exp(), y * y
    w.register_hook(lambda g: (y.detach().mul_(2), None)[1])
    (w.sum() + z.sum()).backward()
    return x.grad


@program
def final_callbacks(log: Log) -> Any:
    x = leaf(4)

    def hook(g: Any) -> None:
        def nested() -> None:
            log.append(("callback", x.grad.clone()))

        torch.autograd.Variable._execution_engine.queue_callback(nested)

    y = x * 2
    y.register_hook(hook)
    y.sum().backward()
    log.append("after")
    return x.grad


@program
def hook_runs_a_backward(log: Log) -> Any:
    x, w = leaf(3), leaf(3)

    def hook(g: Any) -> None:
        with torch.enable_grad():
            (w * 2).sum().backward()
        log.append("inside")

    y = x * 2
    y.register_hook(hook)
    y.sum().backward()
    return x.grad, w.grad


# Ways to ask for gradients.


@program
def gradients_returned(log: Log) -> Any:
    m, x = mlp(), leaf(2, 4)
    h = m[0](x)
    h.register_hook(lambda g: g * 3)
    y = m[2](m[1](h)).sum()
    some = torch.autograd.grad(y, [x, h, m[0].weight], retain_graph=True)
    return some, torch.autograd.grad(y, [h], retain_graph=True), torch.autograd.grad(y, [m[2].bias])


@program
def only_some_inputs(log: Log) -> Any:
    m, x = mlp(), leaf(2, 4)
    m(x).sum().backward(inputs=[m[0].weight, x])
    return grads(m), x.grad


@program
def unused_input_allowed(log: Log) -> Any:
    m, x, z = mlp(), leaf(2, 4), leaf(3)
    return torch.autograd.grad(m(x).sum(), [z, x], allow_unused=True)


@program
def unused_input_refused(log: Log) -> Any:
    m, x, z = mlp(), leaf(2, 4), leaf(3)
    return torch.autograd.grad(m(x).sum(), [z, x])


@program
def backward_twice_refused(log: Log) -> Any:
    y = mlp()(leaf(2, 4)).sum()
    y.backward()
    y.backward()


@program
def graph_retained(log: Log) -> Any:
    m, x = mlp(), leaf(2, 4)
    y = m(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return grads(m)


@program
def several_roots(log: Log) -> Any:
    x = leaf(3)
    y = x * 2
    torch.autograd.backward([y.sum(), (y * y).sum(), x], [None, None, torch.ones(3)])
    return x.grad


@program
def gradient_given(log: Log) -> Any:
    x, g = leaf(4), torch.ones(4)
    (x + 1).backward(g)
    g.mul_(5)
    return x.grad


@program
def one_gradient_for_two_leaves(log: Log) -> Any:
    x, y = leaf(4), leaf(4)
    (x + y).backward(torch.ones(4))
    x.grad.mul_(2)
    return x.grad, y.grad


@program
def gradients_of_gradients(log: Log) -> Any:
    x = leaf(3)
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    g.sum().backward()
    return x.grad, g


@program
def gradients_of_gradients_in_python(log: Log) -> Any:
    x = leaf(3)
    (g,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x, create_graph=True)
    h.sum().backward()
    return x.grad, g, h


@program
def gradient_penalty(log: Log) -> Any:
    m, x = mlp(), leaf(2, 4)
    (g,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
    (g.norm() - 1).square().backward()
    return grads(m)


@program
def accumulated_into_existing(log: Log) -> Any:
    m, x = mlp(), torch.randn(2, 4)
    m(x).sum().backward()
    before = [p.grad for p in m.parameters()]
    m(x).square().sum().backward()
    return grads(m), [a is p.grad for a, p in zip(before, m.parameters(), strict=True)]


@program
def set_to_zero_between(log: Log) -> Any:
    m, x = mlp(), torch.randn(2, 4)
    for set_to_none in (True, False, False, True):
        m(x).sum().backward()
        log.append(grads(m)[0].clone())
        m.zero_grad(set_to_none=set_to_none)
    return grads(m)


@program
def a_batch_that_grows(log: Log) -> Any:
    m = mlp()
    for n in (2, 3, 5, 2, 7):
        m.zero_grad()
        m(torch.randn(n, 4)).square().mean().backward()
        log.append([g.clone() for g in grads(m)])
    return grads(m)


@program
def views_written_to(log: Log) -> Any:
    x = leaf(4, 4)
    b = x * 2
    b[1:3] = torch.ones(2, 4)
    b[0].mul_(3)
    b.t()[2].exp_()
    b.sum().backward()
    return x.grad


@program
def views_written_to_in_growing_batches(log: Log) -> Any:
    for n in (3, 4, 6):
        x, y = leaf(n, 4), leaf(4)
        b = x * 2
        b[1] = y
        b[:, 0].mul_(y[0])
        b.sum().backward()
        log.append((x.grad, y.grad))


# Python functions.


@program
def python_function(log: Log) -> Any:
    x, y = leaf(3), leaf(3)
    a, b = Scaled.apply(x, 3, y)
    (a.sum() + b.sum()).backward()
    return x.grad, y.grad


@program
def python_function_with_an_unused_result(log: Log) -> Any:
    x, y = leaf(3), leaf(3)
    a, _ = Scaled.apply(x, 3, y)
    a.sum().backward()
    return x.grad, y.grad


@program
def python_function_in_growing_batches(log: Log) -> Any:
    for n in (2, 3, 5):
        x, y = leaf(n), leaf(n)
        a, _ = Scaled.apply(x * 2, 3, y)
        a.sum().backward()
        log.append((x.grad, y.grad))


@program
def python_function_with_other_numbers(log: Log) -> Any:
    for n in (2, 3, 2):
        x, y = leaf(3), leaf(3)
        a, b = Scaled.apply(x, n, y)
        (a * b).sum().backward()
        log.append((x.grad, y.grad))


@program
def undefined_gradients(log: Log) -> Any:
    x, y = leaf(3), leaf(3)
    a, b = Unmaterialized.apply(x * 2, y * 2)
    (a + b).sum().backward()
    a, b = Unmaterialized.apply(x * 2, y * 2)
    b.sum().backward()
    return x.grad, y.grad


@program
def checkpointed(log: Log) -> Any:
    m, x = mlp(), leaf(2, 4)
    checkpoint(m, x, use_reentrant=False).sum().backward()
    return grads(m), x.grad


@program
def checkpointed_by_a_nested_backward(log: Log) -> Any:
    m, x = mlp(), leaf(2, 4)
    checkpoint(m, x, use_reentrant=True).sum().backward()
    return grads(m), x.grad


@program
def transforms_inside(log: Log) -> Any:
    x = leaf(3)
    y = torch.func.grad(lambda t: (t**3).sum())(x.detach())
    (x * y).sum().backward()
    return x.grad


# Kinds of values.


@program
def broadcast_and_types(log: Log) -> Any:
    x, y = leaf(4, 1), leaf(3, dtype=torch.float64)
    ((x + y) * y).sum().backward()
    return x.grad, y.grad


@program
def complex_numbers(log: Log) -> Any:
    x = leaf(3)
    z = torch.complex(x, x * 2)
    (z * z.conj()).abs().sum().backward()
    return x.grad


@program
def sparse_gradients(log: Log) -> Any:
    e, i = nn.Embedding(10, 3, sparse=True), torch.tensor([1, 2, 1])
    e(i).sum().backward()
    first = e.weight.grad.to_dense()
    e(i).sum().backward()
    (e.weight * 2).sum().backward()
    return first, e.weight.grad


@program
def half_precision(log: Log) -> Any:
    m, x = mlp(), torch.randn(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = m(x)
    y.float().sum().backward()
    return grads(m)


@program
def anomaly_of_nan(log: Log) -> Any:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True):
        (x / x * 0).sqrt().sum().backward()
    return x.grad


@program
def nan_without_anomaly(log: Log) -> Any:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    (x / x * 0).sqrt().sum().backward()
    return x.grad.isnan()


@program
def layouts(log: Log) -> Any:
    w = torch.randn(2, 3, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    x = torch.randn(1, 3, 5, 5, requires_grad=True)
    torch.nn.functional.conv2d(x, w).square().sum().backward()
    t = torch.randn(3, 4).t().requires_grad_()
    (t * torch.randn(4, 3)).sum().backward()
    return w.grad, x.grad, t.grad


@program
def recurrent(log: Log) -> Any:
    m, x = nn.LSTM(4, 3), torch.randn(5, 2, 4)
    m(x)[0].sum().backward()
    return grads(m)


@program
def attention(log: Log) -> Any:
    m, x = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), leaf(2, 5, 8)
    m(x).square().mean().backward()
    return grads(m), x.grad


@program
def norms_and_pools(log: Log) -> Any:
    m = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.LayerNorm(16))
    x = leaf(2, 3, 6, 6)
    m(x).square().sum().backward()
    return grads(m), x.grad


@program
def dropout(log: Log) -> Any:
    m, x = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5)), leaf(2, 4)
    m(x).sum().backward()
    return grads(m), x.grad


# What cannot be.


def _wrong_python(log: Log, result: Callable[[Any], Any]) -> Any:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, n: int, y: Any) -> Any:
            return x + y * n

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return result(g)

    x, y = leaf(3), leaf(3)
    Wrong.apply(x, 2, y).sum().backward()
    return x.grad, y.grad


def _wrong_hook(log: Log, result: Callable[[Any], Any], where: str) -> Any:
    x = leaf(3)
    y = x * 2

    def wrong(*values: Any) -> Any:
        value = values[0]
        return result(value[0] if isinstance(value, tuple) else value)

    if where == "tensor":
        y.register_hook(wrong)
    elif where == "leaf":
        x.register_post_accumulate_grad_hook(wrong)
    else:
        register = y.grad_fn.register_prehook if where == "before" else y.grad_fn.register_hook
        register(lambda *values: (result(values[0][0]),))
    y.sum().backward()
    return x.grad


def _raise(value: Any) -> Any:
    raise ValueError("no")


RESULTS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda g: None,
    "a_number": lambda g: 3,
    "another_shape": lambda g: g[:1],
    "a_larger_shape": lambda g: g[:1].expand(7),
    "another_type": lambda g: g.double(),
    "a_sparse_tensor": lambda g: g.to_sparse(),
    "a_list": lambda g: [g],
    "an_exception": _raise,
}
for _name, _result in RESULTS.items():
    variant(f"python_gives_{_name}", _wrong_python, lambda g, r=_result: (g, None, r(g)))
    for _where in ("tensor", "before", "after", "leaf"):
        variant(f"hook_{_where}_gives_{_name}", _wrong_hook, _result, _where)
for _count, _extra in ((1, ()), (2, (None,)), (4, (None, None, None)), (5, (None, None, 3))):
    variant(f"python_gives_{_count}_gradients", _wrong_python, lambda g, e=_extra: (g, *e))
variant("python_gives_one_for_a_number", _wrong_python, lambda g: (g, g, g))
variant("python_gives_one_tensor", _wrong_python, lambda g: g)


@program
def unpacked_to_a_number(log: Log) -> Any:
    x = leaf(3)
    with saved_tensors_hooks(lambda t: t, lambda t: 3):
        y = x.exp()
    y.sum().backward()
    return x.grad


@program
def a_saved_tensor_was_written_to(log: Log) -> Any:
    x = leaf(3)
    y = x.exp()
    y.detach().add_(1)
    y.sum().backward()
    return x.grad


# Sizes that change: the third has no capture of its own.


def _growing(log: Log, run: Callable[[torch.Tensor], Any], *shape: int) -> None:
    for n in (2, 3, 5, 4):
        x = leaf(n, *shape)
        run(x).backward()
        log.append(x.grad)


def _picked(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    picked = x[torch.arange(n) % 2]
    gathered = x.gather(1, torch.zeros(n, 1, dtype=torch.long))
    rows = torch.cat([picked, x], 0).view(-1, 3).sum(1)
    return (
        rows.cumsum(0).sum()
        + gathered.sum()
        + x.unfold(1, 2, 2).sum()
        + x.expand(2, n, 6).mean()
        + x.repeat(2, 1).var()
    )


def _cut(x: torch.Tensor) -> torch.Tensor:
    a, b = x.split([1, x.shape[0] - 1])
    padded = torch.nn.functional.pad(x, (1, 1)).amax(1)
    ordered = torch.stack([x, x]).median(0).values.sum() + x.topk(2).values.sum()
    return a.sum() * b.prod() + x[1:].norm() + padded.sum() + x.t().reshape(-1)[::2].sum() + ordered


def _attended(x: torch.Tensor) -> torch.Tensor:
    q = x.view(1, 2, -1, 4)
    return torch.nn.functional.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True).sum()


def _written(x: torch.Tensor) -> torch.Tensor:
    b = x * 2
    b[1:].mul_(x[0])
    b[:, 1] = x[:, 0]
    b.t()[0].exp_()
    return b.sum()


variant("growing_picked", _growing, _picked, 6)
variant("growing_cut", _growing, _cut, 6)
variant("growing_attended", _growing, _attended, 8)
variant("growing_written", _growing, _written, 4)
variant("growing_recurrent", _growing, lambda x: nn.LSTM(4, 3)(x)[0].sum(), 2, 4)
variant(
    "growing_classes",
    _growing,
    lambda x: torch.nn.functional.cross_entropy(x, torch.zeros(len(x), dtype=torch.long)),
    3,
)
variant("growing_attention", _growing, lambda x: nn.MultiheadAttention(8, 2)(x, x, x)[0].square().sum(), 8)


# Other ways in.


@program
def matrices(log: Log) -> Any:
    x = leaf(4, 4, dtype=torch.float64)
    a = x @ x.t() + 4 * torch.eye(4)
    (
        torch.linalg.cholesky(a).sum() + torch.linalg.inv(a).sum() + torch.logdet(a) + torch.linalg.svdvals(x).sum()
    ).backward()
    return x.grad


@program
def transformed_and_back(log: Log) -> Any:
    x = leaf(8)
    torch.fft.rfft(x).abs().square().sum().backward()
    return x.grad


@program
def tied_weights(log: Log) -> Any:
    e, i = nn.Embedding(7, 4), torch.randint(0, 7, (2, 3))
    (e(i) @ e.weight.t()).logsumexp(-1).sum().backward()
    return e.weight.grad


@program
def existing_gradient_stays_the_same_tensor(log: Log) -> Any:
    x = leaf(3, 4)
    x.grad = torch.ones(4, 3).t()
    kept = x.grad
    (x * 2).sum().backward()
    return kept is x.grad, x.grad


@program
def hook_takes_the_gradient_away(log: Log) -> Any:
    m = mlp()

    def take(p: Any) -> None:
        log.append(p.grad.clone())
        p.grad = None

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(take)
    m(torch.randn(2, 4)).sum().backward()
    return grads(m)


@program
def hook_removes_itself(log: Log) -> Any:
    x = leaf(3)
    handles: list[Any] = []

    def once(g: Any) -> None:
        log.append("once")
        handles[0].remove()

    handles.append(x.register_hook(once))
    (x * 2).sum().backward()
    (x * 2).sum().backward()
    return x.grad


@program
def context_remembers(log: Log) -> Any:
    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.runs = 0
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            ctx.runs += 1
            log.append((ctx.runs, ctx.needs_input_grad, len(ctx.saved_tensors)))
            return g * 2

    x = leaf(3)
    y = Counting.apply(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    return x.grad, y.grad_fn.runs


@program
def once_differentiable(log: Log) -> Any:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    x = leaf(3)
    (g,) = torch.autograd.grad(Once.apply(x).sum(), x, create_graph=True)
    g.sum().backward()


@program
def context_set_up_apart(log: Log) -> Any:
    class Apart(torch.autograd.Function):
        @staticmethod
        def forward(x: Any, n: int) -> Any:
            return x * n

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.n = inputs[1]

        @staticmethod
        def vjp(ctx: Any, g: Any) -> Any:
            return g * ctx.n, None

    x = leaf(3)
    Apart.apply(x, 3).sum().backward()
    return x.grad


@program
def batched_gradients(log: Log) -> Any:
    x = leaf(3)
    return torch.autograd.grad(x**2, x, torch.eye(3), is_grads_batched=True)


@program
def jacobians(log: Log) -> Any:
    x = torch.randn(3)
    return torch.autograd.functional.jacobian(lambda t: t**2, x), torch.autograd.functional.hessian(
        lambda t: (t**3).sum(), x
    )


@program
def gradient_of_an_edge(log: Log) -> Any:
    y = leaf(3).sin()
    z = y * 2
    return torch.autograd.grad(z.sum(), torch.autograd.graph.get_gradient_edge(y))


@program
def gradients_with_a_graph_accumulated(log: Log) -> Any:
    x = leaf(3)
    (x**3).sum().backward(create_graph=True)
    (x**2).sum().backward(create_graph=True)
    return x.grad


@program
def of_a_subclass(log: Log) -> Any:
    class Named(torch.Tensor):
        pass

    x = torch.randn(3).as_subclass(Named).requires_grad_()
    (x * 2).sin().sum().backward()
    return type(x.grad).__name__, x.grad.as_subclass(torch.Tensor)


@program
def checkpoint_in_a_checkpoint(log: Log) -> Any:
    m, x = mlp(), leaf(2, 4)

    def inner(t: Any) -> Any:
        return checkpoint(m[0], t, use_reentrant=False)

    checkpoint(lambda t: m[2](m[1](inner(t))), x, use_reentrant=False).sum().backward()
    return grads(m), x.grad
