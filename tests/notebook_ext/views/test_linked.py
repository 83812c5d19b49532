"""Panes and links of the linked view."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import engine
from engine.records.bytecode import SourceFile
from engine.records.kernels import KernelRecord, LineLink, Listing, TargetRecord
from engine.records.lowering import LoweringRecord
from engine.records.session import CompilationRecord, Session
from engine.records.trace import BreakRecord, TraceRecord
from notebook_ext.views.linked.listing_text import readable_lines
from notebook_ext.views.linked.row_links import linked, pane_text
from tests.notebook_ext.sample_sessions import head_session, hostile_session, large_session


def pane(part: dict[str, Any], wanted: str) -> dict[str, Any]:
    """One pane of a part."""
    return next(p for p in part["panes"] if p["id"] == wanted)


def ups(part: dict[str, Any], row: int) -> list[int]:
    """Rows that a row came from."""
    up = part["up"][row]
    return up if isinstance(up, list) else [] if up < 0 else [up]


def roots(part: dict[str, Any], row: int) -> set[int]:
    """Source rows behind a row, however far up."""
    if row < pane(part, "source")["rows"]:
        return {row}
    return {root for up in ups(part, row) for root in roots(part, up)}


def test_every_stage_has_a_pane_in_the_order_of_the_way_through() -> None:
    """From source to machine code, each pane names the one it comes from."""
    panes = linked(head_session(), "0/0")["panes"]
    assert [(p["id"], p["parent"]) for p in panes] == [
        ("source", ""),
        ("bytecode", "source"),
        ("fx", "source"),
        ("aten", "fx"),
        ("loop", "aten"),
        ("triton", "loop"),
        ("ttir", "triton"),
        ("ttgir", "triton"),
        ("llir", "triton"),
        ("ptx", "triton"),
        ("sass", "ptx"),
    ]


def test_machine_code_leads_back_to_the_line_that_caused_it() -> None:
    """The reductions of softmax, in PTX and SASS, come from line 12 and from nothing else."""
    part = linked(head_session(), "0/0")
    for stage, word in (("ptx", "max.f32"), ("sass", "FMNMX")):
        texts, first = part["texts"][stage], pane(part, stage)["first"]
        found = [roots(part, first + i) for i, text in enumerate(texts) if word in text]
        assert found
        assert all(rows == {11} for rows in found)


def test_lines_are_numbered_in_order_of_first_use() -> None:
    """The caller's line comes before the line of the function inlined there."""
    ordinals = linked(head_session(), "0/0")["ordinals"]
    assert ordinals == {"10": 1, "7": 2, "11": 3, "12": 4, "13": 5, "14": 6}


def test_an_inlined_node_keeps_the_lines_that_called_it() -> None:
    """A node of the helper on line 8 is linked to line 8, and to line 11 as its caller."""
    part = linked(head_session(), "0/0")
    fx = pane(part, "fx")
    row = fx["first"] + next(i for i, t in enumerate(part["texts"]["fx"]) if t.startswith("masked_fill"))
    assert ups(part, row) == [7]
    assert part["callers"][str(row)] == [10]
    assert part["marks"][str(row)] == [7, 15, 41]


def test_what_has_no_origin_says_why() -> None:
    """Each instruction has a Triton line or a label."""
    part = linked(head_session(), "0/0")
    ptx = pane(part, "ptx")
    for row in range(ptx["first"], ptx["first"] + ptx["rows"]):
        head = row - ptx["first"] in ptx["heads"]
        assert head or ups(part, row) or part["labels"][row]


def test_a_node_left_to_aten_says_so() -> None:
    """The reason of an ATen call travels with its node."""
    part = linked(head_session(), "0/0")
    assert [part["strings"][i] for i in part["fates"].values()] == ["ATen fallback: a view: index arithmetic, no bytes"]


def test_empty_panes_give_their_reason() -> None:
    """Each empty pane shows its reason.

    The reasons: not compiled yet, no kernels with this backend, lowering failed, frame skipped, needs Linux.
    """
    session = head_session()
    assert "is not compiled for" in pane(linked(session, "0/1"), "ptx")["empty"]
    session.add_note("PTX and SASS need Linux.")
    assert pane(linked(session, "0/1"), "sass")["empty"] == "PTX and SASS need Linux."
    record = session.compilation("0/0")
    eager = replace(record, kernels=(), lowering=None, backend="eager")
    session.put_compilation(eager)
    assert "eager" in pane(linked(session, "0/0"), "triton")["empty"]
    session.put_compilation(replace(eager, lowering=LoweringRecord("cuda:90", error="the graph has a complex dtype")))
    assert "complex dtype" in pane(linked(session, "0/0"), "triton")["empty"]
    skipped = BreakRecord("generator", "A generator runs as Python", "yield", skips_frame=True)
    session.put_compilation(CompilationRecord("9/0", "0", "", trace=TraceRecord(breaks=(skipped,))))
    assert "frame skipped" in pane(linked(session, "9/0"), "fx")["empty"]
    failed = replace(record.kernels[0], targets=(TargetRecord("cuda:90", error="ptxas ran out of registers"),))
    session.put_compilation(replace(record, kernels=(failed,)))
    assert "ptxas ran out of registers" in pane(linked(session, "0/0"), "ptx")["empty"]


