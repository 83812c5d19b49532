"""CUDA devices, streams and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Entry, Feature, Kind, load

if TYPE_CHECKING:
    from torch.cuda import _sleep as gpu_sleep

    allocate_to_pool: Any
    clear_cublas_workspaces: Any
    current_raw_stream: Any
    current_device_index: Any
    is_stream_capturing: Any
    release_pool: Any
    stop_allocating_to_pool: Any

ENTRIES = (
    Entry(
        "torch._C:_cuda_beginAllocateCurrentThreadToPool",
        Kind.FUNCTION,
        "Allocates results of a CUDA graph outside the pool that it shares.",
        without="CUDA graphs are not used",
        off=Feature.CUDA_GRAPHS,
        calls=("(a, b)",),
        alias="allocate_to_pool",
        cuda_only=True,
    ),
    Entry(
        "torch._C:_cuda_clearCublasWorkspaces",
        Kind.FUNCTION,
        "Frees library workspaces before a CUDA graph is recorded.",
        without="CUDA graphs are not used",
        off=Feature.CUDA_GRAPHS,
        calls=("()",),
        alias="clear_cublas_workspaces",
        cuda_only=True,
    ),
    Entry(
        "torch._C:_cuda_endAllocateToPool",
        Kind.FUNCTION,
        "Ends what ``allocate_to_pool`` began.",
        without="CUDA graphs are not used",
        off=Feature.CUDA_GRAPHS,
        calls=("(a, b)",),
        alias="stop_allocating_to_pool",
        cuda_only=True,
    ),
    Entry(
        "torch._C:_cuda_getCurrentRawStream",
        Kind.FUNCTION,
        "Stream on which kernels are launched.",
        without="kernels cannot be launched",
        off=Feature.COMPILATION,
        calls=("(a)",),
        alias="current_raw_stream",
        cuda_only=True,
    ),
    Entry(
        "torch._C:_cuda_getDevice",
        Kind.FUNCTION,
        "Current device, read at each launch.",
        without="kernels cannot be launched",
        off=Feature.COMPILATION,
        calls=("()",),
        alias="current_device_index",
        cuda_only=True,
    ),
    Entry(
        "torch._C:_cuda_isCurrentStreamCapturing",
        Kind.VALUE,
        "Asks if a CUDA graph is being recorded.",
        without="CUDA graphs are not used",
        off=Feature.CUDA_GRAPHS,
        calls=("()",),
        alias="is_stream_capturing",
        cuda_only=True,
    ),
    Entry(
        "torch._C:_cuda_releasePool",
        Kind.FUNCTION,
        "Drops the hold of a CUDA graph on its pool.",
        without="CUDA graphs are not used",
        off=Feature.CUDA_GRAPHS,
        calls=("(a, b)",),
        alias="release_pool",
        cuda_only=True,
    ),
    Entry(
        "torch.cuda:_sleep",
        Kind.FUNCTION,
        "Keeps the GPU busy before kernels are timed.",
        without="kernels are not timed",
        calls=("(a)",),
        alias="gpu_sleep",
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
