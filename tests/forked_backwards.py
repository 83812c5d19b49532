"""Backwards in forks: CUDA builds of torch reject them if the parent ran one."""

from __future__ import annotations

import os

import pytest
import torch

from engine.runtime.workers.fork import NO_BACKWARD_IN_FORK, fork_process, is_fork_backward_error


def backward_raises_in_fork() -> bool:
    """Return True if torch would run no backward in a child of this process, now."""
    if not hasattr(os, "fork"):
        return False
    child = fork_process()
    if not child:
        os._exit(_run_backward())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in {0, 1}, f"the child ended with {code}"
    return code == 1


def skip_if_forks_run_no_backward() -> None:
    """Skip a test that runs a backward itself, then another one in a fork.

    The first backward of a process decides: torch starts threads in it if fake tensors have replaced CUDA's guard.
    """
    _run_backward()
    if backward_raises_in_fork():
        pytest.skip(NO_BACKWARD_IN_FORK)


def _run_backward() -> int:
    try:
        torch.ones(1, requires_grad=True).sum().backward()
    except RuntimeError as error:
        return 1 if is_fork_backward_error(error) else 2
    return 0
