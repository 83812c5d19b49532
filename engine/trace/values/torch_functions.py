"""Which of torch's functions are one graph node, which are run while tracing, and rules for those that are neither."""

from __future__ import annotations

import cmath
import math
import operator
import struct
import types
from typing import TYPE_CHECKING, Any

import torch
import torch.nested
import torch.nn.functional

from engine.ir.marks import TracerSnapshot, graph_break, while_tracing
from engine.ir.origin import ConstantSource
from engine.ir.state_guard import GlobalStateMatch
from engine.options import config
from engine.trace.signals import Unsupported
from engine.trace.values.arity import check_method_arity
from engine.trace.values.base import NONE, ConstantVariable, Variable, realize
from engine.trace.values.optimizers import is_optimizer_module
from engine.trace.values.refusals import check_unbound_receiver
from engine.trace.values.rules import RULES_BY_NAME, register_rule

if TYPE_CHECKING:
    from engine.trace.state import Tracer

_NOT_IN_GRAPH = frozenset(
    "triplet_margin_with_distance_loss has_torch_function has_torch_function_unary has_torch_function_variadic handle_torch_function "
    "boolean_dispatch assert_int_or_pair list_to_tuple from_numpy frombuffer from_file asarray get_device is_grad_enabled".split()
)


def _collect_in_graph_functions() -> dict[int, Any]:
    leaves: dict[int, Any] = {}
    functional = vars(torch.nn.functional)
    for name, found in functional.items():
        if not name.startswith("_") and name not in _NOT_IN_GRAPH and _is_operator(found):
            leaves[id(found)] = found
    for namespace in (
        torch._C._VariableFunctions,
        torch._C._nn,
        *(getattr(torch._C, n) for n in ("_linalg", "_fft", "_special", "_sparse")),
    ):
        for name in dir(namespace):
            found = getattr(namespace, name)
            if not name.startswith("__") and name not in _NOT_IN_GRAPH and callable(found):
                leaves[id(found)] = found
    for name in torch.functional.__all__:
        leaves[id(getattr(torch, name))] = getattr(torch, name)
    for namespace in (torch.linalg, torch.fft, torch.special):
        for name, found in vars(namespace).items():
            if not name.startswith("_") and isinstance(found, types.BuiltinFunctionType):
                leaves[id(found)] = found
    for name, found in vars(torch).items():
        if (
            isinstance(found, types.BuiltinFunctionType)
            and hasattr(torch._C._VariableFunctions, name)
            and name not in _NOT_IN_GRAPH
        ):
            leaves[id(found)] = found
    nested = (torch.nested.nested_tensor_from_jagged, torch.nested.narrow, torch.nested.to_padded_tensor)
    for found in (torch.tensor, torch.as_tensor, *nested):
        leaves[id(found)] = found
    return leaves


def _is_operator(found: Any) -> bool:
    if isinstance(found, types.FunctionType):
        return found.__module__ in ("torch.nn.functional", "torch._jit_internal", "torch.functional")
    return isinstance(found, types.BuiltinFunctionType) and str(found.__module__).startswith("torch")


_IN_GRAPH_FUNCTIONS = _collect_in_graph_functions()
_FOLDABLE_FUNCTIONS: dict[int, Any] = {
    id(f): f
    for f in (
        *(f for n, f in vars(math).items() if callable(f)),
        *(f for n, f in vars(cmath).items() if callable(f)),
        *(f for n, f in vars(operator).items() if callable(f) and not isinstance(f, type) and not n.startswith("_") and not n.startswith("i")),
        operator.index, operator.inv, operator.invert,
        abs, ascii, bin, chr, divmod, format, hash, hex, oct, ord, pow, repr, round, sum,
        torch.promote_types, torch.can_cast, torch.is_storage,
        struct.pack, struct.unpack, struct.calcsize,
        str.maketrans, bytes.fromhex, dict.fromkeys, int.from_bytes, float.fromhex,
    )
}  # fmt: skip


def is_in_graph_function(fn: Any) -> bool:
    """Whether calling it becomes one graph node."""
    known = _IN_GRAPH_FUNCTIONS.get(id(fn))
    if known is not None:
        return known is fn
    return isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))


def can_constant_fold(fn: Any) -> bool:
    """Whether it may be called while tracing: no effects, and equal arguments give equal results."""
    known = _FOLDABLE_FUNCTIONS.get(id(fn))
    if known is not None:
        return known is fn
    owner = getattr(fn, "__self__", None)
    return isinstance(owner, type) and owner in (str, bytes, int, float, dict)


