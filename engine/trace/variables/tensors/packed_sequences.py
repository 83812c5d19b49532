"""Graph breaks for packed sequences of recurrent networks.

Their length depends on the values of ``lengths``; torch's fake implementations return wrong sizes.
"""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.register_once import register_each
from engine.torch_private.operators import pack_padded_sequence, pad_packed_sequence
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Variable, realize
from engine.trace.variables.callable_registry import register_break, register_rule


@register_each(register_rule, torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
def _recurrent(function: Any, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """Register the rule of a recurrent function.

    For packed input, the second argument is the batch sizes.
    """
    if len(args) > 3 and realize(tx, args[3]).argument_items():
        raise Unsupported("dynamic-output", f"{function.__name__} of a packed sequence, whose length depends on data")
    return emit_node(tx, "call_function", function, args, kwargs)


_DATA_DEPENDENT_LENGTH = "the length of a packed sequence depends on data"
register_break("dynamic-output", _DATA_DEPENDENT_LENGTH, pack_padded_sequence, pad_packed_sequence)