def test_stock_torch_compile_without_kernels_says_what_ran() -> None:
    """A backend without kernels has no pane of Triton code or of Inductor's program."""
    made = head_session()
    record = replace(made.compilation("0/0"), kernels=(), lowering=None, backend="", aot=None, compiler="torch")
    session = Session(subject="torch")
    for file in made.files:
        session.add_file(file)
    session.put_compilation(record)
    panes = {p["id"]: p for p in linked(session, "0/0")["panes"]}
    assert "program" not in panes
    assert panes["triton"]["title"] == "Kernels"
    assert panes["triton"]["empty"].startswith("No kernels: the backend runs the ATen graph operator by operator")


def test_a_part_is_small_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The structure of 10,000 lines of PTX and SASS stays below 200 kB of JSON.

    The text of the lines is sent separately.
    """
    session = large_session()
    part = linked(session, "0/0")
    assert len(json.dumps(part)) < 200_000
    assert "ptx" not in part["texts"]
    assert len(pane_text(session, "0/0", "cuda:90", "ptx")) == 10_000
    json.dumps(linked(hostile_session(), "0/0"))


def test_a_kernel_launched_twice_is_shown_once() -> None:
    """Twelve equal blocks may share a kernel: its lines are not repeated."""
    session = head_session()
    record = session.compilation("0/0")
    session.put_compilation(replace(record, kernels=(record.kernels[0], record.kernels[0])))
    assert [k["id"] for k in linked(session, "0/0")["kernels"]] == ["k0"]


def test_sass_is_joined_through_ptx() -> None:
    """A SASS line that names its PTX line links to it, and through it to the Triton line."""
    session = Session(target="cuda:90")
    ptx = Listing("ptx", "// head\n\tmov.u32 %r1;\n.loc 1 2 3\n\tadd.f32 %f1;", (LineLink(2, 1), LineLink(4, 2)))
    sass = Listing(
        "sass", "/*0000*/ MOV R1;\n/*0010*/ FADD R2;", (LineLink(1, 1, ptx_line=2), LineLink(2, 2, ptx_line=4))
    )
    kernel = KernelRecord("k0", "k", "a\nb", targets=(TargetRecord("cuda:90", (ptx, sass)),))
    session.put_compilation(CompilationRecord("0/0", "0", "", kernels=(kernel,)))
    part = linked(session, "0/0")
    first = {p["id"]: p["first"] for p in part["panes"]}
    assert part["texts"]["ptx"] == ["  mov.u32 %r1;", "  add.f32 %f1;"]
    assert part["texts"]["sass"] == ["0000  MOV R1;", "0010  FADD R2;"]
    assert pane(part, "ptx")["numbers"] == ["2", "4"]
    assert ups(part, first["sass"] + 1) == [first["ptx"] + 1, first["triton"] + 1]


def test_long_files_are_cut_around_what_is_used_and_the_rest_is_counted() -> None:
    """Of a file of 2,000 lines only the surroundings of lines in use are shown."""
    session = large_session(10)
    text = "\n".join(f"line {i}" for i in range(1, 2_001))
    data = session.to_data()
    session = Session.from_data(replace(data, files=(SourceFile("big.py", "model.py", text),)))
    part = linked(session, "0/0")
    texts = part["texts"]["source"]
    assert len(texts) < 150
    assert any("lines not used in this" in t for t in texts)
    row = next(i for i, t in enumerate(texts) if t == "line 50")
    assert pane(part, "source")["numbers"][row] == "50"


@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux only")
def test_a_real_kernel_loses_its_debug_lines_and_no_instruction() -> None:
    """Real listings show every counted instruction and almost nothing else.

    At least 95 % of the instructions have a Triton line or a label.
    """
    from engine.ir.kernels.generated_kernel import GeneratedKernel, KernelArg
    from engine.kernels.compile_kernel import compile_kernel

    text = (
        "import triton\nimport triton.language as tl\n\n@triton.jit\ndef k(x_ptr, y_ptr, BLOCK: tl.constexpr):\n"
        "    at = tl.arange(0, BLOCK)\n    x = tl.load(x_ptr + at)\n    tl.store(y_ptr + at, x / tl.sum(tl.exp(x), 0))\n"
    )
    args = (
        KernelArg("x_ptr", "pointer", "*fp32", "x"),
        KernelArg("y_ptr", "pointer", "*fp32", "y", is_written=True),
        KernelArg("BLOCK", "constexpr", "constexpr", value=256),
    )
    lines = text.splitlines()
    record = compile_kernel(GeneratedKernel("k0", "k", text, args, (1,), tuple(() for _ in lines), (), ()), "cuda:90")
    assert record.error == ""
    for listing in record.listings:
        shown = dict(readable_lines(listing))
        linked_lines = {link.line for link in listing.links}
        assert linked_lines <= set(shown)
        assert not any(".loc" in t or "!dbg" in t or "loc(#loc" in t for t in shown.values())
        assert len(shown) <= 2 * listing.instructions + 60
        assert listing.linked + listing.labelled >= 0.95 * listing.instructions


def test_a_container_of_the_library_is_shown_as_its_modules_below_the_users_call() -> None:
    """Operations of an ``nn.Sequential`` come from its modules, not from one line.

    The user's file stands first with the line of the call; the library's lines are cut to those in use.
    """
    net = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.GELU(), nn.LayerNorm(8)))
    with engine.record() as session:
        engine.compile(net, backend="eager")(torch.ones(2, 4))
    part = linked(session, session.compilations[0].id)
    source, fx = pane(part, "source"), pane(part, "fx")
    texts = part["texts"]["source"]
    assert texts[0] == "test_linked.py"
    assert source["note"] == "test_linked.py and 1 more file"
    modules = texts.index("Modules")
    assert texts[modules + 1 : modules + 4] == ["0  linear", "1.0  gelu", "1.1  layer_norm"]
    assert texts[modules + 4] == "container.py, library code"
    assert len(texts) - modules < 12
    rows = {t.split(" = ")[0]: fx["first"] + i for i, t in enumerate(part["texts"]["fx"]) if " = " in t}
    assert {name: ups(part, row) for name, row in rows.items()} == {
        "linear": [modules + 1],
        "gelu": [modules + 2],
        "layer_norm": [modules + 3],
    }
    call = next(i for i, t in enumerate(texts) if 'backend="eager")(torch.ones(2, 4))' in t)
    assert all(call in part["callers"][str(row)] for row in rows.values())
    assert part["ordinals"][str(call)] == 1


def test_modules_of_a_container_that_the_users_forward_calls_are_separate() -> None:
    """One line of the user that calls a Sequential does not stand for all of it."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 8), nn.GELU())
            self.head = nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x))

    with engine.record() as session:
        engine.compile(Net(), backend="eager")(torch.ones(2, 4))
    part = linked(session, session.compilations[0].id)
    texts = part["texts"]["source"]
    line = next(i for i, t in enumerate(texts) if "return self.head(self.body(x))" in t)
    found = {t.split(" = ")[0]: pane(part, "fx")["first"] + i for i, t in enumerate(part["texts"]["fx"]) if " = " in t}
    assert [texts[ups(part, row)[0]] for row in found.values()] == ["body.0  linear", "body.1  gelu", texts[line]]
    assert line in part["callers"][str(found["linear"])]


