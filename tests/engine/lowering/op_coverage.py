"""Report the share of ATen nodes that are lowered.

Run ``python -m tests.engine.lowering.op_coverage [operators] [programs] [transformers] [--verify]``.

Left out of the count are operators that a vendor library does best (products of matrices, convolutions,
sorting, attention, Fourier transforms, linear algebra) and those that only allocate. A graph that could not
be lowered at all counts with all its nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.ir.aot.aot_graph import AotGraph
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.kernels.triton.printer import print_triton
from engine.lowering import driver
from engine.records.kernels import VerifyRecord
from engine.runtime.verify.kernels import verify_kernels
from engine.torch_private import pytree
from tests.engine.lowering.trace_aten import trace_to_aten
from tests.torch_internals import operator_samples

TARGET = "cuda:90"
SAMPLES = 4
"""Sample inputs of each operator."""
DTYPES = (torch.float32, torch.int64, torch.bool)
"""An operator is sampled with the first of these that it takes."""
Lower = Callable[..., LoweredProgram]


@dataclass
class Coverage:
    """Counts of nodes, why some are not lowered, and what came of verifying kernels."""

    lowered: int = 0
    counted: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong_kernels: list[str] = field(default_factory=list)
    unverified: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Lowered nodes of those that count."""
        return self.lowered / max(self.counted, 1)

    def add(self, program: LoweredProgram) -> None:
        """Count one program."""
        record = program.record
        self.lowered += record.lowered
        self.counted += record.total - sum(e.is_library for e in record.externs)
        self.missing.update(f"{e.op}: {e.reason}" for e in record.externs if not e.is_library)

    def fail(self, graph: AotGraph, error: Exception) -> None:
        """Count a graph of which nothing is lowered."""
        self.counted += sum(node.op == "call_function" for node in graph.module.graph.nodes)
        self.failed[str(error)] += 1

    def check(self, name: str, program: LoweredProgram, graph: AotGraph, inputs: tuple[Any, ...]) -> None:
        """Verify a program's kernels in the interpreter."""
        self.count_outcomes(name, verify_kernels(program, graph, inputs))

    def count_outcomes(self, name: str, results: Mapping[str, VerifyRecord]) -> None:
        """Count what came of verifying one program's kernels."""
        for id, record in results.items():
            self.outcomes[record.outcome] += 1
            if record.outcome == "different":
                self.wrong_kernels.append(f"{name} {id}: {record.note}")
            elif record.outcome == "not verifiable":
                self.unverified[record.note] += 1

    def __str__(self) -> str:
        lines = [f"{self.lowered} of {self.counted} nodes lowered: {self.share:.2%}"]
        lines += [f"  {count:>4} {why}" for why, count in self.missing.most_common()]
        lines += [f"  {count:>4} graphs: {why}" for why, count in self.failed.most_common()]
        if self.outcomes:
            lines.append(
                "  kernels in the interpreter: " + ", ".join(f"{n} {k}" for k, n in self.outcomes.most_common())
            )
            lines += [f"  different: {text}" for text in self.wrong_kernels]
            lines += [f"  {count:>4} {note}" for note, count in self.unverified.most_common()]
        return "\n".join(lines)


def operators(
    found: Coverage,
    *,
    only: tuple[str, ...] = (),
    samples: int = SAMPLES,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    is_verified: bool = False,
) -> None:
    """torch's operators with torch's own sample inputs."""
    for operator in operator_samples():
        if only and operator.name not in only:
            continue
        for name, function, args in _samples(operator, samples, dtypes):
            try:
                graph = trace_to_aten(function, args)
            except Exception:  # what depends on values of data, or is no function of tensors, has no graph
                continue
            _lower_one(found, name, graph, args, is_verified=is_verified)


