"""Handwritten kernels in lowering's form, for tests of targets, workers and the runtime."""

from __future__ import annotations

from engine.ir.kernels.generated_kernel import GeneratedKernel, KernelArg, Size

HEAD = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n\n\n"

SOFTMAX = f"""{HEAD}@triton.jit
def softmax(x, out, cols: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < cols
    value = tl.load(x + row * cols + i, mask, other=float("-inf"))
    shifted = value - tl.max(value, 0)
    power = tl.exp(shifted)
    total = tl.sum(power, 0)
    tl.store(out + row * cols + i, power / total, mask)
"""

LAYERNORM = f"""{HEAD}@triton.jit
def layernorm(x, weight, bias, out, cols: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < cols
    value = tl.load(x + row * cols + i, mask, other=0.0).to(tl.float32)
    mean = tl.sum(value, 0) / cols
    centered = tl.where(mask, value - mean, 0.0)
    variance = tl.sum(centered * centered, 0) / cols
    scale = tl.rsqrt(variance + 1e-5)
    w = tl.load(weight + i, mask, other=0.0)
    b = tl.load(bias + i, mask, other=0.0)
    tl.store(out + row * cols + i, centered * scale * w + b, mask)
"""

GELU = f"""{HEAD}@triton.jit
def gelu(x, out, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < count
    value = tl.load(x + i, mask)
    tl.store(out + i, 0.5 * value * (1.0 + libdevice.erf(value * 0.7071067811865476)), mask)
"""

EMBEDDING = f"""{HEAD}@triton.jit
def embedding(index, table, out, count, width: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < count
    row = tl.load(index + i // width, mask)
    tl.store(out + i, tl.load(table + row * width + i % width, mask), mask)
"""


def pointer(name: str, type_: str = "*fp32", *, written: bool = False, buffer: str = "") -> KernelArg:
    """A pointer parameter on the buffer of the same name."""
    return KernelArg(name, "pointer", type_, buffer=buffer or name, is_written=written)


def size(name: str, value: Size, type_: str = "i32") -> KernelArg:
    """An integer parameter."""
    return KernelArg(name, "size", type_, value=value)


def constexpr(name: str, value: int) -> KernelArg:
    """A compile-time constant."""
    return KernelArg(name, "constexpr", "constexpr", value=value)


def source(
    name: str, text: str, args: tuple[KernelArg, ...], grid: tuple[Size, ...], kernel: str = "k0", num_warps: int = 4
) -> GeneratedKernel:
    """A kernel without loop ops."""
    return GeneratedKernel(
        kernel, name, text, args, grid, tuple(() for _ in text.splitlines()), (), (), num_warps=num_warps
    )


def softmax(rows: int = 4, cols: int = 100, kernel: str = "k0") -> GeneratedKernel:
    """Softmax over the rows of ``x``."""
    block = 1 << (cols - 1).bit_length()
    args = (pointer("x"), pointer("out", written=True), constexpr("cols", cols), constexpr("BLOCK", block))
    return source("softmax", SOFTMAX, args, (rows,), kernel)


def layernorm(rows: int = 4, cols: int = 100, kernel: str = "k0") -> GeneratedKernel:
    """Layer norm over the rows of ``x``."""
    block = 1 << (cols - 1).bit_length()
    args = (
        *(pointer(name) for name in ("x", "weight", "bias")),
        pointer("out", written=True),
        constexpr("cols", cols),
        constexpr("BLOCK", block),
    )
    return source("layernorm", LAYERNORM, args, (rows,), kernel)


def gelu(count: Size = 1000, kernel: str = "k0", *, x: str = "x", out: str = "out") -> GeneratedKernel:
    """Exact GELU of ``count`` elements."""
    grid = ((count + 255) // 256,)
    args = (
        pointer("x", buffer=x),
        pointer("out", written=True, buffer=out),
        size("count", count),
        constexpr("BLOCK", 256),
    )
    return source("gelu", GELU, args, grid, kernel)


def embedding(rows: int = 10, width: int = 48, kernel: str = "k0") -> GeneratedKernel:
    """Rows of ``table`` at ``index``."""
    args = (
        pointer("index", "*i64"),
        pointer("table"),
        pointer("out", written=True),
        size("count", rows * width),
        constexpr("width", width),
        constexpr("BLOCK", 128),
    )
    return source("embedding", EMBEDDING, args, (-(-rows * width // 128),), kernel)


ALL_KERNELS = (softmax, layernorm, gelu, embedding)
