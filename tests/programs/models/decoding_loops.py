"""Decoding, search and filter loops, written as people write them."""

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs import program


class Decoder(nn.Module):
    """One step of a recurrent decoder."""

    def __init__(self, vocab=11, dim=8):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, tokens, state):
        state = self.cell(self.emb(tokens), state)
        return torch.log_softmax(self.out(state) * 3, -1), state


class Hypotheses:
    """The best finished sequences."""

    def __init__(self, size, length_penalty=0.7):
        self.size, self.length_penalty, self.beams, self.worst = size, length_penalty, [], 1e9

    def add(self, tokens, score):
        score = score / len(tokens) ** self.length_penalty
        if len(self.beams) < self.size or score > self.worst:
            self.beams.append((score, tokens))
            if len(self.beams) > self.size:
                order = sorted((s, i) for i, (s, _) in enumerate(self.beams))
                del self.beams[order[0][1]]
                self.worst = order[1][0]
            else:
                self.worst = min(score, self.worst)


torch.manual_seed(0)
decoder = Decoder().eval()


@program(*[lambda s=s: (torch.randn(1, 8), *((s,) if s else ())) for s in (0, 3)], breaks=1)
@torch.no_grad()
def search(context, beam=2, steps=3, eos=1):
    """Beams are lists of tensors, their scores numbers."""
    tokens = [torch.tensor([0])]
    beams = [(0.0, tokens, context)]
    done = Hypotheses(beam)
    for _ in range(steps):
        candidates = []
        for score, seq, state in beams:
            logp, new_state = decoder(seq[-1], state)
            top, idx = logp[0].topk(beam)
            for k in range(beam):
                candidates.append((score + top[k].item(), seq + [idx[k : k + 1]], new_state))
        candidates.sort(key=lambda c: c[0], reverse=True)
        beams = []
        for cand in candidates:
            if cand[1][-1].item() == eos:
                done.add(torch.cat(cand[1]), cand[0])
            else:
                beams.append(cand)
            if len(beams) == beam:
                break
        if len(done.beams) >= beam or not beams:
            break
    for score, seq, _ in beams:
        done.add(torch.cat(seq), score)
    best = heapq.nlargest(1, done.beams, key=lambda b: b[0])[0]
    return best[1], best[0], len(done.beams)


@dataclass
class Config:
    """Settings of a model."""

    vocab: int = 13
    dim: int = 8
    heads: int = 2
    layers: int = 1
    eos: int = 3
    theta: float = 10000.0


class Output(NamedTuple):
    """Result of a decoder."""

    logits: torch.Tensor
    past: "DynamicCache | None" = None
    hidden: tuple[torch.Tensor, ...] | None = None


class DynamicCache:
    """Keys and values of each layer, which grow with each token."""

    def __init__(self):
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def get_seq_length(self, layer=0):
        return 0 if len(self.keys) <= layer else self.keys[layer].shape[-2]

    def update(self, k, v, layer):
        if len(self.keys) <= layer:
            self.keys.append(k)
            self.values.append(v)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], k], -2)
            self.values[layer] = torch.cat([self.values[layer], v], -2)
        return self.keys[layer], self.values[layer]


class RMSNorm(nn.Module):
    """Root mean square norm."""

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rotate_half(x):
    """Swap the halves of the last dimension."""
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-b, a), -1)


