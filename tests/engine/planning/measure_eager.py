"""Run programs as several gloo processes each; count collectives and live bytes.

``python measure_eager.py FOLDER PROGRAM:WORLD ...`` writes ``PROGRAM-RANK.json`` of each rank into the folder. A rank is
a process forked from this one, which has imported torch and run nothing.
"""

import gc
import json
import pathlib
import sys
import time
import weakref

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))

from engine.torch_private.dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from engine.torch_private.fake_tensors import FakeTensor
from engine.torch_private.lazily_loaded import Work
from engine.torch_private.pytree import tree_leaves
from tests.engine.planning.training_programs import PROGRAMS
from tests.forked_ranks import run_forked_ranks

RELEASE_SECONDS = 0.05
"""Seconds in which gloo's thread releases tensors: it wakes the waiting thread earlier.

Without them, after `Work.wait` as after ``wait_tensor``, a peak would depend on which of the two threads is faster.
"""


class LiveBytes(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.live = {}
        self.total = self.peak = 0
        self.collectives = []
        self.is_waiting = False

    def see(self, value):
        tensors = [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
        for t in tensors:
            if not (isinstance(t, FakeTensor) or is_traceable_wrapper_subclass(t) or t.is_meta):
                self.count(t.untyped_storage())
        return sum(t.numel() * t.element_size() for t in tensors)

    def count(self, storage):
        key = storage._cdata
        if key not in self.live:
            self.live[key] = [weakref.ref(storage, lambda _: self.end(key)), 0]
        self.total += storage.nbytes() - self.live[key][1]
        self.live[key][1] = storage.nbytes()
        self.peak = max(self.peak, self.total)

    def end(self, key):
        self.total -= self.live.pop(key)[1]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t not in (torch.Tensor, FakeTensor) for t in types):
            return NotImplemented
        if self.is_waiting:
            return func(*args, **(kwargs or {}))
        read = self.see((args, kwargs))
        result = func(*args, **(kwargs or {}))
        if "wait_tensor" in str(func):
            time.sleep(RELEASE_SECONDS)
        written = self.see(result)
        if func.namespace == "c10d":
            written = self.see(args[0])
            self.collectives.append(max(written, read - written))
        elif func.namespace == "_c10d_functional" and not any(n in str(func) for n in ("wait_", "_wrap")):
            self.collectives.append(max(written, read))
        return result


def run_rank(folder, program, rank, world):
    rendezvous = folder / f"{program}.store"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    live = LiveBytes()
    resize, wait = torch.UntypedStorage.resize_, Work.wait

    def observed_resize(storage, size):
        resize(storage, size)
        live.count(storage)

    def observed_wait(work, *args):
        live.is_waiting = True  # gloo's own copies are no storages of the program
        try:
            done = wait(work, *args)
            time.sleep(RELEASE_SECONDS)
            return done
        finally:
            live.is_waiting = False

    torch.UntypedStorage.resize_, Work.wait = observed_resize, observed_wait
    gc.disable()  # the programs collect at the start of each step, as plans do
    with live:
        PROGRAMS[program]()
    measured = json.dumps({"peak": live.peak, "collectives": live.collectives})
    (folder / f"{program}-{rank}.json").write_text(measured, encoding="utf-8")
    dist.destroy_process_group()


def run_program(folder, program, world):
    if not run_forked_ranks(lambda rank: run_rank(folder, program, rank, world), world):
        raise SystemExit(f"{program} failed")


if __name__ == "__main__":
    torch.compiler.reset()  # imports what optimizers would import in every rank
    for name in sys.argv[2:]:
        run_program(pathlib.Path(sys.argv[1]), name.partition(":")[0], int(name.partition(":")[2]))
