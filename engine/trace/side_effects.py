"""Replaying after the graph what the traced code did to objects that exist: contents, attributes, globals, cells."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from bytecode.instr import FreeVar

from engine.graph.passes.lift_switches import requires_grad_calls
from engine.ir.origin import CellContentsSource, ClosureSource, ConstantSource, GlobalsNamespace, LocalSource, Source
from engine.ir.relation_guard import (
    DisjointStorage,
    DistinctObjects,
    SameObject,
    has_disjoint_storage,
    mutated_storages_are_disjoint,
)
from engine.ir.view_history import is_leaf_without_regeneration
from engine.trace.signals import SkipFrame, Unsupported
from engine.trace.values.base import Variable
from engine.trace.values.cells import CellVariable
from engine.trace.values.context_variables import ContextVarVariable
from engine.trace.values.mappings import DictVariable
from engine.trace.values.objects import UserDefinedObjectVariable
from engine.trace.values.outside_iterators import ExternalIteratorVariable
from engine.trace.values.random_numbers import RandomVariable
from engine.trace.values.sequences import ListVariable
from engine.trace.values.sets import SetVariable
from engine.trace.values.tensor import TensorVariable
from engine.trace.values.waiting_generators import SuspendedGeneratorVariable

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.state import Tracer


def side_effect_variables(tx: Tracer) -> list[Variable]:
    """Values that replaying will load: for codegen's search for cycles."""
    found: list[Variable] = [v for v in tx.global_writes.values() if v is not None]
    for value in tx.mutated_variables.values():
        found.extend(value.child_variables())
    return [*found, *(call for call, _ in tx.side_effect_calls)]


def emit_side_effects(tx: Tracer, cg: PyCodegen) -> tuple[str, ...]:
    """Emit all side effects, in the order of their first occurrence; what they are, in words."""
    told: list[str] = []
    for value in list(tx.mutated_variables.values()):
        text = _emit_mutation(cg, value)
        if text:
            told.append(text)
        cg.fill_deferred()
    for (namespace, name), written in tx.global_writes.items():
        _emit_global_write(tx, cg, namespace, name, written)
        told.append(f"the global {name} is {'deleted' if written is None else 'set'}")
    cg.fill_deferred()
    for call, words in tx.side_effect_calls:
        cg.load(call)
        cg.body.emit("POP_TOP")
        told.append(words)
    cg.fill_deferred()
    return tuple(told)


def _emit_mutation(cg: PyCodegen, value: Variable) -> str:
    if isinstance(value, CellVariable):
        return _emit_cell_write(cg, value)
    if isinstance(value, (ListVariable, DictVariable, SetVariable)):
        cg.load(value)
        value.fill(cg)
        return f"{_target_name(value)}: contents of the {value.python_type().__name__} are replaced"
    if isinstance(value, (UserDefinedObjectVariable, TensorVariable)):
        is_assigned = isinstance(value, UserDefinedObjectVariable) and value.dict_was_assigned
        if not value.attr_writes and not is_assigned:
            return ""
        cg.load(value)
        value.fill(cg)
        if is_assigned:
            return f"{_target_name(value)}: __dict__ is set"
        return f"{_target_name(value)}: {', '.join(value.attr_writes)} {'is' if len(value.attr_writes) == 1 else 'are'} set"
    if isinstance(value, ExternalIteratorVariable):
        if not value.steps_taken:
            return ""
        cg.load(value)
        value.fill(cg)
        return f"{_target_name(value)}: the iterator is moved on by {value.steps_taken}"
    if isinstance(value, SuspendedGeneratorVariable):
        cg.load(value)
        value.fill(cg)
        return f"{_target_name(value)}: the generator is at its end"
    if isinstance(value, RandomVariable):
        cg.load(value)
        value.fill(cg)
        return f"{_target_name(value)}: the state of the random numbers is set"
    if isinstance(value, ContextVarVariable):
        cg.load(value)
        value.fill(cg)
        return f"{_target_name(value)}: the context variable is set" if value.deferred_steps else ""
    raise Unsupported("side-effect", f"changing a {value.python_type().__name__}")


def _target_name(value: Variable) -> str:
    return value.source.expr if value.source is not None else value.describe()


