"""Torch's private names for tensors and their storages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import load_into

if TYPE_CHECKING:
    from torch._C import TensorBase
    from torch._C import _storage_Use_Count as storage_Use_Count
    from torch._C import _to_dlpack as to_dlpack
    from torch.nested._internal.nested_tensor import NestedTensor

    def __getattr__(name: str) -> Any: ...


ENTRIES = load_into(globals())("""
If missing, methods of tensors are not recognized (COMPILATION):
    class torch._C:TensorBase -- Base class of tensors, in C.
If missing, traced code that calls it breaks the graph:
    function torch:Tensor._make_subclass -- Makes a tensor subclass in traced code.
If missing, a storage in use could be reused (COMPILATION):
    function torch._C:_storage_Use_Count (a) -- Counts the owners of a storage.
If missing, CUDA graphs are not used (CUDA_GRAPHS):
    function torch:Tensor._use_count alias=tensor_use_count -- Counts the owners of a tensor, autograd among them.
    function torch._C:_to_dlpack (a) -- Makes aliases without torch's checks, for CUDA graphs.
If missing, memory on the CPU is allocated by empty_strided (FAST_ALLOCATION):
    function torch._C._dynamo.guards:_empty_strided_cpu (a, a, a)
        -- Allocates on the CPU, without torch's parsing of options.
If missing, memory on a GPU is allocated by empty_strided (FAST_ALLOCATION):
    function torch._C._dynamo.guards:_empty_strided_cuda (a, a, a)
        -- Allocates on the current GPU, without torch's parsing of options.
If missing, views are made by as_strided (FAST_ALLOCATION):
    function torch._C._dynamo.guards:_reinterpret_tensor (a, a, a, a)
        -- Makes a tensor on the memory of another, without the dispatcher and autograd's views.
If missing, such tensors are not recognized (COMPILATION):
    class torch.nested._internal.nested_tensor:NestedTensor -- Tensors with a ragged dimension.
""")
