"""Triton text of each loop-IR op.

It uses only functions that every target and Triton's interpreter have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from engine.kernels.triton.jit_helpers import JIT_HELPERS, LIBDEVICE_HELPERS

_DTYPE_TEXTS = {
    torch.float16: ("tl.float16", "fp16"),
    torch.bfloat16: ("tl.bfloat16", "bf16"),
    torch.float32: ("tl.float32", "fp32"),
    torch.float64: ("tl.float64", "fp64"),
    torch.int8: ("tl.int8", "i8"),
    torch.int16: ("tl.int16", "i16"),
    torch.int32: ("tl.int32", "i32"),
    torch.int64: ("tl.int64", "i64"),
    torch.uint8: ("tl.uint8", "u8"),
    torch.bool: ("tl.int1", "i1"),
}
"""Names of a dtype in Triton's language, and in signatures of kernels."""
TRITON_DTYPES = {dtype: name for dtype, (name, _) in _DTYPE_TEXTS.items()}
SIGNATURE_DTYPES = {dtype: name for dtype, (_, name) in _DTYPE_TEXTS.items()}


INFIX_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "truncdiv": "//",
    "rem": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}


_LIBDEVICE_FUNCTIONS = (
    "tanh expm1 log1p trunc pow atan2 fmod sinh cosh tan asin acos atan asinh acosh atanh erfc erfinv "
    "lgamma hypot copysign nextafter j0 j1 y0 y1 erfcx"
).split()
TRITON_FUNCTIONS = {
    **{n: f"tl.{n}" for n in "exp exp2 log log2 sin cos erf rsqrt sigmoid abs floor ceil where rand randint".split()},
    **{n: f"libdevice.{n}" for n in _LIBDEVICE_FUNCTIONS},
    "round": "libdevice.nearbyint",
    "i0": "libdevice.cyl_bessel_i0",
    "i1": "libdevice.cyl_bessel_i1",
}


NAN_PROPAGATING = ("maximum", "minimum")


def constant_text(value: bool | float, dtype: torch.dtype, *, typed: bool = False) -> str:
    """Format a constant; ``typed``: with its dtype, where Triton cannot infer it."""
    is_finite = math.isfinite(value)
    if not value and math.copysign(1.0, value) < 0:  # Triton makes every zero a positive one
        return f"(tl.full((), 0.0, {TRITON_DTYPES[dtype]}) * -1.0)"
    text = repr(value) if is_finite else f'float("{value}")'
    is_exact = not is_finite or float(torch.tensor(value, dtype=torch.float32, device="cpu")) == value
    if typed or (dtype == torch.float64 and not is_exact):
        return f"tl.full((), {text}, {TRITON_DTYPES[dtype]})"
    return text


def operation_text(name: str, args: Sequence[str], operand: torch.dtype) -> str:
    """Format one op over its operands' texts.

    Infix texts have no parentheses, so operands must be parenthesized where needed.
    """
    if name in INFIX_OPERATORS:
        return f"{args[0]} {INFIX_OPERATORS[name]} {args[1]}"
    if name in JIT_HELPERS:
        return f"{name}({', '.join(args)})"
    if name == "neg":  # Triton subtracts from zero, which would lose the sign of a zero.
        return f"{args[0]} * -1.0" if operand.is_floating_point else f"-{args[0]}"
    if name == "not":  # Triton's interpreter cannot complement unsigned integers.
        return f"{args[0]} ^ 255" if operand == torch.uint8 else f"~{args[0]}"
    if name == "sqrt":
        return f"{'tl.sqrt_rn' if operand == torch.float32 else 'tl.sqrt'}({args[0]})"
    if name in NAN_PROPAGATING:
        keeping = ", propagate_nan=tl.PropagateNan.ALL" if operand.is_floating_point else ""
        return f"tl.{name}({args[0]}, {args[1]}{keeping})"
    return f"{TRITON_FUNCTIONS[name]}({', '.join(args)})"


def needs_parentheses(name: str) -> bool:
    """Return True if an op's text needs parentheses inside a larger expression."""
    return name in INFIX_OPERATORS or name in ("neg", "not")


def needs_libdevice(name: str) -> bool:
    """Return True if an op calls libdevice, the target's math library."""
    return name in LIBDEVICE_HELPERS or TRITON_FUNCTIONS.get(name, "").startswith("libdevice.")
