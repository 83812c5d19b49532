"""``config.verify_correctness``: compare the first call of each compiled graph with eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine import errors
from engine.backends.registry import eager_run
from engine.compilation import RecordUpdater
from engine.ir.traced_frame import TracedGraph
from engine.records.runtime import StageFailure
from engine.runtime.verify.first_call import verify_first_call

Run = Callable[..., Any]


def verify_on_first_call(run: Run, traced: TracedGraph, backend: str, record: RecordUpdater) -> Run:
    """Return ``run`` with its first call verified.

    If the result is wrong there is a warning, and eager runs this call and all later ones.
    """

    def report(difference: str) -> None:
        if not difference:
            return
        is_wrong = not difference.startswith("not verifiable")
        sentence = f"verification of {record.compilation} ({backend}): {difference}"
        if is_wrong:
            warnings.warn(f"{sentence}; the graph runs eagerly from now on.", errors.WrongResult, stacklevel=3)
        fallback = "the graph runs eagerly, operator by operator" if is_wrong else "the compiled result is used"
        failure = StageFailure("verification", sentence, fallback)
        record.update(lambda compilation: replace(compilation, failures=(*compilation.failures, failure)))

    return verify_first_call(run, traced.graph, eager_run(traced.graph), report)
