"""Test which files count as installed packages."""

from __future__ import annotations

import pathlib

import torch

from engine.ir.user_code_files import is_installed_file


def test_packages_beside_their_metadata_are_installed(tmp_path: pathlib.Path) -> None:
    """``pip install --target`` writes packages into any folder, with their metadata."""
    for folder in ("installed", "project"):
        package = tmp_path / folder / "plots" / "inner"
        package.mkdir(parents=True)
        for part in (package, package.parent):
            (part / "__init__.py").touch()
        (package / "draw.py").touch()
    (tmp_path / "installed" / "plots-1.0.dist-info").mkdir()
    assert is_installed_file(str(tmp_path / "installed" / "plots" / "inner" / "draw.py"))
    assert not is_installed_file(str(tmp_path / "project" / "plots" / "inner" / "draw.py"))
    assert is_installed_file(torch.__file__)
    assert not is_installed_file("<ipython-input-1-0>")
