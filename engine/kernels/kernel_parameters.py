"""Names in a kernel, and its parameters: pointers, symbolic sizes and numbers."""

from __future__ import annotations

import keyword
from collections.abc import Sequence

import sympy
import torch

from engine.ir.kernels.generated_kernel import KernelArg
from engine.ir.loop_ir.index_expr import Size
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp
from engine.kernels.source_builder import name_from_label, to_identifier
from engine.kernels.triton.block_heuristics import is_printable_size
from engine.kernels.triton.jit_helpers import JIT_HELPERS
from engine.kernels.triton.op_codegen import SIGNATURE_DTYPES

RESERVED_NAMES = frozenset(
    ("tl", "triton", "row", "col", "at", "start", "cols", "rows", "ROWS", "COLS", "BLOCK", "float", "range")
) | frozenset(JIT_HELPERS)


class KernelParameters:
    """Unique names of a kernel; a size becomes a parameter when its name is first needed."""

    def __init__(self, kernel: LoopKernel) -> None:
        self.kernel_name = to_identifier(kernel.name or "kernel")
        self.used_names = {*RESERVED_NAMES, self.kernel_name}
        self.sizes: dict[Size, str] = {}
        self.numbers: dict[tuple[sympy.Expr, torch.dtype], str] = {}
        """Names of the float parameters."""
        self._size_type = "i64" if kernel.uses_int64_index else "i32"
        self.pointer_args: tuple[KernelArg, ...] = ()
        self.pointers: dict[str, str] = {}
        """Name of the pointer to each buffer."""

    def name_pointers(self, kernel: LoopKernel, live_ops: Sequence[LoopIROp]) -> None:
        """Name the pointers: inputs first, then buffers that the kernel writes."""
        written = {op.buffer for op in live_ops if op.name in WRITE_OPS}
        labels = {op.buffer: op.label for op in reversed(live_ops) if op.buffer}
        args = [
            KernelArg(
                self._pointer_name(name_from_label(labels[name]), name in written),
                "pointer",
                f"*{SIGNATURE_DTYPES[buffer.dtype]}",
                name,
                None,
                name in written,
            )
            for name, buffer in kernel.buffers.items()
            if name in labels
        ]
        self.pointer_args = tuple(sorted(args, key=lambda a: a.is_written))
        self.pointers = {a.buffer: a.name for a in self.pointer_args}

    def _pointer_name(self, label: str, is_written: bool) -> str:
        if is_written and f"{label}_ptr" in self.used_names:
            label = f"{label}_out"
        name, count = f"{label}_ptr", 1
        while name in self.used_names:
            name, count = f"{label}_{count}_ptr", count + 1
        return self.unique_name(name)

    def size_args(self) -> tuple[KernelArg, ...]:
        """Return the parameters for sizes and numbers."""
        sizes = (KernelArg(name, "size", self._size_type, value=size) for size, name in self.sizes.items())
        numbers = (KernelArg(n, "size", SIGNATURE_DTYPES[dtype], value=v) for (v, dtype), n in self.numbers.items())
        return (*sizes, *numbers)

    def size_text(self, size: Size) -> str:
        """Format a size; symbols and expressions too complex for a kernel become parameters."""
        expression = sympy.sympify(size)
        if is_printable_size(expression):
            symbols = sorted(expression.atoms(sympy.Symbol), key=str)
            return str(expression.xreplace({s: sympy.Symbol(self.size_name(s, str(s))) for s in symbols}))
        return self.size_name(size, "size")

    def size_name(self, size: Size, name: str) -> str:
        """Return the parameter for a size; a new one is named like ``wanted``."""
        if size not in self.sizes:
            self.sizes[size] = self.unique_name(to_identifier(name))
        return self.sizes[size]

    def number_name(self, op: LoopIROp) -> str:
        """Return the float parameter for a number that the host computes."""
        key = (op.value, op.dtype)
        if key not in self.numbers:
            self.numbers[key] = self.unique_name("number")
        return self.numbers[key]

    def unique_name(self, preferred: str) -> str:
        """Return a name that is not used in the kernel yet."""
        name, count = preferred, 1
        while name in self.used_names or keyword.iskeyword(name):
            name, count = f"{preferred}_{count}", count + 1
        self.used_names.add(name)
        return name
