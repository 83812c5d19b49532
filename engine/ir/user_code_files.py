"""Separate the user's source files from library files, and name files for display.

A notebook cell is called "cell 3", any other file by its base name.
"""

from __future__ import annotations

import functools
import importlib.util
import linecache
import os
import pathlib
import re
import sysconfig

from engine.records.bytecode import SourceFile, Span

cell_names: dict[str, str] = {}
"""Code file name of a cell -> its display name; filled in by the notebook front end."""

_CELL = re.compile(r"<ipython-input-(\d+)-|ipykernel_\d+[/\\]")


def display_name(file: str) -> str:
    """Return a file's name for people: ``cell 3``, or the name without folders."""
    if file in cell_names:
        return cell_names[file]
    match = _CELL.search(file)
    if match is not None:
        return f"cell {match.group(1)}" if match.group(1) else "cell"
    return os.path.basename(file) or file


def is_cell(file: str) -> bool:
    """Return True if the file holds the code of a notebook cell."""
    return file in cell_names or _CELL.search(file) is not None


def source_file(file: str) -> SourceFile:
    """Return the record of a source file, with its full text if it can be read."""
    return SourceFile(file, display_name(file), "".join(linecache.getlines(file)))


# find_spec instead of import: records are read without torch.
_TORCH = importlib.util.find_spec("torch")
_LIBRARIES = (
    *((os.path.dirname(os.path.abspath(_TORCH.origin)) + os.sep,) if _TORCH and _TORCH.origin else ()),
    *{os.path.normpath(sysconfig.get_path(p)) + os.sep for p in ("stdlib", "platstdlib")},
)
_SITE_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_library_file(file: str) -> bool:
    """Return True if a file belongs to torch or the standard library.

    Other installed packages count as user code.
    """
    if file.startswith(_LIBRARIES[0]):
        return True
    return file.startswith(("<frozen", *_LIBRARIES[1:])) and not any(i in file for i in _SITE_PACKAGES)


_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")


@functools.lru_cache(maxsize=1024)
def is_installed_file(file: str) -> bool:
    """Return True for a file of Python, torch or another installed package."""
    return bool(_INSTALLED.search(file)) or is_library_file(file) or _is_beside_metadata(file)


def _is_beside_metadata(file: str) -> bool:
    """Return True if an installer's metadata is beside the package of the file."""
    folder = pathlib.Path(file).parent
    if not folder.is_absolute() or not (folder / "__init__.py").exists():
        return False
    while (folder.parent / "__init__.py").exists():
        folder = folder.parent
    return any(folder.resolve().parent.glob("*.dist-info"))


_TRACEABLE_TORCH_MODULES = ("torch.optim", "torch.amp.grad_scaler", "torch.distributions", "torch.nn.utils.clip_grad")
"""Torch packages and modules whose functions are Python over tensors, like user code."""


def is_traceable_torch_module(module: str) -> bool:
    """Return True if functions of this torch module are compiled as separate frames.

    As for user functions, this happens where Python calls them.
    """
    return module in _TRACEABLE_TORCH_MODULES or module.startswith(
        tuple(f"{name}." for name in _TRACEABLE_TORCH_MODULES)
    )


def innermost_user_span(stack: tuple[Span, ...]) -> Span | None:
    """Return the innermost span of a stack (outermost first) in user code.

    It is the line that the user can change. Falls back to the innermost span.
    """
    return next((s for s in reversed(stack) if not is_library_file(s.file)), stack[-1] if stack else None)
