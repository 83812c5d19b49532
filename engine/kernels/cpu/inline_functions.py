"""Elementary functions of float32 as polynomials in LLVM IR."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from engine.kernels.cpu.llvm_types import float_constant, type_suffix, wide, word_constant


def horner(kind: str, variable: str, coefficients: tuple[float, ...], lanes: int, prefix: str) -> list[str]:
    """Return the lines of a polynomial by Horner's rule, highest power first."""
    fma, lines = f"@llvm.fma.{type_suffix('float', lanes)}", []
    last = float_constant(lanes, coefficients[0])
    for n, c in enumerate(coefficients[1:], 1):
        lines.append(
            f"  %{prefix}{n} = call {kind} {fma}({kind} {last}, {kind} {variable}, {kind} {float_constant(lanes, c)})"
        )
        last = f"%{prefix}{n}"
    return lines


def _exp_text(lanes: int) -> str:
    """Return exp as 2 ** n * exp(rest), by a polynomial of degree 6 (Cephes).

    A product that underflows takes a hundred times as long as another, so results of 0 are selected.
    """
    kind, whole, suffix = wide("float", lanes), wide("i32", lanes), type_suffix("float", lanes)
    f = functools.partial(float_constant, lanes)
    i = functools.partial(word_constant, lanes)
    fma, mask = f"call {kind} @llvm.fma.{suffix}", wide("i1", lanes)
    polynomial = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5, 1.0, 1.0)
    lines = [
        f"define internal {kind} @exp.{suffix}({kind} %argument) alwaysinline {{",
        f"  %is_high = fcmp ogt {kind} %argument, {f(89.0)}",
        f"  %below = select {mask} %is_high, {kind} {f(89.0)}, {kind} %argument",
        f"  %is_low = fcmp olt {kind} %below, {f(-104.0)}",
        f"  %x = select {mask} %is_low, {kind} {f(0.0)}, {kind} %below",
        f"  %moved = {fma}({kind} %x, {kind} {f(1.4426950408889634)}, {kind} {f(12582912.0)})",
        f"  %n = fsub {kind} %moved, {f(12582912.0)}",
        f"  %high = {fma}({kind} %n, {kind} {f(-0.693145751953125)}, {kind} %x)",
        f"  %rest = {fma}({kind} %n, {kind} {f(-1.428606765330187e-06)}, {kind} %high)",
        *horner(kind, "%rest", polynomial, lanes, "p"),
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
        f"  %scaled = fmul {kind} %half, %second.scale",
        f"  %result = select {mask} %is_low, {kind} {f(0.0)}, {kind} %scaled",
        f"  ret {kind} %result",
        "}",
        f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})",
    ]
    return "\n".join(lines) + "\n"


def _select_and_sign(lanes: int, limit: float) -> list[str]:
    """Return the end of a function with the sign of x: ``%near`` below a limit, else ``%far``.

    NaN is near. The sign matters for -0.0 too.
    """
    kind, suffix, mask = wide("float", lanes), type_suffix("float", lanes), wide("i1", lanes)
    return [
        f"  %is_near = fcmp ult {kind} %size, {float_constant(lanes, limit)}",
        f"  %selected = select {mask} %is_near, {kind} %near, {kind} %far",
        f"  %signed = call {kind} @llvm.copysign.{suffix}({kind} %selected, {kind} %x)",
        f"  ret {kind} %signed",
        "}",
        f"declare {kind} @llvm.fabs.{suffix}({kind})",
        f"declare {kind} @llvm.copysign.{suffix}({kind}, {kind})",
    ]


def _tanh_text(lanes: int) -> str:
    """Return tanh: a polynomial near zero (Cephes), and by exp elsewhere."""
    kind, suffix = wide("float", lanes), type_suffix("float", lanes)
    f = functools.partial(float_constant, lanes)
    near = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
    lines = [
        f"define internal {kind} @tanh.{suffix}({kind} %x) alwaysinline {{",
        f"  %size = call {kind} @llvm.fabs.{suffix}({kind} %x)",
        f"  %square = fmul {kind} %x, %x",
        *horner(kind, "%square", near, lanes, "p"),
        f"  %cube = fmul {kind} %square, %x",
        f"  %near = call {kind} @llvm.fma.{suffix}({kind} %cube, {kind} %p{len(near) - 1}, {kind} %x)",
        f"  %twice = fadd {kind} %size, %size",
        f"  %grown = call {kind} @exp.{suffix}({kind} %twice)",
        f"  %above = fadd {kind} %grown, {f(1.0)}",
        f"  %share = fdiv {kind} {f(2.0)}, %above",
        f"  %far = fsub {kind} {f(1.0)}, %share",
        *_select_and_sign(lanes, 0.625),
    ]
    return "\n".join(lines) + "\n"


