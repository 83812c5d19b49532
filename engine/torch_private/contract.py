"""The contract with torch as a whole: all entries, and one sentence on what is turned off."""

from __future__ import annotations

from engine.torch_private import (
    autograd,
    compiled_autograd,
    cuda,
    dispatch,
    fake_tensors,
    functionalization,
    functorch,
    fx,
    global_state,
    guard_helpers,
    higher_order_ops,
    inductor,
    lazily_loaded,
    modules,
    operators,
    pytree,
    stock,
    symbolic_shapes,
    sympy_functions,
    tensors,
    torch_function,
    verdicts,
)
from engine.torch_private.entries import FAULTS, Entry, logger, sentence

MODULES = (
    autograd,
    compiled_autograd,
    cuda,
    dispatch,
    fake_tensors,
    functionalization,
    functorch,
    fx,
    global_state,
    guard_helpers,
    higher_order_ops,
    inductor,
    lazily_loaded,
    modules,
    operators,
    pytree,
    stock,
    symbolic_shapes,
    sympy_functions,
    tensors,
    torch_function,
)
"""The modules that declare entries."""

ENTRIES: tuple[Entry, ...] = tuple(entry for module in MODULES for entry in module.ENTRIES)


def report() -> str:
    """Say in one sentence what is turned off, and store the results of the check."""
    if FAULTS.known is None:
        verdicts.write(FAULTS.checked)
    text = sentence()
    if text:
        logger.warning(text)
    return text
