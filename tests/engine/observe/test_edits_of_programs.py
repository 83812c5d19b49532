"""Sessions of whole programs: each single edit is found, no other spelling is."""

from __future__ import annotations

import difflib
import random
from typing import Any

import pytest
import torch

import engine
from engine.observe.compare_sessions import compare_sessions
from engine.observe.observe_torch import observe_torch
from engine.records.graph import GraphRecord, NodeRecord
from engine.records.kernels import KernelRecord
from engine.records.session import CompilationRecord, FrameRecord, Session
from notebook_ext.views.comparison.session_comparison import comparison_text
from tests.engine.observe.edit_programs import Variant, edited, have_equal_tensors, original, programs, respelled
from tests.torch_internals import dynamo_counters

BLOCKS = [pytest.param(block, marks=[pytest.mark.slow] if block else []) for block in range(8)]
BLOCK_SIZE = 25


def results(variant: Variant) -> list[Any] | None:
    """The program's results in eager; None if it raises."""
    try:
        return variant.run(lambda subject: subject)
    except Exception:
        return None


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", BLOCKS)
def test_every_edit_that_changes_a_result_is_found(block: int) -> None:
    """Of 200 edits of an operator, constant, attribute, dtype or dimension, each is found."""
    known = list(programs())
    missed, count, draw = [], 0, random.Random(1000 + block)
    while count < BLOCK_SIZE:
        name, tree, place = draw.choice(known)
        first, second = original(name, tree), edited(name, tree, place, draw)
        if second is None:
            continue
        before, after = results(first), results(second)
        if before is None or after is None or have_equal_tensors(before, after):
            continue
        recorded = first.record()
        if any(c.trace and c.trace.breaks for c in recorded.compilations):
            continue  # what Python runs after a break is in no graph
        count += 1
        if compare_sessions(recorded, second.record()).is_same:
            missed.append("\n".join(difflib.unified_diff(first.text.splitlines(), second.text.splitlines(), n=1)))
    assert not missed


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", BLOCKS)
def test_no_other_spelling_is_found(block: int) -> None:
    """Of 200 programs with other names, operator functions and lines, none differs."""
    known = list(programs())
    wrong, count, draw = [], 0, random.Random(2000 + block)
    while count < BLOCK_SIZE:
        name, tree, place = draw.choice(known)
        first, second = original(name, tree), respelled(name, tree, place, draw)
        before, after = results(first), results(second)
        if before is None or after is None or not have_equal_tensors(before, after):
            continue
        count += 1
        found = compare_sessions(first.record(), second.record())
        if not found.is_same:
            wrong.append((second.text, comparison_text(found, "first", "second")))
    assert not wrong


def test_comparing_moves_no_counter_and_provokes_no_recompile() -> None:
    """A comparison of live sessions changes no counter; the next calls are hits."""
    torch.compiler.reset()
    engine.reset()

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum(-1)

    stock, ours = torch.compile(f, backend="eager"), engine.compile(f, backend="eager")
    with observe_torch() as first:
        stock(torch.ones(2, 3))
    with engine.record() as second:
        ours(torch.ones(2, 3))
    before = {k: dict(v) for k, v in dynamo_counters.items()}
    (frame,) = compare_sessions(first, second).frames
    assert frame.verdict == "equal"
    assert {k: dict(v) for k, v in dynamo_counters.items()} == before
    with observe_torch() as third, engine.record() as fourth:
        stock(torch.ones(2, 3))
        ours(torch.ones(2, 3))
    assert not third.compilations
    assert not fourth.compilations


def with_kernels(*fused: tuple[str, ...]) -> Session:
    """A session of ``sin, cos, sum`` whose kernels fuse these operators."""
    session = Session()
    session.add_frame(FrameRecord("0", "f", "model.py", 1))
    nodes = tuple(
        NodeRecord(f"aten:0/0:{op}", op, "call_function", f"aten.{op}.default", f"{op} = aten.{op}(x)")
        for op in ("sin", "cos", "sum")
    )
    kernels = tuple(
        KernelRecord(f"k{i}", f"triton_{len(fused)}_{i}", "", fused_nodes=tuple(f"aten:0/0:{op}" for op in ops))
        for i, ops in enumerate(fused)
    )
    session.put_compilation(
        CompilationRecord("0/0", "0", "first call", graphs=(GraphRecord("g", "aten", "", nodes),), kernels=kernels)
    )
    return session


def test_kernels_are_paired_by_what_they_fuse() -> None:
    """Equal graphs in other kernels are "fused otherwise", with the kernels side by side."""
    first, second = with_kernels(("sin", "cos", "sum")), with_kernels(("sin", "cos"), ("sum",))
    (frame,) = compare_sessions(first, second).frames
    assert frame.verdict == "equal, fused otherwise"
    assert [(p.first_operators, p.second_operators) for p in frame.kernels] == [
        ("cos, sin, sum", "cos, sin"),
        ("", "sum"),
    ]
    text = comparison_text(compare_sessions(first, second), "a", "b")
    assert "triton_1_0: cos, sin, sum | triton_2_0: cos, sin" in text
    (frame,) = compare_sessions(second, with_kernels(("sum",), ("cos", "sin"))).frames
    assert frame.verdict == "equal"


