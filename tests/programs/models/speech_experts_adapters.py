"""Speech losses, sparse experts, quantized and adapted layers, and private gradients."""

import functools
import math
import re

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

from tests.programs import program

torch.manual_seed(0)


class Transducer(nn.Module):
    """RNN-T forward variables by a loop over the lattice, and CTC beside."""

    def __init__(self, V=5, d=6):
        super().__init__()
        self.enc = nn.GRU(4, d, batch_first=True)
        self.pred = nn.Embedding(V, d)
        self.join = nn.Linear(d, V)

    def forward(self, x, y, xl, yl):
        h, _ = self.enc(x)
        g = self.pred(F.pad(y, (1, 0)))
        lp = self.join(torch.tanh(h[:, :, None] + g[:, None])).log_softmax(-1)
        B, T, U, _ = lp.shape
        blank = lp[..., 0]
        lab = lp[:, :, :-1].gather(-1, y[:, None, :, None].expand(B, T, U - 1, 1)).squeeze(-1)
        a = [[None] * U for _ in range(T)]
        for t in range(T):
            for u in range(U):
                c = []
                if t > 0:
                    c.append(a[t - 1][u] + blank[:, t - 1, u])
                if u > 0:
                    c.append(a[t][u - 1] + lab[:, t, u - 1])
                a[t][u] = torch.stack(c).logsumexp(0) if c else lp.new_zeros(B)
        al = torch.stack([torch.stack(r, 1) for r in a], 1)
        ix = torch.arange(B)
        rnnt = -(al[ix, xl - 1, yl] + blank[ix, xl - 1, yl]).mean()
        ctc = F.ctc_loss(self.join(h).log_softmax(-1).transpose(0, 1), y, xl, yl, zero_infinity=True)
        return rnnt + 0.3 * ctc, ctc.detach()


@program(
    *[
        lambda n=n: (torch.randn(2, n, 4), torch.randint(1, 5, (2, 2)), torch.tensor([n, n - 1]), torch.tensor([2, 1]))
        for n in (4, 4, 5)
    ],
    breaks=1,
)
class RnnT(Transducer):
    """A loss over a lattice of alignments beside CTC."""

    pass


@program(*[lambda n=n: (torch.randn(n, 6),) for n in (8, 8, 10, 7)], breaks=0)
class CapacityMoE(nn.Module):
    """The best experts have a capacity; tokens beyond it are dropped."""

    def __init__(self, d=6, E=3, k=2, cf=1.0):
        super().__init__()
        self.gate = nn.Linear(d, E, bias=False)
        self.w1 = nn.Parameter(torch.randn(E, d, 8) * 0.2)
        self.w2 = nn.Parameter(torch.randn(E, 8, d) * 0.2)
        self.E, self.k, self.cf = E, k, cf
        self.register_buffer("load", torch.zeros(E))
        self.aux = None

    def forward(self, x):
        N, D = x.shape
        p = self.gate(x).softmax(-1)
        w, i = p.topk(self.k, -1)
        cap = max(int(math.ceil(N * self.k / self.E * self.cf)), 1)
        oh = F.one_hot(i, self.E).permute(1, 0, 2).reshape(-1, self.E)
        pos = (oh.cumsum(0) - 1) * oh
        pos = pos.sum(-1).view(self.k, N).t()
        keep = pos < cap
        w = w * keep
        w = w / w.sum(-1, keepdim=True).clamp(min=1e-9)
        disp = torch.zeros(N, self.E, cap)
        disp = disp.index_put(
            (torch.arange(N)[:, None].expand(-1, self.k), i, pos.clamp(max=cap - 1)), keep.float(), accumulate=True
        )
        xe = torch.einsum("nec,nd->ecd", disp, x)
        ye = torch.bmm(F.gelu(torch.bmm(xe, self.w1)), self.w2)
        comb = torch.zeros(N, self.E, cap).index_put(
            (torch.arange(N)[:, None].expand(-1, self.k), i, pos.clamp(max=cap - 1)), w * keep, accumulate=True
        )
        frac = oh.float().mean(0) * self.k
        self.aux = (frac * p.mean(0)).sum() * self.E
        if self.training:
            self.load.mul_(0.9).add_(frac.detach(), alpha=0.1)
        return torch.einsum("nec,ecd->nd", comb, ye), self.aux, cap


