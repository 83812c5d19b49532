"""Which arguments a Triton kernel writes to: read off its code, on any machine."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from packaging.version import Version

import engine
from engine.ir.kernels.mutated_arguments import mutated_arguments
from tests.engine.trace.variables import triton_launch_functions


@triton.jit
def _stores(p, value, inside):
    tl.store(p, value, mask=inside)


@triton.jit
def _next_to(p, q):
    return q + 1


@triton.jit
def through_loops_and_calls(x, y, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    inside = at < n
    total = tl.zeros((B,), tl.float32)
    p = x
    q = out
    for i in range(n):
        total += tl.load(p + at, mask=inside)
        if i > 2:
            tl.atomic_add(q + at, total, mask=inside)
        p += B
        q += B
    _stores(y + at, total, inside)


@triton.jit
def where_a_call_says(x, y, out, n, B: tl.constexpr):
    tl.store(_next_to(x, out), tl.load(x) + tl.load(y))


@triton.jit
def while_it_lasts(x, y, out, n, B: tl.constexpr):
    i = 0
    p = x
    q = out
    while i < n:
        tl.store(q, tl.load(p) + tl.load(y))
        p += 1
        q += 1
        i += 1


@triton.jit
def at_loaded_places(x, y, out, n, B: tl.constexpr):
    at = tl.load(y + tl.arange(0, B)).to(tl.int32)
    tl.store(out + at, tl.load(x + at))


@triton.jit
def by_descriptors(x, y, out, n, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [n, n], [n, 1], [B, B])
    target = tl.make_tensor_descriptor(out, [n, n], [n, 1], [B, B])
    target.store([0, 0], source.load([0, 0]))


@triton.jit
def by_blocks(x, y, out, n, B: tl.constexpr):
    source = tl.make_block_ptr(x, (n,), (1,), (0,), (B,), (0,))
    target = tl.make_block_ptr(out, (n,), (1,), (0,), (B,), (0,))
    for _ in range(4):
        tl.store(target, tl.load(source))
        source = tl.advance(source, (B,))
        target = tl.advance(target, (B,))


@triton.jit
def either(x, y, out, n, B: tl.constexpr):
    p = x
    if n > 3:
        p = out
    tl.store(p, tl.load(y))


@triton.jit
def exchanged_in_a_loop(x, y, out, n, B: tl.constexpr):
    p = x
    q = out
    for _ in range(n):
        kept = p
        p = q
        q = kept
    tl.store(p, tl.load(y))


@triton.jit
def wherever_memory_says(x, y, out, n, B: tl.constexpr):
    p = tl.load(y).to(tl.int64).to(tl.pointer_type(tl.float32))
    tl.store(p, tl.load(x))


@triton.jit
def by_impure_assembly(x, y, out, n, B: tl.constexpr):
    value = tl.load(x + tl.arange(0, B))
    tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], dtype=tl.float32, is_pure=False, pack=1)
    tl.store(out, 1.0)


@triton.jit
def reads_only(x, y, out, n, B: tl.constexpr):
    tl.device_print("sum", tl.sum(tl.load(x + tl.arange(0, B))))


@triton.jit
def does_not_compile(x, y, out, n, B: tl.constexpr):
    tl.store(out, tl.load(x) @ n)


_FLAT = torch.empty(16)
_EVERY = {"x", "y", "out"}
_HAS_BLOCK_POINTERS = Version(triton.__version__) < Version("3.9")
"""Triton 3.9 removed them: the kernel does not compile there."""


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (through_loops_and_calls, {"y", "out"}),
        (where_a_call_says, {"out"}),
        (while_it_lasts, {"out"}),
        (at_loaded_places, {"out"}),
        (by_descriptors, {"out"}),
        (by_blocks, {"out"} if _HAS_BLOCK_POINTERS else _EVERY),
        (either, {"x", "out"}),
        (exchanged_in_a_loop, {"x", "out"}),
        (wherever_memory_says, _EVERY),
        (by_impure_assembly, _EVERY),
        (reads_only, set()),
        (does_not_compile, _EVERY),
    ],
)
def test_the_arguments_written_to(kernel: Any, expected: set[str]) -> None:
    """Stores are traced to the arguments they may mutate.

    A store that cannot be followed counts as a write to all arguments.
    """
    assert mutated_arguments(kernel, {"x": _FLAT, "y": _FLAT, "out": _FLAT, "n": 4, "B": 16}) == expected


def test_an_argument_left_out() -> None:
    """A kernel does not mutate an argument that is None.

    A known flag decides which branch of the kernel exists.
    """
    given = {"x": _FLAT, "y": None, "out": _FLAT, "n": 4, "B": 16}
    assert mutated_arguments(while_it_lasts, given) == {"x", "out"}  # which does not compile without it
    assert mutated_arguments(exchanged_in_a_loop, {**given, "y": _FLAT, "out": None}) == {"x", "y"}


def test_tuned_kernels() -> None:
    """Mutations of a tuned kernel include all configs and the arguments that tuning resets.

    If hooks or other user functions run, all arguments count as mutated.
    """
    given = {"x": _FLAT, "y": _FLAT, "out": _FLAT, "n": 4}
    choices = [triton.Config({"B": 8}), triton.Config({"B": 16})]
    assert mutated_arguments(triton.autotune(choices, key=["n"])(while_it_lasts), given) == {"out"}
    assert mutated_arguments(triton.autotune(choices, key=["n"], reset_to_zero=["x"])(while_it_lasts), given) == {
        "x",
        "out",
    }
    hooked = triton.autotune(choices, key=["n"], pre_hook=lambda *_, **__: None)(while_it_lasts)
    assert mutated_arguments(hooked, given) == _EVERY
    assert mutated_arguments(triton.heuristics({"B": lambda _: 8})(while_it_lasts), given) == _EVERY


def test_the_record_tells() -> None:
    """Why such a graph runs as it was traced names the arguments that the kernel writes to."""
    x = torch.ones(4)
    with engine.record() as session, pytest.raises(Exception):  # noqa: B017, PT011
        engine.compile(triton_launch_functions.doubles_in_place, backend="aot_eager")(x, x)
    notes = [c.aot.note for c in session.compilations if c.aot is not None]
    assert any("may write to x_ptr" in note for note in notes), notes
