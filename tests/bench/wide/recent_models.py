"""Models of vision, sound, graphs and language that nothing was tuned for."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import nn

F = torch.nn.functional


class GlobalResponse(nn.Module):
    """A ConvNeXt V2 block: channels are scaled by their share of the response."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((4 * width,), 0.1))
        self.shift = nn.Parameter(torch.zeros(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.up(self.norm(self.depth(x).permute(0, 2, 3, 1))))
        response = h.norm(p=2, dim=(1, 2), keepdim=True)
        share = response / (response.mean(-1, keepdim=True) + 1e-6)
        h = self.scale * (h * share) + self.shift + h
        return x + self.down(h).permute(0, 3, 1, 2)


def convnext_v2(widths: tuple[int, ...] = (64, 128, 256), depth: int = 2) -> nn.Module:
    """Blocks with global response normalization at three resolutions."""
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4)]
    for n, width in enumerate(widths):
        layers += [nn.Conv2d(widths[n - 1], width, 2, 2)] if n else []
        layers += [GlobalResponse(width) for _ in range(depth)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 1000))


class PositionedAttention(nn.Module):
    """Attention over an image, with scores for the distances in height and width, as in SAM."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.heads, self.side = heads, side
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.high = nn.Parameter(torch.randn(2 * side - 1, width // heads) * 0.02)
        self.wide = nn.Parameter(torch.randn(2 * side - 1, width // heads) * 0.02)
        steps = torch.arange(side)
        self.register_buffer("apart", steps[:, None] - steps[None, :] + side - 1)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, side = len(x), self.side
        parts = self.qkv(x).reshape(batch, side * side, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.reshape(3, batch * self.heads, side * side, -1).unbind(0)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        square = q.reshape(-1, side, side, q.shape[-1])
        of_height = torch.einsum("bhwc,hkc->bhwk", square, self.high[self.apart])
        of_width = torch.einsum("bhwc,wkc->bhwk", square, self.wide[self.apart])
        scores = scores.view(-1, side, side, side, side) + of_height[..., None] + of_width[..., None, :]
        mixed = scores.view(-1, side * side, side * side).softmax(-1) @ v
        return self.out(mixed.view(batch, self.heads, side * side, -1).transpose(1, 2).reshape(x.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm(x))
        return x + self.down(F.gelu(self.up(self.second(x))))


class ImageEncoder(nn.Module):
    """Patches, attention with positions, and a neck that normalizes channels."""

    def __init__(self, width: int = 384, side: int = 24, layers: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, side, side, width))
        self.blocks = nn.Sequential(*(PositionedAttention(width, 6, side) for _ in range(layers)))
        self.first, self.last = nn.Conv2d(width, 256, 1, bias=False), nn.Conv2d(256, 256, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(1, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.patches(x).permute(0, 2, 3, 1) + self.places
        h = self.blocks(h).permute(0, 3, 1, 2)
        return self.last(self.norm(self.first(h)))


class CapacityExperts(nn.Module):
    """Two experts of eight for each token, each expert with room for so many tokens."""

    def __init__(self, width: int, experts: int = 8, wide: int = 1024) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * wide) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, wide, width) * wide**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.norm(x)
        count, experts = len(tokens), self.up.shape[0]
        room = count * 2 // experts * 5 // 4
        chances, chosen = self.gate(tokens).float().softmax(-1).topk(2, -1)
        chances = chances / chances.sum(-1, keepdim=True)
        hot = F.one_hot(chosen.T.reshape(-1), experts)
        rank = (hot.cumsum(0) * hot).sum(-1) - 1
        spot = torch.where(rank < room, chosen.T.reshape(-1) * room + rank, experts * room)
        sent = x.new_zeros(experts * room + 1, x.shape[1], dtype=tokens.dtype)
        sent = sent.index_copy(0, spot, tokens.repeat(2, 1))[:-1].view(experts, room, -1)
        value, gate = torch.bmm(sent, self.up.to(sent.dtype)).chunk(2, -1)
        back = torch.bmm(F.silu(gate) * value, self.down.to(value.dtype)).flatten(0, 1)
        back = torch.cat([back, back.new_zeros(1, back.shape[1])])
        weighted = back[spot].view(2, count, -1) * chances.T[..., None].to(back.dtype)
        return x + weighted.sum(0)


def segment_sums(x: torch.Tensor) -> torch.Tensor:
    """Sums of x between each two positions; minus infinity above the diagonal."""
    length = x.shape[-1]
    x = x[..., None].expand(*x.shape, length)
    below = torch.ones(length, length, dtype=torch.bool, device=x.device).tril(-1)
    sums = x.masked_fill(~below, 0).cumsum(-2)
    return sums.masked_fill(~torch.ones_like(below).tril(0), -math.inf)


class ChunkedScan(nn.Module):
    """A layer of Mamba 2: products within chunks and over chunks."""

    def __init__(self, width: int = 256, heads: int = 8, state: int = 64, chunk: int = 64) -> None:
        super().__init__()
        self.heads, self.state, self.chunk, self.inner = heads, state, chunk, 2 * width
        self.norm, self.gated = nn.LayerNorm(width), nn.LayerNorm(2 * width)
        self.into = nn.Linear(width, 2 * self.inner + 2 * state + heads)
        self.mix = nn.Conv1d(
            self.inner + 2 * state, self.inner + 2 * state, 4, padding=3, groups=self.inner + 2 * state
        )
        self.rate, self.skip = nn.Parameter(torch.zeros(heads)), nn.Parameter(torch.ones(heads))
        self.out = nn.Linear(self.inner, width)

    def scan(self, x: torch.Tensor, decay: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        x, b, c = (v.unflatten(1, (-1, self.chunk)) for v in (x, b, c))
        decay = decay.unflatten(1, (-1, self.chunk)).permute(0, 3, 1, 2)
        total = decay.cumsum(-1)
        inside = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", c, b, segment_sums(decay).exp(), x)
        left = (total[..., -1:] - total).exp()
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, left, x)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        across = segment_sums(F.pad(total[..., -1], (1, 0))).exp()
        states = torch.einsum("bhzc,bchpn->bzhpn", across, states)[:, :-1]
        return (inside + torch.einsum("bcln,bchpn,bhcl->bclhp", c, states, total.exp())).flatten(1, 2)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        length = u.shape[1]
        z, mixed, step = self.into(self.norm(u)).split((self.inner, self.inner + 2 * self.state, self.heads), -1)
        mixed = F.silu(self.mix(mixed.transpose(1, 2))[..., :length].transpose(1, 2))
        x, b, c = mixed.float().split((self.inner, self.state, self.state), -1)
        step = F.softplus(step.float())
        x = x.unflatten(-1, (self.heads, -1))
        y = self.scan(x * step[..., None], -self.rate.exp() * step, b, c) + self.skip[:, None] * x
        return u + self.out(self.gated(y.flatten(-2).to(z.dtype) * F.silu(z)))


class NormedResidual(nn.Module):
    """Two convolutions after group norm and SiLU."""

    def __init__(self, given: int, wide: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(32, given, eps=1e-6), nn.GroupNorm(32, wide, eps=1e-6)
        self.one, self.two = nn.Conv2d(given, wide, 3, padding=1), nn.Conv2d(wide, wide, 3, padding=1)
        self.short = nn.Conv2d(given, wide, 1) if given != wide else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.two(F.silu(self.second(self.one(F.silu(self.first(x))))))
        return self.short(x) + h


class CodeDecoder(nn.Module):
    """The nearest codes of a book, then residual blocks at growing resolutions, as in VQ-GAN."""

    def __init__(self, codes: int = 1024, depth: int = 64, widths: tuple[int, ...] = (256, 128, 64)) -> None:
        super().__init__()
        self.book = nn.Embedding(codes, depth)
        self.into = nn.Conv2d(depth, widths[0], 3, padding=1)
        self.middle = NormedResidual(widths[0], widths[0])
        layers: list[nn.Module] = []
        for n, width in enumerate(widths):
            layers += [NormedResidual(widths[max(n - 1, 0)], width), NormedResidual(width, width)]
            layers += [nn.Upsample(scale_factor=2.0, mode="nearest"), nn.Conv2d(width, width, 3, padding=1)]
        self.growing = nn.Sequential(*layers)
        self.norm, self.out = nn.GroupNorm(32, widths[-1]), nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        rows = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        book = self.book.weight
        away = rows.square().sum(1, keepdim=True) + book.square().sum(1) - 2 * rows @ book.T
        near = self.book(away.argmin(1)).view(len(z), z.shape[2], z.shape[3], -1).permute(0, 3, 1, 2)
        h = self.middle(self.into(z + (near - z).detach()))
        return self.out(F.silu(self.norm(self.growing(h))))


class NearPoints(nn.Module):
    """Groups of near points, and the greatest values of each, as in PointNet++."""

    def __init__(self, given: int, widths: tuple[int, ...], every: int, near: int = 32) -> None:
        super().__init__()
        self.every, self.near = every, near
        sizes = (given + 3, *widths)
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Conv2d(a, b, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in itertools.pairwise(sizes))
        )

    def forward(self, points: torch.Tensor, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        centers = points[:, :: self.every]
        chosen = torch.cdist(centers, points).topk(self.near, -1, largest=False).indices
        batch = torch.arange(len(points), device=points.device)[:, None, None]
        apart = points[batch, chosen] - centers[:, :, None]
        grouped = torch.cat([apart, features[batch, chosen]], -1).permute(0, 3, 2, 1)
        return centers, self.layers(grouped).amax(2).transpose(1, 2)


class PointGroups(nn.Module):
    """Two levels of groups of points, and a class for each cloud."""

    def __init__(self) -> None:
        super().__init__()
        self.one = NearPoints(3, (64, 64, 128), 4)
        self.two = NearPoints(128, (128, 128, 256), 4)
        self.head = nn.Linear(256, 40)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        centers, features = self.one(points, points)
        _, features = self.two(centers, features)
        return self.head(features.amax(1))


class Vocoder(nn.Module):
    """Transposed convolutions and residual stacks with weight norm, as in HiFi-GAN."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        normed = nn.utils.parametrizations.weight_norm
        self.into = normed(nn.Conv1d(80, width, 7, padding=3))
        self.ups, self.stacks = nn.ModuleList(), nn.ModuleList()
        for rate in (8, 4, 2):
            self.ups.append(normed(nn.ConvTranspose1d(width, width // 2, 2 * rate, rate, rate // 2)))
            width //= 2
            for size in (3, 7):
                convs = [
                    normed(nn.Conv1d(width, width, size, padding=(size * d - d) // 2, dilation=d)) for d in (1, 3, 5)
                ]
                self.stacks.append(nn.ModuleList(convs))
        self.out = normed(nn.Conv1d(width, 1, 7, padding=3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        for n, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, 0.1))
            total: Any = 0
            for stack in (self.stacks[2 * n], self.stacks[2 * n + 1]):
                h = x
                for conv in stack:  # type: ignore[union-attr]
                    h = h + conv(F.leaky_relu(h, 0.1))
                total = total + h
            x = total / 2
        return torch.tanh(self.out(F.leaky_relu(x)))


class Interest(nn.Module):
    """Behaviour of a user weighed by a perceptron against an item, beside bags of features."""

    def __init__(self, rows: int = 50000, width: int = 64, bags: int = 6) -> None:
        super().__init__()
        self.items = nn.Embedding(rows, width)
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows // 5, width, mode="mean") for _ in range(bags))
        self.weigh = nn.Sequential(
            nn.Linear(4 * width, 80), nn.PReLU(), nn.Linear(80, 40), nn.PReLU(), nn.Linear(40, 1)
        )
        inner = (bags + 3) * width
        self.head = nn.Sequential(nn.BatchNorm1d(inner), nn.Linear(inner, 256), nn.PReLU(), nn.Linear(256, 1))

    def forward(self, item: torch.Tensor, past: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        wanted, seen = self.items(item), self.items(past)
        beside = wanted[:, None].expand_as(seen)
        weights = self.weigh(torch.cat([beside, seen, beside - seen, beside * seen], -1)).squeeze(-1)
        weights = weights.masked_fill(past == 0, -1e9).softmax(-1)
        user = (weights[..., None] * seen).sum(1)
        bags = [bag(features[n]) for n, bag in enumerate(self.bags)]
        return self.head(torch.cat([user, wanted, user * wanted, *bags], 1))


class Molecules(nn.Module):
    """Radial functions of distances, and filters summed over edges, as in SchNet."""

    def __init__(self, width: int = 128, radial: int = 50, layers: int = 3) -> None:
        super().__init__()
        self.atoms = nn.Embedding(100, width)
        self.register_buffer("centers", torch.linspace(0, 5, radial))
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(radial, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(layers)
        )
        self.before = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.after = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(layers)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, kinds: torch.Tensor, where: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        start, end = edges
        away = (where[start] - where[end]).square().sum(-1).add(1e-6).sqrt()
        radial = torch.exp(-10 * (away[:, None] - self.centers) ** 2)
        cut = 0.5 * (torch.cos(away * math.pi / 5) + 1) * (away < 5)
        h = self.atoms(kinds)
        for filters, before, after in zip(self.filters, self.before, self.after, strict=True):
            sent = before(h)[start] * (filters(radial) * cut[:, None])
            h = h + after(torch.zeros_like(h, dtype=sent.dtype).index_add(0, end, sent))
        return self.head(h).sum()[None]


class Retention(nn.Module):
    """Products of queries and keys that decay with distance, as in RetNet."""

    def __init__(self, width: int = 512, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkvg, self.out = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, width, bias=False)
        self.groups = nn.GroupNorm(heads, width, affine=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.register_buffer("rates", torch.log1p(-torch.exp2(-5.0 - torch.arange(heads))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v, gate = self.qkvg(self.norm(x)).chunk(4, -1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        steps = torch.arange(length, device=x.device)
        apart = (steps[:, None] - steps[None]).clamp(min=0)
        decay = torch.exp(self.rates[:, None, None] * apart).tril()
        scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5) * decay
        scores = scores / scores.detach().abs().sum(-1, keepdim=True).clamp(min=1)
        mixed = (scores.to(v.dtype) @ v).transpose(1, 2).reshape(batch * length, width)
        mixed = self.groups(mixed).view(batch, length, width)
        x = x + self.out(F.silu(gate) * mixed)
        value, gate = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(F.gelu(gate) * value)


class SampledAttention(nn.Module):
    """Queries that read a few points of maps at several resolutions, as in Deformable DETR."""

    def __init__(self, width: int = 256, heads: int = 8, points: int = 4, levels: int = 3) -> None:
        super().__init__()
        self.heads, self.points, self.levels = heads, points, levels
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.shifts = nn.Linear(width, heads * levels * points * 2)
        self.weights = nn.Linear(width, heads * levels * points)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def read(self, x: torch.Tensor, where: torch.Tensor, maps: list[torch.Tensor]) -> torch.Tensor:
        batch, count, width = x.shape
        shifts = self.shifts(x).view(batch, count, self.heads, self.levels, self.points, 2)
        weights = self.weights(x).view(batch, count, self.heads, -1).softmax(-1)
        parts = []
        for n, level in enumerate(maps):
            side = level.shape[-1]
            value = self.value(level.flatten(2).transpose(1, 2)).transpose(1, 2)
            value = value.reshape(batch * self.heads, -1, side, side)
            grid = 2 * (where[:, :, None, None] + shifts[:, :, :, n] / side) - 1
            grid = grid.transpose(1, 2).flatten(0, 1)
            parts.append(F.grid_sample(value, grid.to(value.dtype), align_corners=False))
        weights = weights.transpose(1, 2).reshape(batch * self.heads, 1, count, -1)
        mixed = (torch.cat(parts, -1) * weights).sum(-1).view(batch, width, count)
        return self.out(mixed.transpose(1, 2))

    def forward(self, x: torch.Tensor, where: torch.Tensor, maps: list[torch.Tensor]) -> torch.Tensor:
        x = x + self.read(self.norm(x), where, maps)
        return x + self.down(F.relu(self.up(self.second(x))))


class SampledDecoder(nn.Module):
    """Maps at three resolutions, and queries that sample them."""

    def __init__(self, width: int = 256, layers: int = 3, count: int = 900) -> None:
        super().__init__()
        self.query, self.where = nn.Embedding(count, width), nn.Linear(width, 2)
        self.maps = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, 2, 1), nn.GroupNorm(32, width)) for _ in "123"
        )
        self.layers = nn.ModuleList(SampledAttention(width) for _ in range(layers))
        self.boxes = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = []
        for level in self.maps:
            x = level(x)
            maps.append(x)
        q = self.query.weight.expand(len(x), -1, -1)
        where = self.where(q).sigmoid()
        for layer in self.layers:
            q = layer(q, where, maps)
        return self.boxes(q).sigmoid()


class ChannelNorm(nn.Module):
    """A layer norm over the channels of images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        away = x - x.mean(1, keepdim=True)
        x = away * torch.rsqrt(away.square().mean(1, keepdim=True) + 1e-6)
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class SimpleGates(nn.Module):
    """A block of NAFNet: products of halves of the channels in place of activations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = ChannelNorm(width), ChannelNorm(width)
        self.up, self.depth = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(2 * width, 2 * width, 3, 1, 1, 1, 2 * width)
        self.attend = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1))
        self.mix, self.wide, self.down = (
            nn.Conv2d(a, b, 1) for a, b in ((width, width), (width, 2 * width), (width, width))
        )
        self.beta, self.gamma = (nn.Parameter(torch.full((1, width, 1, 1), 0.1)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.depth(self.up(self.one(x))).chunk(2, 1)
        h = first * second
        x = x + self.mix(h * self.attend(h)) * self.beta
        first, second = self.wide(self.two(x)).chunk(2, 1)
        return x + self.down(first * second) * self.gamma


class Restorer(nn.Module):
    """A U-shaped network of simple gates that restores images."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.falling = nn.ModuleList(nn.Sequential(SimpleGates(w), SimpleGates(w)) for w in (width, 2 * width))
        self.halve = nn.ModuleList(nn.Conv2d(w, 2 * w, 2, 2) for w in (width, 2 * width))
        self.middle = nn.Sequential(SimpleGates(4 * width), SimpleGates(4 * width))
        self.grow = nn.ModuleList(
            nn.Sequential(nn.Conv2d(w, 2 * w, 1, bias=False), nn.PixelShuffle(2)) for w in (4 * width, 2 * width)
        )
        self.rising = nn.ModuleList(SimpleGates(w) for w in (2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, past = self.into(x), []
        for blocks, halve in zip(self.falling, self.halve, strict=True):
            h = blocks(h)
            past.append(h)
            h = halve(h)
        h = self.middle(h)
        for double, blocks in zip(self.grow, self.rising, strict=True):
            h = blocks(double(h) + past.pop())
        return x + self.out(h)


class Modulated(nn.Module):
    """A convolution whose weights each sample scales and normalizes, as in StyleGAN 2."""

    def __init__(self, given: int, wide: int, style: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(wide, given, 3, 3) * (9 * given) ** -0.5)
        self.style, self.bias = nn.Linear(style, given), nn.Parameter(torch.zeros(wide))

    def forward(self, x: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        batch, given, height, width = x.shape
        weight = self.weight * (self.style(style) + 1).view(batch, 1, given, 1, 1).float()
        weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        y = F.conv2d(x.reshape(1, -1, height, width), weight.flatten(0, 1).to(x.dtype), padding=1, groups=batch)
        return F.leaky_relu(y.view(batch, -1, height, width) + self.bias[:, None, None], 0.2) * math.sqrt(2)


class StyledGenerator(nn.Module):
    """Modulated convolutions at growing resolutions, and an image summed over them."""

    def __init__(self, style: int = 256, widths: tuple[int, ...] = (256, 128, 64, 32)) -> None:
        super().__init__()
        self.map = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(style, style), nn.LeakyReLU(0.2))))
        self.first = nn.Parameter(torch.randn(1, widths[0], 8, 8))
        pairs = itertools.pairwise((widths[0], *widths))
        self.layers = nn.ModuleList(
            nn.ModuleList([Modulated(a, b, style), Modulated(b, b, style), nn.Conv2d(b, 3, 1)]) for a, b in pairs
        )

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        style = self.map(z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8))
        h, image = self.first.expand(len(z), -1, -1, -1), None
        for one, two, seen in self.layers:  # type: ignore[misc]
            h = F.interpolate(h, scale_factor=2.0, mode="bilinear", align_corners=False)
            h = two(one(h, style), style)
            shown = seen(h)
            image = shown if image is None else shown + F.interpolate(image, scale_factor=2.0, mode="bilinear")
        assert image is not None
        return image