def _erf_text(lanes: int) -> str:
    """Return erf: a polynomial near zero; elsewhere 1 - exp(-x - x * polynomial).

    The exponent is between 0 and -19, so that its power of 2 is added to the bits of the rest.
    """
    kind, suffix, mask, whole = wide("float", lanes), type_suffix("float", lanes), wide("i1", lanes), wide("i32", lanes)
    f = functools.partial(float_constant, lanes)
    fma = f"call {kind} @llvm.fma.{suffix}"
    lines = [
        f"define internal {kind} @erf.{suffix}({kind} %x) alwaysinline {{",
        f"  %size = call {kind} @llvm.fabs.{suffix}({kind} %x)",
        f"  %square = fmul {kind} %x, %x",
        *horner(kind, "%square", _ERF_NEAR, lanes, "n"),
        f"  %near = {fma}({kind} %x, {kind} %n{len(_ERF_NEAR) - 1}, {kind} %x)",
        f"  %is_high = fcmp ogt {kind} %size, {f(4.2)}",
        f"  %t = select {mask} %is_high, {kind} {f(4.2)}, {kind} %size",
        *horner(kind, "%t", _ERF_FAR, lanes, "f"),
        f"  %exponent = {fma}({kind} %t, {kind} %f{len(_ERF_FAR) - 1}, {kind} %t)",
        f"  %moved = {fma}({kind} %exponent, {kind} {f(-1 / math.log(2))}, {kind} {f(12582912.0)})",
        f"  %n = fsub {kind} %moved, {f(12582912.0)}",
        f"  %negated = fneg {kind} %exponent",
        f"  %part = {fma}({kind} %n, {kind} {f(-math.log(2))}, {kind} %negated)",
        *horner(kind, "%part", _EXP_NEAR, lanes, "e"),
        f"  %bits = bitcast {kind} %moved to {whole}",
        f"  %power = shl {whole} %bits, {word_constant(lanes, 23)}",
        f"  %part.bits = bitcast {kind} %e{len(_EXP_NEAR) - 1} to {whole}",
        f"  %rest.bits = add {whole} %part.bits, %power",
        f"  %rest = bitcast {whole} %rest.bits to {kind}",
        f"  %far = fsub {kind} {f(1.0)}, %rest",
        *_select_and_sign(lanes, 0.95),
    ]
    return "\n".join(lines) + "\n"


def _expm1_text(lanes: int) -> str:
    """Return exp(x) - 1: a polynomial near zero, and by exp elsewhere."""
    kind, suffix = wide("float", lanes), type_suffix("float", lanes)
    lines = [
        f"define internal {kind} @expm1.{suffix}({kind} %x) alwaysinline {{",
        f"  %size = call {kind} @llvm.fabs.{suffix}({kind} %x)",
        f"  %square = fmul {kind} %x, %x",
        *horner(kind, "%x", _EXPM1_NEAR, lanes, "p"),
        f"  %near = call {kind} @llvm.fma.{suffix}({kind} %square, {kind} %p{len(_EXPM1_NEAR) - 1}, {kind} %x)",
        f"  %grown = call {kind} @exp.{suffix}({kind} %x)",
        f"  %far = fsub {kind} %grown, {float_constant(lanes, 1.0)}",
        *_select_and_sign(lanes, 0.5),
    ]
    return "\n".join(lines) + "\n"


