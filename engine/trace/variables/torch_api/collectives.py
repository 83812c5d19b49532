"""``torch.distributed``: process groups, meshes, functional collectives.

Groups and meshes are constants guarded by identity. A collective is a functional node followed by its wait.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
import torch.nn.parallel

from engine.ir.register_once import register_each, register_table
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.roots import ConstantSource
from engine.torch_private.modules import inside_ddp_forward
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import BreakGraph, Unsupported
from engine.trace.variables.base import (
    NONE,
    Args,
    ConstantVariable,
    Kwargs,
    NotPythonConstant,
    UserErrors,
    Variable,
    is_none,
    realize,
)
from engine.trace.variables.builder import guarded_builder, register_builder_if
from engine.trace.variables.callable_registry import register_rule, register_rule_by_name
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.containers.sequences import sequence_items
from engine.trace.variables.higher_order.pytrees import flatten_python, map_leaves, unflatten_variable
from engine.trace.variables.objects.user_defined_objects import OpaqueObjectVariable
from engine.trace.variables.tensors.tensor import TensorVariable

_C10D = "torch.distributed.distributed_c10d"
_FUNCTIONAL = "torch.distributed._functional_collectives"
_CONSTANT_CLASSES = frozenset(("ProcessGroup", "DeviceMesh"))
_CONSTANT_METHODS = frozenset(
    "rank size name get_group get_all_groups get_local_rank get_rank get_coordinate __getitem__".split()
)
_REDUCTIONS = frozenset(("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"))


class ProcessGroupOrMeshVariable(OpaqueObjectVariable):
    """A process group or device mesh. Its properties are constant and read while tracing."""

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        member = getattr(self.real_object, name, None)
        if name in _CONSTANT_METHODS:
            return BuiltinMethodVariable(self, name)
        if name.startswith("__") or callable(member):
            return super().get_attr(tx, name)
        return _constant_query(tx, lambda: getattr(self.real_object, name), f"{self.python_type().__name__}.{name}")

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name not in _CONSTANT_METHODS:
            raise Unsupported("distributed", f"{self.python_type().__name__}.{name} is called")
        values, keywords = tx.as_python_constants(args), tx.as_python_keywords(kwargs)
        return _constant_query(
            tx, lambda: getattr(self.real_object, name)(*values, **keywords), f"{self.python_type().__name__}.{name}"
        )

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return self.call_method(tx, "__getitem__", [key], {})


def is_group_or_mesh(real: Any) -> bool:
    """Return True for a process group or device mesh."""
    return any(
        base.__name__ in _CONSTANT_CLASSES and base.__module__.startswith("torch.") for base in type(real).__mro__
    )


register_builder_if(40, is_group_or_mesh)(
    guarded_builder(ProcessGroupOrMeshVariable, "the {0.__class__.__name__} was used")
)


def _constant_query(tx: Tracer, ask: Callable[[], Any], what: str) -> Variable:
    with UserErrors(tx, Exception):
        answer = ask()
    leaves: list[Any] = []
    tree = flatten_python(answer, leaves)
    if other := [leaf for leaf in leaves if not is_group_or_mesh(leaf) and not isinstance(leaf, torch.device)]:
        raise Unsupported("distributed", f"{what} returns a {type(other[0]).__name__}")
    return unflatten_variable(tx, tree, map(tx.from_python, leaves))


# Queries about groups.


def _default_group(tx: Tracer) -> Any:
    """Return the default process group or None, with an identity guard."""
    world = sys.modules[_C10D]._world
    group = world.default_pg
    source = AttrSource(ConstantSource(world, "torch.distributed"), "default_pg")
    tx.guard_identity(group, source, "the default process group was used")
    return group


def constant_or_group(tx: Tracer, value: Variable) -> Any:
    """Return a value as a Python object that may be or contain groups and meshes.

    Raises:
        Unsupported: the value is not constant.
    """

    def constant(item: Variable) -> Any:
        if is_group_or_mesh(item.as_python_object()):
            return item.as_python_object()
        with BreakGraph("distributed", f"a query of torch.distributed with a {item.describe()}", NotPythonConstant):
            return item.as_python_constant(tx)

    return map_leaves(tx, value, constant)


_QUERIES = (
    "is_initialized get_rank get_world_size get_backend get_process_group_ranks get_global_rank get_group_rank "
    "_get_group_size_by_name _get_group_size _get_default_group _rank_not_in_group is_gloo_available is_nccl_available is_mpi_available"
).split()


@register_each(register_rule_by_name, ("torch.distributed", "is_available"), *((_C10D, name) for name in _QUERIES))
def _query(function: tuple[str, str], tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    module, name = function
    if module == _C10D:
        _default_group(tx)
    values = [constant_or_group(tx, a) for a in args]
    keywords = {k: constant_or_group(tx, v) for k, v in kwargs.items()}
    ask = functools.partial(getattr(sys.modules[module], name), *values, **keywords)
    return _constant_query(tx, ask, f"torch.distributed.{name}")


# Functional collectives: their Python code is inlined up to the group name.


@register_rule_by_name((_FUNCTIONAL, "_resolve_group"), (_FUNCTIONAL, "_resolve_group_name"))
def _resolve_group_name(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    group, tag = [*(constant_or_group(tx, a) for a in (*args, *kwargs.values())), ""][:2]
    if isinstance(group, str):
        return ConstantVariable(group)
    resolve = sys.modules[_FUNCTIONAL]._resolve_group_name
    return _constant_query(tx, lambda: str(resolve(group, tag)), "the name of a process group")


register_rule_by_name((_FUNCTIONAL, "_are_we_tracing"))(lambda tx, args, kwargs: ConstantVariable(True))


# DistributedDataParallel.


if torch.distributed.is_available():  # DDP's forward context only informs torch.compile
    register_rule(inside_ddp_forward)(lambda tx, args, kwargs: tx.wrap_static(contextlib.nullcontext).call(tx, [], {}))


# In-place collectives.


class _CollectiveCall:
    """Arguments of one collective, checked so that the functional form equals eager."""

    def __init__(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> None:
        self.tx = tx
        self.name = name
        function = getattr(sys.modules[_C10D], name)
        try:
            bound = inspect.signature(function).bind(*args, **kwargs)
        except TypeError:
            raise self.unsupported_call("with arguments that it does not accept") from None
        self.arguments = {k: realize(tx, v) for k, v in bound.arguments.items()}
        if realize(tx, self.arguments.get("async_op", ConstantVariable(False))).is_truthy(tx):
            raise self.unsupported_call("with async_op=True: a graph cannot hold its handle")
        group = self.arguments.get("group", NONE)
        self.group = _default_group(tx) if is_none(group) else constant_or_group(tx, group)
        self.is_member = is_group_or_mesh(self.group) and self.group.rank() >= 0
        if not self.is_member:
            raise self.unsupported_call("without a process group that this process belongs to")
        self.size = self.group.size()

    def unsupported_call(self, how: str) -> Unsupported:
        return Unsupported("distributed", f"torch.distributed.{self.name} is called {how}")

    def tensor(self, name: str) -> TensorVariable:
        return self.checked(self.arguments[name])

    def checked(self, argument: Variable) -> TensorVariable:
        tensor: Any = realize(self.tx, argument)
        if tensor.fake is None or tensor.python_type() not in (torch.Tensor, torch.nn.Parameter):
            raise self.unsupported_call("on arguments other than plain tensors")
        if tensor.fake.requires_grad and torch.is_grad_enabled():
            raise self.unsupported_call("on a tensor that requires grad")
        if not tensor.fake.is_contiguous() or tensor.fake.dtype.is_complex:
            raise self.unsupported_call("on a tensor that is not contiguous, or complex")
        return tensor  # type: ignore[no-any-return]

    def rows_per_member(self, tensor: TensorVariable) -> int:
        """Return the number of rows that each member of the group gets."""
        rows = tensor.fake.shape[0] if tensor.fake.dim() else 1
        if not isinstance(rows, int) or rows % self.size:
            raise self.unsupported_call("on a tensor that cannot be split into equal parts")
        return int(rows // self.size)

    def reduction(self) -> Variable:
        operation = self.arguments.get("op")
        reduce_op = sys.modules[_C10D].ReduceOp.SUM if operation is None else operation.as_python_object()
        name = getattr(reduce_op, "name", None)
        if name not in _REDUCTIONS:
            raise self.unsupported_call("with an unsupported reduction")
        return ConstantVariable(str(name).lower())

    def run(self, operator: str, tensor: Variable, *rest: Variable) -> Variable:
        """Emit the collective and its wait."""
        operators = torch.ops._c10d_functional
        overload, group = getattr(operators, operator).default, ConstantVariable(str(self.group.group_name))
        started = emit_node(self.tx, "call_function", overload, [tensor, *rest, group])
        return emit_node(self.tx, "call_function", operators.wait_tensor.default, [started])

    def write(self, target: TensorVariable, source: Variable) -> None:
        if target.fake.dtype != source.fake.dtype or tuple(target.fake.shape) != tuple(source.fake.shape):
            raise self.unsupported_call("with tensors that differ in dtype, or in more sizes than the first")
        emit_node(self.tx, "call_method", "copy_", [target, source])


def _all_reduce(call: _CollectiveCall) -> None:
    tensor = call.tensor("tensor")
    call.write(tensor, call.run("all_reduce", tensor, call.reduction()))


def _broadcast(call: _CollectiveCall) -> None:
    tensor = call.tensor("tensor")
    ranks = call.tx.as_python_constants([call.arguments.get(name, NONE) for name in ("src", "group_src")])
    source, group_rank = ranks
    if (source is None) == (group_rank is None):
        raise call.unsupported_call("with two sources, or none")
    rank = sys.modules[_C10D].get_group_rank(call.group, source) if group_rank is None else group_rank
    call.write(tensor, call.run("broadcast", tensor, ConstantVariable(rank)))


def _all_gather_into(call: _CollectiveCall) -> None:
    output, tensor = (call.tensor(name) for name in list(call.arguments)[:2])
    if tensor.fake.dim() == 0:
        raise call.unsupported_call("on a tensor without dimensions")
    call.write(output, call.run("all_gather_into_tensor", tensor, ConstantVariable(call.size)))


def _all_gather(call: _CollectiveCall) -> None:
    outputs = [call.checked(t) for t in sequence_items(call.tx, call.arguments["tensor_list"])]
    tensor = call.tensor("tensor")
    if len(outputs) != call.size or any(o.fake.shape != tensor.fake.shape for o in outputs):
        raise call.unsupported_call("with tensors of different sizes")
    row = emit_node(call.tx, "call_method", "unsqueeze", [tensor, ConstantVariable(0)])
    gathered = call.run("all_gather_into_tensor", row, ConstantVariable(call.size))
    for number, output in enumerate(outputs):
        call.write(output, gathered.get_item(call.tx, ConstantVariable(number)))


def _reduce_scatter(call: _CollectiveCall) -> None:
    output, tensor = call.tensor("output"), call.tensor("input")
    call.rows_per_member(tensor)
    call.write(output, call.run("reduce_scatter_tensor", tensor, call.reduction(), ConstantVariable(call.size)))


def _all_to_all(call: _CollectiveCall) -> None:
    output, tensor = call.tensor("output"), call.tensor("input")
    if not all(is_none(call.arguments.get(f"{w}_split_sizes", NONE)) for w in ("output", "input")):
        raise call.unsupported_call("with split sizes")
    if tensor.fake.dim() == 0:
        raise call.unsupported_call("on a tensor without dimensions")
    parts = call.tx.from_python([call.rows_per_member(tensor)] * call.size)
    call.write(output, call.run("all_to_all_single", tensor, parts, parts))


_COLLECTIVES: dict[str, Callable[[_CollectiveCall], None]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather_into_tensor": _all_gather_into,
    "all_gather_single": _all_gather_into,
    "all_gather": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter,
    "all_to_all_single": _all_to_all,
}


@register_table(register_rule_by_name, {(_C10D, name): run for name, run in _COLLECTIVES.items()})
def _collective(function: tuple[str, str], run: Any, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    run(_CollectiveCall(tx, function[1], args, kwargs))
    return NONE
