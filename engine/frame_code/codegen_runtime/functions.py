"""Build functions that traced code defined, with defaults, closure and attributes."""

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
    function: Any = types.FunctionType(code, namespace, name, defaults, tuple(closure) or None)
    function.__qualname__ = qualname
    function.__kwdefaults__ = keyword_defaults
    for attribute, value in (attributes or {}).items():
        setattr(function, attribute, value)
    if annotations is not None:
        function.__annotations__ = annotations
    if annotate is not None:
        function.__annotate__ = annotate
    return function
