"""Logs written by torch 2.4 and 2.6 load despite the later changes of format."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import engine
from engine.records.bytecode import Span
from engine.records.session import Session

MODEL = "/home/someone/model.py"
IDS = {"frame_id": 0, "frame_compile_id": 0, "attempt": 0}
IDS_2_6 = {"compiled_autograd_id": None, **IDS}

GRAPH_2_4 = f"""class GraphModule(torch.nn.Module):
    def forward(self, L_x_ : torch.Tensor):
        l_x_ = L_x_

        # File: {MODEL}:9 in forward, code: return x.sin()
        sin = l_x_.sin();  l_x_ = None
        return (sin,)
        """
GRAPH_2_6 = f"""class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, 4][4, 1]cpu"):
        l_x_ = L_x_

         # File: {MODEL}:9 in forward, code: out = F.gelu(x)
        out: "f32[4, 4][4, 1]cpu" = torch._C._nn.gelu(l_x_);  l_x_ = None

         # No stacktrace found for following nodes
        twice: "f32[4, 4][4, 1]cpu" = out * 2;  out = None
        return (twice,)
        """
GUARDS_2_6 = """
TREE_GUARD_MANAGER:
+- RootGuardManager
| +- GLOBAL_STATE: ___check_global_state()
| +- GuardManager: source=L['x'], accessed_by=DictGetItemGuardAccessor('x')
| | +- TENSOR_MATCH: check_tensor(L['x'], Tensor, DispatchKeySet(CPU), torch.float32, device=None, requires_grad=False, size=[4, 4], stride=[4, 1])  # out = F.gelu(x)  # model.py:9 in forward
"""


def record(
    facts: dict[str, Any], text: str = "", head: str = "V1206 15:18:20.599000 1500233 torch/_dynamo/utils.py:1288]"
) -> str:
    """Return one record as torch writes it: facts on the first line, then tab-indented text."""
    if not text:
        return f"{head} {json.dumps(facts)}\n"
    facts = {**facts, "has_payload": hashlib.md5(text.encode()).hexdigest()}
    return f"{head} {json.dumps(facts)}\n" + "".join(f"\t{line}\n" for line in text.split("\n"))


def started(ids: dict[str, Any]) -> str:
    """The file's name and the frame's start."""
    stack = [{"line": 20, "name": "<module>", "filename": 0}, {"line": 8, "name": "forward", "filename": 0}]
    return record({"str": [MODEL, 0]}) + record({"dynamo_start": {"stack": stack}, **ids})


def load(tmp_path: Path, log: str) -> Session:
    """Load a log of this text."""
    path = tmp_path / "trace.log"
    path.write_text(log)
    return engine.load_torch_trace(path)


def test_a_failure_under_2_4(tmp_path: Path) -> None:
    """A 2.4 log loads: inputs lack types, and only the metrics hold a backend's failure.

    Its ids are those from before compiled autograd.
    """
    metrics = {
        "co_name": "forward", "co_filename": MODEL, "co_firstlineno": 8, "start_time": 1712246668.5, "entire_frame_compile_time_s": None,
        "fail_type": "<class 'torch._dynamo.exc.BackendCompilerFailed'>", "fail_reason": "backend='broken' raised:\nRuntimeError: broken",
    }  # fmt: skip
    log = started(IDS) + record({"dynamo_output_graph": {"sizes": {"l_x_": [4, 4]}}, **IDS}, GRAPH_2_4)
    (compilation,) = load(tmp_path, log + record({"compilation_metrics": metrics, **IDS})).compilations
    (graph,) = compilation.graphs
    assert [(n.name, n.op) for n in graph.nodes] == [
        ("x", "placeholder"),
        ("sin", "call_function"),
        ("output", "output"),
    ]
    assert graph.nodes[0].text == "x"  # neither the name in the signature nor the one that the operations read
    assert graph.nodes[1].span == Span(MODEL, 9)
    assert "backend='broken' raised" in compilation.failures[0].sentence


def test_a_compilation_under_2_6(tmp_path: Path) -> None:
    """A 2.6 log loads: user lines indented once more, times in seconds, one record per event.

    The events are those of the timeline.
    """
    event = {"name": "dynamo", "ts": 1733527100252271.5, "args": {"compile_id": "0/0"}, "ph": "B"}
    metrics = {
        "compile_id": "0/0", "co_name": "forward", "co_filename": MODEL, "co_firstlineno": 8, "start_time": 1733527100.25,
        "entire_frame_compile_time_s": 1.1, "backend_compile_time_s": 0.7, "inductor_compile_time_s": None, "has_guarded_code": True,
        "restart_reasons": ["'skip function print in file builtins'"], "dynamo_time_before_restart_s": 0.2, "fail_type": None,
    }  # fmt: skip
    session = load(
        tmp_path,
        record({"chromium_event": {}, "has_payload": ""}, json.dumps(event, indent=0))
        + started(IDS_2_6)
        + record({"dynamo_output_graph": {"sizes": {"l_x_": [4, 4], "out": [4, 4]}}, **IDS_2_6}, GRAPH_2_6)
        + record({"dynamo_cpp_guards_str": {}, **IDS_2_6}, GUARDS_2_6)
        + record({"compilation_metrics": metrics, **IDS_2_6, "attempt": 1}),
    )
    (compilation,) = session.compilations
    nodes = {n.name: n for n in compilation.graphs[0].nodes}
    assert (nodes["out"].span, nodes["twice"].span) == (Span(MODEL, 9), None)
    assert nodes["out"].shape == ("4", "4")
    assert compilation.guards is not None
    assert [g.kind for g in compilation.guards.guards] == ["GLOBAL_STATE", "TENSOR_MATCH"]
    assert compilation.guards.guards[1].span == Span(MODEL, 9)
    assert {t.stage: t.seconds for t in compilation.timings} == {
        "compile": 1.1,
        "backend": 0.7,
        "before the last restart": 0.2,
    }
    assert compilation.restart_reasons == ("'skip function print in file builtins'",)
    assert not session.notes