def test_the_bytecode_of_inlined_functions_stands_below_the_functions_own() -> None:
    """Each traced function of the user has its instructions, once, linked to its lines."""

    def halve(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    def both(x: torch.Tensor) -> torch.Tensor:
        return halve(x) + halve(x * 2)

    with engine.record() as session:
        engine.compile(both, backend="eager")(torch.ones(2))
    part = linked(session, session.compilations[0].id)
    bytecode, texts = pane(part, "bytecode"), part["texts"]["bytecode"]
    assert len(bytecode["heads"]) == 2
    assert "halve, inlined, test_linked.py" in texts[bytecode["heads"][1]]
    source = part["texts"]["source"]
    line = next(i for i, t in enumerate(source) if "return x / 2" in t)
    rows = [i for i, t in enumerate(texts) if t.startswith("BINARY_OP") and "/" in t]
    assert [ups(part, bytecode["first"] + row) for row in rows] == [[line]]


@pytest.mark.parametrize(
    ("stage", "text", "lines"),
    [
        ("ttir", "#loc1 = loc(unknown)\nmodule {\n  %0 = tt.load %p : f32 loc(#loc2)\n}\n\n", {2: "module {", 3: "  %0 = tt.load %p : f32", 4: "}"}),
        ("llir", 'source_filename = "k"\n  %1 = add i32 %0, 1, !dbg !5\n  ret void !dbg !6\n!5 = !{}\n', {2: "  %1 = add i32 %0, 1", 3: "  ret void"}),
        ("ptx", "\t.loc 1 2 3\n$L__tmp0:\n\tadd.s32 \t%r1,  %r2, \t 1;  // note\n$L__BB0:\n\tret;\n\t.section\t.debug_loc\n\tb8 1\n", {3: "  add.s32 %r1,  %r2, 1;", 4: "$L__BB0:", 5: "  ret;"}),
        ("amdgcn", "; note\n\ts_endpgm \t; note\n\t.cfi_endproc\n", {2: "  s_endpgm ; note"}),
        ("sass", "  /*0010*/ IMAD R0, R0, 0x4, R15;\n\n.L_0:\n", {1: "0010  IMAD R0, R0, 0x4, R15;", 3: ".L_0:"}),
        ("asm", "k:\n\tmov \trax,\t1\n\n", {1: "k:", 2: "  mov rax, 1", 3: "", 4: ""}),
    ],
)  # fmt: skip
def test_a_listing_is_shown_without_debug_information(stage: str, text: str, lines: dict[int, str]) -> None:
    """Lines retain their numbers; positions, debug sections and wide tabs are removed."""
    assert dict(readable_lines(Listing(stage, text))) == lines
