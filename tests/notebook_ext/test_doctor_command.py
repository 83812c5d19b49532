"""Command and function ``doctor``: findings, JSON, exit status, kinds of logs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import engine
from notebook_ext.__main__ import main

HEAD = "V0516 11:47:27.901000 {process} torch/_dynamo/utils.py:634]"
BREAK = 'Graph Break Reason: Data-dependent branching\n  Explanation: it reads a value\n  Hint: Use torch.where.\nUser code traceback:\n  File "/home/me/model.py", line 31, in forward\n    if x.sum() > 0:\n'
GRAPH = 'class <lambda>(torch.nn.Module):\n    def forward(self, arg0_1: "f32[2][1]cpu"):\n        # File: /home/me/model.py:8 in forward, code: y = x.sin()\n        sin: "f32[2][1]cpu" = torch.ops.aten.sin.default(arg0_1);  arg0_1 = None\n        return (sin,)\n'


def record(facts: dict[str, Any], text: str = "", process: int = 1500233) -> str:
    """One record of a log."""
    head = HEAD.format(process=process)
    if not text:
        return f"{head} {json.dumps(facts)}\n"
    facts = {**facts, "has_payload": hashlib.md5(text.encode()).hexdigest()}
    return f"{head} {json.dumps(facts)}\n" + "".join(f"\t{line}\n" for line in text.split("\n"))


def broken_log(process: int = 1500233) -> str:
    """A log of one compilation with a graph break and a skipped CUDA graph."""
    ids = {"frame_id": 0, "frame_compile_id": 0, "attempt": 0}
    stack = [{"line": 30, "name": "forward", "filename": 0}]
    metrics = {
        "co_name": "forward",
        "entire_frame_compile_time_s": 2.5,
        "cudagraph_skip_reason": "mutated inputs",
        "has_guarded_code": True,
    }
    return "".join(
        (
            record({"str": ["/home/me/model.py", 0]}, process=process),
            record({"dynamo_start": {"stack": stack}, **ids}, process=process),
            record({"dynamo_output_graph": {}, **ids}, GRAPH, process),
            record({"artifact": {"name": "dynamo_graph_break_reason", "encoding": "string"}, **ids}, BREAK, process),
            record({"compilation_metrics": metrics, **ids}, process=process),
        )
    )


@pytest.mark.parametrize("process", [1500233, 139733182882816], ids=["process id", "thread id, as in 2024"])
def test_findings_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str], process: int) -> None:
    """The command prints cause, line and fix of each finding, and its exit status is 1."""
    (tmp_path / "trace.log").write_text(broken_log(process))
    assert main(["doctor", str(tmp_path / "trace.log")]) == 1
    text = capsys.readouterr().out
    assert "Graph break in forward: A branch depends on a tensor's value (model.py:31)" in text
    assert "fix: Use torch.where" in text
    assert "mutated inputs" in text


def test_json_and_severity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` prints one object per log; ``--fail-on`` chooses what fails."""
    (tmp_path / "trace.log").write_text(broken_log())
    assert main(["doctor", str(tmp_path / "trace.log"), "--json", "--fail-on", "error"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {f["kind"] for f in found["findings"]} == {"graph-break", "cuda-graph-skip"}
    assert found["findings"][0]["place"] in ("model.py:31", "")


def test_unreadable_logs_have_another_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is no log gives exit status 2 and a message; the other logs are still read."""
    (tmp_path / "other.txt").write_text("hello\n")
    (tmp_path / "trace.log").write_text(broken_log())
    assert main(["doctor", str(tmp_path / "other.txt"), str(tmp_path / "trace.log")]) == 2
    captured = capsys.readouterr()
    assert "contains no torch trace" in captured.err
    assert "Graph break" in captured.out


def test_a_log_of_an_ahead_of_time_compilation(tmp_path: Path) -> None:
    """Graphs without a compile id, as AOTInductor logs them, are one compilation."""
    stages = ("before_pre_grad_graph", "aot_inference_graph", "after_post_grad_graph")
    log = "".join(
        record(
            {"artifact": {"name": name, "encoding": "string"}} if name != "aot_inference_graph" else {name: {}}, GRAPH
        )
        for name in stages
    )
    (tmp_path / "trace.log").write_text(log + log)
    session = engine.load_torch_trace(tmp_path / "trace.log")
    assert [f.name for f in session.frames] == ["exported program", "exported program"]
    assert [[len(g.nodes) for g in c.graphs] for c in session.compilations] == [[3, 3, 3], [3, 3, 3]]
    assert main(["doctor", str(tmp_path / "trace.log")]) == 0


@pytest.mark.thorough
def test_doctor_of_a_function() -> None:
    """``engine.doctor`` finds the break; a function without problems has no findings."""
    compiled = engine.compile(scaled, backend="eager")
    compiled(torch.ones(3))
    diagnosis = engine.doctor(scaled, torch.ones(3))
    assert [f.kind for f in diagnosis.findings] == ["graph-break"]
    assert "test_doctor_command.py" in str(diagnosis)
    assert diagnosis
    assert diagnosis.to_dict()["findings"][0]["fixes"]
    assert not engine.doctor(torch.relu, torch.ones(3))


def in_a_loop(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Print in each step of a loop."""
    found = []
    for x in xs:
        found.append(x * 2)
        print(end="")
    return found


@pytest.mark.thorough
def test_a_break_in_a_loop_has_a_fix_for_the_loop() -> None:
    """The recompiles of a loop with a break are not to be mended by a tensor."""
    engine.reset()
    diagnosis = engine.doctor(in_a_loop, [torch.ones(3)] * 4)
    (found,) = [f for f in diagnosis.findings if f.kind == "recompiles"]
    assert found.cause.endswith(
        "(its next item) does not exist in this call; the compiled code expects type torch.Tensor"
    )
    assert [fix.text for fix in found.fixes] == ["Move the graph break out of the loop"]


def scaled(x: torch.Tensor) -> torch.Tensor:
    """Print between two operations."""
    y = x * 2
    print(end="")
    return y + 1
