"""Kinds of fallbacks of compiled autograd: reasons to run a backward in torch's engine."""

from __future__ import annotations

from engine.ir.fallback import FallbackKind

_CALL_OUTSIDE = "Start this backward outside of engine.compiled_autograd()."
_NO_CREATE_GRAPH = "Compute the gradient without create_graph=True."
_AFTER_OTHER = "Run one compiled backward after another, not in two threads at once."
_NO_SIZE_LOGIC = "Compile with dynamic=False, so that sizes are numbers."


class CaptureFallback(FallbackKind):
    """Why a backward is not captured."""

    STARTED_BY_BACKWARD = "backward-started-by-backward", "Start the inner backward after the outer one."
    FUNCTORCH_TRANSFORM = "backward-in-functorch-transform", _CALL_OUTSIDE
    FUNCTORCH_TENSOR = "backward-of-functorch-tensor", _CALL_OUTSIDE
    DISPATCH_MODE = "backward-under-dispatch-mode", _CALL_OUTSIDE
    ANOMALY_MODE_DOUBLE = "anomaly-mode-double-backward", _NO_CREATE_GRAPH
    UNPACK_HOOK_DOUBLE = "unpack-hook-double-backward", _NO_CREATE_GRAPH
    CONCURRENT_CAPTURE = "concurrent-capture", _AFTER_OTHER
    CONCURRENT_BACKWARD = "concurrent-backward", _AFTER_OTHER
    UNKNOWN_TENSOR = "unknown-tensor-in-capture", "Run this backward outside of engine.compiled_autograd()."
    UNTRACED_SIZE = "untraced-size-in-capture", _NO_SIZE_LOGIC
    BRANCH_ON_SIZE = "branch-on-size-in-capture", _NO_SIZE_LOGIC
    DTYPE_VIEW_WRITE = "dtype-view-write-in-capture", "Write to a tensor that is no view of another dtype."
    NESTED_TENSOR = "nested-tensor-in-capture", "Pad the nested tensors."
    CPP_NODE = "cpp-node-in-capture", "Remove the C++ hook or node, or run this backward outside of the context."
    TORCH_CANNOT_CAPTURE = "torch-cannot-capture", _CALL_OUTSIDE
    CAPTURE_FAILED = "capture-failed", _CALL_OUTSIDE
