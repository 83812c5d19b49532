"""Programs of several ranks, for lessons about distributed training."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

__all__ = ["run_ranks"]

TIMEOUT = 300
"""Seconds after which ranks that still wait for each other are ended."""
STARTER = """
import os, sys, traceback
folder, ranks = sys.argv[1], list(map(int, sys.argv[2:]))

names = {}

def run(rank):
    names.update(rank=rank, meeting_point=f"{folder}/meeting_point")
    path = f"{folder}/program.py"
    sys.stdout = open(f"{folder}/{rank}.txt", "w", encoding="utf-8")
    try:
        exec(compile(open(path, encoding="utf-8").read(), path, "exec"), names)
    except BaseException:
        traceback.print_exc(limit=-1)
        return 1
    finally:
        sys.stdout.close()
    return 0

if len(ranks) == 1:
    os._exit(run(*ranks))
import torch
torch.compiler.reset()  # imports what the ranks share
children = {}
for rank in ranks:
    child = os.fork()
    if not child:
        os._exit(run(rank))
    children[child] = rank
for _ in ranks:
    child, status = os.wait()
    if status:
        sys.exit(f"rank {children[child]} failed")
"""
"""Runs the ranks of its arguments; forked ranks share torch and its compiler.

The program's names outlive it, and a rank ends without destructors: that of gloo's process group may wait for ever.
"""


def run_ranks(program: str, world: int = 2) -> list[str]:
    """Run a program in one process per rank, and return what each printed.

    The program finds its ``rank`` and a ``meeting_point``, a file for ``init_process_group``.

    Raises:
        RuntimeError: a rank failed; the message ends with its error.
    """
    with tempfile.TemporaryDirectory() as home:
        folder = pathlib.Path(home)
        (folder / "program.py").write_text(program, encoding="utf-8")
        ranks = list(map(str, range(world)))
        together = [ranks] if sys.platform == "linux" else [[rank] for rank in ranks]
        command = [sys.executable, "-c", STARTER, home]
        started = [
            subprocess.Popen([*command, *some], stderr=subprocess.PIPE, text=True, start_new_session=True)
            for some in together
        ]
        try:
            errors = [process.communicate(timeout=TIMEOUT)[1] for process in started]
        finally:
            for process in started:
                _end(process)
        if any(process.returncode for process in started):
            raise RuntimeError("".join(errors).strip())
        return [(folder / f"{rank}.txt").read_text(encoding="utf-8").strip() for rank in ranks]


def _end(process: subprocess.Popen[str]) -> None:
    """End a process with its forked ranks, which may wait for one that failed."""
    if sys.platform == "linux":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
    else:
        process.kill()
    process.wait()
