"""Types of literals: immutable objects that a constant variable can hold."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import importlib.util
import pathlib
import sys
from typing import Any

import torch

from engine.torch_private.dispatch import DispatchKeySet

DATETIME_TYPES = (dt.date, dt.time, dt.datetime, dt.timedelta, dt.timezone)
"""Immutable classes of ``datetime``."""

PATH_TYPES = (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
"""Classes of ``pathlib``: immutable names of files."""
IDENTIFIED_LITERAL_TYPES = frozenset((*DATETIME_TYPES, *PATH_TYPES))
"""Literals that are loaded from their source, so that their identity does not change."""
FILE_SYSTEM_METHODS = frozenset(
    name
    for cls in pathlib.Path.__mro__
    if cls not in pathlib.PurePath.__mro__
    for name in vars(cls)
    if not name.startswith("__")
)
"""Members of ``pathlib.Path`` that may read or change the file system."""

if importlib.util.find_spec("numpy") is None:
    NUMPY_SCALAR_TYPES: tuple[type, ...] = ()
    NUMPY_INFO_TYPES: tuple[type, ...] = ()
else:
    import numpy as np

    NUMPY_SCALAR_TYPES = (np.dtype, np.number, np.bool_)
    NUMPY_INFO_TYPES = (np.iinfo, np.finfo)

PLACEHOLDER_TYPES = (type(functools.Placeholder),) if hasattr(functools, "Placeholder") else ()
"""Type of ``functools.Placeholder``, from Python 3.14 on."""

TORCH_LITERAL_TYPES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo)
"""Immutable classes of torch that describe tensors."""

SINGLETON_TYPES = (
    *map(type, (None, Ellipsis, NotImplemented, sys.version_info, sys.flags)),
    *map(type, (sys.float_info, sys.int_info, sys.hash_info)),
    *PLACEHOLDER_TYPES,
)
"""Types with one instance each."""

PLAIN_LITERAL_TYPES = frozenset((type(None), bool, int, float, complex, str, bytes))
"""Numbers, strings and None."""
LITERAL_TYPES = frozenset((*IDENTIFIED_LITERAL_TYPES, *NUMPY_INFO_TYPES, *PLAIN_LITERAL_TYPES, DispatchKeySet))
LITERAL_TYPES |= {*SINGLETON_TYPES, *TORCH_LITERAL_TYPES}


def is_enum_or_numpy_scalar(value: Any) -> bool:
    """Return True for an enum member (also of pybind11), a numpy scalar or a numpy dtype."""
    return isinstance(value, (enum.Enum, *NUMPY_SCALAR_TYPES)) or (
        type(type(value)).__name__ == "pybind11_type" and isinstance(getattr(type(value), "__members__", None), dict)
    )
