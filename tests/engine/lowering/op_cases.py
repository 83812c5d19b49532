"""Functions that lowering must get right, each with arguments: one idea a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

F = nn.functional

MakeTensor = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A function, what makes its arguments, and whether sizes may also be symbols."""

    function: Callable[..., Any]
    make_args: tuple[MakeTensor, ...]
    can_be_dynamic: bool = True
    aten: frozenset[str] = frozenset()
    """Operators that no kernel computes with fixed sizes; all others must be lowered."""
    aten_if_dynamic: frozenset[str] = frozenset()
    """The same with symbolic sizes."""

    def args(self) -> tuple[torch.Tensor, ...]:
        """The same arguments each time."""
        torch.manual_seed(1)
        return tuple(make() for make in self.make_args)


CASES: dict[str, Case] = {}


def case(
    *makes: MakeTensor, dynamic: bool = True, aten: str = "", aten_if_dynamic: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a function to the cases under its name, with operators that it leaves to ATen."""
    by_kind = frozenset(aten.split()), frozenset((aten if aten_if_dynamic is None else aten_if_dynamic).split())

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[function.__name__] = Case(function, makes, dynamic, *by_kind)
        return function

    return add


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> MakeTensor:
    """Normally distributed numbers."""
    return lambda: torch.randn(shape).to(dtype)


def integers(*shape: int, below: int = 8, dtype: torch.dtype = torch.int64) -> MakeTensor:
    """Whole numbers from 0 on."""
    return lambda: torch.randint(0, below, shape).to(dtype)


def random_bools(*shape: int) -> MakeTensor:
    """Random truth values."""
    return lambda: torch.rand(shape) > 0.5


BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64


@case(normal(4, 128), normal(128), normal(128), random_bools(4, 128))
def masked_softmax_layer_norm(x: Any, w: Any, b: Any, mask: Any) -> Any:
    """The tour's first cell."""
    y = torch.softmax((x * 0.125).masked_fill(mask, -1e9), -1)
    return F.layer_norm(y, (x.shape[-1],), w, b) + x, F.gelu(x)


@case(normal(5, 77, dtype=BF16), normal(77, dtype=BF16), normal(77, dtype=BF16))
def layer_norm_in_bfloat16(x: Any, w: Any, b: Any) -> Any:
    """Odd sizes, 16 bits."""
    return F.layer_norm(x + 1, (x.shape[-1],), w, b) * 2


@case(normal(3, 7, 33))
def softmax_over_each_dimension(x: Any) -> Any:
    """Rows that do and do not lie along memory."""
    return torch.softmax(x, 1), torch.log_softmax(x, -1), x.softmax(0)


@case(normal(3, 7, 33))
def reductions(x: Any) -> Any:
    """One of each, over many dimensions."""
    return (
        (x.mean(1), x.var(-1), x.std((0, 2)), torch.var_mean(x, 0), x.sum(), x.amax(2), x.argmax(1), x.argmin()),
        (x.max(1)[1], x.min(-1)[0], x.prod(1), (x > 0).any(1), (x > -9).all(), x.norm(dim=-1), x.sum((0, 1), True)),
    )


@case(integers(2, 9, below=20), normal(20, 16), normal(9, 16))
def embeddings(tokens: Any, table: Any, positions: Any) -> Any:
    """Indirect reads, negative ones too."""
    return table[tokens] + positions, F.embedding(tokens, table) + positions, table[tokens - 20]


@case(normal(2, 6, 4, 8), normal(6, 4), normal(6, 4))
def rotary(x: Any, cos: Any, sin: Any) -> Any:
    """Rotary embedding by halves."""
    cos, sin, half = cos[None, :, None, :], sin[None, :, None, :], x.shape[-1] // 2
    x1, x2 = x[..., :half], x[..., half:]
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)


@case(normal(2, 6, 8), normal(2, 6, 8))
def rotate_half(x: Any, angle: Any) -> Any:
    """Rotary embedding as transformers writes it."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * angle.cos() + turned * angle.sin()


@case(normal(8, 32, dtype=BF16), normal(32, dtype=BF16))
def rms_norm(x: Any, w: Any) -> Any:
    """Casts up and down around a reduction."""
    f = x.float()
    return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


@case(normal(12, 40), integers(12, below=40))
def cross_entropy(x: Any, target: Any) -> Any:
    """All reductions, label smoothing."""
    return (
        F.cross_entropy(x, target),
        F.cross_entropy(x, target, label_smoothing=0.1),
        F.cross_entropy(x, target, reduction="none"),
        F.cross_entropy(x, target, reduction="sum"),
    )


@case(normal(2, 4, 6, 5), normal(4), normal(4), normal(4), lambda: torch.rand(4) + 0.1)
def batch_norm(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
    """Inference."""
    return F.relu(F.batch_norm(x, mean, var, w, b, training=False))


@case(normal(2, 4, 6, 5), normal(4), normal(4), aten_if_dynamic="native_group_norm")
def group_norm(x: Any, w: Any, b: Any) -> Any:
    """Rows that span several channels."""
    return F.group_norm(x, 2, w, b)


@case(normal(6, 10), normal(10, 6))
def transposes(x: Any, y: Any) -> Any:
    """Different orders of walking, and layouts that follow eager's."""
    return x.t() + y, (x + 1).t().contiguous(), x.permute(1, 0) * 2, (x.t() * y).sum(0)


@case(normal(3, 5), normal(5), normal(3, 1), normal())
def broadcasting(x: Any, row: Any, column: Any, scalar: Any) -> Any:
    """Small tensors spread over large ones."""
    return x + row * column - scalar, x / (row + 3), (row * 2)[None] * x + column.exp()


