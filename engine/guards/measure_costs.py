"""Time of each guard by itself: reading its value from the arguments, and comparing it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from engine.guards.codegen import CheckWriter
from engine.guards.codegen_names import CELLS_PARAM, CheckNames
from engine.ir.guards.base import Guard
from engine.ir.sources.base import Source

REPEATS = 40
ROUNDS = 3


def measure_guard_costs(
    ordered: Sequence[Guard], parameters: tuple[str, ...], cells: Any, arguments: Sequence[Any]
) -> tuple[float | None, ...]:
    """Return each guard's time in nanoseconds for these arguments.

    None for a guard that cannot be evaluated. Loop overhead is subtracted. The whole check costs less than the
    sum: guards share reads, and the check covers many guards in one call.
    """
    known_types: dict[Source, type] = {}
    empty = _time_condition("pass", (), CheckNames(parameters), cells, arguments) or 0.0
    costs = []
    for guard in ordered:
        names = CheckNames(parameters)
        writer = CheckWriter((guard,), names, no_modes=True)
        for origin in guard.sources:
            if origin in known_types:
                writer.assume_type(origin, known_types[origin])
        lines: list[str] = []
        condition = writer.condition(guard, lines)
        seconds = _time_condition(condition, lines, names, cells, arguments)
        costs.append(None if seconds is None else max(0.0, (seconds - empty) * 1e9))
        kind = guard.implied_type
        if kind is not None:
            known_types[guard.source] = kind
    return tuple(costs)


def _time_condition(
    condition: str, lines: Sequence[str], names: CheckNames, cells: Any, arguments: Sequence[Any]
) -> float | None:
    heading = ", ".join((CELLS_PARAM, *names.parameters.values()))
    turns = names.const(range(REPEATS), "turns")
    turn, name = names.fresh("turn"), names.fresh("timed")
    body = "".join(f"        {line}\n" for line in (*lines, condition))
    space = names.namespace
    exec(f"def {name}({heading}):\n    for {turn} in {turns}:\n{body}", space)
    best: float | None = None
    for _ in range(ROUNDS):
        start = time.perf_counter()
        try:
            space[name](cells, *arguments)
        except Exception:
            return None
        seconds = (time.perf_counter() - start) / REPEATS
        best = seconds if best is None else min(best, seconds)
    return best
