"""What Triton's interpreter gets wrong, put right in place."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any


@functools.cache
def mend() -> None:
    """Make comparisons give truth values, once a process.

    The interpreter labels a comparison's result with its operands' type: a scalar one, spread over a block, became a block of floats,
    which ``&`` and ``|`` refuse.
    """
    builder = importlib.import_module("triton.runtime.interpreter").InterpreterBuilder
    for name in dir(builder):
        if name.startswith(("create_icmp", "create_fcmp")):
            setattr(builder, name, _truthful(getattr(builder, name)))


def _truthful(compare: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        import numpy as np
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        return TensorHandle(np.asarray(compare(*arguments).data, dtype=np.bool_), tl.int1)

    return call
