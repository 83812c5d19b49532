"""What AOT hands to lowering: one functional ATen graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.fx


@dataclass(frozen=True)
class AotGraph:
    """A functional graph of ATen operators, its fake inputs in placeholder order, and the id of its compilation ("0/0")."""

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    compilation: str