@case(integers(3, 5, below=9), integers(3, 5, below=4, dtype=torch.int32), random_bools(3, 5))
def integer_arithmetic(a: Any, b: Any, m: Any) -> Any:
    """Promotion, rounding of quotients, bits, truth values."""
    return (
        (a + b, a * 2, a / 2, a // 3, a % 3, -a // 3, (-a) % 3, a & b, a | b, ~b, m & (a > 2), a.float().sqrt()),
        (a.sum(), m.sum(), a == b, a.max(), m.float().mean(), a**2, torch.where(m, a, b), m + m, m * m, m ^ m, ~m),
    )


@case(normal(4, 6), normal(4, 6))
def arithmetic(a: Any, b: Any) -> Any:
    """Elementwise functions."""
    return (
        (
            a % b,
            torch.fmod(a, b),
            a // b,
            (a * 3).round(),
            a.trunc(),
            a.tanh(),
            a.sigmoid(),
            a.expm1(),
            a.abs().log1p(),
        ),
        (a.clamp(-0.5, 0.5), torch.maximum(a, b), a.sign(), a.abs() ** 0.5, a**3, a.abs() ** b, 2**a, a.reciprocal()),
        (a.erf(), a.cos(), a.isnan(), torch.logaddexp(a, b), torch.atan2(a, b), a.sinh(), torch.lerp(a, b, 0.3)),
        (F.silu(a), F.gelu(a, approximate="tanh"), F.leaky_relu(a), F.softplus(a), F.elu(a), F.hardswish(a), F.mish(a)),
        (F.hardtanh(a), F.relu6(a), F.relu(a), torch.addcmul(a, b, b, value=2), 1 - a, torch.rsub(a, 2)),
    )


@case(normal(4, 6, dtype=F16), normal(4, 6, dtype=BF16))
def half_precision(a: Any, b: Any) -> Any:
    """Promotion between 16-bit types, and casts."""
    return a + 1, a * b, b.exp(), a.sum(-1), b.mean(), a.float() + b, a.to(BF16), torch.softmax(a, -1), (a * 3).to(F16)


@case(normal(4, 6), normal(2, 6), normal(4, 3))
def cat_and_pad(a: Any, b: Any, c: Any) -> Any:
    """Concatenation and padding."""
    return (
        (torch.cat([a, b]), torch.cat([a * 2, c], 1).sum(1), torch.stack([a, a + 1], 1), torch.cat([b, b.sin(), b])),
        (F.pad(a, (1, 2, 0, 3), value=2.0), F.pad(a, (-1, -1)), a.flip(0), a.flip(0, 1) + 1),
    )


@case(normal(4, 6, 8), dynamic=False)
def views(x: Any) -> Any:
    """Index arithmetic."""
    return (
        (x.view(24, 8).t(), x[1:3, ::2], x[..., None, :].expand(4, 6, 3, 8) + 1, x.unfold(2, 3, 2) * 1, x.flatten()),
        (x.reshape(8, 24)[2], x.transpose(0, 1).reshape(6, 32) + 1, x.chunk(2, 1)[1] * 2, x.unbind(1)[2], x.roll(1, 1)),
        (torch.diagonal(x, 0, 0, 1) + 1, x.reshape(2, 2, 6, 8)[1, :, 3:] * x[0, 0, 0], x.flip(1).reshape(48, 4) * 2),
    )


@case(normal(5, 4), integers(5, 4, below=5), integers(3, below=5))
def gathers(x: Any, places: Any, rows: Any) -> Any:
    """Indirect reads of every kind."""
    return (
        (x.gather(0, places), x[rows], x[:, rows.clamp(max=3)], x.index_select(0, rows)),
        (x[rows, rows.clamp(max=3)], torch.take_along_dim(x, places.clamp(max=3), 1), (x * 2)[rows] + 1),
    )


@case(normal(2048, 64), normal(2048, 64), normal(2, 16), normal(2, 40, 16))
def reads_shared_by_other_loops(g: Any, x: Any, small: Any, y: Any) -> Any:
    """An activation beside its gradient's sum, operands of two layouts, scans of columns."""
    grad = torch.ops.aten.gelu_backward(g, x)
    pictures = y.transpose(1, 2).unflatten(2, (5, 8))
    residual = small[:, :, None, None].expand(2, 16, 5, 8) / 3 + y.view(2, 5, 8, 16).permute(0, 3, 1, 2)
    return (
        (F.gelu(x.view(8, 256, 64)), grad, grad.sum(0) / 64),
        ((residual * pictures).sum((0, 2, 3)), residual.sum((0, 2, 3))),
        (y.exp().cumsum(1), y.cummax(1)),
    )


@case(normal(4, 9))
def cumsum_and_triangles(x: Any) -> Any:
    """Running sums and triangles."""
    return x.cumsum(1), x.cumsum(0), (x * 2).cumsum(-1) + 1, x.tril(), x.triu(1), x.cumsum(-1).sum(-1)


@case(normal(3, 4))
def tensor_factories(x: Any) -> Any:
    """Tensors without a source."""
    return (
        (torch.arange(4) + x, torch.ones(3, 4) * x, torch.zeros_like(x) + x, torch.full((3, 4), 2.5) * x),
        (torch.arange(0, 8, 2), torch.tril(torch.ones(4, 4, dtype=torch.bool)), torch.linspace(0, 1, 4) * x),
        (torch.eye(4), torch.arange(1.0, 3.0, 0.5) * x, torch.tensor(0.5) * x),
    )


@case(normal())
def scalars(x: Any) -> Any:
    """Tensors without dimensions."""
    return x + 1, x.exp().sum(), x * torch.ones(3), x.softmax(0), x.mean()


@case(normal(0, 4), aten="add cat mean sum")
def empty_tensors(x: Any) -> Any:
    """Nothing to launch."""
    return x + 1, x.sum(1), x.sum(), torch.cat([x, x]), x.mean(1)


@case(lambda: torch.randn(6, 8).t(), lambda: torch.randn(16, 12)[::2, ::2], lambda: torch.randn(1, 6).expand(8, 6))
def strided_inputs(a: Any, b: Any, c: Any) -> Any:
    """Transposed, strided and overlapping inputs."""
    return a + b, a * 2, b.sum(0), c + a, torch.softmax(a, -1), c.contiguous(), (b + c).t()


@case(normal(2, 19_200))
def long_rows(x: Any) -> Any:
    """Rows too long for one block."""
    return torch.softmax(x, -1), F.layer_norm(x, (x.shape[-1],)), x.argmax(-1), x.var(-1)


@case(normal(20, 17_001), dynamic=False)
def long_ragged_rows(x: Any) -> Any:
    """The same with a ragged end, more than one row, and what goes with a row."""
    return torch.log_softmax(x * 2, -1), x.amin(-1, True) + x, (x.sum(-1) / 1000).exp()


@case(normal(2, 17_001), dynamic=False)
def long_ragged_products(x: Any) -> Any:
    """Products of two such rows, which Triton's interpreter takes element by element."""
    return x.prod(-1), x.amin(-1, True) + x


@case(normal(300, 70))
def column_reductions(x: Any) -> Any:
    """Reductions across memory."""
    return x.sum(0), x.mean(0), (x * 2).amax(0), x.var(0)


@case(normal(40_001), dynamic=False)
def full_reductions(x: Any) -> Any:
    """Few results from many elements: two steps."""
    return x.sum(), x.mean(), x.var(), x.max(), x / x.norm(), x.argmax(), (x > 3).any()


@case(normal(8, 16), normal(16, 32), normal(32), normal(32, 16), aten="mm")
def mlp(x: Any, w: Any, b: Any, w2: Any) -> Any:
    """Library products with arithmetic between them."""
    return F.gelu(x @ w + b) @ w2 + x


@case(
    normal(2, 4, 16),
    normal(48, 16),
    normal(48),
    normal(16, 16),
    dynamic=False,
    aten="_scaled_dot_product_flash_attention_for_cpu addmm engine.attention mm",
)
def attention(x: Any, w: Any, b: Any, out: Any) -> Any:
    """Library attention, and attention written out."""
    q, k, v = (t.view(2, 4, 2, 8).transpose(1, 2) for t in F.linear(x, w, b).split(16, -1))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(8)
    weights = scores.masked_fill(torch.tril(torch.ones(4, 4)) == 0, float("-inf")).softmax(-1)
    return y.transpose(1, 2).reshape(2, 4, 16) @ out + x, weights @ v


def _nan_and_inf() -> torch.Tensor:
    nan, inf = math.nan, math.inf
    return torch.tensor([[1.0, nan, 3.0], [-inf, -inf, -inf], [inf, 1.0, nan], [0.0, -0.0, inf]])


@case(_nan_and_inf)
def nan_and_inf(x: Any) -> Any:
    """NaN and infinities where eager has them."""
    return (
        (x.amax(1), x.argmax(1), x.softmax(1), x.max(), torch.relu(x), x.clamp(0, 2), torch.maximum(x, x.flip(1))),
        (x.min(1)[1], x.isinf(), x.nan_to_num(), x == x, x.sign(), x.argmin(), x.sum(1), x.sigmoid(), x.tanh()),
    )


@case(normal(4, 5, dtype=F64))
def float64_constants(x: Any) -> Any:
    """Constants keep their double precision."""
    return (
        (x * 0.1, x.exp(), x.tanh(), x.softmax(-1), x.mean(), torch.where(x > 0, 0.1, 0.7) * x, x.abs().sqrt()),
        (x.erf(), x.abs().log1p(), x.floor(), x + torch.tensor(0.1, dtype=F64)),
    )


@case(normal(2, 3, 8, 8), dynamic=False)
def images(x: Any) -> Any:
    """Pooling, interpolation, shuffles: lowered or left to ATen, right in any case."""
    return (
        (F.avg_pool2d(x, 2), F.max_pool2d(x, 2), F.interpolate(x, scale_factor=2), F.adaptive_avg_pool2d(x, 1)),
        (F.interpolate(x, size=(5, 7), mode="bilinear"), F.pixel_shuffle(x[:, :1].expand(2, 4, 8, 8), 2)),
    )


@case(
    integers(5, below=255, dtype=torch.uint8),
    integers(5, below=100, dtype=torch.int8),
    integers(5, below=100, dtype=torch.int16),
)
def small_integers(a: Any, b: Any, c: Any) -> Any:
    """Arithmetic that wraps around in few bits."""
    return a + 1, b * 2, c + b, a.max(), b.min(), a.sum(), a > 3, a.float(), -b, b.abs(), a // 7, c.prod(), b - 100


@case(normal(6, 5), lambda: torch.tensor([[0, 2, -1, 1, 3]] * 6), dynamic=False, aten="multilabel_margin_loss_forward")
def labels_after_the_end(x: Any, labels: Any) -> Any:
    """Labels after the first -1 do not count."""
    return F.multilabel_margin_loss(x * 2, labels) + 1


@case(normal(6, 5), normal(6, 5), aten="empty_like")
def losses(a: Any, b: Any) -> Any:
    """What people train with."""
    return (
        (F.mse_loss(a, b), F.l1_loss(a, b), F.smooth_l1_loss(a, b), F.huber_loss(a, b), F.normalize(a, dim=-1)),
        (F.binary_cross_entropy_with_logits(a, b.sigmoid()), F.cosine_similarity(a, b)),
        F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="batchmean"),
    )


@case(normal(4, 3), normal(4, 3))
def functionalized_slice_writes(a: Any, b: Any) -> Any:
    """Mutation made functional."""
    a = a.clone()
    a[1:3] = b[1:3] * 2
    a[:, 0] = 1
    return a, torch.slice_scatter(a, b[:2], 0, 1, 3), torch.select_scatter(a, b[0], 0, 2)


@case(normal(4, 30), aten="sort topk")
def left_to_aten(x: Any) -> Any:
    """Sorting stays an ATen call between kernels."""
    return (x * 2).topk(3)[0] * 2, x.sort(-1)[1] + 1


@case(normal(6, 40), normal(6, 40), normal(40))
def residual_chain(x: Any, y: Any, w: Any) -> Any:
    """One sum used by a norm and by what follows it."""
    total = x + y
    normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-5) * w
    return total, normed, normed.amax(-1)


@case(normal(4, 64), normal(4, 64))
def shared_between_kernels(x: Any, y: Any) -> Any:
    """A costly value that two differently shaped kernels read."""
    costly = (x.sin() * y).exp()
    return costly.sum(0), costly.sum(1), costly.t() * 2, costly[:, ::2] + 1


@case(normal(2, 6, 16), normal(8))
def norm_of_heads(x: Any, w: Any) -> Any:
    """Rows that are part of a dimension."""
    heads = x.view(2, x.shape[1], 2, 8)
    normed = heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + 1e-6) * w
    return normed.reshape(2, -1, 16) + x, normed.transpose(1, 2)


@case(normal(4099, 8), dynamic=False)
def few_long_columns(x: Any) -> Any:
    """Reductions across memory in two steps, with a ragged last part."""
    return x.sum(0), x.amax(0), x.mean(0, keepdim=True) * 2, x.argmin(0)


@case(normal())
def reductions_of_scalars(x: Any) -> Any:
    """A scalar has one dimension for the purpose of reducing it."""
    return x.max(0), x.sum(-1), x.argmax(0, True), x.amin(0), x.logsumexp(0)


@case(normal(6, 16), normal(16, 16), normal(16, 16), normal(16), normal(16), aten="mm")
def equal_blocks(x: Any, w: Any, v: Any, a: Any, b: Any) -> Any:
    """Kernels that are launched several times, on buffers of their own."""
    for weight, scale in ((w, a), (v, b), (w, b)):
        x = F.gelu(F.layer_norm(x, (16,), scale, a) @ weight) + x
    return x


@case(normal(4, 9), normal(4))
def rows_and_elements_compared(x: Any, limit: Any) -> Any:
    """A truth value of a whole row together with one of each element."""
    total = x.sum(-1, keepdim=True)
    both = (total > 0) & (x > 0)
    return (
        both,
        torch.where((total < 1) | (x > 0), x, 0.0),
        (both ^ (limit[:, None] > 0)).sum(-1),
        ~(total > 0) & (x < 1),
    )


