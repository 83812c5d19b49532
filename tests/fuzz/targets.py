"""Kinds of random texts, and how the engine differs from eager on them."""

from __future__ import annotations

import hashlib
import pathlib
import random
import sys
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch

import engine
from engine.aot.saved_tensors import CAN_UNPACK_SINGLE
from tests import programs
from tests.differential import Comparison, Observation, beyond_rounding, observe, prepare, tolerances
from tests.engine.aot.aliasing.compare_programs import check as check_aliasing
from tests.engine.aot.aliasing.generate_programs import Case, generate
from tests.fuzz.grammar import write_program
from tests.fuzz.rounding import beyond_other_roundings
from tests.programs import Program

SLIPS = ("NameError", "UnboundLocalError", "SyntaxError")
"""Exceptions that a smaller program must not raise unless the first one did."""
KNOWN_LIMITS = (
    # A compiled call is one autograd node: a backward of one result passes, and frees, what made the inputs of all.
    "Trying to backward through the graph a second time",
    # Before torch 2.13 that node unpacks its saved tensors together, also those that only other results need.
    *(() if CAN_UNPACK_SINGLE else ("modified by an inplace operation",)),
)
"""Texts of exceptions that only compiled code raises, for a reason that is understood."""
ALIASING_KINDS = (("plain", False), ("plain", True), ("wrapped", False), ("wrapped", True), ("sizes", False))


class Target(ABC):
    """A kind of random text, and what the engine makes of it."""

    backends: tuple[str, ...] = ("eager", "aot_eager", "triton")
    _written: tuple[int, str] | None = None

    @abstractmethod
    def write(self, seed: int) -> str:
        """Return the text of one case."""

    def text_of(self, seed: int) -> str:
        """Return the text of one case; that of the last seed is remembered."""
        if self._written is None or self._written[0] != seed:
            self._written = seed, self.write(seed)
        return self._written[1]

    @abstractmethod
    def differences(self, text: str, backend: str, *, is_shrinking: bool = False) -> list[str]:
        """Return a line per difference from eager; empty if the case is not sound."""


@dataclass(frozen=True)
class PlainRun:
    """A program file, and what its plain run has shown; None if it is not sound."""

    text: str
    stem: str
    program: Program | None
    seen: Observation | None


class Programs(Target):
    """Random Python programs, each called several times."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder / "random"
        self.folder.mkdir(parents=True, exist_ok=True)
        programs.SEARCHED_FOLDERS.append(folder)
        self.stem = f"fuzzed_program_{len(programs.SEARCHED_FOLDERS)}"
        self._plain: PlainRun | None = None

    def write(self, seed: int) -> str:
        """Return a program file."""
        return write_program(seed)

    def differences(self, text: str, backend: str, *, is_shrinking: bool = False) -> list[str]:
        """Run a program file plainly and compiled."""
        warnings.simplefilter("ignore")
        try:
            return self._differences_from(self.plain_run(text), backend, is_shrinking=is_shrinking)
        finally:
            if is_shrinking:
                self._forget_plain()

    def plain_run(self, text: str) -> PlainRun:
        """Return what the plain run of a program file shows."""
        if self._plain is None or self._plain.text != text:
            self._forget_plain()
            self._plain = self._run_plainly(text)
        return self._plain

    def _run_plainly(self, text: str) -> PlainRun:
        # Other texts need other files: Python takes one of equal size and time for the same and runs its old bytecode.
        stem = f"{self.stem}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        (self.folder / f"{stem}.py").write_text(text, encoding="utf-8")
        try:
            plain = prepare(f"{stem}.fuzzed", "plain")
            return PlainRun(text, stem, plain.program, observe(plain, plain.target))
        except (SyntaxError, RuntimeError):
            return PlainRun(text, stem, None, None)  # no program, or eager's backward raises

    def _forget_plain(self) -> None:
        if self._plain is not None:
            for name in [n for n in sys.modules if n.startswith(f"tests.programs.{self._plain.stem}__")]:
                del sys.modules[name]
            for path in self.folder.rglob(f"{self._plain.stem}.*py*"):
                path.unlink(missing_ok=True)
            self._plain = None

    def _differences_from(self, plain: PlainRun, backend: str, *, is_shrinking: bool) -> list[str]:
        name, expected, program = f"{plain.stem}.fuzzed", plain.seen, plain.program
        if expected is None or program is None:
            return []
        raised = {o["error"][0] for o in expected.outcomes if "error" in o}
        if is_shrinking and raised & set(SLIPS):
            return []
        compiled = prepare(name, "compiled")
        engine.reset()
        try:
            actual = observe(compiled, engine.compile(compiled.target, backend=backend))
        except RuntimeError as error:  # in the backward after a call
            return (
                [] if any(text in str(error) for text in KNOWN_LIMITS) else [f"backward raises only compiled: {error}"]
            )
        comparison = Comparison(None if backend == "eager" else tolerances(program))
        found = beyond_rounding(name, comparison, expected, actual, grad=True)
        found = beyond_other_roundings(name, comparison, found, expected)
        if found:
            again = prepare(name, "again")
            if Comparison().observations(expected, observe(again, again.target)):
                return []  # eager differs from itself
        return found


class Kernels(Programs):
    """Chains of operators over tensors of any dtype and layout, for the kernels of the CPU."""

    backends = ("triton",)

    def write(self, seed: int) -> str:
        """Return a program file that applies a chain of named steps."""
        from tests.engine.lowering.fuzz_graphs import NAMES, TYPES

        rng = random.Random(seed)
        dtype = rng.choice(TYPES)
        steps = [(rng.choice(NAMES), rng.randint(0, 2)) for _ in range(rng.randint(1, 12))]
        rank = rng.randint(1, 3)
        calls = []
        for _ in range(rng.randint(1, 3)):
            shape = tuple(rng.randint(1, 9) for _ in range(rank))
            layout = rng.choice(("", "", ".permute(*reversed(range(" + str(rank) + ")))", "[::2]"))
            calls.append(f"lambda: ((torch.randn{shape} * 4).abs().to({dtype}){layout},)")
        lines = [
            f'"""Random chain of operators {seed}."""', "import torch", "from tests.engine.lowering.fuzz_graphs import apply_steps",
            "from tests.programs import program", f"@program({', '.join(calls)}, tolerance={2e-2 if dtype.itemsize == 2 else 1e-4})",
            "def fuzzed(x):", f"    return apply_steps(x, {steps})",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"


class Aliasing(Target):
    """Programs that alias and mutate tensors in every way."""

    def __init__(self) -> None:
        self.case = generate(0, "plain")

    def write(self, seed: int) -> str:
        """Return the function of a case; its inputs and its caller are remembered."""
        kind, is_wider = ALIASING_KINDS[seed % len(ALIASING_KINDS)]
        self.case = generate(seed, kind, is_wider=is_wider)  # type: ignore[arg-type]
        return self.case.body

    def differences(self, text: str, backend: str, *, is_shrinking: bool = False) -> list[str]:
        """Run the case with ``text`` as its function."""
        warnings.simplefilter("ignore")
        case: Case = replace(self.case, body=text)
        found = check_aliasing(case, backend)
        return [] if is_shrinking and any(slip in line for line in found for slip in SLIPS) else found


def warm_up() -> None:
    """Load what every compile needs, so that children inherit it."""
    torch.set_num_threads(1)
    for backend in Target.backends:
        engine.reset()
        engine.compile(lambda x: (x * 2).sin().sum(0), backend=backend)(
            torch.randn(3, 4, requires_grad=True)
        ).sum().backward()
    engine.reset()
