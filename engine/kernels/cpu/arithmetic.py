"""LLVM instructions of each loop-IR op, on values of one or more lanes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.ir.loop_ir.ops import LoopIROp
from engine.kernels.cpu.ir_writer import IrWriter
from engine.kernels.cpu.llvm_types import (
    MEMORY_TYPES,
    NotPrintable,
    literal,
    splat,
    type_suffix,
    value_type,
    wide,
    word_constant,
)
from engine.kernels.cpu.vector_math import SLEEF_FUNCTIONS, VectorMath

FLOAT_INSTRUCTIONS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
INTEGER_INSTRUCTIONS = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor", "shl": "shl"}
FLOAT_COMPARISONS = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
INTEGER_COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
FLOAT_INTRINSICS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "sqrt": "sqrt", "copysign": "copysign"}
UNSIGNED = (torch.uint8, torch.bool)


@dataclass(frozen=True)
class Operands:
    """The operands of one op in one copy: their names, and how many lanes each has."""

    op: LoopIROp
    names: list[str]
    lanes: int
    hint: str
    common_dtype: torch.dtype | None = None
    """The dtype that integer operands of several widths were converted to."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the computation: the common one, or the first operand's."""
        return self.common_dtype or (self.op.args[0].dtype if self.op.args else self.op.dtype)

    @property
    def scalar(self) -> str:
        """The scalar type of the first operand."""
        return value_type(self.dtype)

    @property
    def kind(self) -> str:
        """The type of the first operand."""
        return wide(self.scalar, self.lanes)

    def constant(self, value: float) -> str:
        """Return a number of the first operand's type."""
        return splat(self.scalar, literal(value, self.dtype), self.lanes)


