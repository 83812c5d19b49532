"""On a GPU: products by templates give eager's values and gradients, and are chosen by measurement."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import engine
from engine.ir.tuning import Templates
from engine.kernels.targets import default_target
from engine.kernels.triton import emit
from engine.lowering.driver import lower
from engine.runtime.program import executable
from tests.engine.lowering.products import PRODUCTS
from tests.engine.lowering.tracing import flat, trace

pytestmark = pytest.mark.gpu
LIMITS = {torch.float16: 2e-2, torch.bfloat16: 6e-2, torch.float32: 1e-3}


@pytest.mark.parametrize("name", list(PRODUCTS))
def test_equals_eager(name: str) -> None:
    """Every result of the case agrees with eager on the same device."""
    case = PRODUCTS[name]
    args = tuple(x.cuda() for x in case.args())
    graph = trace(case.function, args)
    program = lower(graph, default_target(), emit, chooser=Templates())
    assert any("tl.dot(" in k.text for k in program.kernels)
    found, wanted = executable(program)(*args), flat(case.function)(*args)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=LIMITS[other.dtype], atol=LIMITS[other.dtype])
        assert one.stride() == other.stride()


@pytest.mark.parametrize("templates", ["always", "measured"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training(templates: str, dtype: torch.dtype) -> None:
    """Losses and gradients of a small network, whose products templates compute in both directions."""
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
    for lowering in (compiled.lowering, compiled.backward):
        assert lowering is not None
        assert lowering.choices
        if templates == "measured":
            assert all(c.device == torch.cuda.get_device_name() for c in lowering.choices)
            assert all(c.ways[0][1] for c in lowering.choices)


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
        choices += session.compilations[0].lowering.choices
    first, second = choices
    assert not first.is_known
    assert second.is_known
    assert (first.taken, first.ways) == (second.taken, second.ways)
