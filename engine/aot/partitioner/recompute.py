"""Cost model of the partitioner: which values may be recomputed, and their sizes in bytes."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.fx

from engine.aot.storage_geometry import size_hint
from engine.graph.effect_tokens import is_with_effects
from engine.graph.functionalize_rng import is_random
from engine.graph.passes.eliminate_dead_code import has_effect
from engine.ir.introspection.operator_facts import facts_of_overload
from engine.ir.node_metadata import is_backward_node
from engine.ir.node_values import called_overload, is_scalar, tensor_meta
from engine.torch_private.operators import fft_functions

_EXPENSIVE = (
    frozenset(
        (
            "mm addmm bmm baddbmm addbmm mv addmv dot linear _scaled_mm einsum matmul bilinear _trilinear convolution _convolution "
            "cudnn_convolution mkldnn_convolution slow_conv3d _conv_depthwise2d _scaled_dot_product_flash_attention "
            "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
            "_scaled_dot_product_fused_attention_overrideable _flash_attention_forward _efficient_attention_forward _cdist_forward "
            "_fft_r2c _fft_c2c _fft_c2r _cudnn_rnn mkldnn_rnn_layer _thnn_fused_lstm_cell _thnn_fused_gru_cell sort topk kthvalue median "
            "mode unique unique_consecutive _unique2 cumsum cumprod cummax cummin logcumsumexp native_batch_norm cudnn_batch_norm "
            "_native_batch_norm_legit_functional _batch_norm_with_update_functional scatter scatter_add scatter_reduce index_put "
            "index_add embedding_bag _embedding_bag _ctc_loss grid_sampler_2d grid_sampler_3d upsample_bicubic2d nonzero "
            "max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d linalg_vector_norm"
        ).split()
    )
    | vars(fft_functions).keys()
)
"""ATen operators that do much more work than reading their arguments once."""

_WINDOWS = frozenset(
    (
        "avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d im2col upsample_nearest1d upsample_nearest2d "
        "upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d "
        "upsample_bilinear2d upsample_trilinear3d"
    ).split()
)
"""Operators on windows of the input. On a CPU, ATen runs each without fusion."""

_PRODUCTS = frozenset("mm addmm bmm baddbmm convolution convolution_backward".split())
"""Operators that ATen runs: what they read is in memory."""

_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default


def why_not_recomputable(node: torch.fx.Node) -> str:
    """Return the reason why a node must not be recomputed in backward; empty if it may."""
    if node.op != "call_function":
        return ""
    target = node.target
    called = called_overload(target)
    if called is None:
        if is_with_effects(node):
            return "it has side effects, which must happen only once"
        return "" if target is operator.getitem or is_scalar(node) else "it is not an operator"
    if is_random(node):
        return "it generates random numbers, which must be the same in forward and backward"
    if has_effect(node):
        return "it may have side effects, which must happen only once"
    facts = facts_of_overload(called)
    if called.namespace not in ("aten", "prims"):
        return "an operator outside of ATen is assumed to be expensive"
    if facts.name in _EXPENSIVE or facts.is_linear_algebra or facts.is_backward:
        return "it is expensive"
    value = tensor_meta(node)
    if value is None or value.device.type != "cpu":
        return ""
    if facts.name in _WINDOWS:
        return "on a CPU it is expensive: no kernel fuses it with others"
    if not is_view(node) and {True, False} <= set(_products_in_backward(node)):
        return "products read it in forward and backward: on a CPU, reading it takes less time than computing it"
    return ""


def _products_in_backward(node: torch.fx.Node) -> Iterator[bool]:
    """Yield True for a product in the backward that reads a value or its view, else False."""
    for user in node.users:
        called = called_overload(user.target)
        if called is not None and facts_of_overload(called).name in _PRODUCTS:
            yield is_backward_node(user)
        elif is_view(user):
            yield from _products_in_backward(user)


def is_view(node: torch.fx.Node) -> bool:
    """Return True if a node is a view of an argument: free to recompute, useless to save."""
    called = called_overload(node.target)
    if called is None or not (called is _UNSAFE_VIEW or facts_of_overload(called).is_view):
        return False
    return bool(node.all_input_nodes)  # a view of a constant has no input nodes


def view_base_node(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node at the start of a chain of views, and of items of multi-output views."""
    while is_view(node) or (node.target is operator.getitem and is_view(node.all_input_nodes[0])):
        node = node.all_input_nodes[0]
    return node


def num_bytes(value: Any, unknown: int = 4096) -> int:
    """Return the bytes of a tensor, with symbols at their size hints. A scalar counts 8 bytes.

    An unbacked symbol counts as ``unknown``: a guess for costs, 0 for figures that a person reads.
    """
    if not isinstance(value, torch.Tensor):
        return 8
    sizes = (size_hint(size) for size in value.shape)
    return math.prod(unknown if s is None else s for s in sizes) * value.element_size()


def unknown_bytes(values: Iterable[Any]) -> str:
    """Return the bytes of tensors whose sizes only a run gives, as an expression of symbols."""
    sized = (v for v in values if isinstance(v, torch.Tensor) and any(size_hint(s) is None for s in v.shape))
    return " + ".join(str(v.numel() * v.element_size()) for v in sized)
