"""Kernels of a ``triton_op`` whose own code for the device runs instead."""

from __future__ import annotations

from typing import Any

from engine.cache.custom_op_key import is_triton_op_rule
from engine.ir.node_values import called_overload
from engine.ir.triton_launches import kernel_module_text, kernels_read_by
from engine.torch_private.operators import OPDEFS, OpOverload


def skipped_triton_text(target: Any) -> str:
    """Return the Triton kernels of a ``triton_op`` whose own code runs, else ""."""
    called = called_overload(target)
    if called is None or not devices_with_own_code(called):
        return ""
    return "\n\n".join(map(kernel_module_text, kernels_read_by(OPDEFS[called._schema.name]._init_fn)))


def devices_with_own_code(called: OpOverload) -> list[str]:
    """Return the devices for which a ``triton_op`` has code that launches no kernel."""
    definition = OPDEFS.get(called._schema.name)
    if definition is None or not any(map(is_triton_op_rule, definition._torch_dispatch_fns.values())):
        return []
    return sorted(filter(None, definition._backend_fns))
