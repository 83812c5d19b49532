"""``%%compile --world``: plans the cell as one rank of many instead of running it."""

from __future__ import annotations

import argparse
import pathlib

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from engine.errors import BadArgument, PlanFailed
from engine.planning.plan_step import Program, plan_program
from engine.records.plan import Plan
from notebook_ext.compile_run import save_page
from notebook_ext.display import show_session
from notebook_ext.run_cell import Cell, cell_number
from notebook_ext.views.plan import plan_session

LAST_PLAN_NAME = "_plan"
RUN_OPTIONS = ("compare", "verify", "steps", "launches", "keep")
"""Options about a run, which a plan does not have."""


def plan_cell(shell: InteractiveShell, cell: Cell, options: argparse.Namespace) -> Plan:
    """Plan the cell, show the plan in the explorer and bind it to ``_plan``.

    The cell runs in another process only.

    Raises:
        UsageError: the world or mesh is impossible, an option is about a run, or the cell raises an error.
    """
    if wrong := next((f"--{name}" for name in RUN_OPTIONS if getattr(options, name)), "") or " ".join(options.names):
        raise UsageError(f"--world plans the cell, which is not compiled or run: leave out {wrong}.")
    program = cell_program(shell, cell)
    try:
        plan = plan_program(program, world=options.world, mesh=options.mesh)
    except (BadArgument, PlanFailed) as error:
        raise UsageError(str(error)) from None
    shell.user_ns[LAST_PLAN_NAME] = plan
    if options.output:
        shell.user_ns[options.output] = plan
    session = plan_session(plan)
    if options.save:
        _save_plan(plan, pathlib.Path(options.save).expanduser())
        session.add_note(f"Saved as {pathlib.Path(options.save).name}.")
    show_session(shell, session, static=not options.no_static, view="devices")
    return plan


def _save_plan(plan: Plan, path: pathlib.Path) -> None:
    """Save the plan as a page of the explorer, else as JSON."""
    if path.suffix.lower() not in (".html", ".htm"):
        plan.save(str(path))
        return
    save_page(plan_session(plan), path, "devices")


def cell_program(shell: InteractiveShell, cell: Cell) -> Program:
    """Return the cell as a program; names that it binds stay in a namespace of its own."""
    code = compile(cell.tree, cell.file, "exec")

    def run(mesh: object) -> None:
        exec(code, dict(shell.user_ns))

    return Program(f"cell {cell_number(shell)}", run, (shell.user_ns,))
