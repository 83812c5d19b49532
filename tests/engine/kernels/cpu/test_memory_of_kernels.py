"""Test that compiled kernels give back what LLVM takes for them."""

from __future__ import annotations

import gc
import pathlib

import pytest

from engine.ir.kernels.compile_llvm import compile_object, load_function
from engine.ir.kernels.llvm_machine import why_llvm_is_missing

pytestmark = pytest.mark.skipif(bool(why_llvm_is_missing()), reason="llvmlite is not installed")

TEXT = """
define i32 @add(ptr %x, i64 %n, i64 %extent, i64 %cost) {{
entry:
  %value = load i64, ptr %x
  %sum = add i64 %value, {number}
  store i64 %sum, ptr %x
  ret i32 0
}}
"""


def resident_kilobytes() -> int:
    """Memory of this process."""
    return int(pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4


def growth(count: int) -> float:
    """Kilobytes that each kernel keeps after it was compiled, loaded and dropped."""
    gc.collect()
    before = resident_kilobytes()
    for number in range(count):
        load_function("add", compile_object("add", TEXT.format(number=number)), ("pointer", "size"), chunk=1)
    gc.collect()
    return (resident_kilobytes() - before) / count


@pytest.mark.thorough
def test_a_kernel_that_nothing_calls_is_freed() -> None:
    """Code, optimizer and code generator of a dropped kernel do not stay."""
    growth(40)
    assert growth(80) < 12