def test_verdicts_name_the_line_and_the_order() -> None:
    """An edit's verdict has its line; statements in another order are "equal, reordered"."""

    def recorded(text: str) -> Session:
        return Variant(
            "f", "import torch\nfrom tests.programs import program\n@program(lambda: (torch.ones(3),))\n" + text, "f"
        ).record()

    first = "def f(x):\n    a = x.sin()\n    b = x.cos()\n    return a + b\n"
    (frame,) = compare_sessions(recorded(first), recorded(first.replace("cos", "tan"))).frames
    assert frame.verdict == "different (line 6)"
    swapped = "def f(x):\n    b = x.cos()\n    a = x.sin()\n    return a + b\n"
    (frame,) = compare_sessions(recorded(first), recorded(swapped)).frames
    assert frame.verdict == "equal, reordered"


def training_session(model: torch.nn.Module, *args: torch.Tensor, by_torch: bool = False) -> Session:
    """One training step of a compiled module."""
    torch.compiler.reset()
    engine.reset()
    compiled = torch.compile(model, backend="aot_eager") if by_torch else engine.compile(model, backend="aot_eager")
    with observe_torch() if by_torch else engine.record() as session:
        compiled(*args).sum().backward()
    return session


class TwoTables(torch.nn.Module):
    """Reads a table of users and one of items, in this order or the other one."""

    def __init__(self, *, items_first: bool = False) -> None:
        super().__init__()
        self.users, self.items, self.items_first = torch.nn.Embedding(5, 4), torch.nn.Embedding(7, 4), items_first

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """Multiply normalized rows."""
        if self.items_first:
            b = torch.nn.functional.normalize(self.items(item))
            a = torch.nn.functional.normalize(self.users(user))
        else:
            a = torch.nn.functional.normalize(self.users(user))
            b = torch.nn.functional.normalize(self.items(item))
        return (a * b).sum(1)


def graph_verdict(first: Session, second: Session) -> tuple[bool, bool]:
    """Whether the graphs of the only function are equal, and whether in another order."""
    (frame,) = compare_sessions(first, second).frames
    (graphs,) = [a for a in frame.aspects if a.aspect == "graphs"]
    return graphs.is_same, graphs.is_reordered


@pytest.mark.parametrize("by_torch", [False, True], ids=["ours", "torch"])
def test_backwards_of_exchanged_statements_are_equal(by_torch: bool) -> None:
    """Parameters, saved values and gradients in another order are paired by what they are."""
    indices = torch.tensor([0, 1, 4]), torch.tensor([2, 3, 6])
    first = training_session(TwoTables(), *indices, by_torch=by_torch)
    second = training_session(TwoTables(items_first=True), *indices, by_torch=by_torch)
    assert graph_verdict(first, second) == (True, True)


@pytest.mark.parametrize("by_torch", [False, True], ids=["ours", "torch"])
def test_modules_and_functions_of_torch_are_equal(by_torch: bool) -> None:
    """Guards on the settings of a module of torch are no difference."""

    class Net(torch.nn.Module):
        def __init__(self, activation: Any, pool: Any) -> None:
            super().__init__()
            self.conv = torch.nn.Conv1d(1, 2, 3)
            self.activation, self.pool = activation, pool

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.pool(self.activation(self.conv(x)))

    functional = torch.nn.functional
    x = torch.ones(2, 1, 8)
    first, second, edited = (
        training_session(Net(*parts), x, by_torch=by_torch)
        for parts in (
            (torch.nn.ReLU(), torch.nn.AvgPool1d(2)),
            (torch.nn.ReLU(inplace=False), torch.nn.AvgPool1d((2,), stride=2)),
            (torch.nn.ReLU6(), torch.nn.AvgPool1d(2)),
        )
    )
    assert compare_sessions(first, second).is_same
    assert not compare_sessions(first, edited).is_same
    spelled = training_session(Net(functional.relu, torch.nn.AvgPool1d(2)), x, by_torch=by_torch)
    (frame,) = compare_sessions(first, spelled).frames
    (guards,) = [a for a in frame.aspects if a.aspect == "guards"]
    assert not [g for g in guards.only_first if "ReLU" in g or "inplace" in g]


def test_keys_and_side_effects_are_results() -> None:
    """Another key of the returned dict, or another attribute that is set, is a difference."""

    def recorded(key: str, attribute: str) -> Session:
        text = (
            "import torch\nfrom tests.programs import program\n"
            "class Holder: pass\nholder = Holder()\nholder.scale = torch.ones(3)\n"
            "@program(lambda: (torch.ones(3),))\n"
            "def f(x):\n    y = x * holder.scale\n"
            f"    holder.{attribute} = y.sin()\n    return {{'{key}': y, 'tail': [x, 3]}}\n"
        )
        return Variant("f", text, "f").record()

    first = recorded("head", "last")
    assert compare_sessions(first, recorded("head", "last")).is_same
    for other in (recorded("body", "last"), recorded("head", "latest")):
        (frame,) = compare_sessions(first, other).frames
        assert frame.verdict == "different: results"


def test_times_say_what_they_measure() -> None:
    """Times are labeled as compile time and as run time of kernels, and are no difference."""
    found = compare_sessions(with_kernels(("sin",)), with_kernels(("sin",)))
    times = {a.aspect: a for a in found.totals if "time" in a.aspect}
    assert set(times) == {"compile time", "run time of kernels"}
    assert all(a.is_figure for a in times.values())