class Quant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, zp, lo, hi):
        q = torch.round(x / scale) + zp
        mask = (q >= lo) & (q <= hi)
        ctx.save_for_backward(mask, x, scale)
        ctx.bounds = (lo, hi)
        ctx.zp = zp
        return (q.clamp(lo, hi) - zp) * scale

    @staticmethod
    def backward(ctx, g):
        mask, x, scale = ctx.saved_tensors
        lo, hi = ctx.bounds
        gs = torch.where(
            mask,
            torch.round(x / scale) - x / scale,
            torch.where(x / scale + ctx.zp < lo, float(lo - ctx.zp), float(hi - ctx.zp)),
        )
        return g * mask, (g * gs).sum().reshape(scale.shape) if ctx.needs_input_grad[1] else None, None, None, None


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("lo", torch.tensor(float("inf")))
        self.register_buffer("hi", torch.tensor(float("-inf")))
        self.enabled = True

    def forward(self, x):
        if self.enabled:
            a, b = torch.aminmax(x.detach())
            self.lo.copy_(torch.minimum(self.lo, a))
            self.hi.copy_(torch.maximum(self.hi, b))
        s = (self.hi - self.lo).clamp(min=1e-6) / 255
        return s, (-128 - torch.round(self.lo / s)).clamp(-128, 127)


class QLinear(nn.Linear):
    def __init__(self, *a):
        super().__init__(*a)
        self.obs = Observer()
        self.ws = nn.Parameter(torch.tensor(0.05))

    def forward(self, x):
        s, z = self.obs(x)
        x = torch.fake_quantize_per_tensor_affine(x, s, z.to(torch.int32), -128, 127)
        return F.linear(x, Quant.apply(self.weight, self.ws, 0, -8, 7), self.bias)


