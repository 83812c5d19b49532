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
INTEGER_INSTRUCTIONS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "shl": "shl",
}
FLOAT_COMPARISONS = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
INTEGER_COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
FLOAT_INTRINSICS = {
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "sqrt": "sqrt",
    "copysign": "copysign",
}
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

    def __init__(self, writer: IrWriter, math: VectorMath) -> None:
        self._writer = writer
        self._math = math

    def compute(self, given: Operands) -> str:
        """Write one op; return the name of its result.

        Raises:
            NotPrintable: the op has no code for the CPU.
        """
        op, name = given.op, given.op.name
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, given)
        is_float = given.dtype.is_floating_point
        if name in FLOAT_COMPARISONS:
            return self._compare(given)
        if is_float and name in FLOAT_INSTRUCTIONS:
            return self._binary(given, FLOAT_INSTRUCTIONS[name])
        if not is_float and name in INTEGER_INSTRUCTIONS:
            return self._binary(given, INTEGER_INSTRUCTIONS[name])
        if is_float and name in FLOAT_INTRINSICS:
            return self._intrinsic(given, FLOAT_INTRINSICS[name])
        if is_float and name in SLEEF_FUNCTIONS:
            return self._math.call(name, given.scalar, given.lanes, given.names, given.hint)
        raise NotPrintable(f"{op.name} of {given.dtype} has no code for the CPU")

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

    def combine(self, how: str, dtype: torch.dtype, lanes: int, left: str, right: str) -> str:
        """Write one step of a reduction or scan; ``left`` is the running value.

        Raises:
            NotPrintable: the kind of reduction has no code.
        """
        scalar, is_float = value_type(dtype), dtype.is_floating_point
        kind = wide(scalar, lanes)
        if how in ("sum", "prod"):
            name = {"sum": "add", "prod": "mul"}[how]
            return self._writer.assign("total", f"{'f' if is_float else ''}{name} {kind} {left}, {right}")
        if how in ("max", "min"):
            if is_float:
                order = "ogt" if how == "max" else "olt"
                test = self._writer.assign("test", f"fcmp {order} {kind} {right}, {left}")
                return self.select(how, test, kind, lanes, right, left)
            return self.intrinsic(how, _integer_extreme(how, dtype), scalar, lanes, [left, right])
        raise NotPrintable(f"a reduction by {how} has no code for the CPU")

    def nan_aware_extreme(self, how: str, dtype: torch.dtype, lanes: int, left: str, right: str) -> str:
        """Write a maximum or minimum that is NaN if an operand is."""
        if not dtype.is_floating_point:
            return self.combine(how, dtype, lanes, left, right)
        kind = wide(value_type(dtype), lanes)
        found = self.combine(how, dtype, lanes, right, left)  # the second operand if either is NaN
        is_nan = self._writer.assign("is_nan", f"fcmp uno {kind} {left}, {left}")
        return self.select(how, is_nan, kind, lanes, left, found)

    def _binary(self, given: Operands, instruction: str) -> str:
        return self._writer.assign(given.hint, f"{instruction} {given.kind} {given.names[0]}, {given.names[1]}")

    def _intrinsic(self, given: Operands, name: str) -> str:
        return self.intrinsic(given.hint, name, given.scalar, given.lanes, given.names)

    def _compare(self, given: Operands) -> str:
        name, left, right = given.op.name, *given.names
        if given.dtype.is_floating_point:
            return self._writer.assign(given.hint, f"fcmp {FLOAT_COMPARISONS[name]} {given.kind} {left}, {right}")
        sign = "" if name in ("eq", "ne") else "u" if given.dtype in UNSIGNED else "s"
        return self._writer.assign(given.hint, f"icmp {sign}{INTEGER_COMPARISONS[name]} {given.kind} {left}, {right}")

    def _neg(self, given: Operands) -> str:
        if given.dtype.is_floating_point:
            return self._writer.assign(given.hint, f"fneg {given.kind} {given.names[0]}")
        return self._writer.assign(given.hint, f"sub {given.kind} {given.constant(0)}, {given.names[0]}")

    def _abs(self, given: Operands) -> str:
        if given.dtype.is_floating_point:
            return self._intrinsic(given, "fabs")
        if given.dtype in UNSIGNED:
            return given.names[0]
        function, kind = f"llvm.abs.{type_suffix(given.scalar, given.lanes)}", given.kind
        return self._writer.call(given.hint, function, kind, [(kind, given.names[0]), ("i1", "false")])

    def _not(self, given: Operands) -> str:
        ones = "true" if given.scalar == "i1" else "-1"
        mask = splat(given.scalar, ones, given.lanes)
        return self._writer.assign(given.hint, f"xor {given.kind} {given.names[0]}, {mask}")

    def _rsqrt(self, given: Operands) -> str:
        root = self._intrinsic(given, "sqrt")
        return self._writer.assign(given.hint, f"fdiv {given.kind} {given.constant(1.0)}, {root}")

    def _sigmoid(self, given: Operands) -> str:
        kind = given.kind
        negated = self._writer.assign("negated", f"fneg {kind} {given.names[0]}")
        grown = self._math.call("exp", given.scalar, given.lanes, [negated], "grown")
        above = self._writer.assign("above", f"fadd {kind} {grown}, {given.constant(1.0)}")
        return self._writer.assign(given.hint, f"fdiv {kind} {given.constant(1.0)}, {above}")

    def _extreme(self, given: Operands) -> str:
        how = {"maximum": "max", "minimum": "min"}[given.op.name]
        return self.nan_aware_extreme(how, given.dtype, given.lanes, *given.names)

    def _where(self, given: Operands) -> str:
        kind = wide(value_type(given.op.dtype), given.lanes)
        return self.select(given.hint, given.names[0], kind, given.lanes, given.names[1], given.names[2])

    def _shift_right(self, given: Operands) -> str:
        return self._binary(given, "lshr" if given.dtype in UNSIGNED else "ashr")

    def _integer_division(self, given: Operands) -> str:
        """Divide integers. A divisor of 0 or an overflow would trap, so such lanes divide by 1."""
        kind, (left, right) = given.kind, given.names
        mask, zero = wide("i1", given.lanes), given.constant(0)
        bad = self._writer.assign("bad", f"icmp eq {kind} {right}, {zero}")
        if given.dtype not in UNSIGNED:
            lowest = given.constant(torch.iinfo(given.dtype).min)
            is_lowest = self._writer.assign("is_lowest", f"icmp eq {kind} {left}, {lowest}")
            is_minus = self._writer.assign("is_minus", f"icmp eq {kind} {right}, {given.constant(-1)}")
            overflows = self._writer.assign("overflows", f"and {mask} {is_lowest}, {is_minus}")
            bad = self._writer.assign("bad", f"or {mask} {bad}, {overflows}")
        safe = self.select("divisor", bad, kind, given.lanes, given.constant(1), right)
        sign, what = "u" if given.dtype in UNSIGNED else "s", "div" if given.op.name == "truncdiv" else "rem"
        return self._writer.assign(given.hint, f"{sign}{what} {kind} {left}, {safe}")

    def _to(self, given: Operands) -> str:
        return self.convert(given.names[0], given.dtype, given.op.dtype, given.lanes, given.hint)

    def _round(self, given: Operands) -> str:
        """Round to a whole number, or to a 16-bit float, which is the op's value."""
        if given.op.value is None:
            return self._intrinsic(given, "roundeven") if given.dtype.is_floating_point else given.names[0]
        narrow = self.to_memory(given.names[0], given.op.value, given.lanes, given.hint)
        return self.from_memory(narrow, given.op.value, given.lanes, given.hint)

    def _bitcast(self, given: Operands) -> str:
        own, wanted = given.op.value
        bits = self.to_memory(given.names[0], own, given.lanes, given.hint)
        source, target = _memory_kind(own, given.lanes), _memory_kind(wanted, given.lanes)
        if source != target:
            bits = self._writer.assign(given.hint, f"bitcast {source} {bits} to {target}")
        return self.from_memory(bits, wanted, given.lanes, given.hint)

    def convert(self, name: str, own: torch.dtype, wanted: torch.dtype, lanes: int, hint: str) -> str:
        """Write the conversion between two compute dtypes, as a C cast does it on this CPU."""
        source, target = wide(value_type(own), lanes), wide(value_type(wanted), lanes)
        if wanted == torch.bool:
            zero = splat(value_type(own), literal(0, own), lanes)
            test = "fcmp une" if own.is_floating_point else "icmp ne"
            return self._writer.assign(hint, f"{test} {source} {name}, {zero}")
        if own.is_floating_point and not wanted.is_floating_point:
            return self._float_to_integer(name, own, wanted, lanes, hint)
        if own.is_floating_point:
            how = "fpext" if wanted == torch.float64 else "fptrunc"
        elif wanted.is_floating_point:
            how = "uitofp" if own in UNSIGNED else "sitofp"
        elif _bits(own) == _bits(wanted):
            return name
        else:
            how = "trunc" if _bits(wanted) < _bits(own) else "zext" if own in UNSIGNED else "sext"
        return self._writer.assign(hint, f"{how} {source} {name} to {target}")

    def _float_to_integer(self, name: str, own: torch.dtype, wanted: torch.dtype, lanes: int, hint: str) -> str:
        """Convert a float by way of a 32-bit or 64-bit integer; freeze what is out of range."""
        held = torch.int64 if wanted in (torch.int64, torch.uint8) else torch.int32
        source, middle = wide(value_type(own), lanes), wide(value_type(held), lanes)
        made = self._writer.assign(hint, f"fptosi {source} {name} to {middle}")
        made = self._writer.assign(hint, f"freeze {middle} {made}")
        if held == wanted:
            return made
        return self._writer.assign(hint, f"trunc {middle} {made} to {wide(value_type(wanted), lanes)}")

    def to_memory(self, name: str, dtype: torch.dtype, lanes: int, hint: str) -> str:
        """Convert a value of a dtype's compute dtype to its type in memory."""
        write = self._writer
        if dtype == torch.bool:
            return write.assign(hint, f"zext {wide('i1', lanes)} {name} to {wide('i8', lanes)}")
        if dtype == torch.float16:
            return write.assign(hint, f"fptrunc {wide('float', lanes)} {name} to {wide('half', lanes)}")
        if dtype != torch.bfloat16:
            return name
        floats, words, mask = wide("float", lanes), wide("i32", lanes), wide("i1", lanes)
        number = functools.partial(word_constant, lanes)
        bits = write.assign("bits", f"bitcast {floats} {name} to {words}")
        high = write.assign("high", f"lshr {words} {bits}, {number(16)}")
        odd = write.assign("odd", f"and {words} {high}, {number(1)}")
        bias = write.assign("bias", f"add {words} {odd}, {number(0x7FFF)}")
        up = write.assign("up", f"add {words} {bits}, {bias}")
        nearest = write.assign("nearest", f"lshr {words} {up}, {number(16)}")
        is_nan = write.assign("is_nan", f"fcmp uno {floats} {name}, {name}")
        chosen = write.assign("chosen", f"select {mask} {is_nan}, {words} {number(0x7FC0)}, {words} {nearest}")
        return write.assign(hint, f"trunc {words} {chosen} to {wide('i16', lanes)}")

    def from_memory(self, name: str, dtype: torch.dtype, lanes: int, hint: str) -> str:
        """Convert a value of a dtype's type in memory to its compute dtype."""
        write = self._writer
        if dtype == torch.bool:
            return write.assign(hint, f"icmp ne {wide('i8', lanes)} {name}, {splat('i8', '0', lanes)}")
        if dtype == torch.float16:
            return write.assign(hint, f"fpext {wide('half', lanes)} {name} to {wide('float', lanes)}")
        if dtype != torch.bfloat16:
            return name
        words = wide("i32", lanes)
        bits = write.assign("bits", f"zext {wide('i16', lanes)} {name} to {words}")
        high = write.assign("high", f"shl {words} {bits}, {splat('i32', '16', lanes)}")
        return write.assign(hint, f"bitcast {words} {high} to {wide('float', lanes)}")


def _integer_extreme(how: str, dtype: torch.dtype) -> str:
    return f"{'u' if dtype in UNSIGNED else 's'}{how}"


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