def _log_text(name: str, lanes: int) -> str:
    """Return a logarithm: n * log(2) + log(1 + rest), with rest between -0.3 and 0.42."""
    kind, suffix, mask, whole = wide("float", lanes), type_suffix("float", lanes), wide("i1", lanes), wide("i32", lanes)
    f, i = functools.partial(float_constant, lanes), functools.partial(word_constant, lanes)
    fma = f"call {kind} @llvm.fma.{suffix}"
    argument, scaled, start, rest = _log1p_arguments(lanes) if name == "log1p" else _log_arguments(lanes)
    copysign, signed = f"{kind} @llvm.copysign.{suffix}", [f"  ret {kind} %result"]
    if name == "log1p":  # -0.0 stays so
        signed = [f"  %signed = call {copysign}({kind} %result, {kind} %x)", f"  ret {kind} %signed"]
    low, usual = -2.12194440e-4, [f"  %usual = {fma}({kind} %n, {kind} {f(0.693359375)}, {kind} %sum)"]
    if name == "log2":
        low, usual = 0.0, log2_of_sum(lanes, "usual")
    lines = [
        f"define internal {kind} @{name}.{suffix}({kind} %x) alwaysinline {{",
        *start,
        f"  %bits = bitcast {kind} {scaled} to {whole}",
        f"  %over = sub {whole} %bits, {i(_ROOT_HALF_BITS)}",
        f"  %power = ashr {whole} %over, {i(23)}",
        f"  %shift = shl {whole} %power, {i(23)}",
        f"  %m.bits = sub {whole} %bits, %shift",
        f"  %m = bitcast {whole} %m.bits to {kind}",
        f"  %power.float = sitofp {whole} %power to {kind}",
        f"  %head = fsub {kind} %m, {f(1.0)}",
        *rest,
        *horner(kind, "%rest", _LOG_NEAR, lanes, "p"),
        f"  %square = fmul {kind} %rest, %rest",
        f"  %cube = fmul {kind} %square, %rest",
        f"  %low = fmul {kind} %n, {f(low)}",
        f"  %third = {fma}({kind} %cube, {kind} %p{len(_LOG_NEAR) - 1}, {kind} %low)",
        f"  %tail = {fma}({kind} %square, {kind} {f(-0.5)}, {kind} %third)",
        f"  %sum = fadd {kind} %rest, %tail",
        *usual,
        f"  %is_zero = fcmp oeq {kind} {argument}, {f(0.0)}",
        f"  %is_below = fcmp olt {kind} {argument}, {f(0.0)}",
        f"  %odd = select {mask} %is_below, {kind} {f(math.nan)}, {kind} {argument}",
        f"  %limit = select {mask} %is_zero, {kind} {f(-math.inf)}, {kind} %odd",
        f"  %is_positive = fcmp ogt {kind} {argument}, {f(0.0)}",
        f"  %is_finite = fcmp olt {kind} {argument}, {f(math.inf)}",
        f"  %is_usual = and {mask} %is_positive, %is_finite",
        f"  %result = select {mask} %is_usual, {kind} %usual, {kind} %limit",
        *signed,
        "}",
        f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})",
    ]
    if name == "log1p":
        lines.append(f"declare {whole} @llvm.smin.{type_suffix('i32', lanes)}({whole}, {whole})")
        lines.append(f"declare {copysign}({kind}, {kind})")
    return "\n".join(lines) + "\n"


def log2_of_sum(lanes: int, result: str) -> list[str]:
    """Return the lines that divide ``%sum`` by log(2) and add it to ``%n``.

    It is the sum of ``%rest`` and the smaller ``%tail``. The largest part is exact, since 1 / log(2) is 1 and a rest: the sum may be close to -n.
    """
    kind = wide("float", lanes)
    product = f"{kind} %sum, {kind} {float_constant(lanes, 1 / math.log(2) - 1)}, {kind} %tail"
    return [
        f"  %behind = call {kind} @llvm.fma.{type_suffix('float', lanes)}({product})",
        f"  %front = fadd {kind} %n, %rest",
        f"  %{result} = fadd {kind} %front, %behind",
    ]


def _log_arguments(lanes: int) -> tuple[str, str, list[str], list[str]]:
    """Return the argument, its scaled value, and the lines before and after the split.

    Subnormal numbers are scaled, since their exponent has no bits.
    """
    kind, mask, f = wide("float", lanes), wide("i1", lanes), functools.partial(float_constant, lanes)
    start = [
        f"  %is_small = fcmp olt {kind} %x, {f(2.0**-126)}",
        f"  %grown = fmul {kind} %x, {f(2.0**23)}",
        f"  %scaled = select {mask} %is_small, {kind} %grown, {kind} %x",
    ]
    rest = [
        f"  %rest = fadd {kind} %head, {f(-0.0)}",
        f"  %less = select {mask} %is_small, {kind} {f(23.0)}, {kind} {f(0.0)}",
        f"  %n = fsub {kind} %power.float, %less",
    ]
    return "%x", "%scaled", start, rest


def _log1p_arguments(lanes: int) -> tuple[str, str, list[str], list[str]]:
    """Return the argument, its scaled value, and the lines before and after the split.

    What 1 + x lost by rounding is scaled like the rest and added to it.
    """
    kind, whole = wide("float", lanes), wide("i32", lanes)
    f, i = functools.partial(float_constant, lanes), functools.partial(word_constant, lanes)
    rest = [
        f"  %few = call {whole} @llvm.smin.{type_suffix('i32', lanes)}({whole} %power, {whole} {i(64)})",
        f"  %scale.power = sub {whole} {i(127)}, %few",
        f"  %scale.bits = shl {whole} %scale.power, {i(23)}",
        f"  %scale = bitcast {whole} %scale.bits to {kind}",
        f"  %rest = call {kind} @llvm.fma.{type_suffix('float', lanes)}({kind} %lost, {kind} %scale, {kind} %head)",
        f"  %n = fadd {kind} %power.float, {f(-0.0)}",
    ]
    argument, start = log1p_argument(lanes)
    return argument, argument, start, rest


