"""Pack the front end, and each catalog of reasons, into one file of the wheel.

Comments, texts below attributes and docstrings of private names are left out of the wheel's modules, and one space
indents them. Lines keep their numbers.

Setuptools loads this file by its path, so it imports nothing of the package.
"""

import ast
import pathlib
import runpy
import shutil
import tokenize

from setuptools.command.build_py import build_py

ASSETS = pathlib.Path(__file__).parent / "bundle_assets.py"
CATALOGS = pathlib.Path(__file__).parents[2] / "engine" / "ir" / "reason_catalog.py"

ONLY_IN_A_CLONE = (
    "engine/guards/guard_kind_examples.py",
    "notebook_ext/lesson/__main__.py",
    "notebook_ext/lesson/editions.py",
    "notebook_ext/package_page.md",
    "notebook_ext/reference_docs.py",
    "notebook_ext/widgets/build_wheel.py",
)
"""Files that only a clone needs, to write pages and wheels: not in the wheel."""

INDENT = 4
"""Spaces per level in the sources."""


def _has_only_docstring(file: pathlib.Path) -> bool:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return all(isinstance(statement, ast.Expr) for statement in body)


def _is_private(node: ast.AST) -> bool:
    """Return True for a function or class of its module alone."""
    name = getattr(node, "name", "")
    return name.startswith("_") and not name.endswith("__")


def _lines_of_texts(source: str) -> set[int]:
    """Return the lines of texts below attributes, and of docstrings of private names."""
    texts: list[ast.stmt] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef)):
            texts += node.body[1:]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and _is_private(node):
            texts += node.body[:1] if len(node.body) > 1 else []
    found = [s for s in texts if isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)]
    return {line for text in found for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)}


def _shorten_module(file: pathlib.Path) -> None:
    """Remove comments and texts that no user reads, indent by one space; lines stay."""
    source = file.read_text(encoding="utf-8")
    lines = source.split("\n")
    with file.open("rb") as opened:
        tokens = list(tokenize.tokenize(opened.readline))
    in_text: set[int] = set()
    for token in tokens:
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
        elif token.type not in (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT):
            in_text.update(range(token.start[0], token.end[0]))  # lines that start inside a string
    for number, line in enumerate(lines):
        code = line.lstrip(" ")
        indent = len(line) - len(code)
        if number not in in_text and indent % INDENT == 0:
            lines[number] = " " * (indent // INDENT) + code
    for number in _lines_of_texts(source):
        lines[number - 1] = ""
    file.write_text("\n".join(lines), encoding="utf-8")


class BuildWithPackedSources(build_py):
    """Copies the packages, and packs the front end's modules and style sheets into one file."""

    def run(self) -> None:
        """Pack the copied files; an editable install has no copies and reads the originals."""
        super().run()
        if self.editable_mode:
            return
        assets = runpy.run_path(str(ASSETS))
        build = pathlib.Path(self.build_lib)
        static = build / "notebook_ext" / "static"
        (static / assets["PACKED_SOURCES"]).write_bytes(assets["packed_sources"]())
        for file in (*assets["MODULES"], *assets["STYLE_SHEETS"]):
            (static / file).unlink()
        pack_topics = runpy.run_path(str(CATALOGS))["pack_topics"]
        for folder in (build / "engine").rglob("catalog"):
            pack_topics(folder)
        for file in ONLY_IN_A_CLONE:
            (build / file).unlink(missing_ok=True)
        for file in build.rglob("__init__.py"):
            if _has_only_docstring(file):
                file.unlink()  # a folder of a package is a package without it; 20 kB of a wheel in all
        for package in ("engine", "notebook_ext"):
            for file in (build / package).rglob("*.py"):
                _shorten_module(file)
        shutil.rmtree(build / "notebook_ext" / "labextension")  # the wheel has it where JupyterLab looks
