"""Custom ops that preserve device-dependent composites: one graph fits every target.

Traced on a CPU, attention would become a CPU-only op and an LSTM an op of a CPU library. Before tracing to ATen, both
are replaced by ``engine::...`` ops, which run what torch would run on the current device. If gradients are needed,
the replacements have a backward (``engine.graph.device_dependent_composites_autograd``). Random ops need no replacement: they reach
ATen as ``bernoulli`` and similar ops, and sample the same numbers.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F

from engine.graph.composite_op_registry import composite_op, register_composite_ops, registered_composite_ops
from engine.graph.device_dependent_composites_autograd import (
    FAKE_IMPLEMENTATIONS,
    TRAINING_OPS,
    TRAINING_REPLACEMENTS,
    is_packed_rnn_call,
    is_padded_rnn_call,
)
from engine.graph.effect_tokens import run_with_token
from engine.graph.packed_sequences import PACKED_REPLACEMENTS
from engine.graph.recurrent_layers import run_recurrent
from engine.ir.node_values import called_overload, map_tensors
from engine.torch_private.higher_order_ops import with_effects

__all__ = ["composite_op", "eager_implementation", "registered_composite_ops", "replace_composite"]

Function = Callable[..., Any]

_RNN = (
    "(Tensor input, Tensor{hidden} hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, "
    "bool bidirectional, bool batch_first) -> {results}"
)
_ATTENTION = (
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, "
    "float? scale=None, bool enable_gqa=False) -> Tensor"
)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    result = F.scaled_dot_product_attention(query, key, value, *args, **kwargs)
    # A custom op must not return a view of an argument.
    return result.clone() if any(result is t or result._base is t for t in (query, key, value)) else result


def _attention_under_autocast(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Cast operands and mask as autocast does for torch's function; call the composite op."""
    device, operands = query.device.type, (query, key, value, *args)
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        narrow = (torch.float16, torch.bfloat16, torch.float32)

        def cast(values: Iterable[Any]) -> tuple[Any, ...]:
            return map_tensors(lambda t: t.to(dtype) if t.dtype in narrow else t, values)

        operands, kwargs = cast(operands), dict(zip(kwargs, cast(kwargs.values()), strict=True))
    return composite_op("attention")(*operands, **kwargs)


def _recurrent(name: str) -> Function:
    return functools.partial(run_recurrent, name)


INFERENCE_OPS: dict[str, tuple[str, Function]] = {
    "attention": (_ATTENTION, _attention),
    "lstm": (_RNN.format(hidden="[]", results="(Tensor, Tensor, Tensor)"), _recurrent("lstm")),
    **{
        name: (_RNN.format(hidden="", results="(Tensor, Tensor)"), _recurrent(name))
        for name in ("gru", "rnn_tanh", "rnn_relu")
    },
}


register_composite_ops({**INFERENCE_OPS, **TRAINING_OPS}, FAKE_IMPLEMENTATIONS)


def _rnn(name: str) -> Function:
    original = getattr(torch, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_padded_rnn_call(*args, **kwargs):
            return composite_op(name)(*args)
        if is_packed_rnn_call(*args, **kwargs):
            x, sizes, hx, params, *flags = args
            hidden, device = hx if name == "lstm" else [hx], x.device.type
            autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
            return composite_op("packed_recurrent")(name, x, hidden, params, *flags, False, autocast, sizes)
        return original(*args, **kwargs)

    return call


def _return_false(*args: Any) -> bool:
    return False


INFERENCE_REPLACEMENTS: dict[Any, Function] = {
    **PACKED_REPLACEMENTS,
    F.scaled_dot_product_attention: functools.wraps(F.scaled_dot_product_attention)(_attention_under_autocast),
    **{getattr(torch, name): _rnn(name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
"""Replacements for inference, by the torch function that they replace."""


def eager_implementation(target: Any) -> Function | None:
    """Return the implementation of a composite op, to call it without the dispatcher.

    None for other targets. Gradients must be disabled.
    """
    if target is with_effects:
        return run_with_token
    called = called_overload(target)
    if called is None or called.namespace != "engine":
        return None
    composite_ops = registered_composite_ops().get(called.overloadpacket.__name__)
    return None if composite_ops is None else composite_ops[1]


@functools.cache
def _with_replaced_globals(function: types.FunctionType, trains: bool) -> types.FunctionType:
    """Copy a Python function of torch, with composites in its globals replaced."""
    replacements = _replacements(trains)
    namespace = dict(function.__globals__)
    namespace.update(
        {name: replacements[value] for name, value in namespace.items() if _is_replaceable(value, replacements)}
    )
    # Otherwise the function would pass itself, not this copy, to a mode that traces it.
    namespace.update(dict.fromkeys([n for n in namespace if n.startswith("has_torch_function")], _return_false))
    copy = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _replacements(trains: bool) -> dict[Any, Function]:
    return TRAINING_REPLACEMENTS if trains else INFERENCE_REPLACEMENTS


def _is_replaceable(value: Any, replacements: dict[Any, Function]) -> bool:
    return isinstance(value, (types.BuiltinFunctionType, types.FunctionType)) and value in replacements


def replace_composite(target: Any, *, needs_grad: bool = False) -> Any:
    """Return the callable to use for ``target`` so that composites are preserved.

    It is a composite op, a copy of ``target`` that calls one, or ``target``. With ``needs_grad`` it is differentiable.
    """
    if not callable(target) or called_overload(target) is not None:
        return target
    replacements = _replacements(needs_grad)
    if _is_replaceable(target, replacements):
        return replacements[target]
    if target is F.multi_head_attention_forward:
        return _with_replaced_globals(target, needs_grad)
    return target
