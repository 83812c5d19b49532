"""Define more backward programs: callbacks, hooks, saved tensors and double backward.

They cover accumulation hooks, packed saved tensors, Python Functions that mutate, and second-order gradients
of operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook, save_on_cpu, saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.engine.autograd.programs import Cube, Log, grads, leaf, mlp, program, variant


def make_autograd_function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """A Python function of these two."""
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Made", (torch.autograd.Function,), methods)


def queue_callback(callback: Callable[[], Any]) -> None:
    """Call this at the end of the backward that runs."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


# Final callbacks.


@program
def callbacks_that_queue_callbacks(log: Log) -> Any:
    x = leaf(3)
    y = x * 2
    z = y * 3

    def queued(name: str) -> Callable[[Any], None]:
        return lambda _: queue_callback(lambda: (log.append(name), queue_callback(lambda: log.append(f"inner {name}"))))

    z.register_hook(queued("z"))
    y.register_hook(queued("y"))
    x.register_post_accumulate_grad_hook(queued("x"))
    z.sum().backward()
    log.append("end")
    return x.grad


@program
def a_callback_raises(log: Log) -> Any:
    x = leaf(3)
    y = x * 2

    def fail() -> None:
        log.append(x.grad.clone())
        raise ValueError("callback")

    def hook(_: Any) -> None:
        queue_callback(fail)
        queue_callback(lambda: log.append("never"))

    y.register_hook(hook)
    y.sum().backward()


@program
def a_callback_outside(log: Log) -> Any:
    queue_callback(lambda: None)


@program
def callbacks_of_a_nested_backward(log: Log) -> Any:
    x, w = leaf(3), leaf(3)

    def hook(_: Any) -> None:
        queue_callback(lambda: log.append("outer"))
        with torch.enable_grad():
            v = w * 2
        v.register_hook(lambda g: queue_callback(lambda: log.append("inner")))
        v.sum().backward()
        log.append("after the nested one")

    y = x * 2
    y.register_hook(hook)
    y.sum().backward()
    return w.grad


# Hooks where gradients are accumulated.


def accumulating(p: torch.Tensor) -> Any:
    """The node that adds to this leaf's ``.grad``."""
    seen: Any = p.view_as(p).grad_fn
    return seen.next_functions[0][0]


@program
def hooks_on_accumulation_nodes(log: Log) -> Any:
    m, x = mlp(), torch.randn(2, 4)
    nodes = [accumulating(p) for p in m.parameters()]
    for n, node in enumerate(nodes):
        node.register_hook(lambda gi, go, n=n: log.append(("after", n, len(gi), [g.clone() for g in go])))
        node.register_prehook(lambda go, n=n: log.append(("before", n)))
    m(x).sum().backward()
    return grads(m)


@program
def a_hook_before_accumulation_changes_it(log: Log) -> Any:
    x = leaf(3)
    node = accumulating(x)
    node.register_prehook(lambda go: (go[0] * 5,))
    x.register_hook(lambda g: g + 1)
    x.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))
    (x * 2).sum().backward()
    return x.grad


@program
def a_hook_sets_gradients(log: Log) -> Any:
    x, w = leaf(3), leaf(3)
    y = x * w

    def hook(_: Any) -> None:
        x.grad, w.grad = torch.full((3,), 9.0), torch.ones(3)

    y.register_hook(hook)
    y.sum().backward()
    return x.grad, w.grad


@program
def a_hook_replaces_what_was_accumulated(log: Log) -> Any:
    x = leaf(3)

    def hook(p: Any) -> None:
        p.grad = p.grad * 100

    x.register_post_accumulate_grad_hook(hook)
    (x * 2).sum().backward()
    (x * 2).sum().backward()
    return x.grad


@program
def a_hook_for_any_of_several(log: Log) -> Any:
    x, y = leaf(3), leaf(3)
    a, b, c = x * 2, y * 3, x * y
    register_multi_grad_hook([a, b], lambda g: log.append(g.clone()), mode="any")
    register_multi_grad_hook([a, b, c], lambda gs: log.append([g is None for g in gs]))
    (a * b).sum().backward()
    return x.grad