def log1p_argument(lanes: int) -> tuple[str, list[str]]:
    """Return 1 + x, and the lines that compute it and what rounding lost: ``%lost``."""
    kind, mask, f = wide("float", lanes), wide("i1", lanes), functools.partial(float_constant, lanes)
    start = [
        f"  %u = fadd {kind} %x, {f(1.0)}",
        f"  %one = fsub {kind} %u, %x",
        f"  %lost.large = fsub {kind} {f(1.0)}, %one",
        f"  %part = fsub {kind} %u, {f(1.0)}",
        f"  %lost.small = fsub {kind} %x, %part",
        f"  %is_large = fcmp ogt {kind} %x, {f(1.0)}",
        f"  %lost = select {mask} %is_large, {kind} %lost.large, {kind} %lost.small",
    ]
    return "%u", start


def _sine_text(name: str, lanes: int) -> str:
    """Return sin or cos: less whole half turns (Cody and Waite, 1980), then a polynomial.

    A vector with a large, infinite or NaN element is left to the library.
    """
    kind, suffix, mask = wide("float", lanes), type_suffix("float", lanes), wide("i1", lanes)
    f, i, whole = functools.partial(float_constant, lanes), functools.partial(word_constant, lanes), wide("i32", lanes)
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
        f"  %from_library = call {kind} @exact.{name}.{suffix}({kind} %x)",
        f"  ret {kind} %from_library",
        "near:",
        f"  %shifted = {fma}({kind} %x, {kind} {f(0.3183098861837907)}, {kind} {shift})",
        f"  %moved = fadd {kind} %shifted, {f(12582912.0)}",
        *(t.format(kind=kind, magic=f(12582912.0), half=f(0.5)) for t in turns),
        f"  %r1 = {fma}({kind} %n, {kind} {f(-_PI_PARTS[0])}, {kind} %x)",
        f"  %r2 = {fma}({kind} %n, {kind} {f(-_PI_PARTS[1])}, {kind} %r1)",
        f"  %rest = {fma}({kind} %n, {kind} {f(-_PI_PARTS[2])}, {kind} %r2)",
        f"  %square = fmul {kind} %rest, %rest",
        *horner(kind, "%square", _SINE, lanes, "p"),
        f"  %cube = fmul {kind} %square, %rest",
        f"  %sine = {fma}({kind} %cube, {kind} %p{len(_SINE) - 1}, {kind} %rest)",
        f"  %is_zero = fcmp oeq {kind} %rest, {f(0.0)}",
        f"  %unsigned = select {mask} %is_zero, {kind} %rest, {kind} %sine",
        f"  %bits = bitcast {kind} %moved to {whole}",
        f"  %sign = shl {whole} %bits, {i(31)}",
        f"  %unsigned.bits = bitcast {kind} %unsigned to {whole}",
        f"  %signed = xor {whole} %unsigned.bits, %sign",
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
_EXP_NEAR = (8.296940233e-03, 4.192029300e-02, 1.666761120e-01, 4.999885095e-01, 9.999996733e-01, 1.000000076)
"""exp(x) within log(2) / 2 as a polynomial."""
_EXPM1_NEAR = (
    2.479081782e-05,
    1.997358425e-04,
    1.388930523e-03,
    8.333142257e-03,
    4.166666026e-02,
    1.666666745e-01,
    0.5,
)
"""(exp(x) - 1 - x) / x ** 2 within 0.5 as a polynomial."""
_LOG_NEAR = (
    6.746552725e-02,
    -1.167562849e-01,
    1.188819003e-01,
    -1.240559448e-01,
    1.421954908e-01,
    -1.666799544e-01,
    2.000211882e-01,
    -2.500000961e-01,
    3.333331260e-01,
)
"""(log(1 + x) - x + x ** 2 / 2) / x ** 3 for 1 + x between the roots of 1/2 and 2."""
_ROOT_HALF_BITS = 0x3F3504F3
_SINE = (2.607502665e-06, -1.981051755e-04, 8.333080448e-03, -1.666665971e-01)
"""(sin(x) / x - 1) / x ** 2 within a quarter turn as a polynomial of x ** 2."""
_PI_PARTS = (3.140625, 0.0009676535846665502, 5.126688303189038e-12)
"""Parts of pi of which the first has few bits, so that its products are exact."""
INLINE_TEXTS: dict[str, Callable[[int], str]] = {
    "exp": _exp_text,
    "expm1": _expm1_text,
    "tanh": _tanh_text,
    "erf": _erf_text,
    **{name: functools.partial(_log_text, name) for name in ("log", "log2", "log1p")},
    "sin": functools.partial(_sine_text, "sin"),
    "cos": functools.partial(_sine_text, "cos"),
}
"""Text of each function with a polynomial of our own, by the number of lanes."""
CALLERS_OF_EXP = ("tanh", "expm1")
