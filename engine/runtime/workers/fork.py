"""Short-lived forks of this process: each child computes one result and exits."""

from __future__ import annotations

import os
import warnings


def fork_process() -> int:
    """Fork; return the child's id in the parent, and 0 in the child.

    From Python 3.12 on, a fork while other threads run warns that the child may wait for their locks. torch has threads
    of its own in every process. Callers kill a child that does not answer, or do its work themselves.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


NO_BACKWARD_IN_FORK = "this build of torch runs no backward in a fork of a process that ran one"


def is_fork_backward_error(error: object) -> bool:
    """Return True for torch's error, or its text, about a backward in a forked process.

    CUDA builds of torch raise it if the parent process ran a backward before. The program that ran is not at fault.
    """
    return "fork-based multiprocessing" in str(error)
