"""The disk cache does not reuse a result made before the program patched torch.

The patch is not part of the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.library import Library, custom_op

import engine
from engine.torch_private.operators import decomposition_table

pytestmark = pytest.mark.usefixtures("disk_cache")


def _told(fn: Callable[..., Any], *args: Any, backend: str = "aot_eager") -> tuple[list[str], list[str], list[float]]:
    """Return the cache notes for graphs and kernels, and the first gradient or the result.

    The gradient is that of the first argument.
    """
    engine.reset()
    args = tuple(a.detach().clone().requires_grad_(a.requires_grad) for a in args)
    with engine.record() as session:
        found = engine.compile(fn, backend=backend)(*args)
        if found.requires_grad:
            found.sum().backward()
    graphs = [c.aot.cache for c in session.compilations if c.aot is not None]
    kernels = [c.lowering.cache for c in session.compilations if c.lowering is not None]
    return graphs, kernels, (found.detach() if args[0].grad is None else args[0].grad).tolist()


def _leaf() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def test_methods_that_somebody_gave_to_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that calls a method added to ``torch.Tensor`` is not cached.

    The graph holds only the method's name. Torch's own Python methods are identified by their functions.
    """
    for factor in (2.0, 3.0):
        monkeypatch.setattr(torch.Tensor, "times", lambda self, k=factor: self * k, raising=False)
        notes, _, found = _told(lambda x: x.times().sin().cos() * 1, _leaf().detach())
        assert found[0] == pytest.approx(torch.cos(torch.sin(torch.tensor(factor))).item())
        assert notes == ["not saved to disk: times is a method that may not exist in another process"]
    assert [_told(lambda x: x.split(1)[0] ** 2, _leaf())[0] for _ in "ab"] == [["saved to disk"], ["loaded from disk"]]


def test_kernels_put_in_the_place_of_atens() -> None:
    """What autograd traces through decides the graph, and only the dispatcher knows its code."""
    for factor in (2.0, 3.0):
        library = Library("aten", "IMPL")
        library.impl("sinc", lambda x, k=factor: x * k, "AutogradCPU")
        try:
            notes, _, grad = _told(lambda x: torch.sinc(x) + 1, _leaf())
        finally:
            library._destroy()
        assert grad == [factor] * 2
        assert notes == [
            "not saved to disk: aten::sinc has a kernel that other code registered, and its code cannot be read"
        ]
    torch.vmap(torch.sin)(torch.ones(2, 2))  # for which torch puts kernels of its own
    assert _told(lambda x: torch.sinc(x) + 1, _leaf())[0] == ["saved to disk"]


def _operator(backward: Callable[..., Any]) -> Any:
    made = custom_op("kept_elsewhere::twice", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    made.register_fake(torch.empty_like)
    made.register_autograd(backward)
    return made


def _by_function(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    return F.gelu(g)


def _by_method(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    return g.times()  # type: ignore[attr-defined,no-any-return]


def _by_threads(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    return g * torch.get_num_threads()


def test_an_operators_code_that_calls_what_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replacement marked by ``functools.wraps`` as torch's own is identified by its code.

    Operators that read added tensor methods or process-dependent values are not cached.
    """
    for factor in (2.0, 3.0):

        @functools.wraps(F.gelu)
        def times(x: torch.Tensor, k: float = factor) -> torch.Tensor:
            return x * k

        monkeypatch.setattr(F, "gelu", times)
        operator = _operator(_by_function)
        notes, _, grad = _told(lambda x, f=operator: f(x) + 1, _leaf())
        assert (notes, grad) == (["saved to disk"], [factor] * 2)
    monkeypatch.setattr(torch.Tensor, "times", lambda self: self * 2, raising=False)
    for backward, reason in (
        (_by_method, "it reads times, which other code added to torch.Tensor"),
        (_by_threads, "it calls torch.get_num_threads(), which depends on the process"),
    ):
        operator = _operator(backward)
        notes, _, _ = _told(lambda x, f=operator: f(x) + 1, _leaf())
        assert notes == [f"not saved to disk: kept_elsewhere::twice: {reason}"]


def _adds(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.index_put((torch.zeros(2, dtype=torch.long),), y, accumulate=True)


def test_kernels_depend_on_switches() -> None:
    """Deterministic mode and matmul precision are part of the kernel cache key."""
    told = []
    try:
        for switched in (False, True):
            torch.use_deterministic_algorithms(switched)
            torch.set_float32_matmul_precision("high" if switched else "highest")
            told.append([_told(fn, torch.ones(2), torch.ones(2), backend="triton")[1] for fn in (_adds, torch.mul)])
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
    assert all(kernels == [["saved to disk"]] * 2 for kernels in told)


def test_products_depend_on_the_switch_of_their_library() -> None:
    """A recurrent layer is one operator or another."""
    notes = []
    for enabled in (True, False, True):
        with torch.backends.mkldnn.flags(enabled=enabled):
            notes += _told(lambda x: x * 2, _leaf())[0]
    assert notes == ["saved to disk", "saved to disk", "loaded from disk"]


def test_decompositions_of_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their code is not known: kernels are made anew."""
    assert _told(torch.sinc, torch.ones(2), backend="triton")[1] == ["saved to disk"]
    monkeypatch.setitem(decomposition_table, torch.ops.aten.sinc.default, lambda x: x * 2)
    found = _told(torch.sinc, torch.ones(2), backend="triton")[1]
    assert found == ["not saved to disk: aten.sinc.default has a lowering that other code registered"]
