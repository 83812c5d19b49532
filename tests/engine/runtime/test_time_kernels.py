"""Time each kernel launch within its program, by a device clock, or say why it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.runtime.time_kernels import REPEATS, time_launches
from engine.session_jobs import lowered_graphs_of


def test_each_kernel_has_the_median_of_its_launches() -> None:
    """A kernel's launches are timed one by one; the program goes on as it would."""
    launched: list[str] = []

    def bind(source: GeneratedKernel, misaligned: frozenset[str]) -> Callable[..., None]:
        return lambda *arguments: launched.append(source.name)

    ticks = iter(float(i) for i in range(10_000))

    def clock(work: Callable[[], None]) -> float:
        work()
        return next(ticks)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x.sin() * 2).softmax(-1), x @ x.t()

    with engine.record() as session:
        engine.compile(f)(torch.randn(4, 8))
    lowered = next(g for g in lowered_graphs_of(session)[session.compilations[0].id] if g.program.target != "cpu")
    found = time_launches(lowered.program, lowered.inputs, bind, clock)
    kernels = {k.id: k.name for k in lowered.program.kernels}
    assert set(found) == set(kernels)
    assert len(launched) == len(kernels) * (REPEATS + 1)
    assert sorted(t for times in found.values() for t in times) == [
        i * REPEATS + REPEATS // 2 for i in range(len(kernels))
    ]


@pytest.mark.parametrize(
    ("backend", "why"), [("triton", "ATen runs it on this CPU, without kernels"), ("eager", "has no kernels")]
)
def test_what_cannot_be_measured_is_said(backend: str, why: str) -> None:
    """Where ATen runs everything, and where nothing is lowered, one sentence says so."""
    with engine.record() as session:
        engine.compile(lambda x: x.sort()[0], backend=backend)(torch.ones(3))
    with pytest.raises(ValueError, match=why):
        engine.measure_kernels(session)


def test_measured_kernels_survive_a_file(tmp_path: Any) -> None:
    """What was measured is saved with the session."""
    from dataclasses import replace

    from engine.records.kernels import KernelTimingRecord

    with engine.record() as session:
        engine.compile(lambda x: x + 1)(torch.ones(3))
    (compilation,) = session.compilations
    told = KernelTimingRecord("NVIDIA H200", 3e-6, 4e12, 2)
    session.update_compilation(
        compilation.id, lambda c: replace(c, kernels=tuple(replace(k, measured=told) for k in c.kernels))
    )
    path = session.save(tmp_path / "s.json")
    assert engine.Session.load(path).compilations[0].kernels[0].measured == told
