"""Compare the recorded live memory of a program with what the allocator reports."""

from __future__ import annotations

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import engine
from engine.records.session import Session


def allocated_peak(run: engine.Dispatcher | nn.Module, x: torch.Tensor) -> int:
    """Return the most bytes that one call has allocated at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured, torch.no_grad():
        run(x)
    live = peak = 0
    for event in measured.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def test_peak_is_what_the_allocator_reports() -> None:
    """Kernels, ATen calls and frees between them give the peak to the byte."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(x @ x.T, -1)
        return (weights @ x).exp().sum(0) + (x * 2).cumsum(0).mean(0)

    x = torch.randn(256, 64)
    with engine.record() as session:
        compiled = engine.compile(attend)
        compiled(x)
    (memory,) = session.compilations[0].memory
    assert memory.peak_bytes == allocated_peak(compiled, x)
    assert memory.steps[memory.peak_step].name == "c0 softmax_kernel"


def test_backward_counts_what_its_forward_saved() -> None:
    """Saved tensors die after their last use; parameters do not count."""
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    with engine.record() as session:
        engine.compile(net)(torch.randn(32, 64)).sum().backward()
    forward, backward = session.compilations[0].memory
    assert (forward.stage, backward.stage) == ("forward", "backward")
    kinds = {b.name: b.kind for b in backward.blocks}
    assert kinds["addmm"] == "saved"
    assert kinds["tangent_0"] == "tangent"
    assert {b.kind for b in backward.blocks if "weight" in b.name} == {"input"}
    saved = next(b for b in backward.blocks if b.name == "addmm")
    assert saved.bytes == 32 * 256 * 4
    assert 0 < saved.last < len(backward.steps) - 1
    assert backward.peak_bytes == sum(b.bytes for b in backward.live_blocks(backward.peak_step))


def test_symbolic_sizes_are_those_of_the_call() -> None:
    """Bytes are at the size hints; the record is the same after a round trip, and prints."""
    with engine.record() as session:
        engine.compile(lambda x: x.sin().sum(1), dynamic=True)(torch.randn(8, 64))
    (memory,) = session.compilations[0].memory
    assert [b.bytes for b in memory.blocks if b.kind == "output"] == [8 * 4]
    assert Session.from_data(session.to_data()).compilations[0].memory == (memory,)
    assert "call: peak 32 bytes at step 1 of 1" in str(session.memory)
