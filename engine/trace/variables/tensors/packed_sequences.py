"""Packed sequences of recurrent networks.

The first batch size is the number of sequences. The tracer remembers it, because modules compare it with other sizes.
"""

from __future__ import annotations

from typing import Any

import torch

from engine.graph.device_dependent_composites_autograd import TRAINING_REPLACEMENTS
from engine.graph.packed_sequences import pad_packed
from engine.ir.register_once import register_each
from engine.torch_private.operators import pack_padded_sequence, pad_packed_sequence
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import register_bound_rule, register_rule
from engine.trace.variables.tensors.known_items import remember_item


def _emit(tx: Tracer, function: Any, args: Args, target: Any = None) -> Variable:
    """Emit a node whose results have sizes that depend on data."""
    if tx.in_subgraph():
        raise Unsupported("dynamic-output", f"{function.__name__} of a packed sequence, whose length depends on data")
    target = target or function
    return emit_node(tx, "call_function", target, args, run=TRAINING_REPLACEMENTS[target])


@register_each(register_rule, torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
def _recurrent(function: Any, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace a recurrent function.

    For packed input, the second argument is the batch sizes.
    """
    if len(args) == 9 and not kwargs and realize(tx, args[3]).argument_items():
        return _emit(tx, function, args)
    return emit_node(tx, "call_function", function, args, kwargs)


@register_bound_rule(pack_padded_sequence)
def _pack(tx: Tracer, input: Any, lengths: Variable, batch_first: Variable) -> Variable:
    packed = _emit(tx, pack_padded_sequence, [input, lengths, batch_first])
    batch = input.size(tx, 0 if batch_first.is_truthy(tx) else 1)
    batch_sizes = packed.get_item(tx, ConstantVariable(1))
    remember_item(tx, realize(tx, batch_sizes).get_item(tx, ConstantVariable(0)), batch)
    return packed


@register_bound_rule(pad_packed_sequence)
def _pad(
    tx: Tracer, data: Any, batch_sizes: Any, batch_first: Variable, padding_value: Variable, total_length: Variable
) -> Variable:
    batch = batch_sizes.get_item(tx, ConstantVariable(0)).call_method(tx, "item", [], {})
    args = [data, batch_sizes, batch_first, padding_value, total_length, batch]
    return _emit(tx, pad_packed_sequence, args, pad_packed)
