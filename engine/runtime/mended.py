"""What Triton's interpreter gets wrong, put right in place."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any


@functools.cache
def mend() -> None:
    """Make comparisons give truth values and sizes count loops, once a process.

    The interpreter labels a comparison's result with its operands' type: a scalar one, spread over a block, became a block of floats,
    which ``&`` and ``|`` refuse. Before Triton 3.7 it hands numpy an array of one element where it needs a whole number, which numpy 2.4
    refuses.
    """
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    builder = interpreter.InterpreterBuilder
    for name in dir(builder):
        if name.startswith(("create_icmp", "create_fcmp")):
            setattr(builder, name, _truthful(getattr(builder, name)))
    interpreter._patch_lang_tensor = _countable(interpreter._patch_lang_tensor)


def _countable(patch: Callable[..., None]) -> Callable[..., None]:
    def call(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return call


def _truthful(compare: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        import numpy as np
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        return TensorHandle(np.asarray(compare(*arguments).data, dtype=np.bool_), tl.int1)

    return call
