"""Lists of tensors that torch's optimisers work on at once: grouped by device and dtype while tracing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, Value, force
from engine.trace.values.mappings import DictValue
from engine.trace.values.rules import special
from engine.trace.values.sequences import ListValue, TupleValue, sequence_items
from engine.trace.values.tensor import TensorValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer


@special(torch._C._group_tensors_by_device_and_dtype)
def _group(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Torch decides about fakes, in its own order; the groups then hold the tensors that were given."""
    words = dict(zip(("tensorlistlist", "with_indices"), args, strict=False)) | kwargs
    lists = [[force(tx, t) for t in sequence_items(tx, row)] for row in sequence_items(tx, words["tensorlistlist"])]
    with_indices = force(tx, words.get("with_indices", Const(False))).truth(tx)
    if not all(isinstance(t, TensorValue) or t.type() is type(None) for row in lists for t in row):
        raise Unsupported("unknown-call", "tensors are grouped together with what is no tensor")
    fakes = [[t.fake if isinstance(t, TensorValue) else None for t in row] for row in lists]
    try:
        groups = torch._C._group_tensors_by_device_and_dtype(fakes, True)
    except (RuntimeError, TypeError):
        raise Unsupported("unknown-call", "grouping tensors by device and dtype raises") from None
    entries: dict[object, tuple[Value, Value]] = {}
    for (device, dtype), (_, places) in groups.items():
        key = TupleValue([Const(device), Const(dtype)])
        rows = ListValue([ListValue([row[n] for n in places] if row else []) for row in lists])
        indices = ListValue([Const(n) for n in places] if with_indices else [])
        entries[key.key(tx)] = (key, TupleValue([rows, indices]))
    return DictValue(entries)


@special(torch._C._get_privateuse1_backend_name)
def _own_backend(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Which kinds of device have operators on lists is asked with it; a process names its backend once, before tensors are made."""
    return Const(torch._C._get_privateuse1_backend_name())
