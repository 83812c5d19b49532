"""Judge by runs of eager with other roundings whether a difference is rounding.

A kernel rounds where eager does not and the other way round. Rounding decides more than the last bits where
numbers cancel, where a condition compares them, and where half precision is widened afterwards. A run in float64
does not show this: it draws other random numbers and promotes other dtypes. So eager runs several times more, and
each number that it computes moves to a neighbor at random. What these runs change no more than the kernels do is
not wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from engine.torch_private.dispatch import TorchDispatchMode
from tests.differential import Comparison, Observation, TensorCollector, observe, prepare, tensors_in

RUNS = 8
FACTOR = 2.0
"""Largest accepted difference in units of the largest one between runs of eager."""
EXACT = frozenset(
    "abs alias as_strided bernoulli cat clamp clone constant_pad_nd copy_ cummax cummin diag_embed dropout empty empty_like "
    "expand fill fill_ flip full full_like gather index index_copy index_fill index_put index_put_ index_select "
    "lift_fresh masked_fill masked_fill_ masked_scatter masked_select max maximum min minimum neg neg_ new_empty new_full new_ones "
    "new_zeros ones ones_like relu repeat roll scalar_tensor scatter scatter_ select_scatter sign slice_scatter sort stack "
    "take where zero_ zeros zeros_like amax amin rand rand_like randn uniform_ normal_ bernoulli_ abs_ clamp_ relu_ "
    "select_backward slice_backward set_ detach _local_scalar_dense".split()
)
"""Operators that round no number; a cast rounds those of a wider dtype."""


class OtherRounding(TorchDispatchMode):
    """Moves each number that an operator computes to the next one up or down, or leaves it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and round its results otherwise."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.is_view or func._opname in EXACT:
            return result
        inputs = {t.untyped_storage().data_ptr() for t in tensors_in(args) if t.layout is torch.strided}
        writes = func._schema.is_mutable
        for tensor in tensors_in(result):
            if tensor.dtype.is_floating_point and (writes or tensor.untyped_storage().data_ptr() not in inputs):
                self.move(tensor)
        return result

    def move(self, tensor: torch.Tensor) -> None:
        """Move the numbers of a tensor."""
        steps = torch.randint(-1, 2, tensor.shape, generator=self.generator)
        moved = tensor.double() * (1 + steps * torch.finfo(tensor.dtype).eps)
        tensor.detach().copy_(moved)

    def make_subclass(self, cls: type[torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of a subclass; constructors raise in a dispatch mode."""
        self.__exit__(None, None, None)
        try:
            return torch.Tensor.__new__(cls, tensor)
        finally:
            self.__enter__()


def beyond_other_roundings(name: str, comparison: Comparison, found: list[str], plain: Observation) -> list[str]:
    """Return the differences larger than those between eager's runs of other roundings."""
    wheres = {line.partition(": ")[0] for line in found} & comparison.unequal.keys()
    if not wheres:
        return found
    runs = [_run_otherwise(name, plain, seed) for seed in range(RUNS)]
    excused = {where for where in wheres if is_rounding(*comparison.unequal[where], [r.get(where) for r in runs])}
    return [line for line in found if line.partition(": ")[0] not in excused]


def _run_otherwise(name: str, plain: Observation, seed: int) -> Mapping[str, torch.Tensor]:
    loaded, collected, mode = prepare(name, f"rounded{seed}"), TensorCollector(), OtherRounding(seed)
    for kind in vars(loaded.module).values():
        if isinstance(kind, type) and issubclass(kind, torch.Tensor) and "__new__" not in vars(kind):
            kind.__new__ = mode.make_subclass  # type: ignore[method-assign]
    try:
        with mode:
            seen = observe(loaded, loaded.target)
        collected.observations(plain, seen)
    except RuntimeError:  # another branch, whose backward raises
        return {}
    return collected.found


def is_rounding(a: torch.Tensor, b: torch.Tensor, others: list[torch.Tensor | None]) -> bool:
    """Return True if ``b`` is no further from ``a`` than some of the others are."""
    alike = [t for t in others if t is not None and t.shape == a.shape and t.dtype == a.dtype]
    if not alike:
        return False
    first, second, *rest = (t.detach().double() for t in (a, b, *alike))
    if not any(torch.equal(second.isfinite(), t.isfinite()) for t in (first, *rest)):
        return False
    spread = max(_distance(first, t) for t in rest)
    return _distance(first, second) <= FACTOR * spread


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    both = a.isfinite() & b.isfinite()
    return (a - b)[both].abs().max().item() if both.any() else 0.0
