"""Recurrent layers of cuDNN in training, with the state that their backward reads.

torch keeps this state, the reserve, in autograd's node. Without it the backward would have to run the forward again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.backends.cudnn

from engine.graph.composite_op_registry import composite_op
from engine.graph.recurrent_layers import empty_input_grad, run_recurrent
from engine.torch_private.dispatch import disable_current_modes

_ARGUMENTS = (
    "str kind, Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, "
    "bool bidirectional, bool batch_first"
)
aten = torch.ops.aten
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""cuDNN's numbers of the kinds of layers."""


def is_run_by_cudnn(x: torch.Tensor, params: Sequence[torch.Tensor], flags: Sequence[Any]) -> bool:
    """Return True if cuDNN trains the layer, and the size of its reserve can be known."""
    biases, layers, _, train, bidirectional, _ = flags
    is_plain = len(params) == layers * (2 if bidirectional else 1) * (4 if biases else 2)  # no projections
    is_known = not any(t._has_symbolic_sizes_strides for t in (x, *params))
    return train and is_plain and is_known and x.is_cuda and bool(torch.backends.cudnn.is_acceptable(x))


def run(kind: str, hidden: Sequence[torch.Tensor], flags: tuple[Any, ...], x: Any, params: Sequence[Any]) -> Any:
    """Run a layer that ``is_run_by_cudnn``; the results are differentiable once."""
    layouts = tuple((tuple(t.shape), t.stride(), t.dtype) for t in (x, *hidden, *params))
    size = _reserve_bytes(kind, len(hidden), flags, layouts, str(x.device))
    return _CudnnRecurrent.apply(kind, len(hidden), flags, size, x, *hidden, *params)  # type: ignore[no-untyped-call, unused-ignore]


def _call(kind: str, x: Any, hidden: Sequence[Any], params: Sequence[Any], flags: Sequence[Any]) -> tuple[Any, ...]:
    return run_recurrent(kind, x, list(hidden) if kind == "lstm" else hidden[0], list(params), *flags)


def _forward(
    kind: str, x: torch.Tensor, hidden: Sequence[torch.Tensor], params: Sequence[torch.Tensor], *rest: Any
) -> list[torch.Tensor]:
    *flags, _ = rest
    with torch.enable_grad():
        x, *leaves = (t.detach().requires_grad_() for t in (x, *hidden, *params))
        results = _call(kind, x, leaves[: len(hidden)], leaves[len(hidden) :], flags)
        node: Any = results[0].grad_fn
        while node is not None and not hasattr(node, "_saved_result3"):  # a view of the result comes after it
            node = node.next_functions[0][0]
    if node is None:
        raise RuntimeError("cuDNN no longer runs this recurrent layer, which was compiled for it. Call engine.reset().")
    return [*(t.detach() for t in results), node._saved_result3]


@functools.lru_cache(maxsize=64)
def _reserve_bytes(kind: str, hidden: int, flags: tuple[Any, ...], layouts: tuple[Any, ...], device: str) -> int:
    """Return the bytes of the reserve; only cuDNN knows them, so the layer runs once."""
    with disable_current_modes():
        x, *tensors = (torch.empty_strided(n, s, dtype=d, device=device).zero_() for n, s, d in layouts)
        return _forward(kind, x, tensors[:hidden], tensors[hidden:], *flags, 0)[-1].numel()


def _fake_forward(kind: str, x: Any, hidden: Sequence[Any], params: Sequence[Any], *rest: Any) -> list[torch.Tensor]:
    *_, bidirectional, batch_first, size = rest
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    out = x.new_empty(steps, batch, hidden[0].shape[2] * (2 if bidirectional else 1))
    states = [x.new_empty(h.shape) for h in hidden]
    return [out.transpose(0, 1) if batch_first else out, *states, x.new_empty(size, dtype=torch.uint8)]


def _backward(
    grads: Sequence[torch.Tensor],
    out: torch.Tensor,
    reserve: torch.Tensor,
    kind: str,
    x: torch.Tensor,
    hidden: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    *flags: Any,
) -> list[torch.Tensor]:
    biases, layers, dropout, train, bidirectional, batch_first = flags
    each, size = 4 if biases else 2, hidden[0].shape[2]
    # Flattening puts other storages into the tensors it gets.
    alike = [torch.empty(0, dtype=p.dtype, device=p.device).set_(p.detach()) for p in params]  # type: ignore[call-overload]
    sizes = (_MODES[kind], size, 0, layers)
    flat = aten._cudnn_rnn_flatten_weight.default(alike, each, x.shape[2], *sizes, batch_first, bidirectional)
    arguments = (x, list(params), each, flat, hidden[0], hidden[1] if kind == "lstm" else None, out)
    options: tuple[Any, ...] = (*sizes, batch_first, dropout, train, bidirectional, [], None)
    dx, dhx, dcx, weights = aten._cudnn_rnn_backward.default(
        *arguments,
        grads[0],
        grads[1],
        grads[2] if kind == "lstm" else None,
        *options,
        reserve.clone(),  # cuDNN writes to it
        [True, True, kind == "lstm", True],
    )
    return [dx, dhx, *([dcx] if kind == "lstm" else []), *weights]


def _fake_backward(
    grads: Any, out: Any, reserve: Any, kind: str, x: Any, hidden: Sequence[Any], params: Sequence[Any], *flags: Any
) -> list[torch.Tensor]:
    grad = empty_input_grad(x, is_batch_first=flags[-1])
    return [grad, *(torch.empty_like(t) for t in (*hidden, *params))]


CUDNN_OPS: dict[str, tuple[str, Callable[..., Any]]] = {
    "cudnn_recurrent": (f"({_ARGUMENTS}, int reserve_bytes) -> Tensor[]", _forward),
    "cudnn_recurrent_backward": (f"(Tensor[] grads, Tensor out, Tensor reserve, {_ARGUMENTS}) -> Tensor[]", _backward),
}
CUDNN_FAKES: dict[str, Callable[..., Any]] = {
    "cudnn_recurrent": _fake_forward,
    "cudnn_recurrent_backward": _fake_backward,
}


class _CudnnRecurrent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: str, hidden: int, flags: tuple[Any, ...], size: int, x: Any, *tensors: Any) -> Any:
        *results, reserve = composite_op("cudnn_recurrent")(
            kind, x, list(tensors[:hidden]), list(tensors[hidden:]), *flags, size
        )
        ctx.save_for_backward(results[0], reserve, x, *tensors)
        ctx.options = (kind, hidden, flags)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        kind, hidden, flags = ctx.options
        out, reserve, x, *tensors = ctx.saved_tensors
        gradients = composite_op("cudnn_recurrent_backward")(
            list(grads), out, reserve, kind, x, tensors[:hidden], tensors[hidden:], *flags
        )
        return None, None, None, None, *gradients
