"""Torch's private names for operators, their overloads and registries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import load_into

if TYPE_CHECKING:
    from torch._C import _get_privateuse1_backend_name as get_privateuse1_backend_name
    from torch._C import _group_tensors_by_device_and_dtype as group_tensors_by_device_and_dtype
    from torch._C import _infer_size as infer_size
    from torch._C import _log_api_usage_once as log_api_usage_once
    from torch._C import _VariableFunctions as VariableFunctions
    from torch._decomp import decomposition_table
    from torch._library import custom_ops, simple_registry
    from torch._library.custom_ops import OPDEFS, CustomOpDef
    from torch._library.effects import EffectType
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
    from torch._prims_common import (
        ELEMENTWISE_TYPE_PROMOTION_KIND,
        elementwise_dtypes,
        is_non_overlapping_and_dense_or_false,
    )
    from torch._refs import tensor as tensor_from_symbols
    from torch.library import _impls as python_kernels

    def __getattr__(name: str) -> Any: ...


ENTRIES = load_into(globals())("""
If missing, nothing can be traced (COMPILATION):
    class torch._ops:OpOverload -- One overload of an operator.
    class torch._ops:OpOverloadPacket -- All overloads of an operator.
    class torch._ops:HigherOrderOperator -- Operators that take functions.
If missing, functions of torch are not recognized (COMPILATION):
    value torch._C:_VariableFunctions -- Namespace of torch's functions in C.
    module torch._C:_nn alias=nn_functions -- Namespace of functions of torch.nn in C.
    module torch._C:_fft alias=fft_functions -- Namespace of functions of torch.fft in C.
    module torch._C:_linalg alias=linalg_functions -- Namespace of functions of torch.linalg in C.
    module torch._C:_sparse alias=sparse_functions -- Namespace of functions of torch.sparse in C.
    module torch._C:_special alias=special_functions -- Namespace of functions of torch.special in C.
If missing, graphs are not lowered (KERNELS):
    table torch._decomp:decomposition_table -- Torch's decompositions of ATen operators.
    class torch._prims_common:ELEMENTWISE_TYPE_PROMOTION_KIND members=ALWAYS_BOOL,DEFAULT,INT_TO_FLOAT
        -- Kinds of type promotion.
    function torch._prims_common:elementwise_dtypes -- Computes promoted dtypes.
If missing, graphs with such operators are not stored on disk (DISK_CACHE):
    module torch._library:custom_ops -- Module of user-defined operators, part of cache keys.
    module torch._library:simple_registry -- Registry of fake implementations, part of cache keys.
If missing, calls of such operators are not recognized (COMPILATION):
    class torch._library.custom_ops:CustomOpDef -- User-defined operator.
    table torch._library.custom_ops:OPDEFS -- User-defined operators by name.
If missing, graphs with effects run as traced (FUNCTIONAL_GRAPHS):
    class torch._library.effects:EffectType members=ORDERED -- Kinds of operators with effects.
If missing, backwards are not compiled (FUNCTIONAL_GRAPHS):
    function torch._prims_common:is_non_overlapping_and_dense_or_false (a)
        -- Asks for a dense layout of a tensor with symbols.
If missing, tensors made of symbols break the graph:
    function torch._refs:tensor (a) alias=tensor_from_symbols -- Makes a tensor of symbols.
If missing, nothing is stored on disk (DISK_CACHE):
    value torch.library:_impls alias=python_kernels -- Kernels registered in Python, part of cache keys.
If missing, optimizers with foreach break the graph:
    function torch._C:_group_tensors_by_device_and_dtype (a, b) -- Groups tensors for foreach operators of optimizers.
    function torch._C:_get_privateuse1_backend_name () -- Name of a device that an extension adds.
If missing, traced code that calls it breaks the graph:
    function torch._C:_infer_size -- Broadcasts shapes in traced code.
    function torch._C:_log_api_usage_once -- Logs in traced code, without an effect.
    function torch:_assert alias=torch_assert -- Traced assertion.
    function torch:_check_tensor_all alias=torch_check_tensor_all
        -- Traced condition on a tensor, which becomes a run-time check.
    function torch:_check_index alias=torch_check_index -- Traced condition.
    function torch:_check_not_implemented alias=torch_check_not_implemented -- Traced condition.
    function torch:_check_type alias=torch_check_type -- Traced condition.
    function torch:_check_value alias=torch_check_value -- Traced condition.
    function torch:_pack_padded_sequence -- Packs sequences in traced code.
    function torch:_pad_packed_sequence -- Unpacks sequences in traced code.
    function torch:_shape_as_tensor -- Makes a tensor of a shape.
If missing, conditions on unbacked symbols are not emitted (COMPILATION):
    function torch:_check (a) alias=torch_check -- Traced condition, which becomes a run-time check.
If missing, writes to such tensors are not recognized (COMPILATION):
    function torch:_debug_has_internal_overlap (a) -- Asks if elements of a tensor share memory.
If missing, attention that is differentiated breaks the graph:
    function torch:_fused_sdp_choice -- Chooses the attention kernel.
If missing, views with the negative bit are not rebuilt (FUNCTIONAL_GRAPHS):
    function torch:_neg_view -- Rebuilds a view with the negative bit.
""")
