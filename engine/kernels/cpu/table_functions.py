"""Elementary functions of float32 with AVX-512, which looks up coefficients by lane.

A permutation of one or two registers is a table of 16 or 32 entries. So a function needs one short polynomial for each
interval of its argument, instead of one long polynomial on each side of a limit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from engine.kernels.cpu.llvm_types import literal, splat

LANES = 16
_KIND, _WHOLE, _MASK = "<16 x float>", "<16 x i32>", "<16 x i1>"
_MAGIC = 12582912.0
"""Added to a small number, it leaves the nearest integer in the low bits."""
_FMA = f"call {_KIND} @llvm.fma.v16f32"
_DEGREE = 5


def _float(value: float) -> str:
    return splat("float", literal(value, torch.float32), LANES)


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


def _odd_function_text(name: str, function: Callable[[float], float], width: float, count: int) -> str:
    """Return an odd function that is 1 from ``(count - 1) * width`` on."""
    width = torch.tensor(width).item()
    table = _coefficients(function, width, count)
    limit = _float((count - 1) * width)
    lines = [
        f"define internal {_KIND} @{name}.v16f32({_KIND} %x) alwaysinline {{",
        f"  %size = call {_KIND} @llvm.fabs.v16f32({_KIND} %x)",
        f"  %is_high = fcmp ogt {_KIND} %size, {limit}",
        f"  %t = select {_MASK} %is_high, {_KIND} {limit}, {_KIND} %size",
        f"  %moved = {_FMA}({_KIND} %t, {_KIND} {_float(1 / width)}, {_KIND} {_float(_MAGIC)})",
        f"  %n = fsub {_KIND} %moved, {_float(_MAGIC)}",
        f"  %rest = {_FMA}({_KIND} %n, {_KIND} {_float(-width)}, {_KIND} %t)",
        f"  %interval = bitcast {_KIND} %moved to {_WHOLE}",
    ]
    last = ""
    for power in reversed(range(_DEGREE + 1)):
        lines.append(f"  %c{power} = {_lookup([row[power] for row in table])}")
        if last:
            lines.append(f"  %p{power} = {_FMA}({_KIND} {last}, {_KIND} %rest, {_KIND} %c{power})")
        last = f"%p{power}" if last else f"%c{power}"
    lines += [
        f"  %signed = call {_KIND} @llvm.copysign.v16f32({_KIND} {last}, {_KIND} %x)",
        f"  ret {_KIND} %signed",
        "}",
        f"declare {_KIND} @llvm.fabs.v16f32({_KIND})",
        f"declare {_KIND} @llvm.fma.v16f32({_KIND}, {_KIND}, {_KIND})",
        f"declare {_KIND} @llvm.copysign.v16f32({_KIND}, {_KIND})",
        f"declare {_KIND} @llvm.x86.avx512.permvar.sf.512({_KIND}, {_WHOLE})",
        f"declare {_KIND} @llvm.x86.avx512.vpermi2var.ps.512({_KIND}, {_WHOLE}, {_KIND})",
    ]
    return "\n".join(lines) + "\n"


def _lookup(entries: list[float]) -> str:
    """Return the call that reads one of 16 or 32 entries for each lane."""
    halves = [entries[start : start + LANES] for start in range(0, len(entries), LANES)]
    first, *second = [f"<{', '.join(f'float {literal(e, torch.float32)}' for e in half)}>" for half in halves]
    if not second:
        return f"call {_KIND} @llvm.x86.avx512.permvar.sf.512({_KIND} {first}, {_WHOLE} %interval)"
    return f"call {_KIND} @llvm.x86.avx512.vpermi2var.ps.512({_KIND} {first}, {_WHOLE} %interval, {_KIND} {second[0]})"


_EXP = (1.38293020e-3, 8.37485399e-3, 4.16683666e-2, 1.66664198e-1, 4.99999911e-1, 1.0, 1.0)
"""exp(x) within log(2) / 2 as a polynomial; its error is below 2e-8."""


def _exp_text() -> str:
    """Return exp as exp(rest) times 2 ** n.

    One instruction multiplies by the power, and rounds a subnormal result.
    """
    scale = "@llvm.x86.avx512.mask.scalef.ps.512"
    lines = [
        f"define internal {_KIND} @exp.v16f32({_KIND} %given) alwaysinline {{",
        f"  %is_high = fcmp ogt {_KIND} %given, {_float(89.0)}",
        f"  %below = select {_MASK} %is_high, {_KIND} {_float(89.0)}, {_KIND} %given",
        f"  %is_low = fcmp olt {_KIND} %below, {_float(-104.0)}",
        f"  %x = select {_MASK} %is_low, {_KIND} {_float(-104.0)}, {_KIND} %below",
        f"  %moved = {_FMA}({_KIND} %x, {_KIND} {_float(1.4426950408889634)}, {_KIND} {_float(_MAGIC)})",
        f"  %n = fsub {_KIND} %moved, {_float(_MAGIC)}",
        f"  %high = {_FMA}({_KIND} %n, {_KIND} {_float(-0.693145751953125)}, {_KIND} %x)",
        f"  %rest = {_FMA}({_KIND} %n, {_KIND} {_float(-1.428606765330187e-06)}, {_KIND} %high)",
    ]
    last = _float(_EXP[0])
    for number, coefficient in enumerate(_EXP[1:]):
        lines.append(f"  %p{number} = {_FMA}({_KIND} {last}, {_KIND} %rest, {_KIND} {_float(coefficient)})")
        last = f"%p{number}"
    lines += [
        f"  %made = call {_KIND} {scale}({_KIND} {last}, {_KIND} %n, {_KIND} zeroinitializer, i16 -1, i32 4)",
        f"  ret {_KIND} %made",
        "}",
        f"declare {_KIND} @llvm.fma.v16f32({_KIND}, {_KIND}, {_KIND})",
        f"declare {_KIND} {scale}({_KIND}, {_KIND}, {_KIND}, i16, i32 immarg)",
    ]
    return "\n".join(lines) + "\n"


TABLE_TEXTS: dict[str, Callable[[], str]] = {
    "exp": _exp_text,
    "erf": functools.partial(_odd_function_text, "erf", math.erf, 0.2625, 16),
    "tanh": functools.partial(_odd_function_text, "tanh", math.tanh, 0.2935, 32),
}
"""Text of each function for vectors of 16 elements with AVX-512."""
