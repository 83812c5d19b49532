"""Functions of float32 by instructions of AVX-512 or AVX2, such as a table lookup.

A permutation of one or two registers is a table: of 16 or 32 entries with AVX-512, of 8 or 16 with AVX2. So a function
needs one short polynomial for each interval of its argument, instead of one long polynomial on each side of a limit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from engine.kernels.cpu.inline_functions import horner, log1p_argument, log2_of_sum
from engine.kernels.cpu.llvm_types import float_constant, literal, type_suffix, wide

LANES = 16
_KIND, _WHOLE, _MASK = "<16 x float>", "<16 x i32>", "<16 x i1>"
_MAGIC = 12582912.0
"""Added to a small number, it leaves the nearest integer in the low bits."""
_FMA = f"call {_KIND} @llvm.fma.v16f32"
_DEGREE = 5
_float = functools.partial(float_constant, LANES)


@functools.cache
def _coefficients(function: Callable[[float], float], width: float, count: int) -> list[list[float]]:
    """Return polynomials of the distance from the multiples of ``width``, lowest power first.

    Each has the values of an odd function at the Chebyshev nodes of its interval. The first is the distance times an
    even polynomial, so that it is as exact near 0 as elsewhere.
    """
    size = _DEGREE + 1
    nodes = torch.tensor(
        [math.cos((2 * k + 1) * math.pi / (2 * size)) * width / 2 for k in range(size)], dtype=torch.float64
    )
    values = [[function(d) / d, *(function(n * width + d) for n in range(1, count))] for d in nodes.tolist()]
    powers = nodes[:, None] ** torch.arange(size)
    even, *others = torch.linalg.solve(powers, torch.tensor(values, dtype=torch.float64)).T.tolist()
    return [[0.0, *even[:-1]], *others]


def _odd_function_text(name: str, function: Callable[[float], float], width: float, count: int, lanes: int) -> str:
    """Return an odd function that is 1 from ``(count - 1) * width`` on."""
    kind, whole, suffix = wide("float", lanes), wide("i32", lanes), type_suffix("float", lanes)
    fma, mask = f"call {kind} @llvm.fma.{suffix}", wide("i1", lanes)
    width = torch.tensor(width).item()
    table = _coefficients(function, width, count)
    limit = _float((count - 1) * width)
    lines = [
        f"define internal {kind} @{name}.{suffix}({kind} %x) alwaysinline {{",
        f"  %size = call {kind} @llvm.fabs.{suffix}({kind} %x)",
        f"  %is_high = fcmp ogt {kind} %size, {limit}",
        f"  %t = select {mask} %is_high, {kind} {limit}, {kind} %size",
        f"  %moved = {fma}({kind} %t, {kind} {_float(1 / width)}, {kind} {_float(_MAGIC)})",
        f"  %n = fsub {kind} %moved, {_float(_MAGIC)}",
        f"  %rest = {fma}({kind} %n, {kind} {_float(-width)}, {kind} %t)",
        f"  %interval = bitcast {kind} %moved to {whole}",
    ]
    if lanes < LANES:
        lines.append(f"  %is_upper = fcmp oge {kind} %n, {_float(lanes)}")
    last = ""
    for power in reversed(range(_DEGREE + 1)):
        lines += _lookup(f"c{power}", [row[power] for row in table], lanes)
        if last:
            lines.append(f"  %p{power} = {fma}({kind} {last}, {kind} %rest, {kind} %c{power})")
        last = f"%p{power}" if last else f"%c{power}"
    lines += [
        f"  %signed = call {kind} @llvm.copysign.{suffix}({kind} {last}, {kind} %x)",
        f"  ret {kind} %signed",
        "}",
        f"declare {kind} @llvm.fabs.{suffix}({kind})",
        f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})",
        f"declare {kind} @llvm.copysign.{suffix}({kind}, {kind})",
        "declare <8 x float> @llvm.x86.avx2.permps(<8 x float>, <8 x i32>)",
        f"declare {_KIND} @llvm.x86.avx512.permvar.sf.512({_KIND}, {_WHOLE})",
        f"declare {_KIND} @llvm.x86.avx512.vpermi2var.ps.512({_KIND}, {_WHOLE}, {_KIND})",
    ]
    return "\n".join(lines) + "\n"


def _lookup(name: str, entries: list[float], lanes: int) -> list[str]:
    """Return the lines that read one entry for each lane from one or two registers."""
    halves = [entries[start : start + lanes] for start in range(0, len(entries), lanes)]
    first, *second = [f"<{', '.join(f'float {literal(e, torch.float32)}' for e in half)}>" for half in halves]
    if lanes == LANES // 2:
        permute, kind = "call <8 x float> @llvm.x86.avx2.permps(<8 x float>", "<8 x float>"
        return [
            f"  %{name}.low = {permute} {first}, <8 x i32> %interval)",
            f"  %{name}.high = {permute} {second[0]}, <8 x i32> %interval)",
            f"  %{name} = select <8 x i1> %is_upper, {kind} %{name}.high, {kind} %{name}.low",
        ]
    if not second:
        return [f"  %{name} = call {_KIND} @llvm.x86.avx512.permvar.sf.512({_KIND} {first}, {_WHOLE} %interval)"]
    permute = f"call {_KIND} @llvm.x86.avx512.vpermi2var.ps.512"
    return [f"  %{name} = {permute}({_KIND} {first}, {_WHOLE} %interval, {_KIND} {second[0]})"]


_EXP = (1.38293020e-3, 8.37485399e-3, 4.16683666e-2, 1.66664198e-1, 4.99999911e-1, 1.0, 1.0)
"""exp(x) within log(2) / 2 as a polynomial; its error is below 2e-8."""


def _exp_text() -> str:
    """Return exp as exp(rest) times 2 ** n.

    One instruction multiplies by the power, and rounds a subnormal result. It takes a hundred times as long where the
    result underflows, so lanes whose result is 0 are masked.
    """
    scale, words = "@llvm.x86.avx512.mask.scalef.ps.512", f"{_KIND} zeroinitializer, i16 %mask, i32 4"
    lines = [
        f"define internal {_KIND} @exp.v16f32({_KIND} %argument) alwaysinline {{",
        f"  %is_high = fcmp ogt {_KIND} %argument, {_float(89.0)}",
        f"  %below = select {_MASK} %is_high, {_KIND} {_float(89.0)}, {_KIND} %argument",
        f"  %is_usual = fcmp uge {_KIND} %below, {_float(-104.0)}",
        f"  %mask = bitcast {_MASK} %is_usual to i16",
        f"  %x = select {_MASK} %is_usual, {_KIND} %below, {_KIND} {_float(-104.0)}",
        f"  %moved = {_FMA}({_KIND} %x, {_KIND} {_float(1.4426950408889634)}, {_KIND} {_float(_MAGIC)})",
        f"  %n = fsub {_KIND} %moved, {_float(_MAGIC)}",
        f"  %high = {_FMA}({_KIND} %n, {_KIND} {_float(-0.693145751953125)}, {_KIND} %x)",
        f"  %rest = {_FMA}({_KIND} %n, {_KIND} {_float(-1.428606765330187e-06)}, {_KIND} %high)",
    ]
    lines += [
        *horner(_KIND, "%rest", _EXP, LANES, "p"),
        f"  %scaled = call {_KIND} {scale}({_KIND} %p{len(_EXP) - 1}, {_KIND} %n, {words})",
        f"  ret {_KIND} %scaled",
        "}",
        f"declare {_KIND} @llvm.fma.v16f32({_KIND}, {_KIND}, {_KIND})",
        f"declare {_KIND} {scale}({_KIND}, {_KIND}, {_KIND}, i16, i32 immarg)",
    ]
    return "\n".join(lines) + "\n"


_LOG = (
    3.767167241e-02,
    -9.116058579e-02,
    1.170064160e-01,
    -1.272779625e-01,
    1.427624287e-01,
    -1.665529577e-01,
    1.999960468e-01,
    -2.500016528e-01,
    3.333333986e-01,
)
"""(log(1 + x) - x + x ** 2 / 2) / x ** 3 for x between -1/4 and 1/2 as a polynomial."""


def _log_text(name: str) -> str:
    """Return log, log2 or log1p: of a power of 2, and of a number between 3/4 and 3/2.

    Two instructions split a number so, also a subnormal one. Zero, infinity and NaN have such powers as well.
    """
    mantissa, exponent, scale = (f"@llvm.x86.avx512.mask.{word}.ps.512" for word in ("getmant", "getexp", "scalef"))
    rest = [f"  %rest = fsub {_KIND} %m, {_float(1.0)}"]
    last = [f"  %result = {_FMA}({_KIND} %n, {_KIND} {_float(math.log(2))}, {_KIND} %sum)", f"  ret {_KIND} %result"]
    argument, start = "%x", list[str]()
    if name == "log2":
        last = [*log2_of_sum(LANES, "result"), last[1]]
    if name == "log1p":
        argument, start = log1p_argument(LANES)
        rest = [
            f"  %head = fsub {_KIND} %m, {_float(1.0)}",
            f"  %is_finite = fcmp ord {_KIND} %lost, %lost",
            f"  %part.lost = select {_MASK} %is_finite, {_KIND} %lost, {_KIND} zeroinitializer",
            f"  %is_above = fcmp ogt {_KIND} %n, {_float(-64.0)}",
            f"  %many = select {_MASK} %is_above, {_KIND} %n, {_KIND} {_float(-64.0)}",
            f"  %back = fneg {_KIND} %many",
            f"  %more = call {_KIND} {scale}({_KIND} %part.lost, {_KIND} %back, {_KIND} zeroinitializer, i16 -1, i32 4)",
            f"  %rest = fadd {_KIND} %head, %more",
        ]
        signed = f"call {_KIND} @llvm.copysign.v16f32({_KIND} %result, {_KIND} %x)"
        last = [last[0], f"  %signed = {signed}", f"  ret {_KIND} %signed"]
    lines = [
        f"define internal {_KIND} @{name}.v16f32({_KIND} %x) alwaysinline {{",
        *start,
        f"  %m = call {_KIND} {mantissa}({_KIND} {argument}, i32 11, {_KIND} zeroinitializer, i16 -1, i32 4)",
        f"  %power = call {_KIND} {exponent}({_KIND} {argument}, {_KIND} zeroinitializer, i16 -1, i32 4)",
        f"  %power.m = call {_KIND} {exponent}({_KIND} %m, {_KIND} zeroinitializer, i16 -1, i32 4)",
        f"  %n = fsub {_KIND} %power, %power.m",
        *rest,
        *horner(_KIND, "%rest", _LOG, LANES, "p"),
        f"  %square = fmul {_KIND} %rest, %rest",
        f"  %cube = fmul {_KIND} %square, %rest",
        f"  %third = fmul {_KIND} %cube, %p{len(_LOG) - 1}",
        f"  %tail = {_FMA}({_KIND} %square, {_KIND} {_float(-0.5)}, {_KIND} %third)",
        f"  %sum = fadd {_KIND} %rest, %tail",
        *last,
        "}",
        f"declare {_KIND} @llvm.fma.v16f32({_KIND}, {_KIND}, {_KIND})",
        f"declare {_KIND} @llvm.copysign.v16f32({_KIND}, {_KIND})",
        f"declare {_KIND} {mantissa}({_KIND}, i32 immarg, {_KIND}, i16, i32 immarg)",
        f"declare {_KIND} {exponent}({_KIND}, {_KIND}, i16, i32 immarg)",
        f"declare {_KIND} {scale}({_KIND}, {_KIND}, {_KIND}, i16, i32 immarg)",
    ]
    return "\n".join(lines) + "\n"


_erf_text = functools.partial(_odd_function_text, "erf", math.erf, 0.2625, 16)
TABLE_TEXTS: dict[tuple[str, int, int], Callable[[], str]] = {
    ("exp", 16, 512): _exp_text,
    **{(name, 16, 512): functools.partial(_log_text, name) for name in ("log", "log2", "log1p")},
    ("erf", 16, 512): functools.partial(_erf_text, 16),
    ("erf", 8, 256): functools.partial(_erf_text, 8),
    ("tanh", 16, 512): functools.partial(_odd_function_text, "tanh", math.tanh, 0.2935, 32, 16),
}
"""Text of each function, by its name, vector lanes and bits of the vector unit."""
