"""Graded puzzles, checked by the engine's records: graphs, guards, breaks, kernels.

``%%puzzle 7`` runs a cell and checks its function ``f`` with the engine's records. ``python -m notebook_ext.lesson puzzles``
writes ``notebooks/puzzles.ipynb``.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import engine
from engine.errors import BadArgument
from engine.records.counts import counts
from engine.records.guards import GuardRecord
from engine.records.session import Session
from notebook_ext.lesson.checks import data_dependent_sizes, is_close

__all__ = ["PUZZLES", "Puzzle", "check_puzzle"]

LEVELS = ("graphs and bytecode", "guards and recompiles", "breaks and shapes", "mutation and training", "kernels")


@dataclass(frozen=True, slots=True)
class Puzzle:
    """One puzzle.

    ``level``: an index into ``LEVELS``. ``start``: the code to begin with. ``check`` gets ``f`` and raises AssertionError with what is wrong.
    """

    level: int
    goal: str
    start: str
    check: Callable[[Callable[..., Any]], None]


_FOUND: list[Puzzle] = []


def _puzzle(level: int, goal: str, start: str) -> Callable[[Callable[[Callable[..., Any]], None]], None]:
    def register(check: Callable[[Callable[..., Any]], None]) -> None:
        _FOUND.append(Puzzle(level, goal, start.strip() + "\n", check))

    return register


def check_puzzle(number: int, names: Mapping[str, Any]) -> None:
    """Check the function ``f`` among ``names``.

    Raises:
        AssertionError: it does not solve the puzzle; the message says why.
        BadArgument: there is no such puzzle.
    """
    if number not in PUZZLES:
        raise BadArgument(f"there is no puzzle {number}; they are 1 to {len(PUZZLES)}.")
    if not callable(names.get("f")):
        raise AssertionError("define a function f.")  # noqa: TRY004
    engine.reset()
    try:
        PUZZLES[number].check(names["f"])
    finally:
        engine.reset()


def _record(f: Callable[..., Any], *calls: tuple[Any, ...], backend: str = "eager") -> Session:
    """Make the calls and return what was recorded."""
    with engine.record() as session:
        compiled = engine.compile(f, backend=backend)
        for call in calls:
            compiled(*call)
    assert session.compilations, "nothing was compiled."
    return session


def _operations(session: Session) -> list[str]:
    graphs = session.compilations[0].graphs
    return [node.name for node in graphs[0].nodes if node.op.startswith("call")] if graphs else []


def _guards(session: Session) -> list[GuardRecord]:
    return [g for c in session.compilations if c.guards for g in c.guards.guards]


def _expect(actual: int, expected: int, what: str) -> None:
    assert actual == expected, (
        f"there {'is' if actual == 1 else 'are'} {actual} {what}{'' if actual == 1 else 's'}, not {expected}."
    )


def _compilations(session: Session) -> int:
    """Compilations of one function without breaks."""
    _expect(counts(session).breaks, 0, "graph break")
    return 1 + counts(session).recompiles


def _x() -> torch.Tensor:
    return torch.arange(1.0, 13.0).view(3, 4)


@_puzzle(0, "`f(x)` returns `x * 2 + 1`, but the graph has no multiplication.", "def f(x):\n    return x * 2 + 1")
def _no_product(f: Callable[..., Any]) -> None:
    assert is_close(f(_x()), _x() * 2 + 1), "the result should be x * 2 + 1."
    names = _operations(_record(f, (_x(),)))
    assert names, "the graph is empty."
    assert not any("mul" in n for n in names), f"the graph has {', '.join(names)}."


@_puzzle(0, "`f(x)` returns `x + 6`, and the graph has exactly three additions.", "def f(x):\n    return x + 6")
def _three_additions(f: Callable[..., Any]) -> None:
    assert is_close(f(_x()), _x() + 6), "the result should be x + 6."
    _expect(len([n for n in _operations(_record(f, (_x(),))) if n.startswith(("add", "iadd"))]), 3, "addition")


def _has_loop(code: types.CodeType) -> bool:
    """Return True for ``for``, ``while`` and comprehensions."""
    return any(i.opname == "FOR_ITER" or "BACKWARD" in i.opname for i in dis.get_instructions(code)) or any(
        _has_loop(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)
    )


@_puzzle(
    0,
    "`f` has a loop that runs five times, and its graph has one operation. The result is `x + 10`.",
    "def f(x):\n    for i in range(5):\n        x = x + i\n    return x",
)
def _loop_without_operations(f: Callable[..., Any]) -> None:
    assert is_close(f(_x()), _x() + 10), "the result should be x + 10."
    assert _has_loop(f.__code__), "f has no loop."
    _expect(len(_operations(_record(f, (_x(),)))), 1, "operation")


@_puzzle(
    0,
    "The graph of `f(x)` has exactly one node that calls a method, and none that calls a function.",
    "def f(x):\n    return x.relu() + 1",
)
def _one_method(f: Callable[..., Any]) -> None:
    session = _record(f, (_x(),))
    _expect(counts(session).breaks, 0, "graph break")
    kinds = [n.op for c in session.compilations for g in c.graphs for n in g.nodes if n.op.startswith("call")]
    assert kinds == ["call_method"], f"the graph's nodes are {', '.join(kinds) or 'none'}."


@_puzzle(
    0,
    "`f(x)` has a side effect that is replayed after the graph, and no graph break.",
    "def f(x):\n    print('done')\n    return x.sin()",
)
def _side_effect(f: Callable[..., Any]) -> None:
    session = _record(f, (_x(),))
    _expect(counts(session).breaks, 0, "graph break")
    trace = session.compilations[0].trace
    assert trace is not None, "nothing was traced."
    assert trace.side_effects, "nothing is replayed: append to a list, or set an attribute."


@_puzzle(
    0,
    "The bytecode of `f` is longer than 30 instructions, and the bytecode that runs instead of it is shorter than 15.",
    "def f(x):\n    return x + 1",
)
def _shorter_bytecode(f: Callable[..., Any]) -> None:
    trace = _record(f, (_x(),)).compilations[0].trace
    assert trace, "nothing was traced."
    before, after = len(trace.instructions), len(trace.modified_instructions)
    assert before > 30, f"it has {before} instructions before."
    assert after < 15, f"it has {before} instructions before and {after} after."


@_puzzle(
    1,
    "`f(x, settings)` is guarded on `settings['a']` and not on `settings['b']`.",
    "def f(x, settings):\n    return x * settings['a'] * settings['b']",
)
def _one_key(f: Callable[..., Any]) -> None:
    sources = {g.source for g in _guards(_record(f, (_x(), {"a": 2.0, "b": 3.0})))}
    assert "L['settings']['a']" in sources, "a is not guarded: the code has to read it."
    assert "L['settings']['b']" not in sources, "b is guarded."


@_puzzle(
    1, "`f(x, n)` is called with n = 2, 3, 4, 5, 6 and is compiled **five** times.", "def f(x, n):\n    return x + n"
)
def _each_number(f: Callable[..., Any]) -> None:
    _expect(_compilations(_record(f, *[(_x(), n) for n in range(2, 7)])), 5, "compilation")


@_puzzle(
    1,
    "`f(x, words)` is called with three lists of three words and returns `x + 3`. It is compiled **once**, and has to use `words`.",
    "def f(x, words):\n    return x + (3 if words[0] == 'cat' and len(words) == 3 else len(words))",
)
def _only_the_length(f: Callable[..., Any]) -> None:
    calls = [(_x(), [word] * 3) for word in ("cat", "dog", "owl")]
    assert all(is_close(f(*call), _x() + 3) for call in calls), "the result should be x + 3."
    assert is_close(f(_x(), ["cat", "dog"]), _x() + 2), "with two words it should be x + 2: use the length."
    _expect(_compilations(_record(f, *calls)), 1, "compilation")


@_puzzle(
    1,
    "`f(x)` is called four times with the same tensor, and each call compiles it again.",
    "def f(x):\n    return x + 1",
)
def _always_again(f: Callable[..., Any]) -> None:
    _expect(_compilations(_record(f, *[(_x(),)] * 4)), 4, "compilation")


@_puzzle(
    1,
    "`f(x)` with 10, 20, 30, 60 and 70 rows: a shape guard separates sizes up to 50 from those above.",
    "def f(x):\n    return x * 2",
)
def _split_at_fifty(f: Callable[..., Any]) -> None:
    session = _record(f, *[(torch.ones(n, 2),) for n in (10, 20, 30, 60, 70)])
    _expect(_compilations(session), 3, "compilation")
    assert any("50" in g.expected or "51" in g.expected for g in _guards(session)), "no guard compares with 50."


@_puzzle(
    1, "The first dimension of `x` is marked dynamic, and `f` specializes it to 8.", "def f(x):\n    return x.sum(0)"
)
def _specialized(f: Callable[..., Any]) -> None:
    x = torch.ones(8, 4)
    engine.mark_dynamic(x, 0)
    trace = _record(f, (x,)).compilations[0].trace
    assert trace is not None, "nothing was traced."
    assert any(str(s.specialized_to) == "8" for s in trace.symbols), "the size is still a symbol."


@_puzzle(2, "`f(x)` returns `x.sin() + 1`, as **two** graphs.", "def f(x):\n    return x.sin() + 1")
def _two_graphs(f: Callable[..., Any]) -> None:
    session = _record(f, (_x(),))
    assert is_close(f(_x()), _x().sin() + 1), "the result should be x.sin() + 1."
    _expect(counts(session).graphs, 2, "graph")


@_puzzle(
    2,
    "`f(x)` has one graph break, and **one** graph.",
    "def f(x):\n    y = x.sin()\n    print(end='')\n    return y + 1",
)
def _break_at_the_end(f: Callable[..., Any]) -> None:
    session = _record(f, (_x(),))
    _expect(counts(session).breaks, 1, "graph break")
    _expect(counts(session).graphs, 1, "graph")


@_puzzle(
    2,
    "`f(x)` returns `x` if its sum is positive, else `-x`, without a break.",
    "def f(x):\n    return x if x.sum() > 0 else -x",
)
def _choose(f: Callable[..., Any]) -> None:
    for x in (_x() - 8, 8 - _x()):
        assert is_close(f(x), 8 - _x()), "the result should be x or -x, whichever has a positive sum."
    _expect(counts(_record(f, (_x(),))).breaks, 0, "graph break")


@_puzzle(
    2,
    "`f(x)` returns the position of the first number above 3 in a vector, as a tensor. No break, and no size that depends on values.",
    "def f(x):\n    return (x > 3).nonzero()[0, 0]",
)
def _first_above(f: Callable[..., Any]) -> None:
    for values, at in (([1.0, 5.0, 2.0, 7.0], 1), ([4.0, 1.0], 0), ([0.0, 0.0, 3.5], 2)):
        result = f(torch.tensor(values))
        is_number = isinstance(result, torch.Tensor) and result.numel() == 1
        assert is_number, "return the position as a tensor of one element."
        assert result.item() == at, f"for {values} the position is {at}."
    session = _record(f, (torch.tensor([1.0, 5.0, 2.0, 7.0]),))
    _expect(counts(session).breaks, 0, "graph break")
    unknown = data_dependent_sizes(session)
    assert not unknown, f"the size of {unknown[0].split(' = ')[0]} depends on values."


@_puzzle(
    2,
    "`f(x)` returns the mean of the positive numbers of `x`. No break, and no size that depends on values.",
    "def f(x):\n    return x[x > 0].mean()",
)
def _mean_of_positive(f: Callable[..., Any]) -> None:
    for x in (torch.tensor([1.0, -2.0, 3.0]), _x()):
        assert is_close(f(x), x[x > 0].mean()), "the result should be the mean of the positive numbers."
    session = _record(f, (_x(),))
    _expect(counts(session).breaks, 0, "graph break")
    unknown = data_dependent_sizes(session)
    assert not unknown, f"the size of {unknown[0].split(' = ')[0]} depends on values."


@_puzzle(
    2,
    "`f(x)` has **three** graphs, and its first and last graph have one operation each.",
    "def f(x):\n    return x.sin().cos().tan()",
)
def _three_graphs(f: Callable[..., Any]) -> None:
    session = _record(f, (_x(),))
    _expect(counts(session).graphs, 3, "graph")
    sizes = [sum(n.op.startswith("call") for n in c.graphs[0].nodes) for c in session.compilations if c.graphs]
    assert sizes[0] == sizes[-1] == 1, f"the graphs have {', '.join(map(str, sizes))} operations."


def _aot(f: Callable[..., Any], *call: Any) -> Any:
    aot = _record(f, call, backend="aot_eager").compilations[0].aot
    assert aot, "there is no AOT stage: the graph needs an operation."
    return aot


def _copied_back(aot: Any) -> list[str]:
    return [a.argument for w in aot.wrappers for a in w.actions if a.action == "copied back"]


@_puzzle(
    3,
    "`f(a, b)` mutates both arguments, `a` twice: two values are copied back.",
    "def f(a, b):\n    a.add_(1)\n    return a + b",
)
def _two_copies(f: Callable[..., Any]) -> None:
    names = _copied_back(_aot(f, _x(), _x()))
    assert sorted(names) == ["a", "b"], f"copied back: {', '.join(names) or 'nothing'}."
    version = _x()
    before = version._version
    f(version, _x())
    assert version._version - before == 2, "a is not mutated twice."


@_puzzle(
    3,
    "`f(x)` returns an alias of `x`, mutates nothing, and its graph computes something, too.",
    "def f(x):\n    return x.sin()",
)
def _alias(f: Callable[..., Any]) -> None:
    aot = _aot(f, _x())
    assert not _copied_back(aot), "x is mutated."
    assert any(
        "alias" in fact or "shares memory" in fact for v in aot.values if v.role == "output" for fact in v.facts
    ), "no output is an alias of x: return a view of it, such as x.t(). x itself is returned without the graph."
    assert any("new storage" in fact for v in aot.values if v.role == "output" for fact in v.facts), (
        "return a computed tensor, too."
    )


def _saved(f: Callable[..., Any]) -> int:
    weight = torch.rand(64, 64, requires_grad=True)
    with engine.record() as session:
        loss = engine.compile(f, backend="aot_eager")(weight)
        assert isinstance(loss, torch.Tensor), "return a tensor: the loss."
        assert loss.numel() == 1, "return a loss of one number, such as a sum."
        assert loss.requires_grad, "there is no backward: return a loss that depends on w."
        loss.backward()
    aot = session.compilations[0].aot
    partition = aot.partition if aot else None
    assert partition is not None, "there is no backward: return a loss that depends on w."
    return partition.saved_bytes


@_puzzle(
    3,
    "`f(w)` is a loss of a 64 × 64 weight that saves exactly 16 KiB for backward, inputs not counted.",
    "def f(w):\n    return w.sin().sum()",
)
def _sixteen(f: Callable[..., Any]) -> None:
    _expect(_saved(f), 16 * 1024, "saved byte")


@_puzzle(
    3,
    "`f(w)` has two matrix products and a sine, and saves **nothing** for backward but inputs.",
    "def f(w):\n    return ((w @ w).sin() @ w).sum()",
)
def _nothing_saved(f: Callable[..., Any]) -> None:
    names = _operations(_record(f, (torch.rand(64, 64),)))
    assert sum(any(word in n for word in ("mm", "matmul", "linear", "einsum")) for n in names) >= 2, (
        "the graph needs two matrix products."
    )
    assert any(n.startswith("sin") for n in names), "the graph needs a sine."
    _expect(_saved(f), 0, "saved byte")


def _kernels(f: Callable[..., Any], *call: Any) -> list[Any]:
    session = _record(f, call, backend="triton")
    _expect(counts(session).breaks, 0, "graph break")
    return [k for c in session.compilations for k in c.kernels]


@_puzzle(
    4,
    "`f(x)` returns the softmax of each row times 2, as **one** kernel that moves 64 KiB in all: `x` is 64 × 128.",
    "def f(x):\n    total = x.exp().sum()\n    return 2 * x.exp() / total",
)
def _one_kernel(f: Callable[..., Any]) -> None:
    x = torch.randn(64, 128)
    assert is_close(f(x), x.softmax(1) * 2), "the result should be the softmax of each row times 2."
    kernels = _kernels(f, x)
    _expect(len(kernels), 1, "kernel")
    _expect(kernels[0].bytes_moved, 2 * x.nbytes, "byte")


@_puzzle(
    4,
    "`f(x)` is one kernel that reads `x` once and writes **two** results of its size: 96 KiB in all for 64 × 128.",
    "def f(x):\n    return x.sin() + x.cos()",
)
def _two_results(f: Callable[..., Any]) -> None:
    x = torch.randn(64, 128)
    kernels = _kernels(f, x)
    _expect(len(kernels), 1, "kernel")
    _expect(kernels[0].bytes_moved, 3 * x.nbytes, "byte")


@_puzzle(4, "`f(x)` makes exactly **two** kernels without a graph break.", "def f(x):\n    return x.sin().cos()")
def _two_kernels(f: Callable[..., Any]) -> None:
    _expect(len(_kernels(f, torch.randn(64, 64))), 2, "kernel")


@_puzzle(
    4,
    "Break the fusion: `f(x)` returns `x.sin() + x.cos()`, and moves **more** than 64 KiB although 64 KiB are enough for 64 × 128.",
    "def f(x):\n    return x.sin() + x.cos()",
)
def _break_fusion(f: Callable[..., Any]) -> None:
    x = torch.randn(64, 128)
    assert is_close(f(x), x.sin() + x.cos(), 1e-4), "the result should be x.sin() + x.cos()."
    session = _record(f, (x,), backend="triton")
    moved = sum(k.bytes_moved or 0 for c in session.compilations for k in c.kernels)
    assert moved > 2 * x.nbytes, f"{moved:,} bytes are moved, which is the least."


PUZZLES: Mapping[int, Puzzle] = dict(enumerate(_FOUND, 1))
