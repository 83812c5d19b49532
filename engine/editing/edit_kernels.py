"""Edited kernels: texts of kernels to edit, and kernels with edited text."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import replace
from typing import Any

from engine.errors import BadArgument
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.llvm_machine import initialize, llvm
from engine.records.kernels import KernelRecord
from engine.records.session import CompilationRecord

LANGUAGES = {"triton": "#", "llvm": ";"}
"""Languages of kernels that can be edited, with the sign that begins a comment."""
_HEAD = re.compile(r"[#;] kernel (\S+) of (\S+) (.*): (\w+)$")
_POSITION = re.compile(r"<string>:(\d+):\d+: error: (.*)")


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


def text_problem(kernel: KernelRecord, text: str) -> tuple[str, int] | None:
    """Return why an edited text cannot be launched as a kernel, and the line; None if it can.

    The text is only parsed, so the answer comes at once.
    """
    if kernel.language == "triton":
        return _triton_problem(kernel.name, text, kernel.text)
    return _llvm_problem(kernel.name, text, kernel.text) if llvm is not None else None


def _triton_problem(name: str, text: str, original: str) -> tuple[str, int] | None:
    try:
        definition = _definition(name, text)
    except (SyntaxError, ValueError) as error:
        return f"syntax error: {getattr(error, 'msg', error)}", getattr(error, "lineno", None) or 1
    names = [a.arg for a in _definition(name, original).args.args]
    signature = f"def {name}({', '.join(names)})"
    if definition is None:
        return f"it must define the kernel that is launched: {signature}", 1
    if [a.arg for a in definition.args.args] != names:
        return f"the kernel is launched with these parameters, so keep them: {signature}", definition.lineno
    return None


def _definition(name: str, text: str) -> Any:
    return next((n for n in ast.parse(text).body if getattr(n, "name", "") == name and hasattr(n, "args")), None)


def _llvm_problem(name: str, text: str, original: str) -> tuple[str, int] | None:
    initialize()
    context = llvm.create_context()  # that of the process keeps each constant
    try:
        module = llvm.parse_assembly(text, context)
        module.verify()
        launched = llvm.parse_assembly(original, context).get_function(name)
        function = module.get_function(name)
    except NameError:
        return f"it must define @{name}, which is launched", 1
    except RuntimeError as error:
        message = str(error).strip()
        if at := _POSITION.search(message):
            return f"syntax error: {at[2]}", int(at[1])
        first, _, rest = message.partition("\n")
        said = rest.partition("\n")[0].strip()
        at_fault = (n for n, line in enumerate(text.split("\n"), 1) if said and line.strip().startswith(said))
        return first.rstrip("!."), next(at_fault, 1)
    if str(function.global_value_type) != str(launched.global_value_type) or function.is_declaration:
        line = next((n for n, x in enumerate(text.split("\n"), 1) if f"@{name}(" in x), 1)
        return f"@{name} must have the type {launched.global_value_type}, with which it is launched", line
    return None
