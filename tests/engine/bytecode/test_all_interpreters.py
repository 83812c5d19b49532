"""Tests without torch run on every supported interpreter found on this machine.

Each opcode is classified, and each function is resumed at one in three of its instructions; at each in the slow ring.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import bytecode
import pytest

from engine.bytecode.opcodes import SUPPORTED_VERSIONS
from engine.supported_versions import NEWEST_PYTHON, OLDEST_PYTHON

ROOT = pathlib.Path(__file__).parents[3]


def interpreters() -> dict[str, str]:
    """Interpreters by version: the running one, those on the path, and those that pyenv keeps."""
    found = {"{}.{}".format(*sys.version_info): sys.executable}
    kept = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv")) / "versions"
    for name in ("{}.{}".format(*version) for version in SUPPORTED_VERSIONS):
        candidates = [shutil.which(f"python{name}"), *map(str, sorted(kept.glob(f"{name}.*/bin/python")))]
        for candidate in filter(None, candidates):
            works = subprocess.run([candidate, "-c", "import dis"], capture_output=True, check=False).returncode == 0
            if works and name not in found:
                found[name] = candidate
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("version", sorted(interpreters()))
def test_code_is_taken_apart_and_resumed_anywhere(version: str, step: int, tmp_path: pathlib.Path) -> None:
    """Opcodes are classified, tables match CPython's, and resuming anywhere gives one result.

    A function split at any instruction continues in a resume function and ends as the original does.
    """
    package = pathlib.Path(bytecode.__file__).parent
    (tmp_path / package.name).symlink_to(package)
    ran = subprocess.run(
        [interpreters()[version], str(ROOT / "tests/engine/bytecode/check_on_interpreter.py"), str(step)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    wrong = json.loads(ran.stdout)
    assert not wrong, "\n".join(wrong)


def test_the_table_of_opcodes_covers_the_supported_versions() -> None:
    """A Python that the import accepts has its rules in the table."""
    assert (SUPPORTED_VERSIONS[0], SUPPORTED_VERSIONS[-1]) == (OLDEST_PYTHON, NEWEST_PYTHON)
