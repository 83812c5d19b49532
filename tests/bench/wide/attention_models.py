"""Models of attention, small enough to compile in seconds and large enough to fill a GPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

F = torch.nn.functional


class Block(nn.Module):
    """A transformer block before normalization; the attention is one call or written out."""

    def __init__(self, width: int, heads: int, *, written_out: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.written_out, self.dropout = heads, written_out, dropout
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        if not self.written_out:
            return F.scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores if mask is None else scores + mask
        return F.dropout(torch.softmax(scores, -1), self.dropout, self.training) @ v

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = self.attend(parts[0], parts[1], parts[2], mask).transpose(1, 2).reshape(batch, length, width)
        x = x + F.dropout(self.out(mixed), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.second(x)))), self.dropout, self.training)


class Encoder(nn.Module):
    """A BERT-like encoder over padded rows: the padding is an additive mask."""

    def __init__(self, layers: int = 6, width: int = 768, heads: int = 12, **block: Any) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30522, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, **block) for _ in range(layers))
        self.head = nn.Linear(width, 30522)

    def forward(self, tokens: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        mask = (1.0 - seen[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def rotate(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of the halves of each head."""
    low, high = x.chunk(2, -1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


class DecoderBlock(nn.Module):
    """A Llama-like block: fewer key heads, rotary positions, a gated MLP, RMS norms."""

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.head = heads, key_heads, width // heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * key_heads * self.head, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Any, angle: Any, past: Any = None, mask: Any = None) -> Any:
        batch, length, _ = x.shape
        h = self.first(x)
        q = self.q(h).view(batch, length, self.heads, self.head).transpose(1, 2)
        k, v = self.kv(h).view(batch, length, 2, self.key_heads, self.head).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, angle), rotate(k, angle)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=past is None and mask is None, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """A Llama-like decoder; with ``past`` it decodes after a cache of keys and values."""

    def __init__(self, layers: int = 6, width: int = 1024, heads: int = 16, key_heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(32000, width)
        self.blocks = nn.ModuleList(DecoderBlock(width, heads, key_heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 32000, bias=False)
        self.half = width // heads // 2

    def forward(self, tokens: torch.Tensor, past: Any = None, mask: Any = None) -> torch.Tensor:
        start = 0 if past is None else past.shape[4]
        place = torch.arange(start, start + tokens.shape[1], device=tokens.device, dtype=torch.float32)
        angle = place[:, None] / 10000 ** (torch.arange(self.half, device=tokens.device) / self.half)
        x = self.words(tokens)
        for n, block in enumerate(self.blocks):
            x = block(x, angle, None if past is None else past[n % past.shape[0]], mask)
        return self.head(self.norm(x))


class RelativeAttention(nn.Module):
    """Attention with a learned bias by relative position, as T5 has it, written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            m(t).view(batch, -1, self.heads, width // self.heads).transpose(1, 2)
            for m, t in ((self.q, x), (self.k, y), (self.v, y))
        )
        scores = q @ k.transpose(-2, -1)
        weights = torch.softmax((scores if bias is None else scores + bias).float(), -1).to(x.dtype)
        return self.o((weights @ v).transpose(1, 2).reshape(batch, length, width))


class EncoderDecoder(nn.Module):
    """An encoder and a decoder with relative position bias and cross-attention."""

    def __init__(self, layers: int = 4, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.words = heads, nn.Embedding(32128, width)
        self.bias = nn.ModuleList(nn.Embedding(32, heads) for _ in range(2))
        make = lambda: nn.ModuleList(RelativeAttention(width, heads) for _ in range(layers))  # noqa: E731
        self.own, self.causal, self.cross = make(), make(), make()
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
            for _ in range(2 * layers)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3 * layers))
        self.head = nn.Linear(width, 32128)

    def position_bias(self, table: nn.Embedding, length: int, device: Any) -> torch.Tensor:
        place = torch.arange(length, device=device)
        apart = (place[None, :] - place[:, None]).clamp(-15, 16) + 15
        return table(apart).permute(2, 0, 1)[None]

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x, y, layers = self.words(source), self.words(target), len(self.own)
        bias = self.position_bias(self.bias[0], x.shape[1], x.device)
        for n in range(layers):
            h = self.norms[n](x)
            x = x + self.own[n](h, h, bias)
            x = x + self.mlps[n](x)
        hidden = torch.full((y.shape[1], y.shape[1]), float("-inf"), device=y.device).triu(1)
        bias = self.position_bias(self.bias[1], y.shape[1], y.device) + hidden
        for n in range(layers):
            h = self.norms[layers + n](y)
            y = y + self.causal[n](h, h, bias)
            y = y + self.cross[n](self.norms[2 * layers + n](y), x, None)
            y = y + self.mlps[layers + n](y)
        return self.head(y)


class VisionTransformer(nn.Module):
    """Patches, a class token, and blocks of attention."""

    def __init__(self, layers: int = 6, width: int = 768, heads: int = 12, image: int = 224) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (image // 16) ** 2 + 1, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1).to(x.dtype), x), 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Windowed(nn.Module):
    """Attention in shifted windows, as Swin has it."""

    def __init__(self, layers: int = 4, width: int = 256, heads: int = 8, window: int = 8) -> None:
        super().__init__()
        self.window, self.patches = window, nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x, w = self.patches(images).permute(0, 2, 3, 1), self.window
        batch, high, wide, width = x.shape
        for n, block in enumerate(self.blocks):
            x = torch.roll(x, (-w // 2, -w // 2), (1, 2)) if n % 2 else x
            parts = x.reshape(batch, high // w, w, wide // w, w, width).transpose(2, 3).reshape(-1, w * w, width)
            x = block(parts).view(batch, high // w, wide // w, w, w, width).transpose(2, 3).reshape(x.shape)
            x = torch.roll(x, (w // 2, w // 2), (1, 2)) if n % 2 else x
        return self.head(x.mean((1, 2)))


class BiasedWindow(nn.Module):
    """Attention in a window, with a learned position bias; shifted ones have a mask."""

    def __init__(self, width: int, heads: int, window: int, *, shifted: bool) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, window // 2 if shifted else 0
        self.qkv, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.02)
        place = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = (place[:, :, None] - place[:, None, :]) + window - 1
        self.register_buffer("apart", apart[0] * (2 * window - 1) + apart[1])

    def mask(self, high: int, wide: int, x: torch.Tensor) -> torch.Tensor:
        w, s = self.window, self.shift
        rows = torch.arange(high, device=x.device)
        part = ((rows >= high - w).long() + (rows >= high - s).long())[:, None] * 3
        columns = torch.arange(wide, device=x.device)
        part = part + (columns >= wide - w).long() + (columns >= wide - s).long()
        part = part.view(high // w, w, wide // w, w).transpose(1, 2).reshape(-1, w * w)
        return torch.where(part[:, None, :] == part[:, :, None], 0.0, -100.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, high, wide, width = x.shape
        w, s = self.window, self.shift
        h = torch.roll(self.norm(x), (-s, -s), (1, 2)) if s else self.norm(x)
        h = h.view(batch, high // w, w, wide // w, w, width).transpose(2, 3).reshape(-1, w * w, width)
        q, k, v = self.qkv(h).view(-1, w * w, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.apart.view(-1)].view(w * w, w * w, -1).permute(2, 0, 1)[None]
        if s:
            mask = self.mask(high, wide, x)
            bias = (bias + mask[:, None]).repeat(batch, 1, 1, 1)
        h = F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype))
        h = self.out(h.transpose(1, 2).reshape(-1, w * w, width))
        h = h.view(batch, high // w, wide // w, w, w, width).transpose(2, 3).reshape(batch, high, wide, width)
        return x + (torch.roll(h, (s, s), (1, 2)) if s else h)


class BiasedWindows(nn.Module):
    """A Swin-like stack: windows with a bias, every other one shifted, and MLPs between them."""

    def __init__(self, layers: int = 4, width: int = 128, heads: int = 4, window: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.windows = nn.ModuleList(BiasedWindow(width, heads, window, shifted=n % 2 == 1) for n in range(layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).permute(0, 2, 3, 1)
        for window, mlp in zip(self.windows, self.mlps, strict=True):
            x = window(x)
            x = x + mlp(x)
        return self.head(x.mean((1, 2)))


class Diffusion(nn.Module):
    """A diffusion transformer: each block is modulated by a condition."""

    def __init__(self, layers: int = 6, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.changes = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        place = time[:, None] * torch.exp(torch.arange(128, device=x.device) * -0.07)
        told = self.time(torch.cat((place.sin(), place.cos()), -1).to(x.dtype))
        for block, change in zip(self.blocks, self.changes, strict=True):
            shift, scale, gate = change(F.silu(told))[:, None].chunk(3, -1)
            x = x + gate * block(F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift)
        return x


class Speech(nn.Module):
    """A Conformer-like encoder: gated depthwise convolution beside attention."""

    def __init__(self, layers: int = 4, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(80, width, 3, 2, 1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU()
        )
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.depths = nn.ModuleList(nn.Conv1d(width, width, 31, 1, 15, groups=width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.head = nn.Linear(width, 256)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        x = self.front(sound).transpose(1, 2)
        for block, gate, depth, norm in zip(self.blocks, self.gates, self.depths, self.norms, strict=True):
            x = block(x)
            x = x + F.silu(norm(depth(F.glu(gate(x.transpose(1, 2)), 1)))).transpose(1, 2)
        return self.head(x)
