"""Facts about operators come from one table, not from parts of their names."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

from tests import code_structure
from tests.syntax_trees import walk

ROOT = pathlib.Path(__file__).parents[1]

PARTIAL_TESTS = frozenset(
    ("startswith", "endswith", "removeprefix", "removesuffix", "strip", "lstrip", "rstrip", "find", "index", "count")
)
"""Methods of strings that look at a part of a name."""
NAMING = (ast.Assign, ast.NamedExpr, ast.Call, ast.Compare)
TARGETS = frozenset(("target", "op", "overload", "func", "operator", "packet", "schema", "_schema"))
NAMES = frozenset(("__name__", "__qualname__", "_opname", "_overloadname", "_qualified_op_name"))

EXCEPTIONS = {
    ("engine/ir/introspection/operator_facts.py", "facts_of_overload"): "the table: ATen ends in-place forms with _",
    ("engine/graph/format_node.py", "_qualified"): "shows a target as Python",
    (
        "engine/trace/variables/higher_order/control_flow.py",
        "_emit_higher_order_node",
    ): "the node of torch's map_impl is named for the function that the user called",
    (
        "engine/graph/fake_tensors/eager_stride_rules.py",
        "_operand_arguments",
    ): "ATen names the overloads whose number becomes a tensor; schemas do not tell these numbers from others",
}
"""Functions that may look at parts of operators' names, each with the reason."""


def _is_operator_name(node: ast.AST) -> bool:
    """Return True if an expression is the name of an operator."""
    match node:
        case ast.Call(func=ast.Name(id="str"), args=[of]):
            return _is_target(of)
        case ast.Call(func=ast.Name(id="getattr"), args=[of, ast.Constant(value=attribute), *_]):
            return attribute in NAMES and _is_target(of)
        case ast.Call(func=ast.Name(id="op_name" | "_packet_name" | "_op_name")):
            return True
        case ast.Attribute(attr="name", value=ast.Attribute(attr="_schema") | ast.Name(id="schema")):
            return True
        case ast.Attribute(value=of, attr=attribute):
            return attribute in NAMES and _is_target(of)
    return False


def _is_target(node: ast.AST) -> bool:
    """Return True if an expression is an operator, or the target of a node."""
    return (isinstance(node, ast.Attribute) and node.attr in TARGETS) or (
        isinstance(node, ast.Name) and node.id in TARGETS
    )


def _text_of(value: ast.AST, known: set[str]) -> bool:
    """Return True if an expression's value is an operator's name, or a part of one."""
    match value:
        case ast.IfExp(body=body, orelse=orelse):
            return _text_of(body, known) or _text_of(orelse, known)
        case ast.BoolOp(values=values):
            return any(_text_of(v, known) for v in values)
        case ast.Subscript(value=of) | ast.Call(func=ast.Attribute(value=of)) if not _is_operator_name(value):
            return _text_of(of, known)
        case ast.Call(func=ast.Name(id="str"), args=[of]) if not _is_operator_name(value):
            return _text_of(of, known)
        case ast.Name(id=id):
            return id in known
    return _is_operator_name(value)


def partial_name_tests(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the function and line of each test of a part of an operator's name."""
    for function in walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        known: set[str] = set()
        nodes = [node for node in walk(function) if isinstance(node, NAMING)]
        for node in nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=id)], value=value) if _text_of(value, known):
                    known.add(id)
                case ast.NamedExpr(target=ast.Name(id=id), value=value) if _text_of(value, known):
                    known.add(id)
        for node in nodes:
            match node:
                case ast.Call(func=ast.Attribute(value=of, attr=method)) if method in PARTIAL_TESTS:
                    if _text_of(of, known):
                        yield function.name, node.lineno
                case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[of]) if _text_of(of, known):
                    yield function.name, node.lineno
                case ast.Compare(left=ast.Subscript(value=of, slice=ast.Slice())) if _text_of(of, known):
                    yield function.name, node.lineno


def test_no_part_of_an_operators_name_is_tested() -> None:
    """Modules query the operator fact table and compare whole names; exceptions are needed.

    Each exception is needed.
    """
    found: dict[tuple[str, str], int] = {}
    for path, tree in code_structure.parse(ROOT).items():
        for name, line in partial_name_tests(tree):
            found[path, name] = line
    assert {place: line for place, line in found.items() if place not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) <= found.keys()


TABLED_FACTS = frozenset(("is_mutable", "CompositeImplicitAutograd"))
"""What schemas and dispatch keys say that only the table reads."""


def test_facts_are_read_from_the_table() -> None:
    """Code asks the table if an operator writes or is composite, not its schema or kernels."""
    found = {
        (path, node.attr)
        for path, tree in code_structure.parse(ROOT).items()
        for node in walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in TABLED_FACTS
        if ast.unparse(node.value).endswith(("schema", "DispatchKey"))
    }
    assert found == {("engine/ir/introspection/operator_facts.py", "CompositeImplicitAutograd")}


@pytest.mark.parametrize(
    "test",
    [
        'getattr(node.target, "__name__", "").startswith("quantize_per_")',
        '"unsafe" in str(node.target)',
        'node.target.__name__.endswith("_")',
        'target._schema.name.removeprefix("aten::") == "add"',
        '(name := str(node.target) if method else node.target.__name__) and name[:1] == "i"',
    ],
)
def test_partial_tests_are_found(test: str) -> None:
    """Substring, prefix and suffix tests are found, directly and through a variable."""
    tree = ast.parse(f"def f(node, target):\n    return {test}\n")
    assert list(partial_name_tests(tree)) == [("f", 2)]


def test_whole_names_may_be_compared() -> None:
    """A comparison with a whole name, and membership in a set of names, are allowed."""
    tree = ast.parse("def f(node):\n    name = node.target.__name__\n    return name == 'add' or name in NAMES\n")
    assert list(partial_name_tests(tree)) == []
