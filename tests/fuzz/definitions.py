"""Functions, classes and globals that random programs use, each only where named."""

from __future__ import annotations

import ast

DEFINITIONS = '''
import contextlib
import copy
import dataclasses
import functools
import itertools
import math
import random
import threading
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.func import grad, jvp, vmap
from torch.utils.checkpoint import checkpoint

from tests.programs import program

torch.manual_seed(0)


class Custom(Exception):
    """An exception of the program's own."""


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(eq=False)
class Box:
    value: Any
    count: int = 0
    items: list = dataclasses.field(default_factory=list)

    @property
    def total(self):
        return self.count + len(self.items)

    @total.setter
    def total(self, number):
        self.count = number - len(self.items)

    def scaled(self, by):
        self.count += 1
        return self.value * by


class Tracked:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append(kind.__name__ if kind else "leave")
        return kind is ValueError


@contextlib.contextmanager
def managed(log, n):
    log.append(("open", n))
    try:
        yield n
    finally:
        log.append("closed")


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, by):
        ctx.by = by
        return t * by

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.by + 1, None


class Tagged(torch.Tensor):
    def plus(self, number):
        return (self + number).as_subclass(torch.Tensor)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(1))
        self.drop = torch.nn.Dropout(0.3)
        self.register_buffer("steps", torch.zeros(()))
        self.eval()

    def forward(self, t):
        if self.training:
            self.steps += 1
        return self.drop(t * self.weight) + self.steps


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def helper(t, *numbers, scale=1, **others):
    return t * scale + sum(numbers) + len(others)


def double(t, bias=0):
    return t * 2 + bias


def linear_rows(t):
    return F.linear(t, torch.eye(t.shape[1]) * 0.5)


def net_or_double(t):
    return net(t.float()) if t.shape[0] > 2 else double(t)


def produce(t, count):
    for i in range(count):
        yield t + i
        t = t * 0.5


def echo():
    value = None
    while True:
        value = (yield value)


def engine_break(number):
    torch._dynamo.graph_break()
    return number


HELD = Box(torch.ones(1, 1))
BUFFER = torch.zeros(2)
LEAF = torch.full((1,), 0.5, requires_grad=True)
GROWN = torch.full((1,), 0.5, requires_grad=True).detach() * 2
with torch.inference_mode():
    INFERRED = torch.full((1,), 1.5)
LOG: list = []
COUNTS: dict = {"calls": 0}
'''


def used_definitions(text: str) -> str:
    """Return the definitions that ``text`` names, and those that these name, in order."""
    statements = ast.parse(DEFINITIONS).body
    needed = _names(ast.parse(text)) | {"program"}
    used: set[int] = set()
    grows = True
    while grows:
        found = {i for i, s in enumerate(statements) if _defines(s) & needed} - used
        used |= found
        needed |= {name for i in found for name in _names(statements[i])}
        grows = bool(found)
    return "\n".join(ast.unparse(s) for i, s in enumerate(statements) if i in used or isinstance(s, ast.Expr))


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _defines(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.Import() | ast.ImportFrom():
            return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
        case ast.FunctionDef() | ast.ClassDef():
            return {statement.name}
        case ast.Assign():
            return _names(statement.targets[0])
        case ast.AnnAssign():
            return _names(statement.target)
        case ast.With():
            return {name for inner in statement.body for name in _defines(inner)}
    return set()
