"""Models and training steps with state beside their parameters, as people write them."""

import copy
import random
from collections import deque, namedtuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.torch_version import TorchVersion

from tests.programs import program

#: Whether a copy into a part of unknown size stays in a graph: torch before 2.13 asks if the sizes are equal.
COPIES_UNKNOWN_SIZES = TorchVersion(torch.__version__) >= (2, 13)

Transition = namedtuple("Transition", "state action reward next_state done")


class ReplayBuffer:
    """Transitions in a bounded deque."""

    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, n):
        return random.sample(self.memory, n)

    def __len__(self):
        return len(self.memory)


class Agent:
    """A Q-network with its target and its buffer."""

    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.target = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.target.load_state_dict(self.policy.state_dict())
        self.buffer = ReplayBuffer(12)
        self.steps, self.gamma, self.epsilon = 0, 0.9, 0.3

    def act(self, state):
        self.steps += 1
        if random.random() < self.epsilon:
            return random.randrange(2)
        with torch.no_grad():
            return self.policy(state).argmax().item()

    def soft_update(self, tau=0.1):
        with torch.no_grad():
            for t, p in zip(self.target.parameters(), self.policy.parameters()):
                t.mul_(1 - tau).add_(p, alpha=tau)

    def loss(self, n):
        batch = Transition(*zip(*self.buffer.sample(n)))
        states, actions = torch.stack(batch.state), torch.tensor(batch.action)
        rewards = torch.tensor(batch.reward)
        mask = torch.tensor([not d for d in batch.done])
        q = self.policy(states).gather(1, actions[:, None]).squeeze(1)
        with torch.no_grad():
            nxt = torch.zeros(n)
            nxt[mask] = self.target(torch.stack([s for s, d in zip(batch.next_state, batch.done) if not d])).amax(1)
        return F.smooth_l1_loss(q, rewards + self.gamma * nxt)


torch.manual_seed(0)
agent = Agent()


@program(*[lambda n=n: (torch.randn(4), n) for n in (5, 3, 6)], breaks=2, steady=False)
def episode(state, steps):
    """Act, remember, and learn from a sample."""
    total = 0.0
    for t in range(steps):
        action = agent.act(state)
        nxt = state * 0.9 + 0.1 * action
        reward = float(1.0 - 0.1 * t)
        agent.buffer.push(state, action, reward, nxt, t == steps - 1)
        state, total = nxt, total + reward
    if len(agent.buffer) >= 4:
        loss = agent.loss(4)
        agent.soft_update()
        return loss, total
    return None, total