_SKIPPED_TORCH_MODULES = tuple(
    f"torch.{name}"
    for name in (
        "_C _compile _decomp _dispatch _dynamo _export _functorch _guards _higher_order_ops _inductor _library _logging _ops "
        "_prims _python_dispatcher _subclasses _tensor_str _thread_safe_fork _utils_internal _vendor _weights_only_unpickler "
        "ao.ns ao.pruning ao.quantization autograd backends compiler contrib cpu cuda distributed export func futures fx hub jit library "
        "mps mtia monitor multiprocessing nested onnx optim package profiler quasirandom serialization sparse storage "
        "utils.backend_registration utils.benchmark utils.bottleneck utils.bundled_inputs utils.cpp_extension utils.data "
        "utils.dlpack utils.flop_counter utils.hooks utils.mobile_optimizer utils.model_zoo utils.tensorboard utils.viz xpu"
    ).split()
)
"""Parts of torch that work on more than tensors: the program, its processes, files, devices, other compilers."""
_SKIPPED_TORCH_PREFIXES = tuple(f"{name}." for name in _SKIPPED_TORCH_MODULES)
_INLINED_TORCH_PREFIXES = (
    "torch.autograd.grad_mode",
    "torch._higher_order_ops",
    "torch._dynamo._trace_wrapped_higher_order_op",
    "torch._dynamo.comptime",
    "torch._dynamo.external_utils",
    "torch._dynamo.mutation_guard",
    "torch._dynamo._trace_wrapped_higher_order_op",
    "torch.optim",
    "torch.distributed._functional_collectives",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
    "torch.distributed.tensor._api",
    "torch.distributed.tensor.experimental._func_map",
    "torch.distributed.tensor.parallel",
)
_SKIPPED_PACKAGES = frozenset(
    "logging warnings importlib asyncio subprocess socket os io pdb numpy scipy pandas matplotlib tqdm IPython time "
    "gc sys traceback multiprocessing concurrent shutil pathlib json pickle tempfile linecache".split()
)


def may_inline(fn: types.FunctionType) -> bool:
    """Whether a Python function's body is traced."""
    module = str(fn.__module__ or "")
    top = module.partition(".")[0]
    if top == "torch":
        return module.startswith(_INLINED_TORCH_PREFIXES) or not f"{module}.".startswith(_SKIPPED_TORCH_PREFIXES)
    if top == "threading":
        return fn.__qualname__ in ("Event.is_set", "Event.isSet")
    return top not in _SKIPPED_PACKAGES and (
        top != "unittest" or module in ("unittest.case", "unittest.util", "unittest.result")
    )


def call_unbound_method(tx: Tracer, held: Any, args: list[Variable], kwargs: dict[str, Variable]) -> Variable | None:
    """``list.append(x, 1)`` as ``x.append(1)``; None where ``held`` is no method of a class from C."""
    owner = getattr(held, "__objclass__", None)
    if owner is None:
        return None
    check_unbound_receiver(tx, held, [realize(tx, a) for a in args[:1]])
    if not args:
        return None
    from engine.trace.values.mapping_subclasses import call_dict_method_on_ordered

    of = realize(tx, args[0])
    if not issubclass(of.python_type(), owner):
        return None
    name = held.__name__
    check_method_arity(tx, owner, name, args[1:], kwargs)
    by_dict = call_dict_method_on_ordered(tx, owner, of, name, args[1:], kwargs)
    if by_dict is not None:
        return by_dict
    from engine.trace.values.container_objects import BuiltinSubclassVariable
    from engine.trace.values.exceptions import ExceptionVariable
    from engine.trace.values.objects import UserDefinedObjectVariable
    from engine.trace.values.partials import FunctoolsPartialVariable

    if isinstance(of, ExceptionVariable) and issubclass(owner, BaseException):
        return of.call_c_method(tx, name, args[1:], kwargs)
    if isinstance(of, (BuiltinSubclassVariable, FunctoolsPartialVariable)) and owner is not object:
        return of.call_builtin_method(tx, name, [realize(tx, a) for a in args[1:]], kwargs)
    if isinstance(of, UserDefinedObjectVariable):
        if owner is not object:
            return None
        name = f"object.{name}"
    return of.call_method(tx, name, args[1:], kwargs)


# Rules.


