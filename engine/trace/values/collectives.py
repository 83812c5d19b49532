"""``torch.distributed``: process groups and meshes are constants guarded by identity, collectives are functional nodes followed by their wait."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
import torch.nn.parallel

from engine.ir.origin import Attr, Fixed, Origin
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, NotConstant, Value, force, is_none
from engine.trace.values.methods import MethodOf
from engine.trace.values.objects import OpaqueValue
from engine.trace.values.rules import BY_NAME, special
from engine.trace.values.sequences import ListValue, TupleValue, sequence_items
from engine.trace.values.tensor import TensorValue
from engine.trace.values.wrap import wraps_if

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]

_C10D = "torch.distributed.distributed_c10d"
_FUNCTIONAL = "torch.distributed._functional_collectives"
_CONSTANT_CLASSES = frozenset(("ProcessGroup", "DeviceMesh"))
_CONSTANT_METHODS = frozenset(
    "rank size name get_group get_all_groups get_local_rank get_rank get_coordinate __getitem__".split()
)
_REDUCTIONS = frozenset(("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"))


class GroupValue(OpaqueValue):
    """A process group or a mesh of devices: what it answers never changes, so it is asked while tracing."""

    def get_attr(self, tx: Tracer, name: str) -> Value:
        found = getattr(self.held, name, None)
        if name in _CONSTANT_METHODS:
            return MethodOf(self, name)
        if name.startswith("__") or callable(found):
            return super().get_attr(tx, name)
        return _answered(tx, lambda: getattr(self.held, name), f"{self.type().__name__}.{name}")

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        if name not in _CONSTANT_METHODS:
            raise Unsupported("unknown-call", f"{self.type().__name__}.{name} is called")
        words = dict(zip(kwargs, tx.constants(kwargs.values()), strict=True))
        values = tx.constants(args)
        return _answered(tx, lambda: getattr(self.held, name)(*values, **words), f"{self.type().__name__}.{name}")

    def get_item(self, tx: Tracer, key: Value) -> Value:
        return self.call_method(tx, "__getitem__", [key], {})


def is_group_or_mesh(real: Any) -> bool:
    """Whether it is a process group or a mesh of devices of torch's."""
    return any(
        base.__name__ in _CONSTANT_CLASSES and base.__module__.startswith("torch.") for base in type(real).__mro__
    )


