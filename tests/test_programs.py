"""Run every program through every backend and compare all visible effects with PyTorch."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import functools
import io
import pathlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import engine
from engine import session_jobs
from engine.backends.triton import TritonBackend
from engine.records.session import Session
from engine.records.trace import BreakRecord
from tests.differential import Comparison, Loaded, Observation, beyond_rounding, observe, prepare, tolerances
from tests.markers import slow_except_sample
from tests.programs import all_programs, file_of

FOLDER = pathlib.Path(__file__).parent / "expected" / "programs"
SHORTFALLS_FILE = FOLDER / "shortfalls.txt"
"""As seen with Python 3.11 and torch 2.13."""
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}-torch{'.'.join(torch.__version__.split('.')[:2])}"
SHORTFALLS_OF_THIS_VERSION = None if VERSION == "python3.11-torch2.13" else FOLDER / f"shortfalls-{VERSION}.txt"
"""Shortfalls of other versions, a line each; "none" for one that is not there."""
BACKENDS = ("eager", "aot_eager", "triton")
KERNELS_SHARES = {
    **dict.fromkeys(("containers", "graph_breaks", "language", "objects", "stdlib", "torch_state"), 4),
    **dict.fromkeys(("models", "modules"), 3),
}
"""One program in so many of a folder has kernels outside the slow ring.

The others run with backend "eager". The programs of these folders differ in what the tracer meets. The stages after it
branch on operators, sizes, aliases and gradients, which the programs of the other folders are about.
"""
OTHER_BACKENDS_SHARE = 32
"""One program in so many runs with all backends outside the slow ring.

Backend "triton" runs the same tracer, the same AOT stage and more. Tracing alone is compared to the last bit
without a recording.
"""
GPU_KERNELS_SHARE = 8
"""One program in so many is also lowered for a GPU outside the slow ring.

Here CPU kernels compute the results. What a program's kernels for GPUs need of the lowering is the same, and cases of
every operator hold their text against eager in Triton's interpreter.
"""
NO_GRAD_SHARE = 4
"""One module in so many runs without gradients outside the slow ring.

Functions whose arguments need none, which most programs are, take the same way.
"""
UNRECORDED_SHARE = 12
"""One program in so many is compiled without a recording outside the slow ring.

A recording changes nothing that is compiled. Each program's second round of calls has none.
"""
NAMES = list(all_programs())
VERIFIED = (
    "arithmetic.dtype_promotion",
    "arithmetic.unary_chain",
    "small_models.Gpt",
    "small_models.attention_by_hand",
    "reductions.layer_norm",
    "reductions.long_rows",
    "reductions.softmax_with_mask",
    "views_and_indexing.compute_on_transposed",
)


@dataclass
class KnownShortfalls:
    """Known shortfalls (extra breaks, failed stages) are recorded, so no change goes unseen.

    What is known to fall short of the ideal (more breaks than needed, a stage that failed) has a line each.
    """

    accept: bool
    known: dict[str, str] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, *, accept: bool) -> KnownShortfalls:
        """The ledger as committed, for the versions at hand."""
        known = _lines(SHORTFALLS_FILE) | (_lines(SHORTFALLS_OF_THIS_VERSION) if SHORTFALLS_OF_THIS_VERSION else {})
        return cls(accept, {key: text for key, text in known.items() if text != "none"})

    def check(self, key: str, shortfall: str) -> None:
        """Fail unless ``shortfall`` ("" for none) is what the ledger says of ``key``."""
        if self.accept:
            self.seen[key] = shortfall
        elif shortfall != self.known.get(key, ""):
            pytest.fail(
                f"{key}: known shortfall: {self.known.get(key) or 'none'}; now: {shortfall or 'none'}. "
                "make accept writes what is true now.",
                pytrace=False,
            )

    def write(self) -> None:
        """Write the observed shortfalls to the ledger, sorted, safely beside other processes.

        Other processes that test may write theirs at the same time.
        """
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = SHORTFALLS_OF_THIS_VERSION or SHORTFALLS_FILE
        with (FOLDER / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            usual = _lines(SHORTFALLS_FILE) if SHORTFALLS_OF_THIS_VERSION else {}
            kept = _lines(path) | {k: v or "none" for k, v in self.seen.items()}
            kept = {k: v for k, v in kept.items() if v != usual.get(k, "none")}
            path.write_text("".join(f"{k}: {v}\n" for k, v in sorted(kept.items())), encoding="utf-8")


def _lines(path: pathlib.Path) -> dict[str, str]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return dict(line.split(": ", 1) for line in text.splitlines())


@pytest.fixture(scope="module")
def ledger(request: pytest.FixtureRequest) -> Iterator[KnownShortfalls]:
    """The ledger of shortfalls; written back under ``--accept``."""
    found = KnownShortfalls.read(accept=request.config.getoption("--accept"))
    yield found
    if found.accept:
        found.write()


@pytest.fixture
def no_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are generated but not compiled for a target: these tests are about results."""
    monkeypatch.setattr(session_jobs, "compile_for", lambda *_, **__: None)