@register_rule(
    torch.compiler.is_compiling,
    torch.compiler.is_dynamo_compiling,
    torch._utils.is_compiling if hasattr(torch._utils, "is_compiling") else torch.compiler.is_compiling,
)
def _is_compiling(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    tx.read_is_compiling = True
    return ConstantVariable(
        tx.is_compiling and not (is_optimizer_module(tx.frame.globals.name) and config.capture_scalar_outputs)
    )


@register_rule(
    *(vars(torch.jit)[n] for n in ("is_scripting", "is_tracing")),
    torch.compiler.is_exporting,
    torch._jit_internal.is_scripting,
    torch.onnx.is_in_onnx_export,
)
def _is_scripting(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return ConstantVariable(False)


@register_rule(torch.jit.annotate)
def _jit_annotate(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return args[1] if len(args) > 1 else kwargs["the_value"]


@register_rule(torch._C._log_api_usage_once)
def _log_usage(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return NONE


if hasattr(torch.compiler, "nested_compile_region"):

    @register_rule(torch.compiler.nested_compile_region)
    def _nested_region(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        """A region that others compile once and reuse is traced like any call; kernels are shared by their text."""
        if len(args) != 1 or kwargs:
            raise Unsupported("unknown-call", "nested_compile_region is called with options")
        return args[0]


@register_rule(torch._C._infer_size)
def _infer_size(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """The size that two broadcast to; where one is no plain number, Python asks."""
    return tx.fold_constant(torch._C._infer_size, *map(torch.Size, tx.as_python_constants(args)))


@register_rule(torch._C._get_tracing_state)
def _tracing_state(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return NONE


@register_rule(graph_break)
def _graph_break(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    if is_optimizer_module(tx.frame.globals.name):  # for a compiler whose graphs do not keep switches of grad mode
        return NONE
    message = [str(v) for v in tx.as_python_constants([*args, *kwargs.values()]) if v]
    raise Unsupported("asked", message[0] if message else "graph_break() is called")


@register_rule(while_tracing)
def _while_tracing(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    look = realize(tx, args[0] if args else kwargs.get("look", NONE))
    call = print if isinstance(look, ConstantVariable) and look.value is None else look.as_python_object()
    if not callable(call):
        raise Unsupported(
            "unsupported-argument", f"while_tracing is given a {look.python_type().__name__} that was made here"
        )
    frame = tx.frame
    view = TracerSnapshot(
        tuple(f"{s.file}:{s.line}" for s in tx.user_stack()),
        {name: value.describe() for name, value in frame.locals.items()},
        str(tx.graph.graph),
        tuple(f"{g.kind} {g.source.expr}: {g.cause.reason}" for g in tx.guards.all()),
    )
    call(view)
    return NONE


RULES_BY_NAME[("torch._dynamo.external_utils", "is_compiling")] = _is_compiling
RULES_BY_NAME[("torch._dynamo.decorators", "graph_break")] = _graph_break


def _ignored_mark(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """Marks on tensors are for whoever compiles the code that receives them: here they come too late."""
    return NONE


for _mark in ("mark_static", "mark_dynamic", "maybe_mark_dynamic", "mark_unbacked", "mark_static_address"):
    RULES_BY_NAME[("torch._dynamo.decorators", _mark)] = _ignored_mark


def _ignored_tag(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """Once torch.compile has run anywhere in the process, every new module is noted in a table of its own, which says nothing to others."""
    return NONE


RULES_BY_NAME[("torch._dynamo.mutation_guard", "tag")] = _ignored_tag


@register_rule(torch.is_tensor)
def _is_tensor(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return ConstantVariable(issubclass(realize(tx, args[0]).python_type(), torch.Tensor))


@register_rule(torch._C._is_any_autocast_enabled)
def _any_autocast(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    guard_global_state(tx, "autocast", tx.entry_global_state["autocast"])
    return ConstantVariable(bool(torch._C._is_any_autocast_enabled()))


@register_rule(torch.is_autocast_enabled)
def _is_autocast(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    values = tx.as_python_constants(args)
    return ConstantVariable(torch.is_autocast_enabled(*values) if values else torch.is_autocast_enabled())


@register_rule(torch.is_autocast_cpu_enabled)
def _is_cpu_autocast(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return ConstantVariable(torch.is_autocast_enabled("cpu"))


@register_rule(torch.backends.mha.get_fastpath_enabled)
def _mha_fastpath(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return ConstantVariable(torch.backends.mha.get_fastpath_enabled())


@register_rule(torch.cuda.is_available, torch.backends.mps.is_available)
def _is_available(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return ConstantVariable(torch.cuda.is_available())


@register_rule(torch.finfo, torch.iinfo)
def _finfo_or_iinfo(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    dtype = tx.as_python_constants(args)[0] if args else torch.get_default_dtype()
    return ConstantVariable(torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype))


@register_rule(torch.device)
def _device(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    words = dict(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True))
    return tx.fold_constant(torch.device, *tx.as_python_constants(args), **words)


@register_rule(torch.Size)
def _size(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    from engine.trace.values.sequences import TupleVariable, sequence_items

    return TupleVariable(list(sequence_items(tx, args[0])) if args else [], torch.Size)


def guard_global_state(tx: Tracer, state: str, value: Any) -> None:
    """Take a piece of torch's global state for granted, as it was when the frame was entered."""
    if state in tx.entry_global_state and tx.entry_global_state[state] != value:
        return
    tx.add_guard(
        GlobalStateMatch(
            ConstantSource(torch, "torch"),
            state,
            value,
            cause=tx.guard_cause("torch's global state decided what was traced"),
        )
    )
