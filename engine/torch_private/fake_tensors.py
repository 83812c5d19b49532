"""Torch's private names for fake tensors and the modes that make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import load_into

if TYPE_CHECKING:
    from torch._guards import GuardSource, TracingContext, detect_fake_mode, tracing
    from torch._guards import Source as TorchSource
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensor,
        FakeTensorMode,
        UnsupportedOperatorException,
    )
    from torch._subclasses.fake_tensor import _BypassDispatchCache as BypassDispatchCache

    unset_fake_temporarily: Any

ENTRIES = load_into(globals())("""
If missing, nothing can be traced (COMPILATION):
    class torch._subclasses.fake_tensor:FakeTensor (a, b, c) members=fake_mode -- Stands for a tensor while tracing.
    class torch._subclasses.fake_tensor:FakeTensorMode (shape_env=) members=cache,cache_clear
        -- Makes fake tensors and runs operators on them.
    class torch._guards:TracingContext (a) -- Context that torch's tracing reads.
    function torch._guards:tracing (a) -- Sets the context that torch's tracing reads.
If missing, such calls are internal errors, which end the graph (COMPILATION):
    exception torch._subclasses.fake_tensor:DataDependentOutputException
        -- Raised where a result depends on elements of a tensor.
    exception torch._subclasses.fake_tensor:DynamicOutputShapeException
        -- Raised where a size depends on elements of a tensor.
    exception torch._subclasses.fake_tensor:UnsupportedOperatorException
        -- Raised where an operator has no fake implementation.
If missing, results of view operators would be cached wrongly (COMPILATION):
    exception torch._subclasses.fake_tensor:_BypassDispatchCache (a)
        -- Keeps an operator out of the cache of fake results.
If missing, distributed steps cannot be planned:
    function torch._subclasses.fake_tensor:unset_fake_temporarily ()
        -- Runs operators on real tensors inside of a fake mode.
If missing, graphs are not lowered (KERNELS):
    function torch._guards:detect_fake_mode (a) -- Finds the fake mode of a graph's values.
If missing, symbols cannot be named (COMPILATION):
    class torch._guards:GuardSource -- Kind of source that ShapeEnv reads.
    class torch._guards:Source alias=TorchSource -- Base class of sources, for ShapeEnv.
""")
