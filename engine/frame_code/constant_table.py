"""Constants of generated code: plain ones, and slots for other objects."""

from __future__ import annotations

from types import CodeType
from typing import Any

from engine.ir.traced_frame import ConstSlot

_INLINE_CONST_TYPES = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))


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
