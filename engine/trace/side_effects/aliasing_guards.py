"""Guards that mutated tensors do not alias other inputs."""

from __future__ import annotations

import inspect

from engine.group_pairs import group_pairs
from engine.ir.guards.aliasing import (
    DisjointStorage,
    DistinctObjects,
    has_disjoint_storage,
    mutated_storages_are_disjoint,
)
from engine.ir.sources.roots import LocalSource
from engine.torch_private.dispatch import is_traceable_wrapper_subclass
from engine.trace.annotations import Tracer
from engine.trace.exc import SkipFrame
from engine.trace.fake_tensors.shared_inputs import SharedInputs
from engine.trace.side_effects.input_mutations import (
    may_share_storage,
    mutated_inputs,
    requires_grad_inputs,
    storage_id,
)
from engine.trace.variables.base import Variable
from engine.trace.variables.tensors.tensor import TensorVariable


def add_aliasing_guards(tx: Tracer) -> None:
    """Guard that distinct inputs stay distinct: a mutation of one must not show in another."""
    objects = (v for v, _ in tx.objects.variables_by_id.values() if v.source is not None and v.fake is None)
    by_type = group_pairs((v.python_type(), v) for v in objects)
    why = "one of the two is mutated; the other must be a different object"
    sourced = (v for v in tx.side_effects.mutated_variables.values() if v.source is not None and v.fake is None)
    mutated = group_pairs((v.python_type(), v) for v in sourced if v.is_loaded_by_source)
    # One guard for all objects of a type: an optimizer has a dict of state for each parameter.
    for kind, changed_objects in mutated.items():
        own, others = ([v for v in vs if not _is_kwargs_dict(tx, v)] for vs in (changed_objects, by_type.get(kind, [])))
        _guard_distinct(tx, own, others, why)
    if any(
        id(real) in tx.objects.viewed_dict_ids and id(value.builtin_contents) in tx.side_effects.mutated_variables
        for value, real in tx.objects.variables_by_id.values()
    ):
        raise SkipFrame("argument-aliasing", "a dict is mutated, and a view of it was created outside the function")
    changed, written = _tensors_with_set_attributes(tx), mutated_inputs(tx)
    shared = tx.state_of(SharedInputs)
    shared.require_unmutated({storage_id(v.real_object) for v in written})
    shared.require_identity(*map(tx.objects.real_object, (*tx.objects.identity_keys.values(), *changed)))
    # One guard for all tensors: one per pair would be too many, as a model has many parameters.
    _guard_distinct(tx, changed, _read_tensors(tx), why)
    keys = (v for v in tx.objects.identity_keys.values() if v.source is not None and not v.source.is_fixed)
    for same_type in group_pairs((v.python_type(), v) for v in keys).values():
        _guard_distinct(tx, same_type, [], "they are keys of a dict, elements of a set, or copied once each")
    _guard_no_overlap(tx, written)
    _guard_no_leaf(tx, written)


def _guard_no_leaf(tx: Tracer, written: list[TensorVariable]) -> None:
    """Guard that mutated inputs with autograd history keep one: eager raises for leaves."""
    for value in written:
        if value.real_object is not None and not value.real_object.is_leaf:
            value.guard_is_leaf(tx)


def _guard_distinct(tx: Tracer, values: list[Variable], others: list[Variable], why: str) -> None:
    """Guard that these inputs differ from each other and from the others."""
    sources = list(dict.fromkeys(v.source for v in (*values, *others) if v.source is not None))
    if values and len(sources) > 1:
        count = len({v.source for v in values})
        tx.guard(DistinctObjects, sources[0], tuple(sources[1:]), count, why=why)


def _read_tensors(tx: Tracer) -> list[Variable]:
    return [v for v, _ in tx.objects.variables_by_id.values() if v.fake is not None and v.source is not None]


def _tensors_with_set_attributes(tx: Tracer) -> list[Variable]:
    mutated = {*map(id, (*tx.side_effects.mutated_variables.values(), *tx.inputs.data_assigned_inputs))}
    grad_sources = requires_grad_inputs(tx)
    return [v for v in _read_tensors(tx) if tx.inputs.graph_sets_data or id(v) in mutated or v.source in grad_sources]


def _is_kwargs_dict(tx: Tracer, value: Variable) -> bool:
    """Return True if Python creates the object for each call: the dict of ``**kwargs``.

    Nothing else can alias it.
    """
    code = tx.request.function.__code__
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return False
    index = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    return value.source == LocalSource(code.co_varnames[index])


def _guard_no_overlap(tx: Tracer, written: list[TensorVariable]) -> None:
    # A wrapper subclass has no memory: the AOT stage guards its inner tensors.
    inputs = [(v, s) for v, s in tx.inputs.input_tensors if not is_traceable_wrapper_subclass(v.fake)]
    used: list[TensorVariable] = [v for v, _ in inputs if v.node_or_none is not None]
    why = "it is mutated; a tensor that shares its memory would change with it"
    storages = {id(v): storage_id(v.real_object) for v, _ in inputs}
    grad_sources = {*requires_grad_inputs(tx)}  # a view of such a tensor requires grad from then on
    unaliased: list[TensorVariable] = []
    changed = {*map(id, written)}
    for value, _ in inputs:
        if value.fake.is_inference() or value.source is None:
            continue
        if id(value) not in changed and value.source not in grad_sources:
            continue
        others = [v for v in used if v is not value and v.source is not None]
        own_storage = storages[id(value)]
        disjoint = [o for o in others if not may_share_storage(own_storage, storages[id(o)])]
        if len(disjoint) == len(others) and value in used:
            unaliased.append(value)
        elif disjoint:
            _check_one_storage_per_memory(value, disjoint)
            origins = tuple(o.source for o in disjoint if o.source is not None)
            tx.guard(DisjointStorage, value.source, origins, why=why)
    _guard_unaliased_writes(tx, unaliased, [v for v in used if v.source is not None], why)


def _guard_unaliased_writes(tx: Tracer, unaliased: list[TensorVariable], used: list[TensorVariable], why: str) -> None:
    """Add one guard for all mutated tensors that share storage with no other tensor.

    One guard per pair would be thousands for an optimizer step.
    """
    others = {id(v): v for v in used if v.real_object is not None}
    written = [v.real_object for v in unaliased if others.pop(id(v), None) is not None]
    if written and not mutated_storages_are_disjoint(len(written), *written, *(v.real_object for v in others.values())):
        for value in unaliased:
            _check_one_storage_per_memory(value, [v for v in used if v is not value])
    written_sources = [v.source for v in unaliased if v.source is not None]
    origins = list(dict.fromkeys((*written_sources, *(v.source for v in used if v.source is not None))))
    if written_sources and len(origins) > 1:
        count = len(dict.fromkeys(written_sources))
        tx.guard(DisjointStorage, origins[0], tuple(origins[1:]), count, why=why)


def _check_one_storage_per_memory(written: TensorVariable, others: list[TensorVariable]) -> None:
    for other in others:
        if (
            written.real_object is None
            or other.real_object is None
            or has_disjoint_storage(written.real_object, other.real_object)
        ):
            continue
        names = f"{written.describe()} and {other.describe()}"
        raise SkipFrame("argument-aliasing", f"one of {names} is mutated; they share memory through different storages")
