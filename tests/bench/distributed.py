"""Time training steps on several devices beside torch.compile and eager.

``torchrun --nproc-per-node 2 -m tests.bench.distributed ddp fsdp tp`` trains one decoder in each way, and interleaves the
ways step by step: zero_grad, forward, backward, clipping, AdamW. It prints, of the slowest rank, the median of the last
steps, the median of steps 2 to 20, and the most memory that a step takes beside what it leaves. Without GPUs the decoder is
small and processes talk through gloo: that shows that it runs, not how fast. A way named with `` + step`` at its end
compiles the optimizer's step too.
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import engine

WAYS = ("eager", "torch", "torch by block", "engine", "engine by block")
STEP = " + step"
"""End of the name of a way that compiles the optimizer's step too.

An example is ``engine by block + step``.
"""
HEAD_WIDTH = 64
EARLY = slice(1, 20)
"""Steps 2 to 20, as the first one compiles."""


class Attention(nn.Module):
    """Causal attention with one linear layer each for queries, keys and values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (
            linear(x).unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A decoder block; ``x`` is of shape (batch, tokens, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A row of decoder blocks."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def _tensor_parallel(block: nn.Module, mesh: DeviceMesh) -> None:
    """Split a block's products over the mesh, and its norms over the tokens."""
    whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    plan = {
        "norm1": SequenceParallel(),
        "attention": whole,
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "norm2": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(block, mesh, plan)


def _parallel(kind: str, model: Decoder, way: str, device: torch.device) -> Any:
    """Return the model trained in parallel, compiled in this way."""
    mesh, way = init_device_mesh(device.type, (dist.get_world_size(),)), way.removesuffix(STEP)
    if kind == "tp":
        for block in model.blocks:
            _tensor_parallel(block, mesh)
    if way == "torch by block":
        for block in model.blocks:
            block.compile()
    if way == "engine by block":
        for n, block in enumerate(model.blocks):
            model.blocks[n] = engine.compile(block)
    if kind == "fsdp":
        for part in (*model.blocks, model):
            fully_shard(part, mesh=mesh)
    module: Any = DistributedDataParallel(model) if kind == "ddp" else model
    if way == "torch":
        return torch.compile(module)
    return engine.compile(module) if way == "engine" else module


@dataclass
class Trained:
    """One way's model and optimizer, and what its steps took."""

    module: Any
    optimizer: torch.optim.Optimizer
    optimizer_step: Callable[[], Any]
    seconds: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        """Train on one batch and return the loss."""
        self.optimizer.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16):
            loss = self.module(x).float().square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer_step()
        return loss.detach()

    def timed_step(self, x: torch.Tensor) -> None:
        """Train on one batch; note seconds, the peak above the bytes before, and the loss."""
        on_card = x.is_cuda
        if on_card:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        dist.barrier()
        before = torch.cuda.memory_allocated() if on_card else 0
        start = time.perf_counter()
        loss = self.step(x)
        if on_card:
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - start)
        self.peaks.append(torch.cuda.max_memory_allocated() - before if on_card else 0)
        self.losses.append(float(loss))


def _trained(module: Any, way: str) -> Trained:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    step: Any = optimizer.step
    if way.endswith(STEP):
        step = (engine.compile if way.startswith("engine") else torch.compile)(step)
    return Trained(module, optimizer, step)


def _of_worst_rank(values: list[float], device: torch.device) -> list[float]:
    largest = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.tolist()


def measure(kind: str, steps: int, ways: tuple[str, ...], device: torch.device) -> list[str]:
    """Train in all ways, step by step, and return a line for each."""
    layers, width, batch, tokens = (8, 1024, 8, 512) if device.type == "cuda" else (2, 128, 2, 32)
    torch.manual_seed(0)
    model = Decoder(layers, width).to(device)
    trained: dict[str, Trained] = {}
    for way in ways:
        module = _parallel(kind, copy.deepcopy(model), way, device)
        trained[way] = _trained(module, way)
    # Under tensor parallelism each rank has its part of the tokens of the same batch.
    torch.manual_seed(1 + dist.get_rank())
    shape = (batch, tokens // dist.get_world_size(), width) if kind == "tp" else (batch, tokens, width)
    batches = [torch.randn(shape, device=device) for _ in range(4)]
    for number in range(steps):
        for at in range(len(ways)):
            trained[ways[(number + at) % len(ways)]].timed_step(batches[number % len(batches)])
    lines = []
    for way, run in trained.items():
        seconds = [1000 * s for s in _of_worst_rank(run.seconds, device)]
        late, early = statistics.median(seconds[-50:]), statistics.median(seconds[EARLY])
        peak = _of_worst_rank([float(max(run.peaks[-50:]))], device)[0] / 2**20
        reference = trained[ways[0]].losses
        differs = max(abs(a - b) / b for a, b in zip(run.losses, reference, strict=True))
        lines.append(
            f"{kind:<5}{way:<24}{late:>9.2f} ms  steps 2 to 20 {early:>9.2f} ms  first {seconds[0]:>9.0f} ms"
            f"  peak {peak:>7.0f} MiB  loss differs {differs:.1e}"
        )
    return lines


def main() -> None:
    """Measure the kinds that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.distributed", description=__doc__)
    parser.add_argument("kinds", nargs="+", choices=("ddp", "fsdp", "tp"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--ways", default=",".join(WAYS), help="which ones, separated by commas; the first is compared with"
    )
    parser.add_argument("--optimize-ddp", default="ddp_optimizer", help="torch.compile's mode for DDP, or off")
    parser.add_argument("--bucket", action="store_true", help="let torch.compile reorder its collectives")
    options = parser.parse_args()
    torch._dynamo.config.optimize_ddp = False if options.optimize_ddp == "off" else options.optimize_ddp
    torch._inductor.config.reorder_for_compute_comm_overlap = options.bucket
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    for kind in options.kinds:
        lines = measure(kind, options.steps, tuple(options.ways.split(",")), device)
        if dist.get_rank() == 0:
            print("\n".join(lines), flush=True)
        torch.compiler.reset()
        engine.reset()
        gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
