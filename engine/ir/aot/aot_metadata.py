"""The calling convention of a compiled graph: what happens to each input, and how each output of the user's graph comes about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch

IntOrSymInt = Any
"""An int, or a SymInt over the graph's symbols."""

OutputKind = Literal["result", "input", "alias of input", "alias of result", "root", "alias of root", "constant"]

DetachKind = Literal["", "detach", "data"]
"""Whether a tensor over another's memory is a view ("") or has no ``_base``: then it counts its versions with the other, or by itself ("data")."""

CreationGradMode = Literal["", "no_grad", "enable_grad"]


@dataclass(frozen=True)
class ViewSpec:
    """How to see a tensor through ``as_strided``. ``offset`` is in elements of the view, relative to the tensor that is viewed."""

    sizes: tuple[IntOrSymInt, ...]
    strides: tuple[IntOrSymInt, ...]
    offset: IntOrSymInt = 0
    detach_kind: DetachKind = ""
    dtype: torch.dtype | None = None
    """Seen as elements of another type; None: as it is."""
    dtype_view_numel: IntOrSymInt | None = None
    """With elements of another width: how many elements of the viewed tensor's memory to see in a row; None: of the same width."""
    conj_neg_bits: tuple[str, ...] = ()
    """Lazy operators on top: "conj", "neg"."""
    is_contiguous_view: bool = False
    """Both lie in a row from the same start: ``view`` does."""
    made_without_grad: bool = False
    """Made under ``no_grad``: no gradient flows from the view to what it sees."""
    is_multi_output: bool = False
    """Made by an operator that returns several views (``split``), which autograd forbids to write to."""
    is_from_custom_function: bool = False
    """Made by the user's own autograd function, which autograd forbids to write to as well."""
    creation_grad_mode: CreationGradMode = ""
    """Whether it is made in another grad mode than the call: autograd remembers that for writes to it, though no gradient is needed yet."""


@dataclass(frozen=True)
class InputAliasInfo:
    """One input. ``written`` says that its data changes; the functional graph then returns the new contents as result ``result``."""

    name: str
    is_tensor: bool = True
    is_mutated: bool = False
    result_index: int = -1
    version_bumps: int = 0
    """By how much eager's version counter moves on."""
    has_version_counter: bool = True
    """Whether it has a version counter; inference tensors have none."""
    new_layout: ViewSpec | None = None
    """Sizes, strides and offset that it is given in place (``t_``), the offset relative to its own; None: as they were."""
    mutation_hidden_from_autograd: bool = False
    """Needs a gradient and is written where autograd does not look (``no_grad``, ``detach``): its history stays what it was."""
    metadata_mutation_seen_by_autograd: bool = False
    """Its layout is changed in place where autograd looks, which eager forbids to leaves."""
    regenerates_grad_fn: bool = False
    """Then read in grad mode: autograd has worked out anew how gradients go from it, if it is a view, to what it sees."""


@dataclass(frozen=True)
class OutputAliasInfo:
    """One output of the traced graph.

    ``index`` is the functional graph's result ("result", "alias of result"), the input ("input", "alias of input") or the root ("root", "alias
    of root") that it comes from; ``constant`` the value of a "constant"; ``view`` how an alias sees what it aliases.
    """

    name: str
    kind: OutputKind
    index: int = -1
    view: ViewSpec | None = None
    constant: Any = None
    version_bumps: int = 0
    """Of a root that counts by itself: by how much its version counter moves on."""
    taken_before_mutation: bool = False
    """Of a view of an input: made before the input is written to, which autograd tells from one made afterwards."""


@dataclass(frozen=True)
class AotMetadata:
    """Everything that the wrappers need. ``results`` counts the functional graph's results.

    ``symbols`` says where each size symbol is read at run time: name -> (input, dimension), dimension -1 for an int input,
    -2 for where a tensor starts in its storage, -3 - n for stride n.
    """

    inputs: tuple[InputAliasInfo, ...]
    outputs: tuple[OutputAliasInfo, ...]
    num_results: int
    symbol_sources: tuple[tuple[str, int, int], ...] = ()
    autocast_devices: tuple[str, ...] = ()
    """Device types whose autocast was on where the graph starts."""
    detached_bases: tuple[OutputAliasInfo, ...] = ()
    """Tensors without a ``_base`` over the memory of an input or a result (``x.detach()``): returned, or viewed by what is returned."""
    result_version_bumps: tuple[tuple[int, int], ...] = ()
    """Results that eager writes to in place: (result, by how much its version counter moves on)."""
    results_as_views: frozenset[int] = frozenset()
    """Results that the graph computes as views, where eager's tensor is none."""
    result_strides: tuple[tuple[int, tuple[IntOrSymInt, ...]], ...] = ()
    """Results that views are made of, with the strides that those are told for."""
    shape_assumptions: tuple[sympy.Basic, ...] = ()
    """What the functional graph takes for granted of sizes, beyond what the traced graph does: guards check it."""
    effectful_ops: tuple[str, ...] = ()
    """Names of operators that may do more than compute, in the order that they run in."""


def mutated_inputs(plan: AotMetadata) -> tuple[int, ...]:
    """Positions of the inputs whose data changes."""
    return tuple(n for n, i in enumerate(plan.inputs) if i.is_mutated)


def metadata_mutated_inputs(plan: AotMetadata) -> tuple[int, ...]:
    """Positions of the inputs whose sizes, strides or offset change."""
    return tuple(n for n, i in enumerate(plan.inputs) if i.new_layout is not None)


def view_sizes(views: Iterable[ViewSpec | None]) -> list[IntOrSymInt]:
    """Sizes, strides and offsets of views, where there are any: what the wrappers' text computes from ``Plan.symbol_sources``."""
    return [s for v in views if v is not None for s in (*v.sizes, *v.strides, v.offset)]


def needs_no_runtime_wrapper(plan: AotMetadata) -> bool:
    """Whether the functional graph's results are, in order, just what the traced graph returns."""
    if any(
        i.is_mutated or i.new_layout is not None or (i.version_bumps and i.has_version_counter) for i in plan.inputs
    ):
        return False
    if (
        plan.autocast_devices
        or plan.result_version_bumps
        or plan.results_as_views
        or plan.num_results != len(plan.outputs)
    ):
        return False
    return all(o.kind == "result" and o.index == n for n, o in enumerate(plan.outputs))


def is_same_size(a: IntOrSymInt, b: IntOrSymInt) -> bool:
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


def _expr(size: IntOrSymInt) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size
