"""Models with convolutions, experts, scans, tables or graphs."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

F = torch.nn.functional


class Bottleneck(nn.Module):
    """A residual block of three convolutions with batch norms."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        self.steps = nn.Sequential(
            nn.Conv2d(given, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        changes = stride != 1 or given != 4 * width
        self.side = (
            nn.Sequential(nn.Conv2d(given, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
            if changes
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.steps(x) + self.side(x))


class ResNet(nn.Module):
    """ResNet-50, or a shorter one by ``depths``."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3)) -> None:
        super().__init__()
        parts: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]
        given = 64
        for stage, depth in enumerate(depths):
            for n in range(depth):
                parts.append(Bottleneck(given, 64 << stage, 2 if stage and not n else 1))
                given = 256 << stage
        self.body, self.head = nn.Sequential(*parts), nn.Linear(given, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Squeezed(nn.Module):
    """An EfficientNet-like stack: depthwise convolutions, SiLU, squeeze and excite."""

    def __init__(self, width: int = 96, layers: int = 6) -> None:
        super().__init__()
        wide = 4 * width
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.up = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU()) for _ in range(layers)
        )
        self.depth = nn.ModuleList(
            nn.Sequential(nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.SiLU())
            for _ in range(layers)
        )
        self.gate = nn.ModuleList(
            nn.Sequential(nn.Conv2d(wide, width // 4, 1), nn.SiLU(), nn.Conv2d(width // 4, wide, 1), nn.Sigmoid())
            for _ in range(layers)
        )
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width)) for _ in range(layers)
        )
        self.head = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for up, depth, gate, down in zip(self.up, self.depth, self.gate, self.down, strict=True):
            h = depth(up(x))
            x = x + down(h * gate(h.mean((2, 3), keepdim=True)))
        return self.head(x.mean((2, 3)))


class Inverted(nn.Module):
    """An inverted residual: a wide depthwise convolution between two 1x1, with a gate."""

    def __init__(self, given: int, made: int, kernel: int, stride: int, *, gated: bool) -> None:
        super().__init__()
        wide = 4 * given
        self.up = nn.Sequential(nn.Conv2d(given, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depth = nn.Sequential(
            nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
        )
        self.gate = (
            nn.Sequential(nn.Conv2d(wide, given, 1), nn.ReLU(), nn.Conv2d(given, wide, 1), nn.Hardsigmoid())
            if gated
            else None
        )
        self.down = nn.Sequential(nn.Conv2d(wide, made, 1, bias=False), nn.BatchNorm2d(made))
        self.adds = stride == 1 and given == made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.depth(self.up(x))
        h = h if self.gate is None else h * self.gate(F.adaptive_avg_pool2d(h, 1))
        h = self.down(h)
        return x + h if self.adds else h


class Mobile(nn.Module):
    """A MobileNet-like classifier: inverted residuals at falling resolutions."""

    def __init__(self, widths: tuple[int, ...] = (16, 24, 40, 80, 112)) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
        blocks: list[nn.Module] = []
        for n, (a, b) in enumerate(itertools.pairwise((16, *widths))):
            blocks += [Inverted(a, b, 3 + n % 2 * 2, 2 if n else 1, gated=n > 1), Inverted(b, b, 3, 1, gated=n > 1)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(widths[-1], 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class ConvNext(nn.Module):
    """Large depthwise convolutions and layer norms over channels last."""

    def __init__(self, width: int = 192, layers: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.depth = nn.ModuleList(nn.Conv2d(width, width, 7, 1, 3, groups=width) for _ in range(layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.scale = nn.ParameterList(torch.full((width,), 0.1) for _ in range(layers))
        self.head = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for depth, mlp, scale in zip(self.depth, self.mlps, self.scale, strict=True):
            x = x + (scale * mlp(depth(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return self.head(x.mean((2, 3)))


class Dense(nn.Module):
    """A DenseNet-like stack: each layer reads the concatenation of all before it."""

    def __init__(self, growth: int = 32, layers: int = 6, stages: int = 3) -> None:
        super().__init__()
        self.stem, given, parts = nn.Conv2d(3, 64, 7, 2, 3), 64, []
        for _ in range(stages):
            for _ in range(layers):
                parts.append(self.block(given, growth, 3))
                given += growth
            parts.append(nn.Sequential(self.block(given, given // 2, 1), nn.AvgPool2d(2)))
            given //= 2
        self.parts, self.head = nn.ModuleList(parts), nn.Linear(given, 1000)

    def block(self, given: int, made: int, kernel: int) -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(given), nn.ReLU(), nn.Conv2d(given, made, kernel, 1, kernel // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for part in self.parts:
            made = part(x)
            x = made if made.shape[-1] != x.shape[-1] else torch.cat((x, made), 1)
        return self.head(x.mean((2, 3)))


class Temporal(nn.Module):
    """Dilated convolutions over time, norms over channels, and a running mean."""

    def __init__(self, width: int = 256, layers: int = 6) -> None:
        super().__init__()
        self.into, self.head = nn.Conv1d(32, width, 1), nn.Conv1d(width, 8, 1)
        self.steps = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding="same", dilation=1 << n) for n in range(layers)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        count = torch.arange(1, x.shape[2] + 1, device=x.device)
        for step, norm in zip(self.steps, self.norms, strict=True):
            value, gate = step(norm(x)).chunk(2, 1)
            x = x + value.tanh() * gate.sigmoid()
        return self.head(x + x.float().cumsum(2).to(x.dtype) / count)


class UNet(nn.Module):
    """Down and up again, with group norms and skips."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        sizes = [width << n for n in range(depth + 1)]
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.down = nn.ModuleList(self.block(a, b) for a, b in itertools.pairwise(sizes))
        self.up = nn.ModuleList(self.block(a + b, a) for a, b in itertools.pairwise(sizes))
        self.head = nn.Conv2d(width, 3, 1)

    def block(self, given: int, made: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(given, made, 3, 1, 1),
            nn.GroupNorm(8, made),
            nn.SiLU(),
            nn.Conv2d(made, made, 3, 1, 1),
            nn.GroupNorm(8, made),
            nn.SiLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, sides = self.stem(x), []
        for down in self.down:
            sides.append(x)
            x = down(F.max_pool2d(x, 2))
        for up, side in zip(reversed(self.up), reversed(sides), strict=True):
            x = up(torch.cat((F.interpolate(x, scale_factor=2, mode="bilinear"), side), 1))
        return self.head(x)


class Detector(nn.Module):
    """A detection head: focal loss over anchors and decoded boxes."""

    def __init__(self, width: int = 128, anchors: int = 9, classes: int = 20) -> None:
        super().__init__()
        self.classes = classes
        self.body = nn.Sequential(nn.Conv2d(3, width, 7, 4, 3), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU())
        self.kinds, self.boxes = nn.Conv2d(width, anchors * classes, 3, 1, 1), nn.Conv2d(width, anchors * 4, 3, 1, 1)

    def forward(self, x: torch.Tensor, wanted: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        scores = self.kinds(h).permute(0, 2, 3, 1).reshape(len(x), -1, self.classes).float()
        boxes = self.boxes(h).permute(0, 2, 3, 1).reshape(len(x), -1, 4).float()
        p = scores.sigmoid()
        target = F.one_hot(wanted, self.classes).to(p.dtype)
        ce = F.binary_cross_entropy_with_logits(scores, target, reduction="none")
        focal = ce * (1 - (p * target + (1 - p) * (1 - target))) ** 2
        middle, size = boxes[..., :2] + places[..., :2], boxes[..., 2:].clamp(max=4).exp()
        low, high = torch.maximum(middle - size, places[..., :2] - 1), torch.minimum(middle + size, places[..., :2] + 1)
        shared = (high - low).clamp(min=0).prod(-1)
        return focal.mean() + (1 - shared / (size.prod(-1) + 4 - shared + 1e-6)).mean()


class Experts(nn.Module):
    """A mixture of experts: the two best of eight for each token."""

    def __init__(self, layers: int = 2, width: int = 512, experts: int = 8) -> None:
        super().__init__()
        self.gate = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers))
        self.up = nn.ParameterList(torch.randn(experts, width, 2 * width) * 0.02 for _ in range(layers))
        self.down = nn.ParameterList(torch.randn(experts, 2 * width, width) * 0.02 for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for gate, up, down in zip(self.gate, self.up, self.down, strict=True):
            weights, chosen = torch.softmax(gate(x).float(), -1).topk(2, -1)
            mix = torch.zeros(len(x), up.shape[0], device=x.device).scatter(
                1, chosen, weights / weights.sum(-1, keepdim=True)
            )
            hidden = F.silu(torch.einsum("nd,edh->enh", x, up))
            x = self.norm(x + torch.einsum("enh,ehd,ne->nd", hidden, down, mix.to(x.dtype)))
        return x


class StateSpace(nn.Module):
    """A gated linear recurrence by cumulative sums of logarithms."""

    def __init__(self, layers: int = 4, width: int = 512) -> None:
        super().__init__()
        self.into = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for into, out, norm in zip(self.into, self.out, self.norms, strict=True):
            value, forget, gate = into(norm(x)).float().chunk(3, -1)
            decay = F.logsigmoid(forget + 4).cumsum(1)
            state = torch.exp(decay) * (value * torch.exp(-decay.clamp(min=-30))).cumsum(1)
            x = x + out((state * F.silu(gate)).to(x.dtype))
        return x


class Recommender(nn.Module):
    """Twenty embedding bags, their products, and a small MLP."""

    def __init__(self, tables: int = 20, rows: int = 20000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.low = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = tables * (tables + 1) // 2
        self.high = nn.Sequential(
            nn.Linear(pairs + width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, numbers: torch.Tensor, bags: torch.Tensor) -> torch.Tensor:
        low = self.low(numbers)
        rows = torch.stack([low, *(table(bags[n]) for n, table in enumerate(self.tables))], 1)
        products = rows @ rows.transpose(1, 2)
        high, wide = torch.tril_indices(rows.shape[1], rows.shape[1], -1, device=rows.device)
        return self.high(torch.cat((low, products[:, high, wide]), 1))


class GraphNetwork(nn.Module):
    """Messages along edges, gathered and scattered."""

    def __init__(self, layers: int = 3, width: int = 128) -> None:
        super().__init__()
        self.edge = nn.ModuleList(nn.Sequential(nn.Linear(2 * width, width), nn.ReLU()) for _ in range(layers))
        self.node = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for edge, node in zip(self.edge, self.node, strict=True):
            told = edge(torch.cat((x[edges[0]], x[edges[1]]), -1))
            x = F.relu(node(torch.cat((x, torch.zeros_like(x).index_add(0, edges[1], told)), -1)))
        return x


class Points(nn.Module):
    """Points, each through the same MLP, then the largest of each feature."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.each = nn.Sequential(
            nn.Conv1d(3, 64, 1),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Conv1d(64, width, 1),
            nn.BatchNorm1d(width),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.each(x).amax(-1))


class Generator(nn.Module):
    """Transposed convolutions and batch norms, from noise to an image."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        sizes = [128, 8 * width, 4 * width, 2 * width, width]
        parts: list[nn.Module] = []
        for a, b in itertools.pairwise(sizes):
            parts += [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
        self.steps = nn.Sequential(*parts, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.steps(x)


class Autoencoder(nn.Module):
    """A variational autoencoder of two small MLPs, with its loss."""

    def __init__(self, width: int = 784, hidden: int = 512) -> None:
        super().__init__()
        self.code = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 64))
        self.back = nn.Sequential(nn.Linear(32, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, spread = self.code(x).chunk(2, -1)
        made = self.back(mean + torch.exp(spread / 2) * mean.detach().cos())
        return (
            F.binary_cross_entropy_with_logits(made, x.sigmoid()) - 0.5 * (1 + spread - mean**2 - spread.exp()).mean()
        )


class Mlp(nn.Module):
    """A small multilayer perceptron."""

    def __init__(self, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.steps = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.steps(x)


class Recurrent(nn.Module):
    """A language model of two LSTM layers."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.words, self.cells = nn.Embedding(10000, width), nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, 10000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.words(tokens))[0])


class Standard(nn.Module):
    """torch's own encoder layers, with a padding mask: their fast path in inference."""

    def __init__(self, width: int = 512, layers: int = 4) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor, hidden: Any = None) -> torch.Tensor:
        return self.layers(x, src_key_padding_mask=hidden)
