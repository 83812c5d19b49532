"""Call a function as a line of the user's code would: warnings name that line, once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

_TEMPLATE = (lambda function, args, kwargs: function(*args, **kwargs)).__code__  # On one line: its first.


def call_at_line(
    file: str, line: int, namespace: dict[str, Any], function: Callable[..., Any], args: Sequence[Any], kwargs: Any
) -> Any:
    """Return ``function(*args, **kwargs)``, called from a frame of that line and namespace.

    Python and torch attribute a warning to the calling frame, and count it as seen in its namespace.
    """
    return FunctionType(_code_at(file, line), namespace)(function, args, kwargs)


@functools.lru_cache(maxsize=1024)
def _code_at(file: str, line: int) -> CodeType:
    return _TEMPLATE.replace(co_filename=file, co_firstlineno=line)
