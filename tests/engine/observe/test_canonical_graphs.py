"""The normal form of graphs: every single edit is a difference, no respelling is one."""

from __future__ import annotations

import linecache
import random
from collections.abc import Iterator

import pytest
import torch

import engine
from engine.observe.canonical.graphs import GraphDifference, compare_graphs
from engine.observe.compare_sessions import compare_sessions
from engine.observe.observe_torch import observe_torch
from engine.records.graph import GraphRecord
from engine.records.session import Session
from tests.torch_internals import dynamo_counters

EXPRESSIONS = [
    # as first written, the same spelled otherwise, and with one thing edited; {a} and {b} are float tensors of 3 x 4
    ("{a} * 2 + {b}", "torch.add({b}, torch.mul({a}, 2.0))", "{a} * 3 + {b}"),
    ("2 - {a}", "torch.rsub({a}, 2)", "3 - {a}"),
    ("{a} - {b}", "torch.sub({a}, other={b})", "{b} - {a}"),
    ("{a} / ({b} + 5)", "torch.true_divide({a}, 5 + {b})", "{a} / ({b} + 6)"),
    ("torch.softmax({a}, -1)", "F.softmax({a}, dim=1)", "torch.softmax({a}, 0)"),
    ("{a} - {a}.sum(0)", "{a} - torch.sum({a}, dim=(-2,))", "{a} - {a}.sum(0) * 2"),
    ("{a} + {a}.mean(-1, keepdim=True)", "{a} + torch.mean({a}, dim=1, keepdim=True)", "{a} + {a}.mean(0, keepdim=True)"),
    ("F.gelu({a})", "F.gelu({a}, approximate='none')", "F.gelu({a}, approximate='tanh')"),
    ("F.relu({a}).sin()", "{a}.relu().sin()", "F.relu({a}).cos()"),
    ("{a}.reshape(2, 6).reshape(3, 4)", "torch.reshape({a}, (2, 6)).reshape((3, 4))", "{a}.reshape(6, 2).reshape(3, 4)"),
    ("torch.cat([{a}[:, 2:], {b}[:, :2]], 1)", "torch.concat(({a}[:, 2:4:1], {b}[0:, 0:2]), dim=-1)", "torch.cat([{a}[:, 2:], {b}[:, 1:3]], 1)"),
    ("F.layer_norm({a}, (4,))", "F.layer_norm({a}, [4], None, None, 1e-5)", "F.layer_norm({a}, (4,), eps=1e-3)"),
    ("{a}.clamp(min=0)", "torch.clip({a}, 0)", "{a}.clamp(min=1)"),
    ("{a} ** 2", "{a}.pow(2)", "{a} ** 3"),
    ("{a}.to(torch.float64).float()", "{a}.to(dtype=torch.double).to(torch.float32)", "{a}.to(torch.float16).float()"),
    ("torch.where({a} > 0, {a}, {b})", "{a}.where({a}.gt(0), {b})", "torch.where({a} >= 0, {a}, {b})"),
    ("({a} @ {b}.t()) @ {a}", "torch.matmul(torch.matmul({a}, {b}.t()), {a})", "({a} @ {b}.t()) @ {b}"),
    ("{a}.cumsum(-1)", "torch.cumsum({a}, dim=1)", "{a}.cumsum(0)"),
    ("F.pad({a}[:, 1:], (1, 0))", "F.pad({a}[:, 1:], [1, 0], mode='constant', value=0)", "F.pad({a}[:, 1:], (1, 0), value=1.0)"),
    ("{a}.masked_fill({b} > 0, 0.0)", "torch.masked_fill({a}, {b}.gt(0), 0)", "{a}.masked_fill({b} > 0, 1.0)"),
    ("({a}.transpose(0, 1) * 2).transpose(0, 1)", "(torch.swapaxes({a}, -2, 1) * 2).swapdims(0, 1)", "({a}.transpose(0, 1) * 3).transpose(0, 1)"),
    ("{a} / ({a}.std(0) + 1)", "{a} / (1 + torch.std({a}, dim=0, correction=1))", "{a} / ({a}.std(0, unbiased=False) + 1)"),
    ("{a}.unsqueeze(-1).squeeze(-1)", "torch.unsqueeze({a}, 2).squeeze(2)", "{a}.unsqueeze(1).squeeze(1)"),
    ("torch.einsum('ij,kj->ik', {a}, {b}) @ {b}", "torch.einsum('ij,kj->ik', [{a}, {b}]) @ {b}", "torch.einsum('ij,kj->ik', {b}, {a}) @ {b}"),
    ("({a}.t() * 2).t()", "({a}.transpose(1, 0) * 2).permute(-1, 0)", "({a}.t() * 3).t()"),
    ("{a} * torch.arange(4)", "{a} * torch.arange(0, 4, 1)", "{a} * torch.arange(1, 5)"),
    ("F.max_pool1d({a}, 2).sum() + {b}", "torch.max_pool1d({a}, 2, (2,), 0).sum() + {b}", "F.max_pool1d({a}, 2, 1).sum() + {b}"),
    ("F.avg_pool1d({a}, (2,)).sum() + {b}", "F.avg_pool1d({a}, 2, stride=2).sum() + {b}", "F.avg_pool1d({a}, 3).sum() + {b}"),
    ("torch.stack([{a}, {b}], -1).sum(-1)", "torch.stack(({a}, {b}), dim=2).sum(2)", "torch.stack([{b}, {a}], -1).sum(-1)"),
]  # fmt: skip

