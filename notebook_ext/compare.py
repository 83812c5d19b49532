"""``--compare``: the recorded calls of a cell, repeated through stock torch.compile in a process of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from engine.records.base import RecordError, from_plain
from engine.records.session import Session, SessionData
from notebook_ext.subjects import Choice, Torch
from notebook_ext.tape import Tape

SECONDS = 120.0
"""How long stock torch.compile may take before the comparison is given up."""


@dataclass(frozen=True)
class Comparison:
    """What stock torch.compile did with the same calls; ``problem`` says why there is nothing to compare, or what was left out."""

    session: Session | None
    calls: int = 0
    difference: float | None = None
    problem: str = ""

    @property
    def text(self) -> str:
        """One sentence."""
        if self.session is None:
            return f"Not compared with torch.compile: {self.problem}."
        calls = f"{self.calls} recorded call{'s' if self.calls != 1 else ''}"
        largest = (
            "no tensors to compare"
            if self.difference is None
            else f"largest difference of results {self.difference:.2g}"
        )
        return f"torch.compile on copies of the same {calls}: {largest}" + (
            f" ({self.problem})." if self.problem else "."
        )


def compare(tape: Tape) -> Comparison:
    """Repeat the calls of a tape in a forked process: nothing that they do reaches this one."""
    if not tape.calls:
        return Comparison(None, problem=tape.stopped or "the cell's top level called no root")
    if not hasattr(os, "fork"):
        return Comparison(None, problem="not verifiable: this system cannot fork a process to run the calls in")
    if torch.cuda.is_initialized():
        return Comparison(None, problem="not verifiable: a process that uses the GPU cannot be forked")
    answer = in_child(lambda: _repeat(tape), SECONDS)
    if isinstance(answer, str):
        return Comparison(None, problem=answer)
    try:
        session = Session.from_data(from_plain(SessionData, answer["session"], "session"))
    except RecordError as error:
        return Comparison(None, problem=str(error))
    return Comparison(session, len(tape.calls), answer["difference"], tape.stopped)


def _repeat(tape: Tape) -> dict[str, Any]:
    """Run the calls under torch.compile; in the child."""
    subject = Torch(Choice(backend="torch"))
    difference: float | None = None
    with subject.recording() as session:
        compiled = [_compiled(subject, s) for s in tape.subjects]
        for call in tape.calls:
            torch.set_rng_state(call.random)
            with torch.set_grad_enabled(call.grad):
                result = compiled[call.subject](*call.arguments, **call.keywords)
            found = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]
            for ours, theirs in zip(call.output, found, strict=True):
                difference = max(difference or 0.0, _distance(ours, theirs.detach()))
    return {"session": session.to_dict(), "difference": difference}


def _compiled(subject: Torch, root: Any) -> Callable[..., Any]:
    if isinstance(root, FunctionType):
        return subject.function(root)
    subject.attach(root)
    module: Callable[..., Any] = root
    return module


def _distance(first: torch.Tensor, second: torch.Tensor) -> float:
    if first.shape != second.shape or first.dtype != second.dtype:
        return float("inf")
    if not first.numel():
        return 0.0
    same = (first == second) | (first.isnan() & second.isnan())
    apart = torch.where(same, torch.zeros_like(first, dtype=torch.float64), (first.double() - second.double()).abs())
    return float(apart.max())


def in_child(work: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any] | str:
    """Run ``work`` in a forked process and return its JSON-able answer, or why there is none."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(work, writer)
    os.close(writer)
    try:
        text = _read(reader, time.monotonic() + seconds)
    except BaseException:
        _end(child)
        raise
    finally:
        os.close(reader)
    if text is None:
        _end(child)
        return f"torch.compile took more than {seconds:.0f} s"
    os.waitpid(child, 0)
    if not text:
        return "the process that ran torch.compile ended without an answer"
    answer: dict[str, Any] = json.loads(text)
    return str(answer["problem"]) if "problem" in answer else answer


def _child(work: Callable[[], dict[str, Any]], writer: int) -> None:
    status = 1
    try:
        # Threads do not survive a fork: pools that torch started before are gone, and a kernel that was compiled (and cached) to run
        # on several threads would wait for them for ever.
        torch.set_num_threads(1)
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        import torch._inductor.config as inductor  # here: it costs the start of every session most of a second

        inductor.force_disable_caches = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.stdout = sys.stderr = io.StringIO()
        try:
            answer = work()
        except Exception as error:
            answer = {"problem": f"torch.compile failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        with os.fdopen(writer, "w", encoding="utf-8") as pipe:
            json.dump(answer, pipe)
        status = 0
    finally:
        os._exit(status)


def _read(reader: int, end: float) -> str | None:
    """All that the child writes; None when time ran out first."""
    pieces: list[bytes] = []
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([reader], [], [], min(left, 0.2))
        if not ready:
            continue
        piece = os.read(reader, 1 << 16)
        if not piece:
            return b"".join(pieces).decode()
        pieces.append(piece)
    return None


def _end(child: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