@case(normal(4, 30), integers(4, 8, below=30), normal(4, 8), integers(5, below=4), normal(5, 30))
def scatter_add_and_index_add(x: Any, places: Any, source: Any, rows: Any, more: Any) -> Any:
    """Sums into places that are read from memory, several into one."""
    return (
        (torch.zeros_like(x).scatter_add(1, places, source) * 3, x.scatter_add(1, places, source * 2), x + 1),
        (x.index_add(0, rows, more), (x * 2).index_add(0, rows, more, alpha=2), x.t().index_add(1, rows, more.t())),
        (torch.index_put(x, (rows, rows), more[:, 0], True), x.index_put((rows - 4,), more, True)),
        (places.scatter_add(1, places[:, :3].clamp(max=7), places[:, :3]), x.sum(-1).index_add(0, rows, more.sum(-1))),
    )


@case(normal(4, 30), normal(3, 5), normal(3), dynamic=False)
def scatter_and_index_put(x: Any, source: Any, scale: Any) -> Any:
    """Writes to places that are read from memory, each at most once."""
    places = torch.tensor([[3, 1, 0, 29, 7], [0, 1, 2, 3, 4], [5, 8, 7, 6, -1]]) % 30
    rows = torch.tensor([2, 0, 1])
    return (
        (x.scatter(1, places, source), (x * 2).scatter(0, rows[None], 5.0), x.index_copy(0, rows, x[:3] * 2)),
        (torch.index_put(x, (rows, rows), scale), torch.index_put(x, (rows, None, rows)[::2], scale * 2)),
        (torch.ops.aten.index_put(x, [None, rows], scale), x.masked_fill(x > 0, 1), x.index_fill(1, rows, 2.0)),
        torch.ops.aten.index_put(x, [x > 0.5], torch.tensor(7.0)),
        torch.ops.aten.index_put(x, [None, x[0] > 0.5], torch.tensor(7.0)),
        torch.full_like(x, -math.inf).scatter(1, places, source),
    )


@case(normal(2, 9, 16), integers(2, 9, below=7), normal(2, 9, 16, dtype=BF16))
def embedding_backward(grad: Any, tokens: Any, narrow: Any) -> Any:
    """Embedding backwards, also where several programs add to one row, and in 16 bits."""
    backward = torch.ops.aten.embedding_dense_backward
    return (
        backward(grad * 2, tokens, 7, -1, False),
        backward(grad, tokens, 20, 3, False) + 1,
        backward(narrow, tokens, 7, -1, False),
    )


@case(normal(8), normal(3, 1), lambda: torch.zeros(8, 4, dtype=torch.int64))
def atomic_adds_to_one_element(x: Any, y: Any, zeros: Any) -> Any:
    """Every element must be added once, whichever loops its place and value follow."""
    one = torch.zeros(1)
    return (
        (
            one.scatter_add(0, zeros[:, 0], x),
            one.index_add(0, zeros[:3, 0], torch.ones(3)),
            x.scatter_add(0, zeros[0], x[:4]),
        ),
        torch.zeros(1, 1).scatter_add(0, zeros[:3, :1], y),
    )


@case(normal(4, 9), integers(3, 6, below=3))
def cumprod(x: Any, n: Any) -> Any:
    """Products of all before, with what reads them."""
    return x.cumprod(1), x.cumprod(0) + 1, n.cumprod(-1), x.cumprod(-1).sum(-1), (x > 0).cumprod(1)


@case(normal(2, 3, 9, 8), normal(2, 3, 8, dtype=BF16), dynamic=False)
def pools(x: Any, row: Any) -> Any:
    """Windows inside, across and beyond the edges; what counts there."""
    return (
        (
            F.avg_pool2d(x, 2),
            F.avg_pool2d(x, 3, 2, 1),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.avg_pool1d(row, 3, 2),
        ),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        (F.avg_pool2d(x, (2, 3), (1, 2), divisor_override=5), F.avg_pool2d(x * 2, 2).sum(1), F.avg_pool3d(x, 2)),
        (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (3, 5)), F.avg_pool2d(x.relu(), 9 - 1)),
        (
            F.max_pool2d(x, 3, 2, 1, return_indices=True),
            F.max_pool2d(x, 2, ceil_mode=True),
            F.max_pool1d(row.float(), 2),
        ),
    )


@case(normal(2, 3, 5, 4), normal(2, 3, 9, 8), normal(2, 3, 4, 4), dynamic=False)
def pool_backward(grad: Any, x: Any, small: Any) -> Any:
    """Back through windows that overlap, and through those that do not."""
    aten, sides = torch.ops.aten, ([3, 3], [2, 2], [1, 1])
    _, where = aten.max_pool2d_with_indices(x, *sides)
    _, apart = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
    return (
        (
            aten.avg_pool2d_backward(grad, x, *sides, False, True, None) + 1,
            aten.avg_pool2d_backward(grad, x, *sides, False, False, None),
        ),
        (
            aten.avg_pool2d_backward(small, x, [2, 2], [2, 2], [0, 0], False, True, None),
            aten.avg_pool2d_backward(grad, x, *sides, False, True, 7),
        ),
        aten.max_pool2d_with_indices_backward(grad * 2, x, *sides, [1, 1], False, where),
        aten.max_pool2d_with_indices_backward(small, x, [2, 2], [2, 2], [0, 0], [1, 1], False, apart),
    )


@case(_nan_and_inf, normal(2, 9, 8, dtype=BF16), integers(1, 6, 6, below=9), dynamic=False)
def max_pool_edge_values(odd: Any, x: Any, n: Any) -> Any:
    """Max pooling: NaN wins, infinities count, the first equal index wins, padding never does."""
    odd = torch.cat([odd, torch.full((4, 5), float("-inf"))], 1)[None]
    return (
        (F.max_pool2d(odd, 2, return_indices=True), F.max_pool2d(odd, 3, 1, 1, return_indices=True)),
        (F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True), F.max_pool2d(x * 2, 2) + 1),
        (F.max_pool2d(n.float(), 2, return_indices=True), F.max_pool2d(x, 2, dilation=2)),
    )


def _long_rows_with_nan() -> torch.Tensor:
    x = torch.randn(6, 17_001) * 30
    x[0], x[1, 5], x[2, 9_000], x[3, :17_000] = -math.inf, math.nan, math.inf, -math.inf
    x[4, 3:] = -math.inf
    return x


@case(_long_rows_with_nan, dynamic=False)
def online_softmax_rows(x: Any) -> Any:
    """Compute online softmax sums over rows with NaN, infinities or only -inf.

    The sums of exponentials are updated in one pass over a row.
    """
    sums = (x - x.amax(-1, keepdim=True)).exp().sum(-1)
    return x.softmax(-1), x.log_softmax(-1), x.logsumexp(-1), sums, F.cross_entropy(x[3:], torch.tensor([17_000, 1, 7]))


@case(normal(20_000, 40), dynamic=False)
def online_softmax_columns(x: Any) -> Any:
    """The same across memory."""
    return (x * 2).softmax(0), x.log_softmax(0)


@case(integers(5, 6, below=40, dtype=torch.int32), integers(5, 6, below=40, dtype=torch.int32))
def shifted_bits(a: torch.Tensor, b: torch.Tensor) -> Any:
    return a << (b - 4), (a - 20) >> (b - 4), a.to(torch.uint8) >> 3, (a.long() - 9) << 2


@case(normal(4, 33), normal(4, 33))
def signs_and_neighbors(a: torch.Tensor, b: torch.Tensor) -> Any:
    holes = torch.where(b > 1, torch.nan, a)
    extremes = torch.fmax(holes, b), torch.fmin(b, holes)
    return (
        torch.copysign(a, b),
        torch.nextafter(a, b),
        torch.signbit(-a),
        *extremes,
        torch.round(a * 9, decimals=2),
        torch.round(a * 999, decimals=-1),
    )


@case(normal(6, 31), integers(3, 20, below=5))
def cummax_and_cummin(a: torch.Tensor, b: torch.Tensor) -> Any:
    holes = torch.where(a > 1.5, torch.nan, a)
    truths = torch.cummax(b > 3, 1), torch.cummin(b > 1, 0)
    return torch.cummax(a, 1), torch.cummin(holes, 0), torch.cummax(b, 1), torch.logcumsumexp(a, 1), *truths


@case(
    normal(7),
    normal(3, 40),
    integers(6, below=40),
    normal(3, 9),
    aten="sort",
    aten_if_dynamic="bucketize searchsorted sort",
)
def searchsorted(edges: torch.Tensor, a: torch.Tensor, whole: torch.Tensor, rows: torch.Tensor) -> Any:
    edges, lines = edges.sort().values, rows.sort(1).values
    holes = torch.where(a > 1, torch.nan, a)
    return (
        torch.bucketize(holes, edges),
        torch.bucketize(a, edges, right=True, out_int32=True),
        torch.searchsorted(lines, a),
        torch.searchsorted(lines, a, side="right"),
        torch.bucketize(whole, torch.tensor([1, 5, 9])),
    )


@case(normal(6, 9))
def special_bessel(a: torch.Tensor) -> Any:
    s = torch.special
    near = torch.i0(a), s.i1(a), s.erfcx(a)
    return *near, s.bessel_j0(a), s.bessel_j1(a), s.bessel_y0(a.abs() + 0.1), s.bessel_y1(a.abs() + 0.1)


@case(normal(7, 5), integers(9, 5, below=7), normal(9, 5))
def scatter_reduce_sum_mean(a: torch.Tensor, at: torch.Tensor, source: torch.Tensor) -> Any:
    return [
        a.scatter_reduce(0, at, source, reduce=kind, include_self=included)
        for kind in ("sum", "mean")
        for included in (True, False)
    ] + [a.put(at[:2, :3] * 4 - 11, source[:3, :2].T.reshape(2, 3), accumulate=True)]


@case(normal(4, 12), dynamic=False)
def as_strided(a: torch.Tensor) -> Any:
    windows = (a + 2).as_strided((5, 4), (3, 2), 1)
    return windows * 2, (a + 1).as_strided((3, 3), (0, 13)), torch.as_strided_copy(a, (2, 2), (1, 12))


