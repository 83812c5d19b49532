"""Why a backward was captured anew: how it differs from the nearest capture before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.autograd.capture import Captured
from engine.records.autograd import MissReason


@dataclass(frozen=True)
class Shape:
    """What torch's cache compares of a capture, as far as people can read it."""

    id: str
    names: tuple[str, ...]
    steps: tuple[tuple[str, ...], ...]
    """Kinds of each node's steps, where they are hooks or Python."""
    inputs: tuple[tuple[str, str], ...]
    """Type and device of each tensor input."""
    sizes: int
    added_to: int = 0
    """Leaves that have a ``.grad`` already."""

    @property
    def accumulating(self) -> int:
        """Leaves whose gradients are added to."""
        return sum(n.endswith("AccumulateGrad") for n in self.names)


def shape_of(id: str, captured: Captured) -> Shape:
    """The shape of a capture."""
    steps = tuple(
        tuple(s.kind for s in c.steps if s.kind not in ("function", "validate", "add")) for c in captured.calls
    )
    inputs = tuple(
        (str(t.dtype).removeprefix("torch."), str(d)) for t, d in zip(captured.inputs, captured.devices, strict=True)
    )
    return Shape(id, tuple(c.name for c in captured.calls), steps, inputs, captured.sizes, captured.added_to)


def miss_reason(shape: Shape, before: Sequence[Shape]) -> MissReason:
    """What is different from the nearest of the captures before, in one sentence and its details."""
    if not before:
        return MissReason("the first backward")
    nearest = max(before, key=lambda b: (_alike(shape, b), before.index(b)))
    sentence, details = _difference(shape, nearest)
    return MissReason(sentence, nearest.id, details)


def _alike(a: Shape, b: Shape) -> int:
    same = sum(x == y for x, y in zip(a.names, b.names, strict=False))
    return 2 * same - abs(len(a.names) - len(b.names)) + (a.steps == b.steps)


def _difference(new: Shape, old: Shape) -> tuple[str, tuple[str, ...]]:
    for n, (a, b) in enumerate(zip(new.names, old.names, strict=False)):
        if a != b:
            return f"another graph: node {n} is {_short(a)}, it was {_short(b)} in {old.id}", ()
    if len(new.names) != len(old.names):
        more = "more" if len(new.names) > len(old.names) else "fewer"
        return f"another graph: {abs(len(new.names) - len(old.names))} {more} nodes than {old.id}", ()
    changed = [n for n, (a, b) in enumerate(zip(new.steps, old.steps, strict=True)) if a != b]
    if changed:
        details = tuple(
            f"{_short(new.names[n])} (NodeCall {n}): {_hooks(new.steps[n])}, before {_hooks(old.steps[n])}"
            for n in changed
        )
        return f"other hooks than {old.id}, at {len(changed)} {'node' if len(changed) == 1 else 'nodes'}", details
    extra = new.added_to - old.added_to
    if extra:
        now = "have a .grad to add to now" if extra > 0 else "have no .grad any more"
        return (
            f"{abs(extra)} of {new.accumulating} leaves {now}, unlike {old.id}: zero_grad(set_to_none=True) keeps them alike",
            (),
        )
    if new.sizes != old.sizes:
        return f"sizes changed since {old.id}: {new.sizes} of them are symbols now, {old.sizes} were before", ()
    kept_more = len(new.inputs) - len(old.inputs)
    if kept_more:
        word = "more" if kept_more > 0 else "fewer"
        return f"the forward kept {abs(kept_more)} {word} tensors for its backward than in {old.id}", ()
    for n, (given, kept) in enumerate(zip(new.inputs, old.inputs, strict=False)):
        if given != kept:
            return f"input {n} is {' on '.join(given)}, it was {' on '.join(kept)} in {old.id}", ()
    return f"constants of a node are others than in {old.id}", ()


def _hooks(kinds: Sequence[str]) -> str:
    return ", ".join(kinds) or "none"


def _short(name: str) -> str:
    return name.rpartition("::")[2]
