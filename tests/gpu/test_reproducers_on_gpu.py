"""On a GPU: reproducers of the Triton kernels that stock torch.compile made."""

from __future__ import annotations

import pytest
import torch

import engine

pytestmark = pytest.mark.gpu


def test_triton_kernels_of_stock_compile_run_alone() -> None:
    """Each kernel of a forward and a backward runs with torch and Triton alone."""
    layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)).cuda()
    torch.compiler.reset()
    with engine.observe_torch() as observed:
        torch.compile(layers)(torch.randn(16, 32, device="cuda")).square().mean().backward()
    found = [observed.reproducer(c.id, k.id) for c in observed.compilations for k in c.kernels]
    assert len(found) >= 3
    assert all("import engine" not in f.text and "kernel.run(" in f.text for f in found)
