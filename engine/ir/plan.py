"""The calling convention of a compiled graph: what happens to each input, and how each output of the user's graph comes about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

Size = Any
"""An int, or a SymInt over the graph's symbols."""

OutputKind = Literal["result", "input", "alias of input", "alias of result", "constant"]


@dataclass(frozen=True)
class View:
    """How to see a tensor through ``as_strided``. ``offset`` is in elements, relative to the tensor that is viewed."""

    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size = 0
    is_detached: bool = False
    """The view has no ``_base`` (``x.detach()``)."""
    dtype: torch.dtype | None = None
    """Seen as elements of another type of the same width; None: as it is."""


@dataclass(frozen=True)
class InputPlan:
    """One input. ``written`` says that its data changes; the functional graph then returns the new contents as result ``result``."""

    name: str
    is_tensor: bool = True
    written: bool = False
    result: int = -1


@dataclass(frozen=True)
class OutputPlan:
    """One output of the traced graph.

    ``index`` is the functional graph's result ("result", "alias of result") or the input ("input", "alias of input") that it comes
    from; ``constant`` the value of a "constant"; ``view`` how an alias sees what it aliases.
    """

    name: str
    kind: OutputKind
    index: int = -1
    view: View | None = None
    constant: Any = None


@dataclass(frozen=True)
class Plan:
    """Everything that the wrappers need. ``results`` counts the functional graph's results.

    ``symbols`` says where each size symbol is read at run time: name -> (input, dimension), dimension -1 for an int input.
    """

    inputs: tuple[InputPlan, ...]
    outputs: tuple[OutputPlan, ...]
    results: int
    symbols: tuple[tuple[str, int, int], ...] = ()
    autocast: tuple[str, ...] = ()
    """Device types whose autocast was on where the graph starts."""


def written(plan: Plan) -> tuple[int, ...]:
    """Positions of the inputs whose data changes."""
    return tuple(n for n, i in enumerate(plan.inputs) if i.written)


def is_identity(plan: Plan) -> bool:
    """Whether the functional graph's results are, in order, just what the traced graph returns."""
    if written(plan) or plan.autocast or plan.results != len(plan.outputs):
        return False
    return all(o.kind == "result" and o.index == n for n, o in enumerate(plan.outputs))


def is_same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are known to be equal without asking for a guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(_expr(a) == _expr(b))


def is_same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two fake tensors have equal sizes, strides and dtype, asking for no guard. Strides of dimensions of size 1 do not count."""
    if a.dtype != b.dtype or a.dim() != b.dim():
        return False
    if not all(is_same_size(x, y) for x, y in zip(a.shape, b.shape, strict=True)):
        return False
    return all(
        is_same_size(x, y) or is_same_size(n, 1) for n, x, y in zip(a.shape, a.stride(), b.stride(), strict=True)
    )


def _expr(size: Size) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size
