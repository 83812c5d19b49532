"""Composite ops with a backward: a forward op and a backward op in an autograd.Function.

Attention saves what torch's own kernel saves. So do recurrent layers of cuDNN; others save their inputs and, on the
CPU, torch's own autograd graph, which an empty tensor carries to the backward. Without it the backward recomputes the
forward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from engine.graph import cudnn_recurrent
from engine.graph.composite_op_registry import composite_op
from engine.graph.packed_sequences import PACKED_FAKES, PACKED_OPS, PACKED_REPLACEMENTS
from engine.graph.recurrent_layers import empty_input_grad, run_recurrent
from engine.ir.node_values import map_tensors, tensors_in
from engine.torch_private.dispatch import disable_current_modes
from engine.torch_private.operators import fused_sdp_choice

Function = Callable[..., Any]
aten = torch.ops.aten

_ATTENTION = (
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale) -> (Tensor, Tensor)"
)
_ATTENTION_BACKWARD = (
    "(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, Tensor? attn_mask, bool is_causal, "
    "float? scale) -> (Tensor, Tensor, Tensor)"
)
_RNN_ARGUMENTS = (
    "str kind, Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, "
    "bool bidirectional, bool batch_first, ScalarType? autocast, Tensor? batch_sizes=None"
)
HISTORY_ATTR = "engine_history"
"""Attribute of the carrier: the layer's outputs, with torch's graph, and its leaves."""


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    kernel = aten._scaled_dot_product_flash_attention_for_cpu.default
    out, logsumexp = kernel(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)
    return out, logsumexp


def _attention_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, ...]:
    kernel = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return tuple(kernel(grad, query, key, value, out, logsumexp, 0.0, is_causal, attn_mask=mask, scale=scale))


def _recurrent(
    kind: str, x: torch.Tensor, hidden: Sequence[torch.Tensor], params: Sequence[torch.Tensor], *flags: Any
) -> list[torch.Tensor]:
    """Run the forward with gradients enabled; the last result carries its autograd graph.

    With gradients disabled, torch may use another library.
    """
    with torch.enable_grad():
        leaves = _leaves(x, hidden, params)
        outputs = _outputs(kind, *leaves, *flags)
    carrier = torch.empty(0, dtype=torch.uint8, device=x.device)
    if x.device.type == "cpu":  # a CUDA graph would replay kernels without Python
        setattr(carrier, HISTORY_ATTR, (outputs, leaves))
    return [*(t.detach() for t in outputs), carrier]


def _recurrent_backward(
    grads: Sequence[torch.Tensor | None],
    needed_inputs: Sequence[int],
    carrier: torch.Tensor,
    kind: str,
    x: torch.Tensor,
    hidden: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    *flags: Any,
) -> list[torch.Tensor]:
    """Return the gradients of input, states and parameters at the positions ``needed_inputs``."""
    with torch.enable_grad():
        history = getattr(carrier, HISTORY_ATTR, None)  # lost if a hook of saved tensors copied them
        if history is None:
            leaves = _leaves(x, hidden, params)
            history = _outputs(kind, *leaves, *flags), leaves
        outputs, (x, hidden, params) = history
        operands = (x, *hidden, *params)
        inputs = [operands[n] for n in needed_inputs]
        defined = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if grad is not None]
        gradients = torch.autograd.grad(
            [out for out, _ in defined], inputs, [grad for _, grad in defined], retain_graph=True, allow_unused=True
        )
    empty = (
        torch.empty_like(i) if n else empty_input_grad(i, is_batch_first=flags[5])
        for n, i in zip(needed_inputs, inputs, strict=True)
    )
    return [e.zero_() if g is None else g for e, g in zip(empty, gradients, strict=True)]


def _outputs(
    kind: str, x: torch.Tensor, hidden: Sequence[torch.Tensor], params: Sequence[torch.Tensor], *flags: Any
) -> tuple[torch.Tensor, ...]:
    *flags, autocast, batch_sizes = (*flags, None)[:8]  # type: ignore[assignment]
    states = list(hidden) if kind == "lstm" else hidden[0]
    if autocast is None and not torch.is_autocast_enabled(x.device.type):
        return run_recurrent(kind, x, states, list(params), *flags, batch_sizes=batch_sizes)
    with torch.autocast(x.device.type, dtype=autocast, enabled=autocast is not None):
        return run_recurrent(kind, x, states, list(params), *flags, batch_sizes=batch_sizes)


def _leaves(
    x: torch.Tensor, hidden: Sequence[torch.Tensor], params: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    leaves = [t.detach().requires_grad_() for t in (x, *hidden, *params)]
    return leaves[0], leaves[1 : 1 + len(hidden)], leaves[1 + len(hidden) :]


TRAINING_OPS: dict[str, tuple[str, Function]] = {
    "packed_recurrent": (f"({_RNN_ARGUMENTS}) -> Tensor[]", _outputs),
    "attention_with_backward": (_ATTENTION, _attention),
    "attention_backward": (_ATTENTION_BACKWARD, _attention_backward),
    "recurrent": (f"({_RNN_ARGUMENTS}) -> Tensor[]", _recurrent),
    "recurrent_backward": (
        f"(Tensor?[] grads, int[] wanted, Tensor carrier, {_RNN_ARGUMENTS}) -> Tensor[]",
        _recurrent_backward,
    ),
    **cudnn_recurrent.CUDNN_OPS,
    **PACKED_OPS,
}


def _fake_recurrent(*args: Any) -> list[torch.Tensor]:
    return [*_fake_outputs(*args), args[1].new_empty(0, dtype=torch.uint8)]


def _fake_outputs(*args: Any) -> list[torch.Tensor]:
    kind, x, hidden, params, *flags = args
    autocast, *batch_sizes = flags[6:]
    if autocast is None:
        return list(_outputs(*args))
    with disable_current_modes():
        dtypes_in = x.dtype, hidden[0].dtype, params[0].dtype
        facts = kind, *dtypes_in, flags[0], x.device.type, autocast, bool(batch_sizes)
        dtypes = _autocast_result_dtypes(*facts)
    alike = [t.to(params[0].dtype) for t in (x, *hidden)]
    outputs = _outputs(kind, alike[0], alike[1:], params, *flags[:6], None, *batch_sizes)
    return [torch.empty_like(t, dtype=d) for t, d in zip(outputs, dtypes, strict=True)]


@functools.cache
def _autocast_result_dtypes(*layer: Any) -> list[torch.dtype]:
    """Return the result dtypes of a recurrent layer under autocast, using a minimal layer.

    ``layer`` is what ``_minimal_layer`` takes. Autocast does not work on fake tensors.
    """
    results = _recurrent(*_minimal_layer(*layer))
    return [t.dtype for t in results[:-1]]


def _minimal_layer(
    kind: str,
    input_dtype: torch.dtype,
    state: torch.dtype,
    weight: torch.dtype,
    has_biases: bool,
    device: str,
    autocast: torch.dtype | None,
    is_packed: bool = False,
) -> tuple[Any, ...]:
    """Return the arguments of a recurrent layer whose sizes are all 1."""
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    weights = [torch.zeros(gates, 1, dtype=weight, device=device)] * 2
    biases = [torch.zeros(gates, dtype=weight, device=device)] * (2 if has_biases else 0)
    hidden = [torch.zeros(1, 1, 1, dtype=state, device=device)] * (2 if kind == "lstm" else 1)
    x = torch.zeros((1, 1) if is_packed else (1, 1, 1), dtype=input_dtype, device=device)
    batch_sizes = [torch.ones(1, dtype=torch.int64)] if is_packed else []
    return kind, x, hidden, [*weights, *biases], has_biases, 1, 0.0, True, False, False, autocast, *batch_sizes


def _saves_output(kind: str, x: torch.Tensor, rest: Sequence[torch.Tensor], flags: tuple[Any, ...]) -> bool:
    """Return True if torch's graph of this layer saves the output, as that of oneDNN does."""
    has_biases, layers, _, _, is_bidirectional, _, autocast = flags
    hidden = 2 if kind == "lstm" else 1
    has_projection = len(rest) - hidden > layers * (4 if has_biases else 2)
    if is_bidirectional or has_projection:
        return False
    with disable_current_modes():
        return _minimal_layer_saves_output(kind, x.dtype, rest[0].dtype, rest[-1].dtype, has_biases, "cpu", autocast)