@wraps_if(40, is_group_or_mesh)
def _group(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_object(real, origin, f"the {type(real).__name__} was used")
    return GroupValue(real, origin)


def _answered(tx: Tracer, ask: Callable[[], Any], what: str) -> Value:
    try:
        found = ask()
    except Exception as error:
        raise tx.user_exception(error) from error
    if is_group_or_mesh(found):
        return tx.fixed(found)
    if isinstance(found, (list, tuple)) and any(is_group_or_mesh(f) for f in found):
        return ListValue([_answered(tx, lambda f=f: f, what) for f in found])  # type: ignore[misc]
    if found is None or isinstance(found, (bool, int, float, str, list, tuple, torch.device)):
        return tx.from_python(found)
    raise Unsupported("unknown-call", f"{what} gives a {type(found).__name__}")


# Questions about groups.


def _default_group(tx: Tracer) -> Any:
    """The default process group, or None, taken for granted."""
    world = sys.modules[_C10D]._world
    group = world.default_pg
    tx.guard_object(group, Attr(Fixed(world, "torch.distributed"), "default_pg"), "the default process group was used")
    return group


def constant_of(tx: Tracer, value: Value) -> Any:
    """A known Python object, which may be or hold groups and meshes.

    Raises:
        Unsupported: it is not known while tracing.
    """
    value = force(tx, value)
    if isinstance(value, GroupValue):
        return value.held
    if isinstance(value, (ListValue, TupleValue)):
        items = [constant_of(tx, i) for i in value.items]
        return tuple(items) if isinstance(value, TupleValue) else items
    try:
        return value.python(tx)
    except NotConstant:
        raise Unsupported("unknown-call", f"torch.distributed is asked with a {value.describe()}") from None


def _question(module: str, name: str) -> None:
    def ask(tx: Tracer, args: Args, kwargs: Words) -> Value:
        if module == _C10D:
            _default_group(tx)
        function = getattr(sys.modules[module], name)
        values = [constant_of(tx, a) for a in args]
        words = {k: constant_of(tx, v) for k, v in kwargs.items()}
        return _answered(tx, lambda: function(*values, **words), f"torch.distributed.{name}")

    BY_NAME[(module, name)] = ask


for _name in (
    "is_initialized get_rank get_world_size get_backend get_process_group_ranks get_global_rank get_group_rank "
    "_get_group_size_by_name _get_group_size _get_default_group _rank_not_in_group is_gloo_available is_nccl_available is_mpi_available"
).split():
    _question(_C10D, _name)
_question("torch.distributed", "is_available")


# Functional collectives: their own Python is traced, down to the name of the group.


def _named_group(tx: Tracer, args: Args, kwargs: Words) -> Value:
    group, tag = [*(constant_of(tx, a) for a in args), *(constant_of(tx, v) for v in kwargs.values()), ""][:2]
    if isinstance(group, str):
        return Const(group)
    resolve = sys.modules[_FUNCTIONAL]._resolve_group_name
    return _answered(tx, lambda: str(resolve(group, tag)), "the name of a process group")


for _name in ("_resolve_group", "_resolve_group_name"):
    BY_NAME[(_FUNCTIONAL, _name)] = _named_group
BY_NAME[(_FUNCTIONAL, "_are_we_tracing")] = lambda tx, args, kwargs: Const(True)


# Modules that are trained by several processes.


def _inside_forward(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """A context that notes which module runs, for torch's own compiler alone."""
    return tx.fixed(contextlib.nullcontext).call(tx, [], {})


if torch.distributed.is_available():
    special(torch.nn.parallel.DistributedDataParallel._inside_ddp_forward)(_inside_forward)


# Collectives that write into their arguments.


class _Collective:
    """The arguments of one call, checked for what the functional form does as eager does."""

    def __init__(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> None:
        self.tx = tx
        self.name = name
        function = getattr(sys.modules[_C10D], name)
        try:
            bound = inspect.signature(function).bind(*args, **kwargs)
        except TypeError:
            raise self.refuse("with other arguments than it takes") from None
        self.given = {k: force(tx, v) for k, v in bound.arguments.items()}
        if force(tx, self.given.get("async_op", Const(False))).truth(tx):
            raise self.refuse("with async_op=True: its handle lives outside the graph")
        group = self.given.get("group", NONE)
        self.group = _default_group(tx) if is_none(group) else constant_of(tx, group)
        self.is_member = is_group_or_mesh(self.group) and self.group.rank() >= 0
        if not self.is_member:
            raise self.refuse("without a process group that this process belongs to")
        self.size = self.group.size()

    def refuse(self, how: str) -> Unsupported:
        return Unsupported("unknown-call", f"torch.distributed.{self.name} is called {how}")

    def tensor(self, name: str) -> TensorValue:
        return self.checked(self.given[name])

    def checked(self, value: Value) -> TensorValue:
        value = force(self.tx, value)
        if not isinstance(value, TensorValue) or value.type() not in (torch.Tensor, torch.nn.Parameter):
            raise self.refuse("on something else than plain tensors")
        if value.fake.requires_grad and torch.is_grad_enabled():
            raise self.refuse("on a tensor that requires grad")
        if not value.fake.is_contiguous() or value.fake.dtype.is_complex:
            raise self.refuse("on a tensor that is not contiguous, or complex")
        return value

    def reduction(self) -> Value:
        given = self.given.get("op")
        real = sys.modules[_C10D].ReduceOp.SUM if given is None else given.real()
        name = getattr(real, "name", None)
        if name not in _REDUCTIONS:
            raise self.refuse("with a reduction of another kind")
        return Const(str(name).lower())

    def run(self, operator: str, tensor: Value, *rest: Value) -> TensorValue:
        """The collective's node and the node that waits for it."""
        operators = torch.ops._c10d_functional
        started = emit(
            self.tx,
            "call_function",
            getattr(operators, operator).default,
            [tensor, *rest, Const(str(self.group.group_name))],
        )
        done = emit(self.tx, "call_function", operators.wait_tensor.default, [started])
        assert isinstance(done, TensorValue)
        return done

    def write(self, target: TensorValue, source: TensorValue) -> None:
        if target.fake.dtype != source.fake.dtype or tuple(target.fake.shape) != tuple(source.fake.shape):
            raise self.refuse("with tensors that differ in dtype, or in more sizes than the first")
        emit(self.tx, "call_method", "copy_", [target, source])


def _all_reduce(call: _Collective) -> None:
    tensor = call.tensor("tensor")
    call.write(tensor, call.run("all_reduce", tensor, call.reduction()))


def _broadcast(call: _Collective) -> None:
    tensor = call.tensor("tensor")
    source, inside = (call.tx.constants([call.given.get(name, NONE)])[0] for name in ("src", "group_src"))
    if (source is None) == (inside is None):
        raise call.refuse("with two sources, or none")
    rank = sys.modules[_C10D].get_group_rank(call.group, source) if inside is None else inside
    call.write(tensor, call.run("broadcast", tensor, Const(rank)))


def _all_gather_into(call: _Collective) -> None:
    output, tensor = (call.tensor(name) for name in list(call.given)[:2])
    if tensor.fake.dim() == 0:
        raise call.refuse("on a tensor without dimensions")
    call.write(output, call.run("all_gather_into_tensor", tensor, Const(call.size)))


def _all_gather(call: _Collective) -> None:
    outputs = [call.checked(t) for t in sequence_items(call.tx, call.given["tensor_list"])]
    tensor = call.tensor("tensor")
    if len(outputs) != call.size or any(o.fake.shape != tensor.fake.shape for o in outputs):
        raise call.refuse("with tensors of different sizes")
    row = emit(call.tx, "call_method", "unsqueeze", [tensor, Const(0)])
    gathered = call.run("all_gather_into_tensor", row, Const(call.size))
    for number, output in enumerate(outputs):
        part = gathered.get_item(call.tx, Const(number))
        assert isinstance(part, TensorValue)
        call.write(output, part)


def _reduce_scatter(call: _Collective) -> None:
    output, tensor = call.tensor("output"), call.tensor("input")
    rows = tensor.fake.shape[0] if tensor.fake.dim() else 1
    if not isinstance(rows, int) or rows % call.size:
        raise call.refuse("on a tensor that does not fall into equal parts")
    call.write(output, call.run("reduce_scatter_tensor", tensor, call.reduction(), Const(call.size)))


def _all_to_all(call: _Collective) -> None:
    output, tensor = call.tensor("output"), call.tensor("input")
    if not all(is_none(call.given.get(f"{w}_split_sizes", NONE)) for w in ("output", "input")):
        raise call.refuse("with sizes of parts")
    rows = tensor.fake.shape[0] if tensor.fake.dim() else 1
    if not isinstance(rows, int) or rows % call.size or tensor.fake.dim() == 0:
        raise call.refuse("on a tensor that does not fall into equal parts")
    parts = call.tx.from_python([rows // call.size] * call.size)
    call.write(output, call.run("all_to_all_single", tensor, parts, parts))


_IN_PLACE: dict[str, Callable[[_Collective], None]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather_into_tensor": _all_gather_into,
    "all_gather_single": _all_gather_into,
    "all_gather": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter,
    "all_to_all_single": _all_to_all,
}


def _in_place(name: str, run: Callable[[_Collective], None]) -> None:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        run(_Collective(tx, name, args, kwargs))
        return NONE

    BY_NAME[(_C10D, name)] = rule


for _name, _run in _IN_PLACE.items():
    _in_place(_name, _run)
