"""Values of the ops of one kernel while it is printed, by scope."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Value:
    """The value of an op: one name for all copies if it is scalar, else one vector per copy."""

    names: tuple[str, ...]
    lanes: int
    scalar: str
    """Scalar type."""

    def name(self, copy: int) -> str:
        """Return the register of an unrolled copy."""
        return name_of_copy(self.names, copy)


def name_of_copy(names: Sequence[str], copy: int) -> str:
    """Return the name of an unrolled copy; copies may share one."""
    return names[copy if len(names) > 1 else 0]


class ScopedValues:
    """Known values by op number; a loop's values are forgotten when it ends."""

    def __init__(self) -> None:
        self._scopes: list[dict[object, Value]] = [{}]

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Open a scope: the body of a loop."""
        self._scopes.append({})
        try:
            yield
        finally:
            self._scopes.pop()

    def find(self, key: object) -> Value | None:
        """Return the value of the innermost scope that has one, or None."""
        return next((s[key] for s in reversed(self._scopes) if key in s), None)

    def set(self, key: object, value: Value) -> None:
        """Set a value in the innermost scope."""
        self._scopes[-1][key] = value
