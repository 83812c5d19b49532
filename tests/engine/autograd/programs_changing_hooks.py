"""Define programs whose hooks add and remove hooks while the backward runs.

The nodes of these hooks have run, are running, or have not run yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook, saved_tensors_hooks
from torch.utils.module_tracker import ModuleTracker

import engine
from tests.engine.autograd.programs import Log, grads, leaf, program, variant


class RunsAction(torch.autograd.Function):
    """x * 2, whose backward calls what the forward was given."""

    @staticmethod
    def forward(ctx: Any, x: Any, act: Any) -> Any:
        ctx.act = act
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        ctx.act(ctx)
        return g * 2 + ctx.saved_tensors[0] * 0, None


def register(kind: str, tensor: torch.Tensor, hook: Callable[[Any], Any]) -> Any:
    """Register a hook of one kind on a tensor or its grad_fn node and return the handle."""
    if kind == "tensor":
        return tensor.register_hook(hook)
    if kind == "accumulated":
        return tensor.register_post_accumulate_grad_hook(lambda p: hook(p) and None)
    with torch.enable_grad():
        node: Any = tensor.grad_fn or tensor.expand_as(tensor).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    if kind == "before":
        return node.register_prehook(lambda gs: None if (r := hook(gs[0])) is None else (r, *gs[1:]))
    return node.register_hook(lambda outputs, given: (hook(given[0] if given else None), None)[1])


def _changes(log: Log, actor: tuple[str, str], target: tuple[str, str], removes: bool) -> Any:
    is_done: list[Any] = []

    def act(*_: Any) -> None:
        log.append("acts")
        if not is_done:
            is_done.append(True)
            if removes:
                handle.remove()
            else:
                register(target[0], tensors[target[1]], telling)

    def telling(g: Any) -> Any:
        log.append(None if g is None else g.detach().clone())
        return g * 3 if target[0] in ("tensor", "before") else None

    x, w = leaf(3), leaf(3)
    a = x * w
    b = RunsAction.apply(a, act if actor[0] == "function" else lambda _: None)  # type: ignore[no-untyped-call]
    c = b.sin()
    d = c * c
    tensors = {"x": x, "w": w, "a": a, "b": b, "c": c, "d": d}
    handle: Any = register(target[0], tensors[target[1]], telling) if removes else None
    if actor[0] != "function":
        register(actor[0], tensors[actor[1]], act)
    total = (d + x).sum()
    total.backward(retain_graph=True)
    total.backward()
    return x.grad, w.grad


_ACTING_HOOKS = (
    ("tensor", "d"),
    ("before", "c"),
    ("after", "d"),
    ("function", "b"),
    ("accumulated", "x"),
    ("tensor", "x"),
)
_TARGET_HOOKS = (
    *(("tensor", name) for name in "xwabcd"),
    *(("before", name) for name in "abd"),
    *(("after", name) for name in "xbd"),
    ("accumulated", "x"),
    ("accumulated", "w"),
)
for _a, _actor in enumerate(_ACTING_HOOKS):
    for _t, _target in enumerate(_TARGET_HOOKS):
        _removes = (_a + _t) % 3 == 0
        _verb = "removes" if _removes else "adds"
        variant(
            f"a_hook_{_actor[0]}_{_actor[1]}_{_verb}_one_{_target[0]}_{_target[1]}", _changes, _actor, _target, _removes
        )


@program
def hooks_know_their_node(log: Log) -> Any:
    x = leaf(3)
    y = RunsAction.apply(x * 2, lambda ctx: log.append(torch._C._current_autograd_node() is ctx))  # type: ignore[attr-defined, no-untyped-call]
    z = y.exp()

    def hook(*_: Any) -> None:
        node: Any = torch._C._current_autograd_node()  # type: ignore[attr-defined]
        log.append((node.name(), node is z.grad_fn, torch._C._current_graph_task_id() != -1))  # type: ignore[attr-defined]

    z.register_hook(hook)
    z.grad_fn.register_prehook(hook)
    z.grad_fn.register_hook(hook)
    x.register_hook(hook)
    x.register_post_accumulate_grad_hook(hook)
    z.sum().backward()
    return x.grad, torch._C._current_autograd_node()  # type: ignore[attr-defined]


@program
def modules_know_that_they_go_backwards(log: Log) -> Any:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    with ModuleTracker() as tracker:
        out = module(leaf(2, 3))
        out.register_hook(lambda g: log.append((tracker.is_bw, sorted(tracker.parents))))
        out.sum().backward()
    return grads(module)


def _one_function_on_many(log: Log, which: int) -> Any:
    x = leaf(3)
    handles: list[Any] = []

    def hook(g: Any) -> Any:
        log.append(g.clone())
        if handles:
            handles.pop(which).remove()
        return g * 2

    out: torch.Tensor = x
    for _ in range(4):
        out = out * 2
        handles.append(out.register_hook(hook))
    total = out.sum()
    del out
    total.backward()
    return x.grad


variant("one_function_on_many_removes_the_first", _one_function_on_many, 0)
variant("one_function_on_many_removes_itself", _one_function_on_many, -1)


@program
def all_hooks_removed_by_the_first(log: Log) -> Any:
    x, w = leaf(3), leaf(3)
    tensors = [x * w]
    for _ in range(3):
        tensors.append(tensors[-1].sin() + x)
    handles: list[Any] = []

    def hook(g: Any) -> None:
        log.append(g.clone())
        for handle in handles:
            handle.remove()

    handles += [t.register_hook(hook) for t in tensors]
    tensors[-1].sum().backward()
    return x.grad, w.grad


def _added_to_results(log: Log, which: str, is_accumulating: bool) -> Any:
    x, w = leaf(3), leaf(3)
    a = x * w
    b = a.sin()
    c = b * b
    a.retain_grad()
    named = {"x": x, "a": a, "b": b}
    wanted = [named[n] for n in which]

    def add(_: Any) -> None:
        for n, tensor in enumerate(named.values()):
            tensor.register_hook(lambda g, n=n: g * (n + 2))

    c.register_hook(add)
    if is_accumulating:
        c.sum().backward(inputs=wanted, retain_graph=True)
        c.sum().backward(inputs=wanted)
        return x.grad, a.grad, w.grad
    return torch.autograd.grad(c.sum(), wanted)


for _which in ("xab", "a", "xb"):
    variant(f"hooks_added_to_results_{_which}", _added_to_results, _which, False)
variant("hooks_added_to_what_is_accumulated", _added_to_results, "xa", True)


@program
def a_hook_added_behind_writes_to_views(log: Log) -> Any:
    x = leaf(4, 3)
    y = x * 2
    y[1] = x[2].exp()
    z = y.sin()
    z.register_hook(lambda g: y.register_hook(lambda g: (log.append(g.clone()), g * 2)[1]) and None)
    (z * y + y.cos() + x).sum().backward()
    return x.grad


@program
def a_hook_added_where_gradients_are_half_added(log: Log) -> Any:
    x = leaf(3)
    outs = [x * n for n in range(1, 6)]
    outs[3].register_hook(lambda g: x.register_hook(lambda g: (log.append(g.clone()), g * 2)[1]) and None)
    outs[2].register_hook(lambda g: g * 3)
    sum(o.sin().sum() for o in outs).backward()  # type: ignore[union-attr]
    return x.grad


@program
def unpacking_adds_a_hook(log: Log) -> Any:
    x = leaf(3)

    def unpack(t: Any) -> Any:
        log.append("unpacks")
        if not added:
            added.append(x.register_hook(lambda g: g * 9))
        return t

    added: list[Any] = []
    with saved_tensors_hooks(lambda t: t.detach(), unpack):
        y = x.exp()
        z = y.sin() * y
    z.sum().backward()
    return x.grad


@program
def hooks_of_modules_change(log: Log) -> Any:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    handles: list[Any] = []

    def hook(inner: Any, _given: Any, _returned: Any) -> None:
        log.append(type(inner).__name__)
        if handles:
            handles.pop().remove()
        module[0].weight.register_hook(lambda g: (log.append("weight"), g * 2)[1])

    handles.append(module[0].register_full_backward_hook(hook))
    module[2].register_full_backward_hook(hook)
    for _ in range(2):
        module(torch.randn(2, 3)).sum().backward()
    return grads(module)


@program
def hooks_on_compiled_calls_change(log: Log) -> Any:
    x, w = leaf(3), leaf(3)
    function = engine.compile(lambda x, w: (x * w).sin(), backend="aot_eager")
    a = function(x, w)
    b = function(a.exp(), w)

    def add(_: Any) -> None:
        for tensor in (x, a):
            tensor.register_hook(lambda g: (log.append(g.clone()), g * 2)[1])

    b.register_hook(add)
    b.sum().backward()
    return x.grad, w.grad


@program
def an_added_hook_writes_to_what_was_saved(log: Log) -> Any:
    x, scale = leaf(3), torch.randn(3)
    a = x * scale
    b = a.sin()
    b.register_hook(lambda g: a.register_hook(lambda g: scale.add_(1) and None) and None)
    b.sum().backward()
    return x.grad


@program
def hooks_for_several_tensors_remove_themselves(log: Log) -> Any:
    x = leaf(3)
    a, b = x * 2, x * 3
    handles: list[Any] = []

    def hook(gs: Any) -> None:
        log.append([g.clone() for g in gs])
        handles[0].remove()

    handles.append(register_multi_grad_hook([a, b], hook))
    for _ in range(2):
        (a * b).sum().backward(retain_graph=True)
    return x.grad


@program
def hooks_change_in_a_graph_of_their_own(log: Log) -> Any:
    x = leaf(3)

    def hook(g: Any) -> Any:
        with torch.enable_grad():
            inner = leaf(2) * 2
            inner.register_hook(lambda g: log.append("inner"))
            inner.sum().backward()
        return g * 2

    y = x.sin()
    y.register_hook(hook)
    y.sum().backward()
    return x.grad


@program
def hooks_change_where_gradients_are_differentiated(log: Log) -> Any:
    x = leaf(3)
    a = x * x
    b = a.sin()
    b.register_hook(lambda g: a.register_hook(lambda g: g * 2) and None)
    (g,) = torch.autograd.grad(b.sum(), x, create_graph=True)
    g.sum().backward()
    return x.grad, g.detach()


@program
def an_added_hook_makes_nan(log: Log) -> Any:
    x = leaf(3)
    a = x * 2
    b = a.exp()
    b.register_hook(lambda g: a.register_hook(lambda g: g * 0 / 0) and None)
    with torch.autograd.detect_anomaly():
        b.sum().backward()
    return x.grad


@program
def a_hook_asks_for_gradients_to_be_kept(log: Log) -> Any:
    x = leaf(3)
    y = x.sin()
    z = y.exp()

    def hook(_: Any) -> None:
        y.retain_grad()
        z.retain_grad()

    z.register_hook(hook)
    y.register_hook(lambda g: g * 2)
    z.sum().backward(retain_graph=True)
    log.append((y.grad, z.grad))
    z.sum().backward()
    return x.grad, y.grad, z.grad


@program
def hooks_ask_what_will_run(log: Log) -> Any:
    x, w = leaf(3), leaf(3)
    y = x.sin()
    z = y.exp() * w
    other = x.cos()

    def hook(_: Any) -> None:
        for tensor in (y, z, other):
            log.append(torch._C._will_engine_execute_node(tensor.grad_fn))  # type: ignore[attr-defined]

    z.register_hook(hook)
    (gradient,) = torch.autograd.grad(z.sum(), x, retain_graph=True)
    z.sum().backward(inputs=[w])
    return gradient, x.grad, w.grad


@program
def a_context_is_kept(log: Log) -> Any:
    kept: list[Any] = []

    def keep(ctx: Any) -> None:
        kept.append(ctx)
        log.append((isinstance(ctx, torch.autograd.function.BackwardCFunction), ctx == y.grad_fn, ctx.name()))
        log.append(isinstance(ctx, torch.autograd.graph.Node))

    x = leaf(3)
    y: torch.Tensor = RunsAction.apply(x, keep)  # type: ignore[no-untyped-call]
    y.sum().backward(retain_graph=True)
    log.append(kept[0].saved_tensors[0].clone())
    y.sum().backward()
    return kept[0].saved_tensors
