"""Edits of a user's cell: replacements in its text, options of its magic, and their diff."""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from engine.interrupts.weak_tables import WeakTable
from engine.records.bytecode import Span
from engine.records.session import Session

CONTEXT_LINES = 1
"""Unchanged lines that a diff shows around each change."""
_SIMPLE = (ast.Name, ast.Attribute, ast.Constant)
"""Expressions whose evaluation does nothing but read."""
_DELAYED = (ast.Lambda, ast.comprehension, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp)
_DELAYED_OR_REPEATED = (*_DELAYED, ast.BoolOp)
"""Expressions that may evaluate a part of them never, or many times."""


@dataclass(frozen=True)
class CellText:
    """Text of a cell: the rest of its ``%%compile`` line, and the lines below it in ``file``."""

    options: str
    body: str
    file: str

    @property
    def source(self) -> str:
        """Whole text of the cell."""
        return f"%%compile {self.options}".rstrip() + "\n" + self.body.rstrip("\n") + "\n"


cell_texts: WeakTable[Session, CellText] = WeakTable()
"""Cell of each session that was recorded by this kernel."""


@dataclass(frozen=True)
class CellError:
    """Exception that ended a cell: type, text, and line of the cell; 0 if unknown."""

    kind: str
    text: str
    line: int

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}".rstrip(".: ")


cell_errors: WeakTable[Session, CellError] = WeakTable()
"""Error of each session whose cell raised one that the tracer did not meet."""


_COMPILE_CALL = re.compile(
    r'engine\.compile\((?:f|\.\.\.), (?:backend="(?P<backend>\w+)"|options=\{"(?P<flag>\w+)": True\})\)'
)
"""A call in an advice that an option of ``%%compile`` replaces."""


def advice(session: Session, text: str) -> str:
    """Return an advice in the form of the run: for a cell, options of the magic."""
    if session not in cell_texts:
        return text
    return _COMPILE_CALL.sub(
        lambda m: (
            f"%%compile --backend {m['backend']}" if m["backend"] else f"%%compile --{m['flag'].replace('_', '-')}"
        ),
        text,
    )


