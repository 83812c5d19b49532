"""How a functional graph stands in for the user's: what was mutated, what each output is. Derived facts are functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class OutputPlan:
    """One output of the user's graph.

    ``kind``: "fresh" (result ``index`` of the functional graph), "input" (input ``index`` itself), "view" (of input ``index``: regenerated with
    ``shape``, ``stride``, ``offset``; ``is_detached`` if autograd does not know it as a view), "same" (output ``index`` once more),
    "constant" (``value``).
    """

    kind: Literal["fresh", "input", "view", "same", "constant"]
    index: int = -1
    shape: tuple[Any, ...] = ()
    stride: tuple[Any, ...] = ()
    offset: Any = 0
    is_detached: bool = False
    value: Any = None


@dataclass(frozen=True)
class Plan:
    """The calling convention: the functional graph returns the new values of ``mutated`` inputs first, then the fresh outputs in order."""

    inputs: tuple[str, ...]
    mutated: tuple[int, ...]
    outputs: tuple[OutputPlan, ...]


def is_identity(plan: Plan) -> bool:
    """Whether the functional graph can be called in the user's graph's place as it is."""
    return not plan.mutated and all(o.kind == "fresh" and o.index == n for n, o in enumerate(plan.outputs))
