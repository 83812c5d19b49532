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
