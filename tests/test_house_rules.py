"""Each planted violation of a word or layout rule is found."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

from tests import house_rules, syntax_trees, torch_private_names

ROOT = pathlib.Path(__file__).parents[1]


def plant(root: pathlib.Path, path: str, text: str = '"""A module."""\n') -> None:
    """Write a file below a folder that stands for the repository."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def found(check: object, root: pathlib.Path) -> list[str]:
    """The findings of one check, as printed."""
    assert check in house_rules.CHECKS
    return [str(finding) for finding in check(root)]  # type: ignore[operator]


@pytest.mark.parametrize(
    "text",
    [
        '"""{}"""\n',
        '"""A module."""\nclass Node:\n    """{}"""\n',
        '"""A module."""\nif True:\n    def size():\n        """{}"""\n',
        '"""A module."""\nclass Node:\n    """A node."""\n    size: int\n    """{}"""\n',
        '"""A module."""\nLIMIT = 3\n"""{}"""\n',
    ],
    ids=["module", "class", "function", "attribute", "constant"],
)
@pytest.mark.parametrize(
    ("summary", "fault"),
    [
        *((f"{opening} is in it.", f'opens with "{opening}"') for opening in house_rules.VAGUE_OPENINGS),
        ("x" * 88 + ".", "has 89 characters (88 at most)"),
    ],
)
def test_vague_and_long_summaries_are_found(tmp_path: pathlib.Path, text: str, summary: str, fault: str) -> None:
    """A docstring that opens with a question word or is too long is found with its line.

    Docstrings of every kind are checked.
    """
    plant(tmp_path, "engine/a.py", text.format(summary))
    (finding,) = found(house_rules.check_docstrings, tmp_path)
    line = text.partition("{}")[0].count("\n") + 1
    assert finding.startswith(f"engine/a.py:{line}: ")
    assert fault in finding


def test_long_summaries_of_tests_are_found(tmp_path: pathlib.Path) -> None:
    """The length holds for tests too; how their docstrings open is left to their authors."""
    plant(tmp_path, "tests/test_a.py", f'"""{"x" * 89}"""\n')
    plant(tmp_path, "tests/test_b.py", '"""What a module tests."""\n')
    (finding,) = found(house_rules.check_docstrings, tmp_path)
    assert finding.startswith("tests/test_a.py:1: ")


def test_plain_summaries_pass(tmp_path: pathlib.Path) -> None:
    """A summary of 88 characters passes, and so do words that only begin like a question word."""
    plant(tmp_path, "engine/a.py", f'"""{"x" * 88}"""\n')
    plant(
        tmp_path, "notebook_ext/b.py", '"""Whatsoever."""\nLIMIT = 3\n"""However it is."""\nTEXT = """What is it?"""\n'
    )
    assert found(house_rules.check_docstrings, tmp_path) == []


@pytest.mark.parametrize(
    "word",
    """functionalise specialised initialiser optimises recognising normalisation serialised synchronise parametrised quantised generalises
    standardise materialised summarise emphasise minimised behaviour colours neighbouring favourite honoured analyse analysed catalogue centre
    centred grey learnt artefact""".split(),
)
def test_british_spelling_is_found(tmp_path: pathlib.Path, word: str) -> None:
    """British spelling is found in names, comments, texts, front end and pages, in any case.

    Each case of a name is checked.
    """
    plant(tmp_path, "engine/a.py", f'"""A module."""\n{word}_of = 1\n# {word}\n')
    plant(
        tmp_path,
        "notebook_ext/b.py",
        f'"""A module."""\n\n\nclass Is{word.title()}Node: ...\n\n\nTEXT = "It is {word}."\n',
    )
    plant(tmp_path, "notebook_ext/static/c.js", f"const is{word.title()} = 1;\n")
    plant(tmp_path, "CHANGELOG.md", f"# Changes\n\n{word.title()} it.\n")
    plant(tmp_path, "notebooks/teaching/d.md", f"# {word}\n")
    places = [
        "engine/a.py:2",
        "engine/a.py:3",
        "notebook_ext/b.py:4",
        "notebook_ext/b.py:7",
        "notebook_ext/static/c.js:1",
        "CHANGELOG.md:3",
    ]
    assert found(house_rules.check_words, tmp_path) == [
        f'{place}: "{word}" is British: write it as PyTorch does' for place in [*places, "notebooks/teaching/d.md:1"]
    ]


def test_words_that_only_look_british_pass(tmp_path: pathlib.Path) -> None:
    """Words that end in -ise in any English pass, and so does code quoted in a page."""
    plant(
        tmp_path,
        "engine/a.py",
        '"""Otherwise exercise a precise promise: raise, reraise, arises, bitwise, pointwise, noise, disable, revised, surprising, paralysis, raised, hour."""\n',
    )
    plant(tmp_path, "README.md", "# It\n\nSee `normalise`.\n\n```python\nnormalise(onion)\n```\n")
    assert found(house_rules.check_words, tmp_path) == []


@pytest.mark.parametrize("word", sorted(house_rules.PRIVATE))
def test_private_words_are_found(tmp_path: pathlib.Path, word: str) -> None:
    """A private word is found in names and text, but not as a part of another word."""
    plant(tmp_path, "engine/a.py", f'"""A module."""\nx_{word} = "all{word}s"\n')
    plant(tmp_path, "notebook_ext/static/c.js", f"\nthis.x{word.title()} = 1;\n")
    assert found(house_rules.check_words, tmp_path) == [
        f'{place}: "{word}" is a private word: use the word of the field'
        for place in ("engine/a.py:2", "notebook_ext/static/c.js:2")
    ]