@case(normal(130, 200), normal(200, 130), normal(2, 40, 20, 33))
def transposed_reads(a: torch.Tensor, b: torch.Tensor, images: torch.Tensor) -> Any:
    turned = a.T.contiguous() * 2 + b
    last = images.contiguous(memory_format=torch.channels_last) + 1
    return turned, last, a.sum(1), images.permute(0, 2, 3, 1).contiguous().to(torch.bfloat16)


@case(
    normal(2, 4, 12, 8),
    normal(2, 8, 6, 4),
    normal(16, 8, 3, 3),
    normal(4, 4, 3, 3),
    aten="convolution convolution_backward",
)
def convolutions_of_shuffled_pixels(a: torch.Tensor, x: torch.Tensor, w: torch.Tensor, after: torch.Tensor) -> Any:
    x, w, after = (t.contiguous(memory_format=torch.channels_last) for t in (x, w, after))
    shuffled = torch.nn.functional.pixel_shuffle(torch.conv2d(x, w, padding=1), 2).relu()
    later = torch.conv2d(shuffled.contiguous() * 2, after, padding=1)
    grad = (a * later.sigmoid()).view(2, 4, 6, 2, 4, 2).permute(0, 1, 3, 5, 2, 4).reshape(2, 16, 6, 4)
    grads = torch.ops.aten.convolution_backward(
        grad, x, w, [16], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return later, *grads[:2], grad.sum((0, 2, 3))


@case(normal(2, 64, 16, 14), normal(2, 30, 12, 14), normal(2, 56, 4, 20), dynamic=False)
def digits_across_rows(images: torch.Tensor, triples: torch.Tensor, frames: torch.Tensor) -> Any:
    """Neighbors in memory are numbered by a part of a dimension, or by parts of several."""
    last = images.contiguous(memory_format=torch.channels_last)
    shuffled = last.view(2, 32, 2, 16, 14).transpose(1, 2).reshape(2, 64, 16, 14).relu()
    pixels = last.view(2, 16, 2, 2, 16, 14).permute(0, 1, 4, 2, 5, 3).reshape(2, 16, 32, 28).exp()
    patches = triples.permute(0, 2, 3, 1).reshape(2, 12, 14, 5, 2, 3).permute(0, 5, 1, 3, 2, 4).reshape(2, 3, 60, 28)
    return (
        shuffled,
        pixels,
        pixels.contiguous(memory_format=torch.channels_last) * 2,
        patches.sin(),
        (frames.permute(0, 3, 2, 1).reshape(2, 80, 56) + 1),
    )


@case(normal(2, 144, 10, 12), normal(2, 64, 12, 14), normal(144), dynamic=False)
def pixels_between_channels(triple: torch.Tensor, double: torch.Tensor, bias: torch.Tensor) -> Any:
    """What is read for neighboring written elements has other elements between it."""
    triple, double = (t.contiguous(memory_format=torch.channels_last) for t in (triple, double))
    biased = torch.nn.functional.pixel_shuffle(triple + bias.view(-1, 1, 1), 3)
    return biased, biased.relu() + 1, torch.nn.functional.pixel_shuffle(double.exp(), 2).sin()


@case(normal(2, 16, 40, 32), normal(2, 3, 40, 48))
def sums_of_channels_last(a: torch.Tensor, images: torch.Tensor) -> Any:
    a, images = (t.contiguous(memory_format=torch.channels_last) for t in (a, images))
    rows = a.reshape(1, 32, 40, 32)
    spread, mean = torch.var_mean(rows, (0, 2, 3), correction=0)
    normed = (rows - mean[:, None, None]) * (spread[:, None, None] + 1e-5).rsqrt()
    grad = normed.view(2, 16, 40, 32).relu() * a.cos()
    kept = torch.where(a > 0, grad, a * 0.25)
    few = torch.var_mean(images.reshape(1, 6, 40, 48), (0, 2, 3))
    return (
        normed,
        kept,
        torch.where(a > 0, 0, grad).sum(),
        (kept / 16).sum((0, 2, 3)),
        images.sum((1, 2, 3)),
        few,
        a.argmax(),
    )


@case(normal(2, 40, 9, 14), normal(2, 40, 14))
def reductions_of_channels_last_over_height(x: torch.Tensor, grad: torch.Tensor) -> Any:
    x = x.contiguous(memory_format=torch.channels_last) + 1
    most = x.amax(2)
    share = grad / (x == most[:, :, None]).sum(2)
    spread = (x.cos() * share[:, :, None]).sum((0, 2, 3))
    return most, share, spread, x.argmax(2), x.var(3), x.permute(2, 0, 3, 1).mean(0), x.sin().softmax(2).contiguous()


@case(normal(2, 8, 96, 96), normal(8), normal(8))
def group_norm_of_channels_last(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    x = x.contiguous(memory_format=torch.channels_last) * 2 + 1
    normed = torch.nn.functional.group_norm(x, 2, w, b)
    return normed.relu(), *torch.native_group_norm(x.contiguous(), w, b, 2, 8, 96 * 96, 4, 1e-5)


@case(normal(64, 1100), normal(64, 1100), normal(64, 64, 1100), dynamic=False)  # the rule compares numbers of elements
def repeated_quotient(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
    return (a / (b.abs() + 1)) * c.cos()


@case(normal(3, 20_011), normal(5, 3, 70, 71))
def variance_of_long_rows(a: torch.Tensor, images: torch.Tensor) -> Any:
    shifted = a + 1000
    normed = torch.nn.functional.batch_norm(images * 3 + 7, None, None, training=True)
    return torch.var_mean(shifted, 1), torch.nn.functional.layer_norm(a, (20_011,)), normed


@case(normal(40, 300), integers(40, below=300))
def cross_entropy_long_rows(a: torch.Tensor, at: torch.Tensor) -> Any:
    at = torch.where(at < 20, -100, at)
    return torch.nn.functional.cross_entropy(a, at), torch.nn.functional.cross_entropy(a[:, :200], at % 200)


@case(normal(64, 1030, dtype=BF16), normal(1030, 8, dtype=BF16), dynamic=False, aten="mm")
def padded_rows(a: torch.Tensor, b: torch.Tensor) -> Any:
    scaled = a * 2
    deep = (a.view(2, 32, 1030) * 3).view(64, 1030)
    return scaled @ b, scaled.t() @ a[:, :8], deep @ b


def complex_normal(*shape: int) -> MakeTensor:
    """Normally distributed complex numbers."""
    return lambda: torch.randn(shape, dtype=torch.complex64)


@case(normal(2, 6, 4, 8), normal(6, 4), aten_if_dynamic="view_as_complex")
def rotary_by_complex_numbers(x: Any, angle: Any) -> Any:
    """Rotary embedding as Llama's authors write it."""
    turn = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn.view(1, 6, 1, 4)).flatten(3)


@case(complex_normal(4, 5), complex_normal(5), normal(4, 1), complex_normal(4, 5))
def complex_arithmetic(x: Any, y: Any, r: Any, z: Any) -> Any:
    """Products, quotients, conjugates, and what is real again."""
    return (
        (x + y, x - 2 * y, x * y, x / z, x * r, r / z, -x, x * (2 + 3j), 1j * r, x * 0.5, x.exp(), x.reciprocal()),
        (
            x.abs(),
            x.angle(),
            x.log(),
            x.real + 1,
            (x * y).imag,
            x.conj() * z,
            x == y,
            torch.where(r > 0, x, y),
            x.sum(-1),
        ),
        ((x * y).mean(), torch.complex(r, r) + x, r.to(torch.complex64) * y, x.resolve_conj() + 1),
    )


@case(complex_normal(4, 5), lambda: torch.full((4, 5), complex(float("inf"), 0.0)))
def complex_sum_of_infinities(x: Any, y: Any) -> Any:
    """ATen multiplies by alpha first, which makes NaN of the other part."""
    return x + y, x - y, x + complex(0.0, float("inf"))


@case(
    complex_normal(2, 3),
    normal(1),
    normal(1, 1),
    normal(0, 3),
    normal(0, 5),
    normal(0, 4),
    aten="_trilinear constant_pad_nd",
)
def complex_pad_mask_empty_sum(x: Any, one: Any, source: Any, left: Any, middle: Any, right: Any) -> Any:
    """Complex numbers padded by a real one, a mask of one element, and sums over no rows."""
    summed = torch.ops.aten._trilinear(left, middle, right, [1, 3], [2, 3], [1, 2], [0])
    return F.pad(x, (1, 2), value=1.0), F.pad(x, (1, 2)), one.masked_scatter(one != 9, source), summed


@case(complex_normal(4, 5), complex_normal(5), complex_normal())
def complex_functions(x: Any, y: Any, z: Any) -> Any:
    """Roots, sines, truth, and sums of a single number."""
    edges = torch.cat([y, y.real * (0 + 0j), -y.real + 0j, y * 1e20])
    return (
        (x.sqrt(), edges.sqrt(), x.rsqrt(), x.sin(), torch.addcmul(x, x, y, value=2), (x / (0 * y)).isnan()),
        (x.logical_and(0 * y), x.logical_or(y.real), x.logical_xor(y), edges.logical_not(), edges.to(torch.bool)),
        (z.sum(), x.sum(0, dtype=torch.complex64)),
    )


@case(integers(7, below=5), integers(7, below=40), dynamic=False)
def integer_powers(n: Any, exponent: Any) -> Any:
    """They wrap around, and below zero only 1 and -1 have any but 0."""
    base, power = n - 2, (exponent - 6)[:, None]
    small = (base.to(torch.int8), power.to(torch.int8))
    return base**power, small[0] ** small[1], base.int() ** power.int(), 3 ** exponent.int()


@case(normal(3, 0), integers(0, 4), dynamic=False)
def empty_reductions(x: Any, n: Any) -> Any:
    """Sums and products over no elements."""
    return x.sum(1), x.prod(1), x.sum() + 1, n.sum(0), n.prod(0), n.sum(0, dtype=torch.bfloat16)


@case(complex_normal(4, 6), complex_normal(4, 6), integers(3, below=4))
def complex_shapes(x: Any, y: Any, rows: Any) -> Any:
    """Rearranged like any other tensor."""
    return (
        (x.t() * 2, x.reshape(8, 3) + 1, x[1:3, ::2] * y[:2, :3], torch.cat([x, y]), torch.stack([x, y], 1), x[rows]),
        (x.flip(1), x.unsqueeze(1).expand(4, 2, 6) * 1, x.permute(1, 0).contiguous(), F.pad(x, (1, 2)), x.roll(1, 0)),
        (
            x.split(2, 1)[1] * 2,
            x.select(-1, 2) + 1,
            x.index_select(1, rows),
            (x * y).cumsum(0),
            torch.zeros_like(x) + y,
        ),
    )


@case(normal(3, 16), complex_normal(9), dynamic=False, aten="_fft_c2r _fft_r2c")
def fft_filter(x: Any, weight: Any) -> Any:
    """Library transforms with kernels of complex numbers between them."""
    return torch.fft.irfft(torch.fft.rfft(x * 2) * weight, n=16) + x, torch.fft.fft(x).real * 2


@case(
    normal(5, 4),
    integers(6, below=5),
    normal(6, 4),
    integers(6, 3, below=5),
    integers(5, 4, below=50),
    integers(6, 4, below=9),
    aten_if_dynamic="index_reduce scatter scatter_reduce",
)
def scatter_and_index_reduce(a: Any, rows: Any, source: Any, places: Any, n: Any, m: Any) -> Any:
    """Extremes, products and means of what an index names, with and without what was there."""
    b = source[:, :3]
    return (
        (a.index_reduce(0, rows, source, "amax"), a.index_reduce(0, rows, source, "prod", include_self=False)),
        (
            a.index_reduce(0, rows, source, "mean"),
            n.index_reduce(0, rows, m, "amin"),
            n.index_reduce(0, rows, m, "mean"),
        ),
        (a.scatter_reduce(0, places, b, "amax"), a.scatter_reduce(0, places, b, "amin", include_self=False)),
        (
            a.scatter_reduce(0, places, b, "prod"),
            n.scatter_reduce(0, places, m, "mean"),
            a.scatter(0, places, 2.0, reduce="add"),
        ),
    )


@case(normal(4, 6), random_bools(4, 6), normal(24), normal(4), aten_if_dynamic="masked_scatter")
def masked_and_diagonal_scatter(a: Any, mask: Any, source: Any, diagonal: Any) -> Any:
    """Elements that a mask or a diagonal takes from elsewhere."""
    return (
        (a.masked_scatter(mask, source), torch.diagonal_scatter(a, diagonal, 1), a.take(mask.long())),
        torch.diagonal_scatter(a, diagonal[:2], -2),
    )


@case(normal(40), integers(30, below=7), normal(3, 4), normal(3, 5))
def histc_and_trilinear(x: Any, n: Any, a: Any, b: Any) -> Any:
    """Histograms, and products of three."""
    weight = torch.ones(2, 4, 5) + torch.arange(5)
    return x.histc(8), x.histc(5, -1, 1), n.float().histc(7, 0, 6), F.bilinear(a, b, weight)


@case(lambda: torch.cat([torch.linspace(-4.4, 30, 61), torch.tensor([0.0, -0.0, math.inf, math.nan, -3.0, 1e-3])]))
def special_functions(x: Any) -> Any:
    """Series with reflections and poles."""
    return torch.digamma(x), torch.polygamma(1, x.abs() + 0.1), torch.special.spherical_bessel_j0(x), x.angle()


@case(normal(2, 3, 7, 9), normal(1, 2, 5, 6, 7), dynamic=False)
def adaptive_and_dilated_pools(x: Any, y: Any) -> Any:
    """Windows as large as they must be, and windows with gaps."""
    return (
        (
            F.adaptive_max_pool2d(x, (3, 4), return_indices=True),
            F.adaptive_max_pool2d(x, 1),
            F.adaptive_avg_pool3d(y, (2, 3, 3)),
        ),
        (F.max_pool2d(x, 3, 2, 1, dilation=2, return_indices=True), F.max_pool2d(x, 2, 1, dilation=3)),
    )


def _with_nan() -> torch.Tensor:
    x = torch.randn(4, 6)
    x[0, 1], x[2] = math.nan, -math.inf
    return x


@case(_with_nan, integers(4, 6, below=4), aten_if_dynamic="adaptive_max_pool2d scatter_reduce")
def nan_in_scatter_reduce(x: Any, places: Any) -> Any:
    """NaN stays NaN where values are put together, and where windows hold one."""
    start = torch.zeros(4, 6)
    return (
        (start.scatter_reduce(0, places, x, "amax"), start.scatter_reduce(0, places, x, "amin", include_self=False)),
        F.adaptive_max_pool2d(x[None], (2, 3)),
    )


@case(lambda: torch.tensor([0.0, -0.0, 2.0]))
def signed_zeros(x: Any) -> Any:
    """Zeros keep their sign, as what is divided by them shows."""
    return 1 / -x, torch.atan2(-x, x - 1), (-x).signbit(), 1 / (x * -3), torch.copysign(x + 1, -x)


@case(normal(6, 11), integers(6, below=11), normal(6), normal(11), dynamic=False)
def cross_entropy_backward(x: Any, target: Any, each: Any, weight: Any) -> Any:
    """Compute cross entropy gradients for every reduction, ignored samples and weights.

    An ignored class may also be one of the ordinary classes.
    """
    ignored = torch.where(target == 3, -100, target)
    total = torch.full((), 5.0)
    backward = torch.ops.aten.nll_loss_backward
    return (
        torch.ops.aten._log_softmax_backward_data(
            backward(each[0], x, ignored, None, 1, -100, total), x.log_softmax(-1), 1, x.dtype
        ),
        backward(each, x, target, weight.abs(), 0, 3, total),
        backward(each[0], x, target, weight.abs(), 2, 3, total),
    )


@case(normal(3, 9000, dtype=BF16), integers(3, below=9000), dynamic=False)
def one_pass_cross_entropy(x: Any, target: Any) -> Any:
    """Compute cross entropy in one pass over each row, also where blocks are all -inf.

    The pass keeps a running maximum. The first block of a row, or the whole row, may be -inf.
    """
    begins_low = torch.cat([torch.full_like(x[:, :5000], -torch.inf), x], -1)
    return (
        F.cross_entropy(x, target),
        F.cross_entropy(begins_low, target + 5000, reduction="none"),
        torch.logsumexp(torch.full_like(x, -torch.inf), -1),
    )


@case(normal(2, 17000, dtype=BF16), dynamic=False)
def two_pass_softmax(x: Any) -> Any:
    """Rows too long to hold, of which results depend on all of them."""
    return torch.log_softmax(x, -1), torch.softmax(x.float(), -1) * 2


@case(normal(300, dtype=BF16), normal(300, dtype=F16))
def half_precision_activations(x: Any, y: Any) -> Any:
    """What is read in 16 bits, also where the curve is flat or nearly a line."""
    wide = torch.cat([y * 6, y * 1e-3, y.new_tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])])
    return (
        torch.tanh(x),
        torch.tanh(wide),
        F.gelu(x * 3),
        F.gelu(wide[:602]),
        F.gelu(x, approximate="tanh"),
        torch.erf(wide),
    )


