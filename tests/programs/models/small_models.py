"""Small whole models, written as people write them."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs import call, program


@program(lambda: tuple(torch.randn(2, 3, 6, 4) for _ in range(3)))
def attention_by_hand(q, k, v):
    """Scaled dot-product attention written out, causal."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril()
    scores = scores.masked_fill(~mask, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


@program(lambda: tuple(torch.randn(2, 3, 6, 4) for _ in range(3)))
def attention_by_function(q, k, v):
    """scaled_dot_product_attention, plain, causal and with a mask."""
    mask = torch.ones(6, 6).tril().bool()
    return (
        F.scaled_dot_product_attention(q, k, v),
        F.scaled_dot_product_attention(q, k, v, is_causal=True),
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
    )


@dataclass
class GptConfig:
    """Sizes of the small GPT."""

    vocabulary: int = 37
    context: int = 16
    width: int = 16
    heads: int = 2
    blocks: int = 2


class Attention(nn.Module):
    """Causal self-attention with one projection for queries, keys and values."""

    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and MLP with residuals."""

    def __init__(self, config):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


@program(
    lambda: (torch.randint(0, 37, (2, 8)),),
    lambda: (torch.randint(0, 37, (3, 8)),),
    lambda: (torch.randint(0, 37, (3, 12)),),
    lambda: call(torch.randint(0, 37, (3, 12)), targets=torch.randint(0, 37, (3, 12))),
    tolerance=1e-4,
)
class Gpt(nn.Module):
    """A GPT with two blocks, with and without targets, for several batch sizes and lengths."""

    def __init__(self):
        super().__init__()
        config = GptConfig()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.blocks)])
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, ids, targets=None):
        _, length = ids.shape
        if length > self.config.context:
            raise ValueError(f"{length} tokens are more than {self.config.context}")
        x = self.tokens(ids) + self.positions(torch.arange(length, device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


@program(lambda: (torch.randn(2, 6, 8),), tolerance=1e-4)
class Rotary(nn.Module):
    """Rotary positions, RMSNorm and a gated MLP, as Llama has them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.gate = nn.Linear(8, 16, bias=False)
        self.up = nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)
        self.register_buffer("frequencies", 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8)), persistent=False)

    def rotate(self, x):
        angles = torch.outer(torch.arange(x.shape[1]).float(), self.frequencies)
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * cos + turned * sin

    def norm(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(dtype)

    def forward(self, x):
        x = x + self.rotate(self.norm(x))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Residual(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + x)


@program(lambda: (torch.randn(2, 3, 8, 8),), tolerance=1e-3)
class ResNet(nn.Module):
    """A small residual network in training."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.Sequential(Residual(4), Residual(4))
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = self.layers(self.stem(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


@program(lambda: (torch.randn(3, 6), torch.randn(3, 4)), lambda: (torch.randn(3, 6), None))
class Mixture(nn.Module):
    """A dense mixture of experts with an optional second input and a dict as result."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(6, 4) for _ in range(3)])
        self.router = nn.Linear(6, 3)

    def forward(self, x, bias=None):
        weights = self.router(x).softmax(-1)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        y = (weights.unsqueeze(-1) * outputs).sum(1)
        if bias is not None:
            y = y + bias
        return {"output": y, "weights": weights, "best": weights.argmax(-1)}


@program(lambda: (torch.randn(4, 6),))
class Autoencoder(nn.Module):
    """A variational autoencoder with the reparameterization trick."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 4)
        self.decoder = nn.Linear(2, 6)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        y = self.decoder(z)
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()
        return y, F.mse_loss(y, x) + divergence


@program(lambda: (torch.randn(2, 5, 8),), tolerance=1e-4)
class Encoder(nn.Module):
    """torch's own TransformerEncoderLayer, without its fused path."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x):
        return self.layer(x)


@program(lambda: (torch.randn(2, 6, 4, 8),), tolerance=1e-5)
class ComplexRotary(nn.Module):
    """Rotary embedding by complex numbers, kept in a buffer, as the first Llama has it."""

    def __init__(self):
        super().__init__()
        rates = 1.0 / (10000.0 ** (torch.arange(0, 8, 2).float() / 8))
        angles = torch.outer(torch.arange(16).float(), rates)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turns = self.turns[: x.shape[1]].view(1, x.shape[1], 1, -1)
        return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


@program(lambda: (torch.randn(3, 16),), tolerance=1e-5)
class SpectralFilter(nn.Module):
    """A filter in the frequency domain, as Fourier neural operators learn it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(9, 2) * 0.1)

    def forward(self, x):
        spectrum = torch.fft.rfft(x, dim=-1, norm="ortho")
        return torch.fft.irfft(spectrum * torch.view_as_complex(self.weight), n=x.shape[-1], norm="ortho") + x


def _masked(batch, length):
    mask = nn.Transformer.generate_square_subsequent_mask(length)
    return lambda: (torch.randn(batch, length, 8, requires_grad=True), mask, torch.arange(length) >= length - 1)


@program(_masked(2, 5), lambda: (torch.randn(2, 5, 8), torch.randn(5, 5), torch.zeros(5) > 0), _masked(3, 6))
class EncoderWithMask(nn.Module):
    """Attention whose masks are arguments: tensors decide if it is causal."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, mask, padding):
        x = self.encoder(x, mask)
        is_causal, mask = bool((mask[0, 1:] < 0).all()), mask != 0
        y, _ = self.attention(x, x, x, need_weights=False, attn_mask=mask, is_causal=is_causal)
        return self.attention(x, y, y, padding.expand(x.shape[:2]), attn_mask=mask, is_causal=is_causal)
