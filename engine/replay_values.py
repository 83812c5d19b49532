"""Value replay: rerun a recorded call through ATen and record values at AOT wrappers.

User code does not run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.aot.wrappers.value_probe import PLAIN_TENSOR_TYPES, ValueProbe
from engine.errors import BadArgument
from engine.find_compilation import find_compilation
from engine.interrupts.weak_tables import WeakTable
from engine.ir.current_session import set_current_session
from engine.ir.introspection.stale_view_grad_fn import is_leaf_without_regeneration
from engine.ir.introspection.tensor_spec import TensorSpec
from engine.ir.node_values import tensors_in
from engine.ir.traced_frame import GraphInput
from engine.records.session import Session
from engine.runtime.dispatch.recorded_arguments import ValueUnavailable, make_argument

NUMBERS = (int, float, bool, complex)
MAX_BYTES = 512_000_000
"""Maximum number of bytes of the copies of a call's tensors."""
ON_COPIES = "copies of its arguments in their present state"

RunWithProbe = Callable[[ValueProbe], Callable[..., Any]]


@dataclass(frozen=True)
class _WeakTensor:
    """Weak reference to a tensor that a graph was compiled for, with its metadata then."""

    name: str
    reference: weakref.ref[torch.Tensor]
    spec: TensorSpec
    is_leaf: bool

    def current(self) -> torch.Tensor | None:
        """Return the tensor if it is alive and its metadata is unchanged, else None."""
        tensor = self.reference()
        if tensor is None or tensor.shape != self.spec.shape or tensor.stride() != self.spec.strides:
            return None
        return tensor if tensor.dtype == self.spec.dtype and tensor.device == self.spec.device else None


@dataclass(frozen=True)
class _ReplayableCall:
    run_with_probe: RunWithProbe
    inputs: tuple[Any, ...]
    """Tensors as ``_WeakTensor``, numbers as values."""


_replayable_calls: WeakTable[Session, dict[str, _ReplayableCall | str]] = WeakTable()


def remember_call(session: Session, compilation: str, noted: RunWithProbe, inputs: Sequence[GraphInput]) -> None:
    """Store how to replay a compilation's call, without retaining a tensor."""
    try:
        remembered: _ReplayableCall | str = _ReplayableCall(noted, tuple(map(_describe_input, inputs)))
    except ValueUnavailable as error:
        remembered = str(error)
    _replayable_calls.setdefault(session, {})[compilation] = remembered


def _describe_input(graph_input: GraphInput) -> Any:
    value = graph_input.example_value
    if type(value) in PLAIN_TENSOR_TYPES and value.layout is torch.strided and not value.is_nested:
        return _WeakTensor(
            graph_input.name, weakref.ref(value), TensorSpec.from_tensor(value), is_leaf_without_regeneration(value)
        )
    if type(value) in NUMBERS:
        return value
    raise ValueUnavailable(
        f"{graph_input.name} is of type {type(value).__name__}, and a replay supports only plain tensors and numbers"
    )


def replay_with_probes(session: Session, compilation: str) -> str:
    """Replay a compilation's call and record the values of small tensors on the way.

    A training call's backward is replayed too. No user code runs and no existing tensor is mutated: the
    inputs are copies. Returns a message on which inputs were used.

    Raises:
        BadArgument: the call cannot be replayed; the message has the reason.
    """
    remembered = _replayable_calls.get(session, {}).get(compilation)
    if remembered is None:
        raise BadArgument(_why_not_replayable(session, compilation))
    if isinstance(remembered, str):
        raise BadArgument(f"The call cannot be replayed: {remembered}.")
    aot = session.compilation(compilation).aot
    try:
        inputs, note = _copy_inputs(remembered)
        _run(
            remembered.run_with_probe(ValueProbe(compilation, session, note)),
            inputs,
            trains=aot is not None and aot.mode == "training",
        )
    except ValueUnavailable as error:
        raise BadArgument(f"The call cannot be replayed: {error}.") from error
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0]
        raise BadArgument(f"The replayed call raised {type(error).__name__}: {text}") from error
    return f"The call was replayed on {note}."


def _why_not_replayable(session: Session, compilation: str) -> str:
    aot = find_compilation(session, compilation).aot
    if aot is not None and any(w.name == "effects in order" and w.actions for w in aot.wrappers):
        return "The graph has side effects, which must happen only once. Its call cannot be replayed."
    if aot is not None and not aot.wrappers:
        return "The graph runs as traced, without AOT wrappers, so there is nothing to replay."
    return "The session was loaded from a file, or the compiled function was deleted: the call cannot be replayed."


def _copy_inputs(remembered: _ReplayableCall) -> tuple[list[Any], str]:
    """Return copies of the call's inputs, and a description of them.

    New random tensors replace inputs that no longer exist.
    """
    tensors = [(t, t.current()) for t in remembered.inputs if isinstance(t, _WeakTensor)]
    if sum(now.untyped_storage().nbytes() for _, now in tensors if now is not None) > MAX_BYTES:
        raise ValueUnavailable(f"its tensors take more than {MAX_BYTES // 1_000_000} MB")
    storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    copies = iter(
        [make_argument(t.spec) if now is None else _copy_sharing_storage(t, now, storages) for t, now in tensors]
    )
    gone = [t.name for t, now in tensors if now is None]
    inputs = [next(copies) if isinstance(value, _WeakTensor) else value for value in remembered.inputs]
    if not gone:
        return inputs, ON_COPIES
    if len(gone) == len(tensors):
        return inputs, "random numbers, because its arguments were freed"
    return (
        inputs,
        f"{ON_COPIES}, with random numbers for {', '.join(gone[:3])}{' and more' if len(gone) > 3 else ''}, which were freed",
    )


def _copy_sharing_storage(
    kept: _WeakTensor, now: torch.Tensor, storages: dict[tuple[int, torch.dtype], torch.Tensor]
) -> torch.Tensor:
    """Return a copy; copies of tensors that share storage share storage too."""
    with torch.no_grad():
        flat = now.detach()
        key = flat.untyped_storage()._cdata, flat.dtype
        if key not in storages:
            base = flat.new_empty(0).set_(flat.untyped_storage())
            storages[key] = base.clone()
        copy = storages[key].as_strided(flat.shape, flat.stride(), flat.storage_offset())
    if not kept.spec.requires_grad:
        return copy
    leaf = copy.detach().requires_grad_()
    # A non-leaf may be mutated in place, a leaf that requires grad may not.
    return leaf if kept.is_leaf else leaf.clone()


def _run(run: Callable[..., Any], inputs: Sequence[Any], *, trains: bool) -> None:
    """Run the call, and its backward with tangents of ones, under a forked RNG state."""
    devices = {x.device for x in tensors_in(inputs) if x.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)), set_current_session(None), torch.set_grad_enabled(trains):
        results = run(*inputs)
        if not trains:
            return
        ends = [r for r in tensors_in(results) if r.requires_grad]
        if ends:
            torch.autograd.backward(ends, [torch.ones_like(r) for r in ends])
