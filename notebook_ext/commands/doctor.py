"""Command ``doctor``: ranked findings of torch traces and saved sessions."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.errors import NotATrace
from engine.observe.ranks.load_ranks import load_sessions
from engine.records.base import RecordError
from engine.records.findings import SEVERITIES
from engine.records.findings_text import findings_json, findings_text, has_finding


def doctor_command(arguments: Sequence[str]) -> int:
    """Print the findings of the logs.

    Returns:
        Exit status: 1 if a finding is at least as severe as ``--fail-on``, 2 if a log cannot be read.
    """
    parser = argparse.ArgumentParser(
        prog="compile-explorer doctor",
        description="Print what logs of torch.compile and saved sessions report, ranked, with fixes.",
    )
    parser.add_argument("logs", nargs="+", type=Path, help="TORCH_TRACE logs or folders, or saved sessions")
    parser.add_argument("--json", action="store_true", help="print JSON, one object for each log")
    parser.add_argument(
        "--fail-on", choices=[*SEVERITIES, "never"], default="warning", help="severity that gives exit status 1"
    )
    given = parser.parse_args(arguments)
    status = 0
    for path in given.logs:
        try:
            session = next(iter(load_sessions(path).values()))
        except (NotATrace, RecordError, OSError) as error:
            print(error, file=sys.stderr)
            status = 2
            continue
        if given.json:
            print(json.dumps({"log": path.name, **findings_json(session)}, ensure_ascii=True))
        else:
            notes = "".join(f"\nnote: {note}" for note in session.notes)
            print(f"{path.name}: {findings_text(session)}{notes}")
        if given.fail_on != "never" and has_finding(session, given.fail_on):
            status = max(status, 1)
    return status
