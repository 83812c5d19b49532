"""Test that the soak runs: a few steps of each kind."""

from __future__ import annotations

import signal

import pytest

from tests.soak.__main__ import MIN_STEPS, Soak


@pytest.mark.thorough
def test_a_short_soak_finds_nothing() -> None:
    """Cells, sessions, an interrupt, a fork and calls in a thread leave results right."""
    was = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        soak = Soak(seed=0, backends=("eager",))
        soak.run(seconds=0.0, threads=1)
    finally:
        signal.signal(signal.SIGINT, was)
    assert soak.errors == []
    assert soak.compiles >= MIN_STEPS
    assert soak.interrupts
    assert soak.forks
    assert len(soak.report().splitlines()) == 3


def test_the_slope_is_of_the_time_after_the_warm_up() -> None:
    """Memory that grows only at first has no slope; a leak has its size."""
    soak = Soak(seed=0)
    soak.memory = [(n, min(n, 10) * 1000, 7 * n) for n in range(50)]
    assert soak.slope(1) == 0.0
    assert round(soak.slope(2), 3) == 7.0
