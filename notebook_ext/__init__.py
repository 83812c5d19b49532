"""The notebook side: ``%load_ext notebook_ext`` brings ``%%compile`` and its companions. Shows what ``engine`` recorded, compiles nothing itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["load_ipython_extension", "unload_ipython_extension"]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics with a shell.

    Raises:
        UsageError: a module of the user's hides the ``engine`` package.
    """
    # Looked at first: everything below imports engine, and must not meet a user's module of that name.
    from notebook_ext.module_shadowing import check_engine_not_shadowed

    check_engine_not_shadowed()
    from notebook_ext.magics import register

    register(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take the magics away again; what was compiled stays compiled."""
    from notebook_ext.magics import unregister

    unregister(shell)
