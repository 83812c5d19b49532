"""Layers of a planned program that are sharded otherwise than it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed.tensor.parallel

from engine.errors import BadArgument

parallel = torch.distributed.tensor.parallel


class ShardedLayers:
    """Replaces the styles of layers in each ``parallelize_module`` of a program.

    Args:
        styles: style by the name of a layer, which may have wildcards; None leaves the layer whole. Names are those
            of the module that the program parallelizes.
    """

    def __init__(self, styles: Mapping[str, Any]) -> None:
        for name, style in styles.items():
            if style is not None and not hasattr(style, "src_data_rank"):
                raise BadArgument(
                    f"The style of layer {name!r} must be a parallel style such as ColwiseParallel(), or None, not {style!r}."
                )
        self.styles = dict(styles)
        self.matched: set[str] = set()
        self.known: dict[str, None] = {}

    def wrap_parallelize_module(self, parallelize: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``parallelize_module`` with the styles of named layers replaced."""

        def run(module: Any, device_mesh: Any = None, parallelize_plan: Any = None, **options: Any) -> Any:
            if hasattr(parallelize_plan, "items"):
                parallelize_plan = self._replace_styles(module, parallelize_plan)
            return parallelize(module, device_mesh, parallelize_plan, **options)

        return run

    def _replace_styles(self, module: torch.nn.Module, styles: Mapping[str, Any]) -> dict[str, Any]:
        names = [name for name, _ in module.named_modules() if name]
        self.known.update(dict.fromkeys(names))
        result = dict(styles)
        for pattern, style in self.styles.items():
            for name in (n for n in names if fnmatchcase(n, pattern)):
                self.matched.add(pattern)
                result = {k: v for k, v in result.items() if not fnmatchcase(name, k)} | (
                    {name: style} if style else {}
                )
        return result

    def problem(self) -> str:
        """Return in one sentence which name is of no layer; empty if all were found."""
        missing = [name for name in self.styles if name not in self.matched]
        if not missing:
            return ""
        layer_names = ", ".join(list(self.known)[:12]) or "none: it calls no parallelize_module"
        return f"it parallelizes no layer {missing[0]!r}; the layers of its parallelize_module are {layer_names}"
