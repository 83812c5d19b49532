"""Edits of kernels: replace the text of kernels in a lowered program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.lowered_program import LoweredProgram, ProgramStep


class KernelEdit(Protocol):
    """An edit of one kernel; ``key`` identifies its text."""

    @property
    def key(self) -> str:
        """Digest of the edited text."""
        ...

    def __call__(self, kernel: GeneratedKernel) -> GeneratedKernel | None:
        """Return the edited kernel; None if it is another kernel that was edited."""
        ...


def with_edited_kernels(program: LoweredProgram, edits: Sequence[KernelEdit]) -> LoweredProgram:
    """Return the program with each edited kernel in place of its original."""
    if not edits:
        return program
    return replace(program, steps=tuple(_with_edits(step, edits) for step in program.steps))


def _with_edits(step: ProgramStep, edits: Sequence[KernelEdit]) -> ProgramStep:
    for launch in step.launches:
        edited = next((m for edit in edits if (m := edit(launch.kernel)) is not None), None)
        return step if edited is None else replace(launch, kernel=edited)
    return step
