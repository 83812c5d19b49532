"""Entries by their symbolic signatures, and the order in which calls check them."""

from __future__ import annotations

import re

import numpy as np
import torch

import engine
from engine.records.bytecode import Span
from engine.records.guards import ObservedSymbolRecord, name_accessors
from engine.records.session import Session
from engine.records.session_data import CompilationRecord, FrameRecord
from engine.records.trace import SymbolAssumption, TracedSymbolRecord, TraceRecord
from notebook_ext.views.entry_signature import entry_signature
from notebook_ext.views.explorer_parts import overview
from notebook_ext.views.format_text import format_change, tensor_type
from notebook_ext.views.guards import guards
from notebook_ext.views.home import home
from notebook_ext.views.recompiles import recompiles
from notebook_ext.views.source_lines import frame_name


def test_an_entry_is_labeled_with_the_sizes_it_is_valid_for() -> None:
    """A size that is a symbol stands by its name, with its conditions."""

    def scale(x: torch.Tensor, by: float) -> torch.Tensor:
        return x.sum(0) * by

    with engine.record() as session:
        compiled = engine.compile(scale, backend="eager")
        for rows in (4, 8, 16):
            compiled(torch.ones(rows, 32), 2.0)
        compiled(torch.ones(4, 32), 3.0)
    (lane,) = recompiles(session)["lanes"]
    name = session.compilations[1].trace.symbols[0].name  # type: ignore[union-attr]
    assert [e["inputs"] for e in lane["entries"]] == [
        "x f32[4, 32], by 2.0",
        f"x f32[{name}, 32], by 2.0, {name} >= 2",
        f"x f32[{name}, 32], by any float, {name} >= 2",
    ]
    assert [c["varying"] for c in lane["columns"]][2:] == [["x f32[16, 32]", "by 2.0"], ["x f32[4, 32]", "by 3.0"]]


