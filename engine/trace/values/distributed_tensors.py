"""``DTensor``: what it adds to a tensor. Its mesh and placements are constants; moving data between layouts is one node of the graph.

Operations on it need nothing of their own: it is a tensor subclass around its local tensor (``torch.distributed.tensor``).
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.in_graph import InGraph
from engine.ir.origin import Attr
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import Value, force
from engine.trace.values.collectives import constant_of
from engine.trace.values.rules import BY_NAME
from engine.trace.values.tensor import OWN, OwnRule, TensorValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]
_API, _CLASS = "torch.distributed.tensor._api", "torch.distributed.tensor"


def _with_constants(tx: Tracer, name: str, run: Callable[..., Any], of: Value, args: Args, kwargs: Words) -> Value:
    """One node that calls ``run`` on a tensor; all other arguments are known and part of the node."""
    tensor = force(tx, of)
    if not isinstance(tensor, TensorValue):
        raise Unsupported("unknown-call", f"DTensor.{name} is called on a {tensor.describe()}")
    values = [constant_of(tx, a) for a in args]
    words = {k: constant_of(tx, v) for k, v in kwargs.items()}
    if "async_op" in words:  # a graph orders its nodes itself: data are waited for where they are used
        words["async_op"] = False
    shown = {str(n): v for n, v in enumerate(values)} | words

    def call(tensor: torch.Tensor) -> Any:
        return run(tensor, *values, **words)

    return emit(tx, "call_function", InGraph(name, call, arguments=shown), [tensor])


def _method(name: str) -> None:
    def run(tx: Tracer, of: TensorValue, args: Args, kwargs: Words) -> Value:
        return _with_constants(tx, name, getattr(of.type(), name), of, args, kwargs)

    OWN[(_CLASS, "DTensor", name)] = OwnRule(run, is_method=True)


for _name in ("to_local", "redistribute", "full_tensor"):
    _method(_name)


def _mesh(tx: Tracer, of: TensorValue, args: Args, kwargs: Words) -> Value:
    mesh: Any = of.fake
    mesh = mesh.device_mesh
    return tx.fixed(mesh) if of.origin is None else tx.wrap(mesh, Attr(of.origin, "device_mesh"))


def _placements(tx: Tracer, of: TensorValue, args: Args, kwargs: Words) -> Value:
    inside: Any = of.fake
    return tx.from_python(tuple(inside.placements))


def _local(tx: Tracer, of: TensorValue, args: Args, kwargs: Words) -> Value:
    return emit(tx, "call_function", InGraph("local_tensor", lambda whole: whole._local_tensor), [of])


OWN[(_CLASS, "DTensor", "device_mesh")] = OwnRule(_mesh, is_method=False)
OWN[(_CLASS, "DTensor", "placements")] = OwnRule(_placements, is_method=False)
OWN[(_CLASS, "DTensor", "_local_tensor")] = OwnRule(_local, is_method=False)


def _from_local(tx: Tracer, args: Args, kwargs: Words) -> Value:
    from torch.distributed.tensor import DTensor

    given = dict(kwargs)
    tensor = args[0] if args else given.pop("local_tensor")
    return _with_constants(tx, "from_local", DTensor.from_local, tensor, args[1:], given)


BY_NAME[(_API, "from_local")] = _from_local


def _local_map(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """``local_map(func, ...)``: what runs for each call is traced, with the layouts that were given here."""
    module: Any = importlib.import_module("torch.distributed.tensor.experimental._func_map")
    parameters = inspect.signature(module.local_map).parameters
    given = dict(zip(parameters, args, strict=False)) | kwargs
    wanted = [
        n
        for n, p in inspect.signature(module._local_map_wrapped).parameters.items()
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    if "func" not in given or given.keys() - set(wanted) or set(wanted) - set(parameters):
        raise Unsupported("unknown-call", "local_map is called without a function")
    taken = [given[n] if n in given else tx.from_python(parameters[n].default) for n in wanted]
    return tx.fixed(functools.partial).call(tx, [tx.fixed(module._local_map_wrapped), *taken], {})


BY_NAME[("torch.distributed.tensor.experimental", "local_map")] = _local_map