def _emit_cell_write(cg: PyCodegen, value: CellVariable) -> str:
    match value.source:
        case ClosureSource(variable):
            if value.content is None:
                cg.body.emit("DELETE_DEREF", FreeVar(variable))
            else:
                cg.load(value.content)
                cg.body.emit("STORE_DEREF", FreeVar(variable))
            return f"the closure variable {variable} is set"
        case CellContentsSource(base, index, variable):
            from engine.ir.origin import AttrSource

            if value.content is None:
                raise Unsupported("side-effect", "a closure variable of another function is deleted")
            cg.load(value.content)
            cg.load_source(AttrSource(base, "__closure__"))
            cg.body.subscript(index)
            cg.body.emit("STORE_ATTR", "cell_contents")
            return f"the closure variable {variable} is set"
    raise Unsupported("side-effect", "a closure variable is set")


def _emit_global_write(
    tx: Tracer, cg: PyCodegen, namespace: GlobalsNamespace, name: str, value: Variable | None
) -> None:
    own = namespace.values is tx.request.function.__globals__
    if value is not None:
        cg.load(value)
    if value is None or (namespace, name) in tx.reordered_globals:
        _emit_on_global(cg, "DELETE", namespace, name, own=own)
    if value is not None:
        _emit_on_global(cg, "STORE", namespace, name, own=own)


def _emit_on_global(cg: PyCodegen, verb: str, namespace: GlobalsNamespace, name: str, *, own: bool) -> None:
    """Store what is on the stack to a global name, or delete it, as ``verb`` says."""
    if own:
        cg.body.emit(f"{verb}_GLOBAL", name)
        return
    cg.load_namespace(namespace)
    cg.load_const(name)
    cg.body.emit(f"{verb}_SUBSCR")


def add_aliasing_guards(tx: Tracer) -> None:
    """A change of one input must not show through another: guard that those which were distinct stay so."""
    by_type: dict[type, list[Variable]] = {}
    for value, _ in tx.variables_by_id.values():
        if value.source is not None and not isinstance(value, TensorVariable):
            by_type.setdefault(value.python_type(), []).append(value)
    why = "one of the two is changed, which would show through the other"
    for value in tx.mutated_variables.values():
        if value.source is None or isinstance(value, (CellVariable, TensorVariable)):
            continue
        for other in by_type.get(value.python_type(), ()):
            # A container's contents and the object that holds them have one origin.
            if other is value or other.source is None or other.source == value.source:
                continue
            if not (_is_kwargs_dict(tx, value) or _is_kwargs_dict(tx, other)):
                tx.add_guard(SameObject(value.source, other.source, False, cause=tx.guard_cause(why)))
    if any(
        id(real) in tx.viewed_dict_ids and id(value) in tx.mutated_variables
        for value, real in tx.variables_by_id.values()
    ):
        raise SkipFrame("side-effect", "a dict is changed of which a view came from outside")
    _guard_tensors_distinct(tx, why)
    _guard_keys_distinct(tx)
    _guard_no_overlap(tx)


def _guard_tensors_distinct(tx: Tracer, why: str) -> None:
    """One guard for all tensors, where attributes are set on some: there may be as many as a model has parameters."""
    is_set = any(isinstance(v, TensorVariable) and v.source is not None for v in tx.mutated_variables.values())
    if is_set or requires_grad_inputs(tx):
        origins = dict.fromkeys(
            v.source for v, _ in tx.variables_by_id.values() if isinstance(v, TensorVariable) and v.source
        )
        first, *others = origins
        if others:
            tx.add_guard(DistinctObjects(first, tuple(others), cause=tx.guard_cause(why)))


def _guard_keys_distinct(tx: Tracer) -> None:
    """Objects that were keys are as many keys in every call."""
    by_type: dict[type, dict[Source, None]] = {}
    for value in tx.identity_keys.values():
        if value.source is not None and not isinstance(value.source, ConstantSource):
            by_type.setdefault(value.python_type(), {})[value.source] = None
    for first, *others in by_type.values():
        if others:
            tx.add_guard(
                DistinctObjects(
                    first, tuple(others), cause=tx.guard_cause("they are different keys of a dict or elements of a set")
                )
            )


