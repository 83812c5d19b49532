"""Assert that each call matches the compiled code, if ``config.debug_assertions`` is set.

Wrong guards show here. As in AOTAutograd, no input may newly require grad or newly be passed twice.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from engine.aot.version_counters import write_count
from engine.aot.wrappers.base import PreCompileResult, TracedCall
from engine.aot.wrappers.codegen import WrapperCode
from engine.errors import DebugAssertionError
from engine.ir.static_sizes import static_size
from engine.records.aot import WrapperAction

NAME = "debug assertions"
NEEDS = attrgetter("asserts_inputs")


@dataclass(frozen=True)
class ExpectedInput:
    """Properties of one tensor at compile time; sizes and strides are None for symbols."""

    name: str
    dtype: torch.dtype
    requires_grad: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    first_duplicate: int
    """Position of the first input that was the same tensor; its own if there was none."""
    is_mutated: bool
    """True if the input is mutated; then no other input may become the same tensor."""


def pre_compile(call: TracedCall) -> PreCompileResult[TracedCall]:
    """Collect the properties to assert."""
    first: dict[int, int] = {}
    expected: list[ExpectedInput | None] = []
    for n, i in enumerate(call.inputs):
        if not i.has_real_tensor or i.example_value.layout != torch.strided:
            expected.append(None)
            continue
        sizes, strides = (
            tuple(int(r) if static_size(f) == r else None for r, f in zip(real, fake, strict=False))
            for real, fake in ((i.example_value.shape, i.fake.shape), (i.example_value.stride(), i.fake.stride()))
        )
        same = first.setdefault(id(i.example_value), n)
        is_written = i.fake.is_inference() or write_count(i.fake) != i.initial_version
        expected.append(
            ExpectedInput(
                i.name, i.example_value.dtype, i.example_value.requires_grad, sizes, strides, same, is_written
            )
        )
    why = "engine.config.debug_assertions is on"
    actions = tuple(
        WrapperAction(e.name, "compared with the properties at compile time", why) for e in expected if e is not None
    )
    return PreCompileResult(call, actions, tuple(expected))


def post_compile(change: PreCompileResult[TracedCall]) -> WrapperCode:
    """Return code that checks the assertions first."""
    if not change.actions:
        return WrapperCode()
    inputs = ", ".join(f"i{n}" for n in range(len(change.call.inputs)))
    check = functools.partial(_check, change.runtime_metadata)
    return WrapperCode(before=(f"check({inputs})",), namespace={"check": check})


def _check(expected: tuple[ExpectedInput | None, ...], *inputs: Any) -> None:
    """Raise DebugAssertionError if the inputs differ from those at compile time."""
    for fault in _violations(expected, inputs):
        raise DebugAssertionError(fault)


def _violations(expected: tuple[ExpectedInput | None, ...], inputs: tuple[Any, ...]) -> Iterator[str]:
    first: dict[int, int] = {}
    for n, (e, value) in enumerate(zip(expected, inputs, strict=True)):
        if e is None:
            continue
        if not isinstance(value, torch.Tensor):
            yield f"{e.name} was a tensor at compile time and is a {type(value).__name__}"
            continue
        if value.dtype != e.dtype:
            yield f"{e.name} had dtype {e.dtype} at compile time and has dtype {value.dtype}"
        if value.requires_grad != e.requires_grad:
            yield f"{e.name}.requires_grad was {e.requires_grad} at compile time and is {value.requires_grad}"
        for property_name, expected_value, actual in (
            ("sizes", e.sizes, value.shape),
            ("strides", e.strides, value.stride()),
        ):
            if len(expected_value) != len(actual) or any(
                k not in (None, f) for k, f in zip(expected_value, actual, strict=False)
            ):
                yield f"{e.name} has other {property_name} than at compile time"
        first_index = first.setdefault(id(value), n)
        if e.first_duplicate not in (n, first_index):
            yield f"{e.name} is no longer the same tensor as another input"
        first_expected = expected[first_index]
        if (
            first_expected is not None
            and first_expected.first_duplicate != e.first_duplicate
            and (e.is_mutated or first_expected.is_mutated)
        ):
            yield f"{e.name} is the same tensor as {first_expected.name}, and one of them is mutated"
