"""Run cases through lowering and Triton's interpreter, and print mismatches as JSON.

Results are compared with eager.

A program of its own, because the interpreter must be chosen before Triton is imported:
``TRITON_INTERPRET=1 python -m tests.engine.lowering.run_cases_in_interpreter``.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.ir.kernels.lowered_program import AtenCall, ConstantTensor, ProgramStep
from engine.ir.kernels.template_choice import (
    LIBRARY_CHOOSER,
    AlwaysTemplateChooser,
    ChoiceRequest,
    ChoiceResult,
    TemplateChooser,
)
from engine.kernels.triton.block_configs import candidate_blockings
from engine.kernels.triton.printer import print_triton
from engine.lowering import choose_blocks
from engine.lowering.choose_blocks import CandidateBlockings
from engine.lowering.driver import lower
from engine.runtime.program_executor import ProgramExecutor
from tests.engine.lowering.attention_cases import ATTENTION_CASES
from tests.engine.lowering.matmul_cases import MATMUL_CASES
from tests.engine.lowering.op_cases import CASES, Case
from tests.engine.lowering.trace_aten import trace_to_aten, with_flat_results
from tests.engine.runtime.interpreter_launcher import interpreter_launcher

TOLERANCES = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
SUM_TOLERANCES = {torch.float16: 2e-2, torch.bfloat16: 6e-2, torch.float32: 1e-4}
"""Tolerance of sums of products, which round in another order."""


@dataclass
class RoundRobinChooser:
    """Takes another of the ways at each question, so that many cases see them all."""

    request_count: int = 0

    def choose(self, question: ChoiceRequest) -> ChoiceResult:
        """The next position."""
        self.request_count += 1
        return ChoiceResult(self.request_count % len(question.candidates))


def mismatches(
    case: Case, *, is_dynamic: bool, chooser: TemplateChooser = LIBRARY_CHOOSER, cuts: CandidateBlockings | None = None
) -> list[str]:
    """What differs from eager, in words."""
    args = case.args()
    wanted = with_flat_results(case.function)(*args)
    graph = trace_to_aten(case.function, args, is_dynamic=is_dynamic)
    program = lower(graph, "cuda:90", print_triton, chooser=chooser, candidate_blockings=cuts)
    limits = TOLERANCES if chooser is LIBRARY_CHOOSER else SUM_TOLERANCES
    if chooser is LIBRARY_CHOOSER and (text := describe_aten_calls(case, program.steps, is_dynamic=is_dynamic)):
        return [text]
    uneven = [k.name for k in program.kernels if len(k.line_ops) != len(k.text.splitlines())]
    if uneven:
        return [f"{name} has not one list of ops per line" for name in uneven]
    found = ProgramExecutor(program, interpreter_launcher)(*case.args())
    return [
        text for k, pair in enumerate(zip(found, wanted, strict=True)) if (text := describe_mismatch(k, *pair, limits))
    ]


def describe_aten_calls(case: Case, steps: Sequence[ProgramStep], *, is_dynamic: bool) -> str:
    """Why the operators without a kernel are not those of the case, empty if they are."""
    calls = [step for step in steps if isinstance(step, AtenCall) and not isinstance(step.target, ConstantTensor)]
    called = {str(call.target).removeprefix("aten.").rsplit(".", 1)[0] for call in calls}
    wanted = case.aten_if_dynamic if is_dynamic else case.aten
    reasons = {call.reason for call in calls}
    return "" if called == wanted else f"ATen computes {sorted(called)} instead of {sorted(wanted)}: {reasons}"


def describe_mismatch(number: int, found: object, wanted: object, tolerances: Mapping[torch.dtype, float]) -> str:
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
    """Run the named cases, or all of them; a name may end in ``:static`` or ``:dynamic``.

    ``--templates`` runs the cases that templates compute, by templates. ``--cuts`` runs the cases in other
    block sizes.
    """
    warnings.filterwarnings("ignore")
    outcome: dict[str, list[str]] = {}
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    by_template, is_cut = "--templates" in sys.argv, "--cuts" in sys.argv
    chooser: TemplateChooser = (
        AlwaysTemplateChooser() if by_template else RoundRobinChooser() if is_cut else LIBRARY_CHOOSER
    )
    if is_cut:
        choose_blocks.MIN_TUNED_BYTES = 0
    for name, case in ({**MATMUL_CASES, **ATTENTION_CASES} if by_template else CASES).items():
        for is_dynamic in (False, True) if case.can_be_dynamic else (False,):
            full_name = f"{name}:{'dynamic' if is_dynamic else 'static'}"
            if names and name not in names and full_name not in names:
                continue
            try:
                found = mismatches(
                    case, is_dynamic=is_dynamic, chooser=chooser, cuts=candidate_blockings if is_cut else None
                )
            except Exception:
                found = [traceback.format_exc()[-1500:]]
            outcome[full_name] = found
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
