"""Elementary functions: inline polynomials, SLEEF's functions, libm for one lane.

SLEEF (Shibata and Petrogalli, 2020) is part of libtorch_cpu. Where it is missing, each lane calls libm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

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
INLINE_FUNCTIONS = {"exp": "float", "tanh": "float", "erf": "float", "sin": "float", "cos": "float"}
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
        own, kind = VectorMath(IrWriter(), self._unit), wide("float", lanes)
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
            made = self._call_libm(name, scalar, lane, "lane")
            total = write.assign(hint, f"insertelement {kind} {total}, {scalar} {made}, i32 {k}")
        return total

    def _call_inline(self, name: str, lanes: int, argument: str, hint: str) -> str:
        kind, function = wide("float", lanes), f"{name}.{type_suffix('float', lanes)}"
        if function not in self.helpers:
            self.helpers[function] = _INLINE_TEXTS[name](lanes)
            if name in ("tanh", "erf"):
                self.helpers.setdefault(f"exp.{type_suffix('float', lanes)}", _exp_text(lanes))
            if name in ("sin", "cos"):
                self._define_exact(name, lanes)
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
    """Return exp as 2 ** n * exp(rest), by a polynomial of degree 6 (Cephes).

    A product that underflows takes a hundred times as long as another, so results of 0 are selected.
    """
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
        f"  %x = select {mask} %is_low, {kind} {f(0.0)}, {kind} %below",
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
        f"  %result = select {mask} %is_low, {kind} {f(0.0)}, {kind} %made",
        f"  ret {kind} %result",
        "}",
        f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})",
    ]
    return "\n".join(lines) + "\n"


def _odd_function_end(lanes: int, limit: float) -> list[str]:
    """Return the end of an odd function: ``%near`` below a limit, else ``%far`` with x's sign."""
    kind, suffix, mask = wide("float", lanes), type_suffix("float", lanes), wide("i1", lanes)
    return [
        f"  %signed = call {kind} @llvm.copysign.{suffix}({kind} %far, {kind} %x)",
        f"  %is_near = fcmp olt {kind} %size, {_float(lanes, limit)}",
        f"  %made = select {mask} %is_near, {kind} %near, {kind} %signed",
        f"  ret {kind} %made",
        "}",
        f"declare {kind} @llvm.fabs.{suffix}({kind})",
        f"declare {kind} @llvm.copysign.{suffix}({kind}, {kind})",
    ]


def _tanh_text(lanes: int) -> str:
    """Return tanh: a polynomial near zero (Cephes), and by exp elsewhere."""
    kind, suffix = wide("float", lanes), type_suffix("float", lanes)
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
        *_odd_function_end(lanes, 0.625),
    ]
    return "\n".join(lines) + "\n"


def _erf_text(lanes: int) -> str:
    """Return erf: a polynomial near zero; elsewhere 1 - exp(-x - x * polynomial)."""
    kind, suffix, mask = wide("float", lanes), type_suffix("float", lanes), wide("i1", lanes)
    f = functools.partial(_float, lanes)
    fma = f"call {kind} @llvm.fma.{suffix}"
    lines = [
        f"define internal {kind} @erf.{suffix}({kind} %x) alwaysinline {{",
        f"  %size = call {kind} @llvm.fabs.{suffix}({kind} %x)",
        f"  %square = fmul {kind} %x, %x",
        *_horner(kind, "%square", _ERF_NEAR, lanes, "n"),
        f"  %near = {fma}({kind} %x, {kind} %n{len(_ERF_NEAR) - 1}, {kind} %x)",
        f"  %is_high = fcmp ogt {kind} %size, {f(4.2)}",
        f"  %t = select {mask} %is_high, {kind} {f(4.2)}, {kind} %size",
        *_horner(kind, "%t", _ERF_FAR, lanes, "f"),
        f"  %exponent = {fma}({kind} %t, {kind} %f{len(_ERF_FAR) - 1}, {kind} %t)",
        f"  %negated = fneg {kind} %exponent",
        f"  %rest = call {kind} @exp.{suffix}({kind} %negated)",
        f"  %far = fsub {kind} {f(1.0)}, %rest",
        *_odd_function_end(lanes, 0.95),
    ]
    return "\n".join(lines) + "\n"


