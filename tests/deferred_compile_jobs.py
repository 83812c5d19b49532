"""Compile the kernels that a recording shows only when a test waits for them.

A recording starts to compile its kernels for a GPU, and the listings of those for the CPU, in other processes. Few tests
read them; tests of jobs start theirs themselves.
"""

from __future__ import annotations

import weakref

from engine import session_jobs
from engine.backends import aot
from engine.records.session import Session
from engine.runtime.workers.compile_jobs import CompileJob
from engine.session_jobs import LoweredGraph, compile_for


class DeferredCompileJob:
    """Starts a compile job at the first wait, unless it was cancelled before."""

    def __init__(self, session: Session, compilation: str, target: str, only: LoweredGraph) -> None:
        self._session = weakref.ref(session)
        self._arguments = (compilation, target, only)
        self._job: CompileJob | None = None
        self._is_over = False

    def wait(self, timeout: float | None = None) -> bool:
        """Compile, and wait for the end; return False if ``timeout`` seconds passed first."""
        session = self._session()
        if self._job is None and not self._is_over and session is not None:
            compilation, target, only = self._arguments
            self._job = compile_for(session, compilation, target, only=only)
            self._is_over = self._job is None  # there are no kernels
        return self._job is None or self._job.wait(timeout)

    def cancel(self) -> None:
        """Cancel the job, and start none later."""
        self._is_over = True
        if self._job is not None:
            self._job.cancel()


def defer_compile_jobs() -> None:
    """Defer the jobs that recordings start.

    Those for a target that a test names start at once.
    """
    session_jobs.compile_for = _compile_for
    aot.start_workers = lambda: None


def _compile_for(
    session: Session, compilation: str, target: str, *, only: LoweredGraph | None = None
) -> CompileJob | None:
    if only is None:
        return compile_for(session, compilation, target)
    job = DeferredCompileJob(session, compilation, target, only)
    session_jobs._jobs_of(session).jobs.append(job)
    return None