@dataclass(frozen=True, order=True)
class Replacement:
    """New text for the characters from ``start`` to ``end`` of a cell's body."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class CellEdit:
    """Replacements in the body, and options to add to the ``%%compile`` line."""

    replacements: tuple[Replacement, ...] = ()
    options: tuple[str, ...] = ()

    def apply(self, cell: CellText) -> CellText:
        """Return the cell with texts replaced and options added."""
        body = cell.body
        for r in sorted(self.replacements, reverse=True):
            body = body[: r.start] + r.text + body[r.end :]
        added = [o for o in self.options if o not in cell.options.split()]
        return CellText(" ".join([cell.options, *added]).strip(), body, cell.file)


def combine(edits: Iterable[CellEdit]) -> CellEdit | None:
    """Return one edit that makes all changes; None if two of them change the same place."""
    edits = tuple(edits)
    replacements = sorted({r for e in edits for r in e.replacements})
    if any(a.end > b.start or (a.start == b.start and a.end != a.start) for a, b in itertools.pairwise(replacements)):
        return None
    return CellEdit(tuple(replacements), tuple(dict.fromkeys(o for e in edits for o in e.options)))


def is_valid(cell: CellText, edit: CellEdit) -> bool:
    """Return True if the edited cell is Python."""
    try:
        ast.parse(edit.apply(cell).body)
    except (SyntaxError, ValueError):
        return False
    return True


def edit_id(cell: CellText, edit: CellEdit) -> str:
    """Return a short id that is the same for edits with the same result."""
    return hashlib.sha256(edit.apply(cell).source.encode(errors="replace")).hexdigest()[:12]


def diff_rows(before: CellText, after: CellText) -> list[tuple[str, str]]:
    """Return the lines of a diff as (sign, text): "+", "-", " ", or "…" between two places."""
    return diff_lines(before.source, after.source)


def diff_lines(before: str, after: str) -> list[tuple[str, str]]:
    """Return the lines of a diff of two texts, as ``diff_rows`` does."""
    lines = list(difflib.unified_diff(before.split("\n"), after.split("\n"), n=CONTEXT_LINES, lineterm=""))
    rows = [("…", "") if line.startswith("@@") else (line[0], line[1:]) for line in lines[2:]]
    return rows[1:] if rows and rows[0][0] == "…" else rows


class CellTree:
    """Parsed body of a cell, with positions as offsets into its text."""

    def __init__(self, cell: CellText) -> None:
        self.cell = cell
        self.tree = ast.parse(cell.body)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._starts = [0]
        self._lines = cell.body.split("\n")
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a position; ``column`` counts bytes, as Python's positions do."""
        text = self._lines[line - 1]
        return self._starts[line - 1] + len(text.encode()[:column].decode(errors="replace"))

    def start(self, node: ast.expr | ast.stmt) -> int:
        """Return the offset of a node's first character."""
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        """Return the offset after a node's last character."""
        return self.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def text(self, node: ast.expr | ast.stmt) -> str:
        """Return the part of the cell's text that an AST node spans."""
        return self.cell.body[self.start(node) : self.end(node)]

    def at(self, span: Span | None, kinds: tuple[type[ast.AST], ...]) -> list[ast.AST]:
        """Return the nodes of some kinds that begin where a span begins, outermost first."""
        if span is None or span.file != self.cell.file:
            return []
        return [
            n
            for n in ast.walk(self.tree)
            if isinstance(n, kinds)
            and n.lineno == span.line  # type: ignore[attr-defined]
            and span.column in (-1, n.col_offset)  # type: ignore[attr-defined]
        ]

    def statement_of(self, node: ast.AST) -> ast.stmt | None:
        """Return the statement that evaluates an expression exactly once; None if there is none."""
        ancestor: ast.AST | None = node
        while ancestor is not None and not isinstance(ancestor, ast.stmt):
            ancestor = None if isinstance(ancestor, _DELAYED_OR_REPEATED) else self.parents.get(ancestor)
        if ancestor is None or isinstance(ancestor, (ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return None
        return ancestor if self.starts_line(ancestor) else None

    def starts_line(self, node: ast.stmt) -> bool:
        """Return True if only blanks are before a statement, so that a line can be put above it."""
        return not self._lines[node.lineno - 1].encode()[: node.col_offset].strip()

    def indent(self, node: ast.stmt) -> str:
        """Return the indentation of a statement that starts a line."""
        return self._lines[node.lineno - 1][: node.col_offset]

    def line_start(self, node: ast.stmt) -> int:
        """Return the offset of the line that a statement begins in."""
        return self._starts[node.lineno - 1]

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """All names that the cell mentions."""
        return frozenset(n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name)) | frozenset(
            n.arg for n in ast.walk(self.tree) if isinstance(n, ast.arg)
        )

    @functools.cached_property
    def top_level_names(self) -> frozenset[str]:
        """Names that the cell mentions outside of its functions and classes."""
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        statements = [s for s in self.tree.body if not isinstance(s, definitions)]
        return frozenset(n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name))


def argument_edit(
    tree: CellTree, calls: Iterable[Span], parameters: Mapping[str, int | None], name: str, code: str
) -> CellEdit | None:
    """Return the edit that applies a fix to one argument of the calls at some places.

    ``code`` is the fix in terms of the parameter ``name``: ``engine.mark_dynamic(x, 0)`` goes before the
    call, the right side of ``x = torch.tensor(x)`` replaces the argument. ``parameters`` has the position of each
    argument; None if it is passed by name only. Return None if a call is not found, or cannot be edited safely.
    """
    if name not in parameters:
        return None
    replacements: list[Replacement] = []
    for span in calls:
        call_replacements = _edit_call(tree, span, parameters[name], name, code)
        if call_replacements is None:
            return None
        replacements += call_replacements
    if not replacements:
        return None
    if (
        re.search(r"\bengine\.", code)
        and "engine" not in tree.names
        and not re.search(r"\bimport engine\b", tree.cell.body)
    ):
        replacements.append(Replacement(0, 0, "import engine\n"))
    return CellEdit(tuple(dict.fromkeys(replacements)))


def _edit_call(tree: CellTree, span: Span, position: int | None, name: str, code: str) -> list[Replacement] | None:
    calls = [n for n in tree.at(span, (ast.Call,)) if isinstance(n, ast.Call)]
    call = next((c for c in calls if c.end_lineno == span.end_line and c.end_col_offset == span.end_column), None)
    if call is None and len(calls) == 1:
        call = calls[0]
    if call is None or any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    argument = (
        call.args[position]
        if position is not None and position < len(call.args)
        else next((k.value for k in call.keywords if k.arg == name), None)
    )
    if argument is None:
        return None
    assigned = re.fullmatch(rf"{re.escape(name)} = (.*)", code)
    if assigned is not None and "\n" not in code:
        new = re.sub(rf"\b{re.escape(name)}\b", lambda _: _operand_text(tree, argument), assigned.group(1))
        return [Replacement(tree.start(argument), tree.end(argument), new)]
    return _edit_before_call(tree, call, argument, name, code)


