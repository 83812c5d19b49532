"""Vector registers of a CPU, as the printer needs to know them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VectorUnit:
    """Vector registers of a CPU: their width in bits, and its SLEEF functions."""

    name: str
    bits: int
    math_suffixes: tuple[tuple[int, str], ...] = ()
    """``(bytes of a vector, suffix)`` of the SLEEF functions, widest first."""

    def narrowed(self, bits: int) -> VectorUnit:
        """Return the unit as if its registers had at most this many bits."""
        functions = tuple((width, suffix) for width, suffix in self.math_suffixes if width * 8 <= bits)
        return VectorUnit(self.name, min(bits, self.bits), functions)

    def lanes(self, itemsize: int) -> int:
        """Return how many elements of this many bytes a register holds; 1 without vectors."""
        return max(1, self.bits // 8 // itemsize)


AVX512 = VectorUnit("AVX-512", 512, ((64, "avx512f"), (32, "avx2"), (16, "avx2128")))
AVX2 = VectorUnit("AVX2", 256, ((32, "avx2"), (16, "avx2128")))
NEON = VectorUnit("NEON", 128, ((16, ""),))
SCALAR = VectorUnit("no vectors", 0)


def vector_unit(features: frozenset[str], machine: str) -> VectorUnit:
    """Return the vector registers of a CPU with these LLVM features."""
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "f16c"} <= features:
        return AVX512
    if {"avx2", "fma", "f16c"} <= features:
        return AVX2
    return NEON if machine in ("aarch64", "arm64") else SCALAR
