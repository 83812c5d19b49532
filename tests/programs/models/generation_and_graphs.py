"""Generation, state-space models, diffusion and graph networks, written like libraries."""

import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.programs import program

torch.manual_seed(0)


class ModelOutput(OrderedDict):
    """HF-style output: dataclass + ordered dict."""

    def __post_init__(self):
        for f in fields(self):
            v = getattr(self, f.name)
            if v is not None:
                self[f.name] = v

    def __getitem__(self, k):
        if isinstance(k, str):
            return dict(self.items())[k]
        return self.to_tuple()[k]

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())


@dataclass
class CausalOutput(ModelOutput):
    loss: torch.Tensor | None = None
    logits: torch.Tensor = None
    past: object = None
    hidden: tuple | None = None


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class Rope(nn.Module):
    def __init__(self, dim, base=100.0):
        super().__init__()
        self.register_buffer("inv", 1.0 / base ** (torch.arange(0, dim, 2).float() / dim), persistent=False)

    @torch.no_grad()
    def forward(self, x, pos):
        f = (self.inv[None, :, None].float() @ pos[:, None, :].float()).transpose(1, 2)
        e = torch.cat((f, f), -1)
        return e.cos().to(x.dtype), e.sin().to(x.dtype)


class Cache:
    def __init__(self):
        self.k, self.v, self.seen = [], [], 0

    def update(self, k, v, layer):
        if layer == 0:
            self.seen += k.shape[-2]
        if len(self.k) <= layer:
            self.k.append(k)
            self.v.append(v)
        else:
            self.k[layer] = torch.cat([self.k[layer], k], -2)
            self.v[layer] = torch.cat([self.v[layer], v], -2)
        return self.k[layer], self.v[layer]

    def get_seq_length(self, layer=0):
        return self.k[layer].shape[-2] if len(self.k) > layer else 0

    def __len__(self):
        return len(self.k)


