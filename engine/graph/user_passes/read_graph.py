"""Read a graph back from its Python text, of which lines may have been edited."""

from __future__ import annotations

import ast
import functools
import hashlib
import math
import operator
from collections.abc import Container, Iterator
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F

from engine.graph.format_node import format_node, format_target
from engine.graph.user_passes.watched_graph import InvalidPassResult, set_line, set_text_line
from engine.records.bytecode import Span

_NAMES: dict[str, Any] = {
    "aten": torch.ops.aten, "prims": torch.ops.prims, "torch": torch, "F": F, "Tensor": torch.Tensor, "operator": operator,
    "math": math, "device": torch.device, "inf": math.inf, "nan": math.nan,
}  # fmt: skip
_BUILTINS = {"slice": slice, "getattr": getattr, "True": True, "False": False, "None": None}


def graph_digest(lines: Iterator[str]) -> str:
    """Return the digest of a graph's lines, which identifies it in an edit."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def lines_of(module: torch.fx.GraphModule) -> Iterator[str]:
    """Yield a graph's nodes as lines of text."""
    return (format_node(n) for n in module.graph.nodes)


def read_graph(
    module: torch.fx.GraphModule, text: str, file: str, *, evaluate_all: bool = False
) -> torch.fx.GraphModule:
    """Return the graph of a text; unchanged lines keep their nodes' metadata.

    ``file``: name of the text in error messages. ``evaluate_all``: evaluate unchanged lines, too.

    Raises:
        InvalidPassResult: a line cannot be read, or the inputs are not those of ``module``.
    """
    return _Reader(module, file, evaluate_all).read(text)


def read_statements(text: str, unchanged: Container[str]) -> tuple[list[tuple[int, str]], tuple[int, str] | None]:
    """Return the statements of a graph's text with their lines, and what is no Python.

    ``unchanged``: lines that need not be Python. A problem is a line and a sentence.
    """
    statements: list[tuple[int, str]] = []
    pending, start, first = "", 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = (line if line.strip() in unchanged else _without_comment(line)).strip()
        if not stripped:
            continue
        if not pending:
            start, first = number, stripped
        pending = f"{pending} {stripped}".lstrip()
        if pending in unchanged or pending.startswith("def graph(") or _is_complete(pending):
            statements.append((start, pending))
            pending = ""
    return statements, (start, f"syntax error: {_syntax_error(first)}") if pending else None