@dataclass
class CompiledRun:
    """One program run compiled under a recording: what it did, and what was recorded."""

    loaded: Loaded
    compiled: Any
    seen: Observation
    session: Session


@contextlib.contextmanager
def cpu_kernels_only() -> Iterator[None]:
    """Leave out the kernels for GPUs that a recording shows and that nothing runs here."""
    with pytest.MonkeyPatch.context() as patch:
        for lowers in ("_forward", "_backward"):
            patch.setattr(TritonBackend, lowers, lambda self, graph: None)
        yield


def run(name: str, backend: str, *, grad: bool, with_gpu_kernels: bool = True) -> CompiledRun:
    """Compile ``file.program`` and make its calls."""
    engine.reset()
    loaded = prepare(name, "compiled")
    with contextlib.nullcontext() if with_gpu_kernels else cpu_kernels_only(), engine.record() as session:
        compiled = engine.compile(loaded.target, backend=backend)
        seen = observe(loaded, compiled, grad=grad)
    return CompiledRun(loaded, compiled, seen, session)


def recompiles_on_repeat(loaded: Loaded, compiled: Any, *, grad: bool = True) -> int:
    """How many compilations repeating the last call needs.

    Warnings are filtered as in ``observe``: under another filter that raises them, a call compiles again.
    """
    with (
        warnings.catch_warnings(record=True),
        engine.record() as session,
        torch.set_grad_enabled(grad),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("always")
        arguments = loaded.arguments(len(loaded.program.calls) - 1)
        with contextlib.suppress(Exception):  # the program's own, compared before
            compiled(*arguments.args, **arguments.kwargs)
    return len(session.compilations)


def recompiles(loaded: Loaded, compiled: Any) -> list[str]:
    """Return the shortfall that repeating the last call compiles, if the program should not."""
    is_recompiled = loaded.program.compiles_once and recompiles_on_repeat(loaded, compiled)
    return ["a repeated call compiled again"] if is_recompiled else []


NEST_CALLS = (
    "stdlib_basics.infinite_recursion",
    "warnings_and_logging.deep_calls",
    "warnings_and_logging.recursion_without_end",
)


def marks_of(name: str, backend: str) -> tuple[pytest.MarkDecorator, ...]:
    """Mark what the slow ring alone runs of a program."""
    runs_kernels = not slow_except_sample(name, KERNELS_SHARES.get(file_of(name.partition(".")[0]).parent.name, 1))
    if backend == ("triton" if runs_kernels else "eager"):
        return ()
    return slow_except_sample(name, OTHER_BACKENDS_SHARE)


def cases() -> Iterator[Any]:
    """List each program and backend, with modules again without gradients for kernel backends.

    Modules run once more without gradients where kernels are generated.
    """
    for name, program in all_programs().items():
        is_lowered_for_gpu = not slow_except_sample(name, GPU_KERNELS_SHARE)
        for backend in BACKENDS:
            marks = marks_of(name, backend)
            if name in NEST_CALLS:
                marks = (*marks, pytest.mark.nests_calls)
            if backend in program.skip:
                marks = (pytest.mark.skip(reason=program.skip[backend]),)
            yield pytest.param(name, backend, True, is_lowered_for_gpu, id=f"{name}-{backend}", marks=marks)
        if not is_lowered_for_gpu and "triton" not in program.skip:
            yield pytest.param(name, "triton", True, True, id=f"{name}-triton-gpu_kernels", marks=pytest.mark.slow)
        if isinstance(program.target, type) or name.startswith("training_steps."):
            marks = slow_except_sample(name, NO_GRAD_SHARE)
            yield pytest.param(name, "triton", False, is_lowered_for_gpu, id=f"{name}-triton-no_grad", marks=marks)
            if not is_lowered_for_gpu:
                id = f"{name}-triton-no_grad-gpu_kernels"
                yield pytest.param(name, "triton", False, True, id=id, marks=pytest.mark.slow)


@pytest.mark.usefixtures("no_background")
@pytest.mark.parametrize(("name", "backend", "grad", "with_gpu_kernels"), list(cases()))
def test_compiled_matches_eager(
    name: str, backend: str, grad: bool, with_gpu_kernels: bool, ledger: KnownShortfalls
) -> None:
    """Compiled code matches eager in all observable behavior, and is reused.

    Compared are results, effects, text, exceptions, gradients and random state, of the calls that compile and of
    a second round of the same calls without a recording.
    """
    plain = prepare(name, "plain")
    expected = observe(plain, plain.target, grad=grad)
    ran = run(name, backend, grad=grad, with_gpu_kernels=with_gpu_kernels)
    # In a joint graph, gradients that meet are summed in an order of its own.
    exact = backend == "eager" or (backend == "aot_eager" and not grad)
    allowed = None if exact else tolerances(plain.program)
    found = beyond_rounding(name, Comparison(allowed), expected, ran.seen, grad=grad)
    assert not found, "\n".join(found)
    expected, seen = observe(plain, plain.target, grad=grad), observe(ran.loaded, ran.compiled, grad=grad)
    found = beyond_rounding(name, Comparison(allowed), expected, seen, grad=grad, rounds=2)
    assert not found, "In the second round:\n" + "\n".join(found)
    parts = recompiles(ran.loaded, ran.compiled) if grad and backend != "aot_eager" else []
    parts += shortfalls(ran, counts_breaks=grad and backend != "aot_eager")
    ledger.check(f"{name} [{backend}{'' if grad else ' no_grad'}]", "; ".join(parts))


def _place(found: BreakRecord) -> tuple[int, ...]:
    """Return the place of a break in its file, the same on each Python.

    CPython 3.11 gives what ``with`` calls the span of its statement, newer ones that of the manager's expression.
    """
    span = found.span
    place = (hash(span.file), span.line, span.end_line, span.column, span.end_column)
    if "__enter__" in found.context or "__exit__" in found.context:
        return _spans_of_with(span.file).get(place, place)
    return place


@functools.cache
def _spans_of_with(file: str) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return the span of each ``with`` statement by the spans of its managers."""
    path = pathlib.Path(file)
    tree = ast.parse(path.read_bytes() if path.exists() else "")
    return {
        (hash(file), *_span(item.context_expr)): (hash(file), *_span(statement))
        for statement in ast.walk(tree)
        if isinstance(statement, ast.With)
        for item in statement.items
    }


def _span(node: ast.expr | ast.stmt) -> tuple[int, ...]:
    return node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0


def shortfalls(ran: CompiledRun, *, counts_breaks: bool) -> list[str]:
    """Return shortfalls of a correct run: stages that failed and, if asked, breaks.

    Places where the graph broke beyond the wanted number.
    Rounds of a loop over an iterator from outside are not counted: no compiler knows its items before it is
    asked, and whether there is one depends on Python's version.
    """
    parts = []
    told = [b for c in ran.session.compilations if c.trace is not None for b in c.trace.breaks]
    breaks = {_place(b): b.kind for b in told if b.kind != "outside-iterator"}
    if counts_breaks and len(breaks) != ran.loaded.program.breaks:
        kinds = ", ".join(sorted(set(breaks.values())))
        parts.append(
            f"broke in {len(breaks)} places, {ran.loaded.program.breaks} wanted" + (f" ({kinds})" if kinds else "")
        )
    failures = [*ran.session.failures, *(f for c in ran.session.compilations for f in c.failures)]
    if failures:
        parts.append("failed: " + ", ".join(sorted({f.stage for f in failures})))
    return parts


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=slow_except_sample(name, UNRECORDED_SHARE)) for name in NAMES]
)
def test_matches_eager_without_recording(name: str, ledger: KnownShortfalls) -> None:
    """With no recording open, compiled code is as correct as with one, and is reused.

    This holds in the calls that compile and in a second round of the same calls.
    """
    engine.reset()
    plain, compiled = prepare(name, "plain"), prepare(name, "compiled")
    run_compiled = engine.compile(compiled.target, backend="eager")
    for _ in range(2):
        expected, actual = observe(plain, plain.target), observe(compiled, run_compiled)
        found = Comparison().observations(expected, actual)
        assert not found, "\n".join(found)
    ledger.check(f"{name} [eager without recording]", "; ".join(recompiles(compiled, run_compiled)))


def test_the_readme_counts_the_programs() -> None:
    """README's "more than N short programs" is true to the hundred."""
    readme = (pathlib.Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"compares more than {(len(NAMES) - 1) // 100 * 100:,} short programs" in readme


def test_known_shortfalls_name_existing_programs() -> None:
    """No line of the ledger is about a program that is gone."""
    known = KnownShortfalls.read(accept=False).known
    assert {key.split(" ")[0] for key in known} <= set(NAMES)


@pytest.mark.parametrize("name", [n if n in VERIFIED else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
@pytest.mark.usefixtures("no_background")
def test_kernels_in_interpreter(name: str) -> None:
    """Generated kernels, run in Triton's interpreter on the call's inputs, agree with ATen."""
    ran = run(name, "triton", grad=False)
    results = engine.verify(ran.session)
    agree = {
        k
        for k, v in results.items()
        if v.outcome in ("equal", "close")
        or "verified with the kernel that reads them" in v.note
        or (name not in VERIFIED and "inputs of the call share memory" in v.note)
        # its call raises in eager, too, or falls back to it
        or (name not in VERIFIED and ("the ATen graph could not be run" in v.note or "its graph assumes" in v.note))
    }
    if name in VERIFIED:
        assert agree, "no kernel was verified"
    wrong = {k: v for k, v in results.items() if k not in agree}
    assert not wrong, "\n".join(f"{k}: {v.outcome} {v.max_error} {v.note}" for k, v in wrong.items())
