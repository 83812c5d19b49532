"""Repro script for a bug report: outcome, user definitions and call of one compilation.

Nothing in it is executed here.
"""

from __future__ import annotations

import ast
import re
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from engine.records.session import CompilationRecord, FrameRecord, Session

_DTYPES = {"bf16": "bfloat16", "b8": "bool", "bool": "bool"}
_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex"}
_TENSOR_OR_STRING = re.compile(
    r"""(?<!\w)(?P<dtype>bf16|bool|[fiuc]\d+|b8)\[(?P<shape>[\d, ]*)\](?: (?P<device>\w+(?::\d+)?))?|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
)
"""Tensors in a description. Strings match too, so that no tensor is read out of one."""
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

    Inputs are created from their recorded descriptions: tensors, constants, and tuples and dicts of them. Other
    values must be filled in.

    Raises:
        KeyError: there is no such compilation.
    """
    record = session.compilation(compilation)
    frame = next(f for f in session.frames if f.id == record.frame)
    versions = ", ".join(f"{name} {version}" for name, version in session.versions.items())
    head = [f"{frame.name}, compilation {record.id} ({record.backend or 'no backend'}), with {versions}"]
    names = {f.id: f.name for f in session.files}
    head += [line for part in _outcome_lines(record, names) for line in part.splitlines()]
    text = next((f.text for f in session.files if f.id == frame.file), "")
    parts = [
        "\n".join(f"# {line}".rstrip() for line in head),
        *[line for line in text.splitlines() if line.startswith("from __future__ import")],
        "import torch\n\nimport engine",
        _definition_source(text),
    ]
    return "\n\n".join([*parts, _call_statements(frame, record.inputs or {}, text)]) + "\n"


def _outcome_lines(record: CompilationRecord, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the graph breaks, and the stage failures with their tracebacks."""
    for graph_break in record.trace.breaks if record.trace is not None else ():
        span = graph_break.span
        location = "" if span is None else f" at {names.get(span.file) or span.file}:{span.line}"
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
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _call_statements(frame: FrameRecord, inputs: Mapping[str, str], text: str) -> str:
    statements = [_input_statement(name, description) for name, description in inputs.items() if name.isidentifier()]
    if not frame.name.isidentifier():
        return "\n".join([*statements, f"# then call {frame.name} compiled with engine.compile"])
    forms = _argument_forms(frame, text)
    arguments = sorted(
        (forms.get(name, (1, f"{name}={name}")) for name in inputs if name.isidentifier()), key=itemgetter(0)
    )
    return "\n".join([*statements, f"engine.compile({frame.name})({', '.join(form for _, form in arguments)})"])


def _argument_forms(frame: FrameRecord, text: str) -> dict[str, tuple[int, str]]:
    """Return the text of arguments that are not passed by name, each with a sort rank."""
    parameters = parameters_at(text, frame.first_line)
    if parameters is None:
        return {}
    positional = parameters.posonlyargs + (parameters.args if parameters.vararg else [])
    forms = {parameter.arg: (0, parameter.arg) for parameter in positional}
    if parameters.vararg is not None:
        forms[parameters.vararg.arg] = 0, f"*{parameters.vararg.arg}"
    if parameters.kwarg is not None:
        forms[parameters.kwarg.arg] = 2, f"**{parameters.kwarg.arg}"
    return forms


def parameters_at(text: str, line: int) -> ast.arguments | None:
    """Return the parameters of the function whose first line, or decorator, is ``line``."""
    try:
        nodes = ast.walk(ast.parse(text))
    except SyntaxError:
        return None
    functions = (n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return next((n.args for n in functions if _first_line(n) == line), None)


def _input_statement(name: str, description: str) -> str:
    """Return the statement that makes an input of ones, or ``...`` for one to fill in."""
    try:
        ast.literal_eval(_TENSOR_OR_STRING.sub(lambda m: "None" if m["dtype"] else m[0], description))
    except (ValueError, SyntaxError):
        return f"{name} = ...  # {description}: to be filled in"
    return f"{name} = {_TENSOR_OR_STRING.sub(_tensor_expression, description)}"


def _tensor_expression(match: re.Match[str]) -> str:
    """Return the expression that makes a tensor, or the string that matched."""
    short = match["dtype"]
    if short is None:
        return match[0]
    dtype = _DTYPES.get(short) or _KINDS[short[0]] + short[1:]
    device = f', device="{match["device"]}"' if match["device"] else ""
    return f"torch.ones(({match['shape']}{',' * bool(match['shape'])}), dtype=torch.{dtype}{device})"