class Layer(nn.Module):
    """Attention with rotary positions and a gated MLP."""

    def __init__(self, cfg, index):
        super().__init__()
        self.cfg, self.index = cfg, index
        self.qkv, self.o = nn.Linear(cfg.dim, 3 * cfg.dim, bias=False), nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.n1, self.n2 = RMSNorm(cfg.dim), RMSNorm(cfg.dim)
        self.up, self.down = nn.Linear(cfg.dim, 16), nn.Linear(8, cfg.dim)

    def forward(self, x, cos, sin, past):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.cfg.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        if past is not None:
            k, v = past.update(k, v, self.index)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        gate, up = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """A small decoder."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.emb = nn.Embedding(cfg.vocab, cfg.dim)
        self.layers = nn.ModuleList(Layer(cfg, i) for i in range(cfg.layers))
        self.norm = RMSNorm(cfg.dim)
        inv = 1.0 / cfg.theta ** (torch.arange(0, cfg.dim // cfg.heads, 2).float() / (cfg.dim // cfg.heads))
        self.register_buffer("inv_freq", inv, persistent=False)

    def forward(self, ids, past=None, use_cache=True, output_hidden=False):
        if use_cache and past is None:
            past = DynamicCache()
        start = past.get_seq_length() if past is not None else 0
        pos = torch.arange(start, start + ids.shape[1])
        freqs = torch.outer(pos.float(), self.inv_freq)
        emb = torch.cat((freqs, freqs), -1)
        x, hidden = self.emb(ids), ()
        for layer in self.layers:
            if output_hidden:
                hidden += (x,)
            x = layer(x, emb.cos(), emb.sin(), past)
        return Output(F.linear(self.norm(x), self.emb.weight) * 2, past, hidden or None)


torch.manual_seed(0)
llama = Llama(Config()).eval()


@program(*[lambda n=n, b=b: (torch.randint(0, 13, (b, 4)), n) for n, b in ((3, 2), (4, 2))], breaks=1)
@torch.no_grad()
def batch_generate(ids, max_len):
    """Decode a batch until every sequence has ended."""
    unfinished = torch.ones(ids.shape[0], dtype=torch.long)
    past, inp, scores = None, ids, []
    while ids.shape[1] < 4 + max_len:
        out = llama(inp, past)
        nxt = out.logits[:, -1].argmax(-1) * unfinished
        ids = torch.cat([ids, nxt[:, None]], 1)
        inp, past = nxt[:, None], out.past
        scores.append(out.logits[:, -1].max(-1).values)
        unfinished = unfinished * (nxt != llama.cfg.eos).long()
        if unfinished.max() == 0:
            break
    return ids, torch.stack(scores, 1)


class Kalman:
    """State of a Kalman filter."""

    def __init__(self, n=2):
        self.F = torch.eye(n) + 0.1 * torch.diag(torch.ones(n - 1), 1)
        self.H = torch.zeros(1, n)
        self.H[0, 0] = 1
        self.Q, self.R = 0.01 * torch.eye(n), torch.tensor([[0.5]])
        self.x, self.P = torch.zeros(n), torch.eye(n)

    def predict(self):
        self.x, self.P = self.F @ self.x, self.F @ self.P @ self.F.T + self.Q

    def update(self, z):
        y = z - self.H @ self.x
        S = self.H @ self.P @ self.H.T + self.R
        K = torch.linalg.solve(S, self.H @ self.P).T
        self.x = self.x + K @ y
        self.P = (torch.eye(len(self.x)) - K @ self.H) @ self.P
        return y


kf = Kalman()


@program(*[lambda n=n: (torch.randn(n, 1),) for n in (3, 5, 4)], breaks=1)
def filter_series(zs):
    """The state of the filter lives from call to call."""
    states = []
    for z in zs:
        kf.predict()
        if not torch.isnan(z).any():
            kf.update(z)
        states.append(kf.x)
    return torch.stack(states), kf.P.diagonal()


@program(*[lambda n=n: (torch.rand(n, n + 1), 50) for n in (3, 4, 5)], breaks=1)
def sinkhorn(cost, iters):
    """Iterate until the change is small."""
    a, b = torch.full((cost.shape[0],), 1 / cost.shape[0]), torch.full((cost.shape[1],), 1 / cost.shape[1])
    k, u = torch.exp(-cost / 0.1), torch.ones(cost.shape[0])
    for i in range(iters):
        prev = u
        v = b / (k.T @ u)
        u = a / (k @ v)
        if (u - prev).abs().max() < 1e-3:
            break
    plan = u[:, None] * k * v
    return plan, (plan * cost).sum(), i