def _extreme_angles() -> torch.Tensor:
    ends = torch.tensor([0.0, -0.0, 30000.0, -9000.0, 60000.0, torch.inf, -torch.inf, torch.nan])
    return torch.cat([torch.randn(300) * 50, torch.randn(300) * 1e-3, torch.arange(-160, 160) * math.pi, ends]).to(F16)


@case(_extreme_angles, normal(40, 130, dtype=F16))
def half_precision_sin_sigmoid(x: Any, y: Any) -> Any:
    """Compute sin and sigmoid of small, large and infinite half-precision values.

    They run alone, by rows, and on one value per row.
    """
    one = y.amax(-1, keepdim=True)
    return torch.sin(x), torch.sin(x[:920]), torch.sigmoid(x), torch.sin(y) * torch.sin(one), torch.sigmoid(one)


@case(normal(256, 256), normal(256, 256), dynamic=False, aten="mm")
def buffer_reuse_chain(x: Any, w: Any) -> Any:
    """Kernels that take over each other's memory, in place and one after the other."""
    z = F.gelu(x @ w + 1)
    for k in range(3):
        z = torch.softmax(z.sin() + z.sum(0), -1) * (k + 1)
    y = torch.relu(z @ w) @ w
    return y * 2 + x, (z.t() * 3) @ w


