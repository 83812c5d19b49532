"""Kinds of fallbacks of compiled autograd: reasons to run a backward in torch's engine."""

import pathlib

from engine.ir.fallback import FallbackKind
from engine.ir.reason_catalog import ReasonCatalog

CAPTURE_REASONS = ReasonCatalog(pathlib.Path(__file__).with_name("catalog"))


class CaptureFallback(FallbackKind, reasons=CAPTURE_REASONS):
    """Why a backward is not captured."""

    STARTED_BY_BACKWARD = "backward-started-by-backward"
    FUNCTORCH_TRANSFORM = "backward-in-functorch-transform"
    FUNCTORCH_TENSOR = "backward-of-functorch-tensor"
    DISPATCH_MODE = "backward-under-dispatch-mode"
    ANOMALY_MODE_DOUBLE = "anomaly-mode-double-backward"
    UNPACK_HOOK_DOUBLE = "unpack-hook-double-backward"
    CONCURRENT_CAPTURE = "concurrent-capture"
    CONCURRENT_BACKWARD = "concurrent-backward"
    UNKNOWN_TENSOR = "unknown-tensor-in-capture"
    UNTRACED_SIZE = "untraced-size-in-capture"
    BRANCH_ON_SIZE = "branch-on-size-in-capture"
    DTYPE_VIEW_WRITE = "dtype-view-write-in-capture"
    NESTED_TENSOR = "nested-tensor-in-capture"
    CPP_NODE = "cpp-node-in-capture"
    TORCH_CANNOT_CAPTURE = "torch-cannot-capture"
    CAPTURE_FAILED = "capture-failed"
