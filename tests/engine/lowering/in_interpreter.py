"""Runs cases through lowering and Triton's interpreter, compares with eager, and prints what it found as JSON.

A program of its own, because the interpreter must be chosen before Triton is imported:
``TRITON_INTERPRET=1 python -m tests.engine.lowering.in_interpreter``.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings

import torch

from engine.kernels.triton import emit
from engine.lowering.driver import lower
from engine.runtime.launch import in_interpreter
from engine.runtime.program import executable
from tests.engine.lowering.cases import CASES, Case
from tests.engine.lowering.tracing import flat, trace

TOLERANCES = {torch.float16: 4e-3, torch.bfloat16: 3e-2}


def problems(case: Case, *, is_dynamic: bool) -> list[str]:
    """What differs from eager, in words."""
    args = case.args()
    wanted = flat(case.function)(*args)
    graph = trace(case.function, args, is_dynamic=is_dynamic)
    program = lower(graph, "cuda:90", emit)
    found = executable(program, in_interpreter)(*case.args())
    return [text for k, pair in enumerate(zip(found, wanted, strict=True)) if (text := difference(k, *pair))]


def difference(number: int, found: object, wanted: object) -> str:
    """Why one result is wrong, empty if it is right."""
    if not isinstance(wanted, torch.Tensor):
        return "" if found == wanted else f"result {number}: {found} is not {wanted}"
    tolerance = TOLERANCES.get(wanted.dtype)
    limits = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
    try:
        torch.testing.assert_close(found, wanted, equal_nan=True, check_stride=True, **limits)
    except AssertionError as error:
        return f"result {number}: {error}"
    return ""


def main() -> None:
    """Run the named cases, or all of them."""
    warnings.filterwarnings("ignore")
    outcome: dict[str, list[str]] = {}
    for name, case in CASES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        for is_dynamic in (False, True):
            if is_dynamic and not case.can_be_dynamic:
                continue
            try:
                found = problems(case, is_dynamic=is_dynamic)
            except Exception:
                found = [traceback.format_exc()[-1500:]]
            outcome[f"{name}:{'dynamic' if is_dynamic else 'static'}"] = found
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
