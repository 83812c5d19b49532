"""Counter-based random numbers: each one depends only on a seed and its position.

A kernel can therefore compute a random number where it is used. The generator is Philox 4x32-10 (Salmon,
Moraes, Dror and Shaw, 2011), as in Triton's ``tl.rand`` and ``tl.randint``. The operators of this module
return the same numbers on every device.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

WORD_MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
UNIFORM_SCALE = 4.6566127342e-10
"""Slightly below 2 ** -31, so that no result rounds up to one."""


def _seeds(count: int, *, device: torch.device) -> torch.Tensor:
    """Return seeds from the device's generator, and advance it."""
    return torch.randint(-(1 << 63), (1 << 63) - 1, (count,), dtype=torch.int64, device=device)


def _multiply_words(factor: int, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the high and low 32-bit words of a product of two words.

    The int64 intermediates do not overflow.
    """
    low, high = (word & 0xFFFF) * factor, (word >> 16) * factor
    middle = high + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)


def _bits(seeds: torch.Tensor, which: int, size: Sequence[int]) -> torch.Tensor:
    """Return 32 random bits for each element, as nonnegative integers."""
    count = 1
    for n in size:
        count *= n
    positions = torch.arange(count, dtype=torch.int64, device=seeds.device)
    none = torch.zeros_like(positions)
    c0, c1, c2, c3 = positions & WORD_MASK, none, none, none
    first, second = seeds[which] & WORD_MASK, (seeds[which] >> 32) & WORD_MASK
    for _ in range(ROUNDS):
        (high0, low0), (high2, low2) = _multiply_words(MULTIPLIERS[0], c0), _multiply_words(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high2 ^ c1 ^ first, low2, high0 ^ c3 ^ second, low0
        first, second = (first + KEY_INCREMENTS[0]) & WORD_MASK, (second + KEY_INCREMENTS[1]) & WORD_MASK
    return c0.reshape(tuple(size))


def _uniform(seeds: torch.Tensor, which: int, size: Sequence[int]) -> torch.Tensor:
    bits = _bits(seeds, which, size)
    folded = torch.where(bits > WORD_MASK >> 1, WORD_MASK - bits, bits)
    return folded.to(torch.float32) * UNIFORM_SCALE


@functools.cache
def _library() -> torch.library.Library:
    library = torch.library.Library("engine", "FRAGMENT")

    def define(name: str, schema: str, run: Any, fake: Any, *tags: torch.Tag) -> None:
        library.define(name + schema, tags=tags)
        library.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"engine::{name}", fake, lib=library)

    def like(dtype: torch.dtype) -> Any:
        return lambda seeds, which, size: seeds.new_empty(size, dtype=dtype)

    define(
        "random_seeds",
        "(int count, *, Device device) -> Tensor",
        _seeds,
        lambda count, *, device: torch.empty(count, dtype=torch.int64, device=device),
        torch.Tag.nondeterministic_seeded,
    )
    numbers = "(Tensor seeds, int which, SymInt[] size) -> Tensor"
    define("random_uniform", numbers, _uniform, like(torch.float32))
    define("random_bits", numbers, _bits, like(torch.int64))
    return library


_library()
random_seeds: Any = torch.ops.engine.random_seeds.default
random_uniform: Any = torch.ops.engine.random_uniform.default
random_bits: Any = torch.ops.engine.random_bits.default
