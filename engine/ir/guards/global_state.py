"""Guards on torch's global state: grad mode, default dtype, autocast and others."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from engine.ir.guards.base import Guard, ImpliedFacts, ValueCode
from engine.ir.introspection import describe_values
from engine.ir.introspection.torch_global_state import FAST_CHECKS, GLOBAL_STATES, global_state_equal
from engine.ir.sources.roots import ConstantSource
from engine.records.guards import Fix


class GlobalStateMatch(Guard):
    """Guard on one item of torch's global state.

    ``state_name`` is a key of ``GLOBAL_STATES``; ``source`` is ``TORCH_SOURCE``.
    """

    kind: ClassVar[str] = "global state"
    rank: ClassVar[int] = 0
    reads_value: ClassVar[bool] = False

    state_name: str
    expected: Any

    @property
    def global_state(self) -> tuple[str, Any] | None:
        return self.state_name, self.expected

    @property
    def forbids_modes(self) -> bool:
        return self.state_name == "torch_function_modes" and self.expected == ()

    def is_redundant(self, implied: ImpliedFacts) -> bool:
        return implied.no_modes and self.state_name == "default_device" and self.expected is None

    @property
    def user_expr(self) -> str:
        return GLOBAL_STATES[self.state_name].label

    @property
    def kind_label(self) -> str:
        return self.user_expr

    def condition(self, code: ValueCode) -> str:
        if self._is_plain and (self.state_name, self.expected) in FAST_CHECKS:
            template, function = FAST_CHECKS[self.state_name, self.expected]
            return str(template).format(code.const(function, function.__name__.lstrip("_")))
        read = GLOBAL_STATES[self.state_name].read
        call = code.call(read, read.__name__.lstrip("_"))
        if self.expected is None or type(self.expected) is bool:
            return f"{call} is {self.expected}"
        if type(self.expected) is torch.dtype:
            return f"{call} is {code.const(self.expected, describe_values.short_dtype(self.expected))}"
        return code.call(global_state_equal, "same_state", call, code.const(self.expected, self.state_name))

    @property
    def _is_plain(self) -> bool:
        return self.expected is None or (type(self.expected) is tuple and not self.expected)

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return global_state_equal(GLOBAL_STATES[self.state_name].read(), self.expected)

    def expected_text(self) -> str:
        return _state_text(self.expected)

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        actual = _state_text(GLOBAL_STATES[self.state_name].read())
        return f"another {actual}" if actual == self.expected_text() and not self.test(value) else actual

    def failure_message(self, actual: str) -> str:
        return f"{self.user_expr[0].upper()}{self.user_expr[1:]} is {actual}; this entry was compiled with {self.expected_text()}."

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        if self.state_name == "grad_mode":
            context = "enable_grad" if self.expected else "no_grad"
            text = "Always call it under the same grad mode, or accept one cache entry per grad mode"
            return (Fix(text, f"with torch.{context}():\n    ..."),)
        return (Fix(f"Set the {self.user_expr} once, before the first call, or accept one cache entry per setting."),)


def _state_text(value: Any) -> str:
    if type(value) is bool:
        return "on" if value else "off"
    if value is None or (type(value) is tuple and not value):
        return "none"
    return describe_values.describe(value)


TORCH_SOURCE = ConstantSource(torch, "torch")
"""The source of every global state guard."""
