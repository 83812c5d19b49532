"""Tasks for a worker process: run programs as generated Python with interpreted kernels."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import reduce
from typing import Any

from engine.ir.kernels.lowered_program import AtenCall, LoweredProgram
from engine.records.kernels import LaunchGroup
from engine.records.session import FrameRecord, Session
from engine.runtime.program_executor import ProgramExecutor
from engine.runtime.record_launches import record_launches
from tests.engine.runtime.interpreter_launcher import interpreter_launcher


def run(program: LoweredProgram, *calls: tuple[Any, ...]) -> tuple[list[tuple[Any, ...]], str]:
    """Return the outputs of each call and the generated text.

    Targets of externs come by name: ATen's operators cannot be pickled.
    """
    executable = ProgramExecutor(_with_operators(program), interpreter_launcher)
    return [executable(*inputs) for inputs in calls], executable.text


def run_reporting(program: LoweredProgram, *inputs: Any) -> tuple[LaunchGroup, ...]:
    """Return the launches of two calls, recorded with interpreted kernels."""
    executable = ProgramExecutor(_with_operators(program), interpreter_launcher, compilation="0/0")
    executable(*inputs)
    session = Session()
    session.add_frame(FrameRecord("0", "f", "", 1))
    with record_launches(session):
        for _ in range(2):
            executable(*inputs)
    executable(*inputs)
    return session.launches


def run_boxed(program: LoweredProgram, inputs: list[Any]) -> tuple[tuple[Any, ...], str, list[Any]]:
    """Return the outputs of a call with a boxed list, the generated text and the list's rest."""
    executable = ProgramExecutor(_with_operators(program), interpreter_launcher, is_boxed=True)
    return executable(inputs), executable.text, inputs


def _with_operators(program: LoweredProgram) -> LoweredProgram:
    """Return the program with the operators that its steps name."""
    steps = tuple(replace(s, target=_named(s.target)) if isinstance(s, AtenCall) else s for s in program.steps)
    return replace(program, steps=steps)


def _named(path: str) -> Any:
    module, _, rest = path.partition(".")
    return reduce(getattr, rest.split("."), importlib.import_module(module))


_in_use: list[bytearray] = []


def load() -> None:
    """Do nothing: calling it has imported this module and what it needs."""


def blocks_below_one_in_use() -> None:
    """Fill 120 MB of the heap with blocks, keep one above them and free the others."""
    blocks = [bytearray(60_000) for _ in range(2000)]
    _in_use.append(bytearray(60_000))
    blocks.clear()
