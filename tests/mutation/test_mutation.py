"""Test the mutants: seeded, changed as said, and seen by the process that installs them."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.mutation.mutants import _CHANGES, ROOT, TESTS, all_mutants, mutant_of


def test_a_seed_names_one_mutant() -> None:
    """The same seed gives the same mutant; every kind of change and every folder has some."""
    assert mutant_of(7) == mutant_of(7)
    assert {m.change for m in all_mutants()} == _CHANGES.keys()
    assert all(any(m.path.startswith(folder) for m in all_mutants()) for folder in TESTS)


@pytest.mark.parametrize("change", sorted(_CHANGES))
def test_a_mutant_differs_in_one_place(change: str) -> None:
    """The changed file compiles and differs from the original."""
    mutant = next(m for m in all_mutants() if m.change == change)
    compile(mutant.tree(), mutant.path, "exec")
    old = ast.parse((ROOT / mutant.path).read_text(encoding="utf-8"))
    assert ast.unparse(old) != ast.unparse(mutant.tree())
    assert mutant.difference().count("\n@@") == 1


def test_a_process_imports_the_mutant() -> None:
    """An installed mutant replaces the file's code."""
    program = (
        "from tests.mutation.mutants import Mutant, all_mutants\n"
        "m = next(m for m in all_mutants() if m.path == 'engine/guards/order.py')\n"
        "m.install()\n"
        "import engine.guards.order as order, types\n"
        "def codes(code):\n"
        "    yield code.co_code, code.co_consts and tuple(c for c in code.co_consts if not hasattr(c, 'co_code'))\n"
        "    for inner in code.co_consts:\n"
        "        if hasattr(inner, 'co_code'): yield from codes(inner)\n"
        "plain = compile(open(order.__file__).read(), order.__file__, 'exec')\n"
        "assert list(codes(plain)) != list(codes(order.__loader__.get_code(order.__name__)))\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
