"""%%compile --world: the cell is planned as one rank of many, and leaves no trace."""

from __future__ import annotations

import base64
import json
import pathlib
import re

import pytest
import torch

from engine.records.plan import Plan
from engine.records.session import Session
from notebook_ext.display import mime_bundle
from notebook_ext.views.devices import mesh_image
from notebook_ext.views.explorer_parts import empty_views, overview, part
from notebook_ext.views.home import home
from notebook_ext.views.plan import NOT_RUN, plan_session
from notebook_ext.views.summary import summary
from tests.notebook_ext.conftest import Shell
from tests.notebook_ext.sample_plans import make_plan

CELL = """
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
planned_model = nn.Linear(16, 16, device="cuda")
fully_shard(planned_model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(planned_model.parameters())
for _ in range(3):
    loss = planned_model(torch.randn(4, 16, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.forks_backward
def test_a_cell_is_planned(shell: Shell) -> None:
    """The page shows the mesh and lines of collectives; the cell's names do not remain."""
    ran = shell.run(f"%%compile --world 64 --mesh dp=8,tp=8 -o seen{CELL}")
    assert ran.succeeded, ran.text
    plan = shell.ns["seen"]
    assert shell.ns["_plan"] is plan
    assert {(c.kind, c.group, c.group_size) for c in plan.worst.collectives} == {
        ("all_gather", "dp", 8),
        ("reduce_scatter", "dp", 8),
    }
    assert "planned_model" not in shell.ns
    assert not torch.distributed.is_initialized()
    session = plan_session(plan)
    page = mime_bundle(session, static=True)["text/html"]
    assert "loss.backward()" in page
    assert len(re.findall(r'src="data:image/svg\+xml', page)) == 1 + 2 * len(plan.classes)
    assert "<script" not in page
    assert mime_bundle(session, static=True)["text/plain"] == str(plan)


def test_a_plan_is_shown_in_the_explorer() -> None:
    """Home, summary and Devices say the same figures; other views say why they are empty."""
    session = plan_session(make_plan())
    shown = overview(session, can_edit=True)
    assert set(empty_views(Session())) - set(shown["empty"]) == {"devices"}
    assert {"breaks", "linked", "kernels"} <= set(shown["empty"])
    assert set(shown["empty"].values()) == {NOT_RUN}
    figures = {f["name"]: f["value"] for f in home(session)["figures"]}
    assert figures == {"Ranks": "4", "Peak memory": "576 B", "Collectives in a step": "1", "Bytes of collectives": "256 B", "Modeled step": "100 µs"}  # fmt: skip
    line = summary(session).text.split("\n")[0]
    assert line.startswith(
        "cell 1: plan for 4 ranks (dp=4) on cuda, not run: peak memory 576 B, 1 collective of 256 B in a"
    )
    assert home(session)["outcome"] == line + "."
    assert home(session)["tone"] == "ok"
    devices = part(session, "devices")
    assert "1 collective, 256 B" in devices["outcome"]
    (table,) = [s for s in devices["sections"] if "cells" in s]
    assert table["cells"][0][1:7] == ["all_reduce float32", "256 B", "dp (4)", "within a node", "backward", "20 µs"]
    assert " us" not in json.dumps(devices) + str(make_plan())


def test_a_plan_is_saved_and_opened_again(shell: Shell, tmp_path: pathlib.Path) -> None:
    """A page shows Devices, a JSON file is the plan; %explore takes a plan by its name."""
    page, data = tmp_path / "plan.html", tmp_path / "plan.json"
    for path in (page, data):
        ran = shell.run(f"%%compile --world 4 --save {path}{CELL}")
        assert ran.succeeded, ran.text
    assert re.search('"view": ?"devices"', page.read_text(encoding="utf-8"))
    assert Plan.from_dict(json.loads(data.read_text(encoding="utf-8"))) == shell.ns["_plan"]
    ran = shell.run("%explore _plan")
    assert "Plan of cell" in ran.text, ran.text


def contrast(text: str, page: str) -> float:
    """Return the contrast of two colors like #8a8a8a."""
    low, high = sorted(sum(w * ((int(c[i : i + 2], 16) / 255 + 0.055) / 1.055) ** 2.4 for w, i in ((0.2126, 1), (0.7152, 3), (0.0722, 5))) for c in (text, page))  # fmt: skip
    return (high + 0.05) / (low + 0.05)


def test_numbers_of_unplanned_ranks_are_readable() -> None:
    """On light and dark pages: the picture of the mesh has its own background."""
    svg = base64.b64decode(mesh_image((2,), range(2), {}).partition(",")[2]).decode()
    plate, digits = re.findall(r'fill="(#\w{6})"', svg)[:2]
    assert contrast(digits, plate) > 4.5


def test_text_of_the_program_is_escaped(shell: Shell) -> None:
    """Names of groups and lines of code reach the page as text."""
    ran = shell.run(
        '%%compile --world 2\nimport torch.distributed as dist\ndist.init_process_group("gloo")\n'
        "dist.all_reduce(torch.ones(3))  # <script>alert(1)</script>"
    )
    assert ran.succeeded, ran.text
    assert "&lt;script&gt;" in mime_bundle(plan_session(shell.ns["_plan"]), static=True)["text/html"]


def test_bad_plans_are_explained(shell: Shell) -> None:
    """An impossible world or mesh, and an error in the cell, give one sentence."""
    for line, text in {
        "--world 1": "at least two ranks",
        "--world 8 --mesh dp=3": "dp=3 has 3 ranks, but the world has 8",
        "--mesh dp=3": "--mesh needs --world",
        "--world 2": "ZeroDivisionError",
        "--world 2 --verify": "leave out --verify",
        "--world 2 model": "leave out model",
    }.items():
        ran = shell.run(f"%%compile {line}\n1 / 0")
        assert not ran.succeeded
        assert text in ran.text