class Attn(nn.Module):
    def __init__(self, d, h, kv, layer):
        super().__init__()
        self.h, self.kv, self.hd, self.layer = h, kv, d // h, layer
        self.q = nn.Linear(d, d, bias=False)
        self.k = nn.Linear(d, kv * self.hd, bias=False)
        self.v = nn.Linear(d, kv * self.hd, bias=False)
        self.o = nn.Linear(d, d, bias=False)

    def forward(self, x, cs, mask, cache):
        B, T, _ = x.shape
        q = self.q(x).view(B, T, self.h, self.hd).transpose(1, 2)
        k = self.k(x).view(B, T, self.kv, self.hd).transpose(1, 2)
        v = self.v(x).view(B, T, self.kv, self.hd).transpose(1, 2)
        c, s = (t.unsqueeze(1) for t in cs)
        q = q * c + rotate_half(q) * s
        k = k * c + rotate_half(k) * s
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        k = k.repeat_interleave(self.h // self.kv, 1)
        v = v.repeat_interleave(self.h // self.kv, 1)
        w = q @ k.transpose(-1, -2) / math.sqrt(self.hd)
        if mask is not None:
            w = w + mask[:, :, :, : k.shape[-2]]
        return self.o((F.softmax(w, -1, dtype=torch.float32).to(q.dtype) @ v).transpose(1, 2).reshape(B, T, -1))


class LM(nn.Module):
    def __init__(self, V=17, d=8, L=2):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.layers = nn.ModuleList(Attn(d, 4, 2, i) for i in range(L))
        self.rope = Rope(2)
        self.head = nn.Linear(d, V, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids, cache=None, labels=None, output_hidden=False, use_cache=True):
        if use_cache and cache is None:
            cache = Cache()
        past = cache.get_seq_length() if cache is not None else 0
        pos = torch.arange(past, past + ids.shape[1])[None]
        x = self.emb(ids)
        T = ids.shape[1]
        mask = torch.full((T, past + T), torch.finfo(x.dtype).min).triu(past + 1)[None, None] if T > 1 else None
        cs = self.rope(x, pos)
        hid = () if output_hidden else None
        for l in self.layers:
            if output_hidden:
                hid += (x,)
            x = x + l(F.rms_norm(x, (x.shape[-1],)), cs, mask, cache)
        logits = self.head(x)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return CausalOutput(loss=loss, logits=logits, past=cache, hidden=hid)


lm = LM()


class Warpers(list):
    def __call__(self, ids, scores):
        for p in self:
            scores = p(ids, scores)
        return scores


class Temperature:
    def __init__(self, t):
        self.t = t

    def __call__(self, ids, s):
        return s / self.t


class TopK:
    def __init__(self, k):
        self.k = k

    def __call__(self, ids, s):
        return s.masked_fill(s < torch.topk(s, min(self.k, s.size(-1)))[0][..., -1, None], -float("inf"))


class TopP:
    def __init__(self, p):
        self.p = p

    def __call__(self, ids, s):
        sl, si = torch.sort(s, descending=False)
        rem = sl.softmax(-1).cumsum(-1) <= 1 - self.p
        rem[..., -1:] = 0
        return s.masked_fill(rem.scatter(1, si, rem), -float("inf"))


class Repetition:
    def __init__(self, p):
        self.p = p

    def __call__(self, ids, s):
        sc = torch.gather(s, 1, ids)
        sc = torch.where(sc < 0, sc * self.p, sc / self.p)
        return s.scatter(1, ids, sc)


warpers = Warpers([Repetition(1.2), Temperature(0.8), TopK(8), TopP(0.9)])


@program(*[lambda n=n: (torch.randint(0, 17, (2, n)), 4) for n in (3, 3, 4)], breaks=1)
@torch.no_grad()
def sample_with_cache(ids, new, eos=3):
    """Sampling through warpers, with a cache of keys and values."""
    cache = None
    done = torch.zeros(ids.shape[0], dtype=torch.long)
    cur = ids
    for _ in range(new):
        out = lm(cur, cache)
        cache = out.past
        probs = warpers(ids, out.logits[:, -1].float()).softmax(-1)
        nxt = torch.multinomial(probs, 1).squeeze(1)
        nxt = torch.where(done.bool(), 0, nxt)
        ids = torch.cat([ids, nxt[:, None]], -1)
        cur = nxt[:, None]
        done = done | (nxt == eos).long()
        if done.min() == 1:
            break
    return ids, cache.seen, len(cache)


@program(*[lambda n=n: (torch.randint(0, 17, (2, n)),) for n in (3, 5, 4)], breaks=0)
def model_output(ids):
    """An output that is a dataclass and an ordered dict."""
    out = lm(ids, labels=ids, output_hidden=True, use_cache=False)
    return (
        out,
        out["loss"],
        out[0] is out.loss,
        list(out),
        len(out.to_tuple()),
        out.past is None,
        {k: v.shape for k, v in out.items() if k == "logits"},
    )


class SSM(nn.Module):
    """selective scan"""

    def __init__(self, d=4, n=3, r=2):
        super().__init__()
        self.inp = nn.Linear(d, 2 * d)
        self.conv = nn.Conv1d(d, d, 3, groups=d, padding=2)
        self.xp = nn.Linear(d, r + 2 * n)
        self.dt = nn.Linear(r, d)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, n + 1).float().repeat(d, 1)))
        self.D = nn.Parameter(torch.ones(d))
        self.out = nn.Linear(d, d)
        self.r, self.n = r, n
        with torch.no_grad():
            self.dt.bias.copy_(torch.linspace(-3, -1, d))
            self.dt.bias._no_reinit = True

    def forward(self, x, state=None):
        B, L, _ = x.shape
        u, z = self.inp(x).chunk(2, -1)
        u = F.silu(self.conv(u.mT)[..., :L].mT)
        dt, Bm, C = self.xp(u).split([self.r, self.n, self.n], -1)
        dt = F.softplus(self.dt(dt))
        A = -torch.exp(self.A_log.float())
        dA = torch.einsum("bld,dn->bldn", dt, A).exp()
        dB = torch.einsum("bld,bln,bld->bldn", dt, Bm, u)
        h = x.new_zeros(B, u.shape[-1], self.n) if state is None else state
        ys = []
        for t in range(L):
            h = dA[:, t] * h + dB[:, t]
            ys.append(torch.einsum("bdn,bn->bd", h, C[:, t]))
        y = torch.stack(ys, 1) + u * self.D
        return self.out(y * F.silu(z)), h


@program(
    *[lambda n=n: (torch.randn(2, n, 4),) for n in (4, 4, 6, 3)],
    lambda: (torch.randn(2, 1, 4), torch.randn(2, 4, 3)),
    breaks=0,
)
class Mamba(SSM):
    """A selective scan, step by step, with a state to go on from."""

    pass


@dataclass
class StepOutput:
    prev: torch.Tensor
    x0: torch.Tensor | None = None