def test_entries_that_differ_in_an_attribute_are_told_apart() -> None:
    """Only a constant that another entry expects otherwise stands in the label."""

    class Gate(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mode, self.bias = "train", True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1 if self.bias else x
            return y * 2 if self.mode == "train" else y

    gate = Gate()
    with engine.record() as session:
        compiled = engine.compile(gate, backend="eager")
        compiled(torch.ones(3))
        gate.mode = "eval"
        compiled(torch.ones(3))
    assert [entry_signature(session, c) for c in session.compilations] == [
        "x f32[3], self.mode 'train'",
        "x f32[3], self.mode 'eval'",
    ]


def test_an_array_is_labeled_with_its_type_and_sizes() -> None:
    """A NumPy array as an input is described as a tensor is."""
    with engine.record() as session:
        engine.compile(lambda a: torch.from_numpy(a) + 1, backend="eager")(np.ones((4, 2), "float32"))
    assert entry_signature(session, session.compilations[0]) == "a ndarray float32[4, 2]"


def test_each_call_lists_the_entries_in_the_order_they_were_checked() -> None:
    """The entry used last is checked first, whatever the order of compilation."""

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with engine.record() as session:
        compiled = engine.compile(double, backend="eager", dynamic=False)
        for rows in (4, 8, 4, 8, 6):
            compiled(torch.ones(rows))
    (lane,) = recompiles(session)["lanes"]
    entries = [[e.rpartition("/")[2] for e in c["order"]] for c in lane["columns"]]
    assert entries == [["0"], ["0", "1"], ["1", "0"], ["0", "1"], ["1", "0", "2"]]


def test_the_place_of_a_failure_in_a_library_is_the_users_call() -> None:
    """The line of the library that read the value comes second."""

    @torch.no_grad()
    def scale(x: torch.Tensor, **by: int) -> torch.Tensor:
        return x * sum(by.values())

    with engine.record() as session:
        compiled = engine.compile(scale, backend="eager")
        compiled(torch.ones(2), a=1)
        compiled(torch.ones(2), b=1)
    (lane,) = recompiles(session)["lanes"]
    (rejection,) = lane["columns"][1]["rejections"]
    user, library = rejection["place"].split(" (")
    assert user.endswith("of test_recompiles.py")
    assert library.endswith("of _contextlib.py)")
    assert rejection["source"].strip() == "compiled(torch.ones(2), b=1)"


def test_conditions_and_symbols_without_a_place_of_their_own() -> None:
    """Value ranges and assumptions follow; a size inside a container is named by its source."""
    symbols = (
        TracedSymbolRecord("s0", ("x.shape[0]",), "8", "", 2, 64, (SymbolAssumption("s0 % 2 == 0"),)),
        TracedSymbolRecord("s1", ("xs[0].shape[1]",), "8", "", 2),
        TracedSymbolRecord("s2", ("n",), "5", "", specialized_to="5"),
    )
    record = CompilationRecord(
        "0/0",
        "0",
        "first call",
        inputs={"self": "M", "x": "f32[8]", "xs": "list of 1", "n": "5"},
        trace=TraceRecord(symbols=symbols),
    )
    assert (
        entry_signature(Session(), record)
        == "x f32[s0], xs list of 1, n 5, s1 = xs[0].shape[1], 2 <= s0 <= 64, s0 % 2 == 0, s1 >= 2"
    )


def test_symbols_of_stock_torch_compile_are_read_too() -> None:
    """Its sources and ranges have a spelling of their own."""
    observed = (ObservedSymbolRecord("s0", "L['x'].size()[0]", "8", "VR[2, int_oo]"),)
    record = CompilationRecord("0/0", "0", "first call", inputs={"x": "f32[8, 4]"}, observed_symbols=observed)
    assert entry_signature(Session(), record) == "x f32[s0, 4], s0 >= 2"


def test_symbols_of_strides_are_named_as_strides() -> None:
    """A stride is no size; one that is computed from sizes is not shown."""
    engine.reset()
    with engine.record() as session:
        images, rows = (engine.compile(f, backend="eager") for f in (lambda x: x * 2, lambda y: y.sin()))
        base = torch.ones(40, 30)
        for n in (4, 8):
            images(torch.ones(2, 3, n, n))
        for n in (4, 8):
            rows(base[:n, :n])
    _, image, _, row = session.compilations
    traced = image.trace
    assert traced is not None
    names = {s.sources[0]: s.name for s in traced.symbols}
    assert sorted(names) == ["x.shape[2]", "x.shape[3]", "x.stride(0)", "x.stride(1)", "x.stride(2)"]
    sizes = f"{names['x.shape[2]']}, {names['x.shape[3]']}"
    text = entry_signature(session, image)
    assert text.startswith(f"x f32[2, 3, {sizes}], ")
    assert not any(names[f"x.stride({n})"] in text for n in range(3))
    assert "= y.stride(0)" in entry_signature(session, row)


def test_contiguous_inputs_show_no_strides() -> None:
    """Strides of contiguous inputs say nothing; a transposed one's is named."""
    engine.reset()
    with engine.record() as session:
        product, total = (engine.compile(f, backend="eager") for f in (lambda a, b: a @ b, lambda a: a.sum(-1)))
        for n in (4, 5):
            product(torch.ones(n, n + 4), torch.ones(n + 4, 3 * n))
            total(torch.ones(n + 4, n).t())
    signatures = [entry_signature(session, c) for c in session.compilations]
    assert ["stride(" in s for s in signatures] == [False, False, False, True], signatures
    assert "= a.stride(1)" in signatures[-1]


def test_many_symbols_that_belong_to_no_listed_input_are_counted() -> None:
    """Six tensors in a list have six sizes: four are named."""
    engine.reset()
    grow = engine.compile(lambda past: [t + 1 for t in past], backend="eager")
    with engine.record() as session:
        for n in (4, 20):
            grow([torch.ones(n + i) for i in range(6)])
    text = entry_signature(session, session.compilations[-1])
    assert text.count(".shape[0]") == 4
    assert "2 more symbols" in text


def test_an_item_of_a_value_without_a_name_is_said_in_words() -> None:
    """What crosses a graph break has no name, nor have its items."""
    assert format_change("L['__stack_0'][0][1]", "shape", "[2]", "[3]") == (
        "size(0) of item 1 of item 0 of a value at a graph break 2 -> 3"
    )
    carried = "a value carried over the graph break"
    assert name_accessors(f"item 0 of {carried}.shape[0]", carried) == f"size 0 of item 0 of {carried}"
    assert name_accessors(f"{carried} is None.", carried) == f"{carried} is None."


def test_all_views_give_a_call_the_same_number() -> None:
    """Calls of another frame do not shift it: a recompile opens the guards of its own call."""

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        engine.graph_break()
        return y + 1

    with engine.record() as session:
        compiled = engine.compile(broken, backend="eager", dynamic=False)
        for rows in (4, 4, 8):
            compiled(torch.ones(rows))
    for lane in recompiles(session)["lanes"]:
        (refused,) = [c["first"] for c in lane["columns"] if c["outcome"] == "compiled" and c["first"] > 1]
        assert refused == 3
        assert [case["call"] for case in guards(session, f"{lane['frame']}/0")["cases"]] == [refused]
        assert "guard failure in call 3" in str(session.guards)
        assert f"call {refused} of {broken.__qualname__}: compiled {lane['frame']}/1" in str(session.runtime)


def scale_twice(x: torch.Tensor, rate: float) -> torch.Tensor:
    """A function that is compiled again for another rate."""
    print(x.sum()), print(x.mean())
    return x * rate if rate > 0.1 else x


def test_numbers_are_named_as_the_user_does() -> None:
    """A float has its own name in conditions, and few digits; a finite one is called so."""
    engine.reset()
    with engine.record() as session:
        compiled = engine.compile(lambda x, rate: x * rate if rate > 0.1 else x, backend="eager")
        for rate in (0.123456789012, 0.2):
            compiled(torch.ones(2), rate)
    first, second = (entry_signature(session, c) for c in session.compilations)
    assert (first, second) == ("x f32[2], rate 0.1235", "x f32[2], rate float, rate > 0.1")
    (lane,) = recompiles(session)["lanes"]
    assert lane["columns"][0]["varying"] == ["rate 0.1235"]
    guards = session.compilations[1].guards
    assert guards is not None
    relations = [g.expected for g in guards.guards if g.kind == "shape relation"]
    assert sorted(relations) == ["rate > 0.1", "rate is finite"]


def test_an_upper_bound_that_the_range_implies_is_not_repeated() -> None:
    """``s0 < 50`` says nothing beside ``1 <= s0 <= 49``."""
    assumptions = (SymbolAssumption("s0 < 50"), SymbolAssumption("s0 <= 40"))
    traced = TraceRecord(symbols=(TracedSymbolRecord("s0", ("n",), "8", "", 1, 49, assumptions),))
    record = CompilationRecord("0/0", "0", "first call", inputs={"n": "8"}, trace=traced)
    assert entry_signature(Session(), record) == "n s0, 1 <= s0 <= 49, s0 <= 40"


def test_an_input_that_is_another_one_has_no_sizes_of_its_own() -> None:
    """The sizes of the first call would contradict the symbols of the input that it must be."""
    engine.reset()
    with engine.record() as session:
        compiled = engine.compile(lambda q, k: q @ k.mT, backend="eager")
        for length in (4, 6):
            compiled(x := torch.ones(length, 8), x)
    signature = entry_signature(session, session.compilations[-1])
    assert re.fullmatch(r"q f32\[(s\d+), 8\], k is q, \1 >= 2", signature), signature


def test_two_resume_functions_of_one_line_have_two_names() -> None:
    """Both resume after one line: the call that broke the graph tells them apart."""
    engine.reset()
    with engine.record() as session:
        engine.compile(scale_twice, backend="eager")(torch.ones(2), 0.5)
    names = [frame_name(session, f.id) for f in session.frames if f.role == "resume"]
    assert len(names) == 2
    assert names[0].endswith(" (print(x.sum()))"), names
    assert names[1].endswith(" (print(x.mean()))"), names
    assert [lane["name"] for lane in recompiles(session)["lanes"]][1:] == names


def signed(x: torch.Tensor) -> torch.Tensor:
    """A function with a graph break and two resume functions."""
    if x.sum() > 0:
        return x * 2
    return x * 3


double, triple = (
    (lambda x: x * 2),
    (lambda x: x * 3),
)


def test_the_two_paths_after_one_condition_have_two_names() -> None:
    """Every view names both: the line of the condition does not tell them apart."""
    engine.reset()
    with engine.record() as session:
        compiled = engine.compile(signed, backend="eager")
        for x in (torch.ones(2), -torch.ones(2)):
            compiled(x)
    named = [lane["name"] for lane in recompiles(session)["lanes"]]
    assert [n.rpartition(", ")[2] for n in named[1:]] == ["path 1", "path 2"]
    assert [e["name"] for e in overview(session)["entries"]] == named


def test_functions_of_one_name_have_their_lines() -> None:
    """Home, its table and Recompiles name two lambdas alike, in the same order."""
    engine.reset()
    with engine.record() as session:
        for f in (double, triple):
            engine.compile(f, backend="eager")(torch.ones(2))
    told = home(session)
    named = [row["name"] for row in told["compiled"]]
    assert len(set(named)) == 2
    assert all(" (line " in name for name in named)
    assert [lane["name"] for lane in recompiles(session)["lanes"]] == named
    assert told["outcome"].startswith(" and ".join(named))


def test_a_resume_function_stands_below_its_function() -> None:
    """Its first call may follow one of another function."""
    session = Session()
    for id, name, parent in (("0", "f", ""), ("1", "g", ""), ("2", "f", "0")):
        after = Span("file", 3) if parent else None
        session.add_frame(FrameRecord(id, name, "file", 1, "resume" if parent else "root", parent, after))
        session.put_compilation(CompilationRecord(f"{id}/0", id, "first call"))
    assert [lane["name"] for lane in recompiles(session)["lanes"]] == ["f", "f after line 3", "g"]


def test_the_cause_that_home_names_comes_first() -> None:
    """A call asks the newest entry first, but another entry may fit it better."""

    def blend(x: torch.Tensor, names: tuple[str, ...]) -> torch.Tensor:
        for _ in names:
            x = x + 1
        return x.sin()

    engine.reset()
    with engine.record() as session:
        compiled = engine.compile(blend, backend="eager", dynamic=False)
        for x, names in ((torch.ones(2), ()), (torch.ones(2), ("a",)), (torch.ones(3), ())):
            compiled(x, names)
    (lane,) = recompiles(session)["lanes"]
    last = lane["columns"][-1]
    assert last["order"][0].endswith("/1")
    assert last["rejections"][0]["short"] == "x.size(0) 2 -> 3"
    assert any(f["title"].endswith("blend recompiles: x.size(0) 2 -> 3") for f in home(session)["findings"])


def test_hits_that_a_log_does_not_hold_are_not_counted() -> None:
    """A trace of torch.compile holds misses only: zero hits would be a claim."""
    session = Session(subject="torch")
    session.add_frame(FrameRecord("0", "f", "file", 1))
    session.put_compilation(CompilationRecord("0/0", "0", "first call", compiler="torch"))
    assert recompiles(session)["lanes"][0]["hits"] is None


@torch.no_grad()
def halve(x: torch.Tensor) -> torch.Tensor:
    """A function behind a decorator of torch."""
    return x / 2


def test_a_decorated_function_has_its_own_line() -> None:
    """What runs is a wrapper in torch's file; the reader looks for the function."""
    engine.reset()
    with engine.record() as session:
        engine.compile(halve, backend="eager")(torch.ones(2))
    (lane,) = recompiles(session)["lanes"]
    assert "_contextlib" not in lane["line"]


def test_numbers_of_a_graph_have_plain_types() -> None:
    """torch's names of symbolic numbers are not shown."""
    assert [tensor_type(t, None) for t in ("SymInt(s0 + 1)", "SymFloat(zuf0)", "SymBool(zf1 > 0.1)", "float32")] == [
        "int s0 + 1",
        "float",
        "bool",
        "f32",
    ]


def test_a_signature_defines_each_symbol_that_a_grid_names() -> None:
    """A stride follows from the size, but a grid that names its symbol needs its definition."""

    def embeds(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(ids, table).sin()

    with engine.record() as session:
        compiled = engine.compile(embeds)
        for length in (12, 13):
            compiled(torch.zeros(2, length, dtype=torch.int64), torch.ones(4, 32))
    last = session.compilations[-1]
    grids = " ".join(kernel.grid for kernel in last.kernels)
    signature = entry_signature(session, last)
    assert set(re.findall(r"\bs\d+", grids)) <= set(re.findall(r"\bs\d+", signature)), (grids, signature)