BLOCKS = [pytest.param(block, marks=[pytest.mark.slow] if block else []) for block in range(5)]
"""Blocks of 40 programs each; the first one outside the slow ring."""

Statements = list[tuple[int, int, str, str]]


@pytest.fixture(autouse=True)
def fresh_torch() -> Iterator[None]:
    """torch.compile with empty caches."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def statements(draw: random.Random) -> Statements:
    """Three statements: expression, spelling and operands."""
    known = ["x", "y"]
    found: Statements = []
    for i in range(3):
        a, b = draw.sample(known, 2)
        found.append((draw.randrange(len(EXPRESSIONS)), 0, a, b))
        known.append(f"v{i}")
    return found


def source(program: Statements, prefix: str = "v") -> str:
    """The function as text; every value is read by the result."""
    lines = []
    for i, (expression, spelling, a, b) in enumerate(program):
        names = {"a": a.replace("v", prefix), "b": b.replace("v", prefix)}
        lines.append(f"    {prefix}{i} = {EXPRESSIONS[expression][spelling].format(**names)}\n")
    return f"def f(x, y):\n{''.join(lines)}    return {prefix}0 + {prefix}1, {prefix}2\n"


def recorded(text: str, *, by_torch: bool = False) -> Session:
    """One call of the function, recorded by one of the compilers."""
    name = "<canonical>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names = {"torch": torch, "F": torch.nn.functional}
    exec(compile(text, name, "exec"), names)
    inputs = torch.ones(3, 4), torch.full((3, 4), 2.0)
    if by_torch:
        torch.compiler.reset()
        with observe_torch() as session:
            torch.compile(names["f"], backend="eager")(*inputs)  # type: ignore[arg-type]
    else:
        with engine.record() as session:
            engine.compile(names["f"], backend="eager")(*inputs)  # type: ignore[arg-type]
    return session


def traced(session: Session) -> GraphRecord:
    """The traced graph."""
    (graph,) = [g for c in session.compilations for g in c.graphs if g.stage in ("fx", "pre-grad")]
    return graph


def difference(first: str, second: str, *, by_torch: tuple[bool, bool] = (False, False)) -> GraphDifference:
    """What differs between the traced graphs of two functions."""
    a, b = (recorded(text, by_torch=stock) for text, stock in zip((first, second), by_torch, strict=True))
    return compare_graphs(traced(a), traced(b), with_strides=by_torch[0] == by_torch[1])


@pytest.mark.thorough
@pytest.mark.parametrize("block", BLOCKS)
def test_every_single_edit_is_a_difference(block: int) -> None:
    """Of 40 programs a block with one edited constant, operator or dimension, each differs."""
    missed = []
    for seed in range(40 * block, 40 * block + 40):
        draw = random.Random(seed)
        program = statements(draw)
        edited = list(program)
        site = draw.randrange(3)
        edited[site] = (program[site][0], 2, *program[site][2:])
        if difference(source(program), source(edited)).is_same:
            missed.append((source(program), source(edited)))
    assert not missed


@pytest.mark.parametrize("block", BLOCKS)
def test_no_respelling_is_a_difference(block: int) -> None:
    """Of 40 programs a block with respelled calls and renamed variables, none differs."""
    told = []
    for seed in range(40 * block, 40 * block + 40):
        draw = random.Random(seed)
        program = statements(draw)
        respelled = [(e, draw.randrange(2), a, b) for e, _, a, b in program]
        found = difference(source(program), source(respelled, "value_"))
        if not found.is_same:
            told.append((source(respelled), found))
    assert not told


@pytest.mark.thorough
@pytest.mark.parametrize("by_torch", [(True, True), (False, True)], ids=["torch and torch", "ours and torch"])
def test_graphs_of_torch_compile_compare_alike(by_torch: tuple[bool, bool]) -> None:
    """Each expression's respelling is equal and its edit differs, across compilers too."""
    wrong = []
    for first, respelled, edited in EXPRESSIONS:
        texts = [f"def f(x, y):\n    return {e.format(a='x', b='y')}\n" for e in (first, respelled, edited)]
        sessions = [recorded(t, by_torch=by_torch[i > 0]) for i, t in enumerate(texts)]
        graphs = [traced(s) for s in sessions]
        strides = by_torch[0] == by_torch[1]
        same, other = (compare_graphs(graphs[0], g, with_strides=strides).is_same for g in graphs[1:])
        if not same or other:
            wrong.append((first, same, other))
    assert not wrong


