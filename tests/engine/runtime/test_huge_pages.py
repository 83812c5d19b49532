"""Large results of CPU kernels ask for huge pages."""

from __future__ import annotations

import mmap
import pathlib
import sys
from collections.abc import Callable
from typing import Any

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


LARGE = (1 << 11, 1 << 10)
"""Sizes of a tensor of 8 MB."""
PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "mm": (lambda a, b: (a @ b).relu() + 1, (torch.randn(LARGE[0], 8), torch.randn(8, LARGE[1]))),
    "addmm": (
        lambda a, b, c: torch.addmm(c, a, b, beta=0.5).relu() + 1,
        (torch.randn(LARGE[0], 8), torch.randn(8, LARGE[1]), torch.randn(LARGE[1])),
    ),
    "bmm": (torch.bmm, (torch.randn(2, LARGE[0], 8), torch.randn(2, 8, LARGE[1]))),
    "mm alone and relu": (lambda a, b: (a @ b, (a + 1).relu()), (torch.randn(LARGE[0], 8), torch.randn(8, LARGE[1]))),
    "bfloat16": (
        lambda a, b: (a @ b).relu() + 1,
        (torch.randn(2 * LARGE[0], 8).bfloat16(), torch.randn(8, LARGE[1]).bfloat16()),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_written_to_huge_pages(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A large product equals eager's, also its version."""
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(huge_pages, "_advise", lambda: lambda *given: asked.append(given))
    function, args = PRODUCTS[name]
    found, expected = engine.compile(function, backend="triton")(*args), function(*args)
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(_tuple(found), _tuple(expected), strict=True):
        assert (ours._version, ours.stride(), ours.requires_grad) == (theirs._version, theirs.stride(), False)
    assert bool(asked) == (name != "bmm" and sys.platform == "linux")  # ATen runs a graph that is one product


def _tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_gradients_of_a_large_product_equal_those_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is given to a product is no part of autograd."""
    monkeypatch.setattr(huge_pages, "_advise", lambda: lambda *given: 0)
    x, gradients = torch.randn(LARGE[0], 16), []
    weights = [torch.randn(16, LARGE[1]), torch.randn(LARGE[1], 4)]
    step: Callable[..., Any] = lambda x, a, b: (torch.relu(x @ a) @ b).square().mean()  # noqa: E731
    for run in (step, engine.compile(step, backend="triton")):
        leaves = [w.clone().requires_grad_() for w in weights]
        run(x, *leaves).backward()
        gradients.append([w.grad for w in leaves])
    torch.testing.assert_close(*gradients)


def test_a_lone_operator_with_a_large_result_has_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the second call the sizes are symbolic: each call chooses the memory."""
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(huge_pages, "_advise", lambda: lambda *given: asked.append(given))
    double = engine.compile(lambda x: x * 2, backend="triton")
    for count, is_asked in (((1 << 23) + 1, True), (1 << 23, True), (100, False)):
        asked.clear()
        x = torch.randn(count)
        assert torch.equal(double(x), x * 2)
        assert bool(asked) == (is_asked and sys.platform == "linux")


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux")
@pytest.mark.parametrize(
    ("setting", "is_asked"),
    [
        ("always [madvise] never", True),
        ("[always] madvise never", False),
        ("always madvise [never]", False),
        ("", False),
    ],
)
def test_advice_depends_on_the_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, setting: str, is_asked: bool
) -> None:
    """Only "madvise" asks for advice; without the file nothing is advised."""
    path = tmp_path / "enabled"
    if setting:
        path.write_text(setting, encoding="ascii")
    monkeypatch.setattr(huge_pages, "SETTING", path)
    advise: Any = huge_pages._advise
    monkeypatch.setattr(huge_pages, "_advise", advise.__wrapped__)
    assert (huge_pages._advise() is not None) == is_asked
    tensor = huge_pages.empty_in_huge_pages((3, 5), (5, 1), dtype=torch.float64)
    assert (tuple(tensor.shape), tensor.stride(), tensor.dtype) == ((3, 5), (5, 1), torch.float64)
