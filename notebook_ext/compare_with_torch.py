"""``--compare``: replays a cell's recorded calls with stock torch.compile.

The replay runs in a child process.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
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

from engine.records.base import RecordError, from_jsonable
from engine.records.session import Session, SessionData
from engine.runtime.workers.fork import NO_BACKWARD_IN_FORK, fork_process, is_fork_backward_error
from engine.torch_private import inductor
from engine.torch_private.pytree import tree_flatten, tree_unflatten
from notebook_ext.call_recorder import CallRecorder, ClonedCall, tensor_arguments, tensor_results, version_counter
from notebook_ext.compilers import CompileSettings, TorchCompiler

GRADIENT_PREFIX = "gradient of "
MUTATED_SUFFIX = " after the call"
TIMEOUT_SECONDS = 120.0
"""Seconds after which the comparison is abandoned and the child killed."""


@dataclass(frozen=True)
class ResultDifference:
    """Largest absolute differences between elements of one value of one call.

    ``ours_vs_torch`` compares this compiler with torch.compile; the other two compare each with eager.
    ``value`` is the path of the value ("result['loss']", "x after the call", "gradient of weight"). A
    difference is infinite if shapes or dtypes differ or only one side has the value, and None if neither
    side has it.
    """

    call: int
    value: str
    type: str
    ours_vs_torch: float | None
    ours_vs_eager: float | None
    torch_vs_eager: float | None


@dataclass(frozen=True)
class TorchComparison:
    """Result of stock torch.compile for the same calls.

    ``problem`` says why nothing was compared, or which calls were left out.
    """

    session: Session | None
    calls: int = 0
    rows: tuple[ResultDifference, ...] = ()
    problem: str = ""

    @property
    def max_difference(self) -> float | None:
        """Largest difference between this compiler and torch.compile; None if no tensor came back."""
        return max((r.ours_vs_torch for r in self.rows if r.ours_vs_torch is not None), default=None)

    @property
    def text(self) -> str:
        """Largest difference as one sentence, or why there is none."""
        if self.session is None:
            return f"Not compared with torch.compile: {self.problem}."
        calls = f"{self.calls} recorded call{'s' if self.calls != 1 else ''}"
        largest = (
            "no tensors to compare"
            if self.max_difference is None
            else f"largest difference of results {self.max_difference:.2g}"
        )
        return f"torch.compile on copies of the same {calls}: {largest}" + (
            f" ({self.problem})." if self.problem else "."
        )


def compare_with_torch(tape: CallRecorder) -> TorchComparison:
    """Replay the recorded calls in a forked process, isolated from this one."""
    if not tape.calls:
        return TorchComparison(None, problem=tape.stop_reason or "the cell's top level called no root")
    if not hasattr(os, "fork"):
        return TorchComparison(None, problem="not verifiable: this system cannot fork a process to run the calls in")
    if torch.cuda.is_initialized():
        return TorchComparison(None, problem="not verifiable: a process that uses the GPU cannot be forked")
    answer = run_in_child(lambda: _replay_calls(tape), TIMEOUT_SECONDS)
    if isinstance(answer, str):
        return TorchComparison(None, problem=answer)
    try:
        session = Session.from_data(from_jsonable(SessionData, answer["session"], "session"))
    except RecordError as error:
        return TorchComparison(None, problem=str(error))
    problem = "; ".join(filter(None, (tape.stop_reason, answer["note"])))
    return TorchComparison(session, len(tape.calls), tuple(ResultDifference(**r) for r in answer["rows"]), problem)


def _replay_calls(tape: CallRecorder) -> dict[str, Any]:
    """Run the calls with torch.compile, in eager, and again with this compiler.

    The last run is for gradients. All of this runs in the child process.
    """
    subject = TorchCompiler(CompileSettings(backend="torch"))
    rows: list[ResultDifference] = []
    eager = [copy.deepcopy(s) if isinstance(s, torch.nn.Module) else s for s in tape.roots]
    gradients = _runs_backward()
    with subject.record() as session:
        compiled = [_compile_root(subject, s) for s in tape.roots]
        for number, call in enumerate(tape.calls, 1):
            theirs = _run_call(call, compiled[call.root], tape.roots[call.root], gradients=gradients)
            plain = _run_call(call, eager[call.root], eager[call.root], gradients=gradients)
            ours = _our_results(tape, call, with_gradients=any(n.startswith(GRADIENT_PREFIX) for n in theirs))
            names = dict.fromkeys((*plain, *theirs, *ours))
            rows += [_result_row(number, name, ours.get(name), theirs.get(name), plain.get(name)) for name in names]
    note = "" if gradients else f"gradients are not compared: {NO_BACKWARD_IN_FORK}"
    return {"session": session.to_dict(), "rows": [dataclasses.asdict(r) for r in rows], "note": note}


def _runs_backward() -> bool:
    """Return False if this forked process can run no backward."""
    try:
        torch.autograd.backward(torch.ones((), requires_grad=True))
    except RuntimeError as error:
        if is_fork_backward_error(error):
            return False
        raise
    return True


def _our_results(tape: CallRecorder, call: ClonedCall, *, with_gradients: bool) -> dict[str, torch.Tensor]:
    """Return the results of this compiler from the cell itself.

    The cell may not have computed gradients, so they come from one more call.
    """
    target = tape.compiled_roots[call.root]
    again = _run_call(call, target, target, gradients=True) if with_gradients else {}
    results = call.results | {name + MUTATED_SUFFIX: t for name, t in call.mutated.items()}
    return {name: t for name, t in again.items() if name.startswith(GRADIENT_PREFIX)} | results


def _run_call(call: ClonedCall, function: Callable[..., Any], root: Any, *, gradients: bool) -> dict[str, torch.Tensor]:
    """Run one call; return by name every tensor that it returns or mutates, and the gradients."""
    leaves, shape = tree_flatten((call.arguments, call.keywords))
    copies = [t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t for t in leaves]
    arguments, keywords = tree_unflatten(copies, shape)
    argument_tensors = dict(tensor_arguments(call, arguments, keywords))
    before = {name: version_counter(t) for name, t in argument_tensors.items()}
    parameters = dict(root.named_parameters()) if isinstance(root, torch.nn.Module) else {}
    for parameter in parameters.values():
        parameter.grad = None
    torch.set_rng_state(call.rng_state)
    with torch.set_grad_enabled(call.grad_enabled and gradients):
        results = dict(tensor_results(function(*arguments, **keywords)))
    values = {name: t.detach().clone() for name, t in results.items()}
    values |= {
        name + MUTATED_SUFFIX: t.detach().clone()
        for name, t in argument_tensors.items()
        if version_counter(t) != before[name]
    }
    losses = [t.sum() for t in results.values() if t.requires_grad and t.is_floating_point()]
    if losses and gradients:
        torch.autograd.backward(losses)
        to_differentiate = argument_tensors | parameters
        values |= {
            GRADIENT_PREFIX + n: t.grad.detach()
            for n, t in to_differentiate.items()
            if t.is_leaf and t.grad is not None
        }
    return values


def _compile_root(subject: TorchCompiler, root: Any) -> Callable[..., Any]:
    if isinstance(root, FunctionType):
        return subject.compile_function(root)
    subject.compile_module(root)
    module: Callable[..., Any] = root
    return module


def _result_row(
    call: int, value: str, ours: torch.Tensor | None, theirs: torch.Tensor | None, plain: torch.Tensor | None
) -> ResultDifference:  # fmt: skip
    example = next(t for t in (plain, theirs, ours) if t is not None)
    type_text = f"{str(example.dtype).removeprefix('torch.')}{list(example.shape)}"
    return ResultDifference(
        call,
        value,
        type_text,
        _max_abs_difference(ours, theirs),
        _max_abs_difference(ours, plain),
        _max_abs_difference(theirs, plain),
    )


def _max_abs_difference(first: torch.Tensor | None, second: torch.Tensor | None) -> float | None:
    if first is None and second is None:
        return None
    if first is None or second is None:
        return float("inf")
    if first.shape != second.shape or first.dtype != second.dtype:
        return float("inf")
    first, second = _dense_elements(first), _dense_elements(second)
    if not first.numel():
        return 0.0
    wide = torch.complex128 if first.is_complex() else torch.float64
    same = (first == second) | (first.isnan() & second.isnan())
    apart = torch.where(same, torch.zeros((), dtype=torch.float64), (first.to(wide) - second.to(wide)).abs())
    return float(apart.max())


def _dense_elements(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a sparse or quantized tensor as a dense tensor."""
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def run_in_child(work: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any] | str:
    """Run ``work`` in a forked process and return its JSON answer, or why there is none."""
    reader, writer = os.pipe()
    child = fork_process()
    if child == 0:
        os.close(reader)
        _run_child(work, writer)
    os.close(writer)
    try:
        text = _read_answer(reader, time.monotonic() + seconds)
    except BaseException:
        _kill_child(child)
        raise
    finally:
        os.close(reader)
    if text is None:
        _kill_child(child)
        return f"torch.compile took more than {seconds:.0f} s"
    os.waitpid(child, 0)
    if not text:
        return "the process that ran torch.compile ended without an answer"
    answer: dict[str, Any] = json.loads(text)
    return str(answer["problem"]) if "problem" in answer else answer


def _run_child(work: Callable[[], dict[str, Any]], writer: int) -> None:
    status = 1
    try:
        # Threads do not survive a fork. The pools that torch started before are gone: a kernel that was compiled (and cached)
        # to run on several threads would wait for them forever.
        torch.set_num_threads(1)
        settings = inductor.inductor_config
        # The pool of an earlier torch.compile in this process is gone too and would never answer.
        settings.compile_threads = 1
        settings.force_disable_caches = True
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


def _read_answer(reader: int, end: float) -> str | None:
    """Return everything that the child writes; None after a timeout."""
    pieces: list[bytes] = []
    while (seconds_left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([reader], [], [], min(seconds_left, 0.2))
        if not ready:
            continue
        piece = os.read(reader, 1 << 16)
        if not piece:
            return b"".join(pieces).decode()
        pieces.append(piece)
    return None


def _kill_child(child: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
