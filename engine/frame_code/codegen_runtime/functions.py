"""Build functions that traced code created."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any


def make_function(
    code: types.CodeType,
    namespace: dict[str, Any],
    name: str,
    qualname: str,
    defaults: tuple[Any, ...] | None,
    keyword_defaults: dict[str, Any] | None,
    closure: Iterable[Any],
    attributes: dict[str, Any] | None,
    annotations: dict[str, Any] | None,
    annotate: Any,
) -> Any:
    """Return a function as the traced code created it."""
    made: Any = types.FunctionType(code, namespace, name, defaults, tuple(closure) or None)
    made.__qualname__ = qualname
    made.__kwdefaults__ = keyword_defaults
    for word, value in (attributes or {}).items():
        setattr(made, word, value)
    if annotations is not None:
        made.__annotations__ = annotations
    if annotate is not None:
        made.__annotate__ = annotate
    return made
