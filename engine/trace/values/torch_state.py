"""Rules for torch's questions about its own state, its checks, and functions whose results are declared constant."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.overrides
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import (
    _advise_is_bounded,
    _advise_is_size,
    guard_or_false,
    guard_or_true,
    has_free_unbacked_symbols,
)

from engine.ir.global_state import GLOBAL_STATES
from engine.ir.origin import AttrSource, ConstantSource, GetItemSource, Source
from engine.ir.unbacked import has_unbacked_symbols
from engine.trace.graph_builder import evaluate_on_fakes
from engine.trace.operations import binary_op
from engine.trace.signals import Unsupported
from engine.trace.unbacked import emit_runtime_asserts
from engine.trace.values import backend_flags
from engine.trace.values.base import NONE, ConstantVariable, RealObjectVariable, Variable, realize
from engine.trace.values.modules import NNModuleVariable
from engine.trace.values.rules import register_rule
from engine.trace.values.sequences import ListVariable, TupleVariable
from engine.trace.values.symbolic import SymNodeVariable
from engine.trace.values.tensor import TensorVariable
from engine.trace.values.torch_functions import guard_global_state
from engine.trace.values.wrap import register_builder

if TYPE_CHECKING:
    from engine.trace.state import Tracer


_QUERIES: dict[Callable[[], Any], str] = {
    torch.are_deterministic_algorithms_enabled: "deterministic",
    torch.is_deterministic_algorithms_warn_only_enabled: "deterministic_warn_only",
    torch._C._get_deterministic_algorithms_warn_only: "deterministic_warn_only",
    torch._C._get_float32_matmul_precision: "float32_matmul_precision",
    torch.is_anomaly_enabled: "anomaly",
    torch.is_autocast_cache_enabled: "autocast",
    torch.cuda.device_count: "cuda_devices",
    torch.cuda.is_initialized: "cuda_initialized",
    torch.get_default_dtype: "default_dtype",
    torch.is_grad_enabled: "grad_mode",
    torch.is_inference_mode_enabled: "inference_mode",
}
"""Functions that read a piece of torch's global state, and the state that a call of each guards."""


