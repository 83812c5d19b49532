"""Trace ``torch.func.functional_call``: the module runs with tensors put in its place."""

from __future__ import annotations

import itertools

import torch
import torch.overrides

from engine.group_pairs import group_pairs
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.containers import GetItemSource
from engine.torch_private.modules import weights_have_changed
from engine.trace.annotations import NNModuleVariable, Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import FALSE, NONE, TRUE, ConstantVariable, Variable, is_none, realize
from engine.trace.variables.callable_registry import register_bound_rule
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import items_or_value, sequence_items


@register_bound_rule(torch.func.functional_call)
def _functional_call(
    tx: Tracer,
    module: Variable,
    parameter_and_buffer_dicts: Variable,
    args: Variable = NONE,
    kwargs: Variable = NONE,
    *,
    tie_weights: Variable = TRUE,
    strict: Variable = FALSE,
) -> Variable:
    table = parameter_and_buffer_dicts
    if table.sequence_contents is not None:
        merged = DictVariable({})
        for part in sequence_items(tx, table):
            merged.update(tx, part)
        table = merged
    called, tensors = module.as_module(), table.dict_contents
    if called is None or tensors is None or not tie_weights.is_constant or not strict.is_constant:
        raise Unsupported("functional-call", "torch.func.functional_call is called")
    replacements = {str(k): v for k, (_, v) in tensors.entries.items()}
    replacements = _expand_tied_weights(called.real_object, replacements) if tie_weights.constant else replacements
    if strict.constant and replacements.keys() != _tensor_names(called.real_object):
        raise Unsupported("functional-call", "torch.func.functional_call needs one tensor per name")
    positional = [] if is_none(args) else items_or_value(tx, args)
    keywords = {} if kwargs.dict_contents is None else kwargs.dict_contents.entries
    named = {str(k): v for k, (_, v) in keywords.items()}
    replaced: list[tuple[NNModuleVariable, str]] = []
    try:
        for path, value in replacements.items():
            owner_path, _, name = path.rpartition(".")
            owner = called.member_at_path(tx, owner_path).as_module()
            tensor = realize(tx, value)
            if owner is not None and owner.functional_call_overrides.get(name) is tensor:
                continue
            if owner is None or not _owns_tensor(owner, name) or name in owner.functional_call_overrides:
                raise Unsupported("functional-call", f"torch.func.functional_call replaces {path!r}")
            if tensor.fake is None:
                raise Unsupported("functional-call", "torch.func.functional_call gets a value that is not a tensor")
            owner.functional_call_overrides[name] = tensor
            replaced.append((owner, name))
        return called.call(tx, positional, named)
    finally:
        for owner, name in replaced:
            del owner.functional_call_overrides[name]


def _owns_tensor(owner: NNModuleVariable, name: str) -> bool:
    tables = ("_parameters", "_buffers")
    return name not in owner.attr_writes and any(owner.real_object.__dict__[t].get(name) is not None for t in tables)


def _tensor_names(module: torch.nn.Module) -> set[str]:
    members = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return {name for name, _ in itertools.chain(*members)}


def _expand_tied_weights(module: torch.nn.Module, replacements: dict[str, Variable]) -> dict[str, Variable]:
    """Extend the passed tensors to all names of tied weights, unless those are also passed."""
    members = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    names = group_pairs((id(tensor), name) for name, tensor in itertools.chain(*members))
    spread = dict(replacements)
    for group in names.values():
        first = next((replacements[n] for n in group if n in replacements), None)
        if any(replacements[n] is not first for n in group if n in replacements):
            raise Unsupported("functional-call", "torch.func.functional_call gets two tensors for one shared parameter")
        if first is not None:
            spread.update((n, first) for n in group if n not in replacements)
    return spread


@register_bound_rule(weights_have_changed)
def _weights_have_changed(tx: Tracer, of: Variable) -> Variable:
    """Return False for ``RNNBase._weights_have_changed``.

    Guards ensure that the flat weight list and the parameters hold the same tensors.
    """
    module = of.as_module()
    if module is None or module.source is None or module.attr_writes or module.functional_call_overrides:
        raise Unsupported("recurrent-weights", "the weights of a recurrent module may have changed")
    if module.real_object._weights_have_changed():
        raise Unsupported("recurrent-weights", "the weights of a recurrent module have changed")
    names = module.real_object._flat_weights_names
    for n, (name, weight) in enumerate(zip(names, module.real_object._flat_weights, strict=True)):
        if weight is not module.real_object._parameters.get(name):
            raise Unsupported("recurrent-weights", "the weights of a recurrent module are not its parameters")
        realize(tx, module.member(tx, "_parameters", name))
        tx.wrap(weight, GetItemSource(AttrSource(module.source, "_flat_weights"), n))
    return ConstantVariable(False)
