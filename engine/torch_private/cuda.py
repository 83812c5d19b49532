"""Torch's private names for CUDA devices, streams and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Feature, IfMissing, declare, declare_value, load

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
    *IfMissing("CUDA graphs are not used", Feature.CUDA_GRAPHS).entries(
        declare(
            "torch._C:_cuda_beginAllocateCurrentThreadToPool",
            "Allocates results of a CUDA graph outside the pool that it shares.",
            "(a, b)",
            alias="allocate_to_pool",
            cuda_only=True,
        ),
        declare(
            "torch._C:_cuda_clearCublasWorkspaces",
            "Frees library workspaces before a CUDA graph is recorded.",
            "()",
            alias="clear_cublas_workspaces",
            cuda_only=True,
        ),
        declare(
            "torch._C:_cuda_endAllocateToPool",
            "Ends what ``allocate_to_pool`` began.",
            "(a, b)",
            alias="stop_allocating_to_pool",
            cuda_only=True,
        ),
        declare_value(
            "torch._C:_cuda_isCurrentStreamCapturing",
            "Asks if a CUDA graph is being recorded.",
            "()",
            alias="is_stream_capturing",
            cuda_only=True,
        ),
        declare(
            "torch._C:_cuda_releasePool",
            "Drops the hold of a CUDA graph on its pool.",
            "(a, b)",
            alias="release_pool",
            cuda_only=True,
        ),
    ),
    *IfMissing("kernels cannot be launched", Feature.COMPILATION).entries(
        declare(
            "torch._C:_cuda_getCurrentRawStream",
            "Stream on which kernels are launched.",
            "(a)",
            alias="current_raw_stream",
            cuda_only=True,
        ),
        declare(
            "torch._C:_cuda_getDevice",
            "Current device, read at each launch.",
            "()",
            alias="current_device_index",
            cuda_only=True,
        ),
    ),
    *IfMissing("kernels are not timed").entries(
        declare("torch.cuda:_sleep", "Keeps the GPU busy before kernels are timed.", "(a)", alias="gpu_sleep"),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
