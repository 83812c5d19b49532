"""A user's own engine module: named in one sentence, and never replaced."""

from __future__ import annotations

import pathlib

import pytest

from tests.notebook_ext.conftest import Kernel


@pytest.mark.parametrize("path", ["engine.py", "engine/__init__.py"])
@pytest.mark.parametrize("first", ["import engine", "pass"])
def test_loading_beside_a_module_called_engine(
    tmp_path: pathlib.Path, empty_kernel: Kernel, path: str, first: str
) -> None:
    """A user's module that hides the engine gives one sentence and loads no magic.

    The sentence has the path and a fix. This holds whether the module was imported before or not, and ``import
    engine`` still gives the user's module.
    """
    mine = tmp_path / path
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("WHOSE = 'mine'\n")
    # The kernel's own folder comes first on the path in a notebook; PYTHONPATH would come before it here.
    empty_kernel.run("import sys, os; sys.path.insert(0, os.getcwd())")
    empty_kernel.run(first)
    ran = empty_kernel.run("%load_ext notebook_ext")
    said = [line for line in ran.text.splitlines() if line.strip()]
    assert len(said) == 1, ran.text
    name = path.removesuffix("/__init__.py")
    assert said[0].startswith(f"UsageError: Your own {name} hides")
    assert "rename it" in said[0]
    assert empty_kernel.run("import engine; assert engine.WHOSE == 'mine'").succeeded
    assert "not found" in empty_kernel.run("%%compile\n1").text


@pytest.mark.thorough
def test_a_module_imported_after_loading(tmp_path: pathlib.Path, forked_kernel: Kernel) -> None:
    """%%compile reports a user's module that replaces the engine later, and runs nothing.

    The user's module stays imported.
    """
    assert forked_kernel.run("%load_ext notebook_ext").succeeded
    (tmp_path / "engine.py").write_text("WHOSE = 'mine'\n")
    forked_kernel.run("import sys; sys.path.insert(0, ''); del sys.modules['engine']; import engine")
    ran = forked_kernel.run("%%compile\nran_anyway = True")
    assert "UsageError: Your own engine.py hides" in ran.text
    assert forked_kernel.run("assert engine.WHOSE == 'mine'; assert 'ran_anyway' not in globals()").succeeded


@pytest.mark.thorough
def test_a_module_that_appears_after_loading_is_pointed_out(tmp_path: pathlib.Path, forked_kernel: Kernel) -> None:
    """A file that would hide the engine on import gives a sentence below the cell.

    The file was not imported, so the cell runs.
    """
    assert forked_kernel.run("import torch\n%load_ext notebook_ext").succeeded
    (tmp_path / "engine.py").write_text("WHOSE = 'mine'\n")
    forked_kernel.run("import sys; sys.path.insert(0, '')")
    ran = forked_kernel.run("%%compile\ndef f(x):\n    return x + 1\nf(torch.ones(2))")
    assert ran.succeeded, ran.text
    assert any("engine.py" in str(shown.get("text/plain", "")) for shown in ran.shown)