def _is_kwargs_dict(tx: Tracer, value: Variable) -> bool:
    """Whether Python makes the object anew for each call, as it does the dictionary of a call's keywords: nothing else can be it."""
    code = tx.request.function.__code__
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return False
    index = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    return value.source == LocalSource(code.co_varnames[index])


def _guard_no_overlap(tx: Tracer) -> None:
    used: list[TensorVariable] = [v for v, _ in tx.input_tensors if v.node_or_none is not None]
    unseen = _storages_written_through_data(tx)
    why = "it is changed in place, which would show through a tensor that shares its memory"
    homes = {id(v): _storage_id(v) for v, _ in tx.input_tensors}
    alone: list[TensorVariable] = []
    for value, version in tx.input_tensors:
        if value.fake.is_inference() or value.source is None:
            continue
        if value.fake._version == version and value.fake.untyped_storage()._cdata not in unseen:
            continue
        others = [v for v in used if v is not value and v.source is not None]
        home = homes[id(value)]
        apart = [o for o in others if not _may_share_storage(home, homes[id(o)])]
        if len(apart) == len(others) and value in used:
            alone.append(value)
        elif apart:
            _check_one_storage_per_memory(value, apart)
            origins = tuple(o.source for o in apart if o.source is not None)
            tx.add_guard(DisjointStorage(value.source, origins, cause=tx.guard_cause(why)))
    _guard_unaliased_writes(tx, alone, [v for v in used if v.source is not None], why)


def _guard_unaliased_writes(tx: Tracer, alone: list[TensorVariable], used: list[TensorVariable], why: str) -> None:
    """One guard for all written tensors that share with none: of each pair by itself an optimiser's step would have thousands."""
    others = {id(v): v for v in used if v.real_object is not None}
    written = [v.real_object for v in alone if others.pop(id(v), None) is not None]
    if written and not mutated_storages_are_disjoint(len(written), *written, *(v.real_object for v in others.values())):
        for value in alone:
            _check_one_storage_per_memory(value, [v for v in used if v is not value])
    mine = [v.source for v in alone if v.source is not None]
    origins = list(dict.fromkeys((*mine, *(v.source for v in used if v.source is not None))))
    if mine and len(origins) > 1:
        count = len(dict.fromkeys(mine))
        tx.add_guard(DisjointStorage(origins[0], tuple(origins[1:]), count, cause=tx.guard_cause(why)))


def _storages_written_through_data(tx: Tracer) -> set[int]:
    """Storages written to through ``x.data``, whose writes ``x`` does not count."""
    found: set[int] = set()
    for node in tx.graph.graph.nodes:
        if node.target is getattr and node.args[1] == "data":
            fake = node.meta["example_value"]
            if isinstance(fake, torch.Tensor) and not fake.is_inference() and fake._version != node.meta["version"]:
                found.add(fake.untyped_storage()._cdata)
    return found


def _check_one_storage_per_memory(written: TensorVariable, others: list[TensorVariable]) -> None:
    for other in others:
        if (
            written.real_object is None
            or other.real_object is None
            or has_disjoint_storage(written.real_object, other.real_object)
        ):
            continue
        names = f"{written.describe()} and {other.describe()}"
        raise SkipFrame(
            "side-effect", f"one of {names} is changed, which lie over the same memory by different storages"
        )


_UNKNOWN_STORAGE = 0
"""The home of a tensor that does not tell where its numbers are."""


def _storage_id(value: TensorVariable) -> int | None:
    """The storage that holds an input's numbers; None of what is no input."""
    if value.real_object is None:
        return None
    try:
        return int(value.real_object.untyped_storage()._cdata)
    except RuntimeError:
        return _UNKNOWN_STORAGE


def _may_share_storage(home: int | None, other: int | None) -> bool:
    return home is not None and other is not None and (home == other or _UNKNOWN_STORAGE in (home, other))


def mutates_inputs(tx: Tracer) -> bool:
    """Whether the graph changes an input in place."""
    return (
        tx.graph_sets_data
        or bool(tx.data_assigned_inputs)
        or any(v.fake.is_inference() or v.fake._version != version for v, version in tx.input_tensors)
        or not _running_stats(tx).isdisjoint(id(v.fake) for v, _ in tx.input_tensors)
    )


