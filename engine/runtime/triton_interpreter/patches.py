"""What Triton's interpreter gets wrong, put right in place."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any


@functools.cache
def patch_interpreter() -> None:
    """Make comparisons give truth values, sizes count loops, bfloat16 round to nearest and be multiplied, and assertions hold, once a process.

    The interpreter labels a comparison's result with its operands' type: a scalar one, spread over a block, became a block of floats,
    which ``&`` and ``|`` refuse. It cuts float32 off to bfloat16 where every device rounds to the nearest, halves to even, and
    multiplies matrices of bfloat16 as if they were whole numbers. Before Triton 3.7 it hands numpy an array of one element where it needs a whole number, which numpy 2.4
    refuses. Its assertions do nothing unless told otherwise.
    """
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    builder = interpreter.InterpreterBuilder
    for name in dir(builder):
        if name.startswith(("create_icmp", "create_fcmp")):
            setattr(builder, name, _bool_comparison(getattr(builder, name)))
    interpreter._patch_lang_tensor = _add_index_method(interpreter._patch_lang_tensor)
    builder.cast_impl = _round_to_bfloat16(builder.cast_impl)
    builder.create_dot = _dot_in_float32(builder.create_dot)
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


def _to_float32(held: Any) -> Any:
    """A block of bfloat16, which the interpreter holds as upper halves, in float32; others as they are."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if held.dtype.scalar != tl.bfloat16:
        return held
    bits = np.ascontiguousarray(held.data).view(np.uint16).astype(np.uint32) << np.uint32(16)
    return TensorHandle(bits.view(np.float32), tl.float32)


def _round_to_nearest(values: Any) -> Any:
    """The upper halves of float32 values, rounded: how the interpreter holds bfloat16."""
    import numpy as np

    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded.astype(np.uint16)).astype(np.uint16)
