"""Side effects of the traced code, in the order in which generated code applies them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from engine.ir.sources.base import GlobalsNamespace
from engine.ir.sources.roots import GlobalSource
from engine.trace.annotations import InstructionCounter, Tracer
from engine.trace.exc import Unsupported
from engine.trace.external_caches import ExternallyCached, version_of
from engine.trace.variables.base import Variable, reachable_variables


class SideEffects:
    """Mutations, writes of globals, and calls that generated code applies after the graph."""

    def __init__(self, instruction_counter: InstructionCounter) -> None:
        self._instruction_counter = instruction_counter
        self.mutated_variables: dict[int, Variable] = {}
        """Variables with a source that were mutated, in the order of their first mutation."""
        self._recordings: list[list[Variable]] = []
        """Variables that were mutated in each block of ``recording_mutations``, innermost last."""
        self.global_writes: dict[tuple[GlobalsNamespace, str], Variable | None] = {}
        self.reordered_globals: set[tuple[GlobalsNamespace, str]] = set()
        """Globals that were deleted and set again: they come last in the order of their module."""
        self.side_effect_calls: list[tuple[Variable, str]] = []
        """Calls without a result, run in order after the graph: the call and its description."""
        self.mutation_count = 0
        """Number of mutations of any kind; an equal count means that nothing changed."""
        self.external_mutation_count = 0
        """Number of mutations of objects that existed before the call."""
        self.externally_cached: dict[int, ExternallyCached] = {}
        """Variables in external caches that the traced code may mutate, by variable id."""
        self.checks_at_end: list[Callable[[Tracer], None]] = []
        """Run at the end of the graph, after all mutations; they may raise ``RestartTracing``."""

    @property
    def writes_objects(self) -> bool:
        """True if code after the graph mutates objects or sets globals."""
        return bool(self.mutated_variables or self.global_writes)

    def check_opaque_call(self, name: str) -> None:
        """Raise if a function that is not traced would read objects before their mutation.

        Raises:
            Unsupported: the traced code mutated an object or set a global.
        """
        if self.writes_objects:
            raise Unsupported("opaque-after-mutation", f"{name} is called after a mutation of objects that it may read")

    @contextlib.contextmanager
    def recording_mutations(self) -> Iterator[list[Variable]]:
        """Record the variables that the block mutates."""
        recorded: list[Variable] = []
        self._recordings.append(recorded)
        try:
            yield recorded
        finally:
            self._recordings.pop()

    def record_mutation(self, value: Variable) -> None:
        """Record that a variable is about to be mutated; its contents are written after the graph."""
        self.mutation_count += 1
        value.before_mutation()
        for recorded in self._recordings:
            recorded.append(value)
        if id(value) in self.externally_cached:
            raise self.externally_cached[id(value)].graph_break("is mutated")
        if value.source is None or value.is_constructed:
            return
        self.external_mutation_count += 1
        if id(value) not in self.mutated_variables:
            self.mutated_variables[id(value)] = value

    def mark_externally_cached(self, value: Variable, cache: Any) -> None:
        """Record that an external cache holds a variable and all that is reachable from it."""
        for real in reachable_variables([value]):
            if real.is_mutable and real.source is None:
                number = self._instruction_counter.root_instruction_number
                self.externally_cached.setdefault(id(real), ExternallyCached(real, cache, version_of(real), number))

    def record_side_effect(self, call: Variable, description: str) -> None:
        """Record a call that generated code makes after the graph, in this order."""
        self.mutation_count += 1
        self.external_mutation_count += 1
        self.side_effect_calls.append((call, description))

    def record_global_write(self, namespace: GlobalsNamespace, name: str, value: Variable | None) -> None:
        """Record that a global is set, or deleted if ``value`` is None.

        Generated code does this after the graph.
        """
        self.mutation_count += 1
        self.external_mutation_count += 1
        key = (namespace, name)
        if key in self.global_writes and self.global_writes[key] is None:
            del self.global_writes[key]  # set after it was deleted: it comes last in the module
            self.reordered_globals.add(key)
        has_original_value = value is not None and value.source == GlobalSource(namespace, name)
        if has_original_value and key in self.global_writes and key not in self.reordered_globals:
            del self.global_writes[key]
        else:
            self.global_writes[key] = value

    def describe(self) -> tuple[str, ...]:
        """Return a description of each mutated variable and of each call."""
        calls = tuple(description for _, description in self.side_effect_calls)
        mutated = (v.describe().removesuffix(" (not read yet)") for v in self.mutated_variables.values())
        return (*(f"mutation of {name}" for name in mutated), *calls)

    def release(self) -> None:
        """Release the variables that may hold objects of the call."""
        self.mutated_variables.clear()
        self.externally_cached.clear()
        self.checks_at_end.clear()
