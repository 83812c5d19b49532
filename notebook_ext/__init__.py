"""IPython extension: ``%load_ext notebook_ext`` adds ``%%compile`` and its line magics.

It displays what ``engine`` records. It compiles nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["load_ipython_extension", "unload_ipython_extension"]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics with a shell.

    Raises:
        UsageError: a user module shadows the ``engine`` package, or torch is too old.
    """
    # Check this first: every import below imports engine, and a user module of that name must not be imported instead.
    from notebook_ext.module_shadowing import check_engine_not_shadowed

    check_engine_not_shadowed()
    from IPython.core.error import UsageError

    from engine.supported_versions import UnsupportedVersion, check_torch

    try:
        check_torch()
    except UnsupportedVersion as error:
        raise UsageError(str(error)) from None
    from notebook_ext.magics import register

    register(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Unregister the magics. Functions that are already compiled stay compiled."""
    from notebook_ext.magics import unregister

    unregister(shell)
