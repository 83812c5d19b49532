"""Import all variable families and opcode handlers, which fill the registries."""

from __future__ import annotations

import importlib
import pathlib

_TRACE = pathlib.Path(__file__).parents[1]


def _import_modules(folder: str) -> None:
    """Import the modules in a folder of the tracer and in the folders in it."""
    for file in sorted((_TRACE / folder).rglob("*.py")):
        if file.stem != "__init__":
            importlib.import_module(".".join(("engine.trace", *file.relative_to(_TRACE).with_suffix("").parts)))


for _folder in ("handlers", "variables"):
    _import_modules(_folder)
