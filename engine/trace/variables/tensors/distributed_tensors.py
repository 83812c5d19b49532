"""``DTensor`` members: constant mesh and placements; one graph node per redistribution.

Operations on it need no rule: it is a wrapper subclass of its local tensor (``torch.distributed.tensor``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from engine.ir.graph_callable import GraphCallable
from engine.ir.sources.attributes import AttrSource
from engine.torch_private import lazily_loaded
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import register_rule_by_name
from engine.trace.variables.tensors.tensor import TensorVariable
from engine.trace.variables.tensors.tensor_members import SUBCLASS_MEMBER_RULES, SubclassMemberRule
from engine.trace.variables.torch_api.collectives import constant_or_group

_API_MODULE, _CLASS_MODULE = "torch.distributed.tensor._api", "torch.distributed.tensor"


def _emit_with_constants(
    tx: Tracer, name: str, run: Callable[..., Any], of: Variable, args: Args, kwargs: Kwargs
) -> Variable:
    """Emit one node that calls ``run`` on a tensor. Other arguments are constants in the node."""
    tensor = realize(tx, of)
    if tensor.fake is None:
        raise Unsupported("distributed", f"DTensor.{name} is called on a {tensor.describe()}")
    values = [constant_or_group(tx, a) for a in args]
    keywords = {k: constant_or_group(tx, v) for k, v in kwargs.items()}
    if "async_op" in keywords:  # the graph orders its nodes itself and waits for data where it is used
        keywords["async_op"] = False
    shown_arguments = {str(n): v for n, v in enumerate(values)} | keywords

    def call(tensor: torch.Tensor) -> Any:
        return run(tensor, *values, **keywords)

    return emit_node(tx, "call_function", GraphCallable(name, call, arguments=shown_arguments), [tensor])


def _register_method(name: str) -> None:
    def run(tx: Tracer, of: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
        return _emit_with_constants(tx, name, getattr(of.python_type(), name), of, args, kwargs)

    SUBCLASS_MEMBER_RULES[(_CLASS_MODULE, "DTensor", name)] = SubclassMemberRule(run, is_method=True)


for _name in ("to_local", "redistribute", "full_tensor"):
    _register_method(_name)


def _mesh(tx: Tracer, of: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
    mesh: Any = of.fake
    mesh = mesh.device_mesh
    return tx.wrap_static(mesh) if of.source is None else tx.wrap(mesh, AttrSource(of.source, "device_mesh"))


def _placements(tx: Tracer, of: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
    fake: Any = of.fake
    return tx.from_python(tuple(fake.placements))


def _local_tensor(tx: Tracer, of: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
    return emit_node(tx, "call_function", GraphCallable("local_tensor", lambda whole: whole._local_tensor), [of])


SUBCLASS_MEMBER_RULES[(_CLASS_MODULE, "DTensor", "device_mesh")] = SubclassMemberRule(_mesh, is_method=False)
SUBCLASS_MEMBER_RULES[(_CLASS_MODULE, "DTensor", "placements")] = SubclassMemberRule(_placements, is_method=False)
SUBCLASS_MEMBER_RULES[(_CLASS_MODULE, "DTensor", "_local_tensor")] = SubclassMemberRule(_local_tensor, is_method=False)


@register_rule_by_name((_API_MODULE, "from_local"))
def _from_local(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    from torch.distributed.tensor import DTensor

    keywords = dict(kwargs)
    tensor = args[0] if args else keywords.pop("local_tensor")
    return _emit_with_constants(tx, "from_local", DTensor.from_local, tensor, args[1:], keywords)


@register_rule_by_name(("torch.distributed.tensor.experimental", "local_map"))
def _local_map(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``local_map(func, ...)``: the returned function is inlined with these placements."""
    module: Any = lazily_loaded.local_map_module
    parameters = inspect.signature(module.local_map).parameters
    arguments = dict(zip(parameters, args, strict=False)) | kwargs
    names = [
        "spmd_types" if n == "enable_spmd_types" else n  # new in torch 2.14, under two names
        for n, p in inspect.signature(module._local_map_wrapped).parameters.items()
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    if "func" not in arguments or arguments.keys() - set(names) or set(names) - set(parameters):
        raise Unsupported("distributed", "local_map is called without a function")
    values = [arguments[n] if n in arguments else tx.from_python(parameters[n].default) for n in names]
    return tx.wrap_static(functools.partial).call(tx, [tx.wrap_static(module._local_map_wrapped), *values], {})