def _lower_one(found: Coverage, name: str, graph: AotGraph, args: tuple[Any, ...], *, is_verified: bool) -> None:
    try:
        program = driver.lower(graph, TARGET, print_triton)
    except driver.LoweringError as error:
        found.fail(graph, error)
        return
    found.add(program)
    if is_verified:
        found.check(name, program, graph, args)


def _samples(
    operator: Any, count: int, dtypes: tuple[torch.dtype, ...]
) -> Iterator[tuple[str, Callable[..., Any], tuple[torch.Tensor, ...]]]:
    """Functions of tensors alone, and the tensors."""
    dtype = next((d for d in dtypes if operator.supports_dtype(d, "cpu")), None)
    if dtype is None:
        return
    torch.manual_seed(0)
    try:
        given = list(operator.sample_inputs("cpu", dtype, requires_grad=False))[:count]
    except Exception:  # samples that need a library or a device that is not here
        return
    for number, sample in enumerate(given):
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def function(*tensors: torch.Tensor, leaves: Any = leaves, spec: Any = spec, places: Any = places) -> Any:
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            first, args, kwargs = pytree.tree_unflatten(filled, spec)
            return operator(first, *args, **kwargs)

        yield f"{operator.name}[{number}]", function, tuple(leaves[k] for k in places)


@contextlib.contextmanager
def _count_lowered_programs(found: Coverage) -> Iterator[None]:
    """Count whatever the compiler lowers meanwhile."""
    original: Lower = driver.lower

    def counted(graph: AotGraph, target: str, printed: Any, **options: Any) -> LoweredProgram:
        try:
            program = original(graph, target, printed, **options)
        except Exception as error:
            found.fail(graph, error)
            raise
        found.add(program)
        return program

    driver.lower = counted  # type: ignore[assignment]
    try:
        yield
    finally:
        driver.lower = original


def programs(found: Coverage, *, only: tuple[str, ...] = (), is_verified: bool = False) -> None:
    """The programs that every stage is tested with, with gradients where they have some."""
    import engine
    from tests.programs import program_names
    from tests.test_programs import recompiles_on_repeat, run

    for name in program_names():
        if only and not name.startswith(only):
            continue
        for grad in (False, True):
            with (
                _count_lowered_programs(found),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.suppress(Exception),
            ):
                ran = run(name, "triton", grad=grad)
                recompiles_on_repeat(ran.loaded, ran.compiled, grad=grad)
                if is_verified:
                    found.count_outcomes(name, engine.verify(ran.session))


def transformers(found: Coverage, *, only: tuple[str, ...] = (), is_verified: bool = False) -> None:
    """Count small transformers models: inference, then training outputs and gradients."""
    import engine
    from tests.test_transformers import SMALL, made, results

    for name in SMALL:
        if only and name not in only:
            continue
        for train in (False, True):
            model, inputs = made(name)
            model.train(train)
            engine.reset()
            with _count_lowered_programs(found), engine.record() as session:
                results(model, engine.compile(model, target=TARGET), inputs, train=train)
            if is_verified:
                found.count_outcomes(f"{name} {'training' if train else 'inference'}", engine.verify(session))


SUBJECTS: dict[str, Callable[..., None]] = {"operators": operators, "programs": programs, "transformers": transformers}


def main() -> None:
    """Measure, and print what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="*", default=list(SUBJECTS), help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--only", nargs="*", default=[], help="names of operators, programs or models")
    parser.add_argument("--verify", action="store_true", help="run every kernel in Triton's interpreter too")
    parser.add_argument("--dtype", help="sample operators with this type only")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="sample inputs of each operator")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    for subject in options.subjects:
        found = Coverage()
        more: dict[str, Any] = {}
        if subject == "operators":
            dtypes = (getattr(torch, options.dtype),) if options.dtype else DTYPES
            more = {"dtypes": dtypes, "samples": options.samples}
        SUBJECTS[subject](found, only=tuple(options.only), is_verified=options.verify, **more)
        print(f"{subject}: {found}\n", flush=True)


if __name__ == "__main__":
    main()
