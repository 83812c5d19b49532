"""Well-known older models that nothing was tuned for."""

from __future__ import annotations

import torch
from torch import nn

from tests.bench.wide.attention_models import Block
from tests.bench.wide.unseen_models import CrossBlock

F = torch.nn.functional


class Residual(nn.Module):
    """Adds what its layers compute to their input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


def super_resolution(width: int = 64, blocks: int = 8, norm: bool = True) -> nn.Module:
    """SRResNet, or EDSR without batch norm: images four times as high and wide."""

    def conv(given: int, made: int, size: int = 3) -> nn.Module:
        return nn.Conv2d(given, made, size, padding=size // 2)

    def normed(layer: nn.Module) -> tuple[nn.Module, ...]:
        return (layer, nn.BatchNorm2d(width)) if norm else (layer,)

    bodies = (
        Residual(*normed(conv(width, width)), nn.PReLU() if norm else nn.ReLU(), *normed(conv(width, width)))
        for _ in range(blocks)
    )
    growing = [m for _ in range(2) for m in (conv(width, 4 * width), nn.PixelShuffle(2), nn.PReLU())]
    body = Residual(*bodies, *normed(conv(width, width)))
    return nn.Sequential(conv(3, width, 9), nn.PReLU(), body, *growing, conv(width, 3, 9))


def focus(width: int = 48) -> nn.Module:
    """A stem that moves space to depth, as in YOLOv5 and TResNet."""
    layers: list[nn.Module] = [nn.PixelUnshuffle(2), nn.Conv2d(12, width, 3, padding=1)]
    for grown in (width, 2 * width, 4 * width):
        layers += [nn.BatchNorm2d(grown), nn.LeakyReLU(0.1), Residual(nn.Conv2d(grown, grown, 3, padding=1), nn.SiLU())]
        layers += [nn.PixelUnshuffle(2), nn.Conv2d(4 * grown, 2 * grown, 1)]
    return nn.Sequential(*layers)


def style_transfer(width: int = 32, blocks: int = 4) -> nn.Module:
    """A CycleGAN-like generator: instance norms and transposed convolutions."""
    layers: list[nn.Module] = [nn.ReflectionPad2d(3), nn.Conv2d(3, width, 7), nn.InstanceNorm2d(width), nn.ReLU()]
    for grown in (width, 2 * width):
        layers += [nn.Conv2d(grown, 2 * grown, 3, 2, 1), nn.InstanceNorm2d(2 * grown), nn.ReLU()]
    deep = 4 * width
    for _ in range(blocks):
        half = (nn.ReflectionPad2d(1), nn.Conv2d(deep, deep, 3), nn.InstanceNorm2d(deep))
        other = (nn.ReflectionPad2d(1), nn.Conv2d(deep, deep, 3), nn.InstanceNorm2d(deep))
        layers.append(Residual(*half, nn.ReLU(), *other))
    for grown in (deep, deep // 2):
        layers += [nn.ConvTranspose2d(grown, grown // 2, 3, 2, 1, 1), nn.InstanceNorm2d(grown // 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh())


class Perceiver(nn.Module):
    """A few latents read a long input, and then attend to each other."""

    def __init__(self, width: int = 512, latents: int = 256, depth: int = 3) -> None:
        super().__init__()
        self.into, self.latents = nn.Linear(64, width), nn.Parameter(torch.randn(latents, width) * 0.02)
        self.readers = nn.ModuleList(CrossBlock(width, 8) for _ in range(depth))
        self.blocks = nn.ModuleList(Block(width, 8) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        memory = self.into(x)
        latents = self.latents.to(memory.dtype).expand(len(x), -1, -1)
        for reader, block in zip(self.readers, self.blocks, strict=True):
            latents = block(reader(latents, memory))
        return latents.mean(1)


class Crossed(nn.Module):
    """A deep and cross network: products of features beside a perceptron."""

    def __init__(self, fields: int = 26, rows: int = 10000, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.table, inner = nn.Embedding(fields * rows, width), fields * width + 13
        self.register_buffer("first", torch.arange(fields) * rows)
        self.cross = nn.ModuleList(nn.Linear(inner, inner) for _ in range(depth))
        self.deep = nn.Sequential(nn.Linear(inner, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU())
        self.head = nn.Linear(inner + 512, 1)

    def forward(self, dense: torch.Tensor, fields: torch.Tensor) -> torch.Tensor:
        given = torch.cat([dense, self.table(fields + self.first).flatten(1)], 1)
        x = given
        for layer in self.cross:
            x = given * layer(x) + x
        return self.head(torch.cat([x, self.deep(given)], 1))


class FourierOperator(nn.Module):
    """A Fourier neural operator: products with complex weights of the lowest frequencies."""

    def __init__(self, width: int = 32, modes: int = 12, layers: int = 4) -> None:
        super().__init__()
        self.modes = modes
        self.into, self.out = nn.Conv2d(3, width, 1), nn.Conv2d(width, 1, 1)
        self.weights = nn.ParameterList(torch.randn(2, width, width, modes, modes, 2) * 0.02 for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))

    def spectral(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        seen, n = torch.fft.rfft2(x), self.modes
        low, high = torch.view_as_complex(weights)
        made = torch.zeros_like(seen)
        made[:, :, :n, :n] = torch.einsum("bixy,ioxy->boxy", seen[:, :, :n, :n], low)
        made[:, :, -n:, :n] = torch.einsum("bixy,ioxy->boxy", seen[:, :, -n:, :n], high)
        return torch.fft.irfft2(made, x.shape[-2:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.into(x)
        for weights, local in zip(self.weights, self.local, strict=True):
            h = F.gelu(self.spectral(h, weights) + local(h))
        return self.out(h)


def conv_norm(given: int, made: int, size: int = 1, step: int = 1, rate: int = 1, groups: int = 1) -> nn.Module:
    """A convolution with batch norm."""
    conv = nn.Conv2d(given, made, size, step, size // 2 * rate, rate, groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(made))


class Shuffled(nn.Module):
    """A unit of ShuffleNet: half of the channels pass by, and the halves are interleaved."""

    def __init__(self, width: int, grows: bool) -> None:
        super().__init__()
        half, step = width // 2, 2 if grows else 1
        self.passed = (
            nn.Sequential(conv_norm(half, half, 3, 2, 1, half), conv_norm(half, half), nn.ReLU()) if grows else None
        )
        self.computed = nn.Sequential(
            conv_norm(half, half), nn.ReLU(), conv_norm(half, half, 3, step, 1, half), conv_norm(half, half), nn.ReLU()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (x, x) if self.passed is not None else x.chunk(2, 1)
        first = first if self.passed is None else self.passed(first)
        x = torch.cat([first, self.computed(second)], 1)
        batch, width, height, wide = x.shape
        return x.view(batch, 2, width // 2, height, wide).transpose(1, 2).reshape(batch, width, height, wide)


def shufflenet() -> nn.Module:
    """A network like ShuffleNet v2: depthwise convolutions and shuffles of channels."""
    layers: list[nn.Module] = [conv_norm(3, 58, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for width, depth in ((116, 4), (232, 8), (464, 4)):
        layers += [Shuffled(width, grows=n == 0) for n in range(depth)]
    return nn.Sequential(*layers, conv_norm(464, 1024), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Bottleneck(nn.Module):
    """A block of ResNet, with dilation."""

    def __init__(self, given: int, width: int, step: int = 1, rate: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(given, width),
            nn.ReLU(),
            conv_norm(width, width, 3, step, rate),
            nn.ReLU(),
            conv_norm(width, 4 * width),
        )
        self.short = conv_norm(given, 4 * width, 1, step) if step > 1 or given != 4 * width else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.short(x))


class DeepLab(nn.Module):
    """DeepLab v3: a dilated ResNet-50 and convolutions of several rates."""

    def __init__(self, classes: int = 21) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        given = 64
        for width, depth, step, rate in ((64, 3, 1, 1), (128, 4, 2, 1), (256, 6, 1, 2), (512, 3, 1, 4)):
            for n in range(depth):
                layers.append(Bottleneck(given, width, step if n == 0 else 1, rate))
                given = 4 * width
        self.body = nn.Sequential(*layers)
        self.rates = nn.ModuleList(conv_norm(given, 256, 3 if rate > 1 else 1, 1, rate) for rate in (1, 6, 12, 18))
        self.pool, self.joined = nn.Conv2d(given, 256, 1), conv_norm(5 * 256, 256)
        self.head = nn.Sequential(
            nn.ReLU(), nn.Dropout(0.5), conv_norm(256, 256, 3), nn.ReLU(), nn.Conv2d(256, classes, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        parts = [F.relu(rate(h)) for rate in self.rates]
        parts.append(F.interpolate(F.relu(self.pool(h.mean((2, 3), keepdim=True))), h.shape[2:], mode="bilinear"))
        return F.interpolate(self.head(self.joined(torch.cat(parts, 1))), x.shape[2:], mode="bilinear")
