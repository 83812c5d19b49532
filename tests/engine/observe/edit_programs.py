"""Programs of ``tests/programs`` with one edit, or in another spelling."""

from __future__ import annotations

import ast
import copy
import linecache
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

import engine
from engine.records.session import Session
from engine.torch_private.pytree import tree_leaves
from tests.programs import PROGRAMS_FOLDER, program_of

STEMS = (
    "views_and_indexing",
    "arithmetic",
    "reductions",
    "output_strides",
    "tensor_metadata_and_dtypes",
    "modules",
    "small_models",
)
SWAPPED_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
SWAPPED_NAMES = {
    **dict(zip("sin cos exp amax amin sum relu tanh cumsum argmax eq lt le".split(), "cos sin tanh amin amax mean tanh relu cumprod argmin ne le lt".split(), strict=True)),
    "float32": "float64", "float64": "float16", "int64": "int32", "int32": "int64", "float16": "bfloat16", "bfloat16": "float64",
}  # fmt: skip
"""Operators and dtypes by name, each with another one that takes the same arguments."""


class Edit(ast.NodeTransformer):
    """Edits the ``site``-th place that can be edited; ``sites`` counts them."""

    def __init__(self, site: int = -1) -> None:
        self.site, self.sites = site, 0

    def _is_site(self) -> bool:
        self.sites += 1
        return self.sites - 1 == self.site

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Edit the body: decorators and defaults make the inputs."""
        node.body = [self.visit(s) for s in node.body]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Edit the methods and the class attributes."""
        node.body = [self.visit(s) for s in node.body]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        changed = {bool: lambda v: not v, int: lambda v: v + 1, float: lambda v: v + 0.5}.get(type(node.value))
        return ast.Constant(changed(node.value)) if changed and self._is_site() else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if type(node.op) in SWAPPED_OPERATORS and self._is_site():
            node.op = SWAPPED_OPERATORS[type(node.op)]()
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr in SWAPPED_NAMES and self._is_site():
            node.attr = SWAPPED_NAMES[node.attr]
        return node


class Respell(ast.NodeTransformer):
    """Spells expressions otherwise by chance: names, operators, temporaries."""

    def __init__(self, draw: random.Random, names: set[str]) -> None:
        self.draw, self.names, self.count = draw, names, 0

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(f"{node.id}_renamed", node.ctx) if node.id in self.names else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        spelled = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.Pow: "pow"}.get(
            type(node.op)
        )
        if spelled and self.draw.random() < 0.5:
            return ast.parse(
                f"spelled_operator.{spelled}({ast.unparse(node.left)}, {ast.unparse(node.right)})", mode="eval"
            ).body
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        self.draw.shuffle(node.keywords) if all(k.arg for k in node.keywords) else None
        return node

    def visit_Return(self, node: ast.Return) -> Any:
        self.generic_visit(node)
        if node.value is None or self.draw.random() < 0.5:
            return node
        self.count += 1
        name = f"result_{self.count}"
        return [ast.Assign([ast.Name(name, ast.Store())], node.value), ast.Return(ast.Name(name, ast.Load()))]


@dataclass
class Variant:
    """A program as written, or changed: its text, and how it is called."""

    name: str
    text: str
    attribute: str

    def load(self) -> Any:
        """Execute the text and return the program's target."""
        file = f"<variant {self.name}>"
        linecache.cache[file] = (len(self.text), None, self.text.splitlines(keepends=True), file)
        module = ModuleType(f"variant_{self.attribute}")
        sys.modules[module.__name__] = module
        exec(compile(self.text, file, "exec"), module.__dict__)
        return module.__dict__[self.attribute]

    def run(self, compiled: Callable[[Any], Any]) -> list[Any]:
        """Call the program once with seeded inputs; return the tensors it returns and writes."""
        target = self.load()
        found = program_of(target)
        assert found is not None
        torch.manual_seed(0)
        subject = seeded_module(target) if isinstance(target, type) else target
        torch.manual_seed(1)
        arguments = found.calls[0]()
        args, kwargs = (arguments.args, arguments.kwargs) if hasattr(arguments, "args") else (arguments, {})
        torch.manual_seed(2)
        result = compiled(subject)(*args, **kwargs)
        return [t.detach().clone() if isinstance(t, torch.Tensor) else t for t in tree_leaves((result, args))]

    def record(self) -> Session:
        """Return the session of one compiled call."""
        engine.reset()
        with engine.record() as session:
            self.run(lambda subject: engine.compile(subject, backend="eager"))
        return session


def seeded_module(made: type) -> torch.nn.Module:
    """Return a module whose tensors do not depend on its constructor.

    Initial values are data, not part of the graph.
    """
    module: torch.nn.Module = made().eval()
    attributes = (v for m in module.modules() for v in vars(m).values() if isinstance(v, torch.Tensor))
    for tensor in (*module.parameters(), *module.buffers(), *attributes):
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.data.copy_(torch.linspace(0.1, 1, max(tensor.numel(), 1)).reshape(tensor.shape))
    return module


def programs() -> Iterator[tuple[str, ast.Module, int]]:
    """Yield the name of each program with its file's tree and its place in it."""
    for stem in STEMS:
        (file,) = PROGRAMS_FOLDER.glob(f"*/{stem}.py")
        tree = ast.parse(file.read_text())
        for i, node in enumerate(tree.body):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and any(
                "program" in ast.unparse(d) for d in node.decorator_list
            ):
                yield node.name, tree, i


def original(name: str, tree: ast.Module) -> Variant:
    """Return the program as written, in the formatting of a variant."""
    return Variant(name, ast.unparse(tree), name)


def edited(name: str, tree: ast.Module, place: int, draw: random.Random) -> Variant | None:
    """Return the program with one edit; None if it has nothing to edit."""
    counter = Edit()
    counter.visit(copy.deepcopy(tree).body[place])
    if not counter.sites:
        return None
    changed = copy.deepcopy(tree)
    Edit(draw.randrange(counter.sites)).visit(changed.body[place])
    return Variant(name, ast.unparse(ast.fix_missing_locations(changed)), name)


def respelled(name: str, tree: ast.Module, place: int, draw: random.Random) -> Variant:
    """Return the program in another spelling."""
    changed = copy.deepcopy(tree)
    definition: Any = changed.body[place]
    functions = [n for n in ast.walk(definition) if isinstance(n, ast.FunctionDef)]
    is_nested = len(functions) != 1 or any(
        isinstance(n, (ast.Lambda, ast.Global, ast.Nonlocal, ast.ListComp, ast.GeneratorExp))
        for n in ast.walk(definition)
    )
    stored = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names = set() if is_nested else stored
    for function in functions:
        assert function.body
        function.body = [s for old in function.body for s in _as_list(Respell(draw, names).visit(old))]
        function.body.insert(1, ast.parse("unused = 1").body[0])
    changed.body.insert(1, ast.parse("import operator as spelled_operator").body[0])
    return Variant(name, ast.unparse(ast.fix_missing_locations(changed)), name)


def _as_list(found: Any) -> list[ast.stmt]:
    return found if isinstance(found, list) else [found]


def have_equal_tensors(first: list[Any], second: list[Any]) -> bool:
    """Return True if both runs have tensors of equal types and values."""
    a, b = ([t for t in side if isinstance(t, torch.Tensor)] for side in (first, second))
    return len(a) == len(b) and all(map(_is_equal, a, b))


def _is_equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    if (first.dtype, first.shape, first.layout) != (second.dtype, second.shape, second.layout):
        return False
    if first.is_meta:
        return True
    if first.layout is not torch.strided or first.is_quantized:
        return repr(first) == repr(second)
    return torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
