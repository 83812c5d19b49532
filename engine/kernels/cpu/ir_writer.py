"""Writes the text of one LLVM function, with the loop ops that each line comes from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from engine.kernels.source_builder import SourceLine


class IrWriter:
    """The lines of a function body; ``ops`` are the loop ops of the lines written now.

    ``parameter_names`` are names of parameters and blocks. LLVM has one namespace for them and for values, so the
    names of values are added.
    """

    def __init__(self, parameter_names: set[str]) -> None:
        self.lines: list[SourceLine] = []
        self.entry_lines: list[SourceLine] = []
        """Lines of the entry block: parameters and stack slots."""
        self.declarations: dict[str, str] = {}
        self.ops: tuple[int, ...] = ()
        self._parameter_names = parameter_names
        self._names: dict[str, int] = {}
        self._indent = "  "
        self._last_comment = ""

    def line(self, text: str) -> None:
        """Write an indented line, linked to the current ops."""
        self.lines.append(SourceLine(self._indent + text, list(self.ops)))

    def comment(self, text: str) -> None:
        """Write a comment line, unless the last comment has this text."""
        if text not in ("", self._last_comment):
            self.line(f"; {text}")
            self._last_comment = text

    def forget_comment(self) -> None:
        """Forget the last comment, so that the next one is written in any case."""
        self._last_comment = ""

    def fresh(self, hint: str) -> str:
        """Return an unused name: the hint, and a number if it is taken."""
        count = self._names.get(hint, int(hint in self._parameter_names))
        self._names[hint] = count + 1
        self._parameter_names.add(hint)
        return f"%{hint}" if count == 0 else f"%{hint}.{count}"

    def assign(self, hint: str, text: str) -> str:
        """Write an instruction; return the name of its result."""
        name = self.fresh(hint)
        self.line(f"{name} = {text}")
        return name

    def entry(self, hint: str, text: str) -> str:
        """Write an instruction into the entry block; return the name of its result."""
        name = self.fresh(hint)
        self.entry_lines.append(SourceLine(f"  {name} = {text}", list(self.ops)))
        return name

    def declare(self, name: str, result: str, parameters: str) -> None:
        """Declare an external function or an intrinsic once."""
        self.declarations[name] = f"declare {result} @{name}({parameters})"

    def call(self, hint: str, function: str, result: str, arguments: list[tuple[str, str]], flags: str = "") -> str:
        """Write a call with ``(type, value)`` arguments; return the name of its result."""
        self.declare(function, result, ", ".join(t for t, _ in arguments))
        arguments_text = ", ".join(f"{t} {v}" for t, v in arguments)
        return self.assign(hint, f"call {flags}{result} @{function}({arguments_text})")

    @contextlib.contextmanager
    def loop(self, hint: str, start: str, stop: str, step: str | int = 1, *, before: str) -> Iterator[str]:
        """Write a loop from ``start`` to below ``stop``; yields the name of its variable.

        ``before``: the label of the block that enters the loop. Afterward the variable is at or above ``stop``.
        """
        name = self.fresh(hint)
        label = name[1:]
        self.line(f"br label %{label}.head")
        self._label(f"{label}.head")
        self.line(f"{name} = phi i64 [ {start}, %{before} ], [ {name}.next, %{label}.latch ]")
        self.line(f"{name}.more = icmp slt i64 {name}, {stop}")
        self.line(f"br i1 {name}.more, label %{label}.body, label %{label}.exit")
        self._label(f"{label}.body")
        self._indent += "  "
        yield name
        self._indent = self._indent[:-2]
        self.line(f"br label %{label}.latch")
        self._label(f"{label}.latch")
        self.line(f"{name}.next = add i64 {name}, {step}")
        self.line(f"br label %{label}.head")
        self._label(f"{label}.exit")

    def choose(self, condition: str, write_if: Callable[[], None], write_else: Callable[[], None]) -> None:
        """Write two sets of lines, of which one runs; no line after them may use their values."""
        label = self.fresh("any")[1:]
        self.line(f"br i1 {condition}, label %{label}.if, label %{label}.else")
        for part, write in (("if", write_if), ("else", write_else)):
            self._label(f"{label}.{part}")
            self._indent += "  "
            write()
            self._indent = self._indent[:-2]
            self.line(f"br label %{label}.end")
        self._label(f"{label}.end")

    def _label(self, name: str) -> None:
        self.lines.append(SourceLine(f"{name}:", []))
        self.block = name

    block = "entry"
    """Label of the block that is written now."""
