"""Base class of guards: conditions on traced values under which compiled code is valid.

Each guard kind is one class. It defines the generated condition (``condition``), the evaluation on a value
(``test``), and the texts for people (``expected_text``, ``actual_text``, ``failure_message``, ``fixes``).
One set of guards yields the generated check and the explanation of a failure. No kind runs user code. The
kinds are in the other modules of ``ir.guards``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from engine.ir.frozen_dataclass import FrozenDataclass
from engine.ir.introspection import describe_values
from engine.ir.sources.base import STACK_PARAM_PREFIX, ConstName, Source
from engine.records.bytecode import Span
from engine.records.guards import Fix, name_accessors, name_iterator_reads


@dataclass(frozen=True)
class Cause:
    """Cause of a guard: the user line that read the value, its call stack, and a reason.

    The stack is outermost first.
    """

    span: Span | None = None
    stack: tuple[Span, ...] = ()
    reason: str = ""


NO_CAUSE = Cause()


class ValueCode(NamedTuple):
    """Code that reads the values of one guard, for the guard's condition."""

    const: ConstName
    expr: str = ""
    """Reads the guarded value; empty for a guard that reads global state."""
    others: tuple[str, ...] = ()
    """Read the rest of the guard's ``sources``."""
    known_type: type | None = None
    """The value's exact type if an earlier guard has checked it.

    For tensors, given only if no torch-function mode is active.
    """

    def call(self, function: Any, name: str, *arguments: str) -> str:
        """Return code that calls ``function`` under a readable ``name``."""
        return f"{self.const(function, name)}({', '.join(arguments)})"


STACK_VALUE_TEXT = "a value carried over the graph break"
"""Display text of a value carried over a graph break."""
LOOP_VALUE_TEXT = "a loop's iterator carried over the graph break"
"""Display text of such a value if it is the iterator of a loop."""
_NAMED_ITEM = re.compile(r"^L\['(\w+)'\]")


def user_expr(origin: Source) -> str:
    """Return the expression that the user would write in the frame: ``x``, ``self.weight``."""
    root = origin.chain()[0]
    named = origin.named_expr
    if named != origin.expr:
        return name_iterator_reads(_NAMED_ITEM.sub(r"\1", named))
    name = root.user_name
    if name.startswith(STACK_PARAM_PREFIX):
        text = name_iterator_reads(origin.expr.replace(root.expr, STACK_VALUE_TEXT, 1))
        return name_accessors(text, STACK_VALUE_TEXT)
    return name_iterator_reads(origin.expr.replace(root.expr, name, 1) if name else origin.expr)


@dataclass(frozen=True)
class ImpliedFacts:
    """Types, lengths and modes that the guards of an entry imply for other guards."""

    types: Mapping[Source, type | None]
    lengths: frozenset[tuple[Source, int | None]]
    no_modes: bool
    """No torch-function mode is active."""


