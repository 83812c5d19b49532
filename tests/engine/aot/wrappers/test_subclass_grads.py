"""Gradients through tensor subclasses match eager in type, inner tensors and strides.

This holds for any type of tangent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from tests.torch_internals import TwoTensor


def two(*shape: int, grad: bool = True) -> Any:
    made = TwoTensor(torch.randn(*shape), torch.randn(*shape))
    return made.requires_grad_() if grad else made


def same(one: Any, other: Any, *, strides: bool = True) -> bool:
    if type(one) is not type(other):
        return False
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    if strides and one.stride() != other.stride():
        return False
    if isinstance(one, TwoTensor):
        return same(one.a, other.a, strides=strides) and same(one.b, other.b, strides=strides)
    return torch.allclose(one, other, equal_nan=True)


def ran(run: Any, make: Callable[[], tuple[Any, ...]], back: Callable[[Any], Any], seed: int) -> Any:
    """Results and gradients of a call, or what it raised."""
    torch.manual_seed(seed)
    inputs = make()
    results = run(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    tensors = [r for r in results if r.requires_grad]
    tangents = [back(t) for t in tensors]
    needing = [i for i in inputs if i.requires_grad]
    found = torch.autograd.grad(tensors, needing, tangents, allow_unused=True)
    return [r.detach() for r in results], [r.requires_grad for r in results], found


def plus(x: Any, y: Any) -> Any:
    return x * y + x.sin()


def matrix(x: Any, w: Any) -> Any:
    return (x @ w).relu(), x.sum(0)


def summed(x: Any, y: Any) -> Any:
    return (x * y).sum()


def passed(x: Any, y: Any) -> Any:
    return x, (x * 2).detach(), y.cos()


def detached(x: Any, y: Any) -> Any:
    return x.detach() * y, x.exp()


def dropped(x: Any, y: Any) -> Any:
    return torch.nn.functional.dropout(x * y, 0.5)


def written(x: Any, y: Any) -> Any:
    y.mul_(2)
    return x * y


def viewed(x: Any, y: Any) -> Any:
    return x.t(), x + y


def alike(t: Any) -> Any:
    return torch.ones_like(t)


def plain(t: Any) -> Any:
    return torch.ones(t.shape)


def strided(t: Any) -> Any:
    if not isinstance(t, TwoTensor) or t.ndim < 2:
        return torch.ones_like(t)
    return TwoTensor(torch.randn(t.shape[::-1]).t(), torch.randn(t.shape[::-1]).t())


def nested(*shape: int) -> Any:
    return TwoTensor(two(*shape, grad=False), two(*shape, grad=False)).requires_grad_()


CASES = [
    (plus, lambda: (two(2, 3), two(2, 3)), ""),
    (plus, lambda: (two(2, 3), two(2, 3, grad=False)), ""),
    (plus, lambda: (two(2, 3), torch.randn(2, 3)), ""),
    (plus, lambda: (nested(3), nested(3)), ""),
    (matrix, lambda: (two(2, 3), two(3, 4)), ""),
    (summed, lambda: (two(2, 3), two(2, 3)), ""),
    (passed, lambda: (two(2, 3), two(2, 3)), ""),
    (detached, lambda: (two(2, 3), two(2, 3)), ""),
    (dropped, lambda: (two(2, 3), two(2, 3)), ""),
    (plus, lambda: (two(2, 3), torch.randn(2, 3).requires_grad_()), "a plain tensor, would be a TwoTensor"),
    (plus, lambda: (two(2, 3, grad=False), torch.randn(2, 3).requires_grad_()), "a plain tensor, would be a TwoTensor"),
    (plus, lambda: (nested(3), two(3)), "a TwoTensor, would be a TwoTensor with other inner tensors"),
    (written, lambda: (two(2, 3), two(2, 3, grad=False)), "is mutated, and gradients are needed"),
    (viewed, lambda: (two(2, 3), two(2, 3)), "shares memory with another tensor"),
]


@pytest.mark.parametrize("back", [alike, plain, strided])
@pytest.mark.parametrize(("fn", "make", "note"), CASES)
def test_gradients(
    fn: Callable[..., Any], make: Callable[[], tuple[Any, ...]], note: str, back: Callable[[Any], Any]
) -> None:
    """Results and gradients of two calls match eager, also for tangents of another type.

    Graphs that fall back to eager record a reason.
    """
    engine.reset()
    with engine.record() as session:
        run = engine.compile(fn, backend="aot_eager")
        for seed in range(2):
            ours, theirs = ran(run, make, back, seed), ran(fn, make, back, seed)
            for o, t in zip(ours, theirs, strict=True):
                strides = back is not strided  # tangents are laid out as the results are
                assert all(same(a, b, strides=strides) for a, b in zip(o, t, strict=True)), (o, t)
    (compilation,) = session.compilations
    assert compilation.aot is not None
    assert note in compilation.aot.note
    assert bool(note) == bool(compilation.aot.note)
    wrapper = next((w for w in compilation.aot.wrappers if w.name == "tensor subclasses"), None)
    assert note or (wrapper is not None and any("its gradient" in a.action for a in wrapper.actions))


def step(run: Any, make: Callable[[], Any], *, calls: int = 3) -> Any:
    """Parameters and losses of a few steps of an optimizer."""
    torch.manual_seed(0)
    layer = make()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    compiled = run(layer)
    losses = []
    for _ in range(calls):
        loss = compiled(torch.randn(5, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in layer.parameters())]


def test_parameters_that_are_subclasses_train() -> None:
    """A network with subclass parameters takes eager's optimizer steps in compiled code."""

    def make() -> Any:
        net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
        for layer in (net[0], net[2]):
            for name in ("weight", "bias"):
                value = getattr(layer, name).detach()
                setattr(layer, name, torch.nn.Parameter(TwoTensor(value, value * 2)))
        return net

    engine.reset()
    with engine.record() as session:
        ours = step(lambda net: engine.compile(net, backend="aot_eager"), make)
    theirs = step(lambda net: net, make)
    assert all(same(o, t) for o, t in zip(ours, theirs, strict=True))
    assert [c.aot.mode for c in session.compilations if c.aot] == ["training"]
    assert not any(c.aot.note for c in session.compilations if c.aot)


