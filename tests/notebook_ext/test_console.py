"""The console script: help of each command, and one sentence for what it does not know."""

from __future__ import annotations

import pathlib

import pytest

from notebook_ext import notebook_report
from notebook_ext.commands import console
from notebook_ext.commands.console import COMMANDS, main


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"lab"}))
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help and errors name the command as it was called."""
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: compile-explorer {command} ")
    with pytest.raises(SystemExit) as left:
        main([command, "--nonsense"])
    assert left.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"compile-explorer {command}: error: ")


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence says which commands there are; no words at all print the usage."""
    assert main(["raport"]) == 2
    assert capsys.readouterr().err == "There is no command 'raport': choose report, doctor, lab, demo, or --help.\n"
    assert main([]) == 2
    assert "doctor LOGS" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "JupyterLab" in capsys.readouterr().out


def test_lab_starts_only_what_exists(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Help and wrong words start nothing; a notebook and options go to JupyterLab."""
    started: list[list[str]] = []
    monkeypatch.setattr(console.subprocess, "call", lambda words: started.append(words) or 0)
    monkeypatch.chdir(tmp_path)
    assert main(["lab", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: compile-explorer lab [NOTEBOOK]")
    assert main(["lab", "missing.ipynb"]) == 2
    assert capsys.readouterr().err == ("compile-explorer lab: error: there is no notebook missing.ipynb. See --help.\n")
    assert (started, list(tmp_path.iterdir())) == ([], [])
    (tmp_path / "mine.ipynb").touch()
    assert main(["lab", "mine.ipynb", "--port", "8889"]) == 0
    assert started[0][-3:] == ["mine.ipynb", "--port", "8889"]


def test_a_report_of_nothing_says_what_to_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Where the tour is not installed, a report without a path asks for one."""
    monkeypatch.setattr(notebook_report, "TOUR", tmp_path / "00_tour.ipynb")
    with pytest.raises(SystemExit) as left:
        main(["report"])
    assert left.value.code == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith("compile-explorer report: error: name a notebook or a TORCH_TRACE log.")
    )
