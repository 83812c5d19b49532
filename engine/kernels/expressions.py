"""How each operation of the loop IR reads in Triton, with only what every target and Triton's interpreter have."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

TYPES = {
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}
SIGNATURE = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "i1",
}

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "truncdiv": "//",
    "rem": "%",
    "fmod": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
FUNCTIONS = {
    "exp": "tl.exp",
    "exp2": "tl.exp2",
    "log": "tl.log",
    "log2": "tl.log2",
    "sin": "tl.sin",
    "cos": "tl.cos",
    "erf": "tl.erf",
    "rsqrt": "tl.rsqrt",
    "sigmoid": "tl.sigmoid",
    "abs": "tl.abs",
    "floor": "tl.floor",
    "ceil": "tl.ceil",
    "where": "tl.where",
    "tanh": "tanh",
    "expm1": "expm1",
    "log1p": "log1p",
    "trunc": "truncate",
    "round": "round_to_even",
}
NAN_KEEPING = ("maximum", "minimum")

HELPERS = {
    "tanh": """
@triton.jit
def tanh(x):
    size = tl.abs(x)
    e = tl.exp(-2.0 * size)
    far = (1.0 - e) / (1.0 + e)
    s = x * x
    near = size * (1.0 + s * (-0.3333333333333333 + s * (0.13333333333333333 + s * (-0.05396825396825397 + s * 0.021869488536155203))))
    value = tl.where(size < 0.25, near, far)
    return tl.where(x < 0.0, -value, value)
""",
    "expm1": """
@triton.jit
def expm1(x):
    u = tl.exp(x)
    corrected = (u - 1.0) * x / tl.log(u)
    value = tl.where(u - 1.0 == -1.0, -1.0, corrected)
    value = tl.where(u == float("inf"), u, value)
    return tl.where(u == 1.0, x, value)
""",
    "log1p": """
@triton.jit
def log1p(x):
    u = 1.0 + x
    value = tl.where(u == float("inf"), u, tl.log(u) * x / (u - 1.0))
    return tl.where(u == 1.0, x, value)
""",
    "truncate": """
@triton.jit
def truncate(x):
    return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))
""",
    "round_to_even": """
@triton.jit
def round_to_even(x):
    low = tl.floor(x)
    rest = x - low
    is_odd = low * 0.5 != tl.floor(low * 0.5)
    return tl.where((rest > 0.5) | ((rest == 0.5) & is_odd), low + 1.0, low)
""",
    "multiply": """
@triton.jit
def multiply(a, b):
    return a * b
""",
}
"""Functions that Triton's portable language lacks, by the name that kernels call them by."""


def constant_text(value: bool | int | float, dtype: torch.dtype, *, typed: bool = False) -> str:
    """A constant; ``typed`` where nothing beside it tells Triton its type."""
    if isinstance(value, float) and not math.isfinite(value):
        text = 'float("nan")' if value != value else f'float("{"-" if value < 0 else ""}inf")'
    else:
        text = repr(value)
    is_exact = (
        not isinstance(value, float)
        or not math.isfinite(value)
        or float(torch.tensor(value, dtype=torch.float32)) == value
    )
    if typed or (dtype == torch.float64 and not is_exact):
        return f"tl.full((), {text}, {TYPES[dtype]})"
    return text


def operation_text(name: str, args: Sequence[str], dtype: torch.dtype, operand: torch.dtype) -> str:
    """One operation over operands' texts; infix texts come in parentheses-free form, so operands must be closed."""
    if name in INFIX:
        return f"{args[0]} {INFIX[name]} {args[1]}"
    if name == "neg":
        return f"-{args[0]}"
    if name == "not":
        return f"~{args[0]}"
    if name == "sqrt":
        return f"{'tl.sqrt_rn' if operand == torch.float32 else 'tl.sqrt'}({args[0]})"
    if name in NAN_KEEPING:
        keeping = ", propagate_nan=tl.PropagateNan.ALL" if operand.is_floating_point else ""
        return f"tl.{name}({args[0]}, {args[1]}{keeping})"
    return f"{FUNCTIONS[name]}({', '.join(args)})"


def is_infix(name: str) -> bool:
    """Whether an operation's text needs parentheses inside a larger one."""
    return name in INFIX or name in ("neg", "not")


def helper_of(name: str) -> str | None:
    """The helper function that an operation calls, if any."""
    called = FUNCTIONS.get(name, "")
    return called if called in HELPERS else None
