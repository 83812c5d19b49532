"""Calls of elementary functions: inline polynomials, SLEEF's functions, libm for one lane.

SLEEF (Shibata and Petrogalli, 2020) is part of libtorch_cpu. Where it is missing, each lane calls libm.
"""

from __future__ import annotations

from engine.ir.kernels.host_vectors import VectorUnit
from engine.kernels.cpu.double_functions import DOUBLE_TEXTS
from engine.kernels.cpu.inline_functions import CALLERS_OF_EXP, INLINE_TEXTS
from engine.kernels.cpu.ir_writer import IrWriter
from engine.kernels.cpu.llvm_types import NotPrintable, type_suffix, wide
from engine.kernels.cpu.table_functions import LANES, TABLE_TEXTS

_ACCURATE_FUNCTIONS = (
    "exp exp2 log log2 log1p expm1 sin cos tan tanh sinh cosh asin acos atan asinh acosh atanh erf lgamma pow atan2"
).split()
SLEEF_FUNCTIONS = {
    **{name: name + "{}_u10" for name in _ACCURATE_FUNCTIONS},
    "erfc": "erfc{}_u15",
    "hypot": "hypot{}_u05",
    "fmod": "fmod{}",
    "nextafter": "nextafter{}",
}
"""Name of a function in SLEEF, with its precision in tenths of the last bit."""


class VectorMath:
    """Writes calls of elementary functions; ``helpers`` are functions to define."""

    def __init__(self, writer: IrWriter, unit: VectorUnit) -> None:
        self._writer = writer
        self._unit = unit
        self.helpers: dict[str, str] = {}

    def call(self, name: str, scalar: str, lanes: int, arguments: list[str], hint: str) -> str:
        """Write a call of a function on operands of one type; return the name of its result.

        Raises:
            NotPrintable: the function is unknown.
        """
        if scalar == "float" and name in (*INLINE_TEXTS, *DOUBLE_TEXTS):
            if lanes == 1 and (name, LANES, self._unit.bits) in TABLE_TEXTS:
                return self._call_in_one_lane(name, arguments, hint)
            return self._call_inline(name, lanes, arguments, hint)
        return self.call_library(name, scalar, lanes, arguments, hint)

    def call_library(self, name: str, scalar: str, lanes: int, arguments: list[str], hint: str) -> str:
        """Write a call of SLEEF or libm, in as many parts as the vectors need.

        Raises:
            NotPrintable: the function is unknown.
        """
        if name not in SLEEF_FUNCTIONS:
            raise NotPrintable(f"{name} has no code for the CPU")
        if lanes == 1:
            return self._call_libm(name, scalar, arguments, hint)
        size = 4 if scalar == "float" else 8
        for width, suffix in self._unit.math_suffixes:
            if width == lanes * size:
                return self._call_sleef(name, scalar, lanes, suffix, arguments, hint)
        if lanes * size > max((w for w, _ in self._unit.math_suffixes), default=0) and self._unit.math_suffixes:
            return self._call_halves(name, scalar, lanes, arguments, hint)
        return self._call_each_lane(name, scalar, lanes, arguments, hint)

    def _define_exact(self, name: str, lanes: int) -> None:
        """Define the function that an inline one calls for large arguments."""
        own, kind = VectorMath(IrWriter(set()), self._unit), wide("float", lanes)
        result = own.call_library(name, "float", lanes, ["%x"], "made")
        body = "\n".join(line.text for line in own._writer.lines)
        declared = "\n".join(own._writer.declarations.values())
        function = f"exact.{name}.{type_suffix('float', lanes)}"
        self.helpers[function] = (
            f"define internal {kind} @{function}({kind} %x) noinline cold #0 {{\n{body}\n  ret {kind} {result}\n}}\n{declared}\n"
        )

    def _call_sleef(self, name: str, scalar: str, lanes: int, suffix: str, arguments: list[str], hint: str) -> str:
        letter = "f" if scalar == "float" else "d"
        spelled = SLEEF_FUNCTIONS[name].format(f"{letter}{lanes}")
        joint = "" if "_u" in spelled or not suffix else "_"
        kind = wide(scalar, lanes)
        return self._writer.call(hint, f"Sleef_{spelled}{joint}{suffix}", kind, [(kind, a) for a in arguments])

    def _call_libm(self, name: str, scalar: str, arguments: list[str], hint: str) -> str:
        spelled = f"{name}f" if scalar == "float" else name
        return self._writer.call(hint, spelled, scalar, [(scalar, a) for a in arguments])

    def _call_halves(self, name: str, scalar: str, lanes: int, arguments: list[str], hint: str) -> str:
        write, kind, half = self._writer, wide(scalar, lanes), lanes // 2
        parts = []
        for start in (0, half):
            indices = "<" + ", ".join(f"i32 {start + k}" for k in range(half)) + ">"
            cut = [
                write.assign("half", f"shufflevector {kind} {a}, {kind} poison, <{half} x i32> {indices}")
                for a in arguments
            ]
            parts.append(self.call(name, scalar, half, cut, hint))
        indices = "<" + ", ".join(f"i32 {k}" for k in range(lanes)) + ">"
        part = wide(scalar, half)
        return write.assign(hint, f"shufflevector {part} {parts[0]}, {part} {parts[1]}, <{lanes} x i32> {indices}")

    def _call_each_lane(self, name: str, scalar: str, lanes: int, arguments: list[str], hint: str) -> str:
        write, kind, total = self._writer, wide(scalar, lanes), "poison"
        for k in range(lanes):
            lane = [write.assign("lane", f"extractelement {kind} {a}, i32 {k}") for a in arguments]
            result = self._call_libm(name, scalar, lane, "lane")
            total = write.assign(hint, f"insertelement {kind} {total}, {scalar} {result}, i32 {k}")
        return total

    def _call_inline(self, name: str, lanes: int, arguments: list[str], hint: str) -> str:
        kind, function = wide("float", lanes), f"{name}.{type_suffix('float', lanes)}"
        if function not in self.helpers:
            self.helpers[function] = self._inline_text(name, lanes)
            if name in CALLERS_OF_EXP:
                self.helpers.setdefault(f"exp.{type_suffix('float', lanes)}", self._inline_text("exp", lanes))
            if name in ("sin", "cos"):
                self._define_exact(name, lanes)
        given = ", ".join(f"{kind} {a}" for a in arguments)
        return self._writer.assign(hint, f"call {kind} @{function}({given})")

    def _call_in_one_lane(self, name: str, arguments: list[str], hint: str) -> str:
        """Write a call of the function of a vector for one number: it has half the instructions."""
        kind, write = wide("float", LANES), self._writer
        first = [write.assign("first", f"insertelement {kind} zeroinitializer, float {a}, i64 0") for a in arguments]
        return write.assign(hint, f"extractelement {kind} {self._call_inline(name, LANES, first, hint)}, i64 0")

    def _inline_text(self, name: str, lanes: int) -> str:
        """Return the text of an inline function, the fastest for the vector unit."""
        text = TABLE_TEXTS.get((name, lanes, self._unit.bits))
        return (INLINE_TEXTS.get(name) or DOUBLE_TEXTS[name])(lanes) if text is None else text()