def _operand_text(tree: CellTree, node: ast.expr) -> str:
    text = tree.text(node)
    return text if isinstance(node, (*_SIMPLE, ast.Call, ast.Subscript)) else f"({text})"


def _edit_before_call(
    tree: CellTree, call: ast.Call, argument: ast.expr, name: str, code: str
) -> list[Replacement] | None:
    """Put statements about an argument above the call; give it a name first if it has none."""
    statement = tree.statement_of(call)
    if statement is None or re.match(r"\w+ = |with ", code):
        return None
    indent, start = tree.indent(statement), tree.line_start(statement)
    held = tree.text(argument)
    first = ""
    moved: list[Replacement] = []
    if not isinstance(argument, (ast.Name, ast.Attribute)):
        others = [a for a in (*call.args, *(k.value for k in call.keywords)) if a is not argument]
        if name in tree.top_level_names or not all(isinstance(o, _SIMPLE) for o in others) or "\n" in held:
            return None
        first, held = f"{indent}{name} = {held}\n", name
        moved = [Replacement(tree.start(argument), tree.end(argument), name)]
    lines = "".join(f"{indent}{line}\n" for line in re.sub(rf"\b{re.escape(name)}\b", held, code).split("\n"))
    return [Replacement(start, start, first + lines), *moved]


# Graph breaks.


def break_edit(tree: CellTree, kind: str, span: Span | None, context: str) -> tuple[CellEdit, str] | None:
    """Return the edit of the user's function that avoids a graph break, and what it does.

    ``context``: the value that broke the graph, as the break's record has it.
    """
    if kind in ("tensor-jump", "data-dependent-branching"):
        return next(_where_edits(tree, span, is_item=".item()" in context), None)
    for node in tree.at(span, (ast.Expr,)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _is_output(node.value):
            return _remove_statement(
                tree, node
            ), f"Remove {tree.text(node.value.func)}(), or call it after the compiled function."
    return None


def _is_output(call: ast.Call) -> bool:
    """Return True for a call whose only purpose is output."""
    name = ast.unparse(call.func)
    return name in ("print", "pprint", "display", "warnings.warn", "breakpoint") or bool(
        re.fullmatch(r"(log|logger|logging|_log|_logger)\.(debug|info|warning|error|critical|log)", name)
    )


def _remove_statement(tree: CellTree, node: ast.stmt) -> CellEdit:
    """Return the edit that removes a statement with its line, or puts ``pass`` in its place."""
    parent = tree.parents[node]
    blocks = [
        b for f in ("body", "orelse", "finalbody") if isinstance(b := getattr(parent, f, None), list) and node in b
    ]
    start, end = tree.start(node), tree.end(node)
    line_end = tree.cell.body.find("\n", end)
    line_end = len(tree.cell.body) if line_end < 0 else line_end
    rest = tree.cell.body[end:line_end].strip()
    if any(len(b) == 1 for b in blocks) or not tree.starts_line(node) or (rest and not rest.startswith("#")):
        return CellEdit((Replacement(start, end, "pass"),))
    return CellEdit((Replacement(tree.line_start(node), min(line_end + 1, len(tree.cell.body)), ""),))


def _where_edits(tree: CellTree, span: Span | None, *, is_item: bool) -> Iterator[tuple[CellEdit, str]]:
    """Yield the edits that compute both outcomes and select with ``torch.where``.

    ``is_item``: the condition is computed from a number that ``.item()`` returned, perhaps in a caller.
    """
    text = "Compute both outcomes and select with torch.where."
    conditions = tree.at(span, (ast.expr,))
    for node in ast.walk(tree.tree):
        if not isinstance(node, (ast.If, ast.IfExp)) or not any(node.test is c for c in conditions):
            continue
        if isinstance(node.test, ast.BoolOp) or _is_number(tree, node.test, node):
            continue
        numbers = _item_assignments(tree, node)
        if is_item and not numbers and not any(map(_is_item_call, ast.walk(node.test))):
            continue  # torch.where takes no bool
        if numbers:
            text = f"Keep {' and '.join(numbers)} a tensor, compute both outcomes and select with torch.where."
        kept = tuple(_without_item(tree, n.value) for n in numbers.values())
        if isinstance(node, ast.IfExp):
            new = f"torch.where({', '.join(_tensor_text(tree, n) for n in (node.test, node.body, node.orelse))})"
            yield CellEdit((*kept, Replacement(tree.start(node), tree.end(node), new))), text
        elif (replacement := _where_statement(tree, node)) is not None:
            yield CellEdit((*kept, replacement)), text


def _is_item_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item"


def _is_number(tree: CellTree, test: ast.expr, node: ast.AST) -> bool:
    """Return True if a condition compares a number that ``int()`` or ``len()`` returned."""
    names = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
    values = (
        n.value
        for n in _assignments_before(tree, node)
        if isinstance(n.targets[0], ast.Name) and n.targets[0].id in names
    )
    calls = (n for value in (test, *values) for n in ast.walk(value) if isinstance(n, ast.Call))
    return any(isinstance(c.func, ast.Name) and c.func.id in ("int", "float", "bool", "len") for c in calls)


def _assignments_before(tree: CellTree, node: ast.AST) -> list[ast.Assign]:
    """Return the assignments of a node's function before the node."""
    function: ast.AST | None = node
    while function is not None and not isinstance(function, (ast.FunctionDef, ast.Lambda)):
        function = tree.parents.get(function)
    line = getattr(node, "lineno", 0)
    return [n for n in ast.walk(function or tree.tree) if isinstance(n, ast.Assign) and n.lineno < line]


def _item_assignments(tree: CellTree, node: ast.If | ast.IfExp) -> dict[str, ast.Assign]:
    """Return the assignments ``n = t.item()`` that a branch's condition is computed from."""
    assigned = _assignments_before(tree, node)
    waiting: list[ast.expr] = [node.test]
    assignments: dict[str, ast.Assign] = {}
    while waiting:
        names = {n.id for n in ast.walk(waiting.pop()) if isinstance(n, ast.Name)}
        for n in [n for n in assigned if isinstance(n.targets[0], ast.Name) and n.targets[0].id in names]:
            assigned.remove(n)
            if _is_item_call(n.value):
                assignments[tree.text(n.targets[0])] = n
            else:
                waiting.append(n.value)
    return assignments


def _without_item(tree: CellTree, call: ast.AST) -> Replacement:
    """Return the replacement that leaves a tensor where ``.item()`` gave its number."""
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Attribute)
    return Replacement(tree.end(call.func.value), tree.end(call), "")