@case(
    integers(4, 5, below=200, dtype=torch.uint8),
    integers(4, 5, below=100, dtype=torch.int8),
    aten="add clamp eq floor_divide gt remainder",
)
def out_of_range_constants(a: Any, b: Any) -> Any:
    """Constants that few bits do not hold are ATen's to wrap around."""
    return (
        (a > -1, a == -1, a.clamp(-100, 250), a % -3, a // -2, ~a, a - 200, a.masked_fill(a > 3, 255)),
        (b > 200, b + 300, torch.where(b > 3, b, 7), b * 127),
    )


@case(normal(2, 3, 7, 9), normal(2, 3, 9), normal(1, 2, 4, 5, 6, dtype=BF16), normal(2, 3, 6, 8), dynamic=False)
def upsample_backward(planes: Any, rows: Any, boxes: Any, doubled: Any) -> Any:
    """Compute upsample gradients: each input element gathers from all outputs made from it.

    Corners are aligned or not.
    """
    aten = torch.ops.aten
    return (
        [aten.upsample_bilinear2d_backward(planes, [7, 9], [2, 3, 4, 5], a, None, None) for a in (False, True)],
        [aten.upsample_bicubic2d_backward(planes, [7, 9], [2, 3, 4, 5], a, None, None) for a in (False, True)],
        [aten.upsample_linear1d_backward(rows, [9], [2, 3, 4], a, 2.1) for a in (False, True)],
        aten.upsample_trilinear3d_backward(boxes, [4, 5, 6], [1, 2, 3, 2, 2], False),
        aten.upsample_nearest2d_backward(doubled, [6, 8], [2, 3, 3, 4], 2.0, 2.0),
        aten.upsample_nearest1d_backward(rows, [9], [2, 3, 4], None),
        aten._upsample_nearest_exact2d_backward(planes, [7, 9], [2, 3, 4, 5], None, None),
    )


@case(_nan_and_inf, dynamic=False)
def linear_interpolation_next_to_infinity(x: Any) -> Any:
    """An infinite neighbor is weighted, not subtracted: NaN only where eager has it."""
    return (
        F.interpolate(x[None], size=7, mode="linear"),
        F.interpolate(x[None, None], size=(7, 5), mode="bilinear"),
        F.interpolate(x[None, None], size=(3, 2), mode="bilinear", align_corners=True),
        F.interpolate(x.reshape(1, 1, 2, 3, 2), size=(3, 5, 4), mode="trilinear"),
    )


@case(normal(2, 3, 8, 12), dynamic=False)
def antialiased_upsample(x: Any) -> Any:
    """Interpolation whose kernel grows where the picture shrinks."""
    return [
        F.interpolate(x, size=size, mode=mode, antialias=True, align_corners=align)
        for size in ((3, 4), (11, 9))
        for mode, align in (("bilinear", False), ("bicubic", True))
    ]


@case(normal(2, 3, 7, 8), normal(2, 3, 4, 5), normal(1, 2, 5, 6, 4), dynamic=False)
def pad_and_adaptive_pool_backward(grad: Any, small: Any, boxes: Any) -> Any:
    """Compute gradients of replication padding, adaptive average pooling and max pooling.

    Max pooling is over 2-D planes and 3-D volumes.
    """
    aten = torch.ops.aten
    best, where = F.adaptive_max_pool2d(small, (2, 3), return_indices=True)
    deep, there = F.max_pool3d(boxes, 3, 2, 1, return_indices=True)
    return (
        (aten.replication_pad2d_backward(grad, small, [2, 1, 0, 3]), aten._adaptive_avg_pool2d_backward(small, grad)),
        (aten.adaptive_max_pool2d_backward(best * 2, small, where), deep, there),
        aten.max_pool3d_with_indices_backward(deep, boxes, [3] * 3, [2] * 3, [1] * 3, [1] * 3, False, there),
        (aten._adaptive_avg_pool2d_backward(grad, small), aten._adaptive_avg_pool3d_backward(deep, boxes)),
        aten.avg_pool3d_backward(deep, boxes, [3] * 3, [2] * 3, [1] * 3, False, False, None),
    )


@case(normal(2, 4, 5), normal(2, 4, 3), normal(2, 5, 3), aten="_cdist_forward")
def cdist_and_weight_norm_backward(grad: Any, a: Any, b: Any) -> Any:
    """Compute gradients of cdist, also between equal points, and of weight norm."""
    b = torch.cat((a[:, 1:2], b[:, 1:]), 1)
    aten, norms = torch.ops.aten, a.norm(dim=(1, 2), keepdim=True)
    return (
        [aten._cdist_backward(grad, a, b, p, torch.cdist(a, b, p)) for p in (0.5, 1.0, 2.0, 3.0, math.inf)],
        aten._weight_norm_interface_backward(a * 2, a, norms * 3, norms, 0),
        (torch.diag_embed(a), torch.diag_embed(grad > 0, -1, 0, 2)),
    )


@case(normal(5, 3), dynamic=False, aten="arange floor_divide remainder")
def pdist(a: Any) -> Any:
    """Of all pairs of rows."""
    return F.pdist(a), F.pdist(a, 1.0)


@case(normal(1), normal(3, 1))
def scans_of_one_element(x: Any, rows: Any) -> Any:
    """There is nothing to run along."""
    return x.cummin(0), x.cumsum(0), x.logcumsumexp(0), x.cumprod(0), rows.cummax(1), rows.cumsum(1)


@case(normal(17, 4), integers(4, 4, below=9))
def diagonals_beside_their_tensor(x: Any, n: Any) -> Any:
    """A symbolic size has several names where a diagonal is as long as a row."""
    return torch.fmax(x[:4], n.diagonal()), n.diagonal() + x[:4]


@case(normal(1, 2100), lambda: torch.rand(3, 50) > 0.2)
def looped_scans(x: Any, mask: Any) -> Any:
    """Scan long rows block by block; readers of a running result may need all of it first.

    Each block continues from the result of the previous one.
    """
    running = (x * 1e-3).cumsum(-1)
    positions = (mask.long().cumsum(-1) - 1).masked_fill(~mask, 1)
    return running / running.abs().amax(-1, keepdim=True), (x * 1e-3 + 1).cumprod(-1), x.cummax(-1), positions


@case(integers(1, 16_400, below=3), dynamic=False)
def integer_cumsum_long_rows(n: Any) -> Any:
    """Whole numbers, of types wide and narrow."""
    return n.cumsum(-1), (n > 1).cumsum(-1), n.to(torch.int8).cumsum(-1, dtype=torch.int8), n.cumprod(-1)


@case(
    integers(6, 5, below=200), integers(6, 5, below=60, dtype=torch.int32), integers(40, below=100, dtype=torch.uint8)
)
def gcd_and_lcm(a: Any, b: Any, c: Any) -> Any:
    """Signs and zeros included."""
    a, b = a - 100, b - 30
    return torch.gcd(a, b), torch.lcm(a, b), torch.gcd(b, b + 6), torch.gcd(c, c // 3), torch.lcm(b, b - b)


@case(normal(3, 4), normal(5), normal(3, 4), normal(5), dynamic=False)
def foreach_ops(a: Any, b: Any, c: Any, d: Any) -> Any:
    """What optimizers and the clipping of gradients do to all parameters at once."""
    x, y, z = [a, b], [c, d], [c.abs() + 1, d.abs() + 1]
    return (
        (torch._foreach_add(x, y, alpha=0.5), torch._foreach_add(x, 2.0), torch._foreach_mul(x, c[0, 0])),
        (torch._foreach_addcdiv(x, y, z, value=-0.1), torch._foreach_addcdiv(x, y, z, [0.1, 0.2])),
        (torch._foreach_addcmul(x, y, z), torch._foreach_lerp(x, y, 0.3), torch._foreach_norm(x)),
        (torch._foreach_sqrt(z), torch._foreach_div(x, z), torch._foreach_clamp_max(x, 0.5), torch._foreach_neg(x)),
    )


@case(
    normal(),
    lambda: torch.tensor(0),
    normal(),
    integers(6, below=9),
    integers(6, 3, below=90, dtype=torch.int8),
    aten_if_dynamic="index_add scatter_add",
)
def scalars_by_index(x: Any, at: Any, s: Any, rows: Any, n: Any) -> Any:
    """A scalar has one place, and few bits wrap around where sums are collected."""
    start = (n - 45).repeat(2, 1)[:9]
    places = rows[:, None].expand(6, 3)
    return (
        (x.index_select(0, at), x.gather(0, at), x.scatter(0, at, s), x.scatter_add(0, at, s), x.index_copy(0, at, s)),
        (
            start.index_add(0, rows, n),
            start.scatter_add(0, places, n),
            start.to(torch.int16).index_add(0, rows, n.to(torch.int16)),
        ),
    )


@case(normal(5), lambda: torch.tensor(2), lambda: torch.tensor(-100), normal(5), normal(3, 0), dynamic=False)
def nll_loss_single_sample(x: Any, at: Any, ignored: Any, weight: Any, none: Any) -> Any:
    """One sample's loss is the loss, and what is put together from nothing is no number."""
    weight = weight.abs()
    return (
        (F.cross_entropy(x, at), F.nll_loss(x, at, weight), F.nll_loss(x, at, weight, reduction="sum")),
        (F.nll_loss(x, ignored, reduction="sum"), F.nll_loss(x, ignored, reduction="none")),
        (none.mean(1), none.var(1), none.std(1, keepdim=True), torch.var_mean(none, 1)),
    )


@case(normal(3, 4), normal(5, dtype=F16), normal(5, dtype=BF16), normal(5, dtype=F64))
def bits_read_as_another_type(x: Any, h: Any, b: Any, d: Any) -> Any:
    """16-bit numbers are rounded before their bits are read."""
    return (
        (
            (x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32),
            (h * 2).view(torch.int16),
            (b + 1).view(torch.float16) * 1,
        ),
        (d.view(torch.int64) + 1, torch.as_strided_scatter(x * 1, x[:2, :3], (2, 3), (6, 2), 1)),
    )


@case(normal(5), normal(7))
def pieces_of_symbolic_sizes(x: Any, y: Any) -> Any:
    """A piece that is known to hold one element is repeated, whatever its size is called."""
    first, second, last = x.tensor_split(3)
    return last * first, second - last, last + y, (last[:, None] + y).sum(0)


@case(normal(40), normal(40), aten="index")
def masked_select_unbacked_size(x: Any, y: Any) -> Any:
    """Compute with unbacked sizes from an ATen count; kernels run before and after it."""
    kept = (x * 2)[y + 1 > 0]
    return (kept.exp() * 3).sum(), kept + 1, torch.cat([kept, x]) * 2


@case(normal(40), integers(5), aten="_local_scalar_dense mul")
def item_values(x: Any, n: Any) -> Any:
    """Use item() numbers as factors, sizes and results; readers wait for a kernel's value."""
    most = (n.sum() + 1).item()
    first = (x * x).sum().item()
    return x * most, torch.zeros(most) + 1, x * first + 1, (x > 9).any().item(), most


@case(normal(40), aten="index")
def unbacked_size_zero(x: Any) -> Any:
    """A size that turns out to be zero."""
    kept = x[x > 1000]
    return kept * 2 + 1, (kept * 3).sum()


@case(normal(6, 4), integers(1, below=4), aten="_local_scalar_dense full select select_scatter slice")
def item_indices(x: Any, n: Any) -> Any:
    """Positions that are counted from the end, or slices that end beyond it."""
    k = n.item() - 5
    y = x.clone()
    y.select(0, k).fill_(7.0)
    return x.select(0, k) * 2, y + 1, x.narrow(0, 1, k + 6) + 1, torch.full((k + 9,), k + 0) + 1


@case(normal(6, 8), normal(3, 5, dtype=F64), integers(4, 3), normal(4, 6, dtype=BF16))
def float_expressions_of_sizes(x: Any, d: Any, n: Any, b: Any) -> Any:
    """Numbers that need not be whole, computed from sizes as Python does."""
    return (
        (
            x / math.sqrt(x.shape[-1]),
            x * (2.5 / x.shape[0]) + x.shape[1] ** 0.5,
            d * (1.0 / d.shape[0]) - d.shape[1] / 7,
        ),
        (n * (1.0 / n.shape[0]), n * float(n.shape[1]), b * (1.0 / b.shape[0]), torch.add(x, x, alpha=1 / x.shape[0])),
        (x.abs() ** (1 / x.shape[0]), x.clamp(-1 / x.shape[0], 2 / x.shape[1]), torch.full((3,), x.shape[0] / 7)),
        (x.masked_fill(x > 0, 1 / x.shape[1]), (x * (1 / x.shape[0])).softmax(-1), (d / d.numel()).sum()),
    )


@case(normal(2, 3, 4, 5), normal(2, 6, 7, 2), normal(2, 3, 6, 7), normal(1, 2, 3, 4, 3), normal(1, 2, 3, 2, 3))
def grid_sample(a: Any, grid: Any, grad: Any, a3: Any, grid3: Any) -> Any:
    """Pictures read where grids say, and gradients for both."""
    read = (torch.ops.aten.grid_sampler_2d(a, grid, mode, mode, mode == 1) for mode in range(3))
    back = (
        torch.ops.aten.grid_sampler_2d_backward(grad, a, grid, 0, padding, padding != 1, [True, True])
        for padding in range(3)
    )
    deep = (torch.ops.aten.grid_sampler_3d(a3, grid3, 0, padding, False) for padding in range(3))
    return tuple(read), tuple(back), tuple(deep)


@case(normal(10, 4), integers(8, below=10), lambda: torch.tensor([0, 2, 2, 6]), normal(8), normal(4, 4), dynamic=False)
def embedding_bag(table: Any, at: Any, offsets: Any, each: Any, grad: Any) -> Any:
    """Sums and means of looked-up rows, an empty bag among them, and their gradients."""
    owner, sizes = torch.tensor([0, 0, 2, 2, 2, 2, 3, 3]), torch.tensor([2, 0, 4, 2])
    backward = torch.ops.aten._embedding_bag_dense_backward
    return (
        F.embedding_bag(at, table, offsets, mode="sum"),
        F.embedding_bag(at, table, offsets, mode="mean", padding_idx=3),
        F.embedding_bag(at, table, offsets, mode="sum", per_sample_weights=each),
        F.embedding_bag(at.view(2, 4), table, mode="mean"),
        backward(grad, at, owner, sizes, sizes, 10, False, 1, None, 3),
        backward(grad, at, owner, sizes, sizes, 10, False, 0, each),
        torch.ops.aten._embedding_bag_per_sample_weights_backward(grad, table, at, offsets, owner, 0),
    )


@case(
    normal(5, 6),
    normal(5, 6, dtype=F16),
    lambda: torch.rand(6) / 9 + 0.05,
    integers(6, below=99, dtype=torch.int32),
    dynamic=False,
)
def fake_quantize(x: Any, h: Any, steps: Any, zeros: Any) -> Any:
    """Rounded to whole steps and back."""
    x, h = x * 9, h * 9
    return (
        torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127),
        torch.fake_quantize_per_tensor_affine(h, 0.1, 3, -50, 60),
        torch.fake_quantize_per_tensor_affine(x, steps[0], zeros[0], 0, 255),
        torch.fake_quantize_per_channel_affine(x, steps, zeros, 1, 0, 255),
    )


def edge_values(*more: float) -> MakeTensor:
    """Numbers of all sizes, and some to take care with."""
    return lambda: torch.cat([torch.randn(30) * 20, torch.tensor(more)])


@case(
    edge_values(0.0, -0.0, 30.0, -31.0, 1e5, -1e20),
    edge_values(0.0, -0.0, math.inf, math.nan, 1e-42, 3e38),
    normal(20, dtype=F64),
)
def series_functions(x: Any, f: Any, d: Any) -> Any:
    """Scaled Bessel functions, quantiles, fractions and exponents."""
    p = torch.cat([torch.sigmoid(x), torch.tensor([0.0, 1.0, 0.5, -1.0, 1e-38])])
    return (
        (torch.special.i0e(x), torch.special.i1e(x), torch.special.i0e(d * 30), torch.special.i1e(d * 30)),
        (torch.frexp(f), torch.frexp(f.half()), torch.frexp(f.double()), torch.special.ndtri(p).clamp(-9, 9)),
    )


@case(
    lambda: torch.rand(40) * 6 - 3,
    lambda: torch.tensor([1.0, 1.5, 2.0, 3.0, 0.5, 2.5, 4.0] * 5 + [2.0] * 5),
    dynamic=False,
)
def zeta_and_its_relatives(x: Any, s: Any) -> Any:
    """Above and below zero, and at its poles."""
    x = torch.where(x.abs() < 0.2, 0.0, x)
    d = x.double()
    return (
        (torch.special.zeta(s.double(), d), torch.special.zeta(2.0, d), torch.special.zeta(s, x.abs() + 0.5)),
        (torch.polygamma(2, d), torch.polygamma(3, d), torch.polygamma(4, x.abs() + 1)),
    )


POLYNOMIALS = (
    *(f"{shifted}chebyshev_polynomial_{kind}" for kind in "tuvw" for shifted in ("", "shifted_")),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
)


@case(lambda: torch.rand(25, dtype=F64) * 3 - 1.5, lambda: torch.arange(25) % 12 - 1, dynamic=False)
def orthogonal_polynomials(x: Any, n: Any) -> Any:
    """Each element's own degree, and one for all."""
    functions = [getattr(torch.special, name) for name in POLYNOMIALS]
    return tuple(f(x, n) for f in functions), tuple(f(x, 3) for f in functions), tuple(f(x[0], n[9]) for f in functions)


@case(lambda: torch.randn(16, 64, 64) + 100, lambda: torch.randn(4096, 24) * 3 - 7, dynamic=False)
def split_variance(x: Any, y: Any) -> Any:
    """Cut in parts, each around its own mean, far from zero."""
    return (
        (x.var().float(), torch.var_mean(x), torch.var_mean(x, (0, 2), correction=0, keepdim=True)),
        (torch.var_mean(y, 0), y.bfloat16().std(0), F.group_norm(x[None, :8], 2)),
    )


@case(lambda: torch.randn(6, 8)[::2, ::2], lambda: torch.randn(4)[::2], dynamic=False)
def clone_keeps_gaps(x: Any, y: Any) -> Any:
    """What eager writes into a copy of a tensor with gaps has these gaps too."""
    return (
        torch.select_scatter(x, x[0] * 2, 0, 1),
        torch.slice_scatter(x, x[:1] + 1, 0, 2),
        y.slice_scatter(y[:1], 0, 1),
    )


@case(lambda: torch.randn(4, 2)[:, :1], lambda: torch.randn(2, 5)[:1], aten="mm")
def symbolic_stride_of_size_one(x: Any, y: Any) -> Any:
    """They are symbols that nothing tells, and do not matter."""
    z = y.transpose(0, 1)
    return z * z, (x + 1).squeeze(), z.round(), x.mT @ x


@case(
    normal(3, 4),
    integers(9),
    lambda: torch.arange(16, dtype=torch.uint8),
    lambda: torch.tensor([2, 0, 4, 6]),
    normal(4, 0),
    aten_if_dynamic="repeat_interleave",
)
def misc_edge_cases(x: Any, n: Any, u: Any, counts: Any, none: Any) -> Any:
    """Compute scalar softmax, high integer powers, repeats, rolls, and any/all of no elements.

    Repeats take counts, and rolls go through rows.
    """
    return (
        (
            x[0, 0].softmax(0),
            x[1, 1].log_softmax(-1),
            u**87,
            n**3,
            n**0,
            x.roll(5),
            x.roll((1, -2), (0, 1)),
            x.roll(-9, 1),
        ),
        (torch.repeat_interleave(x.new_ones(4, 2), counts, dim=0, output_size=12), none.any(1), none.all(1)),
    )


@case(normal(5, 3, 4), normal(3, 5, 4), normal(5, 3, 4), normal(6, dtype=F16), normal(6, dtype=F16))
def lerp(x: Any, y: Any, w: Any, h: Any, g: Any) -> Any:
    """Interpolation from the nearer end, of tensors in different orders."""
    z = y.transpose(0, 1)
    return (
        x.lerp(z, 0.3),
        x.lerp(z, 0.7),
        z.lerp(x, w),
        torch.lerp(x, z, 700.0),
        h.lerp(g, 0.1),
        x.lerp(z, 1 / x.shape[0]),
    )


@case(
    lambda: torch.cat([torch.rand(40) * 3, torch.tensor([0.0, -1.0, 1.0, 50.0, math.inf, math.nan])]),
    lambda: torch.cat([torch.linspace(-20, 9, 43), torch.tensor([math.inf, -math.inf, math.nan])]),
)
def bessel_k_and_airy(x: Any, y: Any) -> Any:
    """Bessel functions of the second kind, and Airy's."""
    special = torch.special
    return (
        special.modified_bessel_k0(x),
        special.modified_bessel_k1(x.double()),
        special.scaled_modified_bessel_k0(x.double()),
        special.scaled_modified_bessel_k1(x),
        special.airy_ai(y),
    )


@case(
    lambda: torch.cat([torch.rand(40) * 9, torch.tensor([0.0, 0.0, 1.0, -1.0, 1.0, math.inf, math.inf, 1.0])]),
    lambda: torch.cat([torch.rand(40) * 9, torch.tensor([0.0, 1.0, 0.0, 1.0, -1.0, 1.0, math.inf, math.inf])]),
)
def incomplete_gammas(a: Any, x: Any) -> Any:
    """Compute lower and upper incomplete gamma functions, also in 16-bit dtypes.

    Eager has no CUDA kernel for the 16-bit dtypes.
    """
    small = F16 if a.device.type == "cpu" else F64
    return torch.special.gammainc(a, x), torch.special.gammaincc(a, x), torch.special.gammainc(a.to(small), x.to(small))


@case(normal(5, 1, 3), normal(1, 6, 3))
def nearest_pair_distance(x: Any, y: Any) -> Any:
    """Distances of all pairs, of which each row keeps the least."""
    far = (x - y).square().sum(-1)
    return far.amin(1), far.sqrt().exp().sum(0), ((x - y).abs().sum(-1) < 1).sum()


@case(lambda: (torch.rand(1, 3, 7) > 0.5).as_strided((1, 3, 7), (7, 0, 0)))
def rows_of_one_element(x: Any) -> Any:
    """Sums over rows that hold one element each, stored beside what they are sums of."""
    y = torch.cat([x, x])
    return y, y.sum(2)


@case(normal(6, 5), normal(40), normal(3, 4), normal(3), dynamic=False, aten="_local_scalar_dense")
def updates_by_numbers_of_their_own(x: Any, y: Any, z: Any, steps: Any) -> Any:
    """Scale each tensor by a number that the host computes for it, as Adam's corrections."""
    numbers = [2 - 0.9 ** step.item() for step in steps]
    return [a - a.sin() * 0.5 / n + a * n for a, n in zip((x, y, z), numbers, strict=True)]


@case(normal(5), normal(4, 6), dynamic=False, aten="_local_scalar_dense")
def float_items(x: Any, y: Any) -> Any:
    """Numbers that are read from tensors are handed to the kernels that compute with them."""
    most = x.max().item()
    return y * most + 1, y.half() * most, y / most - most, y.double() * (most * 2), x.sum().item() * y.sum()


@case(
    lambda: torch.randn(2, 3, 4)[:1, :1, :1],
    lambda: torch.randn(6, 8)[::2, ::3],
    integers(3, below=1),
    aten="index_fill sort",
)
def unbacked_strides(x: Any, y: Any, n: Any) -> Any:
    """What ATen makes of tensors with gaps lies as it likes, and is read where it lies."""
    sorted_rows = torch.sort(y, 1)[0]
    return x.index_fill(1, n, 1.0).sigmoid(), y.index_fill(0, n, 2.0) * 2, sorted_rows + 1, y.t().logcumsumexp(0)


@case(normal(3, dtype=F16), normal(2, 70, dtype=F16), dynamic=False)
def gradient_scaler(x: Any, y: Any) -> Any:
    """Run a gradient scaler: scale gradients, check that all are finite, update the scale."""

    def step(x: Any, y: Any, by: float, scale: float, steps: int) -> Any:
        grads, found = [x.clone(), y.clone()], torch.zeros((), device=x.device)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.full((), by, device=x.device))
        scales = torch.full((), scale, device=x.device)
        counts = torch.full((), steps, dtype=torch.int32, device=x.device)
        torch._amp_update_scale_(scales, counts, found, 2.0, 0.5, 3)
        return (*grads, found, scales, counts)

    bad = torch.where(x > 0, x, math.inf)
    given = [(x, 0.5, 4.0, 0), (x, 1.0, 4.0, 2), (x, 0.5, 3e38, 2), (bad, 0.5, 4.0, 2), (bad, 1.0, 4.0, 1)]
    return tuple(step(a, y, *more) for a, *more in given)


