"""On a GPU: ordinary functions lowered to kernels, compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import engine
from engine.ir.aot.aot_graph import AotGraph
from engine.kernels.gpu_targets import default_target
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.runtime.program_executor import ProgramExecutor
from engine.runtime.verify.kernels import verify_kernels
from engine.torch_private.fx import make_fx

pytestmark = pytest.mark.gpu
Function = Callable[..., Any]


def lowered(function: Function, *inputs: torch.Tensor) -> tuple[Any, AotGraph]:
    """The program of a function for these inputs, and its graph."""

    def flat(*arguments: torch.Tensor) -> tuple[Any, ...]:
        out = function(*arguments)
        return out if isinstance(out, tuple) else (out,)

    with torch.no_grad():
        module = make_fx(flat, tracing_mode="fake")(*inputs)
    fakes = tuple(node.meta["val"] for node in module.graph.nodes if node.op == "placeholder")
    graph = AotGraph(module, fakes, "0/0")
    return lower(graph, default_target(), print_triton), graph


def masked_softmax(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention's weights."""
    return torch.softmax(x.masked_fill(mask, float("-inf")) * 0.125, dim=-1)


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One fused pointwise kernel."""
    return functional.gelu(torch.sin(x) * y + 1.0).sigmoid() - y.exp().log1p()


def norms(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Layer norm and RMS norm with a residual."""
    rms = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype)
    return functional.layer_norm(x, x.shape[-1:], w, None), rms * w + x


def reductions(x: torch.Tensor, _y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Sums, means, maxima and variances along each dimension and all."""
    return x.sum(0), x.mean(1), x.amax(-1), x.var(-1), x.sum(), x.argmax(-1)


def layout(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views, transposes, concatenation, broadcasting, comparison."""
    both = torch.cat([x, y], 1).t().contiguous()
    return both, (x[:, ::2] > y[:, 1::2]).sum(1), torch.where(x > 0, x, y.flip(0)), x[:, None, :] - y[None, :4, :1]


def mlp(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Library matmuls with kernels between."""
    return functional.gelu(x @ w.t(), approximate="tanh") @ w


FUNCTIONS = (masked_softmax, chain, norms, reductions, layout, mlp)


def arguments(function: Function, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Random inputs of the shapes that a function takes."""
    torch.manual_seed(0)
    x = torch.randn(64, 200, device="cuda", dtype=dtype)
    if function is masked_softmax:
        mask = torch.rand(64, 200, device="cuda") > 0.7
        mask[:, 0] = False
        return x, mask
    if function is norms:
        return x, torch.rand(200, device="cuda", dtype=dtype) + 0.5
    return x, torch.randn(64, 200, device="cuda", dtype=dtype).abs()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_functions_agree_with_eager(function: Function, dtype: torch.dtype) -> None:
    """Every output, in its shape, dtype and strides; several calls give the same."""
    inputs = arguments(function, dtype)
    program, _ = lowered(function, *inputs)
    run = ProgramExecutor(program)
    expected = function(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    loose = {torch.float32: (1e-4, 1e-4), torch.bfloat16: (3e-2, 3e-2), torch.float16: (5e-3, 5e-3)}
    for _ in range(3):
        for found, wanted in zip(run(*inputs), expected, strict=True):
            assert found.dtype == wanted.dtype
            assert found.stride() == wanted.stride()
            if wanted.is_floating_point():
                # A sum over everything in low precision is rounded once here, and once in eager.
                rtol, atol = loose[dtype]
                torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)
            else:
                assert torch.equal(found, wanted)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_interpreter_agrees_on_the_same_programs(function: Function) -> None:
    """Verification of a program that was made for GPU inputs: nothing differs."""
    inputs = arguments(function, torch.float32)
    program, graph = lowered(function, *inputs)
    found = verify_kernels(program, graph, inputs)
    assert not {k: record for k, record in found.items() if record.outcome == "different"}


class Block(nn.Module):
    """One block of a GPT, with attention written out."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (t.view(split).transpose(1, 2) for t in self.qkv(self.first(x)).split(width, 2))
        scores = (q @ k.transpose(-2, -1)) / (width // self.heads) ** 0.5
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).tril().logical_not()
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x)), approximate="tanh"))


def test_two_blocks_of_a_gpt_agree_with_eager() -> None:
    """Embedding, attention, layer norms and MLPs, end to end on the GPU."""
    torch.manual_seed(0)
    embedding, blocks = nn.Embedding(128, 64).cuda(), nn.Sequential(Block(), Block(), nn.LayerNorm(64)).cuda()
    index = torch.randint(0, 128, (4, 32), device="cuda")
    parameters = dict(blocks.named_parameters())

    def model(table: torch.Tensor, tokens: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        x = functional.embedding(tokens, table)
        out: torch.Tensor = torch.func.functional_call(blocks, dict(zip(parameters, values, strict=True)), (x,))
        return out

    inputs = (embedding.weight.detach(), index, *(p.detach() for p in parameters.values()))
    program, _ = lowered(model, *inputs)
    assert len(program.kernels) >= 6
    with torch.no_grad():
        torch.testing.assert_close(ProgramExecutor(program)(*inputs)[0], model(*inputs), rtol=1e-3, atol=1e-4)


def test_kernels_are_measured() -> None:
    """Each kernel's measured time is plausible for the bytes that it moves.

    The user's tensors stay unchanged.
    """
    x = torch.randn(4096, 4096, device="cuda")
    kept = x.clone()
    with engine.record() as session:
        engine.compile(lambda x: (x * 2).softmax(-1))(x)
    assert engine.measure_kernels(session) >= 1
    (kernel,) = session.compilations[0].kernels
    assert kernel.measured is not None
    assert kernel.measured.copy_rate
    assert kernel.bytes_moved
    share = kernel.bytes_moved / kernel.measured.seconds / kernel.measured.copy_rate
    assert 0.2 < share < 1.5, kernel.measured
    assert torch.equal(x, kept)


def test_interpolation_keeps_channels_last() -> None:
    """Also with few channels, where torch's own rule says otherwise."""
    image = torch.randn(2, 5, 7, 9, device="cuda").contiguous(memory_format=torch.channels_last)

    def grow(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, (13, 11), mode="bilinear")

    made, wanted = engine.compile(grow)(image), grow(image)
    assert made.stride() == wanted.stride()
    torch.testing.assert_close(made, wanted)
