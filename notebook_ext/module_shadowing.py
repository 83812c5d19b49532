"""Finds a user's ``engine.py`` or ``engine/`` that hides the compiler's package, and says so. Never touches the user's module."""

from __future__ import annotations

import importlib.machinery
import pathlib
import sys

from IPython.core.error import UsageError

PACKAGES_DIR = pathlib.Path(__file__).resolve().parent.parent
"""The folder that holds both of our packages."""


def check_engine_not_shadowed() -> None:
    """Check that ``import engine`` means ours.

    Raises:
        UsageError: it means a module of the user's: names it and says what to do.
    """
    path = imported_shadowing_module() or (None if "engine" in sys.modules else shadowing_module_on_path())
    if path is not None:
        raise UsageError(shadowing_message(path))


def shadowing_message(path: str) -> str:
    """What is wrong and what to do."""
    return f"Your own {path} hides the compiler's package 'engine': rename it (or move it away from this notebook) and restart the kernel."


def imported_shadowing_module() -> str | None:
    """Path of a module of the user's that is imported as ``engine``; None when nothing is, or ours."""
    module = sys.modules.get("engine")
    if module is None:
        return None
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
    files = [place for place in places if place]
    if any(is_engine_file(file) for file in files):
        return None
    return display_path(files[0]) if files else "module 'engine'"


def shadowing_module_on_path() -> str | None:
    """Path of a module of the user's that ``import engine`` would find first; None when it would find ours."""
    spec = importlib.machinery.PathFinder.find_spec("engine")
    if spec is None or spec.origin is None or is_engine_file(spec.origin):
        return None
    return display_path(spec.origin)


def is_engine_file(file: str) -> bool:
    """Whether a file or folder lies in our ``engine`` package."""
    path = pathlib.Path(file).resolve()
    return path == PACKAGES_DIR / "engine" or PACKAGES_DIR / "engine" in path.parents


def display_path(file: str) -> str:
    """The path as a person knows it: relative to the working folder where it lies below; a package by its folder."""
    path = pathlib.Path(file)
    path = path.parent if path.name == "__init__.py" else path
    try:
        return str(path.resolve().relative_to(pathlib.Path.cwd()))
    except ValueError:
        return str(path)
