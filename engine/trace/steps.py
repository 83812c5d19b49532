"""The record of every instruction traced, for sessions that ask for steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.bytecode.spans import span_of
from engine.records.trace import StepRecord
from engine.trace.table import RETURN

if TYPE_CHECKING:
    from engine.bytecode.decode import Op
    from engine.trace.state import Frame, Tracer

_MAX_STEPS = 20_000


class StepLog:
    """Watches a tracer. Keeps the first steps of very long traces."""

    def __init__(self, tx: Tracer) -> None:
        self._tx = tx
        self._steps: list[StepRecord] = []
        self._count = 0

    def watch(self, frame: Frame, op: Op, run: Callable[[], Any]) -> Any:
        """Run one instruction and note what it did."""
        if self._count >= _MAX_STEPS:
            return run()
        index = self._count
        self._count += 1
        self._steps.append(self._step(index, frame, op))
        nodes, guards, effects = self._marks()
        before = dict(frame.locals)
        inner = self._count
        event = ""
        try:
            outcome = run()
            event = "return" if outcome is RETURN else "inline" if self._count > inner else ""
        except Exception:
            event = "break"
            raise
        finally:
            self._complete(index, frame, before, (nodes, guards, effects), event)
        return outcome

    def _step(self, index: int, frame: Frame, op: Op) -> StepRecord:
        span = span_of(frame.code, op.offset)
        return StepRecord(
            index, len(self._tx.frames) - 1, frame.code.co_qualname, op.offset, op.opname, op.argrepr, span, (), {}
        )

    def _marks(self) -> tuple[int, int, int]:
        return len(self._tx.graph.graph.nodes), len(self._tx.guards), len(self._tx.mutated)

    def _complete(
        self, index: int, frame: Frame, before: dict[str, Any], marks: tuple[int, int, int], event: str
    ) -> None:
        import dataclasses

        tx = self._tx
        changed = {n: v.describe() for n, v in frame.locals.items() if before.get(n) is not v}
        nodes = [n.name for n in list(tx.graph.graph.nodes)[marks[0] :]] if len(tx.graph.graph.nodes) > marks[0] else []
        guards = [f"{g.origin.expr}: {g.kind or type(g).__name__}" for g in tx.guards.since(marks[1])]
        effects = [v.describe() for v in list(tx.mutated.values())[marks[2] :]]
        self._steps[index] = dataclasses.replace(
            self._steps[index],
            stack=tuple(v.describe() for v in frame.stack),
            locals_changed=changed,
            nodes=tuple(nodes),
            guards=tuple(guards),
            effects=tuple(effects),
            event=event,
        )

    def steps(self) -> tuple[StepRecord, ...]:
        """All steps, in order."""
        return tuple(self._steps)
