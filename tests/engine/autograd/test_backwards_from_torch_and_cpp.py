"""Captured backwards contain backwards compiled by torch.compile or written in C++."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import engine
from engine.records.session import Session
from tests.engine.autograd.programs import grads, mlp

BACKENDS = ("eager", "aot_eager")
COMPILING = "a Python dispatch mode is active"
"""Why the backwards that torch runs while it compiles a forward are left alone."""


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    """Each test begins and ends with nothing compiled, here and in torch."""
    engine.reset()
    torch.compiler.reset()
    yield
    engine.reset()
    torch.compiler.reset()


class Several(nn.Module):
    """Three results, of which one has a shape of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sum, all, and the first row."""
        h = self.inner(x)
        return h.sum(), h.relu(), h[0]


def trained(backend: str | None, rows: Sequence[int], dynamic: bool | None, uses: int) -> tuple[list[Any], Session]:
    """Return gradients of a torch.compile model over these batch sizes, and the session.

    ``uses``: how many of the model's outputs are used.
    """
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Several()
    compiled = torch.compile(model, backend="aot_eager", dynamic=dynamic)
    found = []
    with engine.record() as session, engine.compiled_autograd(backend or "eager", enabled=backend is not None):
        for n in rows:
            model.zero_grad()
            x = torch.linspace(-1, 2, 4 * n).view(n, 4).requires_grad_()
            sum(r.square().sum() for r in compiled(x)[:uses]).backward()
            found += [x.grad, *(g.clone() for g in grads(model))]
    return found, session


@pytest.mark.combinations
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("rows", "dynamic"), [((2, 2), None), ((2, 3, 5), None), ((2, 3), True)])
def test_what_torch_compiled_is_captured(rows: tuple[int, ...], dynamic: bool | None, backend: str) -> None:
    """A torch.compile forward has bitwise equal gradients with and without capture.

    This includes unused outputs and changing sizes.
    """
    for uses in (1, 3):
        expected, _ = trained(None, rows, dynamic, uses)
        found, session = trained(backend, rows, dynamic, uses)
        assert all(a.equal(b) for a, b in zip(expected, found, strict=True))
        assert {c.reason for c in session.backward_calls if c.outcome == "eager"} <= {COMPILING}
        assert sum(c.outcome != "eager" for c in session.backward_calls) == len(rows)


SOURCE = r"""
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
using namespace torch::autograd;
template <bool traceable>
struct Scaled : public Function<Scaled<traceable>> {
  static constexpr bool is_traceable = traceable;
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, double k) {
    ctx->save_for_backward({x});
    ctx->saved_data["k"] = k;
    return x * x * k;
  }
  static variable_list backward(AutogradContext* ctx, variable_list g) {
    return {g[0] * ctx->get_saved_variables()[0] * 2 * ctx->saved_data["k"].toDouble(), at::Tensor()};
  }
};
TORCH_LIBRARY(engine_foreign, m) {
  m.def("opaque(Tensor x, float k) -> Tensor", [](const at::Tensor& x, double k) { return Scaled<false>::apply(x, k); });
  m.def("traceable(Tensor x, float k) -> Tensor", [](const at::Tensor& x, double k) { return Scaled<true>::apply(x, k); });
}
"""


@pytest.mark.slow
def test_functions_in_cpp_are_captured(tmp_path: pathlib.Path) -> None:
    """A C++ Function gives the same gradients when captured and on a hit with another number.

    This includes a C++ Function that does not allow tracing.
    """
    from torch.utils import cpp_extension

    path = tmp_path / "foreign.cpp"
    path.write_text(SOURCE, encoding="utf-8")
    cpp_extension.load(
        "engine_foreign", [str(path)], extra_cflags=["-O0"], build_directory=str(tmp_path), is_python_module=False
    )
    x = torch.randn(3, requires_grad=True)
    for function in (torch.ops.engine_foreign.opaque, torch.ops.engine_foreign.traceable):
        for backend in BACKENDS:
            engine.reset()
            outcomes = []
            for k in (2.0, 2.0, 3.0):
                (expected,) = torch.autograd.grad((function(x, k) * function(x, 1.0)).sin().sum(), x)
                with engine.record() as session, engine.compiled_autograd(backend):
                    (found,) = torch.autograd.grad((function(x, k) * function(x, 1.0)).sin().sum(), x)
                assert found.equal(expected)
                assert not session.failures
                outcomes += [c.outcome for c in session.backward_calls]
            assert outcomes == ["captured", "hit", "hit"]
