"""Run ranks of a group as processes forked from this one, with all it has imported."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def run_forked_ranks(run: Callable[[int], None], world: int) -> bool:
    """Call ``run`` with each rank in a process of its own; return True if none fails.

    A rank that raises prints its traceback.
    """
    children = []
    for rank in range(world):
        if (child := os.fork()) == 0:
            status = 1
            try:
                run(rank)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    return not sum(os.waitpid(child, 0)[1] for child in children)
