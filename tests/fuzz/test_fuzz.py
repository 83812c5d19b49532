"""The fuzzer finds planted bugs, makes programs small and finds none in a short run."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from tests.fuzz.__main__ import fuzz, kind_of
from tests.fuzz.forked import run_forked
from tests.fuzz.grammar import write_program
from tests.fuzz.shrink import shrink
from tests.fuzz.targets import Aliasing, Kernels, Programs

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


def test_crashes_and_hangs_are_found() -> None:
    """A child that dies or does not end is a difference."""
    import os
    import signal

    assert run_forked(lambda: os.kill(os.getpid(), signal.SIGKILL) or []) == ["crash: SIGKILL"]
    assert run_forked(lambda: signal.pause() or [], limit=0.3)[0].startswith("hang")


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
