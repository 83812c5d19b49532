"""Roofline estimate of a kernel on its target, from bytes and operations of the loop IR.

S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model", 2009.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

LAUNCH_SECONDS = 2.2e-6
"""Assumed launch overhead in seconds."""


@dataclass(frozen=True)
class DevicePeak:
    """Peak rates of a card, from its data sheet.

    ``bandwidth`` is in bytes per second, ``flops`` in float32 operations per second without tensor cores.
    """

    card: str
    bandwidth: float
    flops: float
    multiprocessors: int


DEVICE_PEAKS = {
    "cuda:75": DevicePeak("T4", 0.320e12, 8.1e12, 40),
    "cuda:80": DevicePeak("A100 80GB", 2.039e12, 19.5e12, 108),
    "cuda:86": DevicePeak("RTX 3090", 0.936e12, 35.6e12, 82),
    "cuda:89": DevicePeak("L40S", 0.864e12, 91.6e12, 142),
    "cuda:90": DevicePeak("H200", 4.8e12, 66.9e12, 132),
    "cuda:100": DevicePeak("B200", 8.0e12, 75.0e12, 148),
    "cuda:120": DevicePeak("RTX 5090", 1.792e12, 104.8e12, 170),
    "hip:gfx90a": DevicePeak("MI210", 1.638e12, 22.6e12, 104),
    "hip:gfx942": DevicePeak("MI300X", 5.3e12, 163.4e12, 304),
    "hip:gfx950": DevicePeak("MI355X", 8.0e12, 157.3e12, 256),
    "hip:gfx1100": DevicePeak("RX 7900 XTX", 0.960e12, 61.4e12, 96),
    "hip:gfx1201": DevicePeak("RX 9070 XT", 0.640e12, 48.7e12, 64),
}


def device_peak(target: str) -> dict[str, Any] | None:
    """Return the roofline of the card listed for a target; None for an unknown target."""
    peak = DEVICE_PEAKS.get(target)
    if peak is None:
        return None
    return {
        "card": peak.card,
        "bandwidth": peak.bandwidth,
        "flops": peak.flops,
        "ridge": peak.flops / peak.bandwidth,
    }


def estimate(target: str, moved: int | None, flops: int | None) -> dict[str, Any] | None:
    """Estimate the time of one launch; None if the bytes or the card are unknown.

    ``seconds`` is the larger of memory and arithmetic time, plus the launch. ``memory`` and ``arithmetic``
    are seconds, ``rate`` is bytes per second, ``flops`` operations per second, ``share`` the part of
    ``seconds`` that is not the launch, and ``intensity`` FLOP per byte.
    """
    card = DEVICE_PEAKS.get(target)
    if card is None or not moved:
        return None
    memory, arithmetic = moved / card.bandwidth, (flops or 0) / card.flops
    seconds = max(memory, arithmetic) + LAUNCH_SECONDS
    bound = "launch" if max(memory, arithmetic) < LAUNCH_SECONDS else "memory" if memory >= arithmetic else "arithmetic"
    return {
        "seconds": seconds,
        "memory": memory,
        "arithmetic": arithmetic,
        "launch": LAUNCH_SECONDS,
        "rate": moved / seconds,
        "flops": (flops or 0) / seconds,
        "share": max(memory, arithmetic) / seconds,
        "intensity": (flops or 0) / moved,
        "bound": bound,
    }


def program_count(grid: str) -> int | None:
    """Return the number of programs of a grid; None if the grid is symbolic."""
    numbers = re.findall(r"\d+", grid)
    if not numbers or re.search(r"[A-Za-z_]", grid):
        return None
    count = 1
    for number in numbers:
        count *= int(number)
    return count


def grid_fill_text(target: str, grid: str) -> str:
    """Return a sentence on how a grid fills the card; empty if either is unknown."""
    card, count = DEVICE_PEAKS.get(target), program_count(grid)
    if card is None or count is None:
        return ""
    if count < card.multiprocessors:
        return f"The grid fills {count:,} of {card.multiprocessors} multiprocessors of the {card.card}."
    return f"The grid has {count / card.multiprocessors:.3g} programs for each of the {card.multiprocessors} multiprocessors of the {card.card}."
