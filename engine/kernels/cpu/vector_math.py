"""Elementary functions: inline polynomials, SLEEF's functions, libm for one lane.

SLEEF (Shibata and Petrogalli, 2020) is part of libtorch_cpu. Where it is missing, each lane calls libm.
"""

from __future__ import annotations

import functools

import torch

from engine.ir.kernels.host_vectors import VectorUnit
from engine.kernels.cpu.ir_writer import IrWriter
from engine.kernels.cpu.llvm_types import NotPrintable, literal, splat, type_suffix, wide

SLEEF_FUNCTIONS = {
    "exp": "exp{}_u10",
    "exp2": "exp2{}_u10",
    "log": "log{}_u10",
    "log2": "log2{}_u10",
    "log1p": "log1p{}_u10",
    "expm1": "expm1{}_u10",
    "sin": "sin{}_u10",
    "cos": "cos{}_u10",
    "tan": "tan{}_u10",
    "tanh": "tanh{}_u10",
    "sinh": "sinh{}_u10",
    "cosh": "cosh{}_u10",
    "asin": "asin{}_u10",
    "acos": "acos{}_u10",
    "atan": "atan{}_u10",
    "asinh": "asinh{}_u10",
    "acosh": "acosh{}_u10",
    "atanh": "atanh{}_u10",
    "erf": "erf{}_u10",
    "erfc": "erfc{}_u15",
    "lgamma": "lgamma{}_u10",
    "pow": "pow{}_u10",
    "atan2": "atan2{}_u10",
    "hypot": "hypot{}_u05",
    "fmod": "fmod{}",
    "nextafter": "nextafter{}",
}
"""Name of a function in SLEEF, with its precision in tenths of the last bit."""
BINARY_FUNCTIONS = frozenset(("pow", "atan2", "hypot", "fmod", "nextafter"))
INLINE_FUNCTIONS = {"exp": "float", "tanh": "float"}
"""Functions with a polynomial of our own, by the type that it computes."""


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
        if INLINE_FUNCTIONS.get(name) == scalar:
            return self._call_inline(name, lanes, arguments[0], hint)
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
            made = self._call_libm(name, scalar, lane, "lane")
            total = write.assign(hint, f"insertelement {kind} {total}, {scalar} {made}, i32 {k}")
        return total

    def _call_inline(self, name: str, lanes: int, argument: str, hint: str) -> str:
        kind, function = wide("float", lanes), f"{name}.{type_suffix('float', lanes)}"
        if function not in self.helpers:
            self.helpers[function] = _INLINE_TEXTS[name](lanes)
            if name == "tanh":
                self.helpers.setdefault(f"exp.{type_suffix('float', lanes)}", _exp_text(lanes))
        return self._writer.assign(hint, f"call {kind} @{function}({kind} {argument})")


def _word(lanes: int, value: int) -> str:
    return splat("i32", str(value), lanes)


def _float(lanes: int, value: float) -> str:
    return splat("float", literal(value, torch.float32), lanes)


def _horner(kind: str, variable: str, coefficients: tuple[float, ...], lanes: int, prefix: str) -> list[str]:
    """Return the lines of a polynomial by Horner's rule, highest power first."""
    fma, lines = f"@llvm.fma.{type_suffix('float', lanes)}", []
    last = _float(lanes, coefficients[0])
    for n, c in enumerate(coefficients[1:], 1):
        lines.append(f"  %{prefix}{n} = call {kind} {fma}({kind} {last}, {kind} {variable}, {kind} {_float(lanes, c)})")
        last = f"%{prefix}{n}"
    return lines


def _exp_text(lanes: int) -> str:
    """Return exp as 2 ** n * exp(rest), by a polynomial of degree 6 (Cephes)."""
    kind, whole, suffix = wide("float", lanes), wide("i32", lanes), type_suffix("float", lanes)
    f = functools.partial(_float, lanes)
    i = functools.partial(_word, lanes)
    fma, mask = f"call {kind} @llvm.fma.{suffix}", wide("i1", lanes)
    polynomial = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5, 1.0, 1.0)
    lines = [
        f"define internal {kind} @exp.{suffix}({kind} %given) alwaysinline {{",
        f"  %is_high = fcmp ogt {kind} %given, {f(89.0)}",
        f"  %below = select {mask} %is_high, {kind} {f(89.0)}, {kind} %given",
        f"  %is_low = fcmp olt {kind} %below, {f(-104.0)}",
        f"  %x = select {mask} %is_low, {kind} {f(-104.0)}, {kind} %below",
        f"  %moved = {fma}({kind} %x, {kind} {f(1.4426950408889634)}, {kind} {f(12582912.0)})",
        f"  %n = fsub {kind} %moved, {f(12582912.0)}",
        f"  %high = {fma}({kind} %n, {kind} {f(-0.693145751953125)}, {kind} %x)",
        f"  %rest = {fma}({kind} %n, {kind} {f(-1.428606765330187e-06)}, {kind} %high)",
        *_horner(kind, "%rest", polynomial, lanes, "p"),
        f"  %bits = bitcast {kind} %moved to {whole}",
        f"  %power = sub {whole} %bits, {i(0x4B400000)}",
        f"  %first = ashr {whole} %power, {i(1)}",
        f"  %second = sub {whole} %power, %first",
    ]
    for name in ("first", "second"):
        lines += [
            f"  %{name}.biased = add {whole} %{name}, {i(127)}",
            f"  %{name}.bits = shl {whole} %{name}.biased, {i(23)}",
            f"  %{name}.scale = bitcast {whole} %{name}.bits to {kind}",
        ]
    last = len(polynomial) - 1
    lines += [
        f"  %half = fmul {kind} %p{last}, %first.scale",
        f"  %made = fmul {kind} %half, %second.scale",
        f"  ret {kind} %made",
        "}",
        f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})",
    ]
    return "\n".join(lines) + "\n"


def _tanh_text(lanes: int) -> str:
    """Return tanh: a polynomial near zero (Cephes), and by exp elsewhere."""
    kind, suffix, mask = wide("float", lanes), type_suffix("float", lanes), wide("i1", lanes)
    f = functools.partial(_float, lanes)
    near = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
    lines = [
        f"define internal {kind} @tanh.{suffix}({kind} %x) alwaysinline {{",
        f"  %size = call {kind} @llvm.fabs.{suffix}({kind} %x)",
        f"  %square = fmul {kind} %x, %x",
        *_horner(kind, "%square", near, lanes, "p"),
        f"  %cube = fmul {kind} %square, %x",
        f"  %near = call {kind} @llvm.fma.{suffix}({kind} %cube, {kind} %p{len(near) - 1}, {kind} %x)",
        f"  %twice = fadd {kind} %size, %size",
        f"  %grown = call {kind} @exp.{suffix}({kind} %twice)",
        f"  %above = fadd {kind} %grown, {f(1.0)}",
        f"  %share = fdiv {kind} {f(2.0)}, %above",
        f"  %far = fsub {kind} {f(1.0)}, %share",
        f"  %signed = call {kind} @llvm.copysign.{suffix}({kind} %far, {kind} %x)",
        f"  %is_near = fcmp olt {kind} %size, {f(0.625)}",
        f"  %made = select {mask} %is_near, {kind} %near, {kind} %signed",
        f"  ret {kind} %made",
        "}",
        f"declare {kind} @llvm.fabs.{suffix}({kind})",
        f"declare {kind} @llvm.copysign.{suffix}({kind}, {kind})",
    ]
    return "\n".join(lines) + "\n"


_INLINE_TEXTS = {"exp": _exp_text, "tanh": _tanh_text}
