"""Expressions of loop ops in Triton: loads, arithmetic, reductions and scans of one block."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import torch

from engine.ir.loop_ir.index_expr import IndexNames
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.ir.loop_ir.ops import LoopIROp, R
from engine.kernels.kernel_parameters import KernelParameters
from engine.kernels.source_builder import Expression
from engine.kernels.triton.jit_helpers import JIT_HELPERS, LIBDEVICE_HELPERS
from engine.kernels.triton.loop_blocks import LoopBlocks
from engine.kernels.triton.op_codegen import (
    TRITON_DTYPES,
    constant_text,
    needs_libdevice,
    needs_parentheses,
    operation_text,
)

REDUCTION_IDENTITIES = {"sum": "0", "prod": "1", "logaddexp": 'float("-inf")'}
SCAN_COMBINE_HELPERS = {
    "max": ("larger", "larger_or_nan"),
    "min": ("smaller", "smaller_or_nan"),
    "logaddexp": ("add_exponents", "add_exponents"),
}
"""Helpers that combine two parts of a scan: for integers, for floats."""
HALF_PRECISION_HELPERS = {"tanh": "tanh_of_half", "sigmoid": "sigmoid_of_half", "sin": "sine_of_half"}
"""Faster helpers for kernels that read only 16-bit floats."""
NARROW_INTEGERS = (torch.int8, torch.int16, torch.uint8)
"""Dtypes whose sums Triton widens."""


class OpExpressions:
    """Expression of each op, over the names of the ops that have been printed."""

    def __init__(
        self, kernel: LoopKernel, blocks: LoopBlocks, parameters: KernelParameters, live_ops: Iterable[LoopIROp]
    ) -> None:
        self.kernel = kernel
        self.blocks = blocks
        self.parameters = parameters
        self.known: dict[int, Expression] = {}
        """Expression that refers to each printed op."""
        self.names = IndexNames(
            lambda op: self.known[op].parenthesized, blocks.variable_name, parameters.size_text, blocks.quotient_name
        )
        self.scan_carries: dict[int, str] = {}
        """Name of each scan's carry: the result before the current block of a long row."""
        self.eviction_hints: dict[int, str] = {}
        self.helpers: dict[str, None] = {}
        self.uses_libdevice = False
        read = [op.dtype for op in live_ops if op.name == "load" and op.dtype.is_floating_point]
        self.reads_only_half = bool(read) and all(dtype in (torch.float16, torch.bfloat16) for dtype in read)

    def of(self, op: LoopIROp) -> Expression:
        """Return the expression that refers to a printed op."""
        return self.known[op.number]

    def make(self, op: LoopIROp) -> Expression:
        """Return the expression that computes an op."""
        make = _MAKERS.get(op.name)
        return make(self, op) if make is not None else self._half_precision_call(op) or self._operation(op)

    def _constant(self, op: LoopIROp) -> Expression:
        return Expression(constant_text(op.value, op.dtype), not op.value < 0, (op.number,))

    def _number(self, op: LoopIROp) -> Expression:
        text = f"tl.full((), {self.parameters.number_name(op)}, {TRITON_DTYPES[op.dtype]})"
        return Expression(text, True, (op.number,))

    def _index(self, op: LoopIROp) -> Expression:
        assert op.index is not None
        text = op.index.text(self.names)
        return Expression(text, op.index.single_atom() is not None or text.isalnum(), (op.number,))

    def _load(self, op: LoopIROp) -> Expression:
        masked = (op.mask.number,) if op.mask is not None else ()
        mask = self.mask_text(op, op.loops)
        option = self.blocks.masked_load_option if mask else ""
        text = f"tl.load({self.pointer_text(op)}{mask}{self.eviction_hints.get(op.number, '')}{option})"
        return Expression(text, True, (op.number, *masked))

    def _reduce(self, op: LoopIROp) -> Expression:
        value = self.masked_value(op)
        return Expression(self.reduction_text(op, value.text), True, (*value.ops, op.number))

    def _scan(self, op: LoopIROp) -> Expression:
        value, axis = self.masked_value(op), "0" if self.blocks.block.is_one_row_per_program else "1"
        before, behind = self.scan_carries.get(op.number), (*value.ops, op.number)
        if op.value not in SCAN_COMBINE_HELPERS:
            text = f"tl.cum{op.value}({value.text}, {axis})"
            if before is None:
                return Expression(text, True, behind)
            return Expression(f"{before} {'+' if op.value == 'sum' else '*'} {text}", False, behind)
        combine = SCAN_COMBINE_HELPERS[op.value][op.dtype.is_floating_point]
        self.helpers[combine] = None
        text = f"tl.associative_scan({value.text}, {axis}, {combine})"
        return Expression(text if before is None else f"{combine}({before}, {text})", True, behind)

    def _operands(self, op: LoopIROp) -> list[Expression]:
        """Return the operands, with a dtype where Triton would choose another one for a constant."""
        args = [self.of(a) for a in op.args]
        is_constant = [a.name == "constant" for a in op.args]
        is_double = needs_libdevice(op.name) and op.args[0].dtype == torch.float64  # Its functions promote nothing.
        typed = {n: op.args[n].dtype for n, c in enumerate(is_constant) if all(is_constant) or (c and is_double)}
        if op.name in ("rand", "randint") and is_constant[1]:
            typed[1] = op.args[1].dtype
        if op.name == "where" and all(is_constant[1:]) and op.dtype not in (torch.float32, torch.int32):
            typed[1] = op.dtype
        for n, dtype in typed.items():
            ops = (op.args[n].number,) if all(is_constant) else args[n].ops
            args[n] = Expression(constant_text(op.args[n].value, dtype, typed=True), True, ops)
        return args

    def _operation(self, op: LoopIROp) -> Expression:
        args = self._operands(op)
        behind = (*(n for a in args for n in a.ops), op.number)
        if (cast := _cast_text(op, args)) is not None:
            return Expression(cast, True, behind)
        if op.name in JIT_HELPERS:
            self.helpers[op.name] = None
        self.uses_libdevice |= needs_libdevice(op.name)
        infix = needs_parentheses(op.name)
        texts = [a.parenthesized if infix else a.text for a in args]
        return Expression(operation_text(op.name, texts, op.args[0].dtype), not infix, behind)

    def _half_precision_call(self, op: LoopIROp) -> Expression | None:
        """Return a faster expression if the kernel reads only 16-bit floats, else None.

        The error of the helper is far below 16-bit precision.
        """
        if not self.reads_only_half or op.dtype != torch.float32:
            return None
        name, value = HALF_PRECISION_HELPERS.get(op.name, ""), op.args[0] if op.args else op
        if op.name == "sin" and not self.blocks.is_block(op):
            name = ""
        elif op.name == "add" and value.name == "erf" and op.args[1].name == "constant" and op.args[1].value == 1.0:
            name, value = "one_plus_erf", value.args[0]
        if not name:
            return None
        self.helpers[name] = None
        self.uses_libdevice |= name in LIBDEVICE_HELPERS
        text = self.of(value)
        return Expression(f"{name}({text.text})", True, (*text.ops, op.args[0].number, op.number))

    def identity_text(self, op: LoopIROp) -> str:
        """Return the value that does not change a reduction's result, for masked elements."""
        if op.value in REDUCTION_IDENTITIES:
            return REDUCTION_IDENTITIES[op.value]
        if op.dtype.is_floating_point:
            return 'float("-inf")' if op.value == "max" else 'float("inf")'
        limits = torch.iinfo(op.dtype)
        return str(limits.min if op.value == "max" else limits.max)

    def masked_value(self, op: LoopIROp) -> Expression:
        """Return the reduced value of a block; out of bounds it is the identity of the reduction."""
        value = self.of(op.args[0])
        if R not in op.args[0].loops:
            zeros = f"tl.zeros({self.blocks.shape_text(op.args[0].loops | {R})}, {TRITON_DTYPES[op.dtype]})"
            value = Expression(f"{value.parenthesized} + {zeros}", False, value.ops)
        if R not in self.blocks.masked_loops:
            return value
        text = f"tl.where({self.blocks.bounds_test(R)}, {value.text}, {self.identity_text(op)})"
        return Expression(text, True, value.ops)

    def reduction_text(self, op: LoopIROp, value: str) -> str:
        """Return the text that reduces a block to one value per row."""
        is_row = self.blocks.block.is_one_row_per_program
        if op.value == "prod":
            self.helpers["multiply"] = None
            return f"tl.reduce({value}, {'0, multiply' if is_row else '1, multiply, keep_dims=True'})"
        text = f"tl.{op.value}({value}, {'0' if is_row else '1, keep_dims=True'})"
        return f"{text}.to({TRITON_DTYPES[op.dtype]})" if op.dtype in NARROW_INTEGERS else text

    def pointer_text(self, op: LoopIROp) -> str:
        """Return the pointer of a load or store, broadcast to the shape of its mask."""
        assert op.index is not None
        pointer = self.parameters.pointers[op.buffer]
        index = op.index.text(self.names)
        text = pointer if index == "0" else f"{pointer} + {index}"
        space = self.blocks.loops_of_index(op.index)
        for number in op.index.indirect_ops():
            space |= self.kernel.ops[number].loops
        is_scattered = op.name == "atomic_add" or (op.name == "store" and op.mask is not None)
        loops = op.loops if op.name == "load" or is_scattered else space
        varies = loops & {R} if self.blocks.block.is_one_row_per_program else loops  # The row index is a scalar.
        return f"{text} + tl.zeros({self.blocks.shape_text(loops)}, tl.int32)" if varies - space else text

    def mask_text(self, op: LoopIROp, space: frozenset[str]) -> str:
        """Return the mask argument of a load or store along these loops; empty if it needs none."""
        parts = self.blocks.bounds_tests(space)
        if op.mask is not None:
            parts.append(self.of(op.mask).text)
        if len(parts) > 1:
            parts = [p if re.fullmatch(r"\w+", p) else f"({p})" for p in parts]
        return f", mask={' & '.join(parts)}" if parts else ""


_MAKERS: dict[str, Callable[[OpExpressions, LoopIROp], Expression]] = {
    "constant": OpExpressions._constant,
    "number": OpExpressions._number,
    "index": OpExpressions._index,
    "load": OpExpressions._load,
    "reduce": OpExpressions._reduce,
    "scan": OpExpressions._scan,
}


def _cast_text(op: LoopIROp, args: list[Expression]) -> str | None:
    """Return the text of an op that converts its operand; None for other ops."""
    if op.name == "to":
        return f"{args[0].parenthesized}.to({TRITON_DTYPES[op.dtype]})"
    if op.name == "round" and op.value in TRITON_DTYPES:
        return f"{args[0].parenthesized}.to({TRITON_DTYPES[op.value]}).to(tl.float32)"
    if op.name == "bitcast":
        own, bits_dtype = op.value
        narrow = (
            args[0].parenthesized if own == op.args[0].dtype else f"{args[0].parenthesized}.to({TRITON_DTYPES[own]})"
        )
        wide = "" if bits_dtype == op.dtype else f".to({TRITON_DTYPES[op.dtype]})"
        return f"{narrow}.to({TRITON_DTYPES[bits_dtype]}, bitcast=True){wide}"
    return None
