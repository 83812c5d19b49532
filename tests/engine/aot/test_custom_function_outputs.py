"""Gradients match eager when they flow back from only some results of a custom function.

The tests check what a user's autograd function receives and what it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from engine.torch_private.autograd import SavedTensor
from tests.torch_internals import TwoTensor

Tensor = torch.Tensor


class Both(torch.autograd.Function):
    """Two results of two arguments."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Products."""
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Zeros, not None, for the argument whose result was not used."""
        return first * 2, second * 3


class Telling(torch.autograd.Function):
    """Tells gradients that are missing from zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Products."""
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Something of its own where one is missing."""
        return (None, second) if first is None else (first * 7, None) if second is None else (first, second)


class Shifted(torch.autograd.Function):
    """Two results, and a gradient that is no linear function of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Products."""
        return x * 2, x * y

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """One more."""
        return first + 1 + second, second


class Normal(torch.autograd.Function):
    """A gradient of length one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """A product."""
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """NaN of zeros: autograd does not call it where nothing flows back."""
        return gradient / gradient.norm()


def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Each result of another argument."""
    return Both.apply(x, y)  # type: ignore[no-any-return]


def told(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Further operators after it."""
    first, second = Telling.apply(x, y)
    return first.sin(), second.sin()


def shifted(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Not linear."""
    return Shifted.apply(x, y)  # type: ignore[no-any-return]


def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """One result of two, and both together."""
    first, second = Both.apply(x, y)
    return first + second, second.sin()


def normal(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """One result of two."""
    return Normal.apply(x * x), x * y


def apart(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Make each result from another part of one stacked tensor.

    Autograd stacks the gradients and fills the undefined one with zeros.
    """
    first, second = torch.stack([x, y]).unbind(0)
    return Normal.apply(first), Normal.apply(second)


def _gradients(run: Callable[..., Any], used: tuple[int, ...]) -> list[Tensor | None]:
    x, y = (torch.tensor(v, requires_grad=True) for v in ([1.0, 2.0], [3.0, 4.0]))
    results = run(x, y)
    sum(results[n].sum() for n in used).backward()
    return [x.grad, y.grad]


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("fn", [both, told, shifted, mixed, normal, apart])
@pytest.mark.parametrize("dynamic", [None, True])
def test_functions_are_given_what_autograd_gives_them(
    fn: Callable[..., Any], used: tuple[int, ...], dynamic: bool | None
) -> None:
    """Custom backwards receive zeros, None or no call as in eager, for any used results."""
    engine.reset()
    for found, wanted in zip(
        _gradients(engine.compile(fn, backend="aot_eager", dynamic=dynamic), used), _gradients(fn, used), strict=True
    ):
        assert (found is None) == (wanted is None)
        assert found is None or wanted is None or torch.equal(found, wanted)


def test_functions_with_one_result_stay_compiled() -> None:
    """Only custom functions with several results run under eager autograd, with a reason.

    Their results go into different outputs of the graph.
    """
    engine.reset()
    with engine.record() as session:
        for fn in (normal, both):
            _gradients(engine.compile(fn, backend="aot_eager"), (0, 1))
    compiled, traced = [c.aot for c in session.compilations]
    assert compiled is not None and compiled.mode == "training" and not compiled.note
    assert traced is not None and "the backward of Both sees" in traced.note


def _squares(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * x, y * y


UNPACKS_ONE = hasattr(SavedTensor, "unpack")


@pytest.mark.skipif(not UNPACKS_ONE, reason="this torch unpacks all saved tensors or none")
@pytest.mark.parametrize("used", [0, 1])
def test_what_is_not_read_may_have_been_written_to(used: int) -> None:
    """A backward does not check saved tensors that only the gradients of other results read.

    A mutated tensor that it does read raises.
    """
    engine.reset()
    run = engine.compile(_squares, backend="aot_eager")
    x, y = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    written, kept = x * 2, y * 2
    results = run(written, kept)
    written.detach().add_(1)
    if used == 0:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            results[0].sum().backward()
        return
    results[1].sum().backward()
    assert y.grad is not None and y.grad.tolist() == [8.0, 16.0]
    with pytest.raises(RuntimeError, match="a second time"):
        results[1].sum().backward()


@pytest.mark.parametrize("see", [lambda t: t.view(-1), lambda t: t.detach(), lambda t: t[0]])
def test_views_of_inference_tensors_are_written_to_where_eager_allows_it(see: Callable[[Tensor], Tensor]) -> None:
    """Inference tensor views may not be written outside inference mode; detached tensors may.

    A view has no version counter.
    """
    engine.reset()

    def outcome(run: Callable[..., Any]) -> str:
        with torch.inference_mode():
            given = torch.ones(2, 2)
        try:
            run(given).mul_(2)
        except RuntimeError as error:
            return str(error)
        return str(given.tolist())

    assert outcome(engine.compile(see, backend="aot_eager")) == outcome(see)


def test_lists_with_subclasses_are_not_counted() -> None:
    """A list mutation with a subclass leaves the plain tensor's version counter as in eager."""

    def written(x: Tensor, other: Tensor) -> None:
        torch._foreach_add_([x, other.sin()], 1)

    engine.reset()
    counts = []
    for run in (written, engine.compile(written, backend="aot_eager")):
        x = torch.ones(3)
        run(x, TwoTensor(torch.ones(3), torch.ones(3)))
        counts.append((x._version, x.tolist()))
    assert counts[0] == counts[1]


class Settled(torch.autograd.Function):
    """Its gradient is known in the forward already."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """A sum."""
        ctx.save_for_backward(x.cos())
        return x.sin().sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """What was saved, whatever it is given."""
        (saved,) = ctx.saved_tensors
        return saved  # type: ignore[no-any-return]


def settled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Where its result is not used, that gradient is missing."""
    return Settled.apply(x), x * y


def unused(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Use one of two results; the unused one gets zero gradients if the other gets a gradient.

    If the other gradient is undefined, the zeros are undefined, too.
    """
    first, _ = Both.apply(x, y)
    return first, x * y


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("fn", [settled, unused])
def test_gradients_that_depend_on_nothing_are_there_when_eagers_are(
    fn: Callable[..., Any], used: tuple[int, ...]
) -> None:
    """Zero gradients of unused results are defined exactly when eager's are.

    A backward graph returns them in each call. If some calls may not need them, autograd decides.
    """
    engine.reset()
    for found, wanted in zip(
        _gradients(engine.compile(fn, backend="aot_eager"), used), _gradients(fn, used), strict=True
    ):
        assert (found is None) == (wanted is None)
        assert found is None or wanted is None or torch.equal(found, wanted)


def test_a_gradient_that_is_saved_is_given_as_it_is() -> None:
    """The backward graph returns what it is given, and takes nothing else."""
    engine.reset()
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    engine.compile(lambda t: Settled.apply(t), backend="aot_eager")(x).backward()
    assert x.grad is not None and torch.equal(x.grad, x.detach().cos())
