"""On a GPU: matmul templates give eager's values and gradients.

Autotuning chooses them by measurement.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import engine
from engine.ir.kernels.template_choice import AlwaysTemplateChooser
from engine.kernels.gpu_targets import default_target
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.runtime.program_executor import ProgramExecutor
from tests.engine.lowering.attention_cases import ATTENTION_CASES
from tests.engine.lowering.matmul_cases import MATMUL_CASES
from tests.engine.lowering.trace_aten import trace_to_aten, with_flat_results

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing compiled before."""
    engine.reset()


LIMITS = {torch.float16: 2e-2, torch.bfloat16: 6e-2, torch.float32: 1e-3}


@pytest.mark.parametrize(
    "name", [*MATMUL_CASES, *(n for n in ATTENTION_CASES if not n.startswith("attention_backward"))]
)
def test_equals_eager(name: str) -> None:
    """Every result of the case agrees with eager on the same device."""
    case = {**MATMUL_CASES, **ATTENTION_CASES}[name]
    args = tuple(x.cuda() for x in case.args())
    graph = trace_to_aten(case.function, args)
    program = lower(graph, default_target(), print_triton, chooser=AlwaysTemplateChooser())
    assert any("tl.dot(" in k.text for k in program.kernels)
    found, wanted = ProgramExecutor(program)(*args), with_flat_results(case.function)(*args)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=LIMITS[other.dtype], atol=LIMITS[other.dtype])
        assert one.stride() == other.stride()


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


@pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_trains(backend: str, is_causal: bool) -> None:
    """Attention templates give eager's results and gradients for every SDPA backend.

    The backend is the library that torch would have called.
    """
    torch.manual_seed(0)
    given = [torch.randn(2, 4, 130, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    found = []
    with engine.record() as session, sdpa_kernel(getattr(SDPBackend, backend)):
        for call in (_attend, engine.compile(_attend, options={"templates": "always"})):
            out = call(*given, is_causal=is_causal)
            found.append((out, *torch.autograd.grad(out.float().square().sum(), given)))
    for one, other in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(one, other, rtol=4e-2, atol=2e-2 * float(other.abs().max()))
    (compiled,) = session.compilations
    assert not compiled.failures
    assert [k.name for k in compiled.kernels if k.name.startswith("attention")] == [
        "attention", "attention_sums", "attention_keys_backward", "attention_queries_backward",
    ]  # fmt: skip


def test_a_mask_learns() -> None:
    """The template's kernels compute the gradient of a bias added to scores.

    The bias is the same for the whole batch.
    """
    torch.manual_seed(0)
    given = [torch.randn(2, 4, 130, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    bias = torch.randn(1, 4, 130, 130, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, bias)

    found = []
    with engine.record() as session, sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        for call in (attend, engine.compile(attend, options={"templates": "always"})):
            out = call(*given, bias)
            found.append((out, *torch.autograd.grad(out.float().square().sum(), [*given, bias])))
    for one, other in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(one, other, rtol=4e-2, atol=2e-2 * float(other.abs().max()))
    (compiled,) = session.compilations
    assert not compiled.failures
    assert any("grad_mask_ptr" in k.text for k in compiled.kernels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_templates_for_any_number_of_rows(dtype: torch.dtype) -> None:
    """A product of symbolic sizes: measured for those at hand, right for others."""
    torch.manual_seed(0)
    up, bias = (torch.randn(*n, device="cuda", dtype=dtype) for n in ((256, 512), (512,)))

    def layer(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(torch.addmm(bias, x, up))

    for options in ({"templates": "always"}, {"mode": "max-autotune-no-cudagraphs"}):
        engine.reset()
        with engine.record() as session:
            fast = engine.compile(layer, dynamic=True, options=options)
            for rows in (64, 130, 1000, 17):
                x = torch.randn(rows, 256, device="cuda", dtype=dtype) * 0.1
                torch.testing.assert_close(fast(x), layer(x), rtol=LIMITS[dtype], atol=LIMITS[dtype])
        (compiled,) = session.compilations
        assert not compiled.failures
        assert compiled.lowering is not None
        (choice,) = compiled.lowering.autotune_choices[:1]
        assert "always" not in options.values() or choice.chosen.startswith("template")
        assert "max-autotune-no-cudagraphs" not in options.values() or " = 64:" in choice.reason


@pytest.mark.parametrize("templates", ["always", "measured"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training(templates: str, dtype: torch.dtype) -> None:
    """Templates compute a small network's matmuls, with eager's losses and gradients.

    They compute the matmuls of both the forward and the backward.
    """
    torch.manual_seed(0)
    plain: Any = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 40)).cuda().to(dtype)
    twin = copy.deepcopy(plain)
    x = torch.randn(130, 64, device="cuda", dtype=dtype)
    with engine.record() as session:
        for model, call in ((plain, plain), (twin, engine.compile(twin, options={"templates": templates}))):
            model.loss = call(x).float().square().mean()
            model.loss.backward()
    limit = 1e-3 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(twin.loss, plain.loss, rtol=limit, atol=limit)
    for one, other in zip(twin.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=limit, atol=limit * float(other.grad.abs().max()))
    (compiled,) = session.compilations
    assert not compiled.failures
    for lowering in (compiled.lowering, compiled.backward_lowering):
        assert lowering is not None
        assert lowering.autotune_choices
        if templates == "measured":
            assert all(c.device == torch.cuda.get_device_name() for c in lowering.autotune_choices)
            assert all(c.candidates[0][1] for c in lowering.autotune_choices)


def test_what_was_measured_is_read_from_disk(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second compilation of the same product measures nothing, and takes the same way."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    args = torch.randn(2, 320, 320, device="cuda", dtype=torch.bfloat16)
    choices = []
    for _ in range(2):
        engine.reset()
        with engine.record() as session:
            engine.compile(lambda a, b: torch.relu(a @ b), options={"mode": "max-autotune"})(*args)
        assert session.compilations[0].lowering is not None
        choices += session.compilations[0].lowering.autotune_choices
    first, second = choices
    assert not first.from_disk_cache
    assert second.from_disk_cache
    assert (first.chosen, first.candidates) == (second.chosen, second.candidates)
