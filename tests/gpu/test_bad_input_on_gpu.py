"""Failures on a GPU: out of memory, a failed launch and another architecture.

In each case the result is right. The GPU may have another architecture than the target asks for.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

import engine
from engine.kernels.gpu_targets import default_target
from engine.runtime import kernel_launchers, program_text

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing compiled before, and all of the card's memory afterwards."""
    engine.reset()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def limit_to(count: int) -> None:
    """Let this process have so many bytes of the card besides those that it has."""
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + count) / whole)


def test_a_factorization_raises_among_kernels() -> None:
    """A matrix without a Cholesky factor raises as in eager; kernels run around the call."""
    compiled = engine.compile(lambda x: torch.linalg.cholesky(x * 2).sin() + 1)
    compiled(torch.eye(3, device="cuda"))
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        compiled(-torch.eye(3, device="cuda"))


HOLDER = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - (6 << 30), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.readline()
"""


def test_a_second_process_on_the_card() -> None:
    """Calls that fit beside another process succeed; a larger call raises torch's error.

    The sentence says that other processes hold the memory.
    """
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        x = torch.randn(4096, 4096, device="cuda")
        with engine.record() as session:
            for mode in ("default", "reduce-overhead"):
                fast = engine.compile(lambda x: torch.softmax(x, -1) * 2, options={"mode": mode})
                for _ in range(3):
                    torch.testing.assert_close(fast(x), torch.softmax(x, -1) * 2)
            large = engine.compile(lambda x: torch.cat([x.sin()] * 200) + 1)
            with pytest.raises(torch.OutOfMemoryError):
                large(x)
        other.stdin.write("\n")
        other.stdin.close()
        assert other.wait(60) == 0
    assert any("and other processes use " in f.sentence for f in session.failures)


def test_a_card_that_fills_up() -> None:
    """Running out of memory raises torch's error, and the call works once memory is free.

    A sentence says which process uses the memory.
    """
    fast = engine.compile(lambda x: torch.cat([x.sin()] * 8) + 1)
    small = torch.randn(1024, device="cuda")
    torch.testing.assert_close(fast(small), torch.cat([small.sin()] * 8) + 1)
    large = torch.randn(1 << 26, device="cuda")
    torch.cuda.empty_cache()
    limit_to(1 << 28)
    with engine.record() as session, pytest.raises(torch.OutOfMemoryError):
        fast(large)
    assert [
        f.sentence for f in session.failures if f.sentence.startswith("The GPU is out of memory: this process uses ")
    ]
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(fast(large)[:10], large.sin()[:10] + 1)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_a_card_with_room_for_eager_only(mode: str) -> None:
    """Results stay right on every call if CUDA graph capture or autotuning lacks memory."""

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w)

    x, w = (torch.randn(4096, 4096, device="cuda") for _ in range(2))
    wanted = layer(x, w)[:64].clone()
    torch.cuda.empty_cache()
    limit_to(5 << 26)  # five such matrices
    with engine.record() as session:
        fast = engine.compile(layer, options={"mode": mode})
        for _ in range(6):
            torch.testing.assert_close(fast(x, w)[:64], wanted, rtol=1e-2, atol=1e-1)
    told = [f.sentence for f in session.failures]
    told += [
        w
        for c in session.compilations
        if c.lowering
        for w in (c.lowering.launch_mode, *(x.reason for x in c.lowering.autotune_choices))
    ]
    assert all(text.endswith(".") for text in told if text)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_what_kernels_have_no_room_for_is_computed_by_aten(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """ATen computes the call if the compiled program runs out of memory.

    ATen needs less memory here. A sentence says why, and the next call tries the program again.
    """
    fast = engine.compile(lambda x: torch.softmax(x * 2, -1) + x, options={"mode": mode})
    x = torch.randn(4096, 4096, device="cuda")
    wanted = torch.softmax(x * 2, -1) + x
    torch.testing.assert_close(fast(x), wanted)
    torch.cuda.empty_cache()
    original = program_text.empty_strided_cuda

    def greedy(*args: object) -> torch.Tensor:
        torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        return original(*args)  # type: ignore[no-any-return]

    limit_to(1 << 29)
    monkeypatch.setattr(program_text, "empty_strided_cuda", greedy)
    engine.reset()
    with engine.record() as session:
        again = engine.compile(lambda x: torch.softmax(x * 2, -1) + x, options={"mode": mode})
        for _ in range(3):
            torch.testing.assert_close(again(x), wanted)
    assert [f for f in session.failures if f.sentence.startswith("The GPU is out of memory: this process uses ")]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_kernel_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """If the driver rejects a grid, ATen computes this and later calls, with one failure.

    The session records the failure once.
    """
    original = kernel_launchers.gpu_launcher

    def too_high(source: object, misaligned: frozenset[str] = frozenset()) -> object:
        made = original(source, misaligned)  # type: ignore[arg-type]
        return lambda x, y, z, stream, *rest: made(x, 1 << 20, z, stream, *rest)

    monkeypatch.setattr("engine.runtime.program_executor.gpu_launcher", too_high)
    monkeypatch.setattr("engine.runtime.program_executor.ProgramExecutor.__init__.__defaults__", (too_high,))
    x = torch.randn(1000, device="cuda")
    with engine.record() as session:
        fast = engine.compile(lambda x: x.cos() * 2, options={"mode": mode})
        for _ in range(4):
            torch.testing.assert_close(fast(x), x.cos() * 2)
    (failure,) = session.failures
    assert failure.sentence.startswith("A kernel could not be launched: Triton Error [CUDA]: ")
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
    wanted = f"The kernels shown are compiled for {target}. The kernels that run are compiled for this GPU, {default_target()}."
    assert lowering.launch_mode == (wanted if target != default_target() else "")