def test_gradients_of_gradients() -> None:
    """What a subclass's gradient is may be differentiated once more."""

    def twice(run: Any) -> Any:
        torch.manual_seed(0)
        x, y = two(3), two(3)
        (gradient,) = torch.autograd.grad(run(x, y).sum(), x, create_graph=True)
        return torch.autograd.grad((gradient * gradient).sum(), (x, y))

    engine.reset()
    ours, theirs = twice(engine.compile(plus, backend="aot_eager")), twice(plus)
    assert all(same(o, t) for o, t in zip(ours, theirs, strict=True))


def test_an_input_written_to_before_its_backward_is_told() -> None:
    """As in eager, gradients of what no longer is as it was are refused."""
    engine.reset()
    x, y = two(3), two(3)
    made = engine.compile(plus, backend="aot_eager")(x, y)
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(made, x, torch.ones(3))


@pytest.mark.thorough
def test_an_input_that_the_backward_does_not_read_may_be_written_to() -> None:
    """The caller may mutate the input of a sigmoid before the backward, as in eager.

    The gradient depends only on the result.
    """

    def fn(x: Any, y: Any) -> Any:
        return x.sigmoid(), y * 3

    found = []
    for run in (fn, engine.compile(fn, backend="aot_eager")):
        torch.manual_seed(0)
        x, y = two(3), two(3)
        made, other = run(x, y)
        with torch.no_grad():
            x.mul_(2)
            y.add_(1)
        found.append(torch.autograd.grad((made.sum(), other.sum()), (x, y)))
    assert all(same(o, t) for o, t in zip(*found, strict=True))


def test_backward_twice_is_told() -> None:
    """Without ``retain_graph`` a second backward raises, with it gradients are the same."""
    engine.reset()
    x, y = two(3), two(3)
    total = engine.compile(summed, backend="aot_eager")(x, y)
    first = torch.autograd.grad(total, x, retain_graph=True)
    second = torch.autograd.grad(total, x)
    assert same(first[0], second[0])
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(total, x)


def _autograd_nodes(output: Any) -> int:
    seen: set[Any] = set()
    stack = [output.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [n for n, _ in node.next_functions]
    return sum("AccumulateGrad" not in type(n).__name__ for n in seen)


@pytest.mark.thorough
def test_subclass_inputs_share_one_autograd_node() -> None:
    """More subclass inputs that require grad add no autograd nodes to a compiled call."""

    def product(*weights: Any) -> Any:
        total = weights[0]
        for w in weights[1:]:
            total = total * w
        return total

    few, many = (engine.compile(product)(*(two(3) for _ in range(n))) for n in (2, 6))
    assert isinstance(many, TwoTensor)
    assert _autograd_nodes(many) == _autograd_nodes(few)


def test_a_gradient_is_undefined_where_its_input_is_not_used() -> None:
    """Of inputs that share an autograd node, one without gradient has None, as in eager."""

    def first(x: Any, y: Any, z: Any) -> Any:
        return x * y.detach(), z * 2

    def grads(run: Any) -> Any:
        torch.manual_seed(0)
        x, y, z = two(3), two(3), two(3)
        made, _ = run(x, y, z)
        made.backward(torch.ones_like(made.detach()))
        return x.grad, y.grad, z.grad

    wanted, found = grads(first), grads(engine.compile(first))
    assert [g is None for g in found] == [g is None for g in wanted]
    assert same(found[0], wanted[0])
