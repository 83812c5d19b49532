"""Test what a session records and shows of kernels that ran on the CPU."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import engine
from engine import session_jobs
from engine.ir.kernels.llvm_machine import why_llvm_is_missing
from engine.records.session import Session
from notebook_ext.views.compilations import compilations, program_counts
from notebook_ext.views.explorer_parts import all_keys, all_parts, part
from notebook_ext.views.home import home
from notebook_ext.views.summary import summary

pytestmark = pytest.mark.skipif(bool(why_llvm_is_missing()), reason="llvmlite is not installed")


def scores(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Two lines that are fused into one kernel."""
    y = torch.nn.functional.gelu(x)
    return torch.softmax(y * w, -1)


def recorded(function: Any, *args: Any) -> Session:
    """Record a compiled call whose kernels run on this CPU."""
    before, engine.config.cpu_kernels = engine.config.cpu_kernels, True
    try:
        engine.reset()
        with engine.record() as session:
            result = engine.compile(function, backend="triton")(*args)
            if result.requires_grad:
                result.sum().backward()
    finally:
        engine.config.cpu_kernels = before
    assert session_jobs.wait(session, 120)
    return session


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A recorded call, verified and measured."""
    found = recorded(scores, torch.randn(32, 200), torch.randn(200))
    engine.verify(found)
    engine.measure_kernels(found)
    yield found
    engine.reset()


@pytest.mark.thorough
def test_bytes_of_symbolic_sizes_are_a_sentence() -> None:
    """Expressions in the kernel's symbols, and the sizes for which the table counts."""

    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    engine.reset()
    x = torch.randn(6, 4)
    engine.mark_dynamic(x, 0)
    found = recorded(scale, x)
    sentences = {re.sub(r"s\d+", "s0", row["counts"]) for row in part(found, "kernels")["rows"]}
    assert sentences == {"It moves 32*s0 B and computes 8*s0 FLOP, counted here for s0 = 6."}


def test_the_record_has_what_ran(session: Session) -> None:
    """The kernels that ran have their text, two listings, the CPU's name and the code's needs."""
    (compilation,) = session.compilations
    assert all(d.reason for d in compilation.cpu_program.decisions)
    (kernel,) = compilation.cpu_kernels
    assert (kernel.id, kernel.language, kernel.grid) == ("c0", "llvm", "(32)")
    assert "define i32 @" in kernel.text
    (target,) = kernel.targets
    assert [x.stage for x in target.listings] == ["llopt", "asm"]
    used = target.resources
    assert used is not None
    assert used.cpu
    assert used.lanes
    assert sum((used.instruction_mix or {}).values()) == target.listings[1].instructions
    assert {k.id for k in compilation.kernels}.isdisjoint({k.id for k in compilation.cpu_kernels})


def test_verify_runs_the_cpu_kernel_itself(session: Session) -> None:
    """The check runs the compiled kernel in this process, not Triton's interpreter."""
    (kernel,) = session.compilations[0].cpu_kernels
    assert kernel.verify is not None
    assert kernel.verify.where == "this CPU"
    assert kernel.verify.outcome in ("equal", "close")
    assert "verified on this CPU" in str(session.kernels)


def test_verify_finds_a_wrong_cpu_kernel() -> None:
    """A kernel that computes something else is different, with the element."""
    session = recorded(scores, torch.randn(8, 64), torch.randn(64))
    jobs = session_jobs._jobs_of(session)
    ((id, graphs),) = jobs.lowered_graphs.items()
    graph = next(g for g in graphs if g.program.target == "cpu")
    launch = next(step for step in graph.program.steps if hasattr(step, "kernel"))
    wrong = dataclasses.replace(launch.kernel, text=launch.kernel.text.replace("fmul", "fadd"))
    steps = tuple(dataclasses.replace(s, kernel=wrong) if s is launch else s for s in graph.program.steps)
    jobs.lowered_graphs[id] = (dataclasses.replace(graph, program=dataclasses.replace(graph.program, steps=steps)),)
    engine.verify(session)
    (kernel,) = session.compilations[0].cpu_kernels
    assert kernel.verify is not None
    assert kernel.verify.outcome == "different"
    assert "DIFFERENT" in summary(session).text


def test_timing_names_the_cpu_and_the_copy_rate(session: Session) -> None:
    """A measured kernel has its time, and the speed of a copy of this machine's memory."""
    (kernel,) = session.compilations[0].cpu_kernels
    assert kernel.measured is not None
    assert kernel.measured.device.startswith("this CPU, ")
    assert 0 < kernel.measured.seconds < 10
    assert kernel.measured.copy_rate is not None
    assert kernel.measured.copy_rate > 1e8


def test_the_summary_says_what_ran_here(session: Session) -> None:
    """The kernels that computed the results come first, with their check."""
    text = summary(session, timed=False).text
    assert "1 kernel ran on this CPU, all checked (largest difference" in text
    assert "for cuda:90, compiled only" in text
    assert "results: ATen" not in text
    link = next(i for i in summary(session).items if i.target == "kernels|cpu")
    assert link.text == "1 kernel"


