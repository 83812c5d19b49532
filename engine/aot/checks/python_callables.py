"""Graphs that call Python functions which read objects."""

from __future__ import annotations

import torch
import torch.fx

from engine.ir.graph_callable import GraphCallable


def check_python_callables(graph: torch.fx.GraphModule) -> str:
    """Return a reason if the graph runs user Python that may read objects the frame mutates."""
    for node in graph.graph.nodes:
        if isinstance(node.target, GraphCallable) and node.target.runs_user_python:
            return f"{node.name} calls a Python function that may read objects which the traced code mutates"
    return ""
