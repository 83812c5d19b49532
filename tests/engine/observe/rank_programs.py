"""Logs and sessions of two processes that talk over gloo, for tests of ranks.

Run as a program: ``python rank_programs.py FOLDER`` writes the ``TORCH_TRACE`` logs of each variant of one training
step into a folder of its own; under torchrun with ``record FOLDER`` each process saves its session.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))

import engine
from engine.torch_private.torch_compile import torch_logging
from tests.forked_ranks import run_forked_ranks

VARIANTS = ("base", "order", "graph", "break", "rows", "recompile", "miss", "hit")
"""Variants of the program.

In "miss" and "hit" Inductor compiles it, with a cold and with a warm cache.
"""
IS_REORDERED = HAS_EXTRA_LAYER = HAS_BREAK = False


def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A layer, and two collectives."""
    y = x @ weight
    if IS_REORDERED:
        gathered = functional.all_gather_tensor(y, 0, dist.group.WORLD)
        return functional.all_reduce(gathered, "sum", dist.group.WORLD)
    if HAS_EXTRA_LAYER:
        y = y @ weight
    if HAS_BREAK:
        print(end="")
    y = functional.all_reduce(y, "sum", dist.group.WORLD)
    return functional.all_gather_tensor(y, 0, dist.group.WORLD)


def run_rank(variant: str, rank: int, folder: pathlib.Path) -> None:
    """Run one rank of one variant, logged as ``TORCH_TRACE`` logs it."""
    global IS_REORDERED, HAS_EXTRA_LAYER, HAS_BREAK
    IS_REORDERED, HAS_EXTRA_LAYER, HAS_BREAK = (variant == name for name in ("order", "graph", "break"))
    store = dist.FileStore(str(folder / "meeting"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    handler = torch_logging.LazyTraceHandler(str(folder))
    handler.setFormatter(torch_logging.TorchLogsFormatter(trace=True))
    torch_logging.trace_log.addHandler(handler)
    torch_logging.trace_log.setLevel("DEBUG")
    backend = "inductor" if variant in ("miss", "hit") else "aot_eager"
    compiled = torch.compile(step, backend=backend)
    for rows in {"recompile": (2, 3), "rows": (3,)}.get(variant, (2,)):
        compiled(torch.ones(rows, 4), torch.ones(4, 4, requires_grad=True)).sum().backward()
    dist.destroy_process_group()


def write_logs(folder: pathlib.Path) -> None:
    """Write the logs of all variants.

    Each rank is a process forked from this one, which has imported the compiler and compiled nothing.
    """
    torch.compiler.reset()
    torch.compile(step)
    for variant in VARIANTS:
        there = folder / variant
        there.mkdir()

        def run(rank: int, variant: str = variant, there: pathlib.Path = there) -> None:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / f"cache_{rank}")
            run_rank(variant, rank, there)

        if not run_forked_ranks(run, 2):
            raise SystemExit(f"the variant {variant} failed")


def record(folder: pathlib.Path) -> None:
    """Record this rank's program with the engine, and save the session into the folder.

    Rank 1 compiles one more function. Each collective is waited for: a thread of gloo that frees a tensor after the
    interpreter has ended aborts the process.
    """
    dist.init_process_group("gloo")
    try:
        with engine.record() as session:
            compiled = engine.compile(step, backend="eager")
            for _ in range(2):
                functional.wait_tensor(compiled(torch.ones(2, 4), torch.ones(4, 4)))
            if dist.get_rank() == 1:
                engine.compile(lambda x: x.sin(), backend="eager")(torch.ones(3))
        session.save(folder)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def rank_logs(folder: pathlib.Path) -> dict[str, list[bytes]]:
    """Return the logs of both ranks by variant."""
    program = [sys.executable, __file__, str(folder)]
    env = {k: v for k, v in os.environ.items() if k != "TORCH_TRACE"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    logs = {v: [p.read_bytes() for p in sorted((folder / v).glob("*rank_*"))] for v in VARIANTS}
    shutil.rmtree(folder / "cache_0", ignore_errors=True)
    return logs


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(pathlib.Path(sys.argv[2]))
    else:
        write_logs(pathlib.Path(sys.argv[1]))
