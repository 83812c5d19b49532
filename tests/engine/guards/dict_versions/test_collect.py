"""Test what the check of many guards below a module depends on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import engine
from engine.guards.dict_versions import collect
from engine.guards.dict_versions.collect import ObservedWrites, collect_dependencies
from engine.guards.dict_versions.subtree import _entries_unchanged
from engine.guards.safe_read import UnsafeRead, read_static
from engine.ir.guards.base import Guard
from engine.ir.sources.attributes import InstanceDictGetSource
from engine.ir.sources.base import MISSING
from engine.ir.sources.roots import LocalSource
from engine.runtime.dispatch.dispatcher import dispatcher_state_of

ROOT = LocalSource("model")


def run(model: nn.Module, x: torch.Tensor) -> Any:
    """Call a module."""
    return model(x)


@pytest.fixture
def model() -> nn.Module:
    """A layer."""
    return nn.Linear(2, 2)


def guards_below(model: nn.Module) -> list[Guard]:
    """Return the guards on the module and what is below it."""
    engine.reset()
    compiled = engine.compile(run, backend="eager")
    compiled(model, torch.ones(2, 2))
    (entry,) = dispatcher_state_of(compiled).entries
    return [g for g in entry.guards if g.source is not None and ROOT in g.source.chain()]


def test_each_guarded_tensor_is_compared(model: nn.Module) -> None:
    """Tensors are the module's parameters, whose properties change without a write to a dict."""
    plan, _ = collect_dependencies(ROOT, model, guards_below(model), ObservedWrites())
    assert {id(t) for t in plan.tensors.values()} == {id(p) for p in model.parameters()}


def test_guards_that_are_not_covered_are_checked_one_by_one(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard of an unknown kind is left to its own test."""
    guards = guards_below(model)
    monkeypatch.setattr(collect, "_RECORDERS", {})
    plan, rest = collect_dependencies(ROOT, model, guards, ObservedWrites())
    unknown = [g for g in guards if not g.is_tensor_property]
    assert unknown
    assert all(g in rest for g in unknown)
    assert all(g in rest or g.source in plan.tensors for g in guards)


def test_a_replaced_entry_is_seen() -> None:
    """Entries are compared by identity, also weak ones; an absent one stays absent."""
    weak, other = nn.Module(), object()
    space: dict[str, Any] = {"weak": weak, "other": other}
    unchanged = _entries_unchanged(space, {**space, "absent": MISSING}, {id(weak): weak})
    assert unchanged()
    for name, value in (("weak", nn.Module()), ("other", object()), ("absent", 1)):
        before = dict(space)
        space[name] = value
        assert not unchanged(), name
        space.clear()
        space.update(before)
        assert unchanged()
    del space["weak"]
    assert not unchanged()


def test_a_source_without_a_safe_reader_is_not_read(model: nn.Module) -> None:
    """Behind a failed guard a source of another kind may run user code."""
    with pytest.raises(UnsafeRead, match="Linear has another type than expected"):
        read_static(InstanceDictGetSource(ROOT, "training"), model)
