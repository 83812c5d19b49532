"""Pack the front end, and each catalog of reasons, into one file of the wheel.

Comments are left out of the wheel's modules, whose lines keep their numbers: 23 kB of 2 MB.

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
    "notebook_ext/package_page.md",
    "notebook_ext/reference_docs.py",
    "notebook_ext/widgets/build_wheel.py",
)
"""Files that only a clone needs, to write pages and wheels: not in the wheel."""


def _has_only_docstring(file: pathlib.Path) -> bool:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return all(isinstance(statement, ast.Expr) for statement in body)


def _remove_comments(file: pathlib.Path) -> None:
    """Write a module again without its comments; each line stays where it is."""
    lines = file.read_text(encoding="utf-8").split("\n")
    with file.open("rb") as opened:
        comments = [t for t in tokenize.tokenize(opened.readline) if t.type == tokenize.COMMENT]
    for comment in comments:
        row, column = comment.start
        lines[row - 1] = lines[row - 1][:column].rstrip()
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
                _remove_comments(file)
        shutil.rmtree(build / "notebook_ext" / "labextension")  # the wheel has it where JupyterLab looks
