"""Kernels that exceed a target's limits run in smaller blocks, and the record says why."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.ir.kernels.compile_triton import (
    OutOfTargetResources,
    compile_unit_of,
    compile_with_fallback_configs,
    jit_function,
    run_triton_compiler,
)
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.kernels import resources
from engine.kernels.compile_kernel import compile_kernel
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.runtime.verify.kernels_in_worker import BufferArgument, KernelTrial
from engine.runtime.workers.process_pool import WorkerPool
from tests.engine.kernels import handwritten_kernels
from tests.engine.lowering.trace_aten import trace_to_aten
from tests.markers import needs_triton

pytestmark = needs_triton

KERNELS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "pointwise": (lambda x: torch.sin(x) * 2, (torch.randn(3001),)),
    "short rows": (lambda x: torch.softmax(x, -1), (torch.randn(600, 40),)),
    "long rows": (lambda x: x.sum(-1), (torch.randn(256, 32_769),)),
    "whole rows": (lambda x: torch.softmax(x * 3, -1) + x.sum(-1, keepdim=True), (torch.randn(3, 5000),)),
    "whole scan": (lambda x: x.cumsum(-1) / 5, (torch.randn(3, 5000),)),
    "columns": (lambda x: x.sum(0), (torch.randn(300, 100),)),
    "tile": (lambda x: x.t().contiguous() + 1, (torch.randn(200, 130),)),
    "scan": (lambda x: x.cumsum(-1), (torch.randn(3, 2500),)),
    "atomic": (lambda x, at, y: x.index_add(0, at, y), (torch.zeros(99, 7), torch.arange(99), torch.randn(99, 7))),
}


def kernel_of(name: str) -> GeneratedKernel:
    """The last kernel of a small program."""
    return lower(trace_to_aten(*KERNELS[name]), "cuda:90", print_triton).kernels[-1]


@pytest.mark.thorough
@pytest.mark.parametrize("name", KERNELS)
def test_every_smaller_configuration_computes_the_same(name: str, interpreter: WorkerPool) -> None:
    """Smaller blocks on a larger grid write the same values as the planned blocks.

    Elements beyond the tensors are masked, and nothing is added twice.
    """
    function, given = KERNELS[name]
    source, wanted = kernel_of(name), function(*given)
    assert source.fallback_configs
    values = {f"arg{n}_1": value for n, value in enumerate(given)}
    start = given[0] if name == "atomic" else None
    way = source.fallback_configs[:3][-1]
    sizes = dict(way.constants)
    arguments = tuple(
        sizes.get(a.name, a.value) if a.kind != "pointer" else _pointer(a, values.get(a.buffer, start), wanted)
        for a in source.args
    )
    grid = tuple(int(side) * k for side, k in zip((*source.grid, 1)[:2], way.grid_scale, strict=True))
    trial = KernelTrial(source.name, way.text or source.text, arguments, (*grid, 1))  # type: ignore[arg-type]
    (found,) = interpreter.call("engine.runtime.verify.kernels_in_worker:run_and_compare", (trial,)).written.values()
    torch.testing.assert_close(found.view_as(wanted), wanted, rtol=1e-4, atol=1e-3)


def _pointer(argument: Any, value: torch.Tensor | None, wanted: torch.Tensor) -> BufferArgument:
    like = wanted if value is None else value
    facts = (like.dtype, tuple(like.shape), like.contiguous().stride())
    return BufferArgument(argument.name, argument.buffer, *facts, value, written=argument.is_written)


def test_blocks_shrink_until_they_fit_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile that exceeds a target's shared memory per block shrinks; the record says so."""
    source = kernel_of("tile")
    usual = compile_kernel(source, "cuda:90")
    assert usual.smaller_blocks_note == ""
    assert usual.resources is not None
    taken = usual.resources.shared_bytes or 0
    facts = resources.DEVICE_LIMITS["cuda:90"]
    monkeypatch.setitem(resources.DEVICE_LIMITS, "cuda:90", replace(facts, max_shared_per_block=taken // 2))
    record = compile_kernel(source, "cuda:90")
    assert not record.error
    assert record.resources is not None
    assert (record.resources.shared_bytes or 0) <= taken // 2
    assert {listing.stage for listing in record.listings} >= {"ttgir", "ptx", "sass"}
    assert record.smaller_blocks_note.startswith("It runs with ROWS=")
    assert (
        f"it needs {taken:,} bytes of shared memory per block, and the target has {taken // 2:,}."
        in record.smaller_blocks_note
    )


def test_a_row_too_long_for_a_target_is_looped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row too long for a target is read in a loop by a second version of the kernel.

    Its listings link to the lines of the kernel that is shown.
    """
    source = kernel_of("whole rows")
    taken = compile_kernel(source, "cuda:90").resources
    assert taken is not None
    facts = resources.DEVICE_LIMITS["cuda:90"]
    monkeypatch.setitem(
        resources.DEVICE_LIMITS, "cuda:90", replace(facts, max_shared_per_block=(taken.shared_bytes or 0) - 1)
    )
    record = compile_kernel(source, "cuda:90")
    assert not record.error
    assert ", with rows read in a loop instead of COLS=8192" in record.smaller_blocks_note
    shown = source.text.splitlines()
    ptx = next(listing for listing in record.listings if listing.stage == "ptx")
    lines = ptx.text.splitlines()
    stores = {shown[link.triton_line - 1] for link in ptx.links if "st.global" in lines[link.line - 1]}
    assert stores
    assert all("tl.store(" in line for line in stores)
    assert ptx.linked >= 0.95 * (ptx.linked + ptx.labelled)


def test_a_kernel_that_never_fits_names_the_missing_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing smaller is left: the error is the first, of the planned configuration."""
    monkeypatch.setitem(
        resources.DEVICE_LIMITS, "cuda:90", replace(resources.DEVICE_LIMITS["cuda:90"], max_shared_per_block=-1)
    )
    record = compile_kernel(handwritten_kernels.softmax(cols=1000), "cuda:90")
    assert not record.listings
    assert "bytes of shared memory per block, and the target has" in record.error


def test_other_failures_are_not_tried_again() -> None:
    """A kernel that Triton cannot read is not read a second time in smaller blocks."""
    tried: list[Any] = []

    def make(unit: Any) -> Any:
        tried.append(unit)
        raise ValueError("no such operation")

    with pytest.raises(ValueError, match="no such operation"):
        compile_with_fallback_configs(compile_unit_of(kernel_of("pointwise")), make, lambda _: 0)
    assert len(tried) == 1


def test_what_spills_in_every_configuration_is_built_as_planned() -> None:
    """Registers that find no room make a kernel slow, not wrong."""
    unit = compile_unit_of(kernel_of("pointwise"))
    found = compile_with_fallback_configs(unit, lambda made: made, lambda _: 1000)
    assert found.compiled == unit
    found = compile_with_fallback_configs(unit, lambda made: made, lambda made: 1000 if made == unit else 0)
    assert found.compiled != unit
    assert "it spills 1000 registers per thread" in found.reason


def test_only_a_shortage_leads_to_smaller_blocks() -> None:
    """The planned block first, then each half as large."""
    sizes: list[int] = []

    def make(unit: Any) -> Any:
        sizes.append(dict(unit.constants)["BLOCK"])
        if sizes[-1] > 256:
            raise OutOfTargetResources("bytes", 2, 1)
        return unit

    assert compile_with_fallback_configs(
        compile_unit_of(kernel_of("pointwise")), make, lambda _: None
    ).config.grid_scale == (4, 1)
    assert sizes == [1024, 512, 256]


def test_kernels_of_one_name_are_read_in_two_threads_at_once() -> None:
    """Threads that read kernels of one name at once each get their own text.

    Triton reads a kernel's text back by its file name, which kernels of one name share.
    """
    wrong: list[str] = []

    def read(letter: str) -> None:
        for number in range(150):
            text = handwritten_kernels.SOFTMAX.replace("value - ", f"value - 0x{number}{letter} - ")
            if f"0x{number}{letter}" not in jit_function("softmax", text).src:
                wrong.append(f"{letter}{number}")

    threads = [threading.Thread(target=read, args=(letter,)) for letter in "ABC"]
    _run(threads)
    assert not wrong


def test_kernels_compile_in_two_threads_at_once() -> None:
    """Two threads compile for two targets in one process, and both get their binaries.

    Standard output is unchanged.
    """
    import sys

    out, found = sys.stdout, {}

    def make(target: str, count: int) -> None:
        found[target] = [compile_kernel(handwritten_kernels.gelu(count + n), target).error for n in range(2)]

    _run([threading.Thread(target=make, args=(t, 771 + k)) for k, t in enumerate(("cuda:80", "hip:gfx942"))])
    assert found == {"cuda:80": ["", ""], "hip:gfx942": ["", ""]}
    assert sys.stdout is out
    assert run_triton_compiler(compile_unit_of(handwritten_kernels.gelu(771)), ("cuda", 80, 32)).asm["cubin"]


def _run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
