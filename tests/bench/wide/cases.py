"""The cases of the wide bench: models, steps over many parameters, and kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.bench.wide import attention_models as attention
from tests.bench.wide import kernel_cases
from tests.bench.wide import late_models as late
from tests.bench.wide import older_models as older
from tests.bench.wide import other_models as other
from tests.bench.wide import recent_models as recent
from tests.bench.wide import unseen_models as unseen

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@dataclass(frozen=True)
class Case:
    """A subject: ``make`` returns a module or function, ``arguments`` those of each call.

    ``trains``: a step is the forward, a loss and the backward. ``dtype``: the floating-point type of everything;
    ``autocast`` keeps float32 parameters instead and computes in that type.
    """

    make: Callable[[], Any]
    arguments: Callable[[], Sequence[tuple[Any, ...]]]
    trains: bool = True
    dtype: torch.dtype = F32
    autocast: bool = True
    channels_last: bool = False


def floats(*shape: int) -> torch.Tensor:
    """Normally distributed numbers."""
    return torch.randn(shape)


def tokens(below: int, *shape: int) -> torch.Tensor:
    """Random token numbers."""
    return torch.randint(0, below, shape)


def padded(batch: int, length: int) -> torch.Tensor:
    """Rows of different lengths: 1 where a token is seen."""
    lengths = torch.linspace(length // 2, length, batch).long()
    return (torch.arange(length)[None] < lengths[:, None]).long()


def edges(nodes: int, count: int) -> torch.Tensor:
    """Random edges between nodes."""
    return torch.randint(0, nodes, (2, count))


def one(*makes: Callable[[], Any]) -> Callable[[], list[tuple[Any, ...]]]:
    """Arguments that stay the same in all calls."""
    return lambda: [tuple(make() for make in makes)]


def _bert(batch: int, length: int) -> Callable[[], list[tuple[Any, ...]]]:
    return one(lambda: tokens(30522, batch, length), lambda: padded(batch, length))


MODELS: dict[str, Case] = {
    "bert": Case(attention.Encoder, _bert(16, 256)),
    "bert written out": Case(lambda: attention.Encoder(written_out=True), _bert(16, 256)),
    "bert dropout": Case(lambda: attention.Encoder(dropout=0.1), _bert(16, 256)),
    "bert infer": Case(attention.Encoder, _bert(4, 128), trains=False),
    "bert lengths": Case(
        lambda: attention.Encoder(3),
        lambda: [(tokens(30522, 8, n), padded(8, n)) for n in (64, 96, 128, 200)],
        trains=False,
    ),
    "llama": Case(attention.Decoder, one(lambda: tokens(32000, 4, 1024))),
    "llama prefill": Case(
        attention.Decoder, one(lambda: tokens(32000, 2, 1024)), trains=False, dtype=BF16, autocast=False
    ),
    "llama one token": Case(
        attention.Decoder,
        one(
            lambda: tokens(32000, 8, 1),
            lambda: floats(6, 2, 8, 4, 512, 64),
        ),
        trains=False,
        dtype=BF16,
        autocast=False,
    ),
    "encoder-decoder": Case(
        attention.EncoderDecoder, one(lambda: tokens(32128, 8, 256), lambda: tokens(32128, 8, 256))
    ),
    "vision transformer": Case(attention.VisionTransformer, one(lambda: floats(32, 3, 224, 224))),
    "vision transformer infer": Case(attention.VisionTransformer, one(lambda: floats(8, 3, 224, 224)), trains=False),
    "windowed": Case(attention.Windowed, one(lambda: floats(16, 3, 256, 256))),
    "windowed with bias": Case(attention.BiasedWindows, one(lambda: floats(16, 3, 256, 256))),
    "diffusion": Case(attention.Diffusion, one(lambda: floats(16, 256, 512), lambda: torch.rand(16))),
    "speech": Case(attention.Speech, one(lambda: floats(16, 80, 1024))),
    "fast path": Case(other.Standard, one(lambda: floats(16, 256, 512), lambda: padded(16, 256) == 0), trains=False),
    "standard layers": Case(other.Standard, one(lambda: floats(16, 256, 512), lambda: padded(16, 256) == 0)),
    "resnet": Case(other.ResNet, one(lambda: floats(64, 3, 224, 224)), channels_last=True),
    "resnet contiguous": Case(lambda: other.ResNet((2, 2, 2, 2)), one(lambda: floats(32, 3, 224, 224)), autocast=False),
    "resnet infer": Case(
        other.ResNet, one(lambda: floats(16, 3, 224, 224)), trains=False, dtype=BF16, autocast=False, channels_last=True
    ),
    "squeezed": Case(other.Squeezed, one(lambda: floats(32, 3, 128, 128)), channels_last=True),
    "mobile": Case(other.Mobile, one(lambda: floats(64, 3, 160, 160)), channels_last=True),
    "dense": Case(other.Dense, one(lambda: floats(32, 3, 160, 160)), channels_last=True),
    "temporal": Case(other.Temporal, one(lambda: floats(32, 32, 1024))),
    "convnext": Case(other.ConvNext, one(lambda: floats(32, 3, 224, 224)), channels_last=True),
    "unet": Case(other.UNet, one(lambda: floats(8, 3, 128, 128))),
    "unet infer": Case(
        other.UNet, one(lambda: floats(4, 3, 128, 128)), trains=False, dtype=F16, autocast=False, channels_last=True
    ),
    "detector": Case(
        other.Detector, one(lambda: floats(8, 3, 256, 256), lambda: tokens(20, 8, 9216), lambda: floats(8, 9216, 4))
    ),
    "experts": Case(other.Experts, one(lambda: floats(4096, 512))),
    "state space": Case(other.StateSpace, one(lambda: floats(8, 1024, 512))),
    "recommender": Case(
        other.Recommender, one(lambda: floats(2048, 13), lambda: tokens(20000, 20, 2048, 10)), autocast=False
    ),
    "graph network": Case(
        other.GraphNetwork, one(lambda: floats(20000, 128), lambda: edges(20000, 100000)), autocast=False
    ),
    "points": Case(other.Points, one(lambda: floats(32, 3, 4096)), autocast=False),
    "generator": Case(other.Generator, one(lambda: floats(64, 128, 4, 4)), channels_last=True),
    "autoencoder": Case(other.Autoencoder, one(lambda: floats(512, 784)), autocast=False),
    "mlp": Case(other.Mlp, one(lambda: floats(256, 256)), autocast=False),
    "lstm": Case(other.Recurrent, one(lambda: tokens(10000, 16, 64)), autocast=False),
}
UNSEEN: dict[str, Case] = {
    "transcriber": Case(
        unseen.Transcriber,
        one(lambda: floats(4, 80, 2000), lambda: tokens(20000, 4, 128)),
        trains=False,
        dtype=BF16,
        autocast=False,
    ),
    "transcriber train": Case(unseen.Transcriber, one(lambda: floats(8, 80, 1000), lambda: tokens(20000, 8, 128))),
    "selective scan": Case(unseen.Selective, one(lambda: floats(4, 1024, 256))),
    "graph attention": Case(
        unseen.GraphAttention, one(lambda: floats(20000, 128), lambda: edges(20000, 100000)), autocast=False
    ),
    "latent diffusion": Case(
        unseen.Latent,
        one(lambda: floats(8, 4, 32, 32), lambda: torch.rand(8), lambda: floats(8, 77, 512)),
        trains=False,
        dtype=BF16,
        autocast=False,
        channels_last=True,
    ),
    "latent diffusion train": Case(
        unseen.Latent, one(lambda: floats(16, 4, 32, 32), lambda: torch.rand(16), lambda: floats(16, 77, 512))
    ),
    "tagger": Case(unseen.Tagger, one(lambda: tokens(10000, 32, 48), lambda: tokens(20, 32, 48)), autocast=False),
    "switch": Case(
        lambda: nn.Sequential(*(unseen.SwitchBlock(512, 8) for _ in range(3))), one(lambda: floats(4096, 512))
    ),
    "static prefill": Case(
        unseen.StaticDecoder,
        one(lambda: tokens(32000, 4, 512), lambda: torch.arange(512)),
        trains=False,
        dtype=BF16,
        autocast=False,
    ),
    "static decode": Case(
        unseen.StaticDecoder,
        lambda: [(tokens(32000, 4, 1), torch.tensor([512 + n])) for n in range(8)],
        trains=False,
        dtype=BF16,
        autocast=False,
    ),
    "static decode apart": Case(
        lambda: unseen.StaticDecoder(apart=True),
        lambda: [(tokens(32000, 4, 1), torch.tensor([512 + n])) for n in range(8)],
        trains=False,
        dtype=BF16,
        autocast=False,
    ),
    "mixer": Case(unseen.Mixer, one(lambda: floats(32, 3, 224, 224))),
    "radiance": Case(unseen.Radiance, one(lambda: floats(2048, 3), lambda: floats(2048, 3)), autocast=False),
    "segmenter": Case(
        unseen.Segmenter, one(lambda: floats(16, 3, 256, 256), lambda: tokens(21, 16, 256, 256)), channels_last=True
    ),
    "two towers": Case(unseen.TwoTowers, one(lambda: tokens(50000, 2048, 8), lambda: tokens(50000, 2048, 8))),
    "conformer": Case(
        unseen.Conformer,
        one(lambda: floats(8, 400, 256), lambda: torch.arange(400)[None] >= torch.arange(240, 400, 20)[:, None]),
    ),
    "t5": Case(lambda: unseen.Pretrained("T5"), one(lambda: tokens(32128, 8, 256), lambda: tokens(32128, 8, 128))),
    "qwen3 infer": Case(
        lambda: unseen.Pretrained("Qwen3"), one(lambda: tokens(32000, 4, 256)), trains=False, dtype=BF16, autocast=False
    ),
    "gpt2": Case(lambda: unseen.Pretrained("GPT2"), one(lambda: tokens(50257, 8, 256))),
}


OLDER: dict[str, Case] = {
    "super resolution": Case(older.super_resolution, one(lambda: floats(16, 3, 48, 48)), channels_last=True),
    "super resolution contiguous": Case(older.super_resolution, one(lambda: floats(16, 3, 48, 48)), autocast=False),
    "super resolution without norm": Case(
        lambda: older.super_resolution(norm=False), one(lambda: floats(16, 3, 48, 48)), autocast=False
    ),
    "focus": Case(older.focus, one(lambda: floats(16, 3, 256, 256)), channels_last=True),
    "style transfer": Case(older.style_transfer, one(lambda: floats(4, 3, 256, 256)), channels_last=True),
    "perceiver": Case(older.Perceiver, one(lambda: floats(8, 4096, 64))),
    "shufflenet": Case(older.shufflenet, one(lambda: floats(64, 3, 224, 224)), channels_last=True),
    "deeplab": Case(older.DeepLab, one(lambda: floats(8, 3, 256, 256)), channels_last=True),
    "deep and cross": Case(
        older.Crossed, one(lambda: floats(4096, 13), lambda: tokens(10000, 4096, 26)), autocast=False
    ),
    "fourier operator": Case(older.FourierOperator, one(lambda: floats(16, 3, 128, 128)), autocast=False),
}


RECENT_STEPS: dict[str, Case] = {
    "convnext v2": Case(recent.convnext_v2, one(lambda: floats(32, 3, 224, 224)), channels_last=True),
    "image encoder": Case(recent.ImageEncoder, one(lambda: floats(4, 3, 384, 384))),
    "experts with capacity": Case(
        lambda: nn.Sequential(*(recent.CapacityExperts(512) for _ in range(2))), one(lambda: floats(4096, 512))
    ),
    "chunked scan": Case(
        lambda: nn.Sequential(*(recent.ChunkedScan() for _ in range(2))), one(lambda: floats(4, 1024, 256))
    ),
    "code decoder": Case(recent.CodeDecoder, one(lambda: floats(8, 64, 32, 32))),
    "point groups": Case(recent.PointGroups, one(lambda: floats(16, 2048, 3)), autocast=False),
    "vocoder": Case(recent.Vocoder, one(lambda: floats(16, 80, 128))),
    "interest": Case(
        recent.Interest,
        one(lambda: tokens(50000, 2048), lambda: tokens(50000, 2048, 50), lambda: tokens(10000, 6, 2048, 8)),
        autocast=False,
    ),
    "molecules": Case(
        recent.Molecules,
        one(lambda: tokens(100, 10000), lambda: floats(10000, 3), lambda: edges(10000, 200000)),
        autocast=False,
    ),
    "retention": Case(
        lambda: nn.Sequential(*(recent.Retention() for _ in range(3))), one(lambda: floats(4, 1024, 512))
    ),
    "sampled decoder": Case(recent.SampledDecoder, one(lambda: floats(4, 256, 128, 128))),
    "restorer": Case(recent.Restorer, one(lambda: floats(8, 3, 128, 128))),
    "styled generator": Case(recent.StyledGenerator, one(lambda: floats(16, 256))),
}
RECENT = RECENT_STEPS | {
    f"{name} infer": dataclasses.replace(case, trains=False) for name, case in RECENT_STEPS.items()
}
LATE_STEPS = {
    "diffusion transformer": Case(
        late.DiffusionTransformer, one(lambda: floats(32, 4, 32, 32), lambda: torch.rand(32) * 1000)
    ),
    "capped decoder": Case(late.capped_decoder, one(lambda: floats(8, 512, 512))),
    "splines": Case(
        lambda: nn.Sequential(late.Spline(64, 128), late.Spline(128, 64), late.Spline(64, 1)),
        one(lambda: torch.rand(8192, 64) * 2 - 1),
        autocast=False,
    ),
    "sound codec": Case(late.sound_codec, one(lambda: floats(8, 1, 32768))),
    "video": Case(late.video_network, one(lambda: floats(4, 3, 16, 112, 112))),
    "table": Case(late.TableTransformer, one(lambda: floats(4096, 12), lambda: tokens(100, 4096, 6))),
}
LATE = LATE_STEPS | {f"{name} infer": dataclasses.replace(case, trains=False) for name, case in LATE_STEPS.items()}


class Steps(nn.Module):
    """An optimizer's step over many parameters, as a function of nothing else."""

    def __init__(self, rule: Callable[..., None], count: int = 40) -> None:
        super().__init__()
        self.rule = rule
        sizes = [(256, 256) if n % 2 else (256,) for n in range(count)]
        for name in ("weight", "grad", "mean", "square"):
            for n, size in enumerate(sizes):
                self.register_buffer(f"{name}{n}", torch.rand(size) * 0.1)
        self.count = count

    def lists(self) -> list[list[torch.Tensor]]:
        return [
            [getattr(self, f"{name}{n}") for n in range(self.count)] for name in ("weight", "grad", "mean", "square")
        ]

    def forward(self, rate: torch.Tensor) -> torch.Tensor:
        self.rule(*self.lists(), rate)
        return rate + 1


STEPS = {
    name: Case(lambda rule=rule: Steps(rule), one(lambda: torch.tensor(1e-3)), trains=False, autocast=False)
    for name, rule in kernel_cases.STEP_RULES.items()
}
KERNELS = {
    name: Case(
        lambda k=k: k.function,
        lambda k=k: [tuple(k.arguments())],
        trains=k.trains,
        dtype=k.dtype,
        autocast=False,
        channels_last=k.channels_last,
    )
    for name, k in kernel_cases.KERNELS.items()
}
CASES: dict[str, Case] = {**MODELS, **UNSEEN, **OLDER, **RECENT, **LATE, **STEPS, **KERNELS}
