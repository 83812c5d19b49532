"""Training on a GPU: compiled forward and backward give eager's losses and gradients."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import engine
from engine.lowering.passes import pad_matmul

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Classifier(nn.Module):
    """Tokens, attention, a gated block and a loss over classes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(101, 64)
        self.norm = nn.LayerNorm(64)
        self.mixed = nn.Linear(64, 192)
        self.wide = nn.Linear(64, 256)
        self.narrow = nn.Linear(256, 64)
        self.out = nn.Linear(64, 101, bias=False)

    def forward(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        x = self.table(tokens)
        b, t, c = x.shape
        q, k, v = (y.view(b, t, 4, -1).transpose(1, 2) for y in self.mixed(self.norm(x)).split(c, 2))
        x = x + functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.narrow(functional.gelu(self.wide(x)))
        return functional.cross_entropy(self.out(x).flatten(0, 1), wanted.flatten())


@pytest.mark.parametrize("autocast", [False, True])
def test_ten_steps_are_eagers(autocast: bool) -> None:
    """Losses of ten steps agree with one compilation and no fallback."""
    torch.manual_seed(0)
    plain = Classifier().cuda()
    twin = copy.deepcopy(plain)
    tokens, wanted = torch.randint(0, 101, (2, 4, 33), device="cuda")
    with engine.record() as session:
        losses = [
            _train(plain, plain, tokens, wanted, autocast),
            _train(engine.compile(twin), twin, tokens, wanted, autocast),
        ]
    torch.testing.assert_close(losses[1], losses[0], rtol=2e-2 if autocast else 1e-4, atol=1e-3)
    assert [c.failures for c in session.compilations] == [()]
    assert not session.failures


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.NAdam, torch.optim.SGD])
def test_an_optimizers_step_is_compiled(kind: type[torch.optim.Optimizer]) -> None:
    """The step of an optimizer breaks nowhere, and moves the weights as in eager."""
    torch.manual_seed(0)
    plain = nn.Linear(8, 8).cuda()
    twin = copy.deepcopy(plain)
    with engine.record() as session:
        for model, call in ((plain, lambda run: run()), (twin, lambda run: engine.compile(run)())):
            steps = kind(model.parameters(), lr=0.1)
            for _ in range(3):
                model(torch.ones(2, 8, device="cuda")).square().sum().backward()
                call(steps.step)
                steps.zero_grad()
    torch.testing.assert_close(list(twin.parameters()), list(plain.parameters()), rtol=1e-4, atol=1e-5)
    told = [b for c in session.compilations if c.trace is not None for b in c.trace.breaks]
    assert not [(b.kind, b.context) for b in told]


def _train(
    call: nn.Module, model: nn.Module, tokens: torch.Tensor, wanted: torch.Tensor, autocast: bool
) -> torch.Tensor:
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(10):
        steps.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = call(tokens, wanted)
        loss.backward()
        steps.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("packs", [False, True])
def test_a_head_of_odd_width(monkeypatch: pytest.MonkeyPatch, mode: str, packs: bool) -> None:
    """Padded matmuls with gaps between saved rows train as in eager.

    This also holds where saved-tensor hooks pack the saved tensors.
    """
    monkeypatch.setattr(pad_matmul, "MIN_GAIN_SECONDS", -1.0)
    torch.manual_seed(0)
    head = nn.Linear(64, 101).cuda()
    wanted = torch.randint(0, 101, (48,), device="cuda")

    def loss(x: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(head(x).float(), wanted)

    fast = engine.compile(loss, options={"mode": mode})
    for _ in range(5):
        x = torch.randn(48, 64, device="cuda", requires_grad=True)
        found = []
        for call in (loss, fast):
            with (
                torch.autocast("cuda", torch.bfloat16),
                torch.autograd.graph.save_on_cpu() if packs else contextlib.nullcontext(),
            ):
                value = call(x)
            found.append((value, *torch.autograd.grad(value, [x, *head.parameters()])))
        torch.testing.assert_close(found[1], found[0], rtol=2e-2, atol=2e-3)
