"""Table of a kernel's launches: varying properties are columns, others are listed once."""

from __future__ import annotations

from typing import Any

from engine.records.kernels import LaunchGroup
from engine.records.session import Session
from notebook_ext.views import source_lines
from notebook_ext.views.format_text import one_line, sanitize

MAX_ROWS = 40
"""Maximum number of groups of one kernel that are shown."""


def launches_of(session: Session, compilation: str, kernel: str) -> dict[str, Any] | None:
    """Return the table of a kernel's launches, slowest first; None if there are none."""
    groups = [g for g in session.launches if (g.compilation, g.kernel) == (compilation, kernel)]
    if not groups:
        return None
    groups.sort(key=lambda g: (-(g.seconds or 0.0), -g.count))
    facts = [_launch_properties(session, g) for g in groups]
    varying = [name for name in facts[0] if len({f[name] for f in facts}) > 1]
    shown = groups[:MAX_ROWS]
    return {
        "total": sum(g.count for g in groups),
        "equal": [[name, text] for name, text in facts[0].items() if name not in varying and text],
        "varying": varying,
        "rows": [
            {"values": [f[n] for n in varying], "count": g.count, "fastest": g.fastest, "seconds": g.seconds}
            for g, f in zip(shown, facts, strict=False)
        ],
        "more": len(groups) - len(shown),
    }


def _launch_properties(session: Session, group: LaunchGroup) -> dict[str, str]:
    """Return the properties that can differ between launches of a kernel, by column title."""
    arguments = {one_line(name, 40): one_line(text, 60) for name, text in group.arguments.items()}
    return arguments | {
        "grid": " × ".join(map(str, group.grid)),
        "from": sanitize(source_lines.line_name(session, group.caller)),
        "launched by": "a CUDA graph" if group.is_replay else "",
    }