class _Reader:
    def __init__(self, module: torch.fx.GraphModule, file: str, evaluate_all: bool) -> None:
        self._module = module
        self._file = file
        self._graph = torch.fx.Graph()
        self._tracer = torch.fx.proxy.GraphAppendingTracer(self._graph)
        self._nodes: dict[str, torch.fx.Node] = {}
        self._known = {n.name: n for n in module.graph.nodes}
        self._unchanged = {} if evaluate_all else {format_node(n): n for n in module.graph.nodes}

    def read(self, text: str) -> torch.fx.GraphModule:
        statements, problem = read_statements(text, self._unchanged)
        if problem:
            raise self._error(*problem)
        placeholders = self._module.graph.find_nodes(op="placeholder")
        names = [p.name for p in placeholders]
        number, first = statements[0] if statements else (1, "")
        parameters = first.removeprefix("def graph(").removesuffix("):")
        parameter_names = [n.strip() for n in parameters.split(",") if n.strip()]
        if not first.startswith("def graph(") or parameter_names != names:
            raise self._error(number, f"the text must begin with: def graph({', '.join(names)}):")
        for node in placeholders:
            self._copy(node)
        for number, statement in statements[1:]:
            self._read_statement(number, statement)
        if not statements[1:] or not statements[-1][1].startswith("return"):
            raise self._error(statements[-1][0], "the text must end with a return")
        module = torch.fx.GraphModule(self._module, self._graph)
        module.meta = dict(self._module.meta)
        return module

    def _error(self, number: int, sentence: str) -> InvalidPassResult:
        return InvalidPassResult(sentence, span=Span(self._file, number))

    def _copy(self, node: torch.fx.Node) -> None:
        self._nodes[node.name] = self._graph.node_copy(node, lambda n: self._nodes[n.name])

    def _read_statement(self, number: int, statement: str) -> None:
        unchanged = self._unchanged.get(statement)
        if unchanged is not None and all(n.name in self._nodes for n in unchanged.all_input_nodes):
            self._copy(unchanged)
            set_text_line(self._nodes[unchanged.name], Span(self._file, number))
            return
        before = set(self._graph.nodes)
        try:
            self._evaluate(ast.parse(_as_call(statement)).body[0])
        except InvalidPassResult:
            raise
        except SyntaxError as error:
            raise self._error(number, f"{error.msg}, not: {statement[:80]}") from error
        except Exception as error:
            text = (str(error).splitlines() or [""])[0]
            raise self._error(number, f"{type(error).__name__}: {text} in: {statement[:80]}") from error
        for node in self._graph.nodes:
            if node not in before:
                set_line(node, Span(self._file, number))

    @functools.singledispatchmethod
    def _evaluate(self, statement: Any) -> None:
        raise SyntaxError("each line must be an assignment to one name, or the return")

    @_evaluate.register
    def _evaluate_assignment(self, statement: ast.Assign) -> None:
        (target,) = statement.targets
        name, subscript = getattr(target, "id", None), getattr(target, "slice", None)
        if name is not None:
            self._assign(name, self._result(statement.value, name))
        elif subscript is not None:
            owner: Any = target
            args = (self._value(owner.value), self._value(subscript), self._value(statement.value))
            self._tracer.create_proxy("call_function", operator.setitem, args, {})
        else:
            raise SyntaxError("each line must assign to one name")

    @_evaluate.register
    def _evaluate_return(self, statement: ast.Return) -> None:
        results = getattr(statement.value, "elts", None)
        if results is None:
            raise SyntaxError("a graph returns a tuple, as in: return (x,)")
        self._graph.output(self._tracer.create_arg(self._value(ast.Tuple(results, ast.Load()))))

    def _assign(self, name: str, value: Any) -> None:
        if not hasattr(value, "node"):
            raise TypeError(
                f"{name} is {value!r}, which is not a value of the graph: write the constant where it is used"
            )
        earlier = self._known.get(name)
        if earlier is not None and (earlier.op, earlier.target) == (value.node.op, value.node.target):
            value.node.meta = {**earlier.meta, **value.node.meta}
        if name not in {n.name for n in self._graph.nodes} or value.node.name == name:
            value.node.name = name
        self._nodes[name] = value.node

    def _result(self, expression: Any, name: str) -> Any:
        """Return the value of a line, whose outermost call becomes a node in any case."""
        if not hasattr(expression, "func"):
            return self._value(expression)
        called = self._call_target(expression.func, name)
        if hasattr(called, "tracer"):  # a method of a value of the graph
            return self._value(expression)
        arguments = ast.Tuple(expression.args, ast.Load())
        keywords = {k.arg: self._value(k.value) for k in expression.keywords}
        target = getattr(called, "default", called) if hasattr(called, "overloads") else called
        return self._tracer.create_proxy("call_function", target, self._value(arguments), keywords)

    def _call_target(self, expression: ast.expr, name: str) -> Any:
        """Return what a line calls; a call that prints as before has the same target."""
        value = self._known.get(name)
        if value is not None and value.op == "call_function" and format_target(value) == ast.unparse(expression):
            return value.target
        return self._value(expression)

    def _value(self, expression: ast.expr) -> Any:
        code = compile(ast.fix_missing_locations(ast.Expression(expression)), self._file, "eval")
        return eval(code, {"__builtins__": _BUILTINS}, _Names(self))

    def lookup(self, name: str) -> Any:
        """Return what a name in the text means."""
        if name in self._nodes:
            return torch.fx.Proxy(self._nodes[name], self._tracer)
        if name == "self":
            return _Attributes(self._tracer)
        return _NAMES[name] if name in _NAMES else getattr(torch.ops.higher_order, name)


class _Names(dict[str, Any]):
    """Names in a text: values of the graph, then namespaces, then higher-order operators."""

    def __init__(self, reader: _Reader) -> None:
        super().__init__()
        self._reader = reader

    def __missing__(self, name: str) -> Any:
        try:
            return self._reader.lookup(name)
        except AttributeError:
            raise KeyError(name) from None


class _Attributes:
    """``self`` in a text: constants and graphs that the graph holds."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        return self._tracer.create_proxy("get_attr", name, (), {})


def _is_complete(text: str) -> bool:
    try:
        ast.parse(_as_call(text))
    except SyntaxError:
        return False
    return True


def _syntax_error(text: str) -> str:
    """Return what Python says about a line that begins a statement, and the line."""
    try:
        ast.parse(_as_call(text))
    except SyntaxError as error:
        return f"{error.msg}: {text[:80]}"
    return text[:80]


def _as_call(statement: str) -> str:
    """Return a statement with its in-place operator as a call: ``a = (x += y)`` is no Python."""
    name, equals, arguments = statement.partition(" = (")
    operator = next((s for s in _IN_PLACE if f" {s}= " in arguments and arguments.endswith(")")), "")
    left, _, right = arguments.partition(f" {operator}= ")
    if not equals or not operator or not left.isidentifier():
        return statement
    return f"{name} = operator.{_IN_PLACE[operator]}({left}, {right}"


_IN_PLACE = {
    "**": "ipow", "//": "ifloordiv", "<<": "ilshift", ">>": "irshift", "+": "iadd", "-": "isub", "*": "imul", "/": "itruediv",
    "%": "imod", "@": "imatmul", "&": "iand", "|": "ior", "^": "ixor",
}  # fmt: skip


def _without_comment(line: str) -> str:
    head, mark, _ = line.partition("  #")
    return head if mark else ("" if line.lstrip().startswith("#") else line)
