"""The fuzzer finds planted bugs, makes programs small and finds none in a short run."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from tests.fuzz.__main__ import fuzz, kind_of
from tests.fuzz.forked import Worker, run_forked
from tests.fuzz.grammar import write_program
from tests.fuzz.shrink import shrink
from tests.fuzz.targets import Aliasing, Kernels, Programs, Target

SEEDS = range(20, 24)


def planted(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    """Compile as the engine does, then change what the compiled function does."""
    real = engine.compile

    def compile_wrongly(function: Any, **options: Any) -> Any:
        compiled = real(function, **options)
        return lambda *args, **kwargs: change(compiled, *args, **kwargs)

    monkeypatch.setattr(engine, "compile", compile_wrongly)


def lose_writes(compiled: Any, x: Any, *args: Any) -> Any:
    """Run on a copy of the input, so that writes to it are lost."""
    return compiled(x.detach().clone(), *args)


def keep_first_number(compiled: Any, x: Any, n: int, *args: Any) -> Any:
    """Use the number of the first call in every call, as without a guard on it."""
    first = vars(keep_first_number).setdefault("number", n)
    return compiled(x, first, *args)


PROGRAM = """
import torch
from tests.programs import program
LOG = []
@program(lambda: (torch.ones(2, 3), 1), lambda: (torch.ones(4, 3), 2))
def fuzzed(x, n):
    y = x.sin() + 1
    if n > 0:
        y = y * 2
        x.add_(1)
    for i in range(2):
        LOG.append(i + n)
    return y, n
"""


WRITTEN_AFTER_PRODUCT = """
import torch
from tests.programs import program
@program(lambda: (torch.randn(3, 4, requires_grad=True),), tolerance=1e-7)
def fuzzed(x):
    y = x * 1
    with torch.autocast('cpu', dtype=torch.bfloat16):
        product = y @ y.t()
        y[:, 0] = product[:, 0]
    return y, product.float()
"""


def count_lines(text: str) -> int:
    """Return the number of lines of a program's function."""
    return len(text.partition("def fuzzed")[2].strip().splitlines())


