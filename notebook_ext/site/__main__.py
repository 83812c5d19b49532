"""Command line: ``python -m notebook_ext.site FOLDER`` builds the site."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

from notebook_ext.site.build_site import build_site
from notebook_ext.site.lesson_explorers import NOTEBOOKS, recorded_explorers


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the site and print the link of its first page.

    Returns:
        Exit status: 1 if a lesson failed.
    """
    parser = argparse.ArgumentParser(prog="python -m notebook_ext.site", description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="the folder to write; what was in it is removed")
    parser.add_argument(
        "--committed", action="store_true", help="run no lesson: show only the sessions that the repository has"
    )
    parser.add_argument(
        "--recordings",
        type=pathlib.Path,
        default=pathlib.Path("build/explorers"),
        metavar="FOLDER",
        help="keep the sessions of lessons there (default: build/explorers)",
    )
    options = parser.parse_args(arguments)
    explorers = None
    if not options.committed:
        explorers = {}
        for lesson in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
            print(f"  {lesson.stem}", flush=True)
            try:
                explorers[lesson.stem] = recorded_explorers(lesson, options.recordings)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                return 1
    pages = build_site(options.folder, explorers)
    print(f"{len(pages)} pages\n{pages[0].resolve().as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
