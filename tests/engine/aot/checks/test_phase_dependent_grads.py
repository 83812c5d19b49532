"""Gradients that eager's backward refuses for what they are, compiled ones refuse too."""

from collections.abc import Callable

import pytest
import torch

import engine


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize("decompose", [torch.linalg.eig, torch.linalg.eigh])
def test_gradients_that_depend_on_a_phase(
    backend: str, decompose: Callable[[torch.Tensor], list[torch.Tensor]]
) -> None:
    """Of complex eigenvectors; where the loss does not depend on it, they are eager's."""
    torch.manual_seed(0)
    made = torch.randn(3, 3, dtype=torch.complex64)
    given = (made + made.mH).requires_grad_()
    by_phase = engine.compile(lambda a: decompose(a)[1].real.sum(), backend=backend)(given)
    with pytest.raises(RuntimeError, match="specified up to multiplication by"):
        by_phase.backward()
    weight = torch.rand(3, 3)
    (expected,) = torch.autograd.grad((decompose(given)[1].abs() * weight).sum(), given)
    (found,) = torch.autograd.grad(
        engine.compile(lambda a: (decompose(a)[1].abs() * weight).sum(), backend=backend)(given), given
    )
    torch.testing.assert_close(found, expected)


def test_gradients_of_eigenvalues_are_compiled() -> None:
    """They do not depend on any vector."""
    given = torch.randn(3, 3, requires_grad=True)
    with engine.record() as session:
        engine.compile(lambda a: torch.linalg.eigvals(a).abs().sum(), backend="aot_eager")(given).backward()
    assert [c.aot.note for c in session.compilations if c.aot is not None] == [""]
