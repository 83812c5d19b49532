"""On a GPU: a full card, a kernel that cannot be started, and another architecture than the one asked for; the result is there all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import engine
from engine.kernels.targets import default_target
from engine.runtime import launch

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing compiled before, and all of the card's memory afterwards."""
    engine.reset()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def test_a_card_that_fills_up() -> None:
    """Torch's own error where nothing has room, and a sentence on whose memory it is; with room again the call works."""
    fast = engine.compile(lambda x: torch.cat([x.sin()] * 8) + 1)
    small = torch.randn(1024, device="cuda")
    torch.testing.assert_close(fast(small), torch.cat([small.sin()] * 8) + 1)
    large = torch.randn(1 << 26, device="cuda")
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 28)) / whole)
    with engine.record() as session, pytest.raises(torch.OutOfMemoryError):
        fast(large)
    assert [f.sentence for f in session.failures if f.sentence.startswith("The card has no room left: of ")]
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(fast(large)[:10], large.sin()[:10] + 1)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_kernel_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """The driver refuses a grid: ATen computes the call and those after it, and it is told once."""
    original = launch.on_gpu

    def too_high(source: object, misaligned: frozenset[str] = frozenset()) -> object:
        made = original(source, misaligned)  # type: ignore[arg-type]
        return lambda x, y, z, stream, *rest: made(x, 1 << 20, z, stream, *rest)

    monkeypatch.setattr("engine.runtime.program.on_gpu", too_high)
    monkeypatch.setattr("engine.runtime.program.executable.__defaults__", (too_high,))
    x = torch.randn(1000, device="cuda")
    with engine.record() as session:
        fast = engine.compile(lambda x: x.cos() * 2, options={"mode": mode})
        for _ in range(4):
            torch.testing.assert_close(fast(x), x.cos() * 2)
    (failure,) = session.failures
    assert failure.sentence.startswith("A kernel could not be started: Triton Error [CUDA]: ")
    torch.testing.assert_close(torch.relu(x), x.clamp(min=0))  # the card itself works


@pytest.mark.parametrize("target", ["hip:gfx942", "cuda:80", "cuda:100"])
def test_another_architecture_than_the_card_has(target: str) -> None:
    """Kernels are shown for what was asked for, and run as compiled for the card."""
    x = torch.randn(64, 100, device="cuda")
    with engine.record() as session:
        found = engine.compile(lambda x: torch.softmax(x, -1), target=target)(x)
    torch.testing.assert_close(found, torch.softmax(x, -1))
    lowering = session.compilations[0].lowering
    assert lowering is not None
    assert lowering.target == target
    assert not session.compilations[0].failures
    wanted = f"Kernels are shown for {target}, and run as compiled for the card at hand, {default_target()}."
    assert lowering.launching == (wanted if target != default_target() else "")
