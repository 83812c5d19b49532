"""torch's global state at entry, and as the traced code switches it."""

from __future__ import annotations

from typing import Any

import torch.fx

from engine.ir.introspection.torch_global_state import GLOBAL_STATES, TorchStateSnapshot
from engine.trace.annotations import Variable

_GUARDED_GLOBAL_STATES = tuple(
    (
        "grad_mode inference_mode autocast torch_function_modes torch_function_enabled dispatch_modes "
        "functorch default_dtype deterministic"
    ).split()
)
"""Parts of torch's global state that every graph depends on.

ATen reads the number of threads, reduced precision of fp16 sums and warn-only at each call, as eager does, so they need
no guard. Precision of float32 products is guarded where kernels have it as a constant.
"""


class TorchState:
    """Modes, contexts and flags of torch: at entry, and those that traced code entered."""

    def __init__(self) -> None:
        self.snapshot = TorchStateSnapshot.capture()
        """Settings when the attempt began, to restore at its end."""
        self.entry_global_state: dict[str, Any] = {name: GLOBAL_STATES[name].read() for name in _GUARDED_GLOBAL_STATES}
        """torch's global state when the frame was entered."""
        self.function_modes: list[Variable] = []
        """Active torch-function modes that the traced code entered, innermost last."""
        self.entry_function_modes: list[Variable] = []
        """Torch-function modes that are active when the frame is entered."""
        self.suspended_function_modes: list[list[Variable]] = []
        """Suspended torch-function modes: one list per active ``DisableTorchFunction``."""
        self.torch_function_disabled_depth = 0
        """Nesting depth of disabled ``__torch_function__`` of subclasses."""
        self.contexts_to_exit: list[Any] = []
        """Contexts that were really entered while tracing and not exited yet."""
        self.open_graph_contexts: list[tuple[Any, torch.fx.Node]] = []
        """Contexts that the graph has entered and not exited, with the nodes that entered them."""
        self.resumed_grad_modes: dict[int, bool] = {}
        """Grad mode outside each ``with`` block in which the frame resumes, by stack position."""
        self.is_compiling = True
        """Value that traced code gets from ``is_compiling()``."""
        self.read_is_compiling = False
        self.scalar_tensors_index = False
        """True if a one-integer tensor indexes like any tensor: in functions of flex_attention."""

    def outer_grad_mode(self) -> bool | None:
        """Return the grad mode to set when an exception leaves the frame; None if nothing to set.

        It is set if the frame resumes inside ``with`` blocks that switched grad mode.
        """
        return self.resumed_grad_modes[min(self.resumed_grad_modes)] if self.resumed_grad_modes else None

    def restore(self) -> None:
        """Exit the contexts that are still entered, and restore the settings of the entry."""
        for context in reversed(self.contexts_to_exit):
            context.__exit__(None, None, None)
        self.snapshot.restore()