@program
def a_hook_starts_the_same_graph(log: Log) -> Any:
    x = leaf(3)
    y = x.sin()
    z = y * 2
    first = [True]

    def hook(_: Any) -> None:
        if first:
            first.clear()
            y.sum().backward(retain_graph=True)

    z.register_hook(hook)
    z.sum().backward()
    return x.grad


@program
def a_hook_keeps_a_leafs_gradient(log: Log) -> Any:
    x = leaf(3)
    kept: list[Any] = []
    x.register_hook(kept.append)
    (x * 2).sum().backward()
    x.grad.add_(1)
    return kept, x.grad, kept[0].data_ptr() == x.grad.data_ptr()


@program
def a_hook_before_and_after_a_write(log: Log) -> Any:
    x = leaf(3)
    y = x * 2
    y.register_hook(lambda g: log.append(("before", g.clone())))
    y.retain_grad()
    y.mul_(3)
    y.register_hook(lambda g: (log.append(("after", g.clone())), g * 2)[1])
    y.sum().backward()
    return x.grad, y.grad


@program
def only_some_inputs_with_hooks(log: Log) -> Any:
    x, w = leaf(3), leaf(3)
    y = x * w
    x.register_hook(lambda g: g * 2)
    w.register_hook(lambda g: log.append("w"))
    y.register_hook(lambda g: g * 5)
    y.sum().backward(inputs=[x, x])
    return x.grad, w.grad


# Saved tensors packed.


@program
def saved_on_the_cpu(log: Log) -> Any:
    m, x = mlp(), leaf(2, 4)
    with save_on_cpu():
        y = m(x).exp()
    y.sum().backward()
    return grads(m)


@program
def unpacking_raises(log: Log) -> Any:
    def unpack(_: Any) -> Any:
        raise ValueError("unpack")

    x = leaf(3)
    with saved_tensors_hooks(lambda t: t, unpack):
        y = x.exp() * x
    y.sum().backward()


@program
def unpacked_in_another_shape(log: Log) -> Any:
    x = leaf(3)
    with saved_tensors_hooks(lambda t: t, lambda t: t[:1]):
        y = x * x
    y.sum().backward()
    return x.grad


@program
def packed_twice_read(log: Log) -> Any:
    x = leaf(3)
    with saved_tensors_hooks(lambda t: [t], lambda packed: (log.append(len(packed)), packed[0] * 2)[1]):
        y = x * Cube.apply(x.cos())
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    return x.grad


@program
def packed_and_differentiated_again(log: Log) -> Any:
    found = []
    for creates in (False, True, False, True):
        x = leaf(3)
        with saved_tensors_hooks(lambda t: t, lambda t: t):
            y = x.exp() * x.sin()
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=creates)
        found.append(g)
        if creates:
            found += torch.autograd.grad(g.sum(), x)
    return found


@program
def a_checkpoint_differentiated_again(log: Log) -> Any:
    x = leaf(3, 3)
    y = checkpoint(lambda t: (t @ t).sin(), x, use_reentrant=False)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (g * g).sum().backward()
    return x.grad, g


# Python functions.


@program
def python_writes_to_a_view(log: Log) -> Any:
    def forward(ctx: Any, t: Any) -> Any:
        ctx.mark_dirty(t)
        return t.mul_(2)

    x = leaf(4)
    y = x * 1
    make_autograd_function(forward, lambda ctx, g: g * 2).apply(y[:2])
    y.sum().backward()
    return x.grad


@program
def python_with_results_that_are_no_tensors(log: Log) -> Any:
    def backward(ctx: Any, g: Any, a: Any, b: Any) -> Any:
        log.append((a, b, type(ctx).__name__, ctx.name()))
        return g * 2

    x = leaf(3)
    found = make_autograd_function(lambda ctx, t: (t * 2, "text", 7), backward).apply(x)
    found[0].sum().backward()
    return x.grad, found[1:]