@functools.cache
def _minimal_layer_saves_output(*layer: Any) -> bool:
    kind, x, hidden, params, *flags = _minimal_layer(*layer)
    with torch.enable_grad():
        x, hidden, params = _leaves(x, hidden, params)
        output = _outputs(kind, x, hidden, params, *flags)[0]
        output.detach().zero_()  # shares the version counter
        try:
            torch.autograd.grad(output.sum(), x)
        except RuntimeError:
            return True
    return False


def _fake_recurrent_backward(
    grads: Any, needed_inputs: Sequence[int], carrier: Any, kind: str, x: Any, hidden: Any, params: Any, *flags: Any
) -> Any:
    operands = (x, *hidden, *params)
    return [torch.empty_like(operands[n]) if n else empty_input_grad(x, is_batch_first=flags[5]) for n in needed_inputs]


FAKE_IMPLEMENTATIONS: dict[str, Function] = {
    "packed_recurrent": _fake_outputs,
    "recurrent": _fake_recurrent,
    "recurrent_backward": _fake_recurrent_backward,
    **cudnn_recurrent.CUDNN_FAKES,
    **PACKED_FAKES,
}
"""Fake implementations, for ops whose implementation needs autograd.

Autograd does not work on fake tensors.
"""


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: float | None) -> Any:
        out, logsumexp = composite_op("attention_with_backward")(query, key, value, mask, is_causal, scale)
        ctx.save_for_backward(query, key, value, out, logsumexp, mask)
        ctx.options = (is_causal, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *saved, mask = ctx.saved_tensors
        return *composite_op("attention_backward")(grads[0], *saved, mask, *ctx.options), None, None, None


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: str, hidden: int, sizes: int, flags: tuple[Any, ...], x: Any, *tensors: Any) -> Any:
        states, params, batch_sizes = _split(tensors, hidden, sizes)
        *results, carrier = composite_op("recurrent")(kind, x, states, params, *flags, *batch_sizes)
        # The backward reads no output, but autograd checks that those which torch's own graph saves are not written.
        saves = x.device.type == "cpu" and not sizes and _saves_output(kind, x, tensors, flags)
        ctx.save_for_backward(carrier, x, *tensors, *(results[:1] if saves else []))
        ctx.set_materialize_grads(False)
        ctx.options = (kind, hidden, sizes, flags)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        kind, hidden, sizes, flags = ctx.options
        needed: tuple[bool, ...] = ctx.needs_input_grad[4:]
        carrier, x, *tensors = ctx.saved_tensors[: len(needed) + 1]
        needed_inputs = [n for n, is_needed in enumerate(needed) if is_needed]
        states, params, batch_sizes = _split(tensors, hidden, sizes)
        layer = (kind, x, states, params, *flags, *batch_sizes)
        gradients = iter(composite_op("recurrent_backward")(list(grads), needed_inputs, carrier, *layer))
        return None, None, None, None, *(next(gradients) if is_needed else None for is_needed in needed)


