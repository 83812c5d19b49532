"""Functions of float32 in float64, so that their last bit is nearly always right."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from engine.kernels.cpu.ir_writer import IrWriter
from engine.kernels.cpu.llvm_types import literal, splat, type_suffix, wide

_MAGIC = 6755399441055744.0
"""1.5 * 2 ** 52: a sum with it is a whole number in its last bits."""
_EXP2 = (
    1.5201912151333041e-05,
    0.00015469291072787474,
    0.0013333922604945071,
    0.0096180272539379,
    0.055504103533964434,
    0.2402265119815487,
    0.6931471807284647,
    0.9999999999616824,
)
"""2 ** x within 1/2 as a polynomial; its relative error is 4e-11."""
_LOG2 = (
    0.282919072127081,
    0.3199044485605985,
    0.41220928041643123,
    0.5770779421226482,
    0.9617966941139483,
    2.88539008177785,
)
"""log2((1 + s) / (1 - s)) / s as a polynomial of s ** 2, for |s| to 0.1716."""
_ERFC = (
    8.06481355852648e-05,
    0.0006169449173779964,
    0.0003440362299148949,
    -0.004421432782270572,
    0.0009787804419586145,
    0.032777302844825704,
    -0.10297345598276578,
    0.15762787575283485,
    -0.09902420298460424,
    -0.12235669942593334,
    1.2648381811186733,
)
"""erfc(x) * exp(x ** 2) * (1 + 2 * x) as a polynomial of (x - 2.5) / (x + 2.5).

Its relative error for x from 0 to 10.1 is 4e-9. The map is in Mathematics of Computation 36 (1981), page 249.
"""


class _Lines:
    """Lines of a function on doubles in each lane; operands are registers and numbers."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.writer = IrWriter(set())
        self.kind, self.mask, self.whole = (wide(scalar, lanes) for scalar in ("double", "i1", "i64"))

    def name(self, value: str | float) -> str:
        """Return a register, or the constant of a number."""
        text = str(value)
        return text if text.startswith("%") else splat("double", literal(float(value), torch.float64), self.lanes)

    def add(self, text: str) -> str:
        """Add an instruction; return its register."""
        return self.writer.assign("part", text)

    def binary(self, operation: str, left: str | float, right: str | float) -> str:
        """Add an instruction of two doubles: ``fadd``, ``fcmp olt``, ..."""
        return self.add(f"{operation} {self.kind} {self.name(left)}, {self.name(right)}")

    def both(self, left: str, right: str) -> str:
        """Add a conjunction of two conditions."""
        return self.add(f"and {self.mask} {left}, {right}")

    def call(self, name: str, *values: str | float) -> str:
        """Add a call of an intrinsic on doubles."""
        function = f"llvm.{name}.{type_suffix('double', self.lanes)}"
        return self.writer.call("part", function, self.kind, [(self.kind, self.name(v)) for v in values])

    def select(self, condition: str, then: str | float, otherwise: str | float) -> str:
        """Add a choice between two doubles."""
        return self.add(
            f"select {self.mask} {condition}, {self.kind} {self.name(then)}, {self.kind} {self.name(otherwise)}"
        )

    def bits(self, value: str) -> str:
        """Add the bits of doubles as integers."""
        return self.add(f"bitcast {self.kind} {value} to {self.whole}")

    def integers(self, operation: str, left: str, right: str | int) -> str:
        """Add an instruction of two integers of 64 bits."""
        text = str(right)
        right = text if text.startswith("%") else splat("i64", text, self.lanes)
        return self.add(f"{operation} {self.whole} {left}, {right}")

    def double_of(self, bits: str) -> str:
        """Add the doubles of these bits."""
        return self.add(f"bitcast {self.whole} {bits} to {self.kind}")

    def polynomial(self, coefficients: tuple[float, ...], variable: str) -> str:
        """Add a polynomial by Horner's rule, highest power first."""
        total: str | float = coefficients[0]
        for coefficient in coefficients[1:]:
            total = self.call("fma", total, variable, coefficient)
        return self.name(total)

    def exp2(self, argument: str) -> str:
        """Add 2 to a power from -200 to 200; NaN gives NaN."""
        moved = self.binary("fadd", argument, _MAGIC)
        rest = self.binary("fsub", argument, self.binary("fsub", moved, _MAGIC))
        part = self.bits(self.polynomial(_EXP2, rest))
        scaled = self.double_of(self.integers("add", part, self.integers("shl", self.bits(moved), 52)))
        return self.select(self.binary("fcmp uno", argument, argument), argument, scaled)

    def log2(self, size: str) -> str:
        """Add the logarithm of doubles from 0 to infinity that are not subnormal, or NaN."""
        bits, few = self.bits(size), wide("i32", self.lanes)
        power = self.integers("ashr", self.integers("sub", bits, _ROOT_HALF_BITS), 52)
        m = self.double_of(self.integers("sub", bits, self.integers("shl", power, 52)))
        n = self.add(f"sitofp {few} {self.add(f'trunc {self.whole} {power} to {few}')} to {self.kind}")
        s = self.binary("fdiv", self.binary("fsub", m, 1.0), self.binary("fadd", m, 1.0))
        usual = self.call("fma", s, self.polynomial(_LOG2, self.binary("fmul", s, s)), n)
        limit = self.select(self.binary("fcmp oeq", size, 0.0), -math.inf, size)
        is_usual = self.both(self.binary("fcmp olt", size, math.inf), self.binary("fcmp ogt", size, 0.0))
        return self.select(is_usual, usual, limit)

    def clamp(self, value: str, low: float, high: float) -> str:
        """Add the nearest number of a range; NaN stays."""
        above = self.select(self.binary("fcmp olt", value, low), low, value)
        return self.select(self.binary("fcmp ogt", above, high), high, above)

    def function(self, name: str, parameters: tuple[str, ...], result: str) -> str:
        """Return the text of a function of float32 whose result is rounded to float32."""
        single = wide("float", self.lanes)
        head = ", ".join(f"{single} %{p}" for p in parameters)
        lines = [f"define internal {single} @{name}.{type_suffix('float', self.lanes)}({head}) alwaysinline {{"]
        lines += [f"  %{p}.wide = fpext {single} %{p} to {self.kind}" for p in parameters]
        lines += [line.text for line in self.writer.lines]
        lines += [f"  %result = fptrunc {self.kind} {result} to {single}", f"  ret {single} %result", "}"]
        return "\n".join([*lines, *self.writer.declarations.values()]) + "\n"


