"""The bias of a convolution is added in a kernel that fuses with what follows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.ir.kernels.lowered_program import CPU_TARGET
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.lowering.passes.decompose import decompose
from engine.lowering.passes.separate_conv_bias import separate_conv_bias
from tests.engine.lowering.trace_aten import trace_to_aten

X, BIAS = torch.randn(2, 4, 9, 9), torch.randn(6)


def forward(x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Convolutions of two kinds with a bias, one without, and one whose result is returned."""
    usual = F.conv2d(x, torch.ones(6, 4, 3, 3), bias, stride=2).relu()
    transposed = F.conv_transpose2d(x, torch.ones(4, 3, 3, 3), bias, groups=2).sin()
    return usual, transposed, F.conv2d(x, torch.ones(6, 4, 1, 1)), F.conv1d(x[:, :, 0], torch.ones(6, 4, 3), bias)


def test_results_keep_values_and_strides() -> None:
    """The rewritten graph computes the same, in the same layout."""
    graph = trace_to_aten(forward, (X, BIAS))
    module = separate_conv_bias(decompose(graph))
    for made, wanted in zip(module(X, BIAS), forward(X, BIAS), strict=True):
        torch.testing.assert_close(made, wanted)
        assert made.stride() == wanted.stride()


def test_a_kernel_adds_the_bias_with_the_activation() -> None:
    """On a GPU one kernel adds the bias and computes relu; on the CPU the call has it."""
    graph = trace_to_aten(lambda x, b: F.conv2d(x, torch.ones(6, 4, 3, 3), b).relu(), (X, BIAS))
    program = lower(graph, "cuda:90", print_triton)
    (call,) = [call for step in program.steps for call in step.calls if "convolution" in str(call.target)]
    assert call.args[2] is None
    assert [kernel.name for kernel in program.kernels] == ["ones_kernel", "fused_convolution_relu"]
    on_cpu = lower(graph, CPU_TARGET, print_triton)
    (call,) = [call for step in on_cpu.steps for call in step.calls if "convolution" in str(call.target)]
    assert call.args[2] is not None


def gradients(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Return a convolution's gradients; that of its result comes from ``x``."""
    grad = x[:, :1, 1:-1, 1:-1].sin() * bias.view(1, -1, 1, 1)
    stride = [1, 1]
    return torch.ops.aten.convolution_backward(
        grad, x, weight, [6], stride, [0, 0], stride, False, [0, 0], 1, [True, True, True]
    )


def test_a_kernel_sums_the_gradient_of_the_bias() -> None:
    """On a GPU the backward call computes the other gradients; all values stay."""
    weight = torch.randn(6, 4, 3, 3)
    graph = trace_to_aten(gradients, (X, weight, BIAS))
    module = separate_conv_bias(decompose(graph))
    for made, wanted in zip(module(X, weight, BIAS), gradients(X, weight, BIAS), strict=True):
        torch.testing.assert_close(made, wanted)
    program = lower(graph, "cuda:90", print_triton)
    (call,) = [call for step in program.steps for call in step.calls if "convolution" in str(call.target)]
    assert call.args[10] == [True, True, False]
    assert any("tl.sum" in kernel.text for kernel in program.kernels)


def test_a_backward_for_the_bias_alone_is_a_sum() -> None:
    """Without another gradient no convolution runs."""

    def only_bias(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor | None:
        return gradients(x, weight, bias)[2]

    program = lower(trace_to_aten(only_bias, (X, torch.randn(6, 4, 3, 3), BIAS)), "cuda:90", print_triton)
    assert not any("convolution" in str(call.target) for step in program.steps for call in step.calls)
