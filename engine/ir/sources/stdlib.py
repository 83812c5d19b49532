"""Sources of weak references, context variables, random draws and computed numbers."""

from __future__ import annotations

import contextvars
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from engine.ir.sources.base import MISSING, ConstName, FrameScope, Source, SourceEmitter, SourceReadByMethod


def _context_var_default(variable: contextvars.ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:
        return MISSING


class ContextVarSource(SourceReadByMethod):
    """The value of a context variable, or ``MISSING``.

    ``with_default`` reads the variable's default, in an empty context.
    """

    notation: ClassVar[str] = "{0.base.expr}.get()"

    with_default: bool = False

    def code(self, base: str, const: ConstName) -> str:
        return super().code(base, const) if self.with_default else f"{base}.get({const(MISSING, 'MISSING')})"

    def read(self, base: Any) -> Any:
        return contextvars.Context().run(_context_var_default, base) if self.with_default else base.get(MISSING)


class WeakRefCallSource(Source):
    """The referent of a weak reference, or None if it is dead."""

    base: Source

    def code(self, base: str, const: ConstName) -> str:
        return f"{base}()"

    def emit(self, out: SourceEmitter) -> None:
        out.call(operator.call)

    def read(self, base: Any) -> Any:
        return base()


class RandomDrawSource(SourceReadByMethod):
    """Random number ``index`` that a call takes from a generator, as a tensor.

    Reading it advances the generator, so only compiled code reads it.
    """

    notation: ClassVar[str] = "{0.base.expr}.{0.method}#{0.index}"

    index: int
    method: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    dtype: torch.dtype

    def read(self, base: Any) -> Any:
        return torch.tensor(getattr(base, self.method)(*self.args, **dict(self.kwargs)), device="cpu", dtype=self.dtype)


class RandomStateSource(Source):
    """A hash of the long state of a ``random.Random``."""

    notation: ClassVar[str] = "{0.base.expr}.getstate()"

    base: Source

    def code(self, base: str, const: ConstName) -> str:
        return f"hash({base}.getstate())"

    def read(self, base: Any) -> Any:
        return hash(base.getstate())


class ArgumentsSource(Source):
    """Some of the frame's arguments, as a tuple."""

    is_argument_link: ClassVar[bool] = True
    tier: ClassVar[int] = 3

    names: tuple[str, ...]

    @property
    def expr(self) -> str:
        return f"({', '.join(self.names)},)"

    def code(self, base: str, const: ConstName) -> str:
        return self.expr

    def emit(self, out: SourceEmitter) -> None:
        out.locals_tuple(self.names)

    def read(self, base: FrameScope) -> Any:
        return tuple(base.arguments[name] for name in self.names)


@dataclass(frozen=True)
class ArgumentPath:
    """A way from the tuple of an ``ArgumentsSource`` to a number, with the type at each link.

    It starts at one argument, or (``is_tuple``) at a tuple of arguments.
    """

    start: tuple[int, ...]
    is_tuple: bool
    links: tuple[tuple[Source, type], ...]

    def read(self, arguments: tuple[Any, ...]) -> Any:
        """Return the number; None if an object on the way has another type."""
        value: Any = tuple(arguments[n] for n in self.start) if self.is_tuple else arguments[self.start[0]]
        for link, expected in self.links:
            if type(value) is not expected:
                return None
            value = link.read(value)
        return value


class ComputedNumberSource(SourceReadByMethod):
    """Result of a pure function of numbers, computed before the graph runs.

    The function returns None where it would raise. ``text`` distinguishes sources whose constants are equal but
    not the same: ``0.0`` and ``-0.0``, ``1`` and ``1.0``.
    """

    notation: ClassVar[str] = "{0.text}"

    compute: Callable[[Any], Any]
    text: str

    def read(self, base: Any) -> Any:
        return self.compute(base)
