"""Torch's private names for CUDA devices, streams and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import load_into

if TYPE_CHECKING:
    from torch.cuda import _sleep as gpu_sleep

    def __getattr__(name: str) -> Any: ...


ENTRIES = load_into(globals())("""
If missing, CUDA graphs are not used (CUDA_GRAPHS):
    function torch._C:_cuda_beginAllocateCurrentThreadToPool (a, b) alias=allocate_to_pool build=cuda
        -- Allocates results of a CUDA graph outside the pool that it shares.
    function torch._C:_cuda_clearCublasWorkspaces () alias=clear_cublas_workspaces build=cuda
        -- Frees library workspaces before a CUDA graph is recorded.
    function torch._C:_cuda_endAllocateToPool (a, b) alias=stop_allocating_to_pool build=cuda
        -- Ends what ``allocate_to_pool`` began.
    value torch._C:_cuda_isCurrentStreamCapturing () alias=is_stream_capturing build=cuda
        -- Asks if a CUDA graph is being recorded.
    function torch._C:_cuda_releasePool (a, b) alias=release_pool build=cuda
        -- Drops the hold of a CUDA graph on its pool.
If missing, kernels cannot be launched (COMPILATION):
    function torch._C:_cuda_getCurrentRawStream (a) alias=current_raw_stream build=cuda
        -- Stream on which kernels are launched.
    function torch._C:_cuda_getDevice () alias=current_device_index build=cuda
        -- Current device, read at each launch.
If missing, kernels are not timed:
    function torch.cuda:_sleep (a) alias=gpu_sleep -- Keeps the GPU busy before kernels are timed.
""")
