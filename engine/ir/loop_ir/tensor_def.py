"""A tensor defined by a body per element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.loop_ir.index_expr import (
    IndexExpr,
    Size,
)
from engine.ir.loop_ir.ops import LoopIROp

if TYPE_CHECKING:
    from engine.ir.loop_ir.builder import LoopBuilder

Coordinates = tuple[IndexExpr, ...]


Body = Callable[["LoopBuilder", Coordinates], "LoopIROp"]


ReductionBody = Callable[["LoopBuilder", Coordinates, Coordinates], "LoopIROp"]


@dataclass(eq=False)
class TensorDef:
    """A tensor of the program. ``kind``: "input", "pointwise", "reduction", "scan", "scatter", "extern" (an ATen call's result), or
    "number" (an ATen call's result that is no tensor, and tells a symbol).

    ``stride`` is the layout that it gets when it is stored. For a reduction ``ranges`` are the sizes reduced over and ``reduction`` is
    "sum", "prod", "max" or "min"; a scan runs along dimension ``axis``. A scatter starts from ``start`` (another Def or a number) and its
    body, run over ``ranges``, writes or adds one element wherever it likes.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    kind: str
    node_ids: tuple[str, ...] = ()
    body: Any = None
    ranges: tuple[Size, ...] = ()
    reduction: str = ""
    scan_axis: int = 0
    program_order: int = 0
    """Place in the program's order."""
    label: str = ""
    """What to call its value inside a kernel."""
    initial_value: TensorDef | float | None = None
    user_line: str = ""
    """The line of the user's that it is for, told where an index in it is out of bounds."""
    is_complex: bool = False
    """It is in memory as a complex tensor, of which this is the real view: inputs and results of ATen calls."""

    @property
    def is_computed(self) -> bool:
        """Whether loops compute it."""
        return self.kind in ("pointwise", "reduction", "scan", "scatter")

    @property
    def loop_ranges(self) -> tuple[Size, ...]:
        """The sizes that its body's index runs over: its own shape, save for a scatter."""
        return self.ranges if self.kind == "scatter" else self.shape


@dataclass(frozen=True)
class MemoryRead:
    """A body read element ``index`` of ``source``; ``is_masked`` when only under a condition."""

    source: TensorDef
    index: Coordinates
    is_masked: bool
