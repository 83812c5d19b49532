"""Guard on a computed condition over small tensors and numbers.

The condition is evaluated before each call and must have the value that it had during tracing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from engine.ir.guards.base import RelationalGuard, ValueCode, user_expr
from engine.ir.sources.stdlib import ArgumentPath
from engine.records.guards import Fix
from engine.torch_private.torch_function import DisableTorchFunction


@dataclass(frozen=True)
class ValueRef:
    """Reference to a value in the arguments of an operation, by index.

    Indices count the inputs first, then the result of each operation.
    """

    index: int


@dataclass(frozen=True)
class ConditionOp:
    """One operation: a function, or the name of a method of its first argument."""

    target: str | Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()


def evaluate_condition(steps: tuple[ConditionOp, ...], *inputs: Any) -> bool | None:
    """Evaluate the operations and return the last result as a bool; None if one of them fails."""
    outcome: bool | None = _evaluate(bool, steps, inputs)
    return outcome


def evaluate_number(steps: tuple[ConditionOp, ...], *inputs: Any) -> Any:
    """Evaluate the operations and return the last result as a number; None if one fails."""
    return _evaluate(torch.Tensor.item, steps, inputs)


@dataclass(frozen=True)
class NumberProgram:
    """Operations on Python numbers. The result is None if one of them fails.

    With ``paths``, the numbers are read from a tuple of arguments.
    """

    steps: tuple[ConditionOp, ...]
    paths: tuple[ArgumentPath, ...] = ()

    def __call__(self, arguments: Any) -> Any:
        numbers = [path.read(arguments) for path in self.paths] or [arguments]
        return run_steps(self.steps, numbers) if all(type(n) in (int, float) for n in numbers) else None


def _evaluate(finish: Callable[[Any], Any], steps: tuple[ConditionOp, ...], inputs: tuple[Any, ...]) -> Any:
    """Evaluate the operations. Tensors are cloned first, because operations may mutate them."""
    with torch.no_grad(), DisableTorchFunction():
        values = [v.clone() if isinstance(v, torch.Tensor) else v for v in inputs]
        return run_steps((*steps, ConditionOp(finish, (ValueRef(len(inputs) + len(steps) - 1),))), values)


def run_steps(steps: tuple[ConditionOp, ...], values: list[Any]) -> Any:
    """Append each result to the known values; return the last, or None if one fails."""
    try:
        for step in steps:
            args = [values[a.index] if type(a) is ValueRef else a for a in step.args]
            kwargs = {k: values[a.index] if type(a) is ValueRef else a for k, a in step.kwargs}
            run = step.target if callable(step.target) else getattr(args.pop(0), step.target)
            values.append(run(*args, **kwargs))
    except (ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError):
        return None
    return values[-1]


class ComputedCondition(RelationalGuard):
    """Guard that the operations on these values yield ``expected``."""

    kind: ClassVar[str] = "outcome"
    rank: ClassVar[int] = 90

    ops: tuple[ConditionOp, ...]
    expected: bool

    def condition(self, code: ValueCode) -> str:
        steps = code.const(self.ops, "steps")
        return f"{code.call(evaluate_condition, 'comes_to', steps, code.expr, *code.others)} is {self.expected}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return evaluate_condition(self.ops, value, *other_values) is self.expected

    def expected_text(self) -> str:
        return f"values that make a condition {str(self.expected).lower()}"

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        outcome = evaluate_condition(self.ops, value, *other_values)
        return (
            "values for which the condition cannot be evaluated" if outcome is None else self._condition_text(outcome)
        )

    def _condition_text(self, truth: bool) -> str:
        return f"values that make it {str(truth).lower()}"

    def failure_message(self, actual: str) -> str:
        of = ", ".join(map(user_expr, self.sources))
        return f"A condition on the values of {of} was {str(self.expected).lower()} when this entry was compiled; this call has {actual}."

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return (Fix("Accept one cache entry per outcome, or use torch.where to compute both."),)
