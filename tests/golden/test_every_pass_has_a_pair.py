"""Every pass and every AOT wrapper has a golden pair.

This test fails for a new one without its pair.
"""

from __future__ import annotations

import ast
import importlib
import pathlib

from tests.golden.pairs import PASS_ATTRIBUTE, repository_root

ROOT = repository_root()
PASS_PACKAGES = (
    "engine/graph/passes",
    "engine/lowering/passes",
    "engine/lowering/decompositions",
    "engine/aot/wrappers",
)
"""Packages whose modules are all passes or wrappers."""
STAGE_PACKAGES = (
    "engine/graph",
    "engine/aot",
    "engine/autograd",
    "engine/bytecode",
    "engine/lowering",
    "engine/kernels",
)
"""Packages with other modules too: a pass gives its module its name."""
NOT_PASSES = {
    "engine/bytecode/decode.py": "reads code",
    "engine/bytecode/editable_instructions.py": "reads code",
    "engine/graph/format_node.py": "prints a node",
    "engine/graph/recurrent_layers.py": "calls one operator",
    "engine/graph/passes/recorder.py": "records what passes change",
    "engine/graph/user_passes/read_graph.py": "reads an edited text",
    "engine/aot/functional_tensors.py": "finds and reads functional tensors",
    "engine/aot/wrappers/base.py": "the wrappers' protocol",
    "engine/aot/wrappers/codegen.py": "puts the wrappers' lines into one function",
    "engine/aot/wrappers/lazy_backward.py": "compiles a backward when it is first needed",
    "engine/aot/wrappers/node_statistics.py": "records the range of each node's values",
    "engine/aot/wrappers/order.py": "lists the wrappers",
    "engine/aot/wrappers/subclass_grads.py": "autograd functions of the subclass wrapper",
    "engine/aot/wrappers/undefined_grad_hooks.py": "acts on hooks of tensors, not on code",
    "engine/aot/wrappers/value_probe.py": "records the values of a call",
    "engine/kernels/compile_kernel.py": "runs Triton's compiler",
    "engine/kernels/print_kernel.py": "chooses the printer for a target",
    "engine/lowering/memory/live_memory.py": "counts live bytes of a program",
    "engine/lowering/wrapper_text.py": "prints a program",
    "engine/lowering/ops/embedding_bag.py": "the lowering of one operator",
    "engine/lowering/ops/searchsorted.py": "the lowering of one operator",
}
"""Modules of such packages that change no code, with the reason."""
MIN_PAIRS = 60


def modules_shown() -> dict[str, list[str]]:
    """The modules of passes that have pairs, with the names of the tests."""
    shown: dict[str, list[str]] = {}
    for path in sorted(pathlib.Path(__file__).parent.glob("test_*.py")):
        tests = vars(importlib.import_module(f"tests.golden.{path.stem}"))
        for name, test in tests.items():
            for module in getattr(test, PASS_ATTRIBUTE, ()):
                shown.setdefault(module, []).append(f"{path.stem}.{name}")
    return shown


def defines_function_of_its_name(path: pathlib.Path) -> bool:
    """Whether a module is named for a function that it defines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == path.stem for node in tree.body)


def passes() -> set[str]:
    """The modules of all passes and wrappers, by their paths."""
    found = {p for package in PASS_PACKAGES for p in (ROOT / package).glob("*.py") if p.name != "__init__.py"}
    found |= {
        p for package in STAGE_PACKAGES for p in (ROOT / package).rglob("*.py") if defines_function_of_its_name(p)
    }
    return {p.relative_to(ROOT).as_posix() for p in found} - NOT_PASSES.keys()


def test_every_pass_and_wrapper_has_a_pair() -> None:
    """A pass that no golden pair shows is named here."""
    missing = sorted(passes() - modules_shown().keys())
    assert not missing, "write a pair with @shows(<path>) in tests/golden:\n" + "\n".join(missing)


def test_pairs_show_modules_that_exist() -> None:
    """A pair of a module that was moved or deleted is named here, and so is a reason for one."""
    named = {*modules_shown(), *NOT_PASSES}
    assert not [module for module in named if not (ROOT / module).is_file()]


def test_there_are_enough_pairs() -> None:
    """At least one file for each rule that is worth to be read."""
    assert len({test for tests in modules_shown().values() for test in tests}) >= MIN_PAIRS
