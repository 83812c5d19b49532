"""Operators that run for their effect among kernels: checks and operators of the user."""

from __future__ import annotations

import pytest
import torch

import engine
from tests.markers import needs_triton

pytestmark = needs_triton


NOTES: list[tuple[str, float]] = []
"""What ``testing_effects::note`` noted: a tag and the sum of a tensor."""

LIBRARY = torch.library.Library("testing_effects", "DEF")
LIBRARY.define("note(Tensor x, str tag) -> ()")
LIBRARY.impl("note", lambda x, tag: NOTES.append((tag, float(x.sum()))), "CPU")
LIBRARY.impl("note", lambda x, tag: None, "Meta")


def test_effects_run_in_order_between_kernels() -> None:
    """Kernels run before and after the operators, whose order is that of the code."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2
        torch.ops.testing_effects.note(y, "first")
        z = y.exp() + 1
        torch.ops.testing_effects.note(x, "second")
        torch.ops.testing_effects.note(z, "third")
        return z * 2

    x = torch.arange(4.0)
    NOTES.clear()
    expected = function(x)
    in_order = list(NOTES)
    NOTES.clear()
    with engine.record() as session:
        torch.testing.assert_close(engine.compile(function)(x), expected)
    assert [tag for tag, _ in NOTES] == ["first", "second", "third"]
    assert [number for _, number in NOTES] == pytest.approx([number for _, number in in_order])
    assert session.compilations[0].cpu_kernels


def posterior(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Write a buffer around a factorization that raises for some matrices."""
    seen.add_(1)
    factor = torch.linalg.cholesky(x * 2)
    seen.mul_(2)
    return (factor.sin() + 1).sum()


def test_a_factorization_raises_among_kernels() -> None:
    """A matrix without a factorization raises as in eager, after the same writes."""
    compiled = engine.compile(posterior)
    seen, seen_in_eager = torch.ones(3), torch.ones(3)
    with engine.record() as session:
        torch.testing.assert_close(compiled(torch.eye(3), seen), posterior(torch.eye(3), seen_in_eager))
    assert session.compilations[0].cpu_kernels
    for function, state in ((compiled, seen), (posterior, seen_in_eager)):
        with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
            function(-torch.eye(3), state)
    assert seen.equal(seen_in_eager)


def test_a_program_for_a_gpu_checks_the_factorization() -> None:
    """The check stands between the factorization and the kernel that reads it."""
    with engine.record(target="cuda:90") as session:
        engine.compile(lambda x, seen: posterior(x, seen) + 1)(torch.eye(3), torch.ones(3))
    lowering = session.compilations[0].lowering
    assert lowering is not None
    calls = [line for line in lowering.wrapper_text.splitlines() if "linalg" in line and "del" not in line]
    assert ["cholesky_ex" in calls[0], "'linalg.cholesky'" in calls[1]] == [True, True]
