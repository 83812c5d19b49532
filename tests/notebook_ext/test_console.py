"""The console script: help of each command, and one sentence for what it does not know."""

from __future__ import annotations

import pytest

from notebook_ext.commands.console import COMMANDS, main


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"lab"}))
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help and errors name the command as it was called; JupyterLab answers for ``lab``."""
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
    assert "compile-explorer doctor LOGS" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "compile-explorer lab" in capsys.readouterr().out
