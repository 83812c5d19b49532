"""Models of images, text, sound, video and tables that were added after all tuning."""

from __future__ import annotations

import math

import torch
from torch import nn

F = torch.nn.functional


class ModulatedBlock(nn.Module):
    """A block of a diffusion transformer: a condition scales and shifts each norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.condition = nn.Linear(width, 6 * width)
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(F.silu(condition))[:, None].chunk(6, -1)
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + gate1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        h = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(F.gelu(self.up(h), approximate="tanh"))


class DiffusionTransformer(nn.Module):
    """Patches of a latent image and a step of the diffusion; returns an image."""

    def __init__(self, width: int = 512, depth: int = 6, channels: int = 4, patch: int = 2) -> None:
        super().__init__()
        self.patch, self.width = patch, width
        self.embed = nn.Conv2d(channels, width, patch, patch)
        self.position = nn.Parameter(torch.randn(1, 256, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(ModulatedBlock(width, 8) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, patch * patch * channels)

    def forward(self, image: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(-math.log(10000) * torch.arange(128, device=step.device) / 128)
        angles = step[:, None] * frequencies
        condition = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        x = self.embed(image).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x, condition)
        side = image.shape[-1] // self.patch
        x = self.head(self.norm(x)).unflatten(1, (side, side)).unflatten(-1, (self.patch, self.patch, -1))
        return x.permute(0, 5, 1, 3, 2, 4).reshape(image.shape)


class CappedBlock(nn.Module):
    """Decoder block: norms before and after, capped scores, a window."""

    def __init__(self, width: int, heads: int, window: int | None) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(4))
        self.query_norm, self.key_norm = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = self.query_norm(q) @ self.key_norm(k).transpose(-2, -1) * q.shape[-1] ** -0.5
        scores = 50 * torch.tanh(scores / 50)
        at = torch.arange(length, device=x.device)
        apart = at[:, None] - at[None]
        seen = apart >= 0 if self.window is None else (apart >= 0) & (apart < self.window)
        shares = scores.masked_fill(~seen, float("-inf")).float().softmax(-1).to(v.dtype)
        x = x + self.norms[1](self.out((shares @ v).transpose(1, 2).flatten(2)))
        h = self.norms[2](x)
        return x + self.norms[3](self.down(F.gelu(self.gate(h), approximate="tanh") * self.up(h)))


def capped_decoder(width: int = 512, depth: int = 4) -> nn.Module:
    """Blocks that see a window and blocks that see all, in turn."""
    return nn.Sequential(*(CappedBlock(width, 8, 128 if n % 2 else None) for n in range(depth)))


class Spline(nn.Module):
    """A Kolmogorov-Arnold layer: each edge is a sum of cubic B-splines of its input."""

    def __init__(self, width: int, out: int, intervals: int = 8, order: int = 3) -> None:
        super().__init__()
        self.order = order
        self.base = nn.Linear(width, out)
        self.weight = nn.Parameter(torch.randn(out, width, intervals + order) * 0.1)
        self.register_buffer("knots", torch.arange(-order, intervals + order + 1) * (2 / intervals) - 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at, knots = x[..., None], self.knots
        bases = ((at >= knots[:-1]) & (at < knots[1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (at - knots[: -k - 1]) / (knots[k:-1] - knots[: -k - 1]) * bases[..., :-1]
            right = (knots[k + 1 :] - at) / (knots[k + 1 :] - knots[1:-k]) * bases[..., 1:]
            bases = left + right
        return self.base(F.silu(x)) + bases.flatten(-2) @ self.weight.flatten(1).T


class Snake(nn.Module):
    """``x + sin(a x)^2 / a`` by channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.sin(self.alpha * x) ** 2 / (self.alpha + 1e-9)


class DilatedUnit(nn.Module):
    """A residual unit of a sound codec."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        wide = nn.Conv1d(channels, channels, 7, dilation=dilation, padding=3 * dilation)
        parts = (Snake(channels), wide, Snake(channels), nn.Conv1d(channels, channels, 1))
        self.parts = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.parts(x)


def sound_codec(channels: int = 32) -> nn.Module:
    """Encoder and decoder of sound, four times shorter in between."""
    layers: list[nn.Module] = [nn.Conv1d(1, channels, 7, padding=3)]
    for n in range(2):
        wide = channels * 2**n
        layers += [*(DilatedUnit(wide, d) for d in (1, 3, 9)), Snake(wide), nn.Conv1d(wide, 2 * wide, 4, 2, 1)]
    for n in (2, 1):
        wide = channels * 2**n
        layers += [Snake(wide), nn.ConvTranspose1d(wide, wide // 2, 4, 2, 1)]
        layers += [DilatedUnit(wide // 2, d) for d in (1, 3, 9)]
    return nn.Sequential(*layers, Snake(channels), nn.Conv1d(channels, 1, 7, padding=3), nn.Tanh())


class SplitConvolution(nn.Module):
    """Convolution over space, then over time, with a residual, as in R(2+1)D."""

    def __init__(self, width: int, out: int, step: int) -> None:
        super().__init__()
        self.space = nn.Conv3d(width, out, (1, 3, 3), (1, step, step), (0, 1, 1), bias=False)
        self.time = nn.Conv3d(out, out, (3, 1, 1), 1, (1, 0, 0), bias=False)
        self.norm1, self.norm2 = nn.BatchNorm3d(out), nn.BatchNorm3d(out)
        self.skip = nn.Conv3d(width, out, 1, (1, step, step), bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.skip(x) + self.norm2(self.time(F.relu(self.norm1(self.space(x))))))


def video_network() -> nn.Module:
    """A classifier of short clips."""
    sizes = ((3, 32, 2), (32, 64, 2), (64, 128, 2))
    return nn.Sequential(
        *(SplitConvolution(*s) for s in sizes), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(128, 400)
    )


class TableTransformer(nn.Module):
    """A token for each column of a table: numbers scaled by a vector, categories embedded."""

    def __init__(self, numbers: int = 12, categories: int = 6, width: int = 64) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.randn(numbers, width) * 0.1) for _ in range(2))
        self.embed = nn.Embedding(categories * 100, width)
        self.register_buffer("offsets", torch.arange(categories) * 100)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        tokens = numbers[..., None] * self.scale + self.shift
        x = torch.cat([self.first.expand(len(numbers), -1, -1), tokens, self.embed(categories + self.offsets)], 1)
        return self.head(self.layers(x)[:, 0])
