"""Source files as people know them: "cell 3" for a notebook cell, the base name for anything else."""

from __future__ import annotations

import importlib.util
import linecache
import os
import re
import sysconfig

from engine.records.bytecode import SourceFile, Span

cell_names: dict[str, str] = {}
"""File name of a cell's code -> what a person calls the cell; the notebook front end fills it in."""

_CELL = re.compile(r"<ipython-input-(\d+)-|ipykernel_\d+[/\\]")


def display_name(file: str) -> str:
    """What a person calls a file."""
    if file in cell_names:
        return cell_names[file]
    found = _CELL.search(file)
    if found is not None:
        return f"cell {found.group(1)}" if found.group(1) else "cell"
    return os.path.basename(file) or file


def is_cell(file: str) -> bool:
    """Whether a file holds the code of a notebook cell."""
    return file in cell_names or _CELL.search(file) is not None


def source_file(file: str) -> SourceFile:
    """The record of a source file, with its whole text where that can be had."""
    return SourceFile(file, display_name(file), "".join(linecache.getlines(file)))


# Found, not imported: a trace is read where nothing of torch is needed.
_TORCH = importlib.util.find_spec("torch")
_LIBRARIES = (
    *((os.path.dirname(os.path.abspath(_TORCH.origin)) + os.sep,) if _TORCH and _TORCH.origin else ()),
    *{os.path.normpath(sysconfig.get_path(p)) + os.sep for p in ("stdlib", "platstdlib")},
)
_SITE_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_library_file(file: str) -> bool:
    """Whether a file is torch's or the standard library's; other installed packages count as the user's program."""
    if file.startswith(_LIBRARIES[0]):
        return True
    return file.startswith(("<frozen", *_LIBRARIES[1:])) and not any(i in file for i in _SITE_PACKAGES)


_TRACEABLE_TORCH_MODULES = ("torch.optim", "torch.amp.grad_scaler", "torch.distributions", "torch.nn.utils.clip_grad")
"""Packages and modules of torch whose functions are Python over tensors, as a user might have written them."""


def is_traceable_torch_module(module: str) -> bool:
    """Whether functions of a module of torch's are compiled by themselves where Python calls them, as the user's own are."""
    return module in _TRACEABLE_TORCH_MODULES or module.startswith(
        tuple(f"{name}." for name in _TRACEABLE_TORCH_MODULES)
    )


def innermost_user_span(stack: tuple[Span, ...]) -> Span | None:
    """The innermost place of a stack (outermost first) that lies in the user's program: the line that a person can change."""
    return next((s for s in reversed(stack) if not is_library_file(s.file)), stack[-1] if stack else None)
