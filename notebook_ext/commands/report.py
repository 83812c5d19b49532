"""Command ``report``: run a notebook or read a torch trace, and write an HTML page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def report_command(arguments: Sequence[str]) -> int:
    """Write the page of a notebook or of a torch trace, and print its path.

    Returns:
        Exit status: 1 if a cell failed, 2 if there is nothing to show.
    """
    parser = argparse.ArgumentParser(
        prog="compile-explorer report",
        description="Run a notebook, or read a log of torch.compile, and write an HTML page.",
    )
    parser.add_argument(
        "path", nargs="?", type=Path, help="a notebook (default: the tour), or a TORCH_TRACE log or folder"
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="of a notebook: the folder of its page (default: report); of a log: the page"
    )
    parser.add_argument("--write", action="store_true", help="keep a notebook's outputs in the notebook itself")
    parser.add_argument(
        "--sources", action="store_true", help="add Python files of this machine that a log names, if their lines match"
    )
    given = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):  # a locale may not have the characters of the summary
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if given.path is not None and given.path.suffix != ".ipynb":
        from notebook_ext.trace_report import (
            write_trace_report,  # Imported here: a trace report must work where no notebook package is installed.
        )

        return write_trace_report(given.path, given.output, read_sources=given.sources)
    from notebook_ext import notebook_report  # It imports notebook packages, which a trace report does without.

    if given.path is None and not notebook_report.TOUR.is_file():
        parser.error("name a notebook or a TORCH_TRACE log. compile-explorer demo needs neither.")
    options = ["--output", str(given.output)] if given.output else []
    return notebook_report.main(
        [*([str(given.path)] if given.path else []), *options, *(["--write"] if given.write else [])]
    )
