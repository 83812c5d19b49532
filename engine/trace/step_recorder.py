"""Recorder of every traced instruction, for sessions with steps enabled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from engine.bytecode.source_positions import span_of
from engine.records.trace import StepRecord
from engine.trace.annotations import DecodedInstruction, Frame, Tracer, Variable
from engine.trace.exc import UserException
from engine.trace.opcode_registry import RETURN
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

_MAX_STEPS = 20_000


@dataclasses.dataclass
class _Activation:
    """A frame being traced: its number, and its locals as last recorded: variable, text, node."""

    frame: Frame
    number: int
    last_locals: dict[str, tuple[Variable, str, str]]


class StepRecorder:
    """Recorder of instruction steps; it records only the first ``_MAX_STEPS`` of a long trace."""

    def __init__(self, tx: Tracer) -> None:
        self._tx = tx
        self._steps: list[StepRecord] = []
        self._active: list[_Activation] = []
        self._numbers: dict[int, tuple[Frame, int]] = {}
        self._nodes: set[str] = set()
        self._guards = 0
        self._effects: set[str] = set()
        self._changes = 0

    def record_instruction(self, frame: Frame, op: DecodedInstruction, run: Callable[[], Any]) -> Any:
        """Run one instruction and record its effects."""
        if len(self._steps) >= _MAX_STEPS:
            return run()
        self._attach_new_items()
        active = self._activation_of(frame)
        index = len(self._steps)
        self._steps.append(self._step(index, active, op))
        event = ""
        try:
            outcome = run()
            event = "return" if outcome is RETURN else "inline" if len(self._steps) > index + 1 else ""
        except UserException:
            event = "raise"
            raise
        except Exception:
            event = "break"
            raise
        finally:
            self._attach_new_items()
            self._record_result(index, active, event)
        return outcome

    def _activation_of(self, frame: Frame) -> _Activation:
        """Return the frame's activation.

        A frame that is entered again, such as a generator, gets a new activation, which records all its locals
        again.
        """
        depth = len(self._tx.call_stack.frames) - 1
        if depth < len(self._active) and self._active[depth].frame is frame:
            del self._active[depth + 1 :]
            return self._active[depth]
        del self._active[depth:]
        _, number = self._numbers.setdefault(id(frame), (frame, len(self._numbers)))
        active = _Activation(frame, number, {})
        self._active.append(active)
        return active

    def _step(self, index: int, active: _Activation, op: DecodedInstruction) -> StepRecord:
        code = active.frame.code
        span = span_of(code, op.offset)
        depth = len(self._tx.call_stack.frames) - 1
        return StepRecord(
            index, depth, code.co_qualname, op.offset, op.opname, op.argrepr, span, (), {}, frame=active.number
        )

    def _attach_new_items(self) -> None:
        """Attach nodes, guards and side effects added since the last call to the latest step."""
        nodes, guards, effects = tuple(self._new_nodes()), tuple(self._new_guards()), tuple(self._new_effects())
        if not self._steps or not (nodes or guards or effects):
            return
        last = self._steps[-1]
        self._steps[-1] = dataclasses.replace(
            last, nodes=last.nodes + nodes, guards=last.guards + guards, side_effects=last.side_effects + effects
        )

    def _new_nodes(self) -> list[str]:
        nodes = self._tx.graph.graph.nodes
        count = len(nodes)
        if count < len(self._nodes):  # some nodes were erased
            self._nodes &= {n.name for n in nodes}
        # Most new nodes are at the end; placeholders are inserted before the others.
        unseen = (n.name for n in reversed(nodes) if n.name not in self._nodes)
        new_nodes = list(islice(unseen, max(0, count - len(self._nodes))))[::-1]
        self._nodes.update(new_nodes)
        return new_nodes

    def _new_guards(self) -> Iterator[str]:
        guards = self._tx.guards
        if len(guards) != self._guards:
            for guard in guards.since(self._guards):
                yield f"{guard.source.expr}: {guard.kind or type(guard).__name__}"
            self._guards = len(guards)

    def _new_effects(self) -> list[str]:
        if self._tx.side_effects.mutation_count == self._changes:
            return []
        self._changes = self._tx.side_effects.mutation_count
        new_effects = [e for e in dict.fromkeys(self._pending_side_effects()) if e not in self._effects]
        self._effects.update(new_effects)
        return new_effects

    def _pending_side_effects(self) -> Iterator[str]:
        """Yield descriptions of the pending side effects."""
        for value in self._tx.side_effects.mutated_variables.values():
            name = value.source.expr if value.source is not None else value.describe()
            if isinstance(value, UserDefinedObjectVariable):
                yield from (f"{name}: {attribute} is set" for attribute in value.attr_writes)
            elif not value.is_loaded_by_source:
                yield f"{name}: the closure variable is set"
            else:
                yield f"{name}: contents of the {value.python_type().__name__} are replaced"
        for (_, name), written in self._tx.side_effects.global_writes.items():
            yield f"the global {name} is {'deleted' if written is None else 'set'}"

    def _record_result(self, index: int, active: _Activation, event: str) -> None:
        frame = active.frame
        current = {name: (value, value.describe(), _node_name(value)) for name, value in _variables(frame)}
        changed = {
            name: variable
            for name, variable in current.items()
            if not _is_unchanged(active.last_locals.get(name), variable)
        }
        gone = dict.fromkeys(active.last_locals.keys() - current.keys(), "")
        active.last_locals = current
        self._steps[index] = dataclasses.replace(
            self._steps[index],
            stack=tuple(v.describe() for v in frame.stack),
            locals_changed={name: description for name, (_, description, _) in changed.items()} | gone,
            event=event,
            stack_nodes=tuple(map(_node_name, frame.stack)),
            locals_nodes={name: node for name, (_, _, node) in changed.items() if node} or None,
        )

    def step_records(self) -> tuple[StepRecord, ...]:
        """Return all steps in order."""
        return tuple(self._steps)


def _variables(frame: Frame) -> Iterator[tuple[str, Variable]]:
    """Yield the locals and the contents of the cells."""
    yield from frame.locals.items()
    for name, cell in frame.cells.items():
        if cell.content is not None:
            yield name, cell.content


def _is_unchanged(before: tuple[Variable, str, str] | None, now: tuple[Variable, str, str]) -> bool:
    return before is not None and before[0] is now[0] and before[1:] == now[1:]


def _node_name(value: Variable) -> str:
    node = value.node_or_none
    return node.name if node is not None else ""
