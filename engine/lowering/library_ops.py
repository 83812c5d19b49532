"""Operators left to vendor libraries, with the reason for the fallback."""

from __future__ import annotations

from typing import Any

from engine.ir.fallback import Fallback
from engine.ir.introspection.operator_facts import facts_of
from engine.ir.node_values import called_overload
from engine.ir.triton_launches import LAUNCH_NAMESPACE
from engine.lowering.fallbacks.kinds import LoweringFallback
from engine.lowering.philox_ops import random_seeds
from engine.lowering.skipped_triton_kernels import devices_with_own_code
from engine.records.ranks.collectives import COLLECTIVE_NAMESPACES
from engine.torch_private.operators import OpOverload

LIBRARY_OPS = frozenset(
    (
        "mm addmm bmm baddbmm linear _scaled_mm convolution scaled_dot_product_attention "
        "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_fused_attention_overrideable convolution_backward "
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward "
        "_cdist_forward _fft_r2c _fft_c2c _fft_c2r sort topk _cudnn_rnn mkldnn_rnn_layer kthvalue median "
        "nanmedian mode addbmm cholesky cholesky_inverse cholesky_solve geqrf ormqr lu_unpack "
        "triangular_solve lstsq"
    ).split()
)
"""Operators that are not decomposed because a vendor library runs them best."""


_FAST_PATH_OPS = frozenset(("_transformer_encoder_layer_fwd", "_native_multi_head_attention"))
"""Operators that stand for a whole layer of ``nn`` in eval mode without gradients."""
ALLOCATION_OPS = frozenset(("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"))


def is_library_op(target: Any) -> bool:
    """Return True if ATen runs an operator by design: by a library, or without a result."""
    called = called_overload(target)
    if called is None or called.namespace != "aten":
        return called is not None and called.namespace == "engine"
    name = _packet_name(target)
    return facts_of(target).is_linear_algebra or name in LIBRARY_OPS | ALLOCATION_OPS or not called._schema.returns


_NO_LOWERING = Fallback(LoweringFallback.NO_LOWERING, "It has no lowering.")


def library_fallback(target: Any, *, is_complex: bool = False) -> Fallback:
    """Return the reason why ATen runs an operator without a (complex) lowering."""
    if (called := called_overload(target)) is None:
        return _NO_LOWERING
    if called.namespace in COLLECTIVE_NAMESPACES:
        return Fallback(LoweringFallback.NO_LOWERING, "It is a collective: the communication library runs it.")
    if called.namespace not in ("aten", "prims", "engine"):
        is_launch = called.namespace == LAUNCH_NAMESPACE
        description = "hand-written Triton kernel, launched as it is" if is_launch else _custom_op_text(called)
        return Fallback(LoweringFallback.NO_LOWERING, f"It is a {description}.")
    if _packet_name(target) in ALLOCATION_OPS:
        return Fallback(LoweringFallback.ALLOCATION, "It only allocates memory.")
    if not called._schema.returns:
        return Fallback(LoweringFallback.VALUE_CHECK, "It only checks values: it has no result to fuse.")
    if _packet_name(target) in _FAST_PATH_OPS:
        return Fallback(
            LoweringFallback.INFERENCE_FAST_PATH,
            "PyTorch's fast path for inference runs the whole layer as one ATen call.",
        )
    if target is random_seeds:
        return Fallback(
            LoweringFallback.RANDOM_IN_ATEN,
            "PyTorch's generator provides one seed per random tensor; the kernels generate the numbers from it.",
        )
    if is_library_op(target):
        return Fallback(LoweringFallback.LIBRARY_CALL, "A vendor library is the fastest implementation.")
    if is_complex:
        return Fallback(LoweringFallback.COMPLEX_NUMBER, "It has no lowering for complex numbers.")
    if facts_of(target).draws_random:
        return Fallback(
            LoweringFallback.RANDOM_IN_ATEN,
            "ATen generates random numbers, so that a seed gives the same numbers as in eager.",
        )
    return _NO_LOWERING


def _custom_op_text(called: OpOverload) -> str:
    """Return what runs for a custom operator, also for a ``triton_op`` with own code."""
    if devices := devices_with_own_code(called):
        return f"triton_op with code of its own for {' and '.join(devices)}, which runs: no Triton kernel is launched"
    return "custom operator: its own code runs"


def _packet_name(target: OpOverload) -> str:
    name: str = target._schema.name
    return name.split("::")[1]
