"""Constants of generated code: plain ones, and slots for other objects."""

from __future__ import annotations

from types import CodeType
from typing import Any

from engine.bytecode.assemble import Emitter
from engine.ir.traced_frame import ConstSlot

_INLINE_CONST_TYPES = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))


class UnhashableConstant:
    """Holds an unhashable constant, so that the code stays hashable.

    IPython hashes the code of each frame of a traceback.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class ConstantTable:
    """Entries for ``co_consts``; an object that code cannot contain gets a slot."""

    def __init__(self) -> None:
        self.slot_values: dict[ConstSlot, Any] = {}
        self._slots: dict[int, ConstSlot] = {}
        """Slots by the id of their objects, which ``slot_values`` holds."""

    def entry(self, value: Any) -> Any:
        """Return the entry for ``co_consts``: the object itself, or a ``ConstSlot`` for it."""
        if (
            type(value) in _INLINE_CONST_TYPES
            or (type(value) is tuple and all(type(v) in _INLINE_CONST_TYPES for v in value))
            or isinstance(value, CodeType)
        ):
            return value
        if isinstance(value, ConstSlot):
            return value
        slot = self._slots.get(id(value))
        if slot is None:
            slot = ConstSlot(type(value).__name__)
            self._slots[id(value)] = slot
            self.slot_values[slot] = value
        return slot

    def emit(self, value: Any, out: Emitter) -> None:
        """Push a constant of any type."""
        if type(value).__hash__ is not None:
            out.const(self.entry(value))
            return
        out.const(self.entry(UnhashableConstant(value)))
        out.attribute("value")