class DDIM:
    """scheduler class w/ timesteps by numpy"""

    order = 1

    def __init__(self, n=20, beta=(1e-3, 0.02)):
        self.betas = torch.linspace(beta[0] ** 0.5, beta[1] ** 0.5, n) ** 2
        self.acp = torch.cumprod(1 - self.betas, 0)
        self.n = n
        self.timesteps = None
        self.config = {"clip": True}

    def set_timesteps(self, k):
        self.k = k
        ts = (np.arange(0, k) * (self.n // k)).round()[::-1].copy().astype(np.int64)
        self.timesteps = torch.from_numpy(ts)

    def step(self, eps, t, x, eta=0.0, generator=None):
        prev = t - self.n // self.k
        a = self.acp[t]
        ap = self.acp[prev] if prev >= 0 else torch.tensor(1.0)
        x0 = (x - (1 - a) ** 0.5 * eps) / a**0.5
        if self.config["clip"]:
            x0 = x0.clamp(-1, 1)
        var = (1 - ap) / (1 - a) * (1 - a / ap)
        std = eta * var**0.5
        out = ap**0.5 * x0 + (1 - ap - std**2) ** 0.5 * eps
        if eta > 0:
            out = out + std * torch.randn(out.shape, generator=generator)
        return StepOutput(out, x0)

    def add_noise(self, x, n, t):
        a = self.acp[t].view(-1, *[1] * (x.ndim - 1))
        return a.sqrt() * x + (1 - a).sqrt() * n


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(2, 4, 3, padding=1)
        self.t = nn.Linear(4, 4)
        self.gn = nn.GroupNorm(2, 4)
        self.d = nn.Conv2d(4, 4, 3, 2, 1)
        self.u = nn.ConvTranspose2d(4, 4, 4, 2, 1)
        self.o = nn.Conv2d(8, 2, 1)

    def forward(self, x, t, **kw):
        t = torch.as_tensor(t).expand(x.shape[0])
        h = torch.exp(-math.log(100) * torch.arange(2) / 2)
        e = t[:, None].float() * h
        e = torch.cat([e.sin(), e.cos()], -1)
        a = F.silu(self.gn(self.a(x)) + self.t(e)[..., None, None])
        return self.o(torch.cat([self.u(F.silu(self.d(a))), a], 1))


unet, ddim = UNet(), DDIM()


@program(*[lambda n=n: (torch.randn(n, 2, 4, 4),) for n in (2, 2, 3)], breaks=0)
def diffusion_loss(x):
    """A loss weighted by the ratio of signal and noise."""
    t = torch.randint(0, 20, (len(x),))
    n = torch.randn_like(x)
    snr = ddim.acp[t] / (1 - ddim.acp[t])
    w = torch.minimum(snr, torch.full_like(snr, 5.0)) / snr
    return (w * F.mse_loss(unet(ddim.add_noise(x, n, t), t), n, reduction="none").mean([1, 2, 3])).mean()


def scatter(src, index, n, reduce="sum"):
    ix = index.view(-1, *[1] * (src.ndim - 1)).expand_as(src)
    out = src.new_zeros(n, *src.shape[1:])
    if reduce == "sum":
        return out.scatter_add_(0, ix, src)
    return out.scatter_reduce_(0, ix, src, reduce=reduce, include_self=False)


class GATConv(nn.Module):
    def __init__(self, i, o, h=2):
        super().__init__()
        self.l = nn.Linear(i, o * h, bias=False)
        self.a = nn.Parameter(torch.randn(1, h, 2 * o) * 0.1)
        self.h, self.o = h, o

    def forward(self, x, ei):
        n = x.size(0)
        src, dst = ei
        x = self.l(x).view(-1, self.h, self.o)
        e = F.leaky_relu((torch.cat([x[src], x[dst]], -1) * self.a).sum(-1), 0.2)
        m = scatter(e, dst, n, "amax")[dst]
        e = (e - m).exp()
        e = e / (scatter(e, dst, n)[dst] + 1e-16)
        return scatter(x[src] * e.unsqueeze(-1), dst, n).mean(1)


Batch = namedtuple("Batch", "x edge_index batch")


def graph(n, e, g):
    return Batch(torch.randn(n, 3), torch.randint(0, n, (2, e)), torch.arange(n) % g)


@program(
    lambda: (graph(6, 10, 2),),
    lambda: (graph(6, 10, 2),),
    lambda: (graph(8, 13, 3),),
    lambda: (graph(7, 9, 2),),
    breaks=0,
)
class GNN(nn.Module):
    """Attention over edges by scattering, and pooling of graphs in a batch."""

    def __init__(self):
        super().__init__()
        self.c1 = GATConv(3, 4)
        self.c2 = GATConv(4, 4)
        self.out = nn.Linear(8, 2)

    def forward(self, data):
        x, ei, b = data
        loops = torch.arange(x.size(0)).repeat(2, 1)
        ei = torch.cat([ei[:, ei[0] != ei[1]], loops], 1)
        x = F.elu(self.c1(x, ei))
        x = F.dropout(self.c2(x, ei), 0.2, self.training)
        g = int(b.max()) + 1
        cnt = torch.bincount(b, minlength=g).clamp(min=1).unsqueeze(1)
        return F.log_softmax(self.out(torch.cat([scatter(x, b, g) / cnt, scatter(x, b, g, "amax")], 1)), -1)
