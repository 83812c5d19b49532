"""Fake tensors, and the modes that make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Entry, Feature, Kind, load

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
    Entry(
        "torch._subclasses.fake_tensor:FakeTensor",
        Kind.CLASS,
        "Stands for a tensor while tracing.",
        without="nothing can be traced",
        off=Feature.COMPILATION,
        calls=("(a, b, c)",),
        members=("fake_mode",),
    ),
    Entry(
        "torch._subclasses.fake_tensor:FakeTensorMode",
        Kind.CLASS,
        "Makes fake tensors and runs operators on them.",
        without="nothing can be traced",
        off=Feature.COMPILATION,
        calls=("(shape_env=)",),
        members=("cache", "cache_clear"),
    ),
    Entry(
        "torch._subclasses.fake_tensor:DataDependentOutputException",
        Kind.EXCEPTION,
        "Raised where a result depends on elements of a tensor.",
        without="such calls are internal errors, which end the graph",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._subclasses.fake_tensor:DynamicOutputShapeException",
        Kind.EXCEPTION,
        "Raised where a size depends on elements of a tensor.",
        without="such calls are internal errors, which end the graph",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._subclasses.fake_tensor:UnsupportedOperatorException",
        Kind.EXCEPTION,
        "Raised where an operator has no fake implementation.",
        without="such calls are internal errors, which end the graph",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._subclasses.fake_tensor:_BypassDispatchCache",
        Kind.EXCEPTION,
        "Keeps an operator out of the cache of fake results.",
        without="results of view operators would be cached wrongly",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._subclasses.fake_tensor:unset_fake_temporarily",
        Kind.FUNCTION,
        "Runs operators on real tensors inside of a fake mode.",
        without="distributed steps cannot be planned",
        calls=("()",),
    ),
    Entry(
        "torch._guards:detect_fake_mode",
        Kind.FUNCTION,
        "Finds the fake mode of a graph's values.",
        without="graphs are not lowered",
        off=Feature.KERNELS,
        calls=("(a)",),
    ),
    Entry(
        "torch._guards:TracingContext",
        Kind.CLASS,
        "Context that torch's tracing reads.",
        without="nothing can be traced",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._guards:tracing",
        Kind.FUNCTION,
        "Sets the context that torch's tracing reads.",
        without="nothing can be traced",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._guards:GuardSource",
        Kind.CLASS,
        "Kind of source that ShapeEnv reads.",
        without="symbols cannot be named",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._guards:Source",
        Kind.CLASS,
        "Base class of sources, for ShapeEnv.",
        without="symbols cannot be named",
        off=Feature.COMPILATION,
        alias="TorchSource",
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
