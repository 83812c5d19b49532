"""Edited kernels: texts of kernels to edit, and kernels with edited text."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import replace
from typing import Any

from engine.errors import BadArgument
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.records.kernels import KernelRecord
from engine.records.session import CompilationRecord

LANGUAGES = {"triton": "#", "llvm": ";"}
"""Languages of kernels that can be edited, with the sign that begins a comment."""
_HEAD = re.compile(r"[#;] kernel (\S+) of (\S+) (.*): (\w+)$")


def editable_kernels(compilation: CompilationRecord) -> tuple[KernelRecord, ...]:
    """Return the kernels of a compilation whose text can be edited."""
    kernels = (*compilation.cpu_kernels, *compilation.kernels) if compilation.compiler == "engine" else ()
    return tuple(k for k in kernels if k.language in LANGUAGES and k.text and not k.is_hand_written)


def text_digest(text: str) -> str:
    """Return the digest of a kernel's text, which identifies it in an edit."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def kernel_text(kernel: KernelRecord, compilation: str, function: str) -> str:
    """Return the text of a kernel to edit, under a comment that names it."""
    head = f"kernel {kernel.id} of {compilation} {function}: {text_digest(kernel.text)}"
    return f"{LANGUAGES[kernel.language]} {head}\n{kernel.text}"


def is_kernel_text(text: str) -> bool:
    """Return True if a text begins with the comment of ``kernel_text``."""
    return _HEAD.match(text.partition("\n")[0]) is not None


class KernelTextEdit:
    """An edit that replaces the kernels whose text was the one that was edited."""

    def __init__(self, text: str) -> None:
        """Read the comment at the head of a text.

        Raises:
            BadArgument: the text does not begin with it.
        """
        first, _, self.text = text.partition("\n")
        head = _HEAD.match(first)
        if head is None:
            raise BadArgument("The text of an edited kernel must begin with the comment that names its kernel.")
        self.kernel, self.compilation, self.digest = head[1], head[2], head[4]
        self.key = hashlib.sha256(text.encode()).hexdigest()
        self.applied = 0

    def __call__(self, kernel: GeneratedKernel) -> GeneratedKernel | None:
        """Return the edited kernel; None if it is another kernel that was edited."""
        if text_digest(kernel.text) != self.digest:
            return None
        self.applied += 1
        return replace(kernel, text=self.text, fallback_configs=())

    @property
    def unused(self) -> str:
        """Why the edit had no effect; empty if a kernel was replaced."""
        if self.applied:
            return ""
        return f"Compiled without your edit: no kernel has the text of {self.kernel} of {self.compilation} before its edit."


def triton_problem(kernel: GeneratedKernel, text: str) -> tuple[str, int] | None:
    """Return why a Triton text cannot be launched as a kernel, and the line; None if it can."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        return f"syntax error: {getattr(error, 'msg', error)}", getattr(error, "lineno", None) or 1
    names = [a.name for a in kernel.args]
    definition: Any = next((n for n in tree.body if getattr(n, "name", "") == kernel.name and hasattr(n, "args")), None)
    signature = f"def {kernel.name}({', '.join(names)})"
    if definition is None:
        return f"it must define the kernel that is launched: {signature}", 1
    if [a.arg for a in definition.args.args] != names:
        return f"the kernel is launched with these parameters, so keep them: {signature}", definition.lineno
    return None
