"""Tensors and their storages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Entry, Feature, Kind, load

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
    Entry(
        "torch._C:TensorBase",
        Kind.CLASS,
        "Base class of tensors, in C.",
        without="methods of tensors are not recognized",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch:Tensor._make_subclass",
        Kind.FUNCTION,
        "Makes a tensor subclass in traced code.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch._C:_storage_Use_Count",
        Kind.FUNCTION,
        "Counts the owners of a storage.",
        without="a storage in use could be reused",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch:Tensor._use_count",
        Kind.FUNCTION,
        "Counts the owners of a tensor, autograd among them.",
        without="CUDA graphs are not used",
        off=Feature.CUDA_GRAPHS,
        alias="tensor_use_count",
    ),
    Entry(
        "torch._C:_to_dlpack",
        Kind.FUNCTION,
        "Makes aliases without torch's checks, for CUDA graphs.",
        without="CUDA graphs are not used",
        off=Feature.CUDA_GRAPHS,
        calls=("(a)",),
    ),
    Entry(
        "torch._C._dynamo.guards:_empty_strided_cpu",
        Kind.FUNCTION,
        "Allocates on the CPU, without torch's parsing of options.",
        without="memory on the CPU is allocated by empty_strided",
        off=Feature.FAST_ALLOCATION,
        calls=("(a, a, a)",),
    ),
    Entry(
        "torch._C._dynamo.guards:_empty_strided_cuda",
        Kind.FUNCTION,
        "Allocates on the current GPU, without torch's parsing of options.",
        without="memory on a GPU is allocated by empty_strided",
        off=Feature.FAST_ALLOCATION,
        calls=("(a, a, a)",),
    ),
    Entry(
        "torch._C._dynamo.guards:_reinterpret_tensor",
        Kind.FUNCTION,
        "Makes a tensor on the memory of another, without the dispatcher and autograd's views.",
        without="views are made by as_strided",
        off=Feature.FAST_ALLOCATION,
        calls=("(a, a, a, a)",),
    ),
    Entry(
        "torch.nested._internal.nested_tensor:NestedTensor",
        Kind.CLASS,
        "Tensors with a ragged dimension.",
        without="such tensors are not recognized",
        off=Feature.COMPILATION,
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
