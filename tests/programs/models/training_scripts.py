"""Training loops as people write them in scripts: trainers, loaders, schedules, teachers."""

import contextlib
import copy
import math
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.programs import program

torch.manual_seed(0)


class Windows(Dataset):
    """Windows of a series, normalized by statistics of numpy."""

    def __init__(self, n, width=5):
        self.series = np.sin(np.arange(n + width, dtype=np.float32) * 0.3)
        self.width = width
        self.mean, self.std = self.series.mean(), self.series.std()

    def __len__(self):
        return len(self.series) - self.width

    def __getitem__(self, index):
        window = (self.series[index : index + self.width + 1] - self.mean) / self.std
        return torch.from_numpy(window[:-1].copy()), torch.tensor(window[-1])


def collate(rows):
    xs, ys = zip(*rows)
    return {"x": torch.stack(xs), "y": torch.stack(ys).unsqueeze(-1)}


net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=40)
loader = DataLoader(Windows(10), batch_size=4, shuffle=False, collate_fn=collate)


@program(lambda: (1,), lambda: (2,), lambda: (1,), breaks=3)
def loader_loop(epochs):
    """A loop over a loader, with clipped gradients, a schedule and a running mean."""
    net.train()
    history = []
    for epoch in range(epochs):
        total, seen = 0.0, 0
        for step, batch in enumerate(loader):
            optimizer.zero_grad(set_to_none=True)
            loss = F.mse_loss(net(batch["x"]), batch["y"])
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            total += loss.item() * len(batch["x"])
            seen += len(batch["x"])
            if step % 2 == 0:
                print(f"{epoch}/{step} lr {scheduler.get_last_lr()[0]:.4f} norm {norm.item() > 0}")
        history.append(total / seen)
    return history


class Callback:
    def on_start(self, trainer): ...
    def on_batch_end(self, trainer, loss): ...
    def on_end(self, trainer): ...


class Smoothed(Callback):
    def __init__(self, decay=0.9):
        self.decay, self.value = decay, None

    def on_batch_end(self, trainer, loss):
        self.value = loss if self.value is None else self.decay * self.value + (1 - self.decay) * loss
        trainer.log("smoothed", self.value)


class EarlyStop(Callback):
    def __init__(self, patience):
        self.best, self.bad, self.patience = math.inf, 0, patience

    def on_batch_end(self, trainer, loss):
        value = float(loss)
        if value < self.best - 1e-4:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        trainer.should_stop = self.bad >= self.patience


@dataclass
class State:
    step: int = 0
    metrics: dict = field(default_factory=lambda: defaultdict(list))


class LitModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            OrderedDict(first=nn.Linear(4, 6), norm=nn.BatchNorm1d(6), act=nn.ReLU(), last=nn.Linear(6, 3))
        )

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, index):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y, label_smoothing=0.1)
        return {"loss": loss, "acc": (logits.argmax(-1) == y).float().mean()}

    def configure_optimizers(self):
        groups = [
            {"params": [p for n, p in self.named_parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for n, p in self.named_parameters() if p.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)


class Trainer:
    def __init__(self, model, callbacks):
        self.model, self.callbacks, self.state = model, callbacks, State()
        self.optimizer = model.configure_optimizers()
        self.should_stop = False

    def call(self, hook, *args):
        for callback in self.callbacks:
            getattr(callback, hook)(self, *args)

    def log(self, name, value):
        self.state.metrics[name].append(float(value.detach()) if isinstance(value, torch.Tensor) else value)

    @contextlib.contextmanager
    def training(self):
        was = self.model.training
        self.model.train()
        try:
            yield
        finally:
            self.model.train(was)

    def fit(self, batches):
        self.should_stop = False
        self.call("on_start")
        with self.training():
            for index, batch in enumerate(batches):
                out = self.model.training_step(batch, index)
                self.optimizer.zero_grad()
                out["loss"].backward()
                self.optimizer.step()
                self.state.step += 1
                self.log("acc", out["acc"])
                self.call("on_batch_end", out["loss"].detach())
                if self.should_stop:
                    break
        self.call("on_end")
        return self.state.step, dict(self.state.metrics)


trainer = Trainer(LitModel(), [Smoothed(), EarlyStop(2)])


def batches(n, size):
    return [(torch.randn(size, 4), torch.randint(0, 3, (size,))) for _ in range(n)]


@program(lambda: (batches(3, 6),), lambda: (batches(3, 6),), lambda: (batches(2, 5),), breaks=2)
def trainer_with_callbacks(data):
    """A trainer with hooks, a context manager, metrics and early stopping."""
    return trainer.fit(data)


student = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 4))
teacher = copy.deepcopy(student).requires_grad_(False)
student_optimizer = torch.optim.Adam(student.parameters(), 1e-3)


@torch.no_grad()
def ema(decay):
    for (name, t), s in zip(teacher.named_parameters(), student.parameters()):
        t.lerp_(s, 1 - decay)
    for t, s in zip(teacher.buffers(), student.buffers()):
        t.copy_(s)


@program(*[lambda i=i: (torch.randn(6, 4), i, torch.zeros(4)) for i in range(4)], breaks=1)
def teacher_student(x, step, center):
    """Self-distillation: augmentations, a center, a teacher that follows by a cosine schedule."""
    decay = 1 - (1 - 0.99) * (math.cos(math.pi * step / 10) + 1) / 2
    a, b = x + 0.1 * torch.randn_like(x), x * (1 + 0.1 * torch.randn(x.shape[0], 1))
    with torch.no_grad():
        ta, tb = teacher(torch.cat([a, b])).chunk(2)
    sa, sb = student(torch.cat([a, b])).chunk(2)
    loss = (
        sum(
            -(F.softmax((t - center) / 0.04, -1) * F.log_softmax(s / 0.1, -1)).sum(-1).mean()
            for t, s in ((ta, sb), (tb, sa))
        )
        / 2
    )
    student_optimizer.zero_grad()
    loss.backward()
    for p in student[0].parameters():
        if step < 1:
            p.grad = None
    student_optimizer.step()
    ema(decay)
    center.mul_(0.9).add_(torch.cat([ta, tb]).mean(0), alpha=0.1)
    return loss.detach(), decay


@program(*[lambda: (torch.randn(4, 6), torch.randn(4, 6))] * 4, breaks=1)
class MoCo(nn.Module):
    """Contrast against a queue of keys in a buffer."""

    def __init__(self, dim=4, size=12, temperature=0.2):
        super().__init__()
        self.query, self.key = nn.Linear(6, dim), nn.Linear(6, dim)
        for q, k in zip(self.query.parameters(), self.key.parameters()):
            k.data.copy_(q.data)
            k.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, size), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))
        self.temperature, self.size = temperature, size

    @torch.no_grad()
    def enqueue(self, keys):
        n, start = keys.shape[0], int(self.pointer)
        self.queue[:, start : start + n] = keys.t()
        self.pointer[0] = (start + n) % self.size

    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            for p, k in zip(self.query.parameters(), self.key.parameters()):
                k.data = k.data * 0.9 + p.data * 0.1
            keys = F.normalize(self.key(b), dim=1)
        positive = torch.einsum("nc,nc->n", q, keys).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([positive, negative], 1) / self.temperature
        loss = F.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))
        self.enqueue(keys)
        return loss, logits.detach().softmax(1)[:, 0].mean().item()
