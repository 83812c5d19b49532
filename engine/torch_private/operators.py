"""Operators and their registries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Entry, Feature, Kind, load

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
    Entry(
        "torch._ops:OpOverload",
        Kind.CLASS,
        "One overload of an operator.",
        without="nothing can be traced",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._ops:OpOverloadPacket",
        Kind.CLASS,
        "All overloads of an operator.",
        without="nothing can be traced",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._ops:HigherOrderOperator",
        Kind.CLASS,
        "Operators that take functions.",
        without="nothing can be traced",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._C:_VariableFunctions",
        Kind.VALUE,
        "Namespace of torch's functions in C.",
        without="functions of torch are not recognized",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._C:_nn",
        Kind.MODULE,
        "Namespace of functions of torch.nn in C.",
        without="functions of torch are not recognized",
        off=Feature.COMPILATION,
        alias="nn_functions",
    ),
    Entry(
        "torch._C:_fft",
        Kind.MODULE,
        "Namespace of functions of torch.fft in C.",
        without="functions of torch are not recognized",
        off=Feature.COMPILATION,
        alias="fft_functions",
    ),
    Entry(
        "torch._C:_linalg",
        Kind.MODULE,
        "Namespace of functions of torch.linalg in C.",
        without="functions of torch are not recognized",
        off=Feature.COMPILATION,
        alias="linalg_functions",
    ),
    Entry(
        "torch._C:_sparse",
        Kind.MODULE,
        "Namespace of functions of torch.sparse in C.",
        without="functions of torch are not recognized",
        off=Feature.COMPILATION,
        alias="sparse_functions",
    ),
    Entry(
        "torch._C:_special",
        Kind.MODULE,
        "Namespace of functions of torch.special in C.",
        without="functions of torch are not recognized",
        off=Feature.COMPILATION,
        alias="special_functions",
    ),
    Entry(
        "torch._decomp:decomposition_table",
        Kind.TABLE,
        "Torch's decompositions of ATen operators.",
        without="graphs are not lowered",
        off=Feature.KERNELS,
    ),
    Entry(
        "torch._library:custom_ops",
        Kind.MODULE,
        "Module of user-defined operators, part of cache keys.",
        without="graphs with such operators are not stored on disk",
        off=Feature.DISK_CACHE,
    ),
    Entry(
        "torch._library:simple_registry",
        Kind.MODULE,
        "Registry of fake implementations, part of cache keys.",
        without="graphs with such operators are not stored on disk",
        off=Feature.DISK_CACHE,
    ),
    Entry(
        "torch._library.custom_ops:CustomOpDef",
        Kind.CLASS,
        "User-defined operator.",
        without="calls of such operators are not recognized",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._library.custom_ops:OPDEFS",
        Kind.TABLE,
        "User-defined operators by name.",
        without="calls of such operators are not recognized",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._library.effects:EffectType",
        Kind.CLASS,
        "Kinds of operators with effects.",
        without="graphs with effects run as traced",
        off=Feature.FUNCTIONAL_GRAPHS,
        members=("ORDERED",),
    ),
    Entry(
        "torch._prims_common:ELEMENTWISE_TYPE_PROMOTION_KIND",
        Kind.CLASS,
        "Kinds of type promotion.",
        without="graphs are not lowered",
        off=Feature.KERNELS,
        members=("ALWAYS_BOOL", "DEFAULT", "INT_TO_FLOAT"),
    ),
    Entry(
        "torch._prims_common:elementwise_dtypes",
        Kind.FUNCTION,
        "Computes promoted dtypes.",
        without="graphs are not lowered",
        off=Feature.KERNELS,
    ),
    Entry(
        "torch._prims_common:is_non_overlapping_and_dense_or_false",
        Kind.FUNCTION,
        "Asks for a dense layout of a tensor with symbols.",
        without="backwards are not compiled",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=("(a)",),
    ),
    Entry(
        "torch._refs:tensor",
        Kind.FUNCTION,
        "Makes a tensor of symbols.",
        without="tensors made of symbols break the graph",
        calls=("(a)",),
        alias="tensor_from_symbols",
    ),
    Entry(
        "torch.library:_impls",
        Kind.VALUE,
        "Kernels registered in Python, part of cache keys.",
        without="nothing is stored on disk",
        off=Feature.DISK_CACHE,
        alias="python_kernels",
    ),
    Entry(
        "torch._C:_group_tensors_by_device_and_dtype",
        Kind.FUNCTION,
        "Groups tensors for foreach operators of optimizers.",
        without="optimizers with foreach break the graph",
        calls=("(a, b)",),
    ),
    Entry(
        "torch._C:_get_privateuse1_backend_name",
        Kind.FUNCTION,
        "Name of a device that an extension adds.",
        without="optimizers with foreach break the graph",
        calls=("()",),
    ),
    Entry(
        "torch._C:_infer_size",
        Kind.FUNCTION,
        "Broadcasts shapes in traced code.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch._C:_log_api_usage_once",
        Kind.FUNCTION,
        "Logs in traced code, without an effect.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch:_assert",
        Kind.FUNCTION,
        "Traced assertion.",
        without="traced code that calls it breaks the graph",
        alias="torch_assert",
    ),
    Entry(
        "torch:_check",
        Kind.FUNCTION,
        "Traced condition, which becomes a run-time check.",
        without="conditions on unbacked symbols are not emitted",
        off=Feature.COMPILATION,
        calls=("(a)",),
        alias="torch_check",
    ),
    Entry(
        "torch:_check_tensor_all",
        Kind.FUNCTION,
        "Traced condition on a tensor, which becomes a run-time check.",
        without="traced code that calls it breaks the graph",
        alias="torch_check_tensor_all",
    ),
    Entry(
        "torch:_check_index",
        Kind.FUNCTION,
        "Traced condition.",
        without="traced code that calls it breaks the graph",
        alias="torch_check_index",
    ),
    Entry(
        "torch:_check_not_implemented",
        Kind.FUNCTION,
        "Traced condition.",
        without="traced code that calls it breaks the graph",
        alias="torch_check_not_implemented",
    ),
    Entry(
        "torch:_check_type",
        Kind.FUNCTION,
        "Traced condition.",
        without="traced code that calls it breaks the graph",
        alias="torch_check_type",
    ),
    Entry(
        "torch:_check_value",
        Kind.FUNCTION,
        "Traced condition.",
        without="traced code that calls it breaks the graph",
        alias="torch_check_value",
    ),
    Entry(
        "torch:_debug_has_internal_overlap",
        Kind.FUNCTION,
        "Asks if elements of a tensor share memory.",
        without="writes to such tensors are not recognized",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch:_fused_sdp_choice",
        Kind.FUNCTION,
        "Chooses the attention kernel.",
        without="attention that is differentiated breaks the graph",
    ),
    Entry(
        "torch:_neg_view",
        Kind.FUNCTION,
        "Rebuilds a view with the negative bit.",
        without="views with the negative bit are not rebuilt",
        off=Feature.FUNCTIONAL_GRAPHS,
    ),
    Entry(
        "torch:_pack_padded_sequence",
        Kind.FUNCTION,
        "Packs sequences in traced code.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch:_pad_packed_sequence",
        Kind.FUNCTION,
        "Unpacks sequences in traced code.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch:_shape_as_tensor",
        Kind.FUNCTION,
        "Makes a tensor of a shape.",
        without="traced code that calls it breaks the graph",
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
