"""Reductions and normalizations."""

import torch
import torch.nn.functional as F

from tests.programs import program


@program(lambda: (torch.randn(4, 5),))
def sums_and_means(x):
    """Sums and means over all, one and several dimensions."""
    return (
        x.sum(),
        x.sum(0),
        x.sum(dim=-1, keepdim=True),
        x.mean(),
        x.mean((0, 1)),
        x.mean(1, keepdim=True),
        x.sum(dtype=torch.float64),
    )


@program(lambda: (torch.randn(4, 5),))
def extremes(x):
    """Maxima with and without their indices."""
    return x.max(), x.min(), x.amax(1), x.amin(0), x.max(1), x.min(dim=0, keepdim=True), x.argmax(), x.argmin(1)


@program(lambda: (torch.randn(4, 5),))
def max_named_fields(x):
    """Results with named fields unpack and have attributes."""
    result = torch.max(x, dim=1)
    values, indices = result
    return result.values + values, indices


@program(lambda: (torch.randn(4, 5),))
def moments(x):
    """Variance, standard deviation and norms."""
    return (
        x.var(),
        x.var(1, unbiased=False),
        x.std(0),
        x.norm(),
        x.norm(dim=1),
        torch.linalg.vector_norm(x, 1),
        x.var(1, correction=2),
    )


@program(lambda: (torch.randn(4, 5),))
def softmaxes(x):
    """Softmax over both dimensions, log-softmax and logsumexp."""
    return x.softmax(-1), F.softmax(x, dim=0), F.log_softmax(x, dim=1), torch.logsumexp(x, 1)


@program(lambda: (torch.randn(4, 5), torch.ones(5, 5).tril()[:4] == 0))
def softmax_with_mask(scores, mask):
    """Softmax by hand over what the mask lets through."""
    scores = scores.masked_fill(mask, float("-inf"))
    scores = scores - scores.max(dim=-1, keepdim=True).values
    weights = scores.exp()
    return weights / weights.sum(dim=-1, keepdim=True)


@program(lambda: (torch.randn(3, 4, 8), torch.randn(8), torch.randn(8)))
def layer_norm(x, weight, bias):
    """LayerNorm by function."""
    return F.layer_norm(x, (8,), weight, bias, 1e-5), F.layer_norm(x, (4, 8))


@program(lambda: (torch.randn(3, 8), torch.randn(8)))
def rms_norm_by_hand(x, weight):
    """RMSNorm as models write it."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


@program(lambda: (torch.randn(4, 6), torch.tensor([0, 2, 5, 1])))
def losses(logits, labels):
    """Losses of torch.nn.functional."""
    return (
        F.cross_entropy(logits, labels),
        F.nll_loss(logits.log_softmax(1), labels),
        F.mse_loss(logits, logits * 0.5),
        F.l1_loss(logits, logits + 1),
        F.cross_entropy(logits, labels, reduction="none", label_smoothing=0.1),
    )


@program(lambda: (torch.randn(4, 5),))
def scans(x):
    """Cumulative sums, products and maxima."""
    return x.cumsum(1), x.cumprod(0), x.cummax(1), torch.logcumsumexp(x, 1)


@program(lambda: (torch.tensor([[True, False], [True, True]]), torch.randint(0, 9, (3, 4))))
def booleans_and_integers(p, i):
    """Reductions of bools and integers have their own result dtypes."""
    return p.any(), p.all(1), p.sum(), i.sum(1), i.prod(), (i > 4).sum(), i.max(), i.float().mean(), p.any(0)


@program(lambda: (torch.randn(3, 2000),))
def long_rows(x):
    """Rows longer than one block of a kernel."""
    return x.softmax(-1), x.sum(-1), x.max(-1).values


@program(lambda: (torch.randn(1), torch.randn(4, 1)))
def reductions_of_size_one(x, y):
    """Reducing a dimension of size one."""
    return x.sum(), y.sum(1), y.softmax(1), y.mean(1), y.var(1, unbiased=False)


@program(lambda: (torch.randn(4, 4),))
def reduce_then_broadcast(x):
    """A reduction's result goes back to every element, twice."""
    centered = x - x.mean(1, keepdim=True)
    return centered / (centered.pow(2).sum(1, keepdim=True).sqrt() + 1e-6)


@program(lambda: (torch.randn(2, 6, 5, 5),))
def group_norm_and_pool(x):
    """Normalization over groups, pooling."""
    return F.group_norm(x, 3), F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)


@program(lambda: (torch.randn(3, 4).to(torch.bfloat16),))
def half_precision(x):
    """Half-precision reductions accumulate wider and round once."""
    return x.sum(), x.mean(1), x.softmax(1), x.float().sum().to(x.dtype)


def labelled(size):
    return lambda: (torch.randn(size, 5, requires_grad=True), torch.tensor([[0, 2, -1, 1, 3]] * size))


@program(labelled(4), labelled(6), labelled(7))
def labels_after_the_end(x, labels):
    """Labels after the first -1 count neither with fixed nor with symbolic sizes."""
    return torch.nn.functional.multilabel_margin_loss(x * 2, labels)