def _split(tensors: Sequence[Any], hidden: int, sizes: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Return states, parameters, and the batch sizes of packed input."""
    end = len(tensors) - sizes
    return list(tensors[:hidden]), list(tensors[hidden:end]), list(tensors[end:])


def _sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    original = F.scaled_dot_product_attention
    arguments = (query, key, value, attn_mask, dropout_p, is_causal)
    if not _is_flash_on_cpu(*arguments, scale=scale, enable_gqa=enable_gqa):
        return original(*arguments, scale=scale, enable_gqa=enable_gqa)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        fill = torch.full((), float("-inf"), dtype=query.dtype, device=query.device)
        attn_mask = torch.where(attn_mask, torch.zeros((), dtype=query.dtype, device=query.device), fill)
    if query.dim() == 4:
        return _Attention.apply(query, key, value, attn_mask, is_causal, scale)  # type: ignore[no-untyped-call, unused-ignore]
    # since torch 2.14, eager adds a batch too
    mask = attn_mask[None] if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
    return _Attention.apply(query[None], key[None], value[None], mask, is_causal, scale)[0]  # type: ignore[no-untyped-call, unused-ignore]


def _is_flash_on_cpu(query: torch.Tensor, *rest: Any, **options: Any) -> bool:
    """Return True if eager would use the CPU's fused attention kernel.

    The ATen op of that kernel in a graph would be useless to other devices.
    torch chooses for real tensors of the same layout, because it chooses differently for others.
    """
    operands = tensors_in((query, *rest))
    if any(t.device.type != "cpu" or t._has_symbolic_sizes_strides for t in operands):
        return False
    if torch.is_autocast_enabled("cpu"):  # torch's own function includes the casts
        return False
    layouts = [(tuple(t.shape), t.stride(), t.dtype, t.requires_grad) for t in operands]
    with disable_current_modes():
        probes: Any = iter([torch.empty_strided(n, s, dtype=d).requires_grad_(g) for n, s, d, g in layouts])
        fake_operands = map_tensors(lambda _: next(probes), (query, *rest))
        choose: Function = fused_sdp_choice
        return int(choose(*fake_operands, **options)) == SDPBackend.FLASH_ATTENTION.value


def _run_layer_by_layer(
    call: Function, kind: str, x: Any, sizes: list[Any], hx: Any, params: Sequence[Any], flags: Sequence[Any]
) -> Any:
    """Run stacked recurrent layers with dropout between them, time-major.

    Dropout samples the same random numbers as torch's own stack.
    """
    biases, layers, dropout, train, bidirectional, batch_first = flags
    each, ways = len(params) // layers, 2 if bidirectional else 1
    states = list(hx) if kind == "lstm" else [hx]
    last: list[list[Any]] = [[] for _ in states]
    x = x.transpose(0, 1) if batch_first else x
    for n in range(layers):
        own = [h[n * ways : (n + 1) * ways] for h in states]
        layer_state = tuple(own) if kind == "lstm" else own[0]
        weights = list(params[n * each : (n + 1) * each])
        options = (biases, 1, 0.0, train, bidirectional, *([] if sizes else [False]))
        x, *ended = call(x, *sizes, layer_state, weights, *options)
        for so_far, h in zip(last, ended, strict=True):
            so_far.append(h)
        x = F.dropout(x, dropout, True) if n < layers - 1 else x
    return (x.transpose(0, 1) if batch_first else x, *(torch.cat(h) for h in last))


def is_padded_rnn_call(*args: Any, **kwargs: Any) -> bool:
    """Return True if the input of an RNN call is padded: a flag follows three arguments."""
    return len(args) == 9 and not kwargs and isinstance(args[3], bool)


def is_packed_rnn_call(*args: Any, **kwargs: Any) -> bool:
    """Return True if the input of an RNN call is packed: batch sizes are its second argument."""
    return len(args) == 9 and not kwargs and not is_padded_rnn_call(*args)


def _rnn(kind: str) -> Function:
    original = getattr(torch, kind)

    def call(*args: Any, **kwargs: Any) -> Any:
        sizes = []
        if is_packed_rnn_call(*args, **kwargs):
            x, *sizes, hx, params = args[:4]
            flags: list[Any] = [*args[4:], False]
        elif is_padded_rnn_call(*args, **kwargs):
            x, hx, params, *flags = args
        else:
            return original(*args, **kwargs)
        _, layers, dropout, train, _, _ = flags
        if dropout and train and layers > 1:
            return _run_layer_by_layer(call, kind, x, sizes, hx, params, flags)
        hidden = tuple(hx) if kind == "lstm" else (hx,)
        device = x.device.type
        is_autocast = torch.is_autocast_enabled(device)
        if not (is_autocast or sizes) and cudnn_recurrent.is_run_by_cudnn(x, params, flags):
            return cudnn_recurrent.run(kind, hidden, tuple(flags), x, params)
        flags.append(torch.get_autocast_dtype(device) if is_autocast else None)
        return _Recurrent.apply(kind, len(hidden), len(sizes), tuple(flags), x, *hidden, *params, *sizes)  # type: ignore[no-untyped-call, unused-ignore]

    return call


TRAINING_REPLACEMENTS: dict[Any, Function] = {
    **PACKED_REPLACEMENTS,
    F.scaled_dot_product_attention: _sdpa,
    **{getattr(torch, kind): _rnn(kind) for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
"""Replacements for training, by the torch function that they replace."""