@pytest.mark.thorough
@pytest.mark.parametrize(("change", "needed"), [(lose_writes, "x.add_(1)"), (keep_first_number, "n")])
def test_planted_bugs_are_found_and_made_small(
    change: Any, needed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """A lost write and a missing guard are found, and few statements are left of the program."""
    planted(monkeypatch, change)
    target = Programs(tmp_path)
    first = run_forked(lambda: target.differences(PROGRAM, "eager"))
    assert first

    sizes = []

    def still_differs(text: str) -> bool:
        if sizes and sizes[-1] <= 4:
            return False  # small enough: what is still in it is tried no more
        lines = run_forked(lambda: target.differences(text, "eager", is_shrinking=True))
        is_wrong = any(kind_of(line) == kind_of(first[0]) for line in lines)
        sizes.extend([count_lines(text)] * is_wrong)
        return is_wrong

    small = shrink(PROGRAM, still_differs, 25)
    assert needed in small
    assert count_lines(small) <= 4


WIDENED = """
import torch
from tests.programs import program
@program(lambda: (torch.rand(2, 3, dtype=torch.bfloat16),))
def fuzzed(x):
    return (x * 1.7 + torch.rand_like(x)).float()
"""


def test_crashes_and_hangs_are_found() -> None:
    """A child that dies or does not end is a difference."""
    assert run_forked(lambda: os.kill(os.getpid(), signal.SIGKILL) or []) == ["crash: SIGKILL"]
    assert run_forked(lambda: signal.pause() or [], limit=0.3)[0].startswith("hang")


def end_or_tell(seed: int, backend: str) -> list[str]:
    """Die, hang, or return the number of the process."""
    if backend == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    elif backend == "hangs":
        signal.pause()
    return [str(os.getpid())]


def test_a_worker_makes_many_checks_and_survives_crashes_and_hangs() -> None:
    """One child makes the checks; another takes over after one that dies or does not end."""
    worker = Worker(end_or_tell, limit=5.0)
    first = worker.run(1, "fine")
    assert worker.run(2, "fine") == first != [str(os.getpid())]
    assert worker.done == [(1, "fine"), (2, "fine")]
    assert worker.run(3, "dies") == ["crash: SIGKILL"]
    second = worker.run(4, "fine")
    assert second not in (first, [str(os.getpid())])
    assert worker.done == [(4, "fine")]
    worker.close()
    hanging = Worker(end_or_tell, limit=0.3)
    assert hanging.run(5, "hangs")[0].startswith("hang")
    hanging.close()


class Counting(Target):
    """Differs in each process from the third check on, or always."""

    def __init__(self, *, differs_alone: bool) -> None:
        self.differs_alone = differs_alone
        self.checks = 0

    def write(self, seed: int) -> str:
        """Return a text that names the seed."""
        return f"text {seed}"

    def differences(self, text: str, backend: str, *, is_shrinking: bool = False) -> list[str]:
        """Return the text from the third check on."""
        self.checks += 1
        return [text] if self.differs_alone or self.checks > 2 else []


def test_differences_that_need_other_programs_are_told_apart(tmp_path: pathlib.Path) -> None:
    """A program that differs in a worker is run alone too; only then it is written."""
    report = fuzz(Counting(differs_alone=False), range(4, 7), ("eager", "triton"), tmp_path, shrink_seconds=0)
    assert report.found == ["seed 5 [eager], only after the programs 4 to 5: text 5"]
    assert report.runs == 5
    alone = fuzz(Counting(differs_alone=True), range(4, 5), ("eager", "triton"), tmp_path, shrink_seconds=0)
    assert alone.found[0].startswith("seed 4 [eager]: text 4 (")
    assert (tmp_path / "seed_4_eager.py").read_text() == "text 4"


@pytest.mark.parametrize(("factor", "is_found"), [(1.0, False), (1.01, False), (1.2, True)])
def test_rounding_is_judged_where_float64_cannot_run(
    factor: float, is_found: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """In float64 a product saves its operand itself, and the later write to it raises."""

    def scale_product(compiled: Any, x: Any) -> Any:
        y, product = compiled(x)
        return y, product * factor

    planted(monkeypatch, scale_product)
    found = Programs(tmp_path).differences(WRITTEN_AFTER_PRODUCT, "aot_eager")
    assert bool(found) == is_found


@pytest.mark.parametrize(("factor", "is_found"), [(1.002, False), (1.1, True)])
def test_rounding_is_judged_where_float64_draws_other_numbers(
    factor: float, is_found: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Runs of eager with other roundings show how far a widened result may move."""
    planted(monkeypatch, lambda compiled, x: compiled(x) * factor)
    found = Programs(tmp_path).differences(WIDENED, "aot_eager")
    assert bool(found) == is_found


def test_programs_of_one_size_are_not_taken_for_each_other(tmp_path: pathlib.Path) -> None:
    """Each text is run, also where only one digit differs from the text before."""
    target = Programs(tmp_path)
    texts = [PROGRAM.replace("y * 2", f"y * {n}") for n in (2, 3, 2)]
    seen = [target.plain_run(text).seen for text in texts]
    results = [s.outcomes[0]["result"][0] for s in seen if s is not None]
    assert torch.equal(results[0], results[2])
    assert not torch.equal(results[0], results[1])
    assert len(list(target.folder.glob("*.py"))) == 1


def test_programs_are_the_same_for_one_seed() -> None:
    """A seed gives one text, and other seeds give others."""
    assert write_program(5) == write_program(5)
    assert len({write_program(seed) for seed in range(30)}) == 30
    assert Aliasing().write(4) == Aliasing().write(4)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Programs, Kernels])
def test_a_short_run_finds_nothing(kind: Any, tmp_path: pathlib.Path) -> None:
    """Fixed seeds agree with eager on the backends that fit the kind."""
    torch.set_num_threads(1)
    report = fuzz(kind(tmp_path), SEEDS, kind.backends, tmp_path, shrink_seconds=0)
    assert not report.found
    assert report.runs == len(SEEDS) * len(kind.backends)


def draw_twice(x: Any) -> Any:
    """Draw twice from casts that different kernels compute."""
    return torch.rand_like(x.float()) * 2, torch.rand_like(x.float()) + x


def test_random_numbers_are_drawn_in_program_order() -> None:
    """Kernels between two draws do not change their order (found by a random program)."""
    x = torch.arange(24).reshape(4, 6)
    torch.manual_seed(0)
    expected = draw_twice(x)
    torch.manual_seed(0)
    found = engine.compile(draw_twice, backend="triton")(x)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
