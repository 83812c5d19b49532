"""Console script ``compile-explorer``: report, doctor, demo and lab."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.supported_versions import UnsupportedVersion

USAGE = """\
usage: compile-explorer COMMAND ...

  report PATH   run a notebook, or read a TORCH_TRACE log, and write an HTML page
  doctor LOGS   print ranked findings of TORCH_TRACE logs and saved sessions
  demo          run the tour, and print the link of its page and what to look at
  lab           open JupyterLab on the tour

compile-explorer COMMAND --help lists the options of a command."""
LAB_USAGE = """\
usage: compile-explorer lab [NOTEBOOK] [OPTION ...]

Opens JupyterLab on a notebook (default: the tour). Options go to JupyterLab: --no-browser, --port=8889, --allow-root ...
jupyter lab --help lists them."""
HELP = ("-h", "--help", "help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the four commands.

    Returns:
        Exit status of the command; 2 if there is none of that name.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in COMMANDS:
        return run_command(COMMANDS[words[0]], words[1:])
    if words and words[0] not in HELP:
        print(f"There is no command {words[0]!r}: choose {', '.join(COMMANDS)}, or --help.", file=sys.stderr)
        return 2
    print(USAGE, file=sys.stdout if words else sys.stderr)
    return 0 if words else 2


def run_command(command: Callable[[Sequence[str]], int], words: Sequence[str]) -> int:
    """Run a command; status 1 if torch is too old or the reader of its output ends."""
    try:
        status = command(words)
        sys.stdout.flush()
    except UnsupportedVersion as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def imported_command(name: str) -> Callable[[Sequence[str]], int]:
    """Return a command whose module is imported when it runs: it needs torch or IPython."""

    def command(arguments: Sequence[str]) -> int:
        module = importlib.import_module(f"notebook_ext.commands.{name}")
        status: int = getattr(module, f"{name}_command")(arguments)
        return status

    return command


def lab_command(arguments: Sequence[str]) -> int:
    """Open JupyterLab on a notebook, by default the tour; options go to JupyterLab.

    Where the package was installed without its notebooks, a short one is written into this folder first.
    """
    if any(word in ("-h", "--help") for word in arguments):
        print(LAB_USAGE)
        return 0
    named = arguments[:1] if arguments and not arguments[0].startswith("-") else []
    if named and not Path(named[0]).exists():
        print(f"compile-explorer lab: error: there is no notebook {named[0]}. See --help.", file=sys.stderr)
        return 2
    if importlib.util.find_spec("jupyterlab") is None:
        print("jupyterlab is missing: install compile-explorer[lab].", file=sys.stderr)
        return 2
    from notebook_ext.commands.demo import demo_notebook

    notebook = Path(named[0]) if named else demo_notebook(Path.cwd())
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(notebook), *arguments[len(named) :]])


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "report": imported_command("report"),
    "doctor": imported_command("doctor"),
    "lab": lab_command,
    "demo": imported_command("demo"),
}
"""Commands by name; each takes the rest of the words and returns an exit status."""


if __name__ == "__main__":
    sys.exit(main())
