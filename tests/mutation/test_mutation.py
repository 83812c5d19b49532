"""Test the mutants: seeded, changed as said, and seen by the tests that reach them."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

from tests.mutation import __main__ as runner
from tests.mutation.mutants import ROOT, TESTS, VALUES_TEST, Mutant, all_mutants, mutant_of


def test_a_seed_names_one_mutant() -> None:
    """The same seed gives the same mutant; every folder has some, and a folder can be chosen."""
    assert mutant_of(7) == mutant_of(7)
    assert all(any(m.path.startswith(folder) for m in all_mutants()) for folder in TESTS)
    assert mutant_of(7, "engine/aot").path.startswith("engine/aot/")


def test_a_mutant_differs_in_one_place() -> None:
    """For each kind of change, the changed file compiles and differs from the original."""
    for mutant in {m.change: m for m in all_mutants()}.values():
        compile(mutant.source(), mutant.path, "exec")
        old = ast.parse((ROOT / mutant.path).read_text(encoding="utf-8"))
        assert ast.unparse(old) != ast.unparse(ast.parse(mutant.source()))
        assert mutant.difference().count("\n@@") == 1


def test_the_tests_of_a_mutant_are_those_that_reach_it() -> None:
    """The fastest come first, as many as the bounds allow."""
    mutant = mutant_of(7)
    place = [mutant.path, mutant.line]
    reach: runner.Reach = {
        "slow": (50.0, [place]),
        "fast": (1.0, [place]),
        "slower": (55.0, [place]),
        "other": (0.1, []),
    }
    reach |= {f"{VALUES_TEST}::{n}": (0.1, [place]) for n in range(9)}
    chosen = runner.tests_for(mutant, reach)
    assert chosen[:2] == ["fast", "slow"]
    assert len(chosen) == 2 + runner.MAX_CASES
    assert runner.run_mutant(mutant, [], pathlib.Path(), 1.0) == "not reached"


@pytest.mark.thorough
def test_a_mutant_is_killed_in_a_copy_of_the_tree(tmp_path: pathlib.Path) -> None:
    """The copied tree has the mutant while its tests run, also in child processes.

    Tests of the slow ring run too. A mutant that cannot be imported is killed.
    """
    target = tmp_path / "engine" / "errors.py"
    test = tmp_path / "test_errors.py"
    target.parent.mkdir()
    (target.parent / "__init__.py").write_text("")
    target.write_bytes((ROOT / "engine" / "errors.py").read_bytes())
    program = "import engine.errors as e; assert not hasattr(e, 'changed')"
    test.write_text(
        f"import subprocess, sys\nimport pytest\nimport engine.errors\n@pytest.mark.slow\ndef test():\n"
        f"    subprocess.run([sys.executable, '-c', {program!r}], check=True)\n"
    )
    size = len(target.read_bytes())
    for text, outcome in (("\nchanged = 1\n", "killed"), ("\n", "survived"), ("\nraise ValueError\n", "killed")):
        mutant = Mutant("engine/errors.py", 1, "append", size, size, text)
        assert runner.run_mutant(mutant, [f"{test}::test"], tmp_path, 100.0) == outcome
        assert target.read_bytes() == (ROOT / "engine" / "errors.py").read_bytes()


@pytest.mark.thorough
def test_statements_note_the_tests_that_reach_them(tmp_path: pathlib.Path) -> None:
    """A process that imports the files with notes knows which statements ran."""
    program = (
        "from tests.mutation.reach import note_statements, reached\n"
        "note_statements(['engine/guards'])\n"
        "import engine.guards.order, inspect\n"
        "from engine.ir.guards.base import Guard\n"
        "reached.clear()\n"
        "engine.guards.order.order_guards([])\n"
        "lines, first = inspect.getsourcelines(engine.guards.order.order_guards)\n"
        "assert any(path == 'engine/guards/order.py' and first < line < first + len(lines) for path, line in reached)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
