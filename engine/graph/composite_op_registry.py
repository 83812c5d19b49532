"""Registry of the engine's composite ops, which are defined in torch when first used."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

Function = Callable[..., Any]

_IMPLEMENTATIONS: dict[str, tuple[str, Function]] = {}
_FAKE_IMPLEMENTATIONS: dict[str, Function] = {}


def register_composite_ops(ops: Mapping[str, tuple[str, Function]], fakes: Mapping[str, Function]) -> None:
    """Add ops by name: schema and implementation; ``fakes`` have other fake implementations."""
    _IMPLEMENTATIONS.update(ops)
    _FAKE_IMPLEMENTATIONS.update(fakes)


def registered_composite_ops() -> Mapping[str, tuple[str, Function]]:
    """Return schema and implementation of every composite op, by name."""
    return _IMPLEMENTATIONS


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library("engine", "FRAGMENT")


@functools.cache
def composite_op(name: str) -> Any:
    """Define ``torch.ops.engine.<name>`` with its fake implementation; return the overload."""
    schema, run = _IMPLEMENTATIONS[name]
    draws = (torch.Tag.nondeterministic_seeded,) if "dropout" in schema else ()
    library = _library()
    library.define(f"{name}{schema}", tags=(*draws, torch.Tag.needs_exact_strides))
    library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"engine::{name}", _FAKE_IMPLEMENTATIONS.get(name, run), lib=library)
    return getattr(torch.ops.engine, name).default
