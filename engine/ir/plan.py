"""The calling convention of a compiled graph: what happens to each input, and how each output of the user's graph comes about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch

Size = Any
"""An int, or a SymInt over the graph's symbols."""

OutputKind = Literal["result", "input", "alias of input", "alias of result", "root", "alias of root", "constant"]

Detachment = Literal["", "detach", "data"]
"""Whether a tensor over another's memory is a view ("") or has no ``_base``: then it counts its versions with the other, or by itself ("data")."""

MadeWhere = Literal["", "no_grad", "enable_grad"]


@dataclass(frozen=True)
class View:
    """How to see a tensor through ``as_strided``. ``offset`` is in elements of the view, relative to the tensor that is viewed."""

    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size = 0
    detached: Detachment = ""
    dtype: torch.dtype | None = None
    """Seen as elements of another type; None: as it is."""
    reach: Size | None = None
    """With elements of another width: how many elements of the viewed tensor's memory to see in a row; None: of the same width."""
    flips: tuple[str, ...] = ()
    """Lazy operators on top: "conj", "neg"."""
    is_plain: bool = False
    """Both lie in a row from the same start: ``view`` does."""
    is_unseen: bool = False
    """Made under ``no_grad``: no gradient flows from the view to what it sees."""
    is_one_of_several: bool = False
    """Made by an operator that returns several views (``split``), which autograd forbids to write to."""
    is_made_by_hand: bool = False
    """Made by the user's own autograd function, which autograd forbids to write to as well."""
    made_where: MadeWhere = ""
    """Whether it is made in another grad mode than the call: autograd remembers that for writes to it, though no gradient is needed yet."""


@dataclass(frozen=True)
class InputPlan:
    """One input. ``written`` says that its data changes; the functional graph then returns the new contents as result ``result``."""

    name: str
    is_tensor: bool = True
    written: bool = False
    result: int = -1
    writes: int = 0
    """By how much eager's version counter moves on."""
    is_counted: bool = True
    """Whether it has a version counter; inference tensors have none."""
    layout: View | None = None
    """Sizes, strides and offset that it is given in place (``t_``), the offset relative to its own; None: as they were."""
    is_hidden: bool = False
    """Needs a gradient and is written where autograd does not look (``no_grad``, ``detach``): its history stays what it was."""
    is_shown: bool = False
    """Its layout is changed in place where autograd looks, which eager forbids to leaves."""
    is_read_since: bool = False
    """Then read in grad mode: autograd has worked out anew how gradients go from it, if it is a view, to what it sees."""


@dataclass(frozen=True)
class OutputPlan:
    """One output of the traced graph.

    ``index`` is the functional graph's result ("result", "alias of result"), the input ("input", "alias of input") or the root ("root", "alias
    of root") that it comes from; ``constant`` the value of a "constant"; ``view`` how an alias sees what it aliases.
    """

    name: str
    kind: OutputKind
    index: int = -1
    view: View | None = None
    constant: Any = None
    writes: int = 0
    """Of a root that counts by itself: by how much its version counter moves on."""
    is_early: bool = False
    """Of a view of an input: made before the input is written to, which autograd tells from one made afterwards."""


@dataclass(frozen=True)
class Plan:
    """Everything that the wrappers need. ``results`` counts the functional graph's results.

    ``symbols`` says where each size symbol is read at run time: name -> (input, dimension), dimension -1 for an int input,
    -2 for where a tensor starts in its storage, -3 - n for stride n.
    """

    inputs: tuple[InputPlan, ...]
    outputs: tuple[OutputPlan, ...]
    results: int
    symbols: tuple[tuple[str, int, int], ...] = ()
    autocast: tuple[str, ...] = ()
    """Device types whose autocast was on where the graph starts."""
    roots: tuple[OutputPlan, ...] = ()
    """Tensors without a ``_base`` over the memory of an input or a result (``x.detach()``): returned, or viewed by what is returned."""
    writes: tuple[tuple[int, int], ...] = ()
    """Results that eager writes to in place: (result, by how much its version counter moves on)."""
    reviewed: frozenset[int] = frozenset()
    """Results that the graph computes as views, where eager's tensor is none."""
    strides: tuple[tuple[int, tuple[Size, ...]], ...] = ()
    """Results that views are made of, with the strides that those are told for."""
    relations: tuple[sympy.Basic, ...] = ()
    """What the functional graph takes for granted of sizes, beyond what the traced graph does: guards check it."""
    effects: tuple[str, ...] = ()
    """Names of operators that may do more than compute, in the order that they run in."""


def written(plan: Plan) -> tuple[int, ...]:
    """Positions of the inputs whose data changes."""
    return tuple(n for n, i in enumerate(plan.inputs) if i.written)


def reshaped(plan: Plan) -> tuple[int, ...]:
    """Positions of the inputs whose sizes, strides or offset change."""
    return tuple(n for n, i in enumerate(plan.inputs) if i.layout is not None)


def sizes_of(views: Iterable[View | None]) -> list[Size]:
    """Sizes, strides and offsets of views, where there are any: what the wrappers' text computes from ``Plan.symbols``."""
    return [s for v in views if v is not None for s in (*v.sizes, *v.strides, v.offset)]


def is_identity(plan: Plan) -> bool:
    """Whether the functional graph's results are, in order, just what the traced graph returns."""
    if any(i.written or i.layout is not None or (i.writes and i.is_counted) for i in plan.inputs):
        return False
    if plan.autocast or plan.writes or plan.reviewed or plan.results != len(plan.outputs):
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
