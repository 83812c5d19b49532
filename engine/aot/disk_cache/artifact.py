"""Save and load compiled AOT artifacts as text: graphs with their metadata."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
import torch.fx

from engine.aot.disk_cache.key import cache_key, example_values
from engine.aot.fallback_kinds import AotFallback
from engine.aot.functionalize import FunctionalGraph, fake_mode_of
from engine.aot.joint import JointGraph
from engine.aot.layout_mutation import fake_at_entry
from engine.aot.partitioner.partition import PartitionedGraphs
from engine.aot.wrappers.base import TracedCall
from engine.aot.wrappers.double_backward import EagerRerun
from engine.cache.disk_store import DiskStore, DiskStoreError
from engine.cache.fallback_kinds import NotCached
from engine.cache.serialize_graph import deserialize_graph, serialize_graph
from engine.cache.serialize_symbols import SymbolTable, serialize_unbacked_symbols
from engine.cache.serialize_values import deserialize_fake, deserialize_value, serialize_fake, serialize_value
from engine.graph.passes.recorder import EDIT_DIGEST_KEY, PASS_RECORDS_KEY
from engine.ir.fallback import FallbackRequired
from engine.ir.node_metadata import NO_PROVENANCE, NodeProvenance, provenance_of
from engine.records.base import from_jsonable as record_from_plain
from engine.records.graph import PassRecord

_PARTITION_FIELDS = ("num_results", "saved_tensor_names", "saved_scalar_names", "tangent_names", "record")
_RERUN_FIELDS = ("output_nodes", "grad_inputs", "mutated_inputs", "copied_inputs", "rng_devices", "why_unsupported")


@dataclass(frozen=True)
class TrainingArtifact:
    """Training call: joint graph, its partitioned graphs, and the eager rerun."""

    joint: JointGraph
    partitioned: PartitionedGraphs
    rerun: EagerRerun


AotArtifact = FunctionalGraph | TrainingArtifact


@dataclass(frozen=True)
class CacheLocation:
    """Location of an artifact in the disk cache.

    ``note`` has the reason why there is none, or the outcome of the lookup.
    """

    store: DiskStore
    key: str = ""
    note: str = ""


def cache_location(call: TracedCall, folder: Any, *, trains: bool, settings: Sequence[Any]) -> CacheLocation:
    """Return the cache location for the result of compiling ``call``."""
    try:
        return CacheLocation(DiskStore(folder), cache_key(call, trains=trains, settings=settings))
    except NotCached as error:
        return CacheLocation(DiskStore(folder), note=f"not saved to disk: {error}")


def load_artifact(
    location: CacheLocation, call: TracedCall, compilation: str, *, loads_joint: bool
) -> tuple[AotArtifact | None, str]:
    """Load the artifact of a call, None if it must be compiled; also return a note.

    The note goes into the record. ``loads_joint``: read the joint graph too, which only a record needs.

    Raises:
        FallbackRequired: reading it assumed more about sizes than the guards check.
    """
    if not location.key:
        return None, location.note
    try:
        text = location.store.get(location.key)
        if text is None:
            return None, ""
        return _deserialize(json.loads(text), call, compilation, loads_joint=loads_joint), "loaded from disk"
    except (DiskStoreError, NotCached) as error:
        return None, f"recompiled: {error}"
    except FallbackRequired:
        raise
    except Exception as error:  # the engine wrote it, but cannot read it: compile again and overwrite it
        return None, f"recompiled: the file on disk cannot be read ({type(error).__name__})"


def save_artifact(location: CacheLocation, artifact: AotArtifact, call: TracedCall) -> str:
    """Write an artifact to the disk cache; return a note for the record."""
    if not location.key:
        return location.note
    try:
        location.store.put(location.key, json.dumps(_serialize(artifact, call), separators=(",", ":")))
    except (NotCached, DiskStoreError) as error:
        return f"not saved to disk: {error}"
    return "saved to disk"


def _serialize(artifact: AotArtifact, call: TracedCall) -> dict[str, Any]:
    if isinstance(artifact, FunctionalGraph):
        return {
            "graph": serialize_graph(artifact.module),
            "unbacked": _serialize_unbacked(artifact.module, call),
            "passes": _serialize_passes(artifact.module),
            "digest": artifact.module.meta.get(EDIT_DIGEST_KEY, ""),
            "plan": serialize_value(artifact.metadata),
        }
    joint, halves, again = artifact.joint, artifact.partitioned, artifact.rerun
    return {
        "joint": serialize_graph(joint.module),
        "unbacked": _serialize_unbacked(joint.module, call),
        "passes": _serialize_passes(joint.module),
        "digest": joint.module.meta.get(EDIT_DIGEST_KEY, ""),
        "forward": serialize_graph(halves.forward),
        "backward": serialize_graph(halves.backward),
        "plan": serialize_value(joint.metadata),
        "differentiable": serialize_value(joint.differentiable_results),
        "needing": serialize_value(joint.grad_inputs),
        "tangents": serialize_fake(halves.tangent_fakes),
        "saved": serialize_fake(halves.saved_fakes),
        "halves": {name: serialize_value(getattr(halves, name)) for name in _PARTITION_FIELDS},
        "again": {name: serialize_value(getattr(again, name)) for name in _RERUN_FIELDS},
        "autocast": serialize_value(again.autocast),
    }


def _serialize_unbacked(module: torch.fx.GraphModule, call: TracedCall) -> Any:
    env = fake_mode_of(call.graph, call.inputs).shape_env
    return serialize_unbacked_symbols(env, [n.meta.get("val") for n in module.graph.nodes], example_values(call.graph))


def _deserialize(data: dict[str, Any], call: TracedCall, compilation: str, *, loads_joint: bool) -> AotArtifact:
    mode = fake_mode_of(call.graph, call.inputs)
    with mode, torch.no_grad():
        fakes = tuple(fake_at_entry(i) if i.is_tensor else i.fake for i in call.inputs)
    origin = _provenance_factory(call, compilation)
    symbols = SymbolTable(mode.shape_env, fakes)
    symbols.recreate_unbacked(data["unbacked"], example_values(call.graph))

    def graph(name: str) -> torch.fx.GraphModule:
        module = deserialize_graph(data[name], mode, symbols, origin)
        _name_inputs(module, call)
        if name in ("graph", "joint"):
            module.meta[PASS_RECORDS_KEY] = tuple(record_from_plain(PassRecord, p, "passes") for p in data["passes"])
            module.meta[EDIT_DIGEST_KEY] = data["digest"]
        return module

    plan = deserialize_value(data["plan"], symbols=symbols)
    with _restore_size_assumptions(symbols, plan.shape_assumptions):
        if "graph" in data:
            return FunctionalGraph(graph("graph"), fakes, plan)
        module = graph("joint") if loads_joint else torch.fx.GraphModule({}, torch.fx.Graph())
        joint = JointGraph(
            module, fakes, plan, deserialize_value(data["differentiable"]), deserialize_value(data["needing"])
        )
        parts = {name: deserialize_value(data["halves"][name]) for name in _PARTITION_FIELDS}
        parts["record"] = _rebase_record_ids(parts["record"], compilation)
        halves = PartitionedGraphs(
            forward=graph("forward"),
            backward=graph("backward"),
            tangent_fakes=deserialize_fake(data["tangents"], mode, symbols),
            saved_fakes=deserialize_fake(data["saved"], mode, symbols),
            **parts,
        )
        again = EagerRerun(
            call.graph,
            **{n: deserialize_value(data["again"][n]) for n in _RERUN_FIELDS},
            autocast=deserialize_value(data["autocast"]),
        )
        return TrainingArtifact(joint, halves, again)


@contextlib.contextmanager
def _restore_size_assumptions(symbols: SymbolTable, relations: Sequence[sympy.Basic]) -> Iterator[None]:
    """Add the size assumptions of the cached graph to the ShapeEnv of this compilation.

    Raises:
        FallbackRequired: code in the block adds further assumptions.
    """
    env = symbols.shape_env
    if env is None:
        yield
        return
    for relation in relations:
        env.guard_or_defer_runtime_assert(relation, "loaded from disk")
    num_guards = len(env.guards)
    yield
    if len(env.guards) != num_guards:
        raise FallbackRequired(
            AotFallback.CANNOT_TRACE, "the artifact on disk assumes more about sizes than the guards check"
        )


def _serialize_passes(module: torch.fx.GraphModule) -> list[Any]:
    """Return the recorded passes of the graph; none if no session recorded them."""
    return [record.to_dict() for record in module.meta.get(PASS_RECORDS_KEY, ())]


def _provenance_factory(call: TracedCall, compilation: str) -> Callable[[Sequence[str], str], NodeProvenance]:
    """Return a factory of provenances; source positions are those of the current graph."""
    provenance = {n.name: provenance_of(n) for n in call.graph.graph.nodes}

    def origin(names: Sequence[str], note: str) -> NodeProvenance:
        if not names:
            return replace(NO_PROVENANCE, note=note)
        return replace(
            provenance.get(names[0], NO_PROVENANCE), nodes=tuple(f"fx:{compilation}:{n}" for n in names), note=note
        )

    return origin


def _name_inputs(module: torch.fx.GraphModule, call: TracedCall) -> None:
    notes = {i.name: i.source.expr for i in call.inputs}
    for node in module.graph.nodes:
        if node.op == "placeholder" and node.name in notes:
            node.meta["custom"]["engine_origin"] = replace(provenance_of(node), note=notes[node.name])


def _rebase_record_ids(record: Any, compilation: str) -> Any:
    """Return a partition record with the node ids of this compilation."""

    def here(id: str) -> str:
        return f"fx:{compilation}:{id.rpartition(':')[2]}"

    return replace(record, values=tuple(replace(v, origins=tuple(here(i) for i in v.origins)) for v in record.values))
