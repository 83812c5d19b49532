"""Guards on torch's global state: grad mode, default dtype, autocast and the like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from engine.ir import exact
from engine.ir.global_state import GLOBAL_STATES, QUICK, same_state
from engine.ir.guard import NO_CAUSE, Cause, Guard, Known
from engine.ir.origin import ConstName, Fixed
from engine.records.guards import Fix


@dataclass(frozen=True)
class GlobalState(Guard):
    """A piece of torch's global state. ``state`` is a name in GLOBAL_STATES; ``origin`` is ``Fixed(torch, "torch")``."""

    kind: ClassVar[str] = "global state"
    rank: ClassVar[int] = 0

    state: str
    value: Any

    @property
    def name(self) -> str:
        return GLOBAL_STATES[self.state].words

    @property
    def kind_words(self) -> str:
        return self.name

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        if self._is_plain and (self.state, self.value) in QUICK:
            template, function = QUICK[self.state, self.value]
            return str(template).format(const(function, function.__name__.lstrip("_")))
        read = GLOBAL_STATES[self.state].read
        call = f"{const(read, read.__name__.lstrip('_'))}()"
        if self.value is None or type(self.value) is bool:
            return f"{call} is {self.value}"
        if type(self.value) is torch.dtype:
            return f"{call} is {const(self.value, exact.dtype_word(self.value))}"
        return f"{const(same_state, 'same_state')}({call}, {const(self.value, self.state)})"

    @property
    def _is_plain(self) -> bool:
        return self.value is None or (type(self.value) is tuple and not self.value)

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        return same_state(GLOBAL_STATES[self.state].read(), self.value)

    def expected_text(self) -> str:
        return _state_text(self.value)

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        found = _state_text(GLOBAL_STATES[self.state].read())
        return f"another {found}" if found == self.expected_text() and not self.test(value) else found

    def sentence(self, actual: str) -> str:
        return f"{self.name[0].upper()}{self.name[1:]} is {actual}, the compiled code was made with {self.expected_text()}."

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        if self.state == "grad_mode":
            wanted = "enable_grad" if self.value else "no_grad"
            return (
                Fix(
                    "Call it always under the same grad mode, or accept one entry for each",
                    f"with torch.{wanted}():\n    ...",
                ),
            )
        return (Fix(f"Set the {self.name} once, before the first call, or accept one entry for each setting."),)


def _state_text(value: Any) -> str:
    if type(value) is bool:
        return "on" if value else "off"
    if value is None or (type(value) is tuple and not value):
        return "none"
    return exact.describe(value)


TORCH = Fixed(torch, "torch")
"""The origin of every guard on global state."""


def current_global_state_guards(cause: Cause = NO_CAUSE) -> tuple[GlobalState, ...]:
    """One guard for each piece of torch's global state, as it is now."""
    return tuple(GlobalState(TORCH, state.name, state.read(), cause=cause) for state in GLOBAL_STATES.values())