def test_the_edited_line_alone_is_shown() -> None:
    """Of a changed constant, only its own operation is listed, not what reads its result."""
    first = "def f(x, y):\n    a = x.sin()\n    b = a * 2\n    return (b + y).relu()\n"
    found = difference(first, first.replace("a * 2", "a * 5"))
    assert [n.text for n in found.first] == ["mul = a * 2"] or [n.text for n in found.first] == ["mul = sin * 2"]
    assert [n.span.line for n in found.second if n.span] == [3]


def test_another_order_of_statements_computes_the_same() -> None:
    """Independent statements exchanged are no difference but another order."""
    first = "def f(x, y):\n    a = x.sin()\n    b = y.cos()\n    return a + b\n"
    second = "def f(x, y):\n    b = y.cos()\n    a = x.sin()\n    return a + b\n"
    found = difference(first, second)
    assert found.is_same
    assert found.is_reordered


def test_rewired_operands_differ() -> None:
    """The same operations on exchanged inputs differ where the graphs first part."""
    first = "def f(x, y):\n    a = x.relu() + y.sin()\n    return a\n"
    second = "def f(x, y):\n    a = y.relu() + x.sin()\n    return a\n"
    found = difference(first, second)
    assert {n.target.rpartition(".")[2] for n in found.first} == {"relu", "sin"}


def test_order_counts_where_values_are_written() -> None:
    """A read before a write and one after it differ, also through a view."""
    first = "def f(x, y):\n    a = x * 2\n    b = a.sum()\n    a[:, 0] = 3\n    return a, b\n"
    second = "def f(x, y):\n    a = x * 2\n    a[:, 0] = 3\n    b = a.sum()\n    return a, b\n"
    assert not difference(first, second).is_same
    first = "def f(x, y):\n    a = x * 2\n    v = a[0]\n    b = v.sum()\n    a.mul_(3)\n    return a, b\n"
    second = "def f(x, y):\n    a = x * 2\n    v = a[0]\n    a.mul_(3)\n    b = v.sum()\n    return a, b\n"
    assert not difference(first, second).is_same