class Arithmetic:
    """Writes the instructions of ops."""

    def __init__(self, writer: IrWriter, math: VectorMath, *, saturates: bool) -> None:
        self._writer = writer
        self._math = math
        self._saturates = saturates

    def compute(self, operands: Operands) -> str:
        """Write one op; return the name of its result.

        Raises:
            NotPrintable: the op has no code for the CPU.
        """
        op, name = operands.op, operands.op.name
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, operands)
        is_float = operands.dtype.is_floating_point
        if name in FLOAT_COMPARISONS:
            return self._compare(operands)
        if is_float and name in FLOAT_INSTRUCTIONS:
            return self._binary(operands, FLOAT_INSTRUCTIONS[name])
        if not is_float and name in INTEGER_INSTRUCTIONS:
            return self._binary(operands, INTEGER_INSTRUCTIONS[name])
        if is_float and name in FLOAT_INTRINSICS:
            return self._intrinsic(operands, FLOAT_INTRINSICS[name])
        if is_float and name in SLEEF_FUNCTIONS:
            return self._math.call(name, operands.scalar, operands.lanes, operands.names, operands.hint)
        raise NotPrintable(f"{op.name} of {operands.dtype} has no code for the CPU")

    def intrinsic(self, hint: str, name: str, scalar: str, lanes: int, arguments: list[str]) -> str:
        """Write a call of an intrinsic whose operands and result have one type."""
        kind = wide(scalar, lanes)
        return self._writer.call(
            hint, f"llvm.{name}.{type_suffix(scalar, lanes)}", kind, [(kind, a) for a in arguments]
        )

    def select(self, hint: str, condition: str, kind: str, lanes: int, then: str, otherwise: str) -> str:
        """Write a choice per lane."""
        test = wide("i1", lanes)
        return self._writer.assign(hint, f"select {test} {condition}, {kind} {then}, {kind} {otherwise}")

    def combine(self, operation: str, dtype: torch.dtype, lanes: int, left: str, right: str) -> str:
        """Write one step of a reduction or scan; ``left`` is the running value.

        Raises:
            NotPrintable: the kind of reduction has no code.
        """
        scalar, is_float = value_type(dtype), dtype.is_floating_point
        kind = wide(scalar, lanes)
        if operation in ("sum", "prod"):
            name = {"sum": "add", "prod": "mul"}[operation]
            return self._writer.assign("total", f"{'f' if is_float else ''}{name} {kind} {left}, {right}")
        if operation in ("max", "min"):
            if is_float:
                order = "ogt" if operation == "max" else "olt"
                test = self._writer.assign("test", f"fcmp {order} {kind} {right}, {left}")
                return self.select(operation, test, kind, lanes, right, left)
            name = f"{'u' if dtype in UNSIGNED else 's'}{operation}"
            return self.intrinsic(operation, name, scalar, lanes, [left, right])
        raise NotPrintable(f"a reduction by {operation} has no code for the CPU")

    def nan_aware_extreme(self, operation: str, dtype: torch.dtype, lanes: int, left: str, right: str) -> str:
        """Write a maximum or minimum that is NaN if an operand is."""
        if not dtype.is_floating_point:
            return self.combine(operation, dtype, lanes, left, right)
        kind = wide(value_type(dtype), lanes)
        extreme = self.combine(operation, dtype, lanes, right, left)  # the second operand if either is NaN
        is_nan = self._writer.assign("is_nan", f"fcmp uno {kind} {left}, {left}")
        return self.select(operation, is_nan, kind, lanes, left, extreme)

    def _binary(self, operands: Operands, instruction: str) -> str:
        return self._writer.assign(
            operands.hint, f"{instruction} {operands.kind} {operands.names[0]}, {operands.names[1]}"
        )

    def _intrinsic(self, operands: Operands, name: str) -> str:
        return self.intrinsic(operands.hint, name, operands.scalar, operands.lanes, operands.names)

    def _compare(self, operands: Operands) -> str:
        name, left, right = operands.op.name, *operands.names
        if operands.dtype.is_floating_point:
            return self._writer.assign(operands.hint, f"fcmp {FLOAT_COMPARISONS[name]} {operands.kind} {left}, {right}")
        sign = "" if name in ("eq", "ne") else "u" if operands.dtype in UNSIGNED else "s"
        return self._writer.assign(
            operands.hint, f"icmp {sign}{INTEGER_COMPARISONS[name]} {operands.kind} {left}, {right}"
        )

    def _neg(self, operands: Operands) -> str:
        if operands.dtype.is_floating_point:
            return self._writer.assign(operands.hint, f"fneg {operands.kind} {operands.names[0]}")
        return self._writer.assign(operands.hint, f"sub {operands.kind} {operands.constant(0)}, {operands.names[0]}")

    def _abs(self, operands: Operands) -> str:
        if operands.dtype.is_floating_point:
            return self._intrinsic(operands, "fabs")
        if operands.dtype in UNSIGNED:
            return operands.names[0]
        function, kind = f"llvm.abs.{type_suffix(operands.scalar, operands.lanes)}", operands.kind
        return self._writer.call(operands.hint, function, kind, [(kind, operands.names[0]), ("i1", "false")])

    def _not(self, operands: Operands) -> str:
        all_ones = "true" if operands.scalar == "i1" else "-1"
        mask = splat(operands.scalar, all_ones, operands.lanes)
        return self._writer.assign(operands.hint, f"xor {operands.kind} {operands.names[0]}, {mask}")

    def _rsqrt(self, operands: Operands) -> str:
        root = self._intrinsic(operands, "sqrt")
        return self._writer.assign(operands.hint, f"fdiv {operands.kind} {operands.constant(1.0)}, {root}")

    def _sigmoid(self, operands: Operands) -> str:
        kind = operands.kind
        negated = self._writer.assign("negated", f"fneg {kind} {operands.names[0]}")
        grown = self._math.call("exp", operands.scalar, operands.lanes, [negated], "grown")
        above = self._writer.assign("above", f"fadd {kind} {grown}, {operands.constant(1.0)}")
        return self._writer.assign(operands.hint, f"fdiv {kind} {operands.constant(1.0)}, {above}")

    def _extreme(self, operands: Operands) -> str:
        operation = {"maximum": "max", "minimum": "min"}[operands.op.name]
        return self.nan_aware_extreme(operation, operands.dtype, operands.lanes, *operands.names)

    def _where(self, operands: Operands) -> str:
        kind = wide(value_type(operands.op.dtype), operands.lanes)
        return self.select(operands.hint, operands.names[0], kind, operands.lanes, operands.names[1], operands.names[2])

    def _shift_right(self, operands: Operands) -> str:
        return self._binary(operands, "lshr" if operands.dtype in UNSIGNED else "ashr")

    def _integer_division(self, operands: Operands) -> str:
        """Divide integers. A divisor of 0 or an overflow would trap, so such lanes divide by 1."""
        kind, (left, right) = operands.kind, operands.names
        mask, zero = wide("i1", operands.lanes), operands.constant(0)
        bad = self._writer.assign("bad", f"icmp eq {kind} {right}, {zero}")
        if operands.dtype not in UNSIGNED:
            lowest = operands.constant(torch.iinfo(operands.dtype).min)
            is_lowest = self._writer.assign("is_lowest", f"icmp eq {kind} {left}, {lowest}")
            is_minus = self._writer.assign("is_minus", f"icmp eq {kind} {right}, {operands.constant(-1)}")
            overflows = self._writer.assign("overflows", f"and {mask} {is_lowest}, {is_minus}")
            bad = self._writer.assign("bad", f"or {mask} {bad}, {overflows}")
        safe = self.select("divisor", bad, kind, operands.lanes, operands.constant(1), right)
        sign = "u" if operands.dtype in UNSIGNED else "s"
        instruction = "div" if operands.op.name == "truncdiv" else "rem"
        return self._writer.assign(operands.hint, f"{sign}{instruction} {kind} {left}, {safe}")

    def _to(self, operands: Operands) -> str:
        return self.convert(operands.names[0], operands.dtype, operands.op.dtype, operands.lanes, operands.hint)

    def _round(self, operands: Operands) -> str:
        """Round to a whole number, or to a 16-bit float, which is the op's value."""
        if operands.op.value is None:
            return self._intrinsic(operands, "roundeven") if operands.dtype.is_floating_point else operands.names[0]
        narrow = self.to_memory(operands.names[0], operands.op.value, operands.lanes, operands.hint)
        return self.from_memory(narrow, operands.op.value, operands.lanes, operands.hint)

    def _bitcast(self, operands: Operands) -> str:
        own, result = operands.op.value
        bits = self.to_memory(operands.names[0], own, operands.lanes, operands.hint)
        source, target = _memory_kind(own, operands.lanes), _memory_kind(result, operands.lanes)
        if source != target:
            bits = self._writer.assign(operands.hint, f"bitcast {source} {bits} to {target}")
        return self.from_memory(bits, result, operands.lanes, operands.hint)

    def convert(self, name: str, own: torch.dtype, result: torch.dtype, lanes: int, hint: str) -> str:
        """Write the conversion between two compute dtypes, as a C cast does it on this CPU."""
        source, target = wide(value_type(own), lanes), wide(value_type(result), lanes)
        if result == torch.bool:
            zero = splat(value_type(own), literal(0, own), lanes)
            test = "fcmp une" if own.is_floating_point else "icmp ne"
            return self._writer.assign(hint, f"{test} {source} {name}, {zero}")
        if own.is_floating_point and not result.is_floating_point:
            return self._float_to_integer(name, own, result, lanes, hint)
        if own.is_floating_point:
            instruction = "fpext" if result == torch.float64 else "fptrunc"
        elif result.is_floating_point:
            instruction = "uitofp" if own in UNSIGNED else "sitofp"
        elif _bits(own) == _bits(result):
            return name
        else:
            instruction = "trunc" if _bits(result) < _bits(own) else "zext" if own in UNSIGNED else "sext"
        return self._writer.assign(hint, f"{instruction} {source} {name} to {target}")

    def _float_to_integer(self, name: str, own: torch.dtype, target: torch.dtype, lanes: int, hint: str) -> str:
        """Convert a float by way of a 32-bit or 64-bit integer, as this CPU's instruction does.

        LLVM's own conversion leaves the result for NaN and numbers out of range open, and the optimizer makes use of
        it. NEON saturates; x86-64 gives the lowest integer.
        """
        middle_dtype = torch.int64 if target in (torch.int64, torch.uint8) else torch.int32
        scalar, integers = value_type(own), value_type(middle_dtype)
        source, middle = wide(scalar, lanes), wide(integers, lanes)
        if self._saturates:
            function = f"llvm.fptosi.sat.{type_suffix(integers, lanes)}.{type_suffix(scalar, lanes)}"
            integer = self._writer.call(hint, function, middle, [(source, name)])
        else:
            limits = torch.iinfo(middle_dtype)
            size = self.intrinsic("size", "fabs", scalar, lanes, [name])
            bound = splat(scalar, literal(-float(limits.min), own), lanes)
            fits = self._writer.assign("fits", f"fcmp olt {source} {size}, {bound}")
            converted = self._writer.assign("converted", f"fptosi {source} {name} to {middle}")
            lowest = splat(integers, str(limits.min), lanes)
            integer = self.select(hint, fits, middle, lanes, converted, lowest)
        if middle_dtype == target:
            return integer
        return self._writer.assign(hint, f"trunc {middle} {integer} to {wide(value_type(target), lanes)}")

    def to_memory(self, name: str, dtype: torch.dtype, lanes: int, hint: str) -> str:
        """Convert a value of a dtype's compute dtype to its type in memory."""
        write = self._writer
        if dtype == torch.bool:
            return write.assign(hint, f"zext {wide('i1', lanes)} {name} to {wide('i8', lanes)}")
        if dtype == torch.float16:
            return write.assign(hint, f"fptrunc {wide('float', lanes)} {name} to {wide('half', lanes)}")
        if dtype != torch.bfloat16:
            return name
        floats, int_vector, mask = wide("float", lanes), wide("i32", lanes), wide("i1", lanes)
        number = functools.partial(word_constant, lanes)
        bits = write.assign("bits", f"bitcast {floats} {name} to {int_vector}")
        high = write.assign("high", f"lshr {int_vector} {bits}, {number(16)}")
        odd = write.assign("odd", f"and {int_vector} {high}, {number(1)}")
        bias = write.assign("bias", f"add {int_vector} {odd}, {number(0x7FFF)}")
        up = write.assign("up", f"add {int_vector} {bits}, {bias}")
        nearest = write.assign("nearest", f"lshr {int_vector} {up}, {number(16)}")
        is_nan = write.assign("is_nan", f"fcmp uno {floats} {name}, {name}")
        chosen = write.assign(
            "chosen", f"select {mask} {is_nan}, {int_vector} {number(0x7FC0)}, {int_vector} {nearest}"
        )
        return write.assign(hint, f"trunc {int_vector} {chosen} to {wide('i16', lanes)}")

    def from_memory(self, name: str, dtype: torch.dtype, lanes: int, hint: str) -> str:
        """Convert a value of a dtype's type in memory to its compute dtype."""
        write = self._writer
        if dtype == torch.bool:
            return write.assign(hint, f"icmp ne {wide('i8', lanes)} {name}, {splat('i8', '0', lanes)}")
        if dtype == torch.float16:
            return write.assign(hint, f"fpext {wide('half', lanes)} {name} to {wide('float', lanes)}")
        if dtype != torch.bfloat16:
            return name
        int_vector = wide("i32", lanes)
        bits = write.assign("bits", f"zext {wide('i16', lanes)} {name} to {int_vector}")
        high = write.assign("high", f"shl {int_vector} {bits}, {splat('i32', '16', lanes)}")
        return write.assign(hint, f"bitcast {int_vector} {high} to {wide('float', lanes)}")


def _bits(dtype: torch.dtype) -> int:
    return 1 if dtype == torch.bool else dtype.itemsize * 8


def _memory_kind(dtype: torch.dtype, lanes: int) -> str:
    return wide(MEMORY_TYPES[dtype], lanes)


_SPECIAL: dict[str, Callable[[Arithmetic, Operands], str]] = {
    "neg": Arithmetic._neg,
    "abs": Arithmetic._abs,
    "not": Arithmetic._not,
    "rsqrt": Arithmetic._rsqrt,
    "sigmoid": Arithmetic._sigmoid,
    "maximum": Arithmetic._extreme,
    "minimum": Arithmetic._extreme,
    "where": Arithmetic._where,
    "shr": Arithmetic._shift_right,
    "truncdiv": Arithmetic._integer_division,
    "rem": Arithmetic._integer_division,
    "to": Arithmetic._to,
    "round": Arithmetic._round,
    "bitcast": Arithmetic._bitcast,
}