@program(
    *[lambda b=b: (torch.randn(b, 5), torch.randn(b, 5)) for b in (4, 2, 16)], breaks=1 if COPIES_UNKNOWN_SIZES else 2
)
class MoCo(nn.Module):
    """Contrastive learning with a momentum encoder and a queue."""

    def __init__(self, dim=4, k=16, m=0.9, t=0.2):
        super().__init__()
        self.k, self.m, self.t = k, m, t
        self.encoder_q = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, dim))
        self.encoder_k = copy.deepcopy(self.encoder_q)
        for p in self.encoder_k.parameters():
            p.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, k), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))
        self.history = {"loss": [], "step": 0}

    @torch.no_grad()
    def _momentum_update(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data = k.data * self.m + q.data * (1.0 - self.m)

    @torch.no_grad()
    def _enqueue(self, keys):
        n = keys.shape[0]
        ptr = int(self.queue_ptr)
        assert self.k % n == 0
        self.queue[:, ptr : ptr + n] = keys.T
        self.queue_ptr[0] = (ptr + n) % self.k

    def forward(self, a, b):
        q = F.normalize(self.encoder_q(a), dim=1)
        with torch.no_grad():
            self._momentum_update()
            perm = torch.randperm(b.shape[0])
            k = F.normalize(self.encoder_k(b[perm])[torch.argsort(perm)], dim=1)
        pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([pos, neg], dim=1) / self.t
        labels = torch.zeros(logits.shape[0], dtype=torch.long)
        self._enqueue(k)
        loss = F.cross_entropy(logits, labels)
        self.history["loss"].append(loss.detach())
        self.history["step"] += 1
        return loss, (logits.argmax(1) == labels).float().mean()


class STE(torch.autograd.Function):
    """Round with a straight-through gradient."""

    @staticmethod
    def forward(ctx, x, scale, zp, lo, hi):
        q = torch.clamp(torch.round(x / scale) + zp, lo, hi)
        ctx.save_for_backward((q > lo) & (q < hi))
        return (q - zp) * scale

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask, None, None, None, None


class EmaObserver(nn.Module):
    """Fake quantization in a range that follows the data."""

    def __init__(self, bits=8, momentum=0.9):
        super().__init__()
        self.bits, self.momentum = bits, momentum
        self.register_buffer("lo", torch.tensor(float("inf")))
        self.register_buffer("hi", torch.tensor(float("-inf")))
        self.register_buffer("initialized", torch.tensor(False))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                lo, hi = x.aminmax()
                if not self.initialized:
                    self.lo.copy_(lo)
                    self.hi.copy_(hi)
                    self.initialized.fill_(True)
                else:
                    self.lo.mul_(self.momentum).add_(lo, alpha=1 - self.momentum)
                    self.hi.mul_(self.momentum).add_(hi, alpha=1 - self.momentum)
        scale = (self.hi.clamp(min=0) - self.lo.clamp(max=0)) / (2**self.bits - 1)
        scale = torch.maximum(scale, torch.tensor(1e-8))
        zp = (-self.lo / scale).round().clamp(0, 2**self.bits - 1)
        return STE.apply(x, scale, zp, 0, 2**self.bits - 1)


@program(*[lambda b=b: (torch.randn(b, 4),) for b in (3, 5, 4)])
class HandQAT(nn.Module):
    """Quantization-aware training by hand."""

    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.o1, self.o2 = nn.Linear(4, 8), nn.Linear(8, 2), EmaObserver(), EmaObserver(4)

    def forward(self, x):
        return self.l2(self.o2(torch.relu(self.l1(self.o1(x)))))


def scatter(src, index, dim_size, reduce="sum"):
    """Reduce rows by index."""
    out = src.new_zeros(dim_size, *src.shape[1:])
    if reduce == "sum":
        return out.index_add_(0, index, src)
    if reduce == "mean":
        count = torch.bincount(index, minlength=dim_size).clamp(min=1)
        return out.index_add_(0, index, src) / count.unsqueeze(-1)
    return out.scatter_reduce_(0, index[:, None].expand_as(src), src, reduce, include_self=False)


def segment_softmax(score, index, n):
    """Softmax over the edges of each node."""
    peak = scatter(score, index, n, "amax")[index]
    e = (score - peak).exp()
    return e / (scatter(e, index, n)[index] + 1e-16)


class GATLayer(nn.Module):
    """Graph attention."""

    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads, self.lin = heads, nn.Linear(dim, dim, bias=False)
        self.att = nn.Parameter(torch.randn(1, heads, 2 * dim // heads))

    def forward(self, x, edge_index):
        n = x.size(0)
        h = self.lin(x).view(n, self.heads, -1)
        src, dst = edge_index
        score = (torch.cat([h[src], h[dst]], -1) * self.att).sum(-1)
        alpha = segment_softmax(nn.functional.leaky_relu(score, 0.2), dst, n)
        return scatter((h[src] * alpha[..., None]).flatten(1), dst, n) + x


class Batch(dict):
    """A dict whose items are attributes."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as e:
            raise AttributeError(name) from e

    __setattr__ = dict.__setitem__

    @property
    def num_graphs(self):
        return int(self.batch.max()) + 1


def collate(graphs):
    """Join graphs into one."""
    out, offset = Batch(x=[], edge_index=[], batch=[]), 0
    for i, (x, e) in enumerate(graphs):
        out.x.append(x)
        out.edge_index.append(e + offset)
        out.batch.append(torch.full((len(x),), i))
        offset += len(x)
    out.x, out.edge_index, out.batch = torch.cat(out.x), torch.cat(out.edge_index, 1), torch.cat(out.batch)
    return out


def graphs(*sizes):
    """Random graphs of these sizes."""
    return [(torch.randn(n, 4), torch.randint(0, n, (2, 2 * n))) for n in sizes]


@program(*[lambda s=s: (graphs(*s),) for s in ((4, 5), (3, 6, 2))])
class GraphClassifier(nn.Module):
    """Graphs of other sizes in each call."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(GATLayer(4) for _ in range(1))
        self.head = nn.Linear(8, 2)

    def forward(self, items):
        data = collate(items)
        x = data.x
        for layer in self.layers:
            x = torch.relu(layer(x, data.edge_index))
        n = data.num_graphs
        pooled = torch.cat([scatter(x, data.batch, n, "mean"), scatter(x, data.batch, n, "amax")], -1)
        data.pooled = pooled
        return self.head(pooled), data


class WeightAverage:
    """Moving averages of a model's weights, swapped in for evaluation."""

    def __init__(self, model, decay=0.9):
        self.model, self.decay, self.backup = model, decay, {}
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self):
        for n, p in self.model.named_parameters():
            self.shadow[n].lerp_(p, 1 - self.decay)

    def swap_in(self):
        for n, p in self.model.named_parameters():
            self.backup[n] = p.data
            p.data = self.shadow[n]

    def restore(self):
        for n, p in self.model.named_parameters():
            p.data = self.backup.pop(n)


torch.manual_seed(0)
averaged = nn.Linear(4, 2)
average = WeightAverage(averaged)


@program(*[lambda b=b: (torch.randn(b, 4),) for b in (3, 5, 4)], breaks=1)
def evaluate_averaged_weights(x):
    """The weights are swapped back also if the evaluation raises."""
    with torch.no_grad():
        averaged.weight.add_(x.mean() * 0.1)
    average.update()
    average.swap_in()
    try:
        y = averaged(x)
    finally:
        average.restore()
    return y, averaged(x), average.shadow["weight"]
