"""One tensor that several sources reach, others in each call: an input per source."""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.guards.aliasing import SHARED_TENSORS
from engine.ir.introspection.fakeable_tensors import on_same_memory
from engine.ir.sources.base import Source
from engine.ir.traced_frame import ALL_NUMBERS
from engine.trace.annotations import Tracer
from engine.trace.exc import RestartTracing, Unsupported
from engine.trace.variables.base import Variable

IDENTITY_READ = "identity-read"
"""Kind of a restart after which a tensor that several sources reach is one variable."""


class SharedInputs:
    """Tensors that stand for a shared tensor at all its sources but the first.

    Such a tensor has the same memory. No guard is needed while the traced code only reads the shared tensor: then its
    results are the same for one tensor and for two.
    """

    def __init__(self) -> None:
        self.is_disabled = False
        """True if an earlier attempt needed the identity of a shared tensor."""
        self._by_source: dict[Source, tuple[torch.Tensor, torch.Tensor]] = {}
        """The shared tensor and the one that stands for it, by source."""

    def separate(self, tx: Tracer, variable: Variable, real: Any, source: Source) -> torch.Tensor | None:
        """Return the tensor that stands for ``real`` at this source; None to share one."""
        if source not in self._by_source:
            if self.is_disabled or not _identity_varies(tx, source) or not _is_plain(tx, variable, real):
                return None
            self._by_source[source] = real, on_same_memory(real)
        return self._by_source[source][1]

    def require_identity(self, *reals: Any) -> None:
        """Trace one variable per tensor if an object is, or stands for, a shared tensor."""
        if any(real is each for pair in self._by_source.values() for each in pair for real in reals):
            raise RestartTracing(0, Unsupported(IDENTITY_READ, "a tensor with several names is mutated or compared"))

    def require_unmutated(self, storages: set[int | None]) -> None:
        """Trace one variable per tensor if a shared tensor is in a mutated storage."""
        self.require_identity(
            *(real for real, _ in self._by_source.values() if real.untyped_storage()._cdata in storages)
        )


def _identity_varies(tx: Tracer, source: Source) -> bool:
    """Return True if sources reach other tensors in other calls, or by data or chance."""
    dims = tx.request.dynamic_dims
    return SHARED_TENSORS in dims or any(ALL_NUMBERS in dims.get(link.expr, ()) for link in source.chain())


def _is_plain(tx: Tracer, variable: Variable, real: Any) -> bool:
    """Return True if a tensor on the same memory has all that operations read of this one."""
    return (
        variable.python_type() is torch.Tensor
        and not (real.requires_grad or real.is_inference() or real.is_conj() or real.is_neg() or vars(real))
        and tx.torch_state.entry_global_state["functorch"] is None
    )
