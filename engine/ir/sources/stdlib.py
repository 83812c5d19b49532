"""Sources of weak references, context variables and random draws."""

from __future__ import annotations

import contextvars
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from engine.ir.sources.base import MISSING, ConstName, Source


def weak_proxy_referent(proxy: Any) -> Any:
    """The object that a weak proxy stands for, ``MISSING`` where it is gone or does not tell."""
    try:
        found = proxy.__sizeof__.__self__
    except (ReferenceError, AttributeError):
        return MISSING
    return found if any(r is proxy for r in weakref.getweakrefs(found)) else MISSING


@dataclass(frozen=True)
class WeakProxySource(Source):
    """The object that a weak proxy stands for, or ``MISSING``."""

    base: Source

    @property
    def expr(self) -> str:
        return f"what {self.base.expr} stands for"

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(weak_proxy_referent, 'proxied')}({base})"

    def read(self, base: Any) -> Any:
        return weak_proxy_referent(base)


def _context_var_default(variable: contextvars.ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:
        return MISSING


@dataclass(frozen=True)
class ContextVarSource(Source):
    """What a context variable holds, or the default that it was made with; ``MISSING`` where there is none."""

    base: Source
    with_default: bool = False

    @property
    def expr(self) -> str:
        return f"{self.base.expr}.get()"

    def code(self, base: str, const: ConstName) -> str:
        if self.with_default:
            return f"{const(self.read, 'content')}({base})"
        return f"{base}.get({const(MISSING, 'MISSING')})"

    def read(self, base: Any) -> Any:
        return contextvars.Context().run(_context_var_default, base) if self.with_default else base.get(MISSING)


@dataclass(frozen=True)
class WeakRefCallSource(Source):
    """What a weak reference refers to, None where that is gone."""

    base: Source

    @property
    def expr(self) -> str:
        return f"{self.base.expr}()"

    def code(self, base: str, const: ConstName) -> str:
        return f"{base}()"

    def read(self, base: Any) -> Any:
        return base()


@dataclass(frozen=True)
class RandomDrawSource(Source):
    """The ``index``-th number that a call draws from a ``random.Random``, as a tensor. Reading it draws: only compiled code does."""

    base: Source
    index: int
    method: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    @property
    def expr(self) -> str:
        return f"{self.base.expr}.{self.method}#{self.index}"

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(self.read, 'draw')}({base})"

    def read(self, base: Any) -> Any:
        return torch.tensor(getattr(base, self.method)(*self.args, **dict(self.kwargs)), device="cpu", dtype=self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """That of the tensor."""
        return torch.int64 if self.method in INTEGER_DRAW_METHODS else torch.float64


@dataclass(frozen=True)
class RandomStateSource(Source):
    """What tells the states of a ``random.Random`` apart: a number."""

    base: Source

    @property
    def expr(self) -> str:
        return f"{self.base.expr}.getstate()"

    def code(self, base: str, const: ConstName) -> str:
        return f"hash({base}.getstate())"

    def read(self, base: Any) -> Any:
        return hash(base.getstate())


INTEGER_DRAW_METHODS = frozenset(("randint", "randrange", "getrandbits"))
"""The methods of ``random.Random`` that draw whole numbers."""
