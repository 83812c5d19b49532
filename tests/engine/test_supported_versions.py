"""Versions of Python and torch with which the engine cannot work: one sentence at import."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from engine.supported_versions import UnsupportedVersion, check_python, check_torch


@pytest.mark.parametrize("version", [(3, 9), (3, 10), (3, 15), (4, 0)])
def test_other_pythons_are_rejected(version: tuple[int, int]) -> None:
    """A Python without opcode table is rejected with the versions that work and its own."""
    with pytest.raises(UnsupportedVersion) as caught:
        check_python(version)
    assert str(caught.value) == f"The engine needs Python 3.11 to 3.14; this is Python {version[0]}.{version[1]}."


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (3, 14)])
def test_a_free_threaded_python_is_rejected(version: tuple[int, int]) -> None:
    """A supported version passes, its free-threaded build does not."""
    check_python(version, is_free_threaded=False)
    with pytest.raises(UnsupportedVersion, match="this is a free-threaded build"):
        check_python(version, is_free_threaded=True)


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.16.0.dev20261101+cpu", "3.0.0"])
def test_newer_torch_passes(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any torch from 2.11 on passes, also one that is newer than the tested ones."""
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=version))
    check_torch()


@pytest.mark.thorough
def test_old_torch_is_one_sentence_where_the_engine_is_imported() -> None:
    """Importing the engine beside an old torch raises ImportError with a command that helps.

    Loading a saved session, which needs no torch, works.
    """
    program = (
        "import torch\n"
        "torch.__version__ = '2.10.1+cpu'\n"
        "import engine\n"
        "assert engine.Session\n"
        "try: engine.compile\n"
        "except ImportError as e: print(e)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == (
        "The engine needs torch 2.11 or newer; torch 2.10.1+cpu is installed: pip install --upgrade torch.\n"
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "use",
    [
        "from IPython.core.interactiveshell import InteractiveShell as S; S.instance().run_cell('%load_ext notebook_ext')",
        "from notebook_ext.commands.console import main; sys.exit(main(['demo']))",
        "from notebook_ext.__main__ import main; sys.exit(main(['trace.log']))",
    ],
)
def test_old_torch_is_one_sentence_in_a_notebook_and_a_terminal(use: str) -> None:
    """Loading the extension and running a command show the sentence without a traceback."""
    program = f"import sys, torch\ntorch.__version__ = '2.10.1+cpu'\n{use}\n"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    (line,) = (ran.stdout + ran.stderr).splitlines()
    assert line.removeprefix("UsageError: ") == (
        "The engine needs torch 2.11 or newer; torch 2.10.1+cpu is installed: pip install --upgrade torch."
    )
    assert ran.returncode == ("sys.exit" in use)


@pytest.mark.thorough
def test_old_python_is_one_sentence_where_the_engine_is_imported() -> None:
    """Importing the engine on an old Python raises ImportError with one sentence."""
    program = "import sys\nsys.version_info = (3, 10, 4)\ntry: import engine\nexcept ImportError as e: print(e)\n"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "The engine needs Python 3.11 to 3.14; this is Python 3.10.\n"
