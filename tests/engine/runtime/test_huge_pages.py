"""Large results of CPU kernels ask for huge pages."""

from __future__ import annotations

import mmap
import sys

import pytest
import torch

import engine
from engine.runtime import huge_pages


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux")
@pytest.mark.parametrize(("elements", "is_asked"), [(1 << 21, True), (1 << 12, False)])
def test_large_results_ask_for_huge_pages(monkeypatch: pytest.MonkeyPatch, elements: int, is_asked: bool) -> None:
    """The advice covers whole pages of the result, and small results go without."""
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(huge_pages, "_advise", lambda: lambda *given: asked.append(given))
    x = torch.randn(elements)
    found = engine.compile(lambda x: torch.relu(x * 2 + 1), backend="triton")(x)
    torch.testing.assert_close(found, torch.relu(x * 2 + 1))
    assert bool(asked) == is_asked
    for start, length, advice in asked:
        assert start % mmap.PAGESIZE == length % mmap.PAGESIZE == 0
        assert found.data_ptr() <= start
        assert start + length <= found.data_ptr() + found.nbytes
        assert advice == mmap.MADV_HUGEPAGE
