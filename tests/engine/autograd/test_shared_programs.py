"""Captured backwards of the programs shared by all stages match eager.

Programs that differentiate leave behind what they leave in eager.
"""

from __future__ import annotations

import pytest

import engine
from tests.differential import Comparison, observe, prepare
from tests.markers import slow_except_sample
from tests.programs import program_names

NAMES = program_names()
STEMS = sorted({name.partition(".")[0] for name in NAMES})
REASONS = (
    "it runs inside a functional transform (torch.func)",
    "it differentiates through a functional transform (torch.func)",
    "a hook or a Python function of a captured backward started it",
    "it differentiates through nested tensors, which torch cannot capture",
)
"""Why some are left to torch's engine."""
DIFFERENTIATING = {
    "autograd_calls_inside": 12,
    "small_models": 7,
    "modules": 20,
    "optimizers": 4,
    "training_steps": 9,
    "model_zoo": 12,
}
"""How many programs of some files have backwards that are captured, at the least."""
SHARE = 8
"""One other file of programs in so many outside the slow ring."""
ONLY_SLOW = ("model_zoo",)
"""Files whose backwards are like those of ``small_models``, at many times the cost."""


def captured(name: str) -> bool:
    """Return whether ``file.program`` has a captured backward; assert it matches plain.

    What a captured program leaves behind must be what it leaves without the capture.
    """
    engine.reset()
    loaded = prepare(name, "captured")
    with engine.record() as session, engine.compiled_autograd("eager"):
        found = observe(loaded, loaded.target)
    assert {c.reason for c in session.backward_calls if c.outcome == "eager"} <= set(REASONS)
    if all(c.outcome == "eager" for c in session.backward_calls):
        return False
    plain = prepare(name, "plain")
    differences = Comparison().observations(observe(plain, plain.target), found)
    assert not differences, f"{name}: " + "\n".join(differences)
    return True


@pytest.mark.parametrize(
    "stem",
    [
        pytest.param(s, marks=() if s in DIFFERENTIATING.keys() - ONLY_SLOW else slow_except_sample(s, SHARE))
        for s in STEMS
    ],
)
def test_programs_differentiate_as_ever(stem: str) -> None:
    """Gradients, side effects, output and exceptions equal those of torch's engine, bitwise.

    A backward that is not captured reports a reason.
    """
    count = sum(captured(name) for name in NAMES if name.startswith(f"{stem}."))
    assert count >= DIFFERENTIATING.get(stem, 0)


def test_gradient_is_taken_without_a_copy_under_a_frame_evaluator() -> None:
    """A leaf takes its gradient without a copy, as in torch, under a frame evaluator.

    A frame evaluator adds a reference to every call.
    """
    captured("cond_while_scan_map.cond_changes_list")  # installs torch's frame evaluator for the rest of the process
    assert captured("inplace_metadata_changes.leaf_with_a_longer_shape")
