"""Kernels of the wide bench: functions in several types, layouts and directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

F = torch.nn.functional
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@dataclass(frozen=True)
class KernelCase:
    """A function, a maker of its arguments, and how they are laid out."""

    function: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    dtype: torch.dtype
    trains: bool
    channels_last: bool = False


def _rms_norm(x: Any, w: Any) -> Any:
    return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w


def _rotary(x: Any, cos: Any, sin: Any) -> Any:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


def _masked_mean(x: Any, seen: Any) -> Any:
    return (x * seen[..., None]).sum(1) / seen.sum(1, keepdim=True).clamp(min=1)


def _quantize(x: Any) -> Any:
    scale = x.abs().amax(-1, keepdim=True).float() / 127
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


def _attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _masked_attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, mask)


def _alibi(q: Any, k: Any, v: Any) -> Any:
    place = torch.arange(q.shape[2], device=q.device)
    slope = torch.exp2(-torch.arange(1, q.shape[1] + 1, device=q.device) / 2)
    bias = -slope[:, None, None] * (place[:, None] - place[None]).abs()
    return F.scaled_dot_product_attention(q, k, v, bias[None].to(q.dtype))


def _soft_cap(q: Any, k: Any, v: Any) -> Any:
    scores = torch.tanh(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) / 20) * 20
    return torch.softmax(scores.float(), -1).to(q.dtype) @ v


def _cross_entropy_backward(x: Any, wanted: Any) -> Any:
    x = x.detach().requires_grad_()
    loss = F.cross_entropy(x, wanted)
    return loss.detach(), torch.autograd.grad(loss, x)[0]


def _images(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(shape), torch.rand(shape[1]), torch.randn(shape[1]))


def _rows(*shape: int, weights: int = 0) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(shape), *(torch.rand(shape[-1]) for _ in range(weights)))


def _heads(batch: int, heads: int, length: int, width: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: tuple(torch.randn(batch, heads, length, width) for _ in range(3))


def _batch_norm(x: Any, w: Any, b: Any) -> Any:
    return F.silu(F.batch_norm(x, None, None, w, b, training=True))


_NORM = lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b)  # noqa: E731
_GROUP = lambda x, w, b: F.silu(F.group_norm(x, 8, w, b))  # noqa: E731
ROWS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "softmax 4096x1024": (lambda x: torch.softmax(x, -1), _rows(4096, 1024)),
    "softmax 12x256x256": (lambda x: torch.softmax(x, -1), _rows(12, 12, 256, 256)),
    "softmax 200000x32": (lambda x: torch.softmax(x, -1), _rows(200_000, 32)),
    "layer norm 8192x1024": (_NORM, _rows(8192, 1024, weights=2)),
    "layer norm 100000x96": (_NORM, _rows(100_000, 96, weights=2)),
    "rms norm 8192x2048": (_rms_norm, _rows(8192, 2048, weights=1)),
    "bias and gelu 8192x4096": (lambda x, b: F.gelu(x + b), _rows(8192, 4096, weights=1)),
    "gated 8192x2048": (lambda x: F.silu(x[:, :1024]) * x[:, 1024:], _rows(8192, 2048)),
    "sum of columns 65536x256": (lambda x: x.float().sum(0), _rows(65536, 256)),
    "sum in the middle": (lambda x: x.sum(1), _rows(64, 1024, 512)),
}
IMAGES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "batch norm 32x128x56x56": (_batch_norm, _images(32, 128, 56, 56)),
    "group norm 16x128x64x64": (_GROUP, _images(16, 128, 64, 64)),
    "mean of maps": (lambda x, w, b: x.mean((2, 3)) * w, _images(64, 512, 14, 14)),
    "pooling": (lambda x, w, b: F.max_pool2d(x, 3, 2, 1), _images(32, 64, 112, 112)),
    "upsampling": (lambda x, w, b: F.interpolate(x, scale_factor=2, mode="bilinear"), _images(8, 64, 64, 64)),
}
OTHERS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "masked mean": (_masked_mean, lambda: (torch.randn(32, 512, 768), (torch.rand(32, 512) > 0.2).float())),
    "quantize rows": (_quantize, _rows(4096, 4096)),
    "rotary": (_rotary, lambda: (torch.randn(8, 16, 1024, 64), torch.randn(1024, 64), torch.randn(1024, 64))),
    "cross-entropy and its gradient": (
        _cross_entropy_backward,
        lambda: (torch.randn(4096, 16000), torch.randint(0, 16000, (4096,))),
    ),
    "cumulative sum": (lambda x: x.cumsum(1), _rows(64, 2048, 64)),
    "top of rows": (lambda x: x.topk(8, -1)[0], _rows(4096, 1024)),
    "gather rows": (lambda x, i: x[i] * 2, lambda: (torch.randn(50000, 256), torch.randint(0, 50000, (100_000,)))),
    "scatter rows": (
        lambda x, i: torch.zeros_like(x).index_add(0, i, x),
        lambda: (torch.randn(100_000, 64), torch.randint(0, 100_000, (100_000,))),
    ),
    "concatenate": (
        lambda x, y: torch.cat((x, y), 1).relu(),
        lambda: (torch.randn(4096, 1000), torch.randn(4096, 3000)),
    ),
    "transpose": (lambda x: x.transpose(1, 2).contiguous() + 1, _rows(16, 1024, 1024)),
    "small chain": (lambda x: (x.sin() + 1).relu() * 2, _rows(64, 64)),
    "argmax and its value": (lambda x: (x.argmax(-1), x.amax(-1)), _rows(8192, 2048)),
    "variance of everything": (lambda x: x.var(), _rows(4096, 4096)),
}
INDEXED: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "adaptive pooling": (lambda x: F.adaptive_avg_pool2d(x, 7), lambda: (torch.randn(32, 256, 56, 56),)),
    "uneven adaptive pooling": (lambda x: F.adaptive_avg_pool2d(x, (5, 9)), lambda: (torch.randn(32, 64, 56, 56),)),
    "adaptive maximum": (lambda x: F.adaptive_max_pool2d(x, 7), lambda: (torch.randn(32, 128, 56, 56),)),
    "volume pooling": (lambda x: F.max_pool3d(x, 2), lambda: (torch.randn(8, 32, 16, 56, 56),)),
    "average pooling": (lambda x: F.avg_pool2d(x, 3, 2, 1), lambda: (torch.randn(32, 128, 56, 56),)),
    "average of volumes": (lambda x: F.avg_pool3d(x, 3, 2, 1), lambda: (torch.randn(8, 32, 16, 56, 56),)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.0), lambda: (torch.randn(16, 64, 64, 64),)),
    "nearest to 100": (lambda x: F.interpolate(x, (100, 77)), lambda: (torch.randn(16, 64, 64, 64),)),
    "patches": (lambda x: F.unfold(x, 3, padding=1), lambda: (torch.randn(16, 64, 56, 56),)),
    "folded": (lambda x: F.fold(x, 56, 4, stride=4), lambda: (torch.randn(32, 64 * 16, 196),)),
    "embedding": (
        lambda w, i: F.embedding(i, w, padding_idx=0),
        lambda: (torch.randn(30000, 256), torch.randint(0, 30000, (64, 256))),
    ),
    "few embeddings": (
        lambda w, i: F.embedding(i, w),
        lambda: (torch.randn(40, 512), torch.randint(0, 40, (64, 512))),
    ),
    "scattered sums": (
        lambda x, i: x.new_zeros(1000, 64).scatter_add(0, i[:, None].expand(-1, 64), x),
        lambda: (torch.randn(20_000, 64), torch.randint(0, 1000, (20_000,))),
    ),
    "scattered maxima": (
        lambda x, i: x.new_zeros(1000, 64).scatter_reduce(0, i[:, None].expand(-1, 64), x.detach(), "amax") + x[:1000],
        lambda: (torch.randn(20_000, 64), torch.randint(0, 1000, (20_000,))),
    ),
    "search": (
        lambda x: x + torch.searchsorted(x.detach()[0].sort()[0], x.detach()),
        lambda: (torch.randn(512, 4096),),
    ),
    "buckets": (
        lambda x: x + torch.bucketize(x.detach(), x.detach()[0, :64].sort()[0]),
        lambda: (torch.randn(4096, 2048),),
    ),
    "pair distances": (torch.cdist, lambda: (torch.randn(2048, 64), torch.randn(2048, 64))),
}
ATTENTION: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "causal attention": (_attention, _heads(4, 16, 1024, 64)),
    "masked attention": (_masked_attention, lambda: (*_heads(8, 12, 512, 64)(), torch.randn(8, 1, 1, 512))),
    "alibi": (_alibi, _heads(4, 8, 1024, 64)),
    "soft cap": (_soft_cap, _heads(4, 8, 512, 64)),
}


def _cases() -> Iterator[tuple[str, KernelCase]]:
    for name, (function, arguments) in ROWS.items():
        for dtype in (BF16, F32):
            yield f"{name} {_short(dtype)}", KernelCase(function, arguments, dtype, False)
        yield f"{name} bf16 backward", KernelCase(function, arguments, BF16, True)
    for name, (function, arguments) in IMAGES.items():
        for is_last in (False, True):
            layout = " channels last" if is_last else ""
            yield f"{name} fp16{layout}", KernelCase(function, arguments, F16, False, is_last)
            yield f"{name} fp32{layout} backward", KernelCase(function, arguments, F32, True, is_last)
    for name, (function, arguments) in OTHERS.items():
        yield f"{name} fp32", KernelCase(function, arguments, F32, False)
    for name, (function, arguments) in INDEXED.items():
        yield f"{name} fp32", KernelCase(function, arguments, F32, False)
        yield f"{name} fp32 backward", KernelCase(function, arguments, F32, True)
    for name, (function, arguments) in ATTENTION.items():
        yield f"{name} bf16", KernelCase(function, arguments, BF16, False)
        yield f"{name} bf16 backward", KernelCase(function, arguments, BF16, True)


def _short(dtype: torch.dtype) -> str:
    return {BF16: "bf16", F16: "fp16", F32: "fp32"}[dtype]


KERNELS: dict[str, KernelCase] = dict(_cases())


@torch.no_grad()
def _sgd(weights: Any, grads: Any, means: Any, squares: Any, rate: Any) -> None:
    for w, g, m in zip(weights, grads, means, strict=True):
        m.mul_(0.9).add_(g)
        w.sub_(rate * m)


@torch.no_grad()
def _adam(weights: Any, grads: Any, means: Any, squares: Any, rate: Any) -> None:
    for w, g, m, s in zip(weights, grads, means, squares, strict=True):
        m.lerp_(g, 0.1)
        s.mul_(0.999).addcmul_(g, g, value=0.001)
        w.sub_(rate * m / (s.sqrt() + 1e-8))


@torch.no_grad()
def _foreach(weights: Any, grads: Any, means: Any, squares: Any, rate: Any) -> None:
    torch._foreach_lerp_(means, grads, 0.1)
    torch._foreach_mul_(squares, 0.999)
    torch._foreach_addcmul_(squares, grads, grads, 0.001)
    below = torch._foreach_add(torch._foreach_sqrt(squares), 1e-8)
    torch._foreach_addcdiv_(weights, means, below, -0.001)


@torch.no_grad()
def _clipped(weights: Any, grads: Any, means: Any, squares: Any, rate: Any) -> None:
    norm = torch.stack([g.norm() for g in grads]).norm()
    factor = (1.0 / (norm + 1e-6)).clamp(max=1.0)
    for w, g in zip(weights, grads, strict=True):
        w.sub_(rate * g * factor)


STEP_RULES: dict[str, Callable[..., None]] = {
    "sgd step": _sgd,
    "adam step": _adam,
    "foreach adam step": _foreach,
    "clipped step": _clipped,
}
