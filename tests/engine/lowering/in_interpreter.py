"""Runs cases through lowering and Triton's interpreter, compares with eager, and prints what it found as JSON.

A program of its own, because the interpreter must be chosen before Triton is imported:
``TRITON_INTERPRET=1 python -m tests.engine.lowering.in_interpreter``.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.ir.tuning import USUAL, Answer, Chooser, Question, Templates
from engine.kernels.cuts import cuts
from engine.kernels.triton import emit
from engine.lowering import blocks
from engine.lowering.blocks import Cuts
from engine.lowering.driver import lower
from engine.runtime.launch import in_interpreter
from engine.runtime.program import executable
from tests.engine.lowering.attentions import ATTENTIONS
from tests.engine.lowering.cases import CASES, Case
from tests.engine.lowering.products import PRODUCTS
from tests.engine.lowering.tracing import flat, trace

TOLERANCES = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
OF_SUMS = {torch.float16: 2e-2, torch.bfloat16: 6e-2, torch.float32: 1e-4}
"""The same for sums of products, whose operands were rounded otherwise, or in another order."""


@dataclass
class EachInTurn:
    """Takes another of the ways at each question, so that many cases see them all."""

    asked: int = 0

    def choose(self, question: Question) -> Answer:
        """The next position."""
        self.asked += 1
        return Answer(self.asked % len(question.ways))


def problems(case: Case, *, is_dynamic: bool, chooser: Chooser = USUAL, cuts: Cuts | None = None) -> list[str]:
    """What differs from eager, in words."""
    args = case.args()
    wanted = flat(case.function)(*args)
    graph = trace(case.function, args, is_dynamic=is_dynamic)
    program = lower(graph, "cuda:90", emit, chooser=chooser, cuts=cuts)
    found = executable(program, in_interpreter)(*case.args())
    limits = TOLERANCES if chooser is USUAL else OF_SUMS
    return [text for k, pair in enumerate(zip(found, wanted, strict=True)) if (text := difference(k, *pair, limits))]


def difference(number: int, found: object, wanted: object, tolerances: Mapping[torch.dtype, float]) -> str:
    """Why one result is wrong, empty if it is right."""
    if not isinstance(wanted, torch.Tensor):
        return "" if found == wanted else f"result {number}: {found} is not {wanted}"
    tolerance = tolerances.get(wanted.dtype)
    limits = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
    try:
        torch.testing.assert_close(found, wanted, equal_nan=True, check_stride=True, **limits)
    except AssertionError as error:
        return f"result {number}: {error}"
    return ""


def main() -> None:
    """Run the named cases, or all of them; with ``--templates`` those that templates compute, and by templates; with ``--cuts`` in other blocks."""
    warnings.filterwarnings("ignore")
    outcome: dict[str, list[str]] = {}
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    by_template, is_cut = "--templates" in sys.argv, "--cuts" in sys.argv
    chooser: Chooser = Templates() if by_template else EachInTurn() if is_cut else USUAL
    if is_cut:
        blocks.LEAST_MOVED = 0
    for name, case in ({**PRODUCTS, **ATTENTIONS} if by_template else CASES).items():
        if names and name not in names:
            continue
        for is_dynamic in (False, True):
            if is_dynamic and not case.can_be_dynamic:
                continue
            try:
                found = problems(case, is_dynamic=is_dynamic, chooser=chooser, cuts=cuts if is_cut else None)
            except Exception:
                found = [traceback.format_exc()[-1500:]]
            outcome[f"{name}:{'dynamic' if is_dynamic else 'static'}"] = found
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
