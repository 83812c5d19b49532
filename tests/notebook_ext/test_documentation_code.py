"""Every block of Python in the documentation runs, or says in the file why not."""

from __future__ import annotations

import pathlib
import re
import types
from typing import Any

import pytest

import engine
from notebook_ext.site.site_map import SiteMap

ROOT = pathlib.Path(__file__).parents[2]
BLOCK = re.compile(r"^(?:<!-- not run: (.+?) -->\n)?```(python|py)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUN_ELSEWHERE = {
    "README.md": ("notebook_ext/test_readme_examples.py", "README.md"),
    "notebook_ext/recipes.md": ("notebook_ext/test_recipes.py", "FILE"),
    "notebooks/reference/GUARDS.md": ("notebook_ext/test_reference_docs.py", "GUARD_EXAMPLES"),
    "notebooks/reference/BREAKS.md": ("engine/trace/graph_breaks/test_break_catalog.py", "example_before"),
    "notebooks/reference/FALLBACKS.md": ("engine/lowering/test_fallback_catalog.py", "example_before"),
    "notebooks/solutions/": ("notebooks/notebook_runner.py", "solutions"),
}
"""Files, or folders, with a test of their own: where it is, and a word of it."""
FILES = sorted({text.file for page in SiteMap().pages for text in page.texts})


def module_of(file: str) -> tuple[str, str] | None:
    """The test that runs the blocks of a file, and a word of it; None for this one."""
    return RUN_ELSEWHERE.get(file) or RUN_ELSEWHERE.get(f"{pathlib.PurePosixPath(file).parent}/")


def blocks(file: str) -> list[tuple[str, str, str]]:
    """Reason why it does not run, language and text of each block of a file."""
    return BLOCK.findall((ROOT / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", [file for file in FILES if blocks(file) and module_of(file) is None])
def test_blocks_run(file: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a page run in order, as one program, and the tests that they define pass."""
    monkeypatch.chdir(tmp_path)
    engine.reset()
    names: dict[str, Any] = {"__name__": "page"}
    for number, (reason, language, text) in enumerate(blocks(file)):
        if file == "CONTRIBUTING.md" and language == "python":
            continue  # Worked examples, each with a module of its own: test_readme_examples runs them.
        if reason:
            assert len(reason.split()) >= 4, f"{file}: say why the block is not run"
            continue
        path = tmp_path / f"block_{number}.py"
        path.write_text(text, encoding="utf-8")
        exec(compile(text, str(path), "exec"), names)
        for name, value in list(names.items()):
            if name.startswith("test_") and isinstance(value, types.FunctionType):
                value()


def test_blocks_that_run_elsewhere_do() -> None:
    """The test that is named for a file exists and has the word by which it finds the blocks."""
    for module, word in RUN_ELSEWHERE.values():
        assert word in (ROOT / "tests" / module).read_text(encoding="utf-8")
    assert "CONTRIBUTING.md" in (ROOT / "tests/notebook_ext/test_readme_examples.py").read_text(encoding="utf-8")
