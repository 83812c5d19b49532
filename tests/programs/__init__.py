"""Short user programs, one idea each: what every stage and every backend is tested with."""

from __future__ import annotations

import functools
import importlib.util
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MethodType, ModuleType
from typing import Any

PROGRAMS_FOLDER = pathlib.Path(__file__).parent
SEARCHED_FOLDERS = [PROGRAMS_FOLDER]
"""Folders of folders of program files; the fuzzer adds its own."""


@dataclass(frozen=True)
class Call:
    """Arguments of one call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def call(*args: Any, **kwargs: Any) -> Call:
    """Arguments of one call, keywords included."""
    return Call(args, kwargs)


@dataclass(frozen=True)
class Program:
    """One user program.

    ``target`` is a function, or an ``nn.Module`` class that is made with a fixed seed. ``calls`` make the arguments of one call each: a
    tuple, or ``call(...)``. ``breaks`` is the number of places where a good compiler must break. ``steady`` says that repeating the last
    call needs no further compilation. ``skip`` maps a backend to the reason why the program makes no sense there.
    """

    target: Any
    calls: tuple[Callable[[], Any], ...]
    breaks: int = 0
    compiles_once: bool = True
    skip: Mapping[str, str] = field(default_factory=dict)
    tolerance: float | None = None


def program(
    *calls: Callable[[], Any],
    breaks: int = 0,
    steady: bool = True,
    skip: Mapping[str, str] | None = None,
    tolerance: float | None = None,
) -> Callable[[Any], Any]:
    """Mark a function or module class as a program (arguments as in ``LoweredProgram``)."""

    def mark(target: Any) -> Any:
        made = Program(target, calls, breaks, steady, skip or {}, tolerance)
        if isinstance(target, MethodType):
            return made  # a bound method takes no attributes
        target.__program__ = made
        return target

    return mark


def outcomes_of(*calls: Callable[[], Any]) -> list[Any]:
    """What each call gives; of one that raises, the exception's class and words."""
    out: list[Any] = []
    for each in calls:
        try:
            out.append(each())
        except Exception as error:
            out.append((type(error).__name__, str(error)))
    return out


@functools.cache
def file_of(stem: str) -> pathlib.Path:
    """Return the program file with a name; its folder says what the programs are about."""
    (file,) = (path for folder in SEARCHED_FOLDERS for path in folder.glob(f"*/{stem}.py"))
    return file


def load_copy(stem: str, copy: str) -> ModuleType:
    """Execute program file ``stem`` again as a new module, so two runs share no globals."""
    name, file = f"tests.programs.{stem}__{copy}", file_of(stem)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def programs_of(module: ModuleType) -> Iterator[tuple[str, Program]]:
    """Names and programs of a program file, in the order they are written."""
    for name, value in vars(module).items():
        found = program_of(value)
        if found is not None:
            yield name, found


def program_of(value: Any) -> Program | None:
    """Return the program that a global holds, if any (subclasses of a program do not count)."""
    if isinstance(value, Program):
        return value
    found = vars(value).get("__program__") if hasattr(value, "__dict__") else None
    return found if isinstance(found, Program) and found.target is value else None


@functools.cache
def all_programs() -> Mapping[str, Program]:
    """All programs by ``file.program``; each file is executed once for it in a process."""
    stems = sorted(path.stem for path in PROGRAMS_FOLDER.glob("*/*.py"))
    return {f"{stem}.{name}": found for stem in stems for name, found in programs_of(load_copy(stem, "listing"))}


def program_names() -> list[str]:
    """All programs as ``file.program``."""
    return list(all_programs())
