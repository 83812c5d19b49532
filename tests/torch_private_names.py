"""Private names of torch outside of ``engine/torch_private``, found in syntax trees.

A name is private if a part of it begins with an underscore (``torch._C``, ``torch.nn.Module._call_impl``), or if it is in
``torch.fx.experimental``. Operators (``torch.ops``) are named by ATen's schema and are not private.

import-linter cannot see names inside of torch, nor attributes; this looks at imports, attribute chains through any alias, names
given to ``getattr`` and its kin, keys of ``vars``, and modules that are loaded or looked up by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.syntax_trees import walk

PACKAGE = "engine/torch_private/"

TESTS_MAY = {
    "tests/programs/": "programs call what users and libraries call",
    "tests/bench/": "stock torch.compile is what is compared with",
    "tests/notebooks/test_stock_claims.py": "stock torch.compile is what the claims are about",
    "tests/torch_internals.py": "names that only tests use",
}
"""Tests that may use any private name, each with the reason."""

CALLED_BY_LIBRARIES = {
    "torch.Tensor._make_wrapper_subclass": "constructors of tensor subclasses",
    "torch._C.DisableTorchFunctionSubclass": "methods of tensor subclasses",
    "torch._C._set_grad_enabled": "code that torch.fx generates",
    "torch._C._current_autograd_node": "hooks of autograd",
    "torch._C._current_graph_task_id": "hooks of autograd",
    "torch._C._will_engine_execute_node": "hooks of autograd",
    "torch._C._dispatch_tls_is_dispatch_key_included": "implementations of operators",
    "torch._C.DispatchKey.PythonDispatcher": "implementations of operators",
    "torch.autograd.Variable._execution_engine.queue_callback": "hooks of FSDP and DDP",
    "torch.distributed._functional_collectives": "models for several processes",
    "torch._check": "models with sizes from data; documented",
    "torch._foreach_": "optimizers",
    "torch._fused_": "optimizers",
    "torch._amp_": "gradient scalers",
    "torch._neg_view": "views of conjugated tensors",
}
"""Name prefixes that tests may write in code to compile, each with its callers elsewhere."""

NAME_READERS = frozenset(("getattr", "hasattr", "setattr", "delattr"))
MODULE_READERS = frozenset(("import_module", "__import__", "find_spec"))
NAMING = (
    *(ast.Import, ast.ImportFrom, ast.Call, ast.Attribute, ast.Subscript),
    *(ast.Assign, ast.AnnAssign, ast.NamedExpr),
)
"""Nodes that bring in a name or give it another one."""


class Use(NamedTuple):
    """A private name and the line that uses it."""

    line: int
    name: str


def is_private(name: str) -> bool:
    """Return True if a dotted name is private to torch."""
    root, *parts = name.split(".")
    if root != "torch" or parts[:1] == ["ops"]:
        return False
    return parts[:2] == ["fx", "experimental"] or any(p.startswith("_") and not p.startswith("__") for p in parts)


def find_uses(tree: ast.Module) -> Iterator[Use]:
    """Yield the private names that a module uses, outermost attribute first."""
    nodes = [node for node in walk(tree) if isinstance(node, NAMING)]
    aliases = _aliases(nodes)
    inner: set[int] = set()
    for node in nodes:
        if id(node) in inner:
            continue
        for name in _names_of(node, aliases):
            if is_private(name):
                yield Use(getattr(node, "lineno", 1), name)
                inner.update(map(id, walk(node)))
                break


def _aliases(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return what local names stand for in torch: imports and assigned attribute chains."""
    found = {"torch": "torch"}
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update({a.asname: a.name for a in node.names if a.asname and _is_torch(a.name)})
        elif isinstance(node, ast.ImportFrom) and node.module and _is_torch(node.module):
            found.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if (name := _dotted(node.value, found)) and len(targets) == 1 and isinstance(targets[0], ast.Name):
                found.setdefault(targets[0].id, name)
    return found


def _is_torch(module: str) -> bool:
    return module == "torch" or module.startswith("torch.")


def _dotted(node: ast.AST, aliases: Mapping[str, str]) -> str:
    """Return the name that an expression stands for, or "" if it is not rooted in torch."""
    match node:
        case ast.Name(id=id):
            return aliases.get(id, "")
        case ast.Attribute(value=value, attr=attr):
            return f"{base}.{attr}" if (base := _dotted(value, aliases)) else ""
        case ast.Call(func=ast.Name(id="getattr"), args=[of, name, *_]):
            return f"{base}.{_text(name)}" if (base := _dotted(of, aliases)) and _text(name) else ""
        case ast.Subscript(value=ast.Call(func=ast.Name(id="vars"), args=[of]), slice=key):
            return f"{base}.{_text(key)}" if (base := _dotted(of, aliases)) and _text(key) else ""
        case ast.Subscript(value=ast.Attribute(value=of, attr="__dict__"), slice=key):
            return f"{base}.{_text(key)}" if (base := _dotted(of, aliases)) and _text(key) else ""
        case ast.Subscript(value=ast.Attribute(attr="modules"), slice=key) if _is_torch(_text(key)):
            return _text(key)
    return ""


def _text(node: ast.AST) -> str:
    """Return a constant string, or the constant beginning of a formatted one."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=[ast.Constant(value=str() as text), *_]):
            return text
    return ""


def _names_of(node: ast.AST, aliases: Mapping[str, str]) -> Iterator[str]:
    """Yield the names that a node brings in."""
    match node:
        case ast.Import(names=names):
            yield from (a.name for a in names)
        case ast.ImportFrom(module=str() as module, names=names, level=0):
            yield from (f"{module}.{a.name}" for a in names)
        case ast.Call(func=ast.Name(id=id), args=[of, name, *_]) if id in NAME_READERS:
            if base := _dotted(of, aliases):
                yield f"{base}.{_text(name)}" if _text(name) else base
        case ast.Call(func=ast.Name(id=id) | ast.Attribute(attr=id), args=[name, *_]) if id in MODULE_READERS:
            yield _text(name)
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="modules"), attr="get"), args=[name, *_]):
            yield _text(name)
        case ast.Attribute() | ast.Subscript():
            yield _dotted(node, aliases)


def uses_outside(path: str, tree: ast.Module) -> Iterator[Use]:
    """Yield the private names that the module at a path below the root uses and may not."""
    if not path.startswith((PACKAGE, *TESTS_MAY)):
        for use in find_uses(tree):
            if not (path.startswith("tests/") and use.name.startswith(tuple(CALLED_BY_LIBRARIES))):
                yield use