def _tensor_text(tree: CellTree, node: ast.expr) -> str:
    """Return the text of an expression without the calls of ``item()`` in it."""
    start, text = tree.start(node), tree.text(node)
    for cut in sorted((_without_item(tree, c) for c in ast.walk(node) if _is_item_call(c)), reverse=True):
        text = text[: cut.start - start] + text[cut.end - start :]
    return text


def _where_statement(tree: CellTree, node: ast.If) -> Replacement | None:
    then, end = node.body, tree.end(node)
    otherwise = node.orelse
    if len(then) != 1 or len(otherwise) > 1:
        return None
    a: ast.stmt = then[0]
    b: ast.stmt | None = otherwise[0] if otherwise else None
    if isinstance(a, ast.Return) and b is None:
        block = next((v for _, v in ast.iter_fields(tree.parents[node]) if isinstance(v, list) and node in v), [])
        after = block[block.index(node) + 1 :][:1] if node in block else []
        b = after[0] if after else None
        end = tree.end(b) if b is not None else end
    if isinstance(a, ast.Return) and isinstance(b, ast.Return) and a.value and b.value:
        head, values = "return ", (_tensor_text(tree, a.value), _tensor_text(tree, b.value))
    elif isinstance(a, ast.Assign) and len(a.targets) == 1 and isinstance(a.targets[0], ast.Name):
        name = a.targets[0].id
        if b is None:
            other = name
        elif isinstance(b, ast.Assign) and ast.dump(b.targets[0]) == ast.dump(a.targets[0]) and len(b.targets) == 1:
            other = _tensor_text(tree, b.value)
        else:
            return None
        head, values = f"{name} = ", (_tensor_text(tree, a.value), other)
    else:
        return None
    test = node.test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, values = test.operand, (values[1], values[0])
    if any("\n" in v for v in values):
        return None
    return Replacement(
        tree.start(node), end, f"{head}torch.where({_tensor_text(tree, test)}, {values[0]}, {values[1]})"
    )
