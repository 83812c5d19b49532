"""Import all variable families and opcode handlers, which fill the registries."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil

_NEED_NUMPY = frozenset(("numpy_arrays", "constant_numpy_arrays", "tensor_construction"))
"""Modules that are left out where numpy is not installed."""


def _import_modules(package: str) -> None:
    """Import the modules of a package and of the packages in it."""
    has_numpy = importlib.util.find_spec("numpy") is not None
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if has_numpy or module.name.rpartition(".")[2] not in _NEED_NUMPY:
            importlib.import_module(module.name)


for _package in ("engine.trace.handlers", "engine.trace.variables"):
    _import_modules(_package)
