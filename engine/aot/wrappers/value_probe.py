"""Record values of small tensors at each wrapper boundary of a call.

Only for sessions that record every step, or on request.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from engine.errors import named_error_line
from engine.ir.current_session import current_session
from engine.ir.graph_callable import Run
from engine.records.aot import CallValuesRecord, NodeValuesRecord, WrapperValuesRecord
from engine.records.session import Session
from engine.torch_private.dispatch import disable_current_modes
from engine.torch_private.functorch import is_functorch_wrapped_tensor
from engine.torch_private.torch_function import DisableTorchFunction

Describe = Callable[[Sequence[Any]], tuple[NodeValuesRecord, ...]]
"""Runs a graph through ATen once more, and returns statistics of its nodes."""
RecordValues = Callable[[str, str, Sequence[str], Sequence[Any]], None]
MAX_RECORDED_CALLS = 4
"""Maximum number of recorded calls per cache entry."""
MAX_RECORDED_VALUES = 24
"""Maximum number of values recorded at one wrapper boundary."""
MAX_FULL_ELEMENTS = 16
"""Maximum elements of a tensor recorded in full; else ``NUM_FIRST_ELEMENTS`` are recorded."""
NUM_FIRST_ELEMENTS = 6
PLAIN_TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter)


def probe_for(compilation: str) -> ValueProbe | None:
    """Return a probe for one compilation if the session records every step; else None.

    Without a probe nothing is added to the call.
    """
    session = current_session()
    return ValueProbe(compilation) if session is not None and session.level == "steps" else None


@dataclass(eq=False)
class ProbedCall:
    """Recorded call that an autograd node holds, so that its backward is recorded too."""

    session: weakref.ref[Session]
    call_index: int = -1
    """Index of the call among those recorded for its compilation; -1 while it is not recorded."""


class ValueProbe:
    """Records the values of one compilation's calls, while a session records every step.

    With ``session`` the calls are recorded there, whichever session is current, with a description of their inputs.
    """

    def __init__(self, compilation: str, session: Session | None = None, note: str = "") -> None:
        self._compilation = compilation
        self._session = session
        self._inputs_description = note
        self._num_recorded = 0
        self._current_moments: list[WrapperValuesRecord] | None = None
        self._current_call: ProbedCall | None = None
        self._current_nodes: tuple[NodeValuesRecord, ...] = ()

    def _recording_session(self) -> Session | None:
        """Return the session that a call is to be recorded in; None if none records."""
        session = self._session or current_session()
        if session is None or self._current_moments is not None or self._num_recorded >= MAX_RECORDED_CALLS:
            return None
        return session if self._session is not None or session.level == "steps" else None

    def wrap_call(self, run: Run, names: Sequence[str]) -> Run:
        """Wrap the whole call to record its inputs and outputs; ``names`` are the input names."""

        def call(*args: Any) -> Any:
            session = self._recording_session()
            if session is None:
                return run(*args)
            self._current_moments, mark = [], ProbedCall(weakref.ref(session))
            self._current_nodes = ()
            self._current_call = mark
            try:
                self.record_values("call", "in", names, args)
                results = run(*args)
                self.record_values("call", "out", (*_numbered_names("output", results), *names), (*results, *args))
                passage = CallValuesRecord(tuple(self._current_moments), self._inputs_description, self._current_nodes)
            finally:
                self._current_moments = self._current_call = None
            with contextlib.suppress(KeyError):  # the session started after this was compiled
                mark.call_index = len(session.compilation(self._compilation).call_values)
                session.update_compilation(
                    self._compilation, lambda c: replace(c, call_values=(*c.call_values, passage))
                )
                self._num_recorded += 1
            return results

        return call

    def wrap_graph(self, run: Run, describe: Describe) -> Run:
        """Wrap the functional graph to record statistics of its nodes in the first recorded call."""

        def described(*inputs: Any) -> Any:
            session = self._current_call.session() if self._current_call is not None else None
            if session is not None and not self._num_recorded:
                self._current_nodes = self._describe_nodes(session, describe, inputs)
            return run(*inputs)

        return described

    def current_call(self) -> ProbedCall | None:
        """Return the reference for the autograd node of the call being recorded; None if none is."""
        return self._current_call

    def run_backward(
        self,
        mark: ProbedCall,
        run: Run,
        names: Sequence[str],
        gradients: Sequence[str],
        values: list[Any],
        describe: Describe | None = None,
    ) -> Any:
        """Run a backward; record its inputs and outputs if its call was recorded.

        Only the first backward of a call is recorded.
        """
        session = mark.session()
        if session is None or mark.call_index < 0:
            return run(values)
        before = _values_record("backward", "in", names, values)
        nodes: tuple[NodeValuesRecord, ...] = ()
        if describe is not None and not mark.call_index:
            nodes = self._describe_nodes(session, describe, values)
        results = run(values)
        moments, number = (before, _values_record("backward", "out", gradients, results)), mark.call_index
        mark.call_index = -1
        with contextlib.suppress(KeyError, IndexError):
            session.update_compilation(
                self._compilation,
                lambda c: replace(c, call_values=_with_backward(c.call_values, number, moments, nodes)),
            )
        return results

    def _describe_nodes(
        self, session: Session, describe: Describe, inputs: Sequence[Any]
    ) -> tuple[NodeValuesRecord, ...]:
        """Return statistics of a graph's nodes; none, with a note, if it cannot run once more."""
        try:
            return describe(list(inputs))
        except Exception as error:  # The values are extra: the call itself must not fail for them.
            session.add_note(
                f"Compilation {self._compilation}: values of its nodes are not recorded, because its graph failed when it ran once more through ATen ({named_error_line(error)})."
            )
            return ()

    def wrap_wrapper(self, layer: str, run: Run, names: Sequence[str]) -> Run:
        """Wrap ``run`` to record what a wrapper passes to it and what it returns."""

        def passing(*args: Any) -> Any:
            self.record_values(layer, "in", names, args)
            results = run(*args)
            self.record_values(layer, "back", _numbered_names("result", results), results)
            return results

        return passing

    def record_values(self, layer: str, direction: str, names: Sequence[str], values: Sequence[Any]) -> None:
        """Record the values at one point of the current call."""
        if self._current_moments is not None:
            self._current_moments.append(_values_record(layer, direction, names, values))


