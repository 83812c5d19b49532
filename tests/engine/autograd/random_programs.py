"""Generate reproducible random backward programs: a few tensors, operators and hooks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from tests.engine.autograd.programs import Cube, Log, Scaled

UNARY: tuple[Callable[[Any], Any], ...] = (
    torch.sin,
    torch.tanh,
    torch.sigmoid,
    lambda t: t.t().contiguous().t(),
    lambda t: t.transpose(0, 1) @ t,
    lambda t: t.softmax(-1),
    lambda t: t.relu() + 1,
    lambda t: t.cumsum(0),
    lambda t: t - t.mean(1, keepdim=True),
    lambda t: t.roll(1, 0).flip(1),
    lambda t: torch.where(t > 0, t, t * 0.5),
    lambda t: t.view(-1).view(4, 4),
    lambda t: t[torch.tensor([3, 1, 1, 0])],
    lambda t: torch.cat(t.chunk(2)[::-1]),
    lambda t: t.sort(dim=1).values,
    lambda t: t.double().float(),
    lambda t: torch.nn.functional.layer_norm(t, (4,)),
    Cube.apply,
)
BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    torch.add,
    torch.mul,
    torch.matmul,
    torch.maximum,
    lambda a, b: a + b[0],
    lambda a, b: a / (b * b + 1),
    lambda a, b: sum(Scaled.apply(a, 2, b)),
    lambda a, b: torch.addmm(a, a, b),
)


def _written(t: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    made = t * 1
    made[1:3] = other[:2]
    made[0].mul_(2)
    return made


class ProgramGenerator:
    """Draws one program's steps and hooks while it runs, from a seed of its own."""

    def __init__(self, seed: int, log: Log) -> None:
        self.draw = random.Random(seed)
        self.log = log
        self.leaves = [(torch.randn(4, 4) * 0.5).requires_grad_() for _ in range(3)]
        self.values: list[torch.Tensor] = list(self.leaves)

    def step(self) -> None:
        """One more value."""
        a, b = self.draw.choice(self.values), self.draw.choice(self.values)
        kind = self.draw.random()
        if kind < 0.5:
            made = self.draw.choice(UNARY)(a)
        elif kind < 0.9:
            made = self.draw.choice(BINARY)(a, b)
        else:
            made = _written(a, b)
        if self.draw.random() < 0.3:
            self.hook(made)
        self.values.append(made)

    def hook(self, made: torch.Tensor) -> None:
        """A hook of some kind on a value or on a leaf."""
        n = len(self.values)
        say = self.log.append
        kinds: tuple[Callable[[], Any], ...] = (
            lambda: made.register_hook(lambda g: say((n, g.clone()))),
            lambda: made.register_hook(lambda g: g * 0.5),
            lambda: made.retain_grad(),
            lambda: made.grad_fn.register_prehook(lambda gs: say((n, "before"))),  # type: ignore[union-attr]
            lambda: made.grad_fn.register_hook(lambda gi, go: say((n, "after", [g is None for g in gi]))),  # type: ignore[union-attr]
            lambda: self.leaves[n % 3].register_post_accumulate_grad_hook(lambda p: say((n, p.grad.clone()))),
            lambda: self.leaves[n % 3].register_hook(lambda g: say((n, [p.grad is None for p in self.leaves]))),
        )
        self.draw.choice(kinds)()


def random_program(seed: int, log: Log) -> Any:
    """Run the program of this seed."""
    maker = ProgramGenerator(seed, log)
    for _ in range(maker.draw.randint(3, 9)):
        maker.step()
    loss = sum((v * v).mean() for v in maker.draw.sample(maker.values, 3))
    how = maker.draw.random()
    if how < 0.25:
        found: Any = torch.autograd.grad(loss, [*maker.leaves, maker.values[-1]], allow_unused=True, retain_graph=True)
    elif how < 0.4:
        (first,) = torch.autograd.grad(loss, maker.leaves[:1], allow_unused=True, create_graph=True)
        found = first
        (loss if first is None or not first.requires_grad else first.sum()).backward()
    else:
        found = None
        loss.backward(retain_graph=how > 0.9)
    if how > 0.9:
        loss.backward()
    retained = [v.grad for v in maker.values if not v.is_leaf and v.retains_grad]
    return found, [p.grad for p in maker.leaves], retained
