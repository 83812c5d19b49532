"""Reason why a stage does not compile something, and the exception that carries it.

Each stage has its own enumeration of kinds, derived from ``FallbackKind``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from engine.ir.reason_catalog import ReasonCatalog
from engine.records.aot import FallbackRecord

if TYPE_CHECKING:
    import torch.fx


class FallbackKind(enum.Enum):
    """Base of the enumerations of causes.

    A member is ``NAME = id``. The id is stable; its page in the catalog has the cause, hints and programs.
    """

    reasons: ClassVar[ReasonCatalog]
    """The pages of all members of the enumeration."""

    def __init_subclass__(cls, *, reasons: ReasonCatalog) -> None:
        super().__init_subclass__()
        cls.reasons = reasons

    def __init__(self, id: str) -> None:
        self.id = id

    @property
    def hint(self) -> str:
        """First advice on the reason's page."""
        return self.reasons[self.id].advice[0]


@dataclass(frozen=True, slots=True)
class Fallback:
    """Reason why a stage does not compile something.

    ``reason`` is a clause about this call ("x is a view of ..."), without a period. ``node`` is the name of the graph
    node that caused it, if there is one.
    """

    kind: FallbackKind
    reason: str
    node: str = ""

    @classmethod
    def for_node(cls, node: torch.fx.Node, kind: FallbackKind, clause: str) -> Self:
        """Return a fallback that a node causes; ``clause`` follows the node's name."""
        return cls(kind, f"{node.name} {clause}", node.name)

    def __str__(self) -> str:
        return self.reason

    @property
    def hint(self) -> str:
        """Advice for the user: a change that avoids the fallback."""
        return self.kind.hint

    def to_record(self) -> FallbackRecord:
        """Return the fallback as a record."""
        return FallbackRecord(self.kind.id, self.reason, self.hint, self.node)


class FallbackRequired(Exception):
    """Leaves a stage that cannot compile something; ``fallback`` has the reason."""

    def __init__(self, kind: FallbackKind, reason: str, node: str = "") -> None:
        self.fallback = Fallback(kind, reason, node)
        super().__init__(reason)