class Guard(FrozenDataclass):
    """Base of all guard kinds. ``source`` is the guarded value.

    ``cause`` does not take part in equality, so deduplication retains the first guard.
    """

    kind: ClassVar[str] = ""
    rank: ClassVar[int] = 50
    """Order in the check: lower first (cheap and selective).

    A guard never runs before the guards on the sources that it reads through.
    """

    is_relational: ClassVar[bool] = False
    """True if the guard reads several values; it runs after all guards on each of them."""
    reads_value: ClassVar[bool] = True
    """False if the guard reads global state, and no value that the frame can reach."""
    is_tensor_property: ClassVar[bool] = False
    """True if the guard compares one property of a tensor; a C helper can compare all at once."""
    is_type_test: ClassVar[bool] = False
    """True if the guard compares the value's exact type and nothing else."""

    is_attribute_test: ClassVar[bool] = False
    """True if the guard only looks whether an attribute exists."""
    reports_changed_dims: ClassVar[bool] = False
    """True if ``changed_dims`` can return dimensions."""
    message: ClassVar[str] = "{value}: {kind} is {actual}, the compiled code expects {expected}."
    """Text of a failure: the ``value`` in the user's words, what it is, what was expected."""
    advice: ClassVar[str] = ""
    """Fix for each failure of the kind; empty if there is none or it depends on the value."""

    source: Source
    cause: Cause = field(default=NO_CAUSE, compare=False, kw_only=True)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of all values that the guard reads, ``source`` first."""
        return (self.source,)

    @property
    def tier(self) -> int:
        """Tier in the check: 0 global state, 1 argument, 2 other single value, 3 relation."""
        return 3 if self.is_relational else self.source.tier if self.reads_value else 0

    @property
    def implied_type(self) -> type | None:
        """The exact type of the value if the guard implies it, else None."""
        return None

    @property
    def is_dtensor_layout(self) -> bool:
        """True if the guard compares the layout of a ``DTensor``; one call compares those of many."""
        return False

    @property
    def global_state(self) -> tuple[str, Any] | None:
        """Name and expected value of the process-wide setting that the guard compares."""
        return None

    @property
    def implied_length(self) -> int | None:
        """The length of the value if the guard implies it, else None."""
        return None

    @property
    def forbids_modes(self) -> bool:
        """True if the guard fails while a torch-function mode is active."""
        return False

    @property
    def reads_source_twice(self) -> bool:
        """True if the condition reads the value twice."""
        return False

    @property
    def same_object(self) -> Source | None:
        """The other source whose object the value must be."""
        return None

    @property
    def size_reads(self) -> tuple[tuple[Source, int], ...]:
        """Sources and dimensions that are all the guard reads; -1 means the number itself."""
        return ()

    def condition_on_sizes(self, sizes: tuple[str, ...], const: ConstName) -> str:
        """Return ``condition`` with code for each of ``size_reads``."""
        raise NotImplementedError

    def is_redundant(self, implied: ImpliedFacts) -> bool:
        """Return True if other guards of the entry imply this one."""
        return False

    def expand(self) -> tuple[Guard, ...]:
        """Return the guards that are checked instead of this one."""
        return (self,)

    @property
    def user_expr(self) -> str:
        """The guarded value as the user would write it."""
        return user_expr(self.source)

    @property
    def kind_label(self) -> str:
        """The kind's name for display."""
        return self.kind

    def condition(self, code: ValueCode) -> str:
        """Return Python code that is true when the guard holds."""
        raise NotImplementedError

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        """Return True if the guard holds for these values.

        Agrees with ``condition`` on every input. An exception counts as a failure.
        """
        raise NotImplementedError

    def expected_text(self) -> str:
        """Describe the expected value in a few words."""
        raise NotImplementedError

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        """Describe the actual value in the terms of ``expected_text``."""
        return describe_values.describe(value)

    def failure_message(self, actual: str) -> str:
        """Return a sentence that explains why the guard failed."""
        expected = self.expected_text()
        return self.message.format(value=self.user_expr, kind=self.kind, actual=actual, expected=expected)

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        """Return possible fixes for the user, best first."""
        return (Fix(self.advice.format(value=self.user_expr)),) if self.advice else ()

    def fix_by_method(self, text: str, method_call: str) -> tuple[Fix, ...]:
        """Return the fix to replace the value by the result of its method: ``x = x.clone()``."""
        return (Fix(text, f"{self.user_expr} = {self.user_expr}.{method_call}"),)

    @property
    def dynamic_expr(self) -> str:
        """The name under which ``changed_dims`` are noted."""
        return self.source.expr

    def changed_dims(self, value: Any, other_values: tuple[Any, ...] = ()) -> frozenset[int]:
        """Return dimensions whose size differs from the expected one; -1 means the number itself.

        Automatic dynamic shapes turns them into symbols.
        """
        return frozenset()


class RelationalGuard(Guard):
    """Base of guards on a relation between the value and ``others``."""

    is_relational: ClassVar[bool] = True

    others: tuple[Source, ...]

    @property
    def sources(self) -> tuple[Source, ...]:
        return (self.source, *self.others)
