"""Close suspended generators that became unreachable, as Python would.

Closing runs their ``finally`` blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.trace.annotations import Frame, Tracer
from engine.trace.exc import BreakGraph, UserException
from engine.trace.inline_generators import close_generator
from engine.trace.variables.base import Variable, reachable_variables
from engine.trace.variables.callables.generators import GeneratorVariable


def close_unreachable_generators(
    tx: Tracer, frame: Frame, live: Iterable[Variable] = (), *, is_over: bool = False
) -> None:
    """Close generators that became unreachable, after an instruction of ``frame``.

    Only generators that this frame or a finished frame used last are checked. ``is_over``: the frame is
    finished, and only ``live`` remains of it.
    """
    for generator in reversed(tx.call_stack.open_generators):
        if generator.frame.is_finished:
            tx.call_stack.open_generators.remove(generator)
        elif not generator.is_running and _may_be_unreachable(tx, generator, frame):
            if any(reachable is generator for reachable in _reachable_variables(tx, frame, live, is_over=is_over)):
                generator.innermost_user_frame = frame
            else:
                tx.call_stack.open_generators.remove(generator)
                if not any(reachable is generator for reachable in reachable_variables(generator.child_variables())):
                    _close_silently(
                        tx, generator
                    )  # a generator in a reference cycle lives until the garbage collector runs


def _may_be_unreachable(tx: Tracer, generator: GeneratorVariable, frame: Frame) -> bool:
    if generator.innermost_user_frame is frame:
        return True
    # A frame that was left by an exception lives while that exception is handled.
    return generator.innermost_user_frame not in tx.call_stack.frames and not any(
        f.exc_stack for f in tx.call_stack.frames
    )


def _close_silently(tx: Tracer, generator: GeneratorVariable) -> None:
    what = "a suspended generator raises an exception when it is finalized"
    with BreakGraph("generator-state", what, UserException):
        close_generator(tx, generator)


def _reachable_variables(tx: Tracer, current: Frame, live: Iterable[Variable], *, is_over: bool) -> Iterator[Variable]:
    """Yield all variables that running or external code can reach, the current frame's first."""
    todo: list[Variable] = [
        *tx.side_effects.mutated_variables.values(),
        *(v for v in tx.side_effects.global_writes.values() if v is not None),
    ]
    todo += [call for call, _ in tx.side_effects.side_effect_calls]
    for frame in tx.call_stack.frames:
        if frame is not current:
            todo += [*_variables_of_frame(frame), *frame.stack_before]
    todo += live if is_over else _variables_of_frame(current)
    return reachable_variables(todo)


def _variables_of_frame(frame: Frame) -> list[Variable]:
    return [*frame.cells.values(), *frame.locals.values(), *frame.exc_stack, *frame.stack]
