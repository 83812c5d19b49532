"""What-if questions: descriptions in place of tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import engine
from engine import TensorSpec, api
from engine.runtime.dispatch.what_if import what_if


def f(x: Any, w: Any, scale: float = 1.0) -> Any:
    return (x @ w).relu() * scale


@pytest.fixture(name="compiled")
def _compiled() -> Any:
    engine.reset()
    compiled = engine.compile(f, backend="eager")
    w = torch.randn(4, 5)
    compiled(torch.randn(2, 4), w)
    compiled(torch.randn(3, 4), w)
    return compiled


W = TensorSpec((4, 5))
CASES: dict[str, tuple[TensorSpec, str | None]] = {
    "the first shape": (TensorSpec((2, 4)), None),
    "any batch": (TensorSpec((9, 4)), None),
    "a dtype": (TensorSpec((9, 4), torch.float64), "dtype"),
    "strides": (TensorSpec((9, 4), stride=(1, 9)), "stride"),
    "a device that is not here": (TensorSpec((9, 4), device="cuda:3"), "device"),
    "requires_grad": (TensorSpec((9, 4), requires_grad=True), "requires_grad"),
    "a parameter": (TensorSpec((9, 4), requires_grad=True, parameter=True), "type"),
    "another width": (TensorSpec((9, 5)), "shape"),
    "another rank": (TensorSpec((9, 4, 1)), "ndim"),
    "a batch of one": (TensorSpec((1, 4)), "shape relation"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_if(compiled: Any, case: str) -> None:
    """A tensor description hits or fails the same guard as a real tensor would.

    The explanation names the entry, or the property of the tensor that fails.
    """
    spec, kind = CASES[case]
    told = engine.explain_call(compiled, spec, W)
    assert (told.hit is None) is (kind is not None)
    if kind is not None:
        assert told.guard_failures[0].kind == kind
    if spec.device.type != "cuda":
        real = torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, requires_grad=spec.requires_grad)
        real = torch.nn.Parameter(real) if spec.is_parameter else real
        answer = engine.explain_call(compiled, real, torch.randn(4, 5))
        assert (answer.hit, answer.results) == (told.hit, told.results)


def test_nothing_is_allocated(compiled: Any) -> None:
    """A description of more memory than there is costs nothing."""
    told = engine.explain_call(compiled, TensorSpec((10**9, 4)), W)
    assert told.hit is not None


def test_a_description_of_a_tensor() -> None:
    """``of`` takes over everything that guards look at."""
    x = torch.randn(4, 3, dtype=torch.float64).t().requires_grad_()
    spec = TensorSpec.from_tensor(x)
    assert (spec.shape, spec.dtype, spec.stride(), spec.requires_grad) == (x.shape, x.dtype, x.stride(), True)
    assert (spec.dim(), spec.size(0), spec.stride(1), spec.layout) == (2, 3, 3, torch.strided)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((-1,),), "at least 0"),
        (((2, 3), torch.float32, (1,)), "2 strides"),
        (((2,), torch.int64, None, "cpu", True), "require grad"),
    ],
)
def test_impossible_descriptions_are_refused(arguments: Any, words: str) -> None:
    """What no tensor can be is an error."""
    with pytest.raises(ValueError, match=words):
        TensorSpec(*arguments)


def test_whole_numbers_that_require_gradients_are_described() -> None:
    """Nobody can ask for them, but a write makes them."""
    whole = torch.ones(2, dtype=torch.int64)
    whole[1:] = torch.ones(2, requires_grad=True)[0] * 3
    assert TensorSpec.from_tensor(whole).requires_grad


MODES: dict[str, Any] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "grad": torch.enable_grad,
}


@pytest.mark.parametrize("mode", MODES)
def test_an_unchanged_call_hits_its_entry_whatever_modes_it_ran_under(mode: str) -> None:
    """A what-if call is evaluated under the modes of the recorded call."""
    engine.reset()
    with engine.record() as session:
        compiled = engine.compile(f, backend="eager")
        with MODES[mode]():
            compiled(torch.ones(2, 4), torch.ones(4, 5))
    (entry,) = session.compilations
    before = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))
    assert api.what_if(session, entry.frame, {}).hit == entry.id
    assert api.what_if(session, entry.frame, {"x": {"dtype": "float64"}}).hit is None
    assert before == (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))


def test_an_entry_with_a_dynamic_row_length_is_hit_by_another_length() -> None:
    """Its guard on the strides reads those of the edited call."""
    engine.reset()
    compiled = engine.compile(lambda x: x.softmax(-1) * 2, backend="eager")
    with engine.record() as session:
        for columns in (10, 20):
            compiled(torch.randn(4, columns))
    frame = session.frames[0].id
    found = what_if(session, frame, {"x": {"shape": "4, 25"}})
    assert found.hit == session.compilations[1].id
    assert all("unreadable" not in f.sentence for f in found.guard_failures)
