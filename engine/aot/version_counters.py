"""Count a graph's writes per input: what eager would add to the inputs' versions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx

from engine.aot.fallback_kinds import AotFallback
from engine.aot.storage_geometry import storage_id
from engine.ir.fallback import FallbackRequired
from engine.ir.traced_frame import GraphInput
from engine.torch_private.autograd import unsafe_set_version_counter


def write_count(fake: torch.Tensor) -> int:
    """Return how often traced code mutated the tensor's memory in place."""
    return 0 if fake.is_inference() else fake._version


def shares_version_counter(base: torch.Tensor, fake: torch.Tensor) -> bool:
    """Return True if two tensors over one storage share a version counter.

    True for ``detach``, False for ``data``. The test bumps one counter and restores it.
    """
    if base.is_inference() or fake.is_inference():
        return True
    if storage_id(base) != storage_id(fake):
        return False
    before, version = base._version, fake._version
    set_version = unsafe_set_version_counter
    set_version((base,), (before + 1000,))
    together = fake._version != version
    set_version((base,), (before,))
    return together


set_version_counter: Any = unsafe_set_version_counter
"""Sets the version counters of a tuple of tensors.

A functional graph mutates nothing, but its caller sees the versions that eager counts.
"""


def version_counter_writes(inputs: Sequence[GraphInput], members: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the bump of each version counter, as (a member that has it, bump).

    Two counters of the traced code may be one in a later call; it is then bumped twice, as in eager.

    Raises:
        FallbackRequired: one counter of the traced code is two for the real tensors.
    """
    apart: list[list[int]] = []
    for m in members:
        shared_group = next((g for g in apart if _shares_counter(inputs, m, g[0])), None)
        if shared_group is None:
            apart.append([m])
        else:
            shared_group.append(m)
    writes_by_input = []
    for group in apart:
        writes = max(input_write_count(inputs[m]) for m in group)
        for m in group[1:]:
            if writes and not shares_version_counter(inputs[group[0]].example_value, inputs[m].example_value):
                names = f"{inputs[group[0]].name} and {inputs[m].name}"
                raise FallbackRequired(
                    AotFallback.SHARED_INPUTS_NO_COMMON_VIEW,
                    f"{names} share memory but no version counter, and one of them is mutated",
                )
        writes_by_input.append((group[0], writes))
    return tuple(writes_by_input)


def _shares_counter(inputs: Sequence[GraphInput], m: int, n: int) -> bool:
    return m == n or shares_version_counter(inputs[m].fake, inputs[n].fake)


def has_version_counter(i: GraphInput) -> bool:
    """Return True if autograd counts the writes to an input."""
    return not i.fake.is_inference() and not i.example_value.is_inference()


def input_write_count(i: GraphInput) -> int:
    """Return how often the traced graph writes to an input."""
    return write_count(i.fake) - i.initial_version