def _sine_text(name: str, lanes: int) -> str:
    """Return sin or cos: less whole half turns (Cody and Waite, 1980), then a polynomial.

    A vector with a large, infinite or NaN element is left to the library.
    """
    kind, suffix, mask = wide("float", lanes), type_suffix("float", lanes), wide("i1", lanes)
    f, i, whole = functools.partial(_float, lanes), functools.partial(_word, lanes), wide("i32", lanes)
    fma, is_cosine = f"call {kind} @llvm.fma.{suffix}", name == "cos"
    any_lane = f"call i1 @llvm.vector.reduce.or.v{lanes}i1({mask} %is_large)" if lanes > 1 else "or i1 %is_large, false"
    turns = ["  %n = fsub {kind} %moved, {magic}"]
    if is_cosine:  # cos(x) is sin(x + half a turn): subtract odd multiples of a quarter
        turns = ["  %n.whole = fsub {kind} %moved, {magic}", "  %n = fsub {kind} %n.whole, {half}"]
    shift = f(0.5) if is_cosine else f(0.0)
    lines = [
        f"define internal {kind} @{name}.{suffix}({kind} %x) alwaysinline #0 {{",
        f"  %size = call {kind} @llvm.fabs.{suffix}({kind} %x)",
        f"  %is_large = fcmp ugt {kind} %size, {f(8192.0)}",
        f"  %any = {any_lane}",
        "  br i1 %any, label %exact, label %near",
        "exact:",
        f"  %found = call {kind} @exact.{name}.{suffix}({kind} %x)",
        f"  ret {kind} %found",
        "near:",
        f"  %shifted = {fma}({kind} %x, {kind} {f(0.3183098861837907)}, {kind} {shift})",
        f"  %moved = fadd {kind} %shifted, {f(12582912.0)}",
        *(t.format(kind=kind, magic=f(12582912.0), half=f(0.5)) for t in turns),
        f"  %r1 = {fma}({kind} %n, {kind} {f(-_PI_PARTS[0])}, {kind} %x)",
        f"  %r2 = {fma}({kind} %n, {kind} {f(-_PI_PARTS[1])}, {kind} %r1)",
        f"  %rest = {fma}({kind} %n, {kind} {f(-_PI_PARTS[2])}, {kind} %r2)",
        f"  %square = fmul {kind} %rest, %rest",
        *_horner(kind, "%square", _SINE, lanes, "p"),
        f"  %cube = fmul {kind} %square, %rest",
        f"  %made = {fma}({kind} %cube, {kind} %p{len(_SINE) - 1}, {kind} %rest)",
        f"  %bits = bitcast {kind} %moved to {whole}",
        f"  %sign = shl {whole} %bits, {i(31)}",
        f"  %made.bits = bitcast {kind} %made to {whole}",
        f"  %signed = xor {whole} %made.bits, %sign",
        f"  %result = bitcast {whole} %signed to {kind}",
        f"  ret {kind} %result",
        "}",
        f"declare {kind} @llvm.fabs.{suffix}({kind})",
        f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})",
    ]
    if lanes > 1:
        lines.append(f"declare i1 @llvm.vector.reduce.or.v{lanes}i1({mask})")
    return "\n".join(lines) + "\n"


_ERF_NEAR = (-5.886773579e-4, 4.973116796e-3, -2.675333433e-2, 1.128146648e-1, -3.761246204e-1, 1.283791512e-1)
"""erf(x) / x - 1 below 0.95 as a polynomial of x ** 2; its error is below 3e-8."""
_ERF_FAR = (
    1.233951025e-05,
    -3.339608666e-04,
    3.688110737e-03,
    -2.385927737e-02,
    1.063505709e-01,
    6.350820065e-01,
    1.286657006e-01,
)
"""-log(1 - erf(x)) / x - 1 from 0.95 to 4.2 as a polynomial of x."""
_SINE = (2.607502665e-06, -1.981051755e-04, 8.333080448e-03, -1.666665971e-01)
"""(sin(x) / x - 1) / x ** 2 within a quarter turn as a polynomial of x ** 2."""
_PI_PARTS = (3.140625, 0.0009676535846665502, 5.126688303189038e-12)
"""Parts of pi of which the first has few bits, so that its products are exact."""
_INLINE_TEXTS: dict[str, Callable[[int], str]] = {
    "exp": _exp_text,
    "tanh": _tanh_text,
    "erf": _erf_text,
    "sin": functools.partial(_sine_text, "sin"),
    "cos": functools.partial(_sine_text, "cos"),
}
