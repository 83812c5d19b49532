"""Repro script for a bug report: outcome, user definitions and call of one compilation.

Nothing in it is executed here.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from engine.records.session import CompilationRecord, FrameRecord, Session

_DTYPES = {"bf16": "bfloat16", "b8": "bool", "bool": "bool"}
_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex"}
_TENSOR = re.compile(r"(bf16|bool|[fiuc]\d+|b8)\[([\d, ]*)\]( \S+)?")
_DEFINITION_NODES = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
)


def repro_script(session: Session, compilation: str) -> str:
    """Return the repro script of one compilation of a live or loaded session.

    Inputs are created from their recorded descriptions. Other values than tensors and constants must be
    filled in.

    Raises:
        KeyError: there is no such compilation.
    """
    record = session.compilation(compilation)
    frame = next(f for f in session.frames if f.id == record.frame)
    versions = ", ".join(f"{name} {version}" for name, version in session.versions.items())
    head = [f"{frame.name}, compilation {record.id} ({record.backend or 'no backend'}), with {versions}"]
    head += [line for part in _outcome_lines(record) for line in part.splitlines()]
    text = next((f.text for f in session.files if f.id == frame.file), "")
    parts = [
        "\n".join(f"# {line}".rstrip() for line in head),
        *[line for line in text.splitlines() if line.startswith("from __future__ import")],
        "import torch\n\nimport engine",
        _definition_source(text),
    ]
    return "\n\n".join([*parts, _call_statements(frame, record.inputs or {})]) + "\n"


def _outcome_lines(record: CompilationRecord) -> Iterator[str]:
    """Yield the graph breaks, and the stage failures with their tracebacks."""
    for graph_break in record.trace.breaks if record.trace is not None else ():
        location = f" at {graph_break.span.file}:{graph_break.span.line}" if graph_break.span is not None else ""
        yield f"break: {graph_break.title}: {graph_break.context}{location}"
    for failure in record.failures:
        yield f"failure: {failure.sentence} ({failure.fallback})"
        yield failure.detail


def _definition_source(text: str) -> str:
    """Return a file's imports, definitions and assignments.

    A file that is not plain Python becomes a comment.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return "\n".join(f"# {line}".rstrip() for line in text.splitlines())
    lines = text.splitlines()
    return "\n".join(
        "\n".join(lines[_first_line(node) - 1 : node.end_lineno])
        for node in tree.body
        if isinstance(node, _DEFINITION_NODES) and getattr(node, "module", "") != "__future__"
    )


def _first_line(node: ast.stmt) -> int:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.lineno
    return min(node.lineno, *(d.lineno for d in node.decorator_list), node.lineno)


def _call_statements(frame: FrameRecord, inputs: Mapping[str, str]) -> str:
    statements = [_input_statement(name, description) for name, description in inputs.items() if name.isidentifier()]
    if not frame.name.isidentifier():
        return "\n".join([*statements, f"# then call {frame.name} compiled with engine.compile"])
    arguments = ", ".join(f"{name}={name}" for name in inputs if name.isidentifier())
    return "\n".join([*statements, f"engine.compile({frame.name})({arguments})"])


def _input_statement(name: str, description: str) -> str:
    """Return the statement that makes an input of ones, or ``...`` for one to fill in."""
    match = _TENSOR.fullmatch(description)
    if match is not None:
        dtype = _DTYPES.get(match[1]) or _KINDS[match[1][0]] + match[1][1:]
        device = f', device="{match[3].strip()}"' if match[3] else ""
        return f"{name} = torch.ones(({match[2]}{',' * bool(match[2])}), dtype=torch.{dtype}{device})"
    try:
        ast.literal_eval(description)
    except (ValueError, SyntaxError):
        return f"{name} = ...  # {description}: to be filled in"
    return f"{name} = {description}"
