"""Torch's private names for fake tensors and the modes that make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Feature, IfMissing, declare, declare_class, declare_exception, load

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

ENTRIES = (
    *IfMissing("nothing can be traced", Feature.COMPILATION).entries(
        declare_class(
            "torch._subclasses.fake_tensor:FakeTensor",
            "Stands for a tensor while tracing.",
            "(a, b, c)",
            members=("fake_mode",),
        ),
        declare_class(
            "torch._subclasses.fake_tensor:FakeTensorMode",
            "Makes fake tensors and runs operators on them.",
            "(shape_env=)",
            members=("cache", "cache_clear"),
        ),
        declare_class("torch._guards:TracingContext", "Context that torch's tracing reads.", "(a)"),
        declare("torch._guards:tracing", "Sets the context that torch's tracing reads.", "(a)"),
    ),
    *IfMissing("such calls are internal errors, which end the graph", Feature.COMPILATION).entries(
        declare_exception(
            "torch._subclasses.fake_tensor:DataDependentOutputException",
            "Raised where a result depends on elements of a tensor.",
        ),
        declare_exception(
            "torch._subclasses.fake_tensor:DynamicOutputShapeException",
            "Raised where a size depends on elements of a tensor.",
        ),
        declare_exception(
            "torch._subclasses.fake_tensor:UnsupportedOperatorException",
            "Raised where an operator has no fake implementation.",
        ),
    ),
    *IfMissing("results of view operators would be cached wrongly", Feature.COMPILATION).entries(
        declare_exception(
            "torch._subclasses.fake_tensor:_BypassDispatchCache",
            "Keeps an operator out of the cache of fake results.",
            "(a)",
        ),
    ),
    *IfMissing("distributed steps cannot be planned").entries(
        declare(
            "torch._subclasses.fake_tensor:unset_fake_temporarily",
            "Runs operators on real tensors inside of a fake mode.",
            "()",
        ),
    ),
    *IfMissing("graphs are not lowered", Feature.KERNELS).entries(
        declare("torch._guards:detect_fake_mode", "Finds the fake mode of a graph's values.", "(a)"),
    ),
    *IfMissing("symbols cannot be named", Feature.COMPILATION).entries(
        declare_class("torch._guards:GuardSource", "Kind of source that ShapeEnv reads."),
        declare_class("torch._guards:Source", "Base class of sources, for ShapeEnv.", alias="TorchSource"),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
