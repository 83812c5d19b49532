"""Stage timings of a compilation, from torch's compilation metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engine.observe.json_values import as_number
from engine.records.runtime import Timing

TIMED_STAGES = (
    ("compile", "entire_frame_compile_time_s", ""),
    ("before the last restart", "dynamo_time_before_restart_s", "compile"),
    ("backend", "backend_compile_time_s", "compile"),
    ("pre-grad passes", "pre_grad_pass_time_us", "backend"),
    ("joint-graph passes", "joint_graph_pass_time_us", "backend"),
    ("inductor", "inductor_compile_time_s", "backend"),
    ("post-grad passes", "post_grad_pass_time_us", "inductor"),
    ("code generation", "code_gen_time_s", "inductor"),
    ("kernel compilation", "triton_compile_time_us", "code generation"),
)
"""(stage, its metric, its parent stage), in the order in which they run."""


def parse_timings(facts: Mapping[str, Any], epoch: float, *, is_forward: bool) -> tuple[Timing, ...]:
    """Return the stage timings of one compilation.

    torch reports durations only. The last stage of a parent ends with it, the others follow each other from its start.
    Stages of a backward that was compiled later are named "backward ...".
    """
    clock = as_number(facts.get("start_time"))
    begun = 0.0 if clock is None else max(float(clock) - epoch, 0.0)
    opening = "" if is_forward else "backward "
    times = list(_times(facts))
    last_of = {parent: stage for stage, _, parent in times}
    free_from, ends = {"": begun}, {"": begun}
    timings = []
    for stage, seconds, parent in times:
        start = free_from[parent]
        if parent and last_of[parent] == stage:
            start = max(start, ends[parent] - seconds)
        free_from[parent] = ends[stage] = start + seconds
        free_from[stage] = start
        timings.append(Timing(opening + stage, start, seconds, opening + parent if parent else ""))
    return tuple(timings)


def _times(facts: Mapping[str, Any]) -> Iterator[tuple[str, float, str]]:
    parents = {stage: parent for stage, _, parent in TIMED_STAGES}
    measured_stages = {""}
    for stage, key, parent in TIMED_STAGES:
        value = as_number(facts.get(key))
        if value is not None and (value > 0 or (key.endswith("_s") and stage != "before the last restart")):
            measured_stages.add(stage)
            while parent not in measured_stages:
                parent = parents[parent]
            yield stage, float(value) / (1e6 if key.endswith("_us") else 1.0), parent
