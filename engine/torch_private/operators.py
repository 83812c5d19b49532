"""Torch's private names for operators, their overloads and registries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import (
    Feature,
    IfMissing,
    declare,
    declare_class,
    declare_module,
    declare_table,
    declare_value,
    load,
)

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

    nn_functions: Any
    fft_functions: Any
    linalg_functions: Any
    sparse_functions: Any
    special_functions: Any
    torch_assert: Any
    torch_check: Any
    torch_check_index: Any
    torch_check_not_implemented: Any
    torch_check_tensor_all: Any
    torch_check_type: Any
    torch_check_value: Any
    debug_has_internal_overlap: Any
    fused_sdp_choice: Any
    neg_view: Any
    pack_padded_sequence: Any
    pad_packed_sequence: Any
    shape_as_tensor: Any

ENTRIES = (
    *IfMissing("nothing can be traced", Feature.COMPILATION).entries(
        declare_class("torch._ops:OpOverload", "One overload of an operator."),
        declare_class("torch._ops:OpOverloadPacket", "All overloads of an operator."),
        declare_class("torch._ops:HigherOrderOperator", "Operators that take functions."),
    ),
    *IfMissing("functions of torch are not recognized", Feature.COMPILATION).entries(
        declare_value("torch._C:_VariableFunctions", "Namespace of torch's functions in C."),
        declare_module("torch._C:_nn", "Namespace of functions of torch.nn in C.", alias="nn_functions"),
        declare_module("torch._C:_fft", "Namespace of functions of torch.fft in C.", alias="fft_functions"),
        declare_module("torch._C:_linalg", "Namespace of functions of torch.linalg in C.", alias="linalg_functions"),
        declare_module("torch._C:_sparse", "Namespace of functions of torch.sparse in C.", alias="sparse_functions"),
        declare_module("torch._C:_special", "Namespace of functions of torch.special in C.", alias="special_functions"),
    ),
    *IfMissing("graphs are not lowered", Feature.KERNELS).entries(
        declare_table("torch._decomp:decomposition_table", "Torch's decompositions of ATen operators."),
        declare_class(
            "torch._prims_common:ELEMENTWISE_TYPE_PROMOTION_KIND",
            "Kinds of type promotion.",
            members=("ALWAYS_BOOL", "DEFAULT", "INT_TO_FLOAT"),
        ),
        declare("torch._prims_common:elementwise_dtypes", "Computes promoted dtypes."),
    ),
    *IfMissing("graphs with such operators are not stored on disk", Feature.DISK_CACHE).entries(
        declare_module("torch._library:custom_ops", "Module of user-defined operators, part of cache keys."),
        declare_module("torch._library:simple_registry", "Registry of fake implementations, part of cache keys."),
    ),
    *IfMissing("calls of such operators are not recognized", Feature.COMPILATION).entries(
        declare_class("torch._library.custom_ops:CustomOpDef", "User-defined operator."),
        declare_table("torch._library.custom_ops:OPDEFS", "User-defined operators by name."),
    ),
    *IfMissing("graphs with effects run as traced", Feature.FUNCTIONAL_GRAPHS).entries(
        declare_class("torch._library.effects:EffectType", "Kinds of operators with effects.", members=("ORDERED",)),
    ),
    *IfMissing("backwards are not compiled", Feature.FUNCTIONAL_GRAPHS).entries(
        declare(
            "torch._prims_common:is_non_overlapping_and_dense_or_false",
            "Asks for a dense layout of a tensor with symbols.",
            "(a)",
        ),
    ),
    *IfMissing("tensors made of symbols break the graph").entries(
        declare("torch._refs:tensor", "Makes a tensor of symbols.", "(a)", alias="tensor_from_symbols"),
    ),
    *IfMissing("nothing is stored on disk", Feature.DISK_CACHE).entries(
        declare_value(
            "torch.library:_impls", "Kernels registered in Python, part of cache keys.", alias="python_kernels"
        ),
    ),
    *IfMissing("optimizers with foreach break the graph").entries(
        declare(
            "torch._C:_group_tensors_by_device_and_dtype",
            "Groups tensors for foreach operators of optimizers.",
            "(a, b)",
        ),
        declare("torch._C:_get_privateuse1_backend_name", "Name of a device that an extension adds.", "()"),
    ),
    *IfMissing("traced code that calls it breaks the graph").entries(
        declare("torch._C:_infer_size", "Broadcasts shapes in traced code."),
        declare("torch._C:_log_api_usage_once", "Logs in traced code, without an effect."),
        declare("torch:_assert", "Traced assertion.", alias="torch_assert"),
        declare(
            "torch:_check_tensor_all",
            "Traced condition on a tensor, which becomes a run-time check.",
            alias="torch_check_tensor_all",
        ),
        declare("torch:_check_index", "Traced condition.", alias="torch_check_index"),
        declare("torch:_check_not_implemented", "Traced condition.", alias="torch_check_not_implemented"),
        declare("torch:_check_type", "Traced condition.", alias="torch_check_type"),
        declare("torch:_check_value", "Traced condition.", alias="torch_check_value"),
        declare("torch:_pack_padded_sequence", "Packs sequences in traced code."),
        declare("torch:_pad_packed_sequence", "Unpacks sequences in traced code."),
        declare("torch:_shape_as_tensor", "Makes a tensor of a shape."),
    ),
    *IfMissing("conditions on unbacked symbols are not emitted", Feature.COMPILATION).entries(
        declare("torch:_check", "Traced condition, which becomes a run-time check.", "(a)", alias="torch_check"),
    ),
    *IfMissing("writes to such tensors are not recognized", Feature.COMPILATION).entries(
        declare("torch:_debug_has_internal_overlap", "Asks if elements of a tensor share memory.", "(a)"),
    ),
    *IfMissing("attention that is differentiated breaks the graph").entries(
        declare("torch:_fused_sdp_choice", "Chooses the attention kernel."),
    ),
    *IfMissing("views with the negative bit are not rebuilt", Feature.FUNCTIONAL_GRAPHS).entries(
        declare("torch:_neg_view", "Rebuilds a view with the negative bit."),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
