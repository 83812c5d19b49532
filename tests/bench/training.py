"""Compare training costs with torch's: warm step, joint graph and saved tensors.

Measures what a warm step costs above its two graphs, how long a joint graph takes to make, and what it saves
for backward.

``python -m tests.bench.training WAY`` prints the seconds of one cold training compile of GPT-2 as JSON.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, cast
from unittest import mock

import torch
from torch import nn

from engine.aot.node_properties import output_args
from tests.bench.overhead import interleaved
from tests.bench.subjects import gpt2, throw_away

WAYS = ("engine", "torch")
Run = Callable[..., Any]


def compiled(way: str, target: Any) -> Any:
    """The target under backend "aot_eager", ours or torch's."""
    if way == "torch":
        return torch.compile(target, backend="aot_eager")
    import engine

    return engine.compile(target, backend="aot_eager")


def idle(run: Run, *, is_boxed: bool) -> Run:
    """Make a graph that runs once and then returns the same results as new tensors.

    The tensors are new because autograd writes to those it is given.
    """
    kept: list[Any] = []

    def again(*args: Any) -> Any:
        if not kept:
            kept.extend(run(*args))
        elif is_boxed:
            args[0].clear()
        return tuple(t.detach() if isinstance(t, torch.Tensor) else t for t in kept)

    again._boxed_call = is_boxed  # type: ignore[attr-defined]
    return again


def subject() -> tuple[nn.Module, torch.Tensor]:
    """An MLP of three layers, width 16, and a batch of 8 that needs a gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    return model, torch.randn(8, 16, requires_grad=True)


def direct(inputs: list[torch.Tensor], graphs: list[tuple[Run, bool]]) -> Run:
    """The two idle graphs, called one after the other without anything around them."""
    (forward, forward_boxed), (backward, _) = graphs

    def step() -> None:
        forward(list(inputs)) if forward_boxed else forward(*inputs)
        backward(list(inputs))

    return step


def idle_engine(target: Any, graphs: list[tuple[Run, bool]]) -> Any:
    """Compiled by us, with graphs that do nothing; they are added to ``graphs``."""
    import engine
    from engine.backends import aot
    from engine.runtime.aten_executor import aten_executor

    lower = aten_executor

    def lowered(graph: Any) -> Run:
        run = idle(lower(graph), is_boxed=graph.is_boxed)
        graphs.append((run, graph.is_boxed))
        return run

    with mock.patch.object(aot, "aten_executor", lowered):
        return _warmed(engine.compile(target, backend="aot_eager"))


def idle_torch(target: Any, graphs: list[tuple[Run, bool]]) -> Any:
    """Compile through torch's own AOTAutograd with idle graphs, appended to ``graphs``."""
    from torch._dynamo.backends.common import aot_autograd

    def lowered(graph: Any, inputs: Any) -> Run:
        run = idle(lambda args: graph(*args), is_boxed=True)
        graphs.append((run, True))
        return run

    return _warmed(torch.compile(target, backend=aot_autograd(fw_compiler=lowered, bw_compiler=lowered)))


def _warmed(run: Any) -> Any:
    """Called until both graphs are compiled and ran."""
    _, x = subject()
    for _ in range(3):
        torch.autograd.grad(run(x).sum(), x)
    return run


def step_microseconds(*, rounds: int = 41) -> dict[str, float]:
    """Return microseconds of forward and backward above calling the two graphs, by variant.

    This is guards, dispatch and autograd's node.
    """
    found: dict[str, float] = {}
    ways: dict[str, Run] = {}
    model, x = subject()
    tangent = torch.ones(8, 16)
    inputs = [x, *model.parameters()]
    for way, make in (("engine", idle_engine), ("torch", idle_torch)):
        graphs: list[tuple[Run, bool]] = []
        run = make(copy.deepcopy(model), graphs)
        ways[way] = lambda run=run: run(x).backward(tangent)
        ways[f"{way}, direct"] = direct(inputs, graphs)
    times = interleaved(ways, rounds=rounds, repeats=300)
    for way in WAYS:
        found[way] = statistics.median(a - b for a, b in zip(times[way], times[f"{way}, direct"], strict=True))
    return found


def saved_bytes() -> dict[str, float]:
    """Return bytes of activations that twelve-layer GPT-2 saves for backward.

    Inputs are not counted. Compares the engine's partitioner with torch's min-cut.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    import engine

    model, args = gpt2()
    model.train()
    with engine.record() as session:
        engine.compile(model, backend="aot_eager")(*args, use_cache=False)
    records = [c.aot.partition for c in session.compilations if c.aot is not None and c.aot.partition is not None]
    theirs: list[float] = []

    def cut(joint: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
        results = output_args(forward.graph)[options["num_fwd_outputs"] :]
        kept = _memory(n for n in results if isinstance(n, torch.fx.Node))
        given = _memory(n for n in forward.graph.nodes if n.op == "placeholder")
        theirs.append(sum(v.nbytes for place, v in kept.items() if place not in given))
        return forward, backward

    def lowered(graph: Any, inputs: Any) -> Run:
        return cast("Run", make_boxed_func(graph))

    backend = aot_autograd(fw_compiler=lowered, bw_compiler=lowered, partition_fn=cut)
    torch.compile(model, backend=backend)(*args, use_cache=False).last_hidden_state.sum().backward()
    return {"engine": sum(r.saved_bytes for r in records), "torch": sum(theirs)}


def _memory(nodes: Iterable[torch.fx.Node]) -> dict[int, torch.Tensor]:
    """Fake tensors by their storage: views take no memory of their own."""
    values = [n.meta["val"] for n in nodes]
    return {v.untyped_storage()._cdata: v for v in values if isinstance(v, torch.Tensor)}


if __name__ == "__main__":
    way = sys.argv[1]
    small, given = throw_away()
    compiled(way, small.train())(*given).sum().backward()
    model, words = gpt2()
    run = compiled(way, model.train())
    start = time.perf_counter()
    run(*words, use_cache=False).last_hidden_state.sum().backward()
    print("\n" + json.dumps({"results": time.perf_counter() - start}))
