"""Replaying after the graph what the traced code did to objects that exist: contents, attributes, globals, cells."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from bytecode.instr import FreeVar

from engine.graph.passes.lift_switches import switches_of
from engine.ir.origin import CellOf, Closure, Fixed, Local, Namespace, Origin
from engine.ir.relation_guard import Distinct, NoOverlap, SameObject, memories_differ, written_differ
from engine.ir.view_history import is_leaf
from engine.trace.signals import Skip, Unsupported
from engine.trace.values.base import Value
from engine.trace.values.cells import CellValue
from engine.trace.values.context_variables import VariableValue
from engine.trace.values.mappings import DictValue
from engine.trace.values.objects import ObjectValue
from engine.trace.values.outside_iterators import KnownIterator
from engine.trace.values.random_numbers import RandomValue
from engine.trace.values.sequences import ListValue
from engine.trace.values.sets import SetValue
from engine.trace.values.tensor import TensorValue
from engine.trace.values.waiting_generators import WaitingGenerator

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


def pending_values(tx: Tracer) -> list[Value]:
    """Values that replaying will load: for codegen's search for cycles."""
    found: list[Value] = [v for v in tx.globals_written.values() if v is not None]
    for value in tx.mutated.values():
        found.extend(value.children())
    return [*found, *(call for call, _ in tx.effects)]


def replay(tx: Tracer, cg: Codegen) -> tuple[str, ...]:
    """Emit all side effects, in the order of their first occurrence; what they are, in words."""
    told: list[str] = []
    for value in list(tx.mutated.values()):
        text = _replay_one(cg, value)
        if text:
            told.append(text)
        cg.flush()
    for (namespace, name), written in tx.globals_written.items():
        _write_global(tx, cg, namespace, name, written)
        told.append(f"the global {name} is {'deleted' if written is None else 'set'}")
    cg.flush()
    for call, words in tx.effects:
        cg.load(call)
        cg.out.emit("POP_TOP")
        told.append(words)
    cg.flush()
    return tuple(told)


def _replay_one(cg: Codegen, value: Value) -> str:
    if isinstance(value, CellValue):
        return _write_cell(cg, value)
    if isinstance(value, (ListValue, DictValue, SetValue)):
        cg.load(value)
        value.fill(cg)
        return f"{_name(value)}: contents of the {value.type().__name__} are replaced"
    if isinstance(value, (ObjectValue, TensorValue)):
        is_assigned = isinstance(value, ObjectValue) and value.is_assigned
        if not value.written and not is_assigned:
            return ""
        cg.load(value)
        value.fill(cg)
        if is_assigned:
            return f"{_name(value)}: __dict__ is set"
        return f"{_name(value)}: {', '.join(value.written)} {'is' if len(value.written) == 1 else 'are'} set"
    if isinstance(value, KnownIterator):
        if not value.steps:
            return ""
        cg.load(value)
        value.fill(cg)
        return f"{_name(value)}: the iterator is moved on by {value.steps}"
    if isinstance(value, WaitingGenerator):
        cg.load(value)
        value.fill(cg)
        return f"{_name(value)}: the generator is at its end"
    if isinstance(value, RandomValue):
        cg.load(value)
        value.fill(cg)
        return f"{_name(value)}: the state of the random numbers is set"
    if isinstance(value, VariableValue):
        cg.load(value)
        value.fill(cg)
        return f"{_name(value)}: the context variable is set" if value.done else ""
    raise Unsupported("side-effect", f"changing a {value.type().__name__}")


def _name(value: Value) -> str:
    return value.origin.expr if value.origin is not None else value.describe()


def _write_cell(cg: Codegen, value: CellValue) -> str:
    match value.origin:
        case Closure(variable):
            if value.content is None:
                cg.out.emit("DELETE_DEREF", FreeVar(variable))
            else:
                cg.load(value.content)
                cg.out.emit("STORE_DEREF", FreeVar(variable))
            return f"the closure variable {variable} is set"
        case CellOf(base, index, variable):
            from engine.ir.origin import Attr

            if value.content is None:
                raise Unsupported("side-effect", "a closure variable of another function is deleted")
            cg.load(value.content)
            cg.load_origin(Attr(base, "__closure__"))
            cg.out.item(index)
            cg.out.emit("STORE_ATTR", "cell_contents")
            return f"the closure variable {variable} is set"
    raise Unsupported("side-effect", "a closure variable is set")


def _write_global(tx: Tracer, cg: Codegen, namespace: Namespace, name: str, value: Value | None) -> None:
    own = namespace.values is tx.request.function.__globals__
    if value is not None:
        cg.load(value)
    if value is None or (namespace, name) in tx.globals_gone:
        _emit_on_global(cg, "DELETE", namespace, name, own=own)
    if value is not None:
        _emit_on_global(cg, "STORE", namespace, name, own=own)


def _emit_on_global(cg: Codegen, verb: str, namespace: Namespace, name: str, *, own: bool) -> None:
    """Store what is on the stack to a global name, or delete it, as ``verb`` says."""
    if own:
        cg.out.emit(f"{verb}_GLOBAL", name)
        return
    cg.namespace(namespace)
    cg.const(name)
    cg.out.emit(f"{verb}_SUBSCR")


