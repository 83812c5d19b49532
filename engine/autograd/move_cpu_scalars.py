"""Moves zero-dimensional CPU tensors of autograd to the accelerator of the graph."""

from __future__ import annotations

import torch
import torch.fx

from engine.autograd.build_captured_graph import INPUT_DEVICE, STEP_KIND, named_target
from engine.ir.node_metadata import provenance_of, set_provenance


def move_to_device(number: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy the scalar to the device without synchronization."""
    return number.to(device, non_blocking=True)


def move_cpu_scalars(module: torch.fx.GraphModule) -> tuple[str, ...]:
    """Move CPU scalars that only torch's formulas read, in place; return a note per scalar.

    The formulas accept either device. With all inputs on one device, the whole graph can be compiled and recorded
    as one CUDA graph.
    """
    inputs = [n for n in module.graph.nodes if INPUT_DEVICE in n.meta]
    elsewhere = {n.meta[INPUT_DEVICE] for n in inputs if n.meta[INPUT_DEVICE].type != "cpu"}
    if len(elsewhere) != 1:
        return ()
    (device,) = elsewhere
    moved = []
    after = inputs[-1]
    for node in inputs:
        if not _is_cpu_scalar(node) or any(u.meta[STEP_KIND] != "function" for u in _readers(node)):
            continue
        with module.graph.inserting_after(after):
            there = module.graph.call_function(named_target("to_device", move_to_device), (node, device))
        there.meta[STEP_KIND] = "input"
        set_provenance(there, provenance_of(node))
        for reader in _readers(node):
            if reader is not there:
                reader.replace_input_with(node, there)
        after = there
        moved.append(f"{node.name}, a CPU scalar, is moved to {device}")
    if moved:
        module.recompile()
    return tuple(moved)


def _is_cpu_scalar(node: torch.fx.Node) -> bool:
    return bool(node.meta[INPUT_DEVICE].type == "cpu" and node.meta["val"].dim() == 0)


def _readers(node: torch.fx.Node) -> list[torch.fx.Node]:
    return list(node.users)
