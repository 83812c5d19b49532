"""Record the sessions that notebooks open where Triton is not available.

Run ``python -m tests.notebooks.record_sessions`` or ``make sessions``.

The cells are those of the notebooks themselves, and the written files hold no times, so a second run
changes nothing. ``train.log.gz`` is a sample of a log that torch writes, and is not made here.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

from tests.notebooks.notebook_runner import NOTEBOOKS_DIR, read

SESSIONS = {
    "gated_norm": (
        "08_loops_to_triton",
        ("norm", "norm-code"),
        "engine.verify(norm_session); engine.wait(norm_session); norm_session.save({path!r})",
    ),
    "three_targets": (
        "09_ptx_and_sass",
        ("kernel",),
        """for target in ("cuda:90", "hip:gfx942"):
    engine.wait(targets); engine.api.compile_for(targets, target)
engine.wait(targets); targets.save({path!r})""",
    ),
}
"""By file: a notebook, the magic's cell and those it goes on with, and what is done then."""


def record(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Record one session in this process and write it into ``folder``.

    Raises:
        RuntimeError: a cell failed.
    """
    from IPython.core.interactiveshell import InteractiveShell

    notebook, cells, then = SESSIONS[name]
    path = folder / f"{name}.json"
    by_id = {c.id: c.source for c in read(NOTEBOOKS_DIR / f"{notebook}.ipynb").cells}
    magic, _, call = by_id[cells[0]].partition("\n")
    # Definitions of earlier cells go into the recorded one, so that its source holds all of them.
    source = "\n\n".join([f"{magic}\n{by_id[cells[1]]}", call]) if cells[1:] else by_id[cells[0]]
    shell = InteractiveShell.instance()
    for code in (
        "import torch, engine, engine.api\n%load_ext notebook_ext\ntorch.manual_seed(0);",
        source,
        then.format(path=str(path)),
    ):
        if not shell.run_cell(code, store_history=False).success:
            raise RuntimeError(f"a cell for {name} failed")
    path.write_text(
        json.dumps(without_times(json.loads(path.read_text(encoding="utf-8"))), ensure_ascii=False), encoding="utf-8"
    )
    return path


def without_times(value: Any) -> Any:
    """A session's data with every time set to 0."""
    if isinstance(value, list):
        return [without_times(v) for v in value]
    if not isinstance(value, dict):
        return value
    return {
        k: 0.0 if isinstance(v, float) and (k == "start" or k.endswith("seconds")) else without_times(v)
        for k, v in value.items()
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        record(sys.argv[1], pathlib.Path(sys.argv[2]))
    else:  # each in a process of its own, so that numbers begin anew
        for name in SESSIONS:
            subprocess.run(
                [sys.executable, "-m", "tests.notebooks.record_sessions", name, str(NOTEBOOKS_DIR / "sessions")],
                check=True,
            )
