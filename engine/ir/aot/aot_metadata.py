"""Calling convention of a compiled graph: input mutations and output aliasing.

AOTAutograd calls it ``ViewAndMutationMeta``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch

from engine.ir.static_sizes import static_size

IntOrSymInt = Any
"""An int, or a SymInt over the graph's symbols."""

OutputKind = Literal["result", "input", "alias of input", "alias of result", "root", "alias of root", "constant"]

DetachKind = Literal["", "detach", "data"]
"""Kind of a tensor that shares another one's memory.

"" is a view. The other kinds have no ``_base``: "detach" shares the version counter, "data" has its own.
"""

CreationGradMode = Literal["", "no_grad", "enable_grad"]


@dataclass(frozen=True)
class ViewSpec:
    """An ``as_strided`` view of a tensor.

    ``offset`` is in elements of the view, relative to the storage offset of the base.
    """

    sizes: tuple[IntOrSymInt, ...]
    strides: tuple[IntOrSymInt, ...]
    offset: IntOrSymInt = 0
    detach_kind: DetachKind = ""
    dtype: torch.dtype | None = None
    """The view's dtype, or None for the base's dtype."""
    dtype_view_numel: IntOrSymInt | None = None
    """Number of base elements to reinterpret as a dtype of another width; else None."""
    conj_neg_bits: tuple[str, ...] = ()
    """Lazy operators on top of the view: "conj", "neg"."""
    is_contiguous_view: bool = False
    """True if base and view are contiguous with the same start; ``view`` is then used."""
    made_without_grad: bool = False
    """True if the view is created under ``no_grad``: no gradient flows from it to its base."""
    is_multi_output: bool = False
    """True for one of several views of an operator (``split``); autograd forbids mutation."""
    is_from_custom_function: bool = False
    """True for a view from a custom autograd.Function; autograd forbids mutation."""
    creation_grad_mode: CreationGradMode = ""
    """Grad mode at the view's creation, if it differs from the call's grad mode; else "".

    Autograd stores it for later mutations, even while no gradient is required.
    """


@dataclass(frozen=True)
class InputAliasInfo:
    """Mutation metadata of one input.

    ``is_mutated`` means that its data changes; the functional graph then returns the new data as result
    ``result_index``. AOTAutograd calls the class ``InputAliasInfo``.
    """

    name: str
    is_tensor: bool = True
    is_mutated: bool = False
    result_index: int = -1
    version_bumps: int = 0
    """The amount by which eager increments its version counter."""
    has_version_counter: bool = True
    """False for inference tensors, which have no version counter."""
    new_layout: ViewSpec | None = None
    """New sizes, strides and offset after an in-place change (``t_``); None if unchanged.

    The offset is relative to the input's own.
    """
    mutation_hidden_from_autograd: bool = False
    """True if it requires grad and is mutated outside of autograd (``no_grad``, ``detach``).

    Its ``grad_fn`` then stays as it was.
    """
    metadata_mutation_seen_by_autograd: bool = False
    """True if its layout is changed in place under autograd, which eager forbids for leaves."""
    regenerates_grad_fn: bool = False
    """True if it is read in grad mode after a mutation that is hidden from autograd.

    Autograd has then regenerated the ``grad_fn`` of a view.
    """


@dataclass(frozen=True)
class OutputAliasInfo:
    """Aliasing metadata of one output of the traced graph.

    ``index`` is the position of the functional graph's result ("result", "alias of result"), of the input
    ("input", "alias of input") or of the detached base ("root", "alias of root") that it comes from.
    ``constant`` is the value of a "constant"; ``view`` is the view of an alias on its base. AOTAutograd calls
    the class ``OutputAliasInfo``.
    """

    name: str
    kind: OutputKind
    index: int = -1
    view: ViewSpec | None = None
    constant: Any = None
    version_bumps: int = 0
    """The increment of the version counter, for a detached base with its own counter."""
    taken_before_mutation: bool = False
    """True for a view of an input that is created before the input is mutated.

    Autograd distinguishes it from a view that is created afterwards.
    """


@dataclass(frozen=True)
class AotMetadata:
    """Metadata of a functional graph for the runtime wrappers.

    ``num_results`` counts its results.

    ``symbol_sources`` locates each size symbol at run time: name, input, location (``engine.ir.kernels.symbol_locations``).
    """

    inputs: tuple[InputAliasInfo, ...]
    outputs: tuple[OutputAliasInfo, ...]
    num_results: int
    symbol_sources: tuple[tuple[str, int, int], ...] = ()
    autocast_devices: tuple[str, ...] = ()
    """Device types with autocast enabled at the start of the graph."""
    detached_bases: tuple[OutputAliasInfo, ...] = ()
    """Tensors without ``_base`` that share memory with an input or a result (``x.detach()``).

    They are returned, or are the base of a returned view.
    """
    result_version_bumps: tuple[tuple[int, int], ...] = ()
    """Results that eager mutates in place: (result, increment of its version counter)."""
    results_as_views: frozenset[int] = frozenset()
    """Results that the graph computes as views although eager's tensor is not a view."""
    result_strides: tuple[tuple[int, tuple[IntOrSymInt, ...]], ...] = ()
    """Results that are bases of views, with the strides that these views assume."""
    shape_assumptions: tuple[sympy.Basic, ...] = ()
    """Guarded size relations that the functional graph assumes beyond the traced graph."""
    effectful_ops: tuple[str, ...] = ()
    """Names of operators with side effects, in execution order."""
    freed_results: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Results whose history the graph frees, with the inputs that it leads to."""
    calls_autograd: bool = False
    """True if the graph computes gradients itself."""


def mutated_inputs(plan: AotMetadata) -> tuple[int, ...]:
    """Return the positions of inputs whose data changes."""
    return tuple(n for n, i in enumerate(plan.inputs) if i.is_mutated)


def view_sizes(views: Iterable[ViewSpec | None]) -> list[IntOrSymInt]:
    """Return the sizes, strides and offsets of views.

    The generated wrapper code computes them from ``AotMetadata.symbol_sources``.
    """
    return [s for v in views if v is not None for s in (*v.sizes, *v.strides, v.offset)]


def is_same_size(a: IntOrSymInt, b: IntOrSymInt) -> bool:
    """Return True if two sizes are known to be equal; adds no guard."""
    return bool(_expr(a) == _expr(b))


def is_same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if two fake tensors have equal sizes, strides and dtype; adds no guard.

    Strides of dimensions of size 1 are ignored.
    """
    if a.dtype != b.dtype or a.dim() != b.dim():
        return False
    if not (a._has_symbolic_sizes_strides or b._has_symbolic_sizes_strides):
        steps = zip(a.shape, a.stride(), b.stride(), strict=True)
        return a.shape == b.shape and not any(True for n, x, y in steps if n != 1 and x != y)
    if not all(is_same_size(x, y) for x, y in zip(a.shape, b.shape, strict=True)):
        return False
    return all(
        is_same_size(x, y) or is_same_size(n, 1) for n, x, y in zip(a.shape, a.stride(), b.stride(), strict=True)
    )


def _expr(size: IntOrSymInt) -> Any:
    return size if static_size(size) is not None else size.node.expr
