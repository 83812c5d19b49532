"""``%%compile --world``: plans the cell as one rank of many instead of running it."""

from __future__ import annotations

import argparse

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from engine.errors import BadArgument, PlanFailed
from engine.planning.plan_step import Program, plan_program
from engine.records.plan import Plan
from notebook_ext.run_cell import Cell, cell_number
from notebook_ext.views.plan import plan_html

LAST_PLAN_NAME = "_plan"


def plan_cell(shell: InteractiveShell, cell: Cell, options: argparse.Namespace) -> Plan:
    """Plan the cell, display the plan and bind it to ``_plan``.

    The cell runs in another process only.

    Raises:
        UsageError: the world or mesh is impossible, or the cell raises an error.
    """
    program = cell_program(shell, cell)
    try:
        plan = plan_program(program, world=options.world, mesh=options.mesh)
    except (BadArgument, PlanFailed) as error:
        raise UsageError(str(error)) from None
    shell.user_ns[LAST_PLAN_NAME] = plan
    if options.output:
        shell.user_ns[options.output] = plan
    display({"text/html": plan_html(plan), "text/plain": str(plan)}, raw=True)
    return plan


def cell_program(shell: InteractiveShell, cell: Cell) -> Program:
    """Return the cell as a program; names that it binds stay in a namespace of its own."""
    code = compile(cell.tree, cell.file, "exec")

    def run(mesh: object) -> None:
        exec(code, dict(shell.user_ns))

    return Program(f"cell {cell_number(shell)}", run, (shell.user_ns,))