def guard_distinct(tx: Tracer) -> None:
    """A change of one input must not show through another: guard that those which were distinct stay so."""
    by_type: dict[type, list[Value]] = {}
    for value, _ in tx.known.values():
        if value.origin is not None and not isinstance(value, TensorValue):
            by_type.setdefault(value.type(), []).append(value)
    why = "one of the two is changed, which would show through the other"
    for value in tx.mutated.values():
        if value.origin is None or isinstance(value, (CellValue, TensorValue)):
            continue
        for other in by_type.get(value.type(), ()):
            # A container's contents and the object that holds them have one origin.
            if other is value or other.origin is None or other.origin == value.origin:
                continue
            if not (_is_fresh(tx, value) or _is_fresh(tx, other)):
                tx.guard(SameObject(value.origin, other.origin, False, cause=tx.cause(why)))
    if any(id(real) in tx.viewed and id(value) in tx.mutated for value, real in tx.known.values()):
        raise Skip("side-effect", "a dict is changed of which a view came from outside")
    _guard_tensors_distinct(tx, why)
    _guard_keys_distinct(tx)
    _guard_overlap(tx)


def _guard_tensors_distinct(tx: Tracer, why: str) -> None:
    """One guard for all tensors, where attributes are set on some: there may be as many as a model has parameters."""
    is_set = any(isinstance(v, TensorValue) and v.origin is not None for v in tx.mutated.values())
    if is_set or switched_inputs(tx):
        origins = dict.fromkeys(v.origin for v, _ in tx.known.values() if isinstance(v, TensorValue) and v.origin)
        first, *others = origins
        if others:
            tx.guard(Distinct(first, tuple(others), cause=tx.cause(why)))


def _guard_keys_distinct(tx: Tracer) -> None:
    """Objects that were keys are as many keys in every call."""
    by_type: dict[type, dict[Origin, None]] = {}
    for value in tx.keyed.values():
        if value.origin is not None and not isinstance(value.origin, Fixed):
            by_type.setdefault(value.type(), {})[value.origin] = None
    for first, *others in by_type.values():
        if others:
            tx.guard(
                Distinct(first, tuple(others), cause=tx.cause("they are different keys of a dict or elements of a set"))
            )


def _is_fresh(tx: Tracer, value: Value) -> bool:
    """Whether Python makes the object anew for each call, as it does the dictionary of a call's keywords: nothing else can be it."""
    code = tx.request.function.__code__
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return False
    index = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    return value.origin == Local(code.co_varnames[index])


def _guard_overlap(tx: Tracer) -> None:
    used: list[TensorValue] = [v for v, _ in tx.input_tensors if v.made_by is not None]
    unseen = _written_as_data(tx)
    why = "it is changed in place, which would show through a tensor that shares its memory"
    homes = {id(v): _home(v) for v, _ in tx.input_tensors}
    alone: list[TensorValue] = []
    for value, version in tx.input_tensors:
        if value.fake.is_inference() or value.origin is None:
            continue
        if value.fake._version == version and value.fake.untyped_storage()._cdata not in unseen:
            continue
        others = [v for v in used if v is not value and v.origin is not None]
        home = homes[id(value)]
        apart = [o for o in others if not _may_share(home, homes[id(o)])]
        if len(apart) == len(others) and value in used:
            alone.append(value)
        elif apart:
            _refuse_storages_over_one_memory(value, apart)
            origins = tuple(o.origin for o in apart if o.origin is not None)
            tx.guard(NoOverlap(value.origin, origins, cause=tx.cause(why)))
    _guard_alone(tx, alone, [v for v in used if v.origin is not None], why)


def _guard_alone(tx: Tracer, alone: list[TensorValue], used: list[TensorValue], why: str) -> None:
    """One guard for all written tensors that share with none: of each pair by itself an optimiser's step would have thousands."""
    others = {id(v): v for v in used if v.held is not None}
    written = [v.held for v in alone if others.pop(id(v), None) is not None]
    if written and not written_differ(len(written), *written, *(v.held for v in others.values())):
        for value in alone:
            _refuse_storages_over_one_memory(value, [v for v in used if v is not value])
    mine = [v.origin for v in alone if v.origin is not None]
    origins = list(dict.fromkeys((*mine, *(v.origin for v in used if v.origin is not None))))
    if mine and len(origins) > 1:
        count = len(dict.fromkeys(mine))
        tx.guard(NoOverlap(origins[0], tuple(origins[1:]), count, cause=tx.cause(why)))


def _written_as_data(tx: Tracer) -> set[int]:
    """Storages written to through ``x.data``, whose writes ``x`` does not count."""
    found: set[int] = set()
    for node in tx.graph.graph.nodes:
        if node.target is getattr and node.args[1] == "data":
            fake = node.meta["example_value"]
            if isinstance(fake, torch.Tensor) and not fake.is_inference() and fake._version != node.meta["version"]:
                found.add(fake.untyped_storage()._cdata)
    return found


