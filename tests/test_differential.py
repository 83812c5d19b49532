"""The differential harness accepts a faithful compiler and catches every unfaithful one."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.differential import Comparison, beyond_rounding, differences, is_rounding_error, observe, prepare
from tests.markers import slow_except_sample
from tests.programs import program_names

PLAIN_SHARE = 16
"""One program in so many runs plainly twice outside the slow ring.

The comparison of a compiled program with its plain run already fails where a program is not deterministic.
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=slow_except_sample(name, PLAIN_SHARE)) for name in program_names()]
)
def test_plain_is_plain(name: str) -> None:
    """A compiler that changes nothing shows no difference: every program is deterministic."""
    assert differences(name, lambda target: target) == []


def after(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A compiler that applies ``change`` to each result."""

    def compile(target: Any) -> Any:
        @functools.wraps(target)
        def run(*args: Any, **kwargs: Any) -> Any:
            return change(target(*args, **kwargs))

        return run

    return compile


def around(manager: Callable[[], Any]) -> Callable[[Any], Any]:
    """A compiler that runs each call inside ``manager()``."""

    def compile(target: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with manager():
                return target(*args, **kwargs)

        return run

    return compile


def on_copies(target: Any) -> Any:
    """A compiler that forgets to write mutations back."""

    def run(*args: Any) -> Any:
        return target(*(a.clone() if isinstance(a, torch.Tensor) else a for a in args))

    return run


def reworded(target: Any) -> Any:
    """A compiler that changes the words of exceptions."""

    def run(*args: Any) -> Any:
        try:
            return target(*args)
        except Exception as error:
            raise type(error)("something else") from error

    return run


def eats_random_numbers(target: Any) -> Any:
    """A compiler that draws a random number of its own, after the call."""

    def run(*args: Any) -> Any:
        result = target(*args)
        torch.rand(1)
        return result

    return run


def runs_twice(target: Any) -> Any:
    """A compiler that runs the user's code twice."""

    def run(*args: Any) -> Any:
        target(*args)
        return target(*args)

    return run


def scales_gradient(target: Any) -> Any:
    """A compiler whose values are right and whose gradients are not."""

    def run(*args: Any) -> Any:
        result = target(*args)
        return result * 2 - (result.detach())

    return run


WRONG = {
    "value": ("arithmetic.broadcast_add", after(lambda r: r + 1e-3), "values differ"),
    "last bit": ("arithmetic.broadcast_add", after(lambda r: r * (1 + 1e-7)), "values differ"),
    "dtype": ("arithmetic.broadcast_add", after(lambda r: r.double()), "dtype"),
    "shape": ("arithmetic.broadcast_add", after(lambda r: r[None]), "shape"),
    "stride": ("arithmetic.broadcast_add", after(lambda r: r.t().contiguous().t()), "stride"),
    "type": ("arithmetic.plain_arguments", after(lambda r: (r,)), "became tuple"),
    "number type": ("views_and_indexing.shape_arithmetic", after(lambda r: (*r[:1], float(r[1]), *r[2:])), "int became float"),
    "tuple type": ("containers.named_tuples", after(lambda r: (tuple(r[0]), *r[1:])), "Pair became tuple"),
    "key order": ("containers.dict_argument", after(lambda r: dict(reversed(r.items()))), "keys"),
    "alias lost": ("side_effects.outputs_alias_each_other", after(lambda r: (r[0], r[1].clone(), *r[2:])), "shares memory"),
    "alias of input lost": ("side_effects.output_is_view_of_input", after(lambda r: tuple(t.clone() for t in r)), "share"),
    "alias made": ("arithmetic.clamp_where", after(lambda r: (r[0], r[1], r[1].view_as(r[1]))), "share"),
    "identity lost": ("side_effects.output_is_input", after(lambda r: (r[0], r[1].view_as(r[1]), r[2])), "identity"),
    "list identity lost": ("containers.shared_list", after(lambda r: (r[0], list(r[1]), r[2])), "identity"),
    "mutation lost": ("side_effects.in_place_on_argument", on_copies, "args"),
    "exception's words": ("exceptions.raises_own", reworded, "became"),
    "exception swallowed": ("exceptions.index_error", around(lambda: contextlib.suppress(IndexError)), "became"),
    "print swallowed": ("side_effects.prints_text", around(lambda: contextlib.redirect_stdout(io.StringIO())), "printed"),
    "random state": ("side_effects.random_numbers", eats_random_numbers, "random state"),
    "ran twice": ("side_effects.global_counter", runs_twice, "globals"),
    "module ran twice": ("modules.CountsInBuffer", runs_twice, "steps"),
    "gradient": ("training_steps.gradient_of_product", scales_gradient, "grad"),
    "gradient lost": ("training_steps.gradient_of_product", after(lambda r: r.detach()), "requires_grad"),
    "gradient made": ("training_steps.no_grad_decorator", after(lambda r: r.requires_grad_()), "requires_grad"),
    "grad mode": ("arithmetic.broadcast_add", after(lambda r: (torch.set_grad_enabled(False) and r) or r), "grad mode"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_compiler_is_caught(case: str) -> None:
    """A compiler with one fault shows a difference that names it."""
    name, compile, expected = WRONG[case]
    found = differences(name, compile)
    assert any(expected in line for line in found), found


def test_rounding_passes_where_tolerated() -> None:
    """With tolerances, a difference in the last bits passes and a real one does not."""
    assert differences("arithmetic.broadcast_add", after(lambda r: r * (1 + 1e-7)), exact=False) == []
    assert differences("arithmetic.broadcast_add", after(lambda r: r * (1 + 1e-2)), exact=False) != []


def test_rounding_like_eager_is_no_difference() -> None:
    """Against float64, only what is further away than eager is a difference."""

    def found(error: float) -> list[str]:
        name = "arithmetic.unary_chain"
        plain, changed = prepare(name, "plain"), prepare(name, "compiled")
        expected = observe(plain, plain.target)
        seen = observe(changed, after(lambda r: r + error)(changed.target))
        return beyond_rounding(name, Comparison({torch.float32: (0.0, 0.0)}), expected, seen, grad=True)

    assert found(1e-9) == []
    assert any("values differ" in line for line in found(1e-4))


def test_casts_and_autocast_of_a_program_are_rounding() -> None:
    """The float64 run has no casts and no autocast, so it judges a program with both."""

    def found(error: float) -> list[str]:
        name = "model_zoo.AMP"
        plain, changed = prepare(name, "plain"), prepare(name, "compiled")
        expected = observe(plain, plain.target, grad=False)
        seen = observe(changed, after(lambda r: r + error)(changed.target), grad=False)
        return beyond_rounding(name, Comparison({torch.float32: (0.0, 0.0)}), expected, seen, grad=False)

    assert found(1e-4) == []
    assert any("values differ" in line for line in found(0.2))


def test_gradients_of_global_modules_are_compared_with_float64() -> None:
    """The float64 run has its global modules in float64, so it judges their gradients too."""

    def found(error: float) -> list[str]:
        name = "module_hooks.global_hook"
        plain, changed = prepare(name, "plain"), prepare(name, "compiled")
        expected, seen = observe(plain, plain.target), observe(changed, changed.target)
        gradient = changed.module.GLOBAL_LINEAR.weight.grad.view(-1)
        gradient[gradient.abs().argmin()] *= 1 + error
        return beyond_rounding(name, Comparison({torch.float32: (0.0, 0.0)}), expected, seen, grad=True)

    assert found(2e-7) == []
    assert any("weight'].grad: values differ" in line for line in found(1e-2))


def test_only_rounding_errors_of_eager_excuse_a_difference() -> None:
    """Eager must be near the float64 run itself, and NaN must stand at the same places."""
    exact = torch.linspace(1, 2, 50, dtype=torch.float64)
    eager = exact.to(torch.bfloat16)
    assert is_rounding_error(eager, (exact * (1 + 2**-10)).to(torch.bfloat16), exact)
    assert not is_rounding_error(eager, (exact * 1.1).to(torch.bfloat16), exact)
    other_numbers = exact.flip(0)
    assert not is_rounding_error(eager, eager + 1, other_numbers)
    missing = eager.clone()
    missing[3] = float("nan")
    assert not is_rounding_error(missing, eager * 1.5, exact)
    assert not is_rounding_error(eager, missing, exact)