def register_state_query(ask: Callable[[], Any], state: str) -> None:
    """A function without arguments that reads a piece of torch's global state, which is guarded."""

    @register_rule(ask)
    def read(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        guard_global_state(tx, state, GLOBAL_STATES[state].read())
        return ConstantVariable(ask())


for _ask, _state in _QUERIES.items():
    register_state_query(_ask, _state)


@register_rule(torch._C._dispatch_keys)
def _dispatch_keys(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """The keys that torch chooses a kernel by: a plain tensor's follow from its type of number and its device."""
    of = realize(tx, args[0])
    if not isinstance(of, TensorVariable) or of.python_type() not in (torch.Tensor, torch.nn.Parameter):
        raise Unsupported("unknown-call", "torch._C._dispatch_keys is called")
    fake = of.fake
    if fake.device.type not in ("cpu", "cuda") or fake.is_inference() or fake.is_conj() or fake.is_neg():
        raise Unsupported("unknown-call", "torch._C._dispatch_keys is called")
    return ConstantVariable(torch._C._dispatch_keys(torch.empty(0, dtype=fake.dtype, device=fake.device)))


def _register_dispatch_key_query(ask: Callable[[], Any]) -> None:
    @register_rule(ask)
    def rule(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        for state in ("inference_mode", "autocast", "dispatch_modes", "functorch"):
            guard_global_state(tx, state, tx.entry_global_state[state])
        if tx.entry_global_state["functorch"] is not None:
            raise Unsupported("global-state", "the dispatcher's keys are asked for inside a transformation")
        return ConstantVariable(ask())


for _ask_keys in (torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set):
    _register_dispatch_key_query(_ask_keys)


@register_rule(torch.accelerator.current_accelerator)
def _current_accelerator(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    named = dict(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True))
    return tx.fold_constant(torch.accelerator.current_accelerator, *tx.as_python_constants(args), **named)


@register_rule(torch.cuda.is_current_stream_capturing, torch.xpu.is_current_stream_capturing)
def _is_capturing(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    if torch.xpu.is_available():
        raise Unsupported("unknown-call", "whether a stream is being captured is asked")
    if torch.cuda.is_available():
        guard_global_state(tx, "capturing", GLOBAL_STATES["capturing"].read())
    return ConstantVariable(GLOBAL_STATES["capturing"].read())


def _register_capture_health_check(name: str) -> None:
    if (check := vars(torch.optim.Optimizer).get(name)) is None:
        return

    @register_rule(check)
    def rule(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        """Optimizers ask before each step whether a stream is being captured, and raise where they cannot be."""
        if torch.accelerator.is_available():
            guard_global_state(tx, "capturing", GLOBAL_STATES["capturing"].read())
            if not torch.cuda.is_available() or GLOBAL_STATES["capturing"].read():
                raise Unsupported("unknown-call", "whether a stream is being captured is asked")
        return NONE


for _name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
    _register_capture_health_check(_name)


@register_rule(torch.get_device_module)
def _device_module(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    given, named = tx.as_python_constants(args), dict(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True))
    try:
        return tx.wrap_static(torch.get_device_module(*given, **named))
    except (RuntimeError, TypeError) as error:
        raise tx.make_user_exception(error) from error


@register_rule(torch.accelerator.is_available)
def _is_accelerated(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return ConstantVariable(torch.accelerator.is_available())


@register_rule(torch.get_autocast_dtype)
def _autocast_dtype(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    guard_global_state(tx, "autocast", tx.entry_global_state["autocast"])
    return tx.fold_constant(torch.get_autocast_dtype, *tx.as_python_constants([*args, *kwargs.values()]))


@register_rule(torch.overrides.is_tensor_like)
def _is_tensor_like(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    kind = realize(tx, args[0]).python_type()
    return ConstantVariable(issubclass(kind, torch.Tensor) or hasattr(kind, "__torch_function__"))


@register_rule(
    torch._check, torch._check_value, torch._check_index, torch._check_type, torch._check_not_implemented, torch._assert
)
def _check(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    condition = realize(tx, args[0] if args else kwargs.get("cond", kwargs.get("condition", NONE)))
    if isinstance(condition, ConstantVariable) and condition.value is True:
        return NONE
    if isinstance(condition, SymNodeVariable) and condition.python_type() is bool:
        if condition.depends_on_unbacked_float:
            if not tx.in_subgraph():
                tx.assume_condition(condition.node, truth=True)
                return NONE
        elif not has_unbacked_symbols(condition.sym):
            if condition.is_truthy(tx):
                return NONE
        else:
            # What torch learns of it here, the graph checks.
            evaluate_on_fakes(tx, "call_function", torch._check, [condition.sym], {})
            emit_runtime_asserts(tx)
            return NONE
    raise Unsupported("unknown-call", "torch._check or torch._assert of what is not known while tracing")


def _register_guard_or(ask: Callable[[Any], bool]) -> None:
    """What is true of every number that a tensor may hold, else what the function is named for: those who ask it are content with either."""

    @register_rule(ask)
    def rule(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        condition = realize(tx, args[0] if args else kwargs["a"])
        if isinstance(condition, SymNodeVariable) and has_unbacked_symbols(condition.sym):
            return ConstantVariable(ask(condition.sym))
        return ConstantVariable(condition.is_truthy(tx))


_register_guard_or(guard_or_false)
_register_guard_or(guard_or_true)


def _symbol_query_rule(ask: Callable[[Any], Any]) -> Callable[..., Variable]:
    """What torch says of a number while it compiles, where a program that is not compiled has a plain one."""

    def rule(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        of = realize(tx, [*args, *kwargs.values()][0])
        return ConstantVariable(bool(ask(of.sym if isinstance(of, SymNodeVariable) else of.as_python_constant(tx))))

    return rule


for _name in (
    "statically_known_true",
    "statically_known_false",
    "has_static_value",
    "is_nested_int",
    "is_concrete_int",
):
    if hasattr(symbolic_shapes, _name):
        _ask_of = getattr(symbolic_shapes, _name)
        register_rule(_ask_of)(_symbol_query_rule(_ask_of))


@register_rule(symbolic_shapes.guard_size_oblivious)
def _guard_size_oblivious(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    condition = realize(tx, [*args, *kwargs.values()][0])
    return ConstantVariable(condition.is_truthy(tx))


def _chained_operator_rule(symbol: str) -> Callable[..., Variable]:
    def rule(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        found, *rest = (realize(tx, a) for a in args)
        for other in rest:
            found = realize(tx, binary_op(tx, symbol, found, other))
        return found

    return rule


register_rule(symbolic_shapes.sym_and)(_chained_operator_rule("&"))
register_rule(symbolic_shapes.sym_or)(_chained_operator_rule("|"))


@register_rule(torch.get_autocast_gpu_dtype)
def _autocast_gpu_dtype(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    guard_global_state(tx, "autocast", tx.entry_global_state["autocast"])
    return ConstantVariable(torch.get_autocast_gpu_dtype())


@register_rule(torch._C._are_functorch_transforms_active)
def _are_functorch_transforms_active(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    guard_global_state(tx, "functorch", tx.entry_global_state["functorch"])
    return ConstantVariable(tx.entry_global_state["functorch"] is not None)


@register_rule(torch.autograd._is_checkpoint_valid)
def _checkpoint_valid(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return ConstantVariable(bool(torch.autograd._is_checkpoint_valid()))


class BackendFlagsVariable(RealObjectVariable):
    """``torch.backends.cuda.matmul``: each flag that is read is guarded."""

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        try:
            found = getattr(self.real_object, name)
        except AttributeError as error:
            raise tx.make_user_exception(error) from error
        return backend_flags.read_flag(tx, self.real_object, name, found)

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        if not hasattr(self.real_object, name):
            super().set_attr(tx, name, value)
        backend_flags.write_flag(tx, self.real_object, name, value)


@register_builder(type(torch.backends.cuda.matmul))
def _matmul_flags(tx: Tracer, real: Any, origin: Source) -> Variable:
    return BackendFlagsVariable(real, ConstantSource(real, "torch.backends.cuda.matmul"))


@register_rule(has_free_unbacked_symbols)
def _has_unbacked_symbols(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    found = realize(tx, args[0])
    if isinstance(found, TensorVariable):
        return ConstantVariable(any(has_unbacked_symbols(s) for s in found.fake.shape))
    if isinstance(found, SymNodeVariable):
        return ConstantVariable(has_unbacked_symbols(found.sym))
    raise Unsupported("unknown-call", "has_free_unbacked_symbols of something else than a tensor or a number")


def _register_size_advice(tell: Callable[..., None]) -> None:
    @register_rule(tell)
    def rule(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        size, *bounds = (realize(tx, a) for a in args)
        if isinstance(size, SymNodeVariable):
            known = [b.sym if isinstance(b, SymNodeVariable) else b.as_python_constant(tx) for b in bounds]
            evaluate_on_fakes(tx, "call_function", tell, [size.sym, *known], {})
            emit_runtime_asserts(tx)
        return NONE


_register_size_advice(_advise_is_size)
_register_size_advice(_advise_is_bounded)


@register_rule(torch.func.functional_call)
def _functional_call(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    given = dict(zip(("module", "parameter_and_buffer_dicts", "args", "kwargs"), args, strict=False)) | kwargs
    from engine.trace.values.mappings import DictVariable

    module = realize(tx, given["module"])
    table = realize(tx, given["parameter_and_buffer_dicts"])
    if isinstance(table, (TupleVariable, ListVariable)):
        merged = DictVariable({})
        for part in table.items:
            merged.update(tx, part)
        table = merged
    ties, strict = (
        realize(tx, given.get(word, ConstantVariable(word == "tie_weights"))) for word in ("tie_weights", "strict")
    )
    if (
        not isinstance(module, NNModuleVariable)
        or not isinstance(table, DictVariable)
        or not isinstance(ties, ConstantVariable)
        or not isinstance(strict, ConstantVariable)
    ):
        raise Unsupported("unknown-call", "torch.func.functional_call is called")
    wanted = {str(k): v for k, (_, v) in table.entries.items()}
    wanted = _expand_tied_weights(module.real_object, wanted) if ties.value else wanted
    if strict.value and wanted.keys() != _tensor_names(module.real_object):
        raise Unsupported("unknown-call", "torch.func.functional_call is not given a tensor for each name")
    inner = realize(tx, given["args"]) if "args" in given else NONE
    words = realize(tx, given["kwargs"]) if "kwargs" in given else NONE
    positional = list(inner.items) if isinstance(inner, TupleVariable) else [] if _is_none(inner) else [inner]
    named: dict[str, Variable] = {}
    if isinstance(words, DictVariable):
        named = {str(k): v for k, (_, v) in words.entries.items()}
    replaced: list[tuple[NNModuleVariable, str]] = []
    try:
        for path, value in wanted.items():
            owner_path, _, name = path.rpartition(".")
            owner = module.member_at_path(tx, owner_path)
            if isinstance(owner, NNModuleVariable) and owner.functional_call_overrides.get(name) is realize(tx, value):
                continue
            if (
                not isinstance(owner, NNModuleVariable)
                or not _owns_tensor(owner, name)
                or name in owner.functional_call_overrides
            ):
                raise Unsupported("unknown-call", f"torch.func.functional_call replaces {path!r}")
            tensor = realize(tx, value)
            if not isinstance(tensor, TensorVariable):
                raise Unsupported("unknown-call", "torch.func.functional_call is given what is not a tensor")
            owner.functional_call_overrides[name] = tensor
            replaced.append((owner, name))
        return module.call(tx, positional, named)
    finally:
        for owner, name in replaced:
            del owner.functional_call_overrides[name]


def _is_none(value: Variable) -> bool:
    return isinstance(value, ConstantVariable) and value.value is None


def _owns_tensor(owner: NNModuleVariable, name: str) -> bool:
    tables = ("_parameters", "_buffers")
    return name not in owner.attr_writes and any(owner.real_object.__dict__[t].get(name) is not None for t in tables)


def _tensor_names(module: torch.nn.Module) -> set[str]:
    members = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return {name for name, _ in itertools.chain(*members)}


def _expand_tied_weights(module: torch.nn.Module, given: dict[str, Variable]) -> dict[str, Variable]:
    """What is given for one name of a tensor goes for its other names too, unless they are given as well."""
    names: dict[int, list[str]] = {}
    members = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    for name, tensor in itertools.chain(*members):
        names.setdefault(id(tensor), []).append(name)
    spread = dict(given)
    for group in names.values():
        first = next((given[n] for n in group if n in given), None)
        if any(given[n] is not first for n in group if n in given):
            raise Unsupported("unknown-call", "torch.func.functional_call is given two tensors for one that is shared")
        if first is not None:
            spread.update((n, first) for n in group if n not in given)
    return spread


@register_rule(torch.nn.RNNBase._weights_have_changed)
def _weights_have_changed(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """Whether an RNN's flat list of weights is out of date: taken not to be, as long as both ways reach the same tensors."""
    module = realize(tx, args[0])
    if (
        not isinstance(module, NNModuleVariable)
        or module.source is None
        or module.attr_writes
        or module.functional_call_overrides
    ):
        raise Unsupported("unknown-call", "the weights of a recurrent module may have changed")
    if module.real_object._weights_have_changed():
        raise Unsupported("unknown-call", "the weights of a recurrent module have changed")
    names = module.real_object._flat_weights_names
    for n, (name, weight) in enumerate(zip(names, module.real_object._flat_weights, strict=True)):
        if weight is not module.real_object._parameters.get(name):
            raise Unsupported("unknown-call", "the weights of a recurrent module are not its parameters")
        realize(tx, module.member(tx, "_parameters", name))
        tx.wrap(weight, GetItemSource(AttrSource(module.source, "_flat_weights"), n))
    return ConstantVariable(False)
