"""Generators that are left half-way: where nothing names one any more, Python closes it, so that its ``finally`` blocks run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import GeneratorType
from typing import TYPE_CHECKING

from engine.trace.inline import close_generator
from engine.trace.signals import Unsupported, UserException
from engine.trace.values.base import Lazy, Value, reached
from engine.trace.values.generators import GeneratorValue
from engine.trace.values.outside_iterators import OpaqueIterator

if TYPE_CHECKING:
    from engine.trace.state import Frame, Tracer


def close_dead(tx: Tracer, frame: Frame, kept: Iterable[Value] = (), *, is_over: bool = False) -> None:
    """After an instruction of ``frame``, close the generators that it, and frames that are gone, used last and that nothing names now.

    ``is_over``: the frame itself is done, and only ``kept`` is left of it.
    """
    for generator in reversed(tx.open_generators):
        if generator.frame.finished:
            tx.open_generators.remove(generator)
        elif not generator.is_running and _may_be_dead(tx, generator, frame):
            if any(found is generator for found in _named(tx, frame, kept, is_over=is_over)):
                generator.used_by = frame
            else:
                tx.open_generators.remove(generator)
                if not any(found is generator for found in reached(generator.children())):
                    _close(tx, generator)  # one that holds itself lives until Python looks for such cycles


def _may_be_dead(tx: Tracer, generator: GeneratorValue, frame: Frame) -> bool:
    if generator.used_by is frame:
        return True
    # A frame that an exception has left lives as long as that is handled.
    return generator.used_by not in tx.frames and not any(f.handled for f in tx.frames)


def is_half_way(value: Value) -> bool:
    """Whether a local variable keeps a generator from being closed."""
    if isinstance(value, Lazy) and value.known is not None:
        value = value.known
    if isinstance(value, GeneratorValue):
        return value.is_started and not value.frame.finished
    return isinstance(value, (Lazy, OpaqueIterator)) and type(value.held) is GeneratorType


def _close(tx: Tracer, generator: GeneratorValue) -> None:
    try:
        close_generator(tx, generator)
    except UserException as error:
        raise Unsupported(
            "unsupported-operation", "a generator raises an exception when it is closed unseen"
        ) from error


def _named(tx: Tracer, current: Frame, kept: Iterable[Value], *, is_over: bool) -> Iterator[Value]:
    """All values that running code, or the world outside, can still reach; those that the current frame holds come first."""
    todo: list[Value] = [*tx.mutated.values(), *(v for v in tx.globals_written.values() if v is not None)]
    todo += [call for call, _ in tx.effects]
    for frame in tx.frames:
        if frame is not current:
            todo += [*_held(frame), *frame.operands]
    todo += kept if is_over else _held(current)
    return reached(todo)


def _held(frame: Frame) -> list[Value]:
    return [*frame.cells.values(), *frame.locals.values(), *frame.handled, *frame.stack]