def _pow_text(lanes: int) -> str:
    """Return |x| ** y by logarithm and power, with the sign of an odd power of a negative x."""
    write, x, y = _Lines(lanes), "%x.wide", "%y.wide"
    size, half = write.call("fabs", x), write.binary("fmul", y, 0.5)
    power = write.exp2(write.clamp(write.binary("fmul", y, write.log2(size)), -180.0, 140.0))
    is_endless = write.binary("fcmp oeq", write.call("fabs", y), math.inf)
    is_unit = write.both(write.binary("fcmp oeq", size, 1.0), is_endless)
    for is_one in (write.binary("fcmp oeq", x, 1.0), write.binary("fcmp oeq", y, 0.0), is_unit):
        power = write.select(is_one, 1.0, power)
    is_whole = write.binary("fcmp oeq", write.call("floor", y), y)
    is_odd = write.both(is_whole, write.binary("fcmp une", write.call("floor", half), half))
    is_negative = write.integers("icmp slt", write.bits(x), 0)
    negated = write.add(f"fneg {write.kind} {power}")
    signed = write.select(write.both(is_negative, is_odd), negated, power)
    is_finite = write.both(write.binary("fcmp olt", x, 0.0), write.binary("fcmp one", size, math.inf))
    wrong = write.select(is_finite, math.nan, signed)
    return write.function("pow", ("x", "y"), write.select(is_whole, signed, wrong))


def _erfc_text(lanes: int) -> str:
    """Return erfc: exp(-x ** 2) times a polynomial for |x|; 2 less that for a negative x."""
    write, x = _Lines(lanes), "%x.wide"
    size = write.clamp(write.call("fabs", x), 0.0, 10.1)
    after, twice = write.binary("fadd", size, 2.5), write.call("fma", size, 2.0, 1.0)
    share = write.binary("fdiv", 1.0, write.binary("fmul", after, twice))
    u = write.binary("fmul", write.binary("fmul", write.binary("fsub", size, 2.5), twice), share)
    decay = write.exp2(write.binary("fmul", write.binary("fmul", size, size), -1 / math.log(2)))
    factor = write.binary("fmul", write.binary("fmul", share, after), decay)
    right = write.binary("fmul", write.polynomial(_ERFC, u), factor)
    left = write.binary("fsub", 2.0, right)
    return write.function("erfc", ("x",), write.select(write.binary("fcmp olt", x, 0.0), left, right))


_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
DOUBLE_TEXTS: dict[str, Callable[[int], str]] = {"pow": _pow_text, "erfc": _erfc_text}
"""Text of each function by the number of lanes."""
