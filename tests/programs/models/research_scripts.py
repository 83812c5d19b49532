"""Trees, autocast, detection, flows and checkpoints, written as scripts."""

import collections
import copy
import io
import logging
import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.utils.checkpoint import checkpoint

from tests.programs import program

torch.manual_seed(0)


@dataclass
class Node:
    value: torch.Tensor
    children: list = field(default_factory=list)


def tree(depth):
    return Node(torch.randn(4), [tree(depth - 1) for _ in range(2)] if depth else [])


@program(lambda: (tree(1),), lambda: (tree(1),), lambda: (tree(2),), breaks=0)
class TreeLSTM(nn.Module):
    """Recursion over trees."""

    def __init__(self, d=4):
        super().__init__()
        self.iou = nn.Linear(d, 3 * d)
        self.u = nn.Linear(d, 3 * d, bias=False)
        self.f = nn.Linear(d, d)
        self.uf = nn.Linear(d, d, bias=False)

    def visit(self, n):
        kids = [self.visit(c) for c in n.children]
        hs = sum((h for h, _ in kids), torch.zeros(4))
        i, o, u = (self.iou(n.value) + self.u(hs)).chunk(3)
        c = i.sigmoid() * u.tanh() + sum((self.f(n.value) + self.uf(h)).sigmoid() * c for h, c in kids)
        return o.sigmoid() * c.tanh(), c

    def forward(self, root):
        return self.visit(root)[0].sum()


