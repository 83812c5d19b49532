"""Detects a user's ``engine.py`` or ``engine/`` that shadows the compiler's package.

It reports the module and never changes it.
"""

from __future__ import annotations

import importlib.machinery
import pathlib
import sys

from IPython.core.error import UsageError

PACKAGES_DIR = pathlib.Path(__file__).resolve().parent.parent
"""Folder that holds both packages, ``engine`` and ``notebook_ext``."""


def check_engine_not_shadowed() -> None:
    """Check that ``import engine`` finds the compiler's package.

    Raises:
        UsageError: it finds a user module. The message names it and says what to do.
    """
    path = imported_shadowing_module() or (None if "engine" in sys.modules else shadowing_module_on_path())
    if path is not None:
        raise UsageError(shadowing_message(path))


def shadowing_message(path: str) -> str:
    """Return the message that names the shadowing module and says what to do."""
    return f"Your own {path} hides the compiler's package 'engine': rename it (or move it away from this notebook) and restart the kernel."


def imported_shadowing_module() -> str | None:
    """Return the path of a user module imported as ``engine``, else None."""
    module = sys.modules.get("engine")
    if module is None:
        return None
    locations = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
    files = [location for location in locations if location]
    if any(is_engine_file(file) for file in files):
        return None
    return display_path(files[0]) if files else "module 'engine'"


def shadowing_module_on_path() -> str | None:
    """Return the path of a user module that ``import engine`` would find first, else None."""
    spec = importlib.machinery.PathFinder.find_spec("engine")
    if spec is None or spec.origin is None or is_engine_file(spec.origin):
        return None
    return display_path(spec.origin)


def is_engine_file(file: str) -> bool:
    """Return True if a file or folder belongs to the compiler's ``engine`` package."""
    path = pathlib.Path(file).resolve()
    return path == PACKAGES_DIR / "engine" or PACKAGES_DIR / "engine" in path.parents


def display_path(file: str) -> str:
    """Return the path for display: relative to the working folder if below it.

    A package is shown by its folder.
    """
    path = pathlib.Path(file)
    path = path.parent if path.name == "__init__.py" else path
    try:
        return str(path.resolve().relative_to(pathlib.Path.cwd()))
    except ValueError:
        return str(path)
