"""Torch's private names for tensors and their storages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Feature, IfMissing, declare, declare_class, load

if TYPE_CHECKING:
    from torch._C import TensorBase
    from torch._C import _storage_Use_Count as storage_Use_Count
    from torch._C import _to_dlpack as to_dlpack
    from torch.nested._internal.nested_tensor import NestedTensor

    empty_strided_cpu: Any
    empty_strided_cuda: Any
    make_subclass: Any
    reinterpret_tensor: Any
    tensor_use_count: Any

ENTRIES = (
    *IfMissing("methods of tensors are not recognized", Feature.COMPILATION).entries(
        declare_class("torch._C:TensorBase", "Base class of tensors, in C."),
    ),
    *IfMissing("traced code that calls it breaks the graph").entries(
        declare("torch:Tensor._make_subclass", "Makes a tensor subclass in traced code."),
    ),
    *IfMissing("a storage in use could be reused", Feature.COMPILATION).entries(
        declare("torch._C:_storage_Use_Count", "Counts the owners of a storage.", "(a)"),
    ),
    *IfMissing("CUDA graphs are not used", Feature.CUDA_GRAPHS).entries(
        declare(
            "torch:Tensor._use_count", "Counts the owners of a tensor, autograd among them.", alias="tensor_use_count"
        ),
        declare("torch._C:_to_dlpack", "Makes aliases without torch's checks, for CUDA graphs.", "(a)"),
    ),
    *IfMissing("memory on the CPU is allocated by empty_strided", Feature.FAST_ALLOCATION).entries(
        declare(
            "torch._C._dynamo.guards:_empty_strided_cpu",
            "Allocates on the CPU, without torch's parsing of options.",
            "(a, a, a)",
        ),
    ),
    *IfMissing("memory on a GPU is allocated by empty_strided", Feature.FAST_ALLOCATION).entries(
        declare(
            "torch._C._dynamo.guards:_empty_strided_cuda",
            "Allocates on the current GPU, without torch's parsing of options.",
            "(a, a, a)",
        ),
    ),
    *IfMissing("views are made by as_strided", Feature.FAST_ALLOCATION).entries(
        declare(
            "torch._C._dynamo.guards:_reinterpret_tensor",
            "Makes a tensor on the memory of another, without the dispatcher and autograd's views.",
            "(a, a, a, a)",
        ),
    ),
    *IfMissing("such tensors are not recognized", Feature.COMPILATION).entries(
        declare_class("torch.nested._internal.nested_tensor:NestedTensor", "Tensors with a ragged dimension."),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
