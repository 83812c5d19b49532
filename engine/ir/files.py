"""Source files as people know them: "cell 3" for a notebook cell, the base name for anything else."""

from __future__ import annotations

import linecache
import os
import re

from engine.records.bytecode import SourceFile

cell_names: dict[str, str] = {}
"""File name of a cell's code -> what a person calls the cell; the notebook front end fills it in."""

_CELL = re.compile(r"<ipython-input-(\d+)-|ipykernel_\d+[/\\]")


def file_name(file: str) -> str:
    """What a person calls a file."""
    if file in cell_names:
        return cell_names[file]
    found = _CELL.search(file)
    if found is not None:
        return f"cell {found.group(1)}" if found.group(1) else "cell"
    return os.path.basename(file) or file


def source_file(file: str) -> SourceFile:
    """The record of a source file, with its whole text where that can be had."""
    return SourceFile(file, file_name(file), "".join(linecache.getlines(file)))
