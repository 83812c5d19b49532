"""Numbers on the CPU move to the accelerator where only torch's own formulas read them."""

from __future__ import annotations

import torch

from engine.autograd.build_captured_graph import INPUT_DEVICE, STEP_KIND, named_target
from engine.autograd.move_cpu_scalars import move_cpu_scalars


def captured(*devices: str, reader: str = "function") -> torch.fx.GraphModule:
    """A graph that adds up numbers, which are on these devices as far as it knows."""
    graph = torch.fx.Graph()
    given = [graph.placeholder(f"inputs_{n}") for n in range(len(devices))]
    for node, device in zip(given, devices, strict=True):
        node.meta = {INPUT_DEVICE: torch.device(device), STEP_KIND: "input", "val": torch.empty((), device="meta")}
    total = graph.call_function(named_target("total", lambda values: sum(values)), (given,))
    total.meta[STEP_KIND] = reader
    graph.output((total,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_a_number_beside_an_accelerator_moves() -> None:
    """The CPU's number is moved once, and what reads it reads the moved one."""
    module = captured("cuda:0", "cpu")
    assert move_cpu_scalars(module) == ("inputs_1, a CPU scalar, is moved to cuda:0",)
    module.graph.lint()
    total = next(n for n in module.graph.nodes if n.meta.get(STEP_KIND) == "function")
    assert [n.name for n in total.all_input_nodes] == ["inputs_0", "to_device"]


def test_what_users_see_stays_where_it_is() -> None:
    """Without an accelerator, with two, or where a hook reads the number, nothing moves."""
    assert not move_cpu_scalars(captured("cpu", "cpu"))
    assert not move_cpu_scalars(captured("cuda:0", "cuda:1", "cpu"))
    assert not move_cpu_scalars(captured("cuda:0", "cpu", reader="tensor_pre_hook"))