@program
def python_keeps_tensors_as_attributes(log: Log) -> Any:
    def forward(ctx: Any, t: Any) -> Any:
        ctx.twice, ctx.held = t * 2, {"a": [t.detach()]}
        return t * 2

    made = make_autograd_function(forward, lambda ctx, g: g * ctx.twice + ctx.held["a"][0])
    for k in (1.0, 2.0):
        x = leaf(3)
        made.apply(x * k).sum().backward()
        log.append(x.grad)


@program
def python_runs_a_backward_of_its_own(log: Log) -> Any:
    def forward(ctx: Any, t: Any) -> Any:
        with torch.enable_grad():
            ctx.t = t.detach().requires_grad_()
            ctx.y = ctx.t.sin()
        return ctx.y.detach()

    x = leaf(3)
    make_autograd_function(forward, lambda ctx, g: torch.autograd.grad(ctx.y, ctx.t, g)[0]).apply(x).sum().backward()
    return x.grad


@program
def python_gives_one_tensor_twice(log: Log) -> Any:
    x, y = leaf(3), leaf(3)
    make_autograd_function(lambda ctx, a, b: a + b, lambda ctx, g: (g, g)).apply(x, y).sum().backward()
    x.grad.mul_(5)
    return x.grad, y.grad


@program
def python_gives_what_it_saved(log: Log) -> Any:
    def forward(ctx: Any, t: Any, w: Any) -> Any:
        ctx.save_for_backward(w)
        return t * w

    x, w = leaf(3), torch.ones(3)
    make_autograd_function(forward, lambda ctx, g: (ctx.saved_tensors[0], None)).apply(x, w).sum().backward()
    x.grad.mul_(4)
    return x.grad, w


@program
def python_gives_an_expanded_tensor(log: Log) -> Any:
    x = leaf(3, 4)
    make_autograd_function(lambda ctx, t: t * 2, lambda ctx, g: torch.ones(1).expand(3, 4)).apply(x).sum().backward()
    x.grad.add_(1)
    return x.grad


@program
def python_writes_to_its_gradient(log: Log) -> Any:
    x = leaf(3)
    y = x * 2
    (make_autograd_function(lambda ctx, t: t * 1, lambda ctx, g: g.mul_(3)).apply(y) + y).sum().backward()
    return x.grad


@program
def python_sees_the_modes(log: Log) -> Any:
    def backward(ctx: Any, g: Any) -> Any:
        log.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), g.requires_grad))
        return g

    x = leaf(3)
    made = make_autograd_function(lambda ctx, t: t * 1, backward)
    made.apply(x).sum().backward()
    torch.autograd.grad(made.apply(x).sum(), x, create_graph=True)


# Constants and sizes that change.


def _changing(log: Log, run: Callable[[torch.Tensor, Any], torch.Tensor], values: tuple[Any, ...]) -> Any:
    x = leaf(3, 3)
    for value in values:
        x.grad = None
        run(x, value).sum().backward()
        log.append(x.grad)


variant("changing_factor", _changing, lambda x, k: (x * k) ** 2 / k, (2, 3.5, 2, True, 7))
variant("changing_power", _changing, lambda x, k: x.abs() ** k, (2, 3, 0, 1, 2.5))
variant("changing_dimension", _changing, lambda x, d: x.softmax(d) * x.cumsum(d), (0, 1, -1))
variant("changing_rank", _changing, lambda x, s: torch.ones(s) * x, ((3, 3), (4, 2, 3, 3), (1, 3, 3)))
variant("changing_rows", _changing, lambda x, n: torch.ones(n, 3) @ x, (3, 1, 0, 2, 5))


# Operators, their gradients and those gradients' own.

OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contracted": lambda x: torch.einsum("ij,kj->ik", x, x),
    "put": lambda x: x.index_put((torch.tensor([0, 0]),), x[:2], accumulate=True),
    "scattered": lambda x: x.scatter_reduce(0, torch.zeros(4, 4, dtype=torch.long), x, "amax"),
    "sampled": lambda x: functional.grid_sample(
        x.view(1, 1, 4, 4), x.view(1, 2, 4, 2).tanh(), align_corners=False
    ),
    "enlarged": lambda x: functional.interpolate(x.view(1, 1, 4, 4), scale_factor=2, mode="bilinear"),
    "convolved": lambda x: functional.conv_transpose2d(x.view(1, 1, 4, 4), x.view(1, 1, 4, 4)),
    "normed_in_groups": lambda x: functional.group_norm(x.view(2, 4, 2), 2),
    "normed": lambda x: functional.batch_norm(x, torch.zeros(4), torch.ones(4), training=True),
    "solved": lambda x: torch.linalg.solve(x + 5 * torch.eye(4), x),
    "of_singular_values": lambda x: torch.linalg.norm(x, ord=2) + x.norm(),
    "transformed": lambda x: torch.fft.fft2(x).abs(),
    "pooled": lambda x: functional.adaptive_avg_pool2d(functional.max_pool2d(x.view(1, 1, 4, 4), 2), 3),
    "sloped": lambda x: functional.prelu(x, x[0, :1]),
    "compared": lambda x: functional.triplet_margin_loss(x, x * 2, x * 3) + functional.cosine_similarity(x, x + 1),
    "summed_in_logs": lambda x: x.logcumsumexp(0),
    "combined": lambda x: torch.addcdiv(x, x, x.abs() + 1, value=2).clamp(-0.1, 0.5) + torch.lerp(x, x * 2, 0.3),
    "drawn": lambda x: functional.gumbel_softmax(x),
    "cast": lambda x: x.bfloat16().float() * x.double(),
    "differentiated": lambda x: torch.autograd.functional.jacobian(lambda t: (t * t).sum(0), x, create_graph=True),
}  # fmt: skip


def _once(log: Log, run: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    x = leaf(4, 4)
    (run(x) * 1.5).sum().backward()
    return x.grad


def _twice(log: Log, run: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    x = leaf(4, 4)
    (g,) = torch.autograd.grad((run(x) * 1.5).sum(), x, create_graph=True)
    if g.requires_grad:
        (g * g).sum().backward()
    return x.grad, g


for _name, _run in OPERATORS.items():
    variant(f"{_name}_once", _once, _run)
    variant(f"{_name}_twice", _twice, _run)


# Training.


@program
def scaled_losses(log: Log) -> Any:
    m = mlp()
    optimizer, scaler = torch.optim.SGD(m.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(m(torch.ones(2, 4)).sum()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return [p.detach() for p in m.parameters()]


@program
def closures(log: Log) -> Any:
    m = mlp()
    optimizer = torch.optim.LBFGS(m.parameters(), lr=0.01)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = m(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return [p.detach() for p in m.parameters()]


@program
def parametrized(log: Log) -> Any:
    a = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    b = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    b(a(leaf(2, 3))).sum().backward()
    return grads(a), grads(b)


@program
def frozen_for_a_while(log: Log) -> Any:
    m = mlp()
    for is_free in (False, True, False):
        m[0].requires_grad_(is_free)
        m(torch.ones(2, 4)).sum().backward()
        log.append([None if g is None else g.clone() for g in grads(m)])


@program
def a_step_inside_of_the_loss(log: Log) -> Any:
    w, x = leaf(3, 3), torch.randn(2, 3)
    (g,) = torch.autograd.grad((x @ w).square().mean(), w, create_graph=True)
    (x @ (w - 0.1 * g)).square().mean().backward()
    return w.grad


@program
def a_thread_inside_of_a_hook(log: Log) -> Any:
    import threading

    def work() -> None:
        t = torch.ones(3, requires_grad=True)
        (t * 2).sum().backward()
        log.append(t.grad)

    def hook(_: Any) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    x = leaf(3)
    y = x.sin()
    y.register_hook(hook)
    y.sum().backward()
    return x.grad
