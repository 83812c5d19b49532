"""Command line: run a notebook or read a torch trace, and write an HTML page.

``python -m notebook_ext [NOTEBOOK]`` runs a notebook (default: the tour).
``python -m notebook_ext LOG -o PAGE`` shows a torch trace.
``python -m notebook_ext COMMAND`` is ``compile-explorer COMMAND``: report, doctor, demo or lab.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from notebook_ext.commands import console


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; without the name of one, write a report.

    Returns:
        Exit status of the command.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in (*console.COMMANDS, *console.HELP):
        return console.main(words)
    return console.run_command(console.COMMANDS["report"], words)


if __name__ == "__main__":
    sys.exit(main())
