"""Monkey-patches for bugs of Triton's interpreter."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from engine.runtime.triton_interpreter.fold_blocks import reduce_by_halves, scan_by_doubling


@functools.cache
def patch_interpreter() -> None:
    """Patch Triton's interpreter, once per process.

    - Comparisons return bool blocks; without the patch, blocks of the operands' type, which ``&`` and ``|`` reject.
    - A cast from float32 to bfloat16 rounds to nearest even, as devices do, instead of truncating.
    - ``dot`` of bfloat16 blocks multiplies in float32, instead of multiplying the bits as integers.
    - Tensors have ``__index__``: before Triton 3.7 a one-element array is used as an integer, which numpy 2.4 rejects.
    - Device assertions raise instead of being ignored.
    - A reduction or scan with a combine function of its own calls it once a step, instead of once an element.
    """
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    builder = interpreter.InterpreterBuilder
    for name in dir(builder):
        if name.startswith(("create_icmp", "create_fcmp")):
            setattr(builder, name, _bool_comparison(getattr(builder, name)))
    interpreter._patch_lang_tensor = _add_index_method(interpreter._patch_lang_tensor)
    builder.cast_impl = _round_to_bfloat16(builder.cast_impl)
    builder.create_dot = _dot_in_float32(builder.create_dot)
    interpreter.ReduceOps.generic_reduce = reduce_by_halves(interpreter.ReduceOps.generic_reduce)
    interpreter.ScanOps.generic_scan = scan_by_doubling(interpreter.ScanOps.generic_scan)
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(debug=True, sanitize_overflow=False)


def _add_index_method(patch: Callable[..., None]) -> Callable[..., None]:
    def call(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return call


def _bool_comparison(compare: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        import numpy as np
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        return TensorHandle(np.asarray(compare(*arguments).data, dtype=np.bool_), tl.int1)

    return call


def _round_to_bfloat16(cast: Callable[..., Any]) -> Callable[..., Any]:
    def call(builder: Any, source: Any, kind: Any) -> Any:
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        if source.dtype.scalar != tl.float32 or kind.scalar != tl.bfloat16:
            return cast(builder, source, kind)
        return TensorHandle(_round_to_nearest(source.data), tl.bfloat16)

    return call


def _dot_in_float32(dot: Callable[..., Any]) -> Callable[..., Any]:
    def call(builder: Any, left: Any, right: Any, *rest: Any) -> Any:
        return dot(builder, _to_float32(left), _to_float32(right), *rest)

    return call


def _to_float32(tensor: Any) -> Any:
    """Convert a bfloat16 block to float32; return other blocks unchanged.

    The interpreter stores bfloat16 as the upper halves of float32.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if tensor.dtype.scalar != tl.bfloat16:
        return tensor
    bits = np.ascontiguousarray(tensor.data).view(np.uint16).astype(np.uint32) << np.uint32(16)
    return TensorHandle(bits.view(np.float32), tl.float32)


def _round_to_nearest(values: Any) -> Any:
    """Round float32 values to bfloat16, as uint16 upper halves (the interpreter's storage)."""
    import numpy as np

    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded.astype(np.uint16)).astype(np.uint16)