def test_linked_panes_of_the_cpu(session: Session) -> None:
    """The ladder is loop IR, LLVM IR, optimized IR, assembly; each user line has instructions."""
    found = part(session, f"linked|{session.compilations[0].id}|cpu")
    machine = [p for p in found["panes"] if p["id"] in ("loop", "triton", "llopt", "asm")]
    assert [p["title"] for p in machine][:3] == ["Loop IR", "LLVM IR", "Optimized IR"]
    assert machine[3]["title"] in ("x86-64", "AArch64")
    assert found["targets"] == ["cuda:90", "cpu"]
    assert "instructions reach an LLVM IR line" in machine[3]["note"]
    reached = {line for line in origins(found, machine[3]) if line}
    source = found["panes"][0]
    named = {int(row) for row, ordinal in found["ordinals"].items() if int(row) < source["rows"]}
    assert named <= reached


def origins(found: dict[str, Any], pane: dict[str, Any]) -> Iterator[int]:
    """Yield the source rows that the rows of a pane come from."""
    waiting, seen = list(range(pane["first"], pane["first"] + pane["rows"])), set()
    while waiting:
        row = waiting.pop()
        if row in seen:
            continue
        seen.add(row)
        up = found["up"][row]
        waiting += up if isinstance(up, list) else [up] if up >= 0 else []
    yield from (row for row in seen if row < found["panes"][0]["rows"])


def test_the_default_target_stays(session: Session) -> None:
    """The linked view opens with the requested target; the CPU is one more."""
    assert part(session, f"linked|{session.compilations[0].id}|")["target"] == "cuda:90"
    assert f"linked|{session.compilations[0].id}|cpu" in list(all_keys(session))


def test_rows_of_the_kernels_view(session: Session) -> None:
    """The kernels view has a row for each program's kernels, with the facts of a CPU."""
    found = part(session, "kernels|")
    assert found["targets"] == ["cuda:90", "cpu"]
    (row,) = (r for r in found["rows"] if r["is_cpu"])
    made = row["targets"]["cpu"]
    assert made["vector"]
    assert made["instructions"]["asm"] == sum(made["mix"].values())
    assert row["measured"]["copy"] > 0
    assert any(not r["is_cpu"] for r in found["rows"])


def test_saved_sessions_show_the_same(session: Session, tmp_path: pathlib.Path) -> None:
    """A session opened elsewhere has the kernels that ran; one saved before has none."""
    path = tmp_path / "session.json"
    session.save(path)
    loaded = Session.load(path)
    assert loaded.compilations == session.compilations
    assert set(all_parts(loaded)) == set(all_parts(session))
    plain = json.loads(path.read_text(encoding="utf-8"))
    for compilation in plain["compilations"]:
        del compilation["lowering"]["cpu"]
    path.write_text(json.dumps(plain), encoding="utf-8")
    older = Session.load(path)
    assert older.compilations[0].cpu_kernels == ()
    assert [p["id"] for p in part(older, f"linked|{session.compilations[0].id}|")["panes"]] == [
        p["id"] for p in part(session, f"linked|{session.compilations[0].id}|")["panes"]
    ]


@pytest.mark.thorough
def test_the_backward_has_cpu_kernels() -> None:
    """Kernels of a backward run on the CPU too, are recorded once, and verified."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.LayerNorm(16))
    session = recorded(model, torch.randn(4, 8))
    kernels = [k for c in session.compilations for k in c.cpu_kernels]
    assert any(k.id.startswith("bc") for k in kernels)
    assert len({k.id for k in kernels}) == len(kernels)
    assert all(k.targets for k in kernels)
    engine.verify(session)
    outcomes = {k.verify.outcome for c in session.compilations for k in c.cpu_kernels if k.verify is not None}
    assert "different" not in outcomes
    assert any(c.cpu_program.has_backward for c in session.compilations)
    assert "After the first backward, calls run in ATen" in part(session, "kernels")["later_calls"]


def test_counts_are_of_the_programs_that_ran() -> None:
    """Views count the CPU program; without a kernel each operator is an ATen call."""

    def both(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(x) * 2
        engine.graph_break()
        return (y @ w) @ w

    session = recorded(both, torch.randn(64, 64), torch.randn(64, 64))
    figures = {f["name"]: f["value"] for f in home(session)["figures"]}
    assert (figures["CPU kernels"], figures["ATen calls"]) == ("1", "2")
    table = compilations(session)
    assert table["kernel_title"] == "CPU kernels"
    assert [(r["kernels"], r["externs"]) for r in table["rows"]] == [(1, 0), (0, 2)]
    assert "1 kernel and 2 ATen calls ran on this CPU" in summary(session).text
    programs = part(session, f"brief|{session.compilations[0].id}")["programs"]
    assert ("Kernels", "1") in [fact[:2] for fact in programs["cpu"]]
    assert set(programs) == {"cpu", session.target}


@pytest.mark.thorough
def test_aten_calls_of_a_forward_without_kernels_are_counted_beside_a_backward_with_some() -> None:
    """ATen runs the forward of a small network here, and some of its backward."""
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    made = recorded(net, torch.randn(32, 20))
    (compilation,) = made.compilations
    assert compilation.cpu_program.reason
    assert compilation.cpu_program.has_backward
    kernels, calls = program_counts(made, made.compilations)
    assert calls == len(compilation.cpu_program.externs) + 3  # addmm, relu, addmm
    assert kernels == len(compilation.cpu_kernels)