def _refuse_storages_over_one_memory(written: TensorValue, others: list[TensorValue]) -> None:
    for other in others:
        if written.held is None or other.held is None or memories_differ(written.held, other.held):
            continue
        names = f"{written.describe()} and {other.describe()}"
        raise Skip("side-effect", f"one of {names} is changed, which lie over the same memory by different storages")


_ANYWHERE = 0
"""The home of a tensor that does not tell where its numbers are."""


def _home(value: TensorValue) -> int | None:
    """The storage that holds an input's numbers; None of what is no input."""
    if value.held is None:
        return None
    try:
        return int(value.held.untyped_storage()._cdata)
    except RuntimeError:
        return _ANYWHERE


def _may_share(home: int | None, other: int | None) -> bool:
    return home is not None and other is not None and (home == other or _ANYWHERE in (home, other))


def changes_inputs(tx: Tracer) -> bool:
    """Whether the graph changes an input in place."""
    return (
        tx.gives_data
        or bool(tx.moved)
        or any(v.fake.is_inference() or v.fake._version != version for v, version in tx.input_tensors)
        or not _running_statistics(tx).isdisjoint(id(v.fake) for v, _ in tx.input_tensors)
    )


def _updates(name: str, node: torch.fx.Node) -> bool:
    """Whether a normalisation computes the statistics of its input: its sixth argument in every spelling."""
    given = node.args[5] if len(node.args) > 5 else None
    for word in ("training", "use_input_stats"):
        given = node.kwargs.get(word, given)
    return "instance_norm" in name if given is None else bool(given)


def _running_statistics(tx: Tracer) -> set[int]:
    """Ids of tensors that normalisations update without counting it as a change: what they take besides their input and needs no gradient."""
    found: set[int] = set()
    for node in tx.graph.graph.nodes:
        name = str(getattr(node.target, "__name__", node.target))
        if node.op == "call_function" and ("batch_norm" in name or "instance_norm" in name) and _updates(name, node):
            given = (a.meta.get("example_value") for a in node.all_input_nodes[1:])
            found.update(id(t) for t in given if isinstance(t, torch.Tensor) and not t.requires_grad)
    return found


def changed_inputs(tx: Tracer) -> list[Origin] | None:
    """Inputs that the graph changes in place, where putting their numbers back undoes all of that; None where it does not."""
    if tx.gives_data or _written_as_data(tx):
        return None
    found: list[Origin] = []
    if any(not is_plain(value.held) for value in tx.moved):
        return None
    found += [value.origin for value in tx.moved]
    statistics = _running_statistics(tx)
    for value, version in tx.input_tensors:
        fake, held = value.fake, value.held
        if fake.is_inference():
            return None
        if fake._version == version and id(fake) not in statistics:
            continue
        if (
            tx.moved
            or value.origin is None
            or held is None
            or not is_plain(held)
            or (fake.requires_grad != held.requires_grad and not fake.is_leaf)
        ):
            return None
        if held.requires_grad and not (is_leaf(held) and is_leaf(fake)):
            return None  # its history changed with it
        if torch._debug_has_internal_overlap(held):
            return None  # numbers cannot be put back where elements share a place
        found.append(value.origin)
    return found


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a strided one of torch's own class, of which a copy holds all that an operation changes."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and tensor.layout is torch.strided


def shares_new_history(tx: Tracer) -> bool:
    """Whether an input came to require gradients by a change in place while another input shares its memory.

    The graph runs on the real tensors, where both then require gradients; the fake of the other one does not show that.
    """
    used: list[TensorValue] = [v for v, _ in tx.input_tensors]
    return any(
        value.held is not None
        and value.fake.requires_grad != value.held.requires_grad
        and not value.fake.is_leaf  # a leaf was told so itself, which changes no other tensor
        and any(_may_share(_home(value), _home(o)) for o in used if o is not value)
        for value in used
    )


def reshapes_a_leaf(tx: Tracer) -> bool:
    """Whether an input that gathers gradients is given other sizes in place.

    Its gradient has the sizes that it had when autograd first asked for it, if what asked is still alive: how long that
    lives, a graph does not keep.
    """
    used: list[TensorValue] = [v for v, _ in tx.input_tensors]
    return any(
        is_leaf(value.fake) and value.fake.requires_grad and _sizes(came[0]) != _sizes(value.fake.shape)
        for value in used
        if (came := tx.input_layouts.get(id(value.fake))) is not None
    )


def _sizes(shape: Sequence[Any]) -> list[Any]:
    """Sizes that can be compared without asking for a guard; those that differ from row to row have a name and no expression."""
    nodes = [s.node if isinstance(s, torch.SymInt) else s for s in shape]
    return [n if isinstance(n, int) else getattr(n, "expr", str(n)) for n in nodes]


def switched_inputs(tx: Tracer) -> list[Origin]:
    """Inputs that the graph tells to require gradients, or not to."""
    names = {node.name for node in switches_of(tx.graph.graph).values()}
    return [i.origin for i in tx.graph.inputs if i.name in names]