@program(*[lambda n=n: (torch.randn(n, 4) * n,) for n in (2, 3, 4)], breaks=0)
class FakeQuantized(nn.Module):
    """Ranges are observed; weights round in the forward, and steps are learned."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(QLinear(4, 6), nn.ReLU(), QLinear(6, 2))

    def forward(self, x):
        y = self.net(x)
        self.net[2].obs.enabled = x.shape[0] < 3
        return y


class LoraLinear(nn.Module):
    def __init__(self, base, r=2, alpha=4):
        super().__init__()
        self.base = base
        self.a = nn.ParameterDict({"default": nn.Parameter(torch.randn(r, base.in_features) * 0.1)})
        self.b = nn.ParameterDict({"default": nn.Parameter(torch.randn(base.out_features, r) * 0.1)})
        self.scaling = {"default": alpha / r}
        self.active = ["default"]
        self.merged = []

    def delta(self, n):
        return self.b[n] @ self.a[n] * self.scaling[n]

    def merge(self):
        for n in self.active:
            if n not in self.merged:
                self.base.weight.data += self.delta(n)
                self.merged.append(n)

    def unmerge(self):
        while self.merged:
            self.base.weight.data -= self.delta(self.merged.pop())

    def forward(self, x):
        y = self.base(x)
        if not self.merged:
            for n in self.active:
                y = y + F.dropout(x, 0.1, self.training) @ self.a[n].t() @ self.b[n].t() * self.scaling[n]
        return y


@program(*[lambda m=m: (torch.randn(3, 4), m) for m in ("keep", "merge", "keep", "unmerge", "keep")], breaks=0)
class Lora(nn.Module):
    """Low-rank updates of layers that a pattern names, merged and taken out again."""

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 4)
        self.ff = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        for p in self.parameters():
            p.requires_grad = False
        targets = re.compile(r"(q|ff\.\d)$")
        for n, m in list(self.named_modules()):
            if targets.match(n) and isinstance(m, nn.Linear):
                parent = self.get_submodule(n.rpartition(".")[0])
                setattr(parent, n.rpartition(".")[2], LoraLinear(m))

    def forward(self, x, mode):
        if mode != "keep":
            for m in self.modules():
                if isinstance(m, LoraLinear):
                    getattr(m, mode)()
        return self.ff(F.relu(self.q(x))), sum(p.numel() for p in self.parameters() if p.requires_grad)


@functools.lru_cache(maxsize=64)
def parse(pattern):
    left, right = (side.strip() for side in pattern.split("->"))

    def side(s):
        out, group = [], None
        for tok in re.findall(r"\(|\)|\w+", s):
            if tok == "(":
                group = []
            elif tok == ")":
                out.append(tuple(group))
                group = None
            elif group is not None:
                group.append(tok)
            else:
                out.append((tok,))
        return out

    return side(left), side(right)


def rearrange(x, pattern, **sizes):
    left, right = parse(pattern)
    known = dict(sizes)
    for names, size in zip(left, x.shape):
        unknown = [n for n in names if n not in known]
        have = math.prod(known[n] for n in names if n in known)
        if len(unknown) > 1:
            raise ValueError(f"cannot infer {unknown} in {pattern!r}")
        if unknown:
            known[unknown[0]] = size // have
        elif have != size:
            raise ValueError(f"{names} has size {have}, not {size}")
    flat = [n for g in left for n in g]
    x = x.reshape([known[n] for n in flat])
    order = [n for g in right for n in g]
    return x.permute([flat.index(n) for n in order]).reshape([math.prod(known[n] for n in g) for g in right])


@program(*[lambda n=n: (torch.randn(n, 8, 6),) for n in (2, 3, 4)], breaks=0)
def einops_like(x):
    """Patterns in strings say how dimensions move."""
    q = rearrange(x, "b t (h d) -> b h t d", h=2)
    w = (q @ q.mT).softmax(-1)
    y = rearrange(w @ q, "b h t d -> b t (h d)")
    z = rearrange(y, "b (p s) d -> (b p) s d", s=2)
    try:
        rearrange(x, "b t (h d) -> b h t d", h=4, d=2)
    except ValueError as e:
        msg = str(e)
    return y, z, msg


mlp = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


@program(*[lambda n=n: (torch.randn(n, 3), torch.randint(0, 2, (n,))) for n in (4, 4, 6)], breaks=0)
def private_sgd(x, y, clip=1.0, noise=0.1, lr=0.1):
    """Gradients of each sample are clipped and summed with noise, for an Adam of functions."""
    params = {k: v.detach() for k, v in mlp.named_parameters()}
    loss = lambda p, a, b: F.cross_entropy(functional_call(mlp, p, (a.unsqueeze(0),)), b.unsqueeze(0))
    gs = vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)
    norm = torch.stack([g.flatten(1).norm(dim=1) for g in gs.values()], 1).norm(dim=1)
    f = (clip / (norm + 1e-6)).clamp(max=1.0)
    g = {k: torch.einsum("n,n...->...", f, v) / len(x) + noise * torch.randn(v.shape[1:]) for k, v in gs.items()}
    m = {k: torch.zeros_like(v) for k, v in params.items()}
    v = {k: torch.zeros_like(p) for k, p in params.items()}
    for t in range(1, 3):
        m = {k: 0.9 * m[k] + 0.1 * g[k] for k in g}
        v = {k: 0.999 * v[k] + 0.001 * g[k] ** 2 for k in g}
        params = {
            k: p - lr * (m[k] / (1 - 0.9**t)) / ((v[k] / (1 - 0.999**t)).sqrt() + 1e-8) for k, p in params.items()
        }
    return params, norm
