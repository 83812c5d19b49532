"""%%compile --world: the cell is planned as one rank of many, and leaves no trace."""

from __future__ import annotations

import re

import pytest
import torch

from notebook_ext.views.plan import plan_html
from tests.notebook_ext.conftest import Shell

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
    page = plan_html(plan)
    assert "loss.backward()" in page
    assert len(re.findall(r'src="data:image/svg\+xml', page)) == 1 + 2 * len(plan.classes)
    assert "<script" not in page


def test_text_of_the_program_is_escaped(shell: Shell) -> None:
    """Names of groups and lines of code reach the page as text."""
    ran = shell.run(
        '%%compile --world 2\nimport torch.distributed as dist\ndist.init_process_group("gloo")\n'
        "dist.all_reduce(torch.ones(3))  # <script>alert(1)</script>"
    )
    assert ran.succeeded, ran.text
    assert "&lt;script&gt;" in plan_html(shell.ns["_plan"])


def test_bad_plans_are_explained(shell: Shell) -> None:
    """An impossible world or mesh, and an error in the cell, give one sentence."""
    for line, text in {
        "--world 1": "at least two ranks",
        "--world 8 --mesh dp=3": "dp=3 has 3 ranks, but the world has 8",
        "--mesh dp=3": "--mesh needs --world",
        "--world 2": "ZeroDivisionError",
    }.items():
        ran = shell.run(f"%%compile {line}\n1 / 0")
        assert not ran.succeeded
        assert text in ran.text
