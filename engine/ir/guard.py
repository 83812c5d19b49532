"""Guards: what compiled code takes for granted about the values it was traced with. One class per kind.

Each kind defines once how to check it fast (``code``), how to test a value that was read (``test``), and how to tell a person
(``expected_text``, ``actual_text``, ``sentence``, ``fixes``). From one set of guards come the generated check and the explaining walk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import sympy
import torch

from engine.ir.origin import ConstName, Origin, Scope
from engine.records.bytecode import Span
from engine.records.guards import Fix


@dataclass(frozen=True)
class Cause:
    """Why a guard exists: the user's line that looked at the value, the stack that led there (outermost first), and the reason in words."""

    span: Span | None = None
    stack: tuple[Span, ...] = ()
    why: str = ""


NO_CAUSE = Cause()


@dataclass(frozen=True)
class Guard:
    """Base of all kinds. ``origin`` is the value guarded; ``cause`` does not take part in equality, so that de-duplication keeps the first."""

    kind: ClassVar[str] = ""
    rank: ClassVar[int] = 50
    """Order in the check: lower first (cheap and selective), but never before the guards of the origins it reads through."""

    origin: Origin
    cause: Cause = field(default=NO_CAUSE, compare=False, kw_only=True)


@dataclass(frozen=True)
class TypeIs(Guard):
    """``type(value) is type``: exact, subclasses do not pass."""

    type: type


@dataclass(frozen=True)
class IsObject(Guard):
    """``value is held`` (functions, classes, modules, None, singletons)."""

    held: Any


@dataclass(frozen=True)
class Equals(Guard):
    """Same type and equal value: int, float (NaN equals NaN, 0.0 does not equal -0.0), str, bytes, bool, dtype, device, enum, slice, and tuples of them."""

    value: Any


@dataclass(frozen=True)
class LengthIs(Guard):
    """``len(value) == length`` of a builtin container whose type is already guarded."""

    length: int


@dataclass(frozen=True)
class DictKeys(Guard):
    """The dict has these keys, in this order (constants compared by type and value, other keys by identity)."""

    keys: tuple[Any, ...]


@dataclass(frozen=True)
class HasAttribute(Guard):
    """Whether an attribute is found on the value without running code of the user's: looked up through the type's MRO and the instance dict."""

    attribute: str
    present: bool


@dataclass(frozen=True)
class CodeIs(Guard):
    """A function still has the code object that was traced."""

    code: Any


@dataclass(frozen=True)
class TensorMatch(Guard):
    """What tracing took from a tensor; expanded to one guard a facet before ordering.

    ``sizes`` and ``strides`` have None where the dimension is a symbol.
    """

    type: type
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    dispatch_keys: str


@dataclass(frozen=True)
class SameObject(Guard):
    """Two origins reach the same object (``same``), or must not."""

    other: Origin
    same: bool


@dataclass(frozen=True)
class NoOverlap(Guard):
    """None of these tensors share storage with another one of them (needed only where a mutation could be seen through both)."""

    others: tuple[Origin, ...]


@dataclass(frozen=True)
class GlobalState(Guard):
    """A piece of torch's global state. ``state`` is a name in GLOBAL_STATES; ``origin`` is ``Fixed(torch, "torch")``."""

    state: str
    value: Any


@dataclass(frozen=True)
class ShapeRelation(Guard):
    """A sympy relation over sizes. ``symbols`` says where each symbol is read: (symbol, origin, dimension), dimension -1 for an int's own value.

    ``origin`` is the first symbol's.
    """

    relation: sympy.Basic
    symbols: tuple[tuple[sympy.Symbol, Origin, int], ...]
