"""Loop ops of each line of a CPU kernel: of loops, addresses and math functions too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from engine.kernels.cpu.line_tables import function_at_line, is_instruction

Ops = tuple[str, ...]

_CALL = re.compile(r"\bcall .*?@([\w.$]+)\(")
_HEAD = re.compile(r"([\w.]+)\.head:")
_NAME = re.compile(r"%[\w.$]+")
_DEFINED = re.compile(r"\s*(%[\w.$]+) = ")


def complete_line_ops(text: str, line_ops: Sequence[Ops]) -> tuple[Ops, ...]:
    """Return the ops of each line, where a line without ops gets those that need it.

    Loop control belongs to all ops in the loop, an address or a mask to the ops that use it, and a math function to the
    ops that call it.
    """
    lines = text.split("\n")
    completed = [*line_ops, *([()] * (len(lines) - len(line_ops)))]
    functions = function_at_line(text)
    kernel = next(iter(functions.values()), "")
    own = [number - 1 for number, name in functions.items() if name == kernel and is_instruction(lines[number - 1])]
    for start, end in _loop_line_ranges(lines, own):
        inside = _union(completed[n] for n in own if start <= n <= end)
        for n in own:
            if start - 1 <= n <= end and not completed[n]:
                completed[n] = inside
    _add_users(lines, own, completed)
    for name, ops in _callers(lines, functions, completed).items():
        for number, function in functions.items():
            if function == name and is_instruction(lines[number - 1]):
                completed[number - 1] = ops
    return tuple(completed)


def _union(parts: Iterator[Ops]) -> Ops:
    return tuple(dict.fromkeys(op for ops in parts for op in ops))


def _loop_line_ranges(lines: Sequence[str], own: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each loop, the inner loops first."""
    ends = {line[: -len(".exit:")]: n for n, line in enumerate(lines) if line.endswith(".exit:")}
    heads = [(n, match[1]) for n, line in enumerate(lines[: own[-1]] if own else ()) if (match := _HEAD.match(line))]
    return ((n, ends[name]) for n, name in reversed(heads) if name in ends)


def _add_users(lines: Sequence[str], own: Sequence[int], completed: list[Ops]) -> None:
    """Give a line without ops those of the lines that use its result."""
    used: dict[str, dict[str, None]] = {}
    for n in reversed(own):
        definition = _DEFINED.match(lines[n])
        if definition and not completed[n]:
            completed[n] = tuple(used.get(definition[1], ()))
        for name in _NAME.findall(lines[n], definition.end() if definition else 0):
            used.setdefault(name, {}).update(dict.fromkeys(completed[n]))


def _callers(lines: Sequence[str], functions: dict[int, str], completed: Sequence[Ops]) -> dict[str, Ops]:
    """Return the ops that call each function, also through another one."""
    defined = list(dict.fromkeys(functions.values()))[1:]
    calls: dict[str, dict[str, None]] = {name: {} for name in defined}
    inner: dict[str, set[str]] = {name: set() for name in defined}
    for number, function in functions.items():
        if (called := _CALL.search(lines[number - 1])) and called[1] in calls:
            calls[called[1]].update(dict.fromkeys(completed[number - 1]))
            inner.setdefault(function, set()).add(called[1])
    for _ in defined:
        for name in defined:
            for callee in inner[name]:
                calls[callee].update(calls[name])
    return {name: tuple(ops) for name, ops in calls.items()}
