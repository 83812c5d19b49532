"""Plant faults in models and minimize them: ``python -m tests.fuzz.faults --seed 1``.

A fault is at an operation whose input is made by another one, of targets that are drawn by the seed. A result is right
if its graph fails in the same way, and no operation of it can be removed.
"""

from __future__ import annotations

import argparse
import operator
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from engine.editing import minimize_graphs
from engine.editing.minimize_graphs import MinimizedGraph, minimize
from engine.errors import NotReproduced

KINDS = ("wrong value",) * 25 + ("exception",) * 15 + ("crash",) * 5 + ("hang",) * 5
SECONDS = {"wrong value": 60.0, "exception": 60.0, "crash": 300.0, "hang": 300.0}
"""Seconds that the search for a fault may take."""
MAX_MEDIAN_NODES = 5
MIN_NODES = 200


class Attention(nn.Module):
    """Twelve blocks of attention and a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(16, 48) for _ in range(12))
        self.networks = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores are computed by hand, so that each step is a node."""
        for project, network, norm in zip(self.projections, self.networks, self.norms, strict=True):
            q, k, v = project(norm(x)).chunk(3, -1)
            scores = torch.softmax(q @ k.transpose(-1, -2) / 4.0, -1)
            x = x + scores @ v
            x = x + nn.functional.gelu(network(x)) * torch.sigmoid(x)
        return x


class Residual(nn.Module):
    """Thirty-five residual steps of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(35))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A scaled sum with the input of each step, as in a small network of images."""
        for convolve in self.convolutions:
            y = torch.tanh(convolve(x))
            y = y * torch.sigmoid(y.mean((2, 3), keepdim=True))
            x = torch.clamp(x + y, -3.0, 3.0)
        return x.flatten(1).sum(-1)


class Recurrent(nn.Module):
    """A gated cell over twenty-four steps."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.candidate = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sequence is a loop in Python, which the graph unrolls."""
        state = torch.zeros(x.size(0), 8)
        for step in x.unbind(1):
            reset, update = torch.sigmoid(self.gates(torch.cat((step, state), -1))).chunk(2, -1)
            new = torch.tanh(self.candidate(torch.cat((step, reset * state), -1)))
            state = (1 - update) * new + update * state
        return state


MODELS: tuple[tuple[type[nn.Module], tuple[int, ...]], ...] = (
    (Attention, (2, 6, 16)),
    (Residual, (2, 4, 6, 6)),
    (Recurrent, (3, 24, 8)),
)


@dataclass(frozen=True)
class Fault:
    """A way to fail, at calls of ``target`` on the result of a call of ``producer``."""

    kind: str
    producer: Any
    target: Any

    def __str__(self) -> str:
        first, second = (getattr(f, "__name__", str(f)) for f in (self.producer, self.target))
        return f"{self.kind} at {second} of {first}"

    def backend(self, graph: torch.fx.GraphModule, _examples: list[Any]) -> Callable[..., Any]:
        """Run the graph in eager, with the fault."""
        faulty = torch.fx.GraphModule(graph, torch.fx.Graph())
        faulty.graph.output(faulty.graph.graph_copy(graph.graph, {}))
        for node in list(faulty.graph.nodes):
            if pair_of(node, self.producer) and node.target == self.target:
                with faulty.graph.inserting_after(node):
                    made = faulty.graph.call_function(PLANTED[self.kind], (node,))
                node.replace_all_uses_with(made, delete_user_cb=lambda user, made=made: user is not made)
        faulty.recompile()
        return faulty.forward


def wrong_value(value: Any) -> Any:
    """Change a tensor's values a little."""
    return torch.mul(value, 1.25) + 0.125 if torch.is_tensor(value) and value.is_floating_point() else value


def exception(value: Any) -> Any:
    """Raise what a faulty rule raises.

    Raises:
        LookupError: always.
    """
    raise LookupError("no rule for this operator")


