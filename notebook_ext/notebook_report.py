"""Runs a notebook without a browser and writes it as one HTML page.

Command line: ``python -m notebook_ext.notebook_report NOTEBOOK``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.replace_file import replace_file
from notebook_ext.display import DETERMINISTIC_ENV, REPORT_ENV
from notebook_ext.notebook_html import (
    ANSI,
    EXPLORER_ANCHOR,
    OUTPUT_METADATA_KEY,
    WIDGET_MIME,
    notebook_page,
    title_of,
)

__all__ = ["EXPLORER_ANCHOR", "REPO_ROOT", "TOUR", "execute_notebook", "main", "write_report"]

REPO_ROOT = pathlib.Path(__file__).resolve().parent.parent
TOUR = REPO_ROOT / "notebooks" / "00_tour.ipynb"
CELL_TIMEOUT_MINUTES = 20
BACKGROUND_TIMEOUT = 120.0
"""Seconds to wait after the last cell for kernels that are still compiling."""


ProgressCallback = Callable[[int, int, str], None]
"""Callback before a code cell runs: its number, how many there are, its source."""


def execute_notebook(
    notebook: Any,
    home: pathlib.Path,
    folder: pathlib.Path,
    *,
    steady: bool = False,
    progress: ProgressCallback | None = None,
) -> str:
    """Execute a notebook in a new kernel in the folder ``home``.

    Outputs that need a kernel are removed.

    Displayed sessions are saved in ``folder`` by number. With ``steady`` the outputs are equal in
    every run: they show no times and wait for background compilation.

    Returns:
        The traceback of the cell that failed, or "".
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    saving = nbformat.v4.new_code_cell(
        f"__import__('notebook_ext.display').display.save_report_sessions({str(folder)!r}, {BACKGROUND_TIMEOUT})"
    )  # type: ignore[no-untyped-call]
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_MINUTES * 60,
        kernel_name="python3",
        resources={"metadata": {"path": str(home)}},
        store_widget_state=False,
        coalesce_streams=True,
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=40"],
    )
    # The kernel must find both packages also in a source tree that is not installed.
    search = os.pathsep.join(p for p in (str(REPO_ROOT), os.environ.get("PYTHONPATH", "")) if p)
    problem = ""
    fixed_settings = (
        {DETERMINISTIC_ENV: "1", "TORCH_LOGS": "-dynamo"} if steady else {}
    )  # Warnings of stock torch.compile contain times and process ids.
    with client.setup_kernel(env={**os.environ, "PYTHONPATH": search, REPORT_ENV: "1", **fixed_settings}):
        try:
            total = sum(cell.cell_type == "code" for cell in notebook.cells)
            number = 0
            for index, cell in enumerate(notebook.cells):
                if cell.cell_type == "code":
                    number += 1
                    if progress:
                        progress(number, total, cell.source)
                client.execute_cell(cell, index)
        except CellExecutionError as error:
            problem = ANSI.sub("", str(error))
        notebook.cells.append(saving)
        with contextlib.suppress(CellExecutionError):
            client.execute_cell(saving, len(notebook.cells) - 1)
        notebook.cells.pop()
    strip_kernel_output(notebook)
    return problem


def strip_kernel_output(notebook: Any) -> Any:
    """Remove widget views, emptied outputs and the Python version from a notebook."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if not needs_kernel(o)]
            cell.metadata.pop("execution", None)
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def needs_kernel(output: Any) -> bool:
    """Return True if an output shows nothing without a kernel."""
    data = output.get("data")
    return data is not None and (WIDGET_MIME in data or not any(bool(v) for v in data.values()))


def explorer_page(session: Any) -> str:
    """Return one HTML page that contains the session, its explorer and their assets."""
    from notebook_ext.widgets.standalone_page import write_page

    page = io.BytesIO()
    write_page(session, page, "Compilation explorer", view="linked")
    return page.getvalue().decode()


def most_informative(sessions: Mapping[int, Any]) -> int | None:
    """Return the number of the first session whose kernel has a listing, else of the first."""
    for number in sorted(sessions):
        kernels = (k for c in sessions[number].compilations for k in c.kernels)
        if any(target.listings for kernel in kernels for target in kernel.targets):
            return number
    return min(sessions, default=None)


def strip_report_metadata(notebook: Any) -> Any:
    """Remove the metadata that only a report needs."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            output.get("metadata", {}).pop(OUTPUT_METADATA_KEY, None)
    return notebook


def write_report(
    path: pathlib.Path, folder: pathlib.Path, *, write: bool = False, progress: ProgressCallback | None = None
) -> tuple[pathlib.Path, str]:
    """Execute a notebook and write its page into ``folder``.

    With ``write`` the outputs are also saved in the notebook. The explorer of ``most_informative`` is unfolded, and
    ``progress`` is called before each cell.

    Returns:
        The path of the page, and the traceback of a failed cell or "".
    """
    import nbformat

    from engine.records.session import Session

    with tempfile.TemporaryDirectory() as saved:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        problem = execute_notebook(
            notebook, path.resolve().parent, pathlib.Path(saved), steady=write, progress=progress
        )
        sessions = {int(file.stem): Session.load(file) for file in pathlib.Path(saved).glob("*.json")}
    explorers = {number: explorer_page(session) for number, session in sessions.items()}
    folder.mkdir(parents=True, exist_ok=True)
    report_path = folder / f"{path.stem}.html"
    page = notebook_page(
        notebook,
        title_of(notebook, path.stem),
        explorers,
        unfolded=most_informative(sessions),
        folder=str(path.resolve().parent),
    )
    with replace_file(report_path) as stream:
        stream.write(page.encode(errors="replace"))
    if write and not problem:
        with replace_file(path) as stream:
            text = nbformat.writes(strip_report_metadata(notebook))  # type: ignore[no-untyped-call]
            stream.write(f"{text.rstrip()}\n".encode())
    return report_path.resolve(), problem


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and print the path of the page.

    Returns:
        Exit status: 1 if a cell failed, 2 if there is nothing to run.
    """
    parser = argparse.ArgumentParser(
        prog="python -m notebook_ext", description="Run a notebook and write it as one HTML page."
    )
    parser.add_argument("notebook", nargs="?", type=pathlib.Path, default=TOUR, help="default: the tour")
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("report"), metavar="FOLDER", help="default: report"
    )
    parser.add_argument("--write", action="store_true", help="keep the outputs in the notebook itself")
    options = parser.parse_args(arguments)
    if not options.notebook.is_file():
        print(f"There is no notebook {options.notebook}.", file=sys.stderr)
        return 2
    try:
        report_path, problem = write_report(options.notebook, options.output, write=options.write)
    except ImportError as error:
        print(f"{error.name} is missing: install compile-explorer[lab].", file=sys.stderr)
        return 2
    if problem:
        print(f"A cell of {options.notebook.name} failed; the page shows all up to it.\n{problem}", file=sys.stderr)
    print(report_path)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