def _values_record(layer: str, direction: str, names: Sequence[str], values: Sequence[Any]) -> WrapperValuesRecord:
    pairs = list(zip(names, values, strict=False))
    described = tuple((name, describe_value(value)) for name, value in pairs[:MAX_RECORDED_VALUES])
    return WrapperValuesRecord(layer, direction, described, len(pairs) - len(described))


def _with_backward(
    passages: tuple[CallValuesRecord, ...],
    number: int,
    moments: tuple[WrapperValuesRecord, ...],
    nodes: tuple[NodeValuesRecord, ...],
) -> tuple[CallValuesRecord, ...]:
    """Return the records with these values appended to one of them."""
    passage = passages[number]
    return (
        *passages[:number],
        replace(passage, wrapper_values=(*passage.wrapper_values, *moments), nodes=(*passage.nodes, *nodes)),
        *passages[number + 1 :],
    )


def _numbered_names(prefix: str, values: Any) -> list[str]:
    return [f"{prefix} {n}" for n in range(len(values))] if isinstance(values, (tuple, list)) else []


def describe_value(value: Any) -> str:
    """Return a short text for a value without changing any state.

    For a tensor: its first elements, or the reason why they are not shown.
    """
    if not isinstance(value, torch.Tensor):
        return repr(value)[:60] if isinstance(value, (int, float, bool, complex)) else type(value).__name__
    if type(value) not in PLAIN_TENSOR_TYPES or value.layout != torch.strided or is_functorch_wrapped_tensor(value):
        return f"not shown: {type(value).__name__}"
    count = value.numel()
    if count > MAX_FULL_ELEMENTS and not value.is_contiguous():
        return f"not shown: {count:,} elements, not contiguous"
    try:
        with DisableTorchFunction(), disable_current_modes(), torch.no_grad():
            plain = value.detach()
            elements = plain.tolist() if count <= MAX_FULL_ELEMENTS else plain.view(-1)[:NUM_FIRST_ELEMENTS].tolist()
    except (RuntimeError, NotImplementedError):
        return "not shown: its data cannot be read"
    return _text(elements) if count <= MAX_FULL_ELEMENTS else f"{_text(elements)[:-1]}, … {count:,} elements]"


def _text(element: Any) -> str:
    if isinstance(element, list):
        return f"[{', '.join(map(_text, element))}]"
    return f"{element:.4g}" if isinstance(element, float) else str(element)