def crash(value: Any) -> Any:
    """End the process as an invalid access does."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return value


def hang(value: Any) -> Any:
    """Never return."""
    while True:
        time.sleep(1.0)


PLANTED: dict[str, Callable[[Any], Any]] = {
    "wrong value": wrong_value, "exception": exception, "crash": crash, "hang": hang,
}  # fmt: skip


def pair_of(node: torch.fx.Node, producer: Any) -> bool:
    """True for a call on the result of a call of ``producer``."""
    return any(used.op in minimize_graphs.CALLS and used.target == producer for used in node.all_input_nodes)


def draw(kind: str, graph: torch.fx.GraphModule, drawn: random.Random) -> Fault:
    """A fault at a pair of calls of the graph; a changed tuple would show nothing."""
    nodes = [n for n in graph.graph.nodes if n.op in minimize_graphs.CALLS]
    pairs = dict.fromkeys(
        (p.target, n.target)
        for n in nodes
        for p in n.all_input_nodes
        if p in nodes and n.target not in ("chunk", "unbind") and operator.getitem not in (p.target, n.target)
    )
    return Fault(kind, *drawn.choice(list(pairs)))


def removable(found: MinimizedGraph) -> list[str]:
    """Names of the operations without which the result still fails in the same way."""
    search = minimize_graphs._Search(found.backend, time.monotonic() + 600, None, threading.Event())
    calls, values = minimize_graphs._calls(found.module), minimize_graphs._values(found.module, found.inputs)
    left = ((n, set(calls) - {n}) for n in calls if len(calls) > 1)
    return [
        n.name
        for n, rest in left
        if search.outcome_of(*minimize_graphs._extract_subgraph(found.module, rest, values)).is_same_failure(
            found.outcome
        )
    ]


def run(number: int, kind: str, seed: int) -> tuple[bool, int, float, str]:
    """Return if the result of a fault is right, its operations, the seconds, and a line."""
    drawn = random.Random(f"{seed} {number}")
    make, shape = MODELS[number % len(MODELS)]
    torch.manual_seed(seed)
    model = make().eval().requires_grad_(requires_grad=False)
    x = torch.randn(shape)
    ((graph, _),) = minimize_graphs._traced_graphs(model, (x,), {})
    total = len(minimize_graphs._calls(graph))
    assert total >= MIN_NODES, f"{make.__name__} has {total} operations"
    for _ in range(10):
        fault, start = draw(kind, graph, drawn), time.monotonic()
        try:
            found = minimize(model, x, fails=kind, backend=fault.backend, seconds=SECONDS[kind])
        except NotReproduced:
            continue  # the rest of the model hides it
        took = time.monotonic() - start
        extra = removable(found)
        right = found.is_minimal and found.outcome.kind == kind and not extra and took <= SECONDS[kind]
        about = f"{number:>3} {make.__name__:<10}{fault}: {found.nodes} of {total} operations, {found.trials} trials, {took:.0f} s"
        note = f" {found.note}" * bool(found.note) + f" removable: {', '.join(extra)}" * bool(extra)
        return right, found.nodes, took, about + note
    return False, 0, 0.0, f"{number:>3} {make.__name__}: no {kind} was seen"


def main() -> None:
    """Minimize faults and print each, then the counts by kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--count", type=int, default=len(KINDS), help="faults to run, evenly over the kinds")
    parser.add_argument("--kinds", nargs="*", default=sorted(SECONDS), help="run faults of these kinds only")
    wanted = parser.parse_args()
    print(f"seed {wanted.seed}", flush=True)
    order = list(enumerate(KINDS))
    random.Random(wanted.seed).shuffle(order)
    results = []
    for number, kind in [(n, k) for n, k in order if k in wanted.kinds][: wanted.count]:
        results.append((kind, *run(number, kind, wanted.seed)))
        print(("ok   " if results[-1][1] else "WRONG"), results[-1][4], flush=True)
    for kind in dict.fromkeys(KINDS):
        own = [r for r in results if r[0] == kind]
        if own:
            print(f"{kind}: {sum(r[1] for r in own)} of {len(own)} right, longest {max(r[3] for r in own):.0f} s")
    middle = statistics.median(r[2] for r in results)
    print(f"median {middle} operations, limit {MAX_MEDIAN_NODES}")


if __name__ == "__main__":
    main()
