"""Guards: what compiled code takes for granted about the values it was traced with. Here the base of all kinds.

Each kind is one class, and defines once how to check it fast (``condition``), how to test a value that was read (``test``), and how to tell a
person (``expected_text``, ``actual_text``, ``sentence``, ``fixes``). From one set of guards come the generated check and the explaining walk.
No kind runs code of the user's. The kinds stand in ``ir.value_guard``, ``ir.tensor_guard``, ``ir.state_guard`` and ``ir.relation_guard``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from engine.ir.introspection import describe_values
from engine.ir.sources.base import STACK_PARAM_PREFIX, ConstName, Source
from engine.ir.sources.roots import (
    ClosureSource,
    GlobalSource,
    LocalSource,
    OptionalClosureSource,
    OptionalGlobalSource,
)
from engine.records.bytecode import Span
from engine.records.guards import Fix


@dataclass(frozen=True)
class Cause:
    """Why a guard exists: the user's line that looked at the value, the stack that led there (outermost first), and the reason in words."""

    span: Span | None = None
    stack: tuple[Span, ...] = ()
    reason: str = ""


NO_CAUSE = Cause()


KnownType = type | None
"""The exact type of a value, where a guard checked before has settled it."""


STACK_VALUE_TEXT = "a value carried over the graph break"
"""What a person is told of such a value."""


def user_expr(origin: Source) -> str:
    """The value as a person writes it in the frame: ``x``, ``self.weight``."""
    root = origin.chain()[0]
    if not isinstance(root, (LocalSource, GlobalSource, OptionalGlobalSource, ClosureSource, OptionalClosureSource)):
        return origin.expr
    return (
        STACK_VALUE_TEXT if root.variable_name.startswith(STACK_PARAM_PREFIX) else root.variable_name
    ) + origin.expr.removeprefix(root.expr)


@dataclass(frozen=True)
class Guard:
    """Base of all kinds. ``origin`` is the value guarded; ``cause`` does not take part in equality, so that de-duplication keeps the first."""

    kind: ClassVar[str] = ""
    rank: ClassVar[int] = 50
    """Order in the check: lower first (cheap and selective), but never before the guards of the origins it reads through."""

    reports_changed_dims: ClassVar[bool] = False
    """Whether ``changed`` can say anything."""

    source: Source
    cause: Cause = field(default=NO_CAUSE, compare=False, kw_only=True)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every value that the guard reads, ``origin`` first."""
        return (self.source,)

    @property
    def user_expr(self) -> str:
        """What the guard is on, as a person writes it."""
        return user_expr(self.source)

    @property
    def kind_label(self) -> str:
        """The kind as the field calls it."""
        return self.kind

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: KnownType = None) -> str:
        """Python text that is true when the guard holds.

        ``expr`` reads the value, ``others`` the rest of ``origins``. For tensors ``known`` is given only where no torch-function mode is active.
        """
        raise NotImplementedError

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        """Whether the guard holds for values that were read; agrees with ``condition`` on every input. A raise counts as no."""
        raise NotImplementedError

    def expected_text(self) -> str:
        """What the guard asks for, in a few words."""
        raise NotImplementedError

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        """What the value is, in the same terms as ``expected_text``."""
        return describe_values.describe(value)

    def failure_message(self, actual: str) -> str:
        """A plain sentence that says why the guard failed."""
        return f"{self.user_expr}: {self.kind} is {actual}, the compiled code expects {self.expected_text()}."

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        """What a person can do so that it holds, best first."""
        return ()

    def changed_dims(self, value: Any) -> frozenset[int]:
        """Dimensions whose size differs from the expected one (-1: the number itself): what automatic dynamic makes a symbol."""
        return frozenset()
