"""Training on a GPU: compiled forward and backward give eager's losses and gradients."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

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


@pytest.mark.gpu
def test_flex_attention_trains() -> None:
    """One graph holds it; its gradients equal eager's, and the maximum has none."""
    hidden = create_block_mask(lambda b, h, i, j: (i >= j) & (i != 5), None, None, 128, 128, device="cuda")
    given = [torch.randn(2, heads, 128, 32, device="cuda") for heads in (4, 2, 2)]
    given.append(torch.randn(4, 128, 128, device="cuda"))

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def cap(score: torch.Tensor, b: Any, h: Any, i: Any, j: Any) -> torch.Tensor:
            return 5 * torch.tanh((score + bias[h, i, j]) / 5)

        wanted = AuxRequest(lse=True, max_scores=True)
        out, aux = flex_attention(q, k, v, score_mod=cap, block_mask=hidden, enable_gqa=True, return_aux=wanted)
        assert aux.lse is not None
        assert aux.max_scores is not None
        return out * 2, torch.where(aux.lse.isinf(), 0.0, aux.lse), aux.max_scores

    found = []
    for call in (f, engine.compile(f, fullgraph=True)):
        torch.compiler.reset()
        leaves = [t.clone().requires_grad_() for t in given]
        out, sums, largest = call(*leaves)
        assert not largest.requires_grad
        loss = out.sin().sum() + (sums * torch.linspace(0, 1, 128, device="cuda")).sum()
        found.append((out, sums, largest, *torch.autograd.grad(loss, leaves)))
    torch.testing.assert_close(found[1], found[0], rtol=2e-4, atol=2e-4)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Accessing the data pointer")  # torch's check of the weights' memory, on fakes
def test_a_recurrent_layer_trains() -> None:
    """Two layers in both directions: final states and gradients are eager's."""
    layer = nn.LSTM(16, 32, 2, batch_first=True, bidirectional=True, device="cuda")
    x = torch.randn(3, 7, 16, device="cuda")

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out, (h, c) = layer(x)
        return out.sin(), h * h.shape[1], c + 1

    found = []
    for call in (f, engine.compile(f, fullgraph=True)):
        out = call(x)
        found.append(
            (*out, *torch.autograd.grad(torch.cat([t.flatten() for t in out]).sum(), list(layer.parameters())))
        )
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_a_padding_mask_under_autocast() -> None:
    """A float32 mask is cast as in eager: padded keys are hidden, and no result is NaN."""
    q, k, v = torch.randn(3, 4, 12, 128, 64, device="cuda", dtype=torch.bfloat16).unbind()
    seen = torch.arange(128, device="cuda")[None] < torch.tensor([64, 85, 106, 128], device="cuda")[:, None]
    mask = (1.0 - seen[:, None, None, :].float()) * torch.finfo(torch.float32).min

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, mask)

    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        torch.testing.assert_close(engine.compile(f)(q, k, v, mask), f(q, k, v, mask), rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_gradient_of_a_value_that_fills_columns() -> None:
    """Columns named twice count once, and all columns count."""
    x, index = torch.randn(5, 5, device="cuda"), torch.tensor([2, 1, 4, 2, 2], device="cuda")

    def f(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return x.index_fill(-1, index, value)

    value = torch.tensor(2.0, device="cuda", requires_grad=True)
    grads = [torch.autograd.grad(call(x, value).sum(), value) for call in (f, engine.compile(f))]
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_train(kind: str) -> None:
    """A recurrent layer has eager's results and gradients, also in a second backward."""
    engine.reset()
    with torch.device("cuda"):
        layer, x = getattr(nn, kind)(16, 24, 2, batch_first=True, bidirectional=True), torch.randn(3, 5, 16)
    found = []
    for run in (layer, engine.compile(layer)):
        given = x.clone().requires_grad_()
        out, _ = run(given)
        leaves = [given, *layer.parameters()]
        grads = [torch.autograd.grad(out.square().sum(), leaves, retain_graph=again) for again in (True, False)]
        found.append([out, *grads[0], *grads[1]])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.InstanceNorm2d])
@pytest.mark.parametrize("trains", [True, False])
def test_float32_norms_join_their_neighbors(norm: type[nn.Module], trains: bool) -> None:
    """No kernel of torch normalizes; values, gradients and statistics are those of eager."""
    torch.manual_seed(0)
    plain = nn.Sequential(norm(16, affine=True, track_running_stats=True), nn.ReLU()).cuda().train(trains)
    twin = copy.deepcopy(plain)
    fast = engine.compile(twin)
    for size in (9, 9, 12):
        x = torch.randn(4, 16, size, 7, device="cuda", requires_grad=True)
        found = []
        for module, call in ((plain, plain), (twin, fast)):
            out = call(x)
            found.append((out, *torch.autograd.grad(out.square().sum(), [x, *module.parameters()]), *module.buffers()))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        fast(x)
        torch.cuda.synchronize()
    names = [event.key for event in seen.key_averages()]
    assert [name for name in names if "fused" in name]
    assert not [name for name in names if "bn_fw" in name or "at::native::batch_norm" in name or "cudnn::" in name]
