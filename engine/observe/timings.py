"""Stage timings of a compilation, from torch's compilation metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engine.observe.json_values import as_number
from engine.records.runtime import Timing

TIMED_STAGES = (
    ("compile", "entire_frame_compile_time_s", ""),
    ("backend", "backend_compile_time_s", "compile"),
    ("inductor", "inductor_compile_time_s", "backend"),
    ("pre-grad passes", "pre_grad_pass_time_us", "backend"),
    ("joint-graph passes", "joint_graph_pass_time_us", "backend"),
    ("post-grad passes", "post_grad_pass_time_us", "inductor"),
    ("code generation", "code_gen_time_s", "inductor"),
    ("kernel compilation", "triton_compile_time_us", "code generation"),
)
"""(stage, its metric, its parent stage)."""
RESTART_STAGE = ("before the last restart", "dynamo_time_before_restart_s", "compile")


def parse_timings(facts: Mapping[str, Any], epoch: float, *, is_forward: bool) -> tuple[Timing, ...]:
    """Return the stage timings of one compilation.

    Stages of a backward that was compiled later are named "backward ...".
    """
    start = as_number(facts.get("start_time"))
    begun = 0.0 if start is None else max(float(start) - epoch, 0.0)
    opening = "" if is_forward else "backward "
    return tuple(
        Timing(opening + stage, begun, seconds, opening + parent if parent else "")
        for stage, seconds, parent in _times(facts)
    )


def _times(facts: Mapping[str, Any]) -> Iterator[tuple[str, float, str]]:
    known: set[str] = set()
    for stage, key, parent in (*TIMED_STAGES, RESTART_STAGE):
        value = as_number(facts.get(key))
        if value is not None and (value > 0 or key.endswith("_s")):
            known.add(stage)
            yield stage, float(value) / (1e6 if key.endswith("_us") else 1.0), parent if parent in known else ""
