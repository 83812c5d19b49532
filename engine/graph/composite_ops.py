"""Operators of ours that keep device-dependent composites whole, so that one graph serves every target.

Traced on a CPU, attention would become a CPU-only operator and an LSTM one of a CPU library. They are exchanged for ``engine::...`` before
ATen, which run what torch would run on the device at hand; where gradients are needed, for operators with a backward of ours
(``engine.graph.composite_ops_autograd``). Random operators need no exchange: they reach ATen as ``bernoulli`` and the like, and draw the same
numbers.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch._higher_order_ops.effects import with_effects

from engine.graph.effect_tokens import run_with_token

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
    found = F.scaled_dot_product_attention(query, key, value, *args, **kwargs)
    # An operator may not return a view of an argument.
    return found.clone() if any(found is t or found._base is t for t in (query, key, value)) else found


def _recurrent(name: str) -> Function:
    def run(x: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], *args: Any) -> tuple[torch.Tensor, ...]:
        found: tuple[torch.Tensor, ...] = tuple(getattr(torch, name)(x, hx, params, *args))
        return found

    return run


INFERENCE_OPS: dict[str, tuple[str, Function]] = {
    "attention": (_ATTENTION, _attention),
    "lstm": (_RNN.format(hidden="[]", results="(Tensor, Tensor, Tensor)"), _recurrent("lstm")),
    **{
        name: (_RNN.format(hidden="", results="(Tensor, Tensor)"), _recurrent(name))
        for name in ("gru", "rnn_tanh", "rnn_relu")
    },
}


def composite_ops() -> dict[str, tuple[str, Function]]:
    """Schema and implementation of every operator of ours, by name."""
    from engine.graph.composite_ops_autograd import TRAINING_OPS as WITH_BACKWARD

    return {**INFERENCE_OPS, **WITH_BACKWARD}


@functools.cache
def _library() -> torch.library.Library:
    from engine.graph.composite_ops_autograd import FAKE_IMPLEMENTATIONS

    library = torch.library.Library("engine", "FRAGMENT")
    for name, (schema, run) in composite_ops().items():
        draws = (torch.Tag.nondeterministic_seeded,) if "dropout" in schema else ()
        library.define(f"{name}{schema}", tags=(*draws, torch.Tag.needs_exact_strides))
        library.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"engine::{name}", FAKE_IMPLEMENTATIONS.get(name, run), lib=library)
    return library


def composite_op(name: str) -> Any:
    """The operator of ours with this name."""
    _library()
    return getattr(torch.ops.engine, name).default


def _replaced(name: str, original: Function, admits: Callable[..., bool]) -> Function:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return composite_op(name)(*args, **kwargs) if admits(*args, **kwargs) else original(*args, **kwargs)

    return call


def is_padded_rnn_call(*args: Any, **kwargs: Any) -> bool:
    """The form of an RNN whose input is one tensor; packed sequences have batch sizes in second place, and no flag in last."""
    return len(args) == 9 and not kwargs and isinstance(args[-1], bool) and isinstance(args[2], (list, tuple))


def _never(*args: Any) -> bool:
    return False


def _always(*args: Any, **kwargs: Any) -> bool:
    return True


INFERENCE_REPLACEMENTS: dict[Any, Function] = {
    F.scaled_dot_product_attention: _replaced("attention", F.scaled_dot_product_attention, _always),
    **{
        getattr(torch, name): _replaced(name, getattr(torch, name), is_padded_rnn_call)
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    },
}
"""What is exchanged, and for what."""


def eager_implementation(target: Any) -> Function | None:
    """What an operator of ours runs, to be called without the dispatcher in between; None for all others. Gradients must be off."""
    if target is with_effects:
        return run_with_token
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "engine":
        return None
    known = composite_ops().get(target._schema.name.removeprefix("engine::"))
    return None if known is None else known[1]


@functools.cache
def _with_replaced_globals(function: types.FunctionType, trains: bool) -> types.FunctionType:
    """A copy of one of torch's Python functions that finds composites of ours where it names torch's."""
    known = _replacements(trains)
    found = dict(function.__globals__)
    found.update({name: known[value] for name, value in found.items() if _is_replaceable(value, known)})
    # Else the function would hand itself, not this copy, to whatever mode traces it.
    found.update(dict.fromkeys([n for n in found if n.startswith("has_torch_function")], _never))
    copy = types.FunctionType(function.__code__, found, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _replacements(trains: bool) -> dict[Any, Function]:
    if not trains:
        return INFERENCE_REPLACEMENTS
    from engine.graph.composite_ops_autograd import TRAINING_REPLACEMENTS

    return TRAINING_REPLACEMENTS


def _is_replaceable(value: Any, known: dict[Any, Function]) -> bool:
    return isinstance(value, (types.BuiltinFunctionType, types.FunctionType)) and value in known


def replace_composite(target: Any, *, needs_grad: bool = False) -> Any:
    """What to call for ``target`` so that composites stay whole: an operator of ours, a copy that calls one, or the target itself.

    With ``trains`` it can be differentiated.
    """
    if not callable(target) or isinstance(target, torch._ops.OpOverload):
        return target
    known = _replacements(needs_grad)
    if _is_replaceable(target, known):
        return known[target]
    if target is F.multi_head_attention_forward:
        return _with_replaced_globals(target, needs_grad)
    return target
