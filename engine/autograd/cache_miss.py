"""Compiled-autograd cache misses: difference of a new capture from an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.autograd.capture import BackwardCapture, short_name
from engine.records.autograd import CacheMissReason


@dataclass(frozen=True)
class CaptureKey:
    """Readable part of a capture's key in torch's cache."""

    id: str
    node_names: tuple[str, ...]
    step_kinds: tuple[tuple[str, ...], ...]
    """Kinds of each node's steps, without formulas, validations and additions."""
    inputs: tuple[tuple[str, str], ...]
    """Data type and device of each tensor input."""
    symbolic_size_count: int
    leaves_with_grad: int = 0
    """Number of leaves that had a ``.grad`` at capture."""

    @property
    def accumulating_leaf_count(self) -> int:
        """Number of leaves that accumulate a gradient."""
        return sum(n.endswith("AccumulateGrad") for n in self.node_names)


def capture_key(id: str, captured: BackwardCapture) -> CaptureKey:
    """Return what a later backward must match to reuse this capture."""
    steps = tuple(
        tuple(s.kind for s in c.steps if s.kind not in ("function", "validate", "add")) for c in captured.calls
    )
    inputs = tuple(
        (str(t.dtype).removeprefix("torch."), str(d)) for t, d in zip(captured.inputs, captured.devices, strict=True)
    )
    return CaptureKey(
        id,
        tuple(c.name for c in captured.calls),
        steps,
        inputs,
        captured.symbolic_size_count,
        captured.leaves_with_grad,
    )


def miss_reason(shape: CaptureKey, before: Sequence[CaptureKey]) -> CacheMissReason:
    """Describe the difference from the most similar earlier capture: one sentence and details."""
    if not before:
        return CacheMissReason("the first backward")
    nearest = max(before, key=lambda b: (_key_similarity(shape, b), before.index(b)))
    sentence, details = _describe_difference(shape, nearest)
    return CacheMissReason(sentence, nearest.id, details)


def _key_similarity(a: CaptureKey, b: CaptureKey) -> int:
    same = sum(x == y for x, y in zip(a.node_names, b.node_names, strict=False))
    return 2 * same - abs(len(a.node_names) - len(b.node_names)) + (a.step_kinds == b.step_kinds)


def _describe_difference(new: CaptureKey, old: CaptureKey) -> tuple[str, tuple[str, ...]]:
    for n, (a, b) in enumerate(zip(new.node_names, old.node_names, strict=False)):
        if a != b:
            return f"the backward graph differs: node {n} is {short_name(a)}, but {short_name(b)} in {old.id}", ()
    if len(new.node_names) != len(old.node_names):
        more = "more" if len(new.node_names) > len(old.node_names) else "fewer"
        return (
            f"the backward graph differs: {abs(len(new.node_names) - len(old.node_names))} {more} nodes than {old.id}",
            (),
        )
    changed = [n for n, (a, b) in enumerate(zip(new.step_kinds, old.step_kinds, strict=True)) if a != b]
    if changed:
        details = tuple(
            f"{short_name(new.node_names[n])} (NodeCall {n}): {_hook_list(new.step_kinds[n])}, in {old.id} {_hook_list(old.step_kinds[n])}"
            for n in changed
        )
        return f"other hooks than in {old.id}, at {len(changed)} {'node' if len(changed) == 1 else 'nodes'}", details
    extra = new.leaves_with_grad - old.leaves_with_grad
    if extra:
        now = "now have a .grad to accumulate into" if extra > 0 else "no longer have a .grad"
        return (
            f"{abs(extra)} of {new.accumulating_leaf_count} leaves {now}, unlike in {old.id}: call zero_grad(set_to_none=True) before each backward",
            (),
        )
    if new.symbolic_size_count != old.symbolic_size_count:
        return (
            f"sizes changed since {old.id}: {new.symbolic_size_count} sizes are symbols now, {old.symbolic_size_count} before",
            (),
        )
    more_inputs = len(new.inputs) - len(old.inputs)
    if more_inputs:
        comparison = "more" if more_inputs > 0 else "fewer"
        return f"the forward saved {abs(more_inputs)} {comparison} tensors for backward than in {old.id}", ()
    for n, (new_input, old_input) in enumerate(zip(new.inputs, old.inputs, strict=False)):
        if new_input != old_input:
            return f"input {n} is {' on '.join(new_input)}, but {' on '.join(old_input)} in {old.id}", ()
    return f"constants of a node differ from {old.id}", ()


def _hook_list(kinds: Sequence[str]) -> str:
    return ", ".join(kinds) or "none"
