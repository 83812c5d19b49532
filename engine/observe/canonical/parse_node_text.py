"""Reads the text of a node: its call as a Python expression over nodes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.observe.canonical.call_arguments import (
    ArgumentValue,
    CallValue,
    ConstantValue,
    ListValue,
    NodeValue,
    SliceValue,
)
from engine.observe.canonical.calls import NONE, Call

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floor_divide", ast.Mod: "remainder",
    ast.Pow: "pow", ast.MatMult: "matmul", ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or", ast.BitXor: "bitwise_xor",
    ast.LShift: "bitwise_left_shift", ast.RShift: "bitwise_right_shift",
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Is: "is", ast.IsNot: "is not",
    ast.USub: "neg", ast.UAdd: "positive", ast.Invert: "bitwise_not", ast.Not: "not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_AUGMENTED = re.compile(r"\((\w+) (\*\*|//|[-+*/%@&|^]|<<|>>)= (.*)\)$")
_STATEMENT = re.compile(r"^\w+ = ")
_FREED = re.compile(r";\s+\w+( = \w+)* = None.*$")
_TORCH_NAMESPACES = {"", *"aten prims operator F nn _C special functional Tensor _VariableFunctions".split()}
"""Namespaces whose functions are torch's own operators, by their last name."""


def read_call(text: str, node: Callable[[str], NodeValue | None]) -> Call | None:
    """Return the call that a node's line of text makes; None if the text is no expression.

    ``node`` returns the node of a name, or None if the name is no node.
    """
    code = _FREED.sub("", _STATEMENT.sub("", text.strip(), count=1))
    in_place = _AUGMENTED.match(code)
    code = f"{in_place[1]} {in_place[2]} {in_place[3]}" if in_place else code
    try:
        tree = ast.parse(code).body[0]
    except (SyntaxError, ValueError, RecursionError, MemoryError, IndexError):
        return None
    call: Call = _CallReader(node).visit(tree)
    return replace(call, name=call.name + "_") if in_place else call


class _Reader(ast.NodeVisitor):
    """Base of the two readers: which names are nodes."""

    def __init__(self, node: Callable[[str], NodeValue | None]) -> None:
        self.node = node


class _CallReader(_Reader):
    """Reads a statement's right side as one call; a value alone is a constant."""

    def value(self, tree: ast.expr) -> ArgumentValue:
        value: ArgumentValue = _ValueReader(self.node).visit(tree)
        return value

    def generic_visit(self, tree: Any) -> Call:
        return Call("constant", (ConstantValue(ast.unparse(tree)),))

    def visit_Expr(self, tree: ast.Expr) -> Call:
        call: Call = self.visit(tree.value)
        return call

    def visit_Assign(self, tree: ast.Assign) -> Call:
        """Read ``x[index] = value``."""
        target: Any = tree.targets[0]
        if not hasattr(target, "slice"):
            return self.generic_visit(tree)
        return Call("setitem", (self.value(target.value), self.value(target.slice), self.value(tree.value)))

    def visit_Call(self, tree: ast.Call) -> Call:
        args = tuple(map(self.value, tree.args))
        kwargs = {k.arg or "**": self.value(k.value) for k in tree.keywords}
        function: Any = tree.func
        owner = _OwnerFinder(self.node).visit(function.value) if hasattr(function, "attr") else None
        if owner is not None:
            return Call(function.attr, (self.value(owner), *args), kwargs, is_method=True)
        path = ast.unparse(tree.func).removeprefix("torch.ops.").removeprefix("torch.")
        namespace, _, rest = path.partition(".") if "." in path else ("", "", path)
        if namespace not in _TORCH_NAMESPACES:
            return Call(path.removesuffix(".default"), args, kwargs)
        name, _, overload = rest.partition(".")
        if namespace == "aten":
            return Call(name, args, kwargs, overload)
        return Call(name if namespace == "prims" else rest.rpartition(".")[2], args, kwargs)

    def visit_BinOp(self, tree: ast.BinOp) -> Call:
        return Call(_OPERATORS[type(tree.op)], (self.value(tree.left), self.value(tree.right)))

    def visit_Compare(self, tree: ast.Compare) -> Call:
        name = " ".join(_OPERATORS[type(op)] for op in tree.ops)
        return Call(name, (self.value(tree.left), *map(self.value, tree.comparators)))

    def visit_UnaryOp(self, tree: ast.UnaryOp) -> Call:
        return Call(_OPERATORS[type(tree.op)], (self.value(tree.operand),))

    def visit_Subscript(self, tree: ast.Subscript) -> Call:
        return Call("getitem", (self.value(tree.value), self.value(tree.slice)))

    def visit_Attribute(self, tree: ast.Attribute) -> Call:
        owner = _OwnerFinder(self.node).visit(tree.value)
        return Call(tree.attr, (self.value(owner),)) if owner is not None else self.generic_visit(tree)


class _OwnerFinder(_Reader):
    """Returns the expression of which an attribute is named, or None if it is a namespace."""

    def visit_Name(self, tree: ast.Name) -> ast.expr | None:
        return tree if self.node(tree.id) is not None else None

    def visit_Attribute(self, tree: ast.Attribute) -> None:
        return None

    def generic_visit(self, tree: Any) -> ast.expr:
        expression: ast.expr = tree
        return expression


class _ValueReader(_Reader):
    def visit_Constant(self, tree: ast.Constant) -> ArgumentValue:
        return ConstantValue(tree.value)

    def visit_Name(self, tree: ast.Name) -> ArgumentValue:
        return self.node(tree.id) or ConstantValue(... if tree.id == "Ellipsis" else tree.id)

    def visit_Tuple(self, tree: ast.Tuple) -> ArgumentValue:
        return ListValue(tuple(map(self.visit, tree.elts)))

    def visit_List(self, tree: ast.List) -> ArgumentValue:
        return ListValue(tuple(map(self.visit, tree.elts)))

    def visit_Slice(self, tree: ast.Slice) -> ArgumentValue:
        return SliceValue(*(NONE if part is None else self.visit(part) for part in (tree.lower, tree.upper, tree.step)))

    def visit_Dict(self, tree: ast.Dict) -> ArgumentValue:
        keys = [NONE if k is None else self.visit(k) for k in tree.keys]
        return ListValue(tuple(ListValue((k, self.visit(v))) for k, v in zip(keys, tree.values, strict=True)))

    def visit_Attribute(self, tree: ast.Attribute) -> ArgumentValue:
        return ConstantValue(ast.unparse(tree).removeprefix("torch."))

    def visit_UnaryOp(self, tree: ast.UnaryOp) -> ArgumentValue:
        operand = self.visit(tree.operand)
        if _OPERATORS[type(tree.op)] == "neg" and operand.accepts("Scalar") and hasattr(operand, "value"):
            return ConstantValue(-operand.value)
        return self.generic_visit(tree)

    def visit_Call(self, tree: ast.Call) -> ArgumentValue:
        name = ast.unparse(tree.func)
        if name == "slice":
            bounds = [*map(self.visit, tree.args), NONE, NONE]
            return SliceValue(*bounds[:3])
        if name == "device":
            parts = [*map(self.visit, tree.args), *(self.visit(k.value) for k in tree.keywords)]
            return ConstantValue(":".join(str(p.value) for p in parts))
        return self.generic_visit(tree)

    def generic_visit(self, tree: Any) -> ArgumentValue:
        call = _CallReader(self.node).visit(tree)
        if call.name == "constant":
            return CallValue(ast.unparse(tree))
        return CallValue(call.name, (*call.args, *call.kwargs.values()))