def test_exceptions_are_used(tmp_path: pathlib.Path) -> None:
    """Each exception for a file names words that the file holds, and holds for that file only."""
    for path, words in house_rules.MAY_HOLD.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        assert words <= set(house_rules.WORD.findall(text)), path
        plant(tmp_path, path, text)
        assert found(house_rules.check_words, tmp_path) == []
        plant(tmp_path, "engine/other.py", text)
    house_rules.read_packages.cache_clear()
    assert {w for w in words if any(f'"{w}"' in f for f in found(house_rules.check_words, tmp_path))} == words


@pytest.mark.parametrize("word", sorted(house_rules.VAGUE_IN_PROSE))
def test_words_that_say_too_little_are_found_in_prose(tmp_path: pathlib.Path, word: str) -> None:
    """Docstrings, comments, pages and definitions are checked; variable names are not.

    Names of variables that a docstring quotes are not checked either.
    """
    plant(
        tmp_path,
        "engine/a.py",
        f'"""A module.\n\nIt is {word}, as ``{word}``.\n"""\n{word} = "{word}"\nx = 1  # It was {word.title()}.\n',
    )
    plant(
        tmp_path,
        "engine/b.py",
        f'"""A module."""\n\n\nclass {word.title()}Node:\n    n_{word}: int\n    def f(self):\n        def is_{word}(): ...\n',
    )
    plant(tmp_path, "CONTRIBUTING.md", f"It is {word} and `{word}`.\n")
    assert found(house_rules.check_prose, tmp_path) == [
        f'{place}: "{word}" says too little here: write for example {house_rules.VAGUE_IN_PROSE[word]}'
        for place in (
            "engine/b.py:4",
            "engine/b.py:5",
            "engine/b.py:7",
            "engine/a.py:3",
            "engine/a.py:6",
            "CONTRIBUTING.md:1",
        )
    ]


def test_classes_of_one_name_are_found(tmp_path: pathlib.Path) -> None:
    """A second public class of one name is found in the engine only; private ones are allowed."""
    for path in ("engine/a.py", "engine/x/b.py", "notebook_ext/c.py"):
        plant(tmp_path, path, '"""A module."""\n\n\nclass Plan: ...\n\n\nclass _Own: ...\n')
    assert found(house_rules.check_class_names, tmp_path) == [
        "engine/x/b.py:4: class Plan is also defined in engine/a.py: give both a qualifier"
    ]


def test_shared_class_names_have_a_reason() -> None:
    """Each exception states its reason."""
    assert all(house_rules.SHARED_CLASS_NAMES.values())


def test_full_folders_are_found(tmp_path: pathlib.Path) -> None:
    """The 26th Python file of a folder is found; folders below it count for themselves."""
    for n in range(house_rules.MAX_FILES):
        plant(tmp_path, f"engine/x/m{n}.py")
    plant(tmp_path, "engine/x/y/m.py")
    assert found(house_rules.check_folders, tmp_path) == []
    plant(tmp_path, "engine/x/z.py")
    assert found(house_rules.check_folders, tmp_path) == [
        "engine/x:1: the folder holds 26 Python files (25 at most): split it into packages"
    ]


@pytest.mark.parametrize("name", sorted(house_rules.EVERYDAY_MODULES))
def test_everyday_module_names_are_found(tmp_path: pathlib.Path, name: str) -> None:
    """An everyday word as a module or package name is found; a longer name with it is not."""
    plant(tmp_path, f"engine/_{name}.py")
    plant(tmp_path, f"notebook_ext/{name}/a.py")
    plant(tmp_path, f"engine/{name}_tensors.py")
    findings = found(house_rules.check_module_names, tmp_path)
    assert [f.partition(":")[0] for f in findings] == [f"engine/_{name}.py", f"notebook_ext/{name}"]


def test_command_line(tmp_path: pathlib.Path) -> None:
    """The command prints one line per finding and fails; without findings it exits silently.

    Without findings it succeeds.
    """
    for module in (house_rules, syntax_trees, torch_private_names):
        path = pathlib.Path(module.__file__)
        plant(tmp_path, f"tests/{path.name}", path.read_text(encoding="utf-8"))
    plant(tmp_path, "engine/a.py", '"""What it is."""\n')
    command = [sys.executable, "-m", "tests.house_rules"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert ran.stdout == 'engine/a.py:1: the docstring opens with "What": say what the thing is or does\n'
    plant(tmp_path, "engine/a.py", '"""A thing."""\n')
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_lint_runs_the_house_rules() -> None:
    """``make lint`` runs the checks after the formatter."""
    lines = [line.strip() for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()]
    assert lines.index("$(BIN)/python -m tests.house_rules") == lines.index("$(BIN)/ruff format --check .") + 1


@pytest.mark.parametrize(
    ("rule", "docstring"),
    [
        ("D205", "Return a size.\n    Of it.\n    "),
        ("D400", "Return a size"),
        ("D401", "Returns a size."),
        ("D403", "return a size."),
        ("D404", "This returns a size."),
        ("D415", "Return a size"),
        ("D212", "\n    Return a size.\n    "),
        ("D417", "Return a size.\n\n    Args:\n        a: A number.\n    "),
    ],
)
def test_ruff_checks_docstrings(tmp_path: pathlib.Path, rule: str, docstring: str) -> None:
    """ruff's rules for the form and mood of docstrings are on for the engine."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    plant(
        tmp_path,
        "engine/bad.py",
        f'"""A module."""\n\n\ndef size(a: int, b: int) -> int:\n    """{docstring}"""\n    return a + b\n',
    )
    ruff = pathlib.Path(sys.executable).with_name("ruff")
    command = [str(ruff), "check", "--no-cache", "--output-format=concise", "engine"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f": {rule} " in ran.stdout, ran.stdout
