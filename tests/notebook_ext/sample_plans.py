"""A plan of a distributed step, made by hand."""

from __future__ import annotations

from engine.records.plan import MemoryPoint, Plan, PlannedCollective, RankClass


def make_plan() -> Plan:
    """A plan of 4 ranks, of which the first and the last were planned."""
    point = MemoryPoint(1, "forward", (512, 0, 0, 0, 64, 0, 0, 0))
    sent = PlannedCollective(
        "all_reduce", "c10d.allreduce_", "float32", 256, "dp", 4, "within a node", "backward", 1, "<cell>", 7,
        0.0, 3e-5, 2e-5,
    )  # fmt: skip
    one = RankClass((0, 3), 1, (), (sent,), 576, point, point, "cell 1:3", (point,), 1e-4, 8e-5, 3e-5, 2e-5, ())
    return Plan("cell 1", 4, {"dp": 4}, "cuda", {"tflops": 1.0}, (one,), ("Ranks 0 and 3 are equal.",))
