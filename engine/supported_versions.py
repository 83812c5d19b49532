"""Supported versions of Python and torch, and the one sentence that rejects others."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import sysconfig

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
OLDEST_TORCH, NEWEST_TORCH = (2, 11), (2, 15)
"""Oldest and newest tested version of torch; a newer one is no error."""


class UnsupportedVersion(ImportError):
    """Python or torch has a version with which the engine cannot work."""


def check_python(version: tuple[int, int] = sys.version_info[:2], *, is_free_threaded: bool | None = None) -> None:
    """Raise ``UnsupportedVersion`` if the engine has no table of opcodes for this Python."""
    if is_free_threaded is None:
        is_free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    oldest, newest = (".".join(map(str, v)) for v in (OLDEST_PYTHON, NEWEST_PYTHON))
    if not OLDEST_PYTHON <= version <= NEWEST_PYTHON:
        raise UnsupportedVersion(
            f"The engine needs Python {oldest} to {newest}; this is Python {version[0]}.{version[1]}."
        )
    if is_free_threaded:
        raise UnsupportedVersion(
            f"The engine needs a Python {oldest} to {newest} with the global interpreter lock; this is a free-threaded build."
        )


def check_torch() -> None:
    """Raise ``UnsupportedVersion`` if torch is too old; a missing torch passes.

    Records and logs load without torch.
    """
    version = torch_version()
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers and numbers < OLDEST_TORCH:
        raise UnsupportedVersion(
            f"The engine needs torch {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} or newer; torch {version} is installed: pip install --upgrade torch."
        )


def torch_version() -> str:
    """Return the version of torch without importing it; empty if there is none."""
    version = str(getattr(sys.modules.get("torch"), "__version__", ""))
    if version:
        return version
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""
