"""Packed sequences: how long they are depends on the lengths' values, of which torch's own fakes know nothing (they give the wrong sizes)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import Value, force
from engine.trace.values.rules import special
from engine.trace.values.sequences import SequenceValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer


def _recurrent(function: Any) -> None:
    """A recurrent network, which takes a packed sequence in another form: with batch sizes in second place."""

    @special(function)
    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) > 3 and isinstance(force(tx, args[3]), SequenceValue):
            raise Unsupported(
                "dynamic-output", f"{function.__name__} of a packed sequence, whose length depends on values"
            )
        return emit(tx, "call_function", function, args, kwargs)


for _function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
    _recurrent(_function)


@special(torch._pack_padded_sequence, torch._pad_packed_sequence)
def _depends_on_lengths(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise Unsupported("dynamic-output", "how long a packed sequence is depends on values")
