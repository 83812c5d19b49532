"""The contract with torch as a whole: all entries, and one sentence on what is turned off."""

from __future__ import annotations

import importlib
import pkgutil
import types

from engine import torch_private
from engine.torch_private import entry_check_cache
from engine.torch_private.entries import FAULTS, Entry, logger, sentence

MODULES: tuple[types.ModuleType, ...] = tuple(
    module
    for info in pkgutil.iter_modules(torch_private.__path__, f"{torch_private.__name__}.")
    if info.name != __name__ and hasattr(module := importlib.import_module(info.name), "ENTRIES")
)
"""The modules that declare entries."""

ENTRIES: tuple[Entry, ...] = tuple(entry for module in MODULES for entry in module.ENTRIES)


def report() -> str:
    """Say in one sentence what is turned off, and store the results of the check."""
    if FAULTS.known is None:
        entry_check_cache.write(FAULTS.checked)
    text = sentence()
    if text:
        logger.warning(text)
    return text