@case(
    *(normal(*shape) for shape in ((40, 30), (7,), (3, 5), (), (2049,), (16,))),
    *(normal(*shape) for shape in ((40, 30), (7,), (3, 5), (), (2049,), (16,))),
    dynamic=False,
)
def updates_of_many_tensors(*given: Any) -> Any:
    """Updates of a list of tensors: their kernels are launched together."""
    weights, grads = given[:6], given[6:]
    scale = torch.stack([g.abs().amax() for g in grads]).amax()
    return [w - 0.1 * torch.tanh(g / (scale + 1.0)) for w, g in zip(weights, grads, strict=True)]


@case(normal(2000), normal(30, 30), normal(700), normal(64), dynamic=False, aten="mm")
def updates_that_depend_on_each_other(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Equal computations, some of which need the results of others or of a product."""
    first = [torch.sin(x) * 2 for x in (a, b, c, d)]
    second = [torch.sin(b @ first[1]) * 2, torch.sin(first[2].flip(0)) * 2, torch.sin(first[3].cumsum(0)) * 2]
    third = [torch.sin(second[0].flip(0)) * 2, torch.sin(second[1].flip(0)) * 2]
    return [*first, *second, *third]


@case(
    lambda: torch.tensor([-7.5, 7.5, -2.5, 1e9]),
    lambda: torch.tensor([2.0, -2.0, 2.0, 3.0]),
    lambda: torch.tensor([-7, 7, (1 << 60) + 1, -1]),
    lambda: torch.tensor([2, -2, 3, -3]),
)
def quotients_sums_and_powers(x: Any, y: Any, n: Any, m: Any) -> Any:
    """Rounding towards zero, multiples of an operand, powers of 1 and -1, and exact ends."""
    truncated = torch.div(x, y, rounding_mode="trunc"), torch.div(n, m, rounding_mode="trunc")
    bases = torch.stack([n.clamp(-1, 1), n.sign().abs(), n % 3 - 1])
    ends = [torch.lerp(x, y, w) for w in (0.0, 0.25, 0.5, 1.0)]
    return (
        *truncated,
        torch.add(x, y, alpha=3),
        torch.sub(n, m, alpha=-2),
        torch.pow(bases.to(torch.int8), m.to(torch.int8)),
        *ends,
    )


@case(normal(5, 4, dtype=F64), integers(5, below=4), normal(5, 4, dtype=F16), dynamic=False)
def losses_in_other_dtypes(x: Any, target: Any, narrow: Any) -> Any:
    """Losses keep the precision of doubles, and add up halves in 32 bits."""
    nll, rows = torch.ops.aten.nll_loss_backward, torch.log_softmax(narrow, 1)
    total = torch.ones((), dtype=F64) * 5
    return (
        (F.nll_loss(x, target), F.nll_loss(rows, target, reduction="sum"), F.nll_loss(x[0], target[0])),
        nll(total / 3, x, target, None, 1, -100, total),
    )


@case(normal(6, 4, 5), normal(3, 4, 5), normal(4, 4))
def windows_and_slices(x: Any, y: Any, square: Any) -> Any:
    """Windows of outer dimensions, writes to every second row, rolls, pads of one side."""
    windows = x.unfold(0, 2, 1), x.unfold(1, 3, 1), torch.slice_scatter(x, y, 0, 0, 6, 2)
    return *windows, torch.roll(square, 5), F.pad(square, (0, 2)), F.pad(square, (1, -1)), torch.tril(square, -1)


@case(normal(4, 3), integers(6, below=4), lambda: torch.tensor([0, 1, 4]), dynamic=False)
def embedding_bags_with_padding(table: Any, tokens: Any, starts: Any) -> Any:
    """Bags without the row that pads, of which one has a single row."""
    bag = torch.ops.aten._embedding_bag
    grads = torch.ops.aten._embedding_bag_dense_backward
    results = []
    for padding in (-1, 0, 2):
        rows, owners, counts, largest = bag(table, tokens, starts, False, 1, False, None, False, padding)
        grad = grads(rows, tokens, owners, counts, largest, 4, False, 1, None, padding)
        results += [rows, grad]
    return results


@case(lambda: torch.full((1, 1, 6, 6), -math.inf), normal(1, 2, 4, 4), lambda: torch.rand(1, 3, 3, 2) * 2 - 1)
def windows_without_numbers(x: Any, image: Any, grid: Any) -> Any:
    """The index of a maximum in windows of nothing but -inf; gradients of an image alone."""
    pooled = F.max_pool2d(x, 3, 1, 1, 2, return_indices=True)
    grad = torch.ops.aten.grid_sampler_2d_backward(torch.ones(1, 2, 3, 3), image, grid, 0, 0, False, [True, False])
    return pooled, grad[0]


@case(
    normal(4, dtype=torch.complex128), normal(4, dtype=torch.complex64), normal(5), integers(5, below=5), dynamic=False
)
def writes_and_complex_comparisons(wide: Any, c: Any, x: Any, n: Any) -> Any:
    """Comparisons of doubles, real parts, additions to values that begin with a constant."""
    start, narrow = (2.0 - x).sin(), x.to(F16)
    added = start.scatter_add(0, n, x), (2 - x).index_add(0, n, x), narrow.index_add(0, n, narrow, alpha=2)
    return wide == wide * (1 + 1e-12), c.real.clone(), c.to(torch.float32), *added


@case(lambda: torch.tensor([1.0, 2.0, 3.0, 5.0, 9.0], dtype=F64), lambda: -torch.linspace(8.5, 30, 9))
def series_far_out(x: Any, y: Any) -> Any:
    """Series are as exact as their dtypes where their last terms count."""
    return torch.polygamma(1, x), torch.special.airy_ai(y), torch.special.spherical_bessel_j0(x / 20)


@case(normal(1031, 1033), dynamic=False)
def sums_of_unequal_parts(x: Any) -> Any:
    """The last part of a long reduction over two dimensions is shorter."""
    return x.sum(), x.amax()
