"""Command ``demo``: run the tour and say where its page is and what to look at."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.replace_file import replace_file
from notebook_ext.notebook_report import EXPLORER_ANCHOR, REPO_ROOT, TOUR, write_report

FALLBACK_NAME = "compile_explorer_demo.ipynb"
FALLBACK_CELLS = (
    ("markdown", "# Watch a compiler at work\n\nRun the cells, then click a line of source in the explorer."),
    ("code", "%load_ext compile_explorer\nimport torch"),
    (
        "code",
        (
            "%%compile\ndef masked_softmax(scores, mask):\n    scores = scores.masked_fill(mask, float('-inf'))\n"
            "    return torch.softmax(scores, dim=-1)\n\n"
            "masked_softmax(torch.randn(64, 128), torch.rand(64, 128) > 0.9).shape"
        ),
    ),
    (
        "code",
        (
            "%%compile\ndef loss_of(x):\n    loss = x.square().mean()\n    print('loss', round(loss.item(), 3))\n"
            "    return loss * 0.5\n\nloss_of(torch.randn(64));"
        ),
    ),
)
"""Kind and source of each cell of the notebook for a package without the tour."""
WHAT_TO_LOOK_AT = """
The page opens on the explorer of the first compiled function. What to look at:
  1. Click a line in Source: the graph nodes, kernel lines and PTX instructions that come from it light up.
  2. Click a PTX instruction: the line of Python that it comes from lights up.
"""
WHAT_ELSE_IN_THE_TOUR = """\
  3. Above and below are the guards, two recompiles of a small GPT, and a graph break, each with its reason.
"""
WHAT_ELSE_IN_THE_SHORT_NOTEBOOK = """\
  3. Below is a function that breaks the graph, with the reason and a fix.
"""


def demo_command(arguments: Sequence[str]) -> int:
    """Write the page of the tour, unless nothing changed since it was written.

    Returns:
        Exit status: 1 if a cell failed, 2 if a package is missing.
    """
    parser = argparse.ArgumentParser(
        prog="compile-explorer demo", description="Run the tour, and print the link of its page and what to look at."
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report"), help="folder of the page (default: report)"
    )
    parser.add_argument("--fresh", action="store_true", help="run the tour also if its page is up to date")
    parser.add_argument("--open", action="store_true", help="open the page in the default browser")
    given = parser.parse_args(arguments)
    notebook = demo_notebook(given.output)
    page, stamp = given.output / f"{notebook.stem}.html", given.output / f"{notebook.stem}.stamp"
    inputs = _digest_of_inputs(notebook)
    is_written = page.is_file() and stamp.is_file()
    if not given.fresh and is_written and stamp.read_text(encoding="utf-8") == inputs + _digest(page):
        print(
            "Nothing changed since the page was written, so the tour did not run again (--fresh runs it).", flush=True
        )
    else:
        stamp.unlink(missing_ok=True)
        print(f"Running {notebook.name} without a browser. This takes a minute or so.", flush=True)
        try:
            page, problem = write_report(notebook, given.output, progress=_print_progress)
        except ImportError as error:
            print(f"{error.name} is missing: install compile-explorer[lab].", file=sys.stderr)
            return 2
        if problem:
            print(f"A cell of {notebook.name} failed; the page shows all up to it.\n{problem}", file=sys.stderr)
            print(page.resolve().as_uri())
            return 1
        with replace_file(stamp) as stream:
            stream.write((inputs + _digest(page)).encode())
    link = f"{page.resolve().as_uri()}#{EXPLORER_ANCHOR}"
    print(f"{WHAT_TO_LOOK_AT}{WHAT_ELSE_IN_THE_TOUR if notebook == TOUR else WHAT_ELSE_IN_THE_SHORT_NOTEBOOK}\n{link}")
    if given.open:
        webbrowser.open(link)
    return 0


def demo_notebook(folder: Path) -> Path:
    """Return the tour, or a short notebook written into ``folder`` where there is no tour."""
    if TOUR.is_file():
        return TOUR
    path = folder / FALLBACK_NAME
    if not path.exists():
        extra: dict[str, dict[str, Any]] = {"code": {"outputs": [], "execution_count": None}, "markdown": {}}
        cells = [
            {"cell_type": kind, "id": f"cell-{n}", "metadata": {}, "source": text, **extra[kind]}
            for n, (kind, text) in enumerate(FALLBACK_CELLS)
        ]
        notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(notebook, indent=1), encoding="utf-8")
    return path


def _print_progress(number: int, total: int, source: str) -> None:
    """Print one line for a cell, before it runs."""
    first = next((line for line in source.splitlines() if line.strip() and not line.startswith("%%")), source)
    print(f"  cell {number} of {total}: {first.strip()[:90]}", flush=True)


def _digest_of_inputs(notebook: Path) -> str:
    """Return a digest of the notebook, both packages, and the versions of others."""
    found = hashlib.sha256(notebook.read_bytes())
    for package in ("engine", "notebook_ext"):
        for path in sorted((REPO_ROOT / package).rglob("*")):
            if path.suffix in (".py", ".js", ".css", ".md"):
                found.update(path.relative_to(REPO_ROOT).as_posix().encode() + path.read_bytes())
    versions = [sys.version]
    for name in ("torch", "triton", "llvmlite", "nbconvert"):
        try:
            versions.append(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            versions.append("none")
    found.update("|".join(versions).encode())
    return found.hexdigest()


def _digest(page: Path) -> str:
    """Return the digest of a page, to see whether somebody edited or truncated it."""
    return hashlib.sha256(page.read_bytes()).hexdigest()
