"""Moves numbers that autograd kept as CPU tensors of no dimension to the accelerator that the rest of a graph is on."""

from __future__ import annotations

import torch
import torch.fx

from engine.autograd.program import DEVICE, KIND, named
from engine.ir.graph import origin_of, set_origin


def to_device(number: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The number over there; the transfer waits for nothing."""
    return number.to(device, non_blocking=True)


def move_scalars(module: torch.fx.GraphModule) -> tuple[str, ...]:
    """Move, in place, what only formulas of torch's read, which take either; a sentence for each number.

    A graph whose inputs are all on one device can be compiled, and recorded, as a whole.
    """
    inputs = [n for n in module.graph.nodes if DEVICE in n.meta]
    elsewhere = {n.meta[DEVICE] for n in inputs if n.meta[DEVICE].type != "cpu"}
    if len(elsewhere) != 1:
        return ()
    (device,) = elsewhere
    moved = []
    after = inputs[-1]
    for node in inputs:
        if not _is_number(node) or any(u.meta[KIND] != "function" for u in _readers(node)):
            continue
        with module.graph.inserting_after(after):
            there = module.graph.call_function(named("to_device", to_device), (node, device))
        there.meta[KIND] = "input"
        set_origin(there, origin_of(node))
        for reader in _readers(node):
            if reader is not there:
                reader.replace_input_with(node, there)
        after = there
        moved.append(f"{node.name}, a number on the CPU, is moved to {device}")
    if moved:
        module.recompile()
    return tuple(moved)


def _is_number(node: torch.fx.Node) -> bool:
    return bool(node.meta[DEVICE].type == "cpu" and node.meta["val"].dim() == 0)


def _readers(node: torch.fx.Node) -> list[torch.fx.Node]:
    return list(node.users)
