"""Autotuning picks the fastest correct candidate, caches it on disk, and stops on request."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch

from engine.cache.disk_store import DiskStore
from engine.ir.kernels.lowered_program import AtenCall, Buffer, BufferRef, LoweredProgram
from engine.ir.kernels.template_choice import Candidate, ChoiceRequest
from engine.runtime.autotune import Autotuner
from tests.engine.runtime.interpreter_launcher import interpreter_launcher

aten = torch.ops.aten


def way(name: str, target: Any = aten.mm.default, size: Any = 8) -> Candidate:
    """A way to multiply two matrices: one call."""
    kinds = {"a": "input", "b": "input", "out": "intermediate"}
    buffers = {n: Buffer(n, torch.float32, (size, size), (size, 1), kind) for n, kind in kinds.items()}  # type: ignore[arg-type]
    step = AtenCall("aten:mm", target, (BufferRef("a"), BufferRef("b")), {}, ("out",))
    symbols = {} if isinstance(size, int) else {str(size): (0, 0)}
    return Candidate(
        name, lambda: LoweredProgram("cuda:90", ("a", "b"), buffers, (step,), (BufferRef("out"),), symbols)
    )


def turned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same another way."""
    return (b.t() @ a.t()).t().contiguous()


def doubled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Something else."""
    return 2 * (a @ b)


def broken(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Nothing at all."""
    raise RuntimeError("no such instruction")


class Clock:
    """Gives each distinct work, in the order of first sight, the next of these times."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds
        self.seen: list[Any] = []

    def __call__(self, work: Callable[[], Any]) -> float:
        work()
        if work not in self.seen:
            self.seen.append(work)
        return self.seconds[self.seen.index(work)]


def tuner(clock: Any, **more: Any) -> Autotuner:
    """One that measures by a clock of ours."""
    return Autotuner("a card", clock, interpreter_launcher, **more)


QUESTION = ChoiceRequest("aten:0/0:mm", (way("vendor"), way("template turned", turned)))


def test_the_fastest_is_taken_and_it_is_told() -> None:
    """Times of both, and a sentence that names the card."""
    answer = tuner(Clock(3e-5, 1e-5)).choose(QUESTION)
    assert (answer.chosen, answer.seconds) == (1, (3e-5, 1e-5))
    assert answer.reason == (
        "Measured on a card: the library call, with the kernels around it, takes 30 µs, the best template 10 µs (turned)."
    )
    assert tuner(Clock(1e-5, 3e-5)).choose(QUESTION).chosen == 0


def test_a_hair_is_not_enough() -> None:
    """A template within the noise of a measurement does not push the library aside."""
    assert tuner(Clock(1e-5, 0.99e-5)).choose(QUESTION).chosen == 0


@pytest.mark.parametrize("other", [doubled, broken])
def test_what_is_wrong_or_fails_is_never_taken(other: Any) -> None:
    """However fast it is."""
    ways = (way("vendor"), way("template wrong", other), way("template turned", turned))
    answer = tuner(Clock(3e-5, 2e-5)).choose(ChoiceRequest("aten:0/0:mm", ways))
    assert (answer.chosen, answer.seconds) == (2, (3e-5, None, 2e-5))


def test_without_templates_that_run_the_library_stays() -> None:
    """One sentence says so."""
    answer = tuner(Clock(1e-5)).choose(ChoiceRequest("n", (way("vendor"), way("template", broken))))
    assert (answer.chosen, answer.reason) == (0, "No other candidate could be measured.")


def test_later_processes_read_it_from_disk(tmp_path: pathlib.Path) -> None:
    """The same question is not measured again; another size, card or damaged file is."""
    store = DiskStore(tmp_path / "tuned")
    first = tuner(Clock(3e-5, 1e-5), store=store).choose(QUESTION)
    again = tuner(Clock(), store=store).choose(QUESTION)
    assert again.from_disk_cache
    assert (again.chosen, again.seconds) == (first.chosen, first.seconds)
    assert again.reason.startswith("Measured before on a card:")
    other = ChoiceRequest("n", (way("vendor", size=16), way("template turned", turned, 16)))
    assert not tuner(Clock(1e-5, 3e-5), store=store).choose(other).from_disk_cache
    for file in (tmp_path / "tuned").iterdir():
        if file.name != "key":
            file.write_bytes(b"[1e-9, 1e-9]")
    assert not tuner(Clock(1e-5, 3e-5), store=store).choose(QUESTION).from_disk_cache


@pytest.mark.parametrize("kept", ["[]", '["x", 1]', "[NaN, 1.0]", "{}", "[1, 2]", "[true, 1.0]"])
def test_nonsense_on_disk_is_measured_anew(tmp_path: pathlib.Path, kept: str) -> None:
    """Only a list of as many plain times is believed."""
    store = DiskStore(tmp_path / "tuned")
    tuner(Clock(3e-5, 1e-5), store=store).choose(QUESTION)
    (name,) = [f.name for f in (tmp_path / "tuned").iterdir() if f.name != "key"]
    store.put(name, kept)
    assert not tuner(Clock(1e-5, 3e-5), store=store).choose(QUESTION).from_disk_cache


def test_measuring_can_be_stopped_and_ends_by_itself() -> None:
    """After a stop or a timeout the default is chosen, and partial timings are not saved."""
    stopped = tuner(Clock(3e-5, 1e-5))
    stopped.stop.set()
    assert stopped.choose(QUESTION).chosen == 0
    late = tuner(Clock(3e-5, 1e-5, 3e-5, 1e-5), max_seconds=0.0)
    assert [late.choose(QUESTION).chosen for _ in range(2)] == [1, 0]
    assert "cancelled" in late.choose(QUESTION).reason


def test_progress_is_told() -> None:
    """Before each measurement: which one, of what."""
    told: list[str] = []
    some = tuner(Clock(*itertools.repeat(1e-5, 4)), on_progress=told.append)
    some.choose(QUESTION)
    some.choose(QUESTION)
    assert told == [f"tuning {n}: 2 ways to compute aten:0/0:mm" for n in (1, 2)]


def test_sizes_that_vary_are_measured_as_they_are_at_hand() -> None:
    """The sizes are named; where nothing tells them, what is usual stays."""
    s = sympy.Symbol("s0", integer=True, positive=True)
    ways = (way("vendor", size=s), way("template turned", turned, s))
    answer = tuner(Clock(3e-5, 1e-5)).choose(ChoiceRequest("n", ways, size_hints={"s0": 16, "s1": 3}))
    assert answer.chosen == 1
    assert answer.reason.startswith("Measured on a card for s0 = 16: the library call")
    answer = tuner(Clock()).choose(ChoiceRequest("n", ways))
    assert (answer.chosen, answer.reason) == (0, "Its sizes are symbolic without size hints, so nothing was measured.")


def test_a_full_card_is_no_failure() -> None:
    """Where there is no room for numbers to measure with, the library's call stays."""

    def full(work: Any) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    answer = tuner(full).choose(QUESTION)
    assert answer.chosen == 0
    assert "no memory" in answer.reason
