"""A tensor defined by a body per element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.loop_ir.index_expr import IndexExpr, Size
from engine.ir.loop_ir.ops import LoopIROp

if TYPE_CHECKING:
    from engine.ir.loop_ir.builder import LoopBuilder

Coordinates = tuple[IndexExpr, ...]


Body = Callable[["LoopBuilder", Coordinates], "LoopIROp"]


ReductionBody = Callable[["LoopBuilder", Coordinates, Coordinates], "LoopIROp"]


@dataclass(eq=False)
class TensorDef:
    """A tensor of the program.

    ``kind`` is "input", "pointwise", "reduction", "scan", "scatter", "extern" (tensor result of an ATen call)
    or "number" (scalar result of an ATen call that defines a symbol). ``stride`` is the layout if the tensor is
    stored. For a reduction, ``ranges`` are the reduced sizes and ``reduction`` is "sum", "prod", "max" or
    "min". A scan runs along dimension ``scan_axis``. A scatter starts from ``initial_value`` (another TensorDef
    or a number); its body runs over ``ranges`` and writes or adds one element at any position.
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
    """Position in the program's order."""
    label: str = ""
    """Name of the value inside a kernel."""
    initial_value: TensorDef | float | None = None
    user_line: str = ""
    """The user line of the tensor, reported if an index in its body is out of bounds."""
    is_complex: bool = False
    """True if memory holds a complex tensor and this is its real view.

    This holds for inputs and results of ATen calls.
    """
    unfused: LoopBuilder | None = field(default=None, repr=False)
    """The ops of one element with nothing fused, once ``build_unfused`` has built them."""

    @property
    def is_computed(self) -> bool:
        """True if loops compute the tensor."""
        return self.kind in ("pointwise", "reduction", "scan", "scatter")

    @property
    def initial_def(self) -> TensorDef | None:
        """The tensor that a scatter starts from, if it is no number."""
        return self.initial_value if isinstance(self.initial_value, TensorDef) else None

    @property
    def initial_content(self) -> str | float | None:
        """The name of the tensor that a scatter starts from, or the number."""
        start: Any = self.initial_def
        return self.initial_value if start is None else start.name  # type: ignore[return-value]

    @property
    def loop_ranges(self) -> tuple[Size, ...]:
        """Ranges of the body's index: the tensor's own shape, except for a scatter."""
        return self.ranges if self.kind == "scatter" else self.shape


@dataclass(frozen=True)
class MemoryRead:
    """A read of element ``index`` of ``source``; ``is_masked`` if only under a condition."""

    source: TensorDef
    index: Coordinates
    is_masked: bool