def test_writes_to_separate_tensors_may_be_exchanged() -> None:
    """Exchanged writes are reordered; those to a tensor and to its view differ."""
    first = "def f(x, y):\n    x.mul_(2)\n    y.add_(1)\n    return x + y\n"
    second = "def f(x, y):\n    y.add_(1)\n    x.mul_(2)\n    return x + y\n"
    found = difference(first, second)
    assert found.is_same
    assert found.is_reordered
    first = "def f(x, y):\n    v = x[0]\n    x.mul_(2)\n    v.add_(1)\n    return x + y\n"
    second = "def f(x, y):\n    v = x[0]\n    v.add_(1)\n    x.mul_(2)\n    return x + y\n"
    assert not difference(first, second).is_same


def test_inputs_of_other_sizes_are_the_difference() -> None:
    """Only the input is listed, not each operation on it."""
    sessions = []
    for size in (3, 5):
        engine.reset()
        with engine.record() as session:
            engine.compile(lambda x: (x.sin() * 2).sum(), backend="eager")(torch.ones(size))
        sessions.append(session)
    found = compare_graphs(*map(traced, sessions))
    assert [(n.op, n.shape) for n in (*found.first, *found.second)] == [
        ("placeholder", ("3",)),
        ("placeholder", ("5",)),
    ]


def test_modules_that_each_compiler_names_in_its_own_way() -> None:
    """A sequential module, whose frame and inputs both compilers name otherwise, is equal."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(2)
    )
    image = torch.ones(2, 3, 8, 8)
    with engine.record() as ours:
        engine.compile(model, backend="eager")(image)
    with observe_torch() as stock:
        torch.compile(model, backend="eager")(image)
    (frame,) = compare_sessions(ours, stock).frames
    assert frame.is_same
    model[3] = torch.nn.AvgPool2d(2)
    with observe_torch() as edited:
        torch.compile(model, backend="eager")(image)
    (frame,) = compare_sessions(ours, edited).frames
    assert not frame.is_same


def test_writes_in_place_are_operations_of_both() -> None:
    """Augmented assignments and stores into parts are in both compilers' graphs, and equal."""
    text = (
        "def f(x, y):\n    a = x * 2\n    a[:, 0] = 3\n    a += y\n    a[0, 1:3] *= 2\n"
        "    b = y.sin()\n    b.mul_(3)\n    return a, b[..., None]\n"
    )
    found = difference(text, text, by_torch=(False, True))
    assert found == GraphDifference()
    assert {"operator.setitem", "operator.iadd", "operator.imul"} <= {
        n.target for n in traced(recorded(text, by_torch=True)).nodes
    }


def test_exchanged_results_differ() -> None:
    """Results returned in another order are a difference."""
    first = "def f(x, y):\n    return x.sin(), y.cos()\n"
    found = difference(first, first.replace("x.sin(), y.cos()", "y.cos(), x.sin()"))
    assert not found.is_same


def test_one_program_in_two_compilers_is_equal() -> None:
    """Both compilers' sessions of a program with a break are equal; no counter moves."""
    text = "def f(x, y):\n    a = torch.softmax(x @ y.t(), -1)\n    print(end='')\n    return a @ y + 1, a.sum()\n"
    ours, stock = recorded(text), recorded(text, by_torch=True)
    before = {k: dict(v) for k, v in dynamo_counters.items()}
    found = compare_sessions(ours, stock)
    assert [f.name for f in found.frames if not f.is_same] == []
    assert len(found.frames) == 2
    assert {k: dict(v) for k, v in dynamo_counters.items()} == before
    other = compare_sessions(ours, recorded(text.replace("+ 1", "+ 3"), by_torch=True))
    assert [f.is_same for f in other.frames] == [True, False]