def _updates_running_stats(name: str, node: torch.fx.Node) -> bool:
    """Whether a normalisation computes the statistics of its input: its sixth argument in every spelling."""
    given = node.args[5] if len(node.args) > 5 else None
    for word in ("training", "use_input_stats"):
        given = node.kwargs.get(word, given)
    return "instance_norm" in name if given is None else bool(given)


def _running_stats(tx: Tracer) -> set[int]:
    """Ids of tensors that normalisations update without counting it as a change: what they take besides their input and needs no gradient."""
    found: set[int] = set()
    for node in tx.graph.graph.nodes:
        name = str(getattr(node.target, "__name__", node.target))
        if (
            node.op == "call_function"
            and ("batch_norm" in name or "instance_norm" in name)
            and _updates_running_stats(name, node)
        ):
            given = (a.meta.get("example_value") for a in node.all_input_nodes[1:])
            found.update(id(t) for t in given if isinstance(t, torch.Tensor) and not t.requires_grad)
    return found


def restorable_mutated_inputs(tx: Tracer) -> list[Source] | None:
    """Inputs that the graph changes in place, where putting their numbers back undoes all of that; None where it does not."""
    if tx.graph_sets_data or _storages_written_through_data(tx):
        return None
    found: list[Source] = []
    if any(not is_plain_tensor(value.real_object) for value in tx.data_assigned_inputs):
        return None
    found += [value.source for value in tx.data_assigned_inputs]
    statistics = _running_stats(tx)
    for value, version in tx.input_tensors:
        fake, held = value.fake, value.real_object
        if fake.is_inference():
            return None
        if fake._version == version and id(fake) not in statistics:
            continue
        if (
            tx.data_assigned_inputs
            or value.source is None
            or held is None
            or not is_plain_tensor(held)
            or (fake.requires_grad != held.requires_grad and not fake.is_leaf)
        ):
            return None
        if held.requires_grad and not (is_leaf_without_regeneration(held) and is_leaf_without_regeneration(fake)):
            return None  # its history changed with it
        if torch._debug_has_internal_overlap(held):
            return None  # numbers cannot be put back where elements share a place
        found.append(value.source)
    return found


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a strided one of torch's own class, of which a copy holds all that an operation changes."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and tensor.layout is torch.strided


def alias_gains_requires_grad(tx: Tracer) -> bool:
    """Whether an input came to require gradients by a change in place while another input shares its memory.

    The graph runs on the real tensors, where both then require gradients; the fake of the other one does not show that.
    """
    used: list[TensorVariable] = [v for v, _ in tx.input_tensors]
    return any(
        value.real_object is not None
        and value.fake.requires_grad != value.real_object.requires_grad
        and not value.fake.is_leaf  # a leaf was told so itself, which changes no other tensor
        and any(_may_share_storage(_storage_id(value), _storage_id(o)) for o in used if o is not value)
        for value in used
    )


def resizes_leaf_input(tx: Tracer) -> bool:
    """Whether an input that gathers gradients is given other sizes in place.

    Its gradient has the sizes that it had when autograd first asked for it, if what asked is still alive: how long that
    lives, a graph does not keep.
    """
    used: list[TensorVariable] = [v for v, _ in tx.input_tensors]
    return any(
        is_leaf_without_regeneration(value.fake)
        and value.fake.requires_grad
        and _comparable_sizes(came[0]) != _comparable_sizes(value.fake.shape)
        for value in used
        if (came := tx.input_layouts.get(id(value.fake))) is not None
    )


def _comparable_sizes(shape: Sequence[Any]) -> list[Any]:
    """Sizes that can be compared without asking for a guard; those that differ from row to row have a name and no expression."""
    nodes = [s.node if isinstance(s, torch.SymInt) else s for s in shape]
    return [n if isinstance(n, int) else getattr(n, "expr", str(n)) for n in nodes]


def requires_grad_inputs(tx: Tracer) -> list[Source]:
    """Inputs that the graph tells to require gradients, or not to."""
    names = {node.name for node in requires_grad_calls(tx.graph.graph).values()}
    return [i.source for i in tx.graph.inputs if i.name in names]