amp_net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
amp_opt = torch.optim.AdamW(amp_net.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
log = logging.getLogger("train")


@program(*[lambda n=n: (torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (4, 4, 6, 6)], breaks=2, tolerance=1e-2)
def amp_step(x, y):
    """Autocast, a checkpoint, and a scaler."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = checkpoint(amp_net[:3], x, use_reentrant=False)
        out = amp_net[3](h)
        loss = F.cross_entropy(out.float(), y)
    scaler.scale(loss).backward()
    scaler.unscale_(amp_opt)
    n = nn.utils.clip_grad_norm_(amp_net.parameters(), 1.0)
    scaler.step(amp_opt)
    scaler.update()
    amp_opt.zero_grad(set_to_none=True)
    log.debug("loss %s", loss)
    return loss.detach(), out.dtype, scaler.get_scale()


def iou(a, b):
    lt = torch.max(a[:, None, :2], b[None, :, :2])
    rb = torch.min(a[:, None, 2:], b[None, :, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    area = lambda t: (t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1])
    return inter / (area(a)[:, None] + area(b) - inter + 1e-6)


def nms(boxes, scores, thr):
    keep = []
    order = scores.argsort(descending=True)
    while order.numel() > 0:
        i = order[0]
        keep.append(i.item())
        if order.numel() == 1:
            break
        order = order[1:][iou(boxes[i][None], boxes[order[1:]])[0] <= thr]
    return torch.tensor(keep, dtype=torch.long)


def boxes(n):
    xy = torch.rand(n, 2) * 4
    return torch.cat([xy, xy + 1 + torch.rand(n, 2) * 2], 1)


@program(*[lambda n=n: (boxes(n), torch.rand(n), boxes(2), torch.randn(n, 4)) for n in (6, 6, 8)], breaks=3)
def detection(anchors, scores, gt, deltas):
    """Anchors match, boxes are filtered, and the best of those that overlap stay."""
    m = iou(gt, anchors)
    best, which = m.max(0)
    labels = torch.full((len(anchors),), -1.0)
    labels[best < 0.3] = 0
    labels[best >= 0.5] = 1
    labels[m.argmax(1)] = 1
    pos = torch.where(labels > 0)[0]
    t = gt[which[pos]] - anchors[pos]
    loss = F.smooth_l1_loss(deltas[pos], t, reduction="sum") / max(len(pos), 1) + F.binary_cross_entropy(
        scores[labels >= 0], labels[labels >= 0]
    )
    dec = (anchors + deltas * 0.1).clamp(0, 6)
    k = scores > 0.2
    kept = nms(dec[k], scores[k], 0.5)
    return loss, kept, dec[k][kept], {"pos": pos.tolist(), "n": int((labels == 0).sum())}


class Coupling(nn.Module):
    def __init__(self, d, flip):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d // 2, 8), nn.ReLU(), nn.Linear(8, d))
        self.flip = flip

    def forward(self, x, inverse=False):
        a, b = x.chunk(2, -1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, -1)
        s = torch.tanh(s)
        b = (b - t) * torch.exp(-s) if inverse else b * torch.exp(s) + t
        return torch.cat([b, a] if self.flip else [a, b], -1), (-s if inverse else s).sum(-1)


@program(*[lambda n=n: (torch.randn(n, 4),) for n in (3, 3, 5)], breaks=1)
class FlowVAE(nn.Module):
    """Couplings that invert, between distributions."""

    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(4, 8)
        self.dec = nn.Linear(4, 4)
        self.flows = nn.ModuleList(Coupling(4, i % 2) for i in range(2))

    def forward(self, x):
        mu, lv = self.enc(x).chunk(2, -1)
        qd = Independent(Normal(mu, F.softplus(lv) + 1e-3), 1)
        z = z0 = qd.rsample()
        ld = 0.0
        for f in self.flows:
            z, l = f(z)
            ld = ld + l
        back = z
        for f in reversed(self.flows):
            back, _ = f(back, inverse=True)
        prior = Independent(Normal(torch.zeros(4), torch.ones(4)), 1)
        px = Normal(self.dec(z), 1.0)
        kl = qd.log_prob(z0) - ld - prior.log_prob(z)
        return (
            (kl - px.log_prob(x).sum(-1)).mean(),
            torch.allclose(back, z0, atol=1e-4),
            kl_divergence(Normal(mu, 1.0), Normal(0.0, 1.0)).sum(),
        )


class Meter:
    def __init__(self):
        self.sum = collections.defaultdict(float)
        self.n = collections.Counter()

    def update(self, **kw):
        for k, v in kw.items():
            self.sum[k] += v.item() if torch.is_tensor(v) else v
            self.n[k] += 1

    def __str__(self):
        return "  ".join(f"{k}: {self.sum[k] / self.n[k]:.3f}" for k in sorted(self.sum))


ck_net = nn.Linear(3, 2)
best = {"loss": math.inf, "state": None, "epoch": -1}


@program(*[lambda n=n: (torch.randn(n, 3), torch.randn(n, 2), e) for e, n in enumerate((4, 4, 6))], breaks=4)
def evaluate_and_save(x, y, epoch):
    """Metrics are printed; the best weights are saved in memory and loaded again."""
    meter = Meter()
    ck_net.eval()
    with torch.inference_mode():
        for xb, yb in zip(x.split(2), y.split(2)):
            o = ck_net(xb)
            meter.update(loss=F.mse_loss(o, yb), mae=(o - yb).abs().mean())
    print(f"[{epoch:03d}] {meter}")
    loss = meter.sum["loss"] / meter.n["loss"]
    if loss < best["loss"]:
        buf = io.BytesIO()
        torch.save(ck_net.state_dict(), buf)
        best.update(loss=loss, state=copy.deepcopy(ck_net.state_dict()), epoch=epoch)
    with torch.no_grad():
        ck_net.weight.mul_(0.9)
    if epoch == 2:
        ck_net.load_state_dict(best["state"])
    return loss, {k: v.sum().item() for k, v in ck_net.state_dict().items()}, best["epoch"]


@program(*[lambda: (torch.randn(2, 3),)] * 3, breaks=1)
class AdaptiveSolver(nn.Module):
    """Steps whose sizes depend on their error; floats pass from graph to graph."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.evaluations = 0

    def derivative(self, t, y):
        self.evaluations += 1
        return self.rate(torch.cat([y, torch.full_like(y[..., :1], t)], -1))

    def forward(self, y):
        h, t = 0.5, 0.0
        while t < 1 - 1e-9:
            h = min(h, 1 - t)
            first = self.derivative(t, y)
            second = self.derivative(t + h, y + h * first)
            error = h / 2 * (second - first).norm()
            if error < 0.5:
                y = y + h / 2 * (first + second)
                t += h
            h *= float(torch.clamp(0.9 * (0.5 / (error + 1e-8)) ** 0.5, 0.3, 2.0).detach())
        return y, self.evaluations
