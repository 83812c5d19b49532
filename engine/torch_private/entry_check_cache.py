"""Disk cache of the check of torch's private names, by version of torch and the entries."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import sys
import tempfile

import torch

from engine.options import user_cache_dir

_HEADER = "entries checked:"


def _path() -> pathlib.Path:
    """Return the file with the results for this torch and this version of the entries."""
    files = [pathlib.Path(torch.__file__), *sorted(pathlib.Path(__file__).parent.glob("*.py"))]
    states = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    key = repr((torch.__version__, torch.version.git_version, sys.version, states))
    return user_cache_dir() / "torch_contract" / hashlib.sha256(key.encode()).hexdigest()[:32]


def read() -> dict[str, str] | None:
    """Return the fault of each entry by its path, or None if this torch was not checked yet.

    An empty text means that torch has the entry as expected.
    """
    try:
        header, *lines = _path().read_text(encoding="utf-8").splitlines()
        return dict(line.split("\t", 1) for line in lines) if header == f"{_HEADER} {len(lines)}" else None
    except (OSError, ValueError):
        return None


def write(faults: dict[str, str]) -> None:
    """Store the faults by path of entry; do nothing if the folder cannot be written."""
    with contextlib.suppress(OSError):
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f"{_HEADER} {len(faults)}\n")
            file.writelines(f"{entry}\t{' '.join(fault.split())}\n" for entry, fault in faults.items())
        pathlib.Path(temporary).replace(path)
