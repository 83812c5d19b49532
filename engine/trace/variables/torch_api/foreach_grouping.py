"""Groups tensor lists by device and dtype while tracing, for torch's foreach functions."""

from __future__ import annotations

from engine.torch_private.operators import group_tensors_by_device_and_dtype
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import ConstantVariable, Variable, realize
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable, sequence_items


@register_rule(group_tensors_by_device_and_dtype)
def _group_by_device_and_dtype(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """Group the fake tensors with torch's own function and apply the groups to the variables."""
    words = dict(zip(("tensorlistlist", "with_indices"), args, strict=False)) | kwargs
    lists = [[realize(tx, t) for t in sequence_items(tx, row)] for row in sequence_items(tx, words["tensorlistlist"])]
    with_indices = realize(tx, words.get("with_indices", ConstantVariable(False))).is_truthy(tx)
    if not all(t.fake is not None or t.python_type() is type(None) for row in lists for t in row):
        raise Unsupported("torch-internals", "tensors are grouped together with other objects")
    fakes = [[t.fake for t in row] for row in lists]
    try:
        groups = group_tensors_by_device_and_dtype(fakes, True)
    except (RuntimeError, TypeError):
        raise Unsupported("torch-internals", "grouping tensors by device and dtype raises") from None
    entries: dict[object, tuple[Variable, Variable]] = {}
    for (device, dtype), (_, places) in groups.items():
        key = TupleVariable([ConstantVariable(device), ConstantVariable(dtype)])
        rows = ListVariable([ListVariable([row[n] for n in places] if row else []) for row in lists])
        indices = ListVariable([ConstantVariable(n) for n in places] if with_indices else [])
        entries[key.hash_key(tx)] = (key, TupleVariable([rows, indices]))
    return DictVariable(entries)
