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
from engine.ir.origin import Attr, Fixed, Item, Origin
from engine.ir.unbacked import is_unbacked
from engine.trace.graph_builder import evaluate
from engine.trace.operations import binary
from engine.trace.signals import Unsupported
from engine.trace.unbacked import check_deferred
from engine.trace.values import backend_flags
from engine.trace.values.base import NONE, Const, HeldValue, Value, force
from engine.trace.values.modules import ModuleValue
from engine.trace.values.rules import special
from engine.trace.values.sequences import ListValue, TupleValue
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue
from engine.trace.values.torch_functions import guard_state
from engine.trace.values.wrap import wraps

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


def query(ask: Callable[[], Any], state: str) -> None:
    """A function without arguments that reads a piece of torch's global state, which is guarded."""

    @special(ask)
    def read(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        guard_state(tx, state, GLOBAL_STATES[state].read())
        return Const(ask())


for _ask, _state in _QUERIES.items():
    query(_ask, _state)


@special(torch._C._dispatch_keys)
def _keys_of(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The keys that torch chooses a kernel by: a plain tensor's follow from its type of number and its device."""
    of = force(tx, args[0])
    if not isinstance(of, TensorValue) or of.type() not in (torch.Tensor, torch.nn.Parameter):
        raise Unsupported("unknown-call", "torch._C._dispatch_keys is called")
    fake = of.fake
    if fake.device.type not in ("cpu", "cuda") or fake.is_inference() or fake.is_conj() or fake.is_neg():
        raise Unsupported("unknown-call", "torch._C._dispatch_keys is called")
    return Const(torch._C._dispatch_keys(torch.empty(0, dtype=fake.dtype, device=fake.device)))


def _added_keys(ask: Callable[[], Any]) -> None:
    @special(ask)
    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        for state in ("inference_mode", "autocast", "dispatch_modes", "functorch"):
            guard_state(tx, state, tx.entry_state[state])
        if tx.entry_state["functorch"] is not None:
            raise Unsupported("global-state", "the dispatcher's keys are asked for inside a transformation")
        return Const(ask())


for _ask_keys in (torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set):
    _added_keys(_ask_keys)


@special(torch.accelerator.current_accelerator)
def _accelerator(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    named = dict(zip(kwargs, tx.constants(kwargs.values()), strict=True))
    return tx.fold(torch.accelerator.current_accelerator, *tx.constants(args), **named)


@special(torch.cuda.is_current_stream_capturing, torch.xpu.is_current_stream_capturing)
def _is_capturing(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if torch.xpu.is_available():
        raise Unsupported("unknown-call", "whether a stream is being captured is asked")
    if torch.cuda.is_available():
        guard_state(tx, "capturing", GLOBAL_STATES["capturing"].read())
    return Const(GLOBAL_STATES["capturing"].read())


def _health_check(name: str) -> None:
    if (check := vars(torch.optim.Optimizer).get(name)) is None:
        return

    @special(check)
    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Optimizers ask before each step whether a stream is being captured, and raise where they cannot be."""
        if torch.accelerator.is_available():
            guard_state(tx, "capturing", GLOBAL_STATES["capturing"].read())
            if not torch.cuda.is_available() or GLOBAL_STATES["capturing"].read():
                raise Unsupported("unknown-call", "whether a stream is being captured is asked")
        return NONE


for _name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
    _health_check(_name)


@special(torch.get_device_module)
def _device_module(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given, named = tx.constants(args), dict(zip(kwargs, tx.constants(kwargs.values()), strict=True))
    try:
        return tx.fixed(torch.get_device_module(*given, **named))
    except (RuntimeError, TypeError) as error:
        raise tx.user_exception(error) from error


@special(torch.accelerator.is_available)
def _is_accelerated(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Const(torch.accelerator.is_available())


@special(torch.get_autocast_dtype)
def _autocast_dtype(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    guard_state(tx, "autocast", tx.entry_state["autocast"])
    return tx.fold(torch.get_autocast_dtype, *tx.constants([*args, *kwargs.values()]))


@special(torch.overrides.is_tensor_like)
def _is_tensor_like(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    kind = force(tx, args[0]).type()
    return Const(issubclass(kind, torch.Tensor) or hasattr(kind, "__torch_function__"))


@special(
    torch._check, torch._check_value, torch._check_index, torch._check_type, torch._check_not_implemented, torch._assert
)
def _check(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    condition = force(tx, args[0] if args else kwargs.get("cond", kwargs.get("condition", NONE)))
    if isinstance(condition, Const) and condition.value is True:
        return NONE
    if isinstance(condition, SymValue) and condition.type() is bool:
        if condition.is_opaque:
            if not tx.is_nested():
                tx.take_for_granted(condition.node, truth=True)
                return NONE
        elif not is_unbacked(condition.sym):
            if condition.truth(tx):
                return NONE
        else:
            # What torch learns of it here, the graph checks.
            evaluate(tx, "call_function", torch._check, [condition.sym], {})
            check_deferred(tx)
            return NONE
    raise Unsupported("unknown-call", "torch._check or torch._assert of what is not known while tracing")


def _guard_or(ask: Callable[[Any], bool]) -> None:
    """What is true of every number that a tensor may hold, else what the function is named for: those who ask it are content with either."""

    @special(ask)
    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        condition = force(tx, args[0] if args else kwargs["a"])
        if isinstance(condition, SymValue) and is_unbacked(condition.sym):
            return Const(ask(condition.sym))
        return Const(condition.truth(tx))


_guard_or(guard_or_false)
_guard_or(guard_or_true)


def _known_of_symbol(ask: Callable[[Any], Any]) -> Callable[..., Value]:
    """What torch says of a number while it compiles, where a program that is not compiled has a plain one."""

    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        of = force(tx, [*args, *kwargs.values()][0])
        return Const(bool(ask(of.sym if isinstance(of, SymValue) else of.python(tx))))

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
        special(_ask_of)(_known_of_symbol(_ask_of))


@special(symbolic_shapes.guard_size_oblivious)
def _oblivious(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    condition = force(tx, [*args, *kwargs.values()][0])
    return Const(condition.truth(tx))


def _all_of(symbol: str) -> Callable[..., Value]:
    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found, *rest = (force(tx, a) for a in args)
        for other in rest:
            found = force(tx, binary(tx, symbol, found, other))
        return found

    return rule


special(symbolic_shapes.sym_and)(_all_of("&"))
special(symbolic_shapes.sym_or)(_all_of("|"))


@special(torch.get_autocast_gpu_dtype)
def _gpu_dtype(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    guard_state(tx, "autocast", tx.entry_state["autocast"])
    return Const(torch.get_autocast_gpu_dtype())


@special(torch._C._are_functorch_transforms_active)
def _transforms(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    guard_state(tx, "functorch", tx.entry_state["functorch"])
    return Const(tx.entry_state["functorch"] is not None)


@special(torch.autograd._is_checkpoint_valid)
def _checkpoint_valid(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Const(bool(torch.autograd._is_checkpoint_valid()))


class BackendFlags(HeldValue):
    """``torch.backends.cuda.matmul``: each flag that is read is guarded."""

    def get_attr(self, tx: Tracer, name: str) -> Value:
        try:
            found = getattr(self.held, name)
        except AttributeError as error:
            raise tx.user_exception(error) from error
        return backend_flags.read(tx, self.held, name, found)

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        if not hasattr(self.held, name):
            super().set_attr(tx, name, value)
        backend_flags.write(tx, self.held, name, value)


@wraps(type(torch.backends.cuda.matmul))
def _flags(tx: Tracer, real: Any, origin: Origin) -> Value:
    return BackendFlags(real, Fixed(real, "torch.backends.cuda.matmul"))


@special(has_free_unbacked_symbols)
def _has_unknown(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found = force(tx, args[0])
    if isinstance(found, TensorValue):
        return Const(any(is_unbacked(s) for s in found.fake.shape))
    if isinstance(found, SymValue):
        return Const(is_unbacked(found.sym))
    raise Unsupported("unknown-call", "has_free_unbacked_symbols of something else than a tensor or a number")


def _advice(tell: Callable[..., None]) -> None:
    @special(tell)
    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        size, *bounds = (force(tx, a) for a in args)
        if isinstance(size, SymValue):
            known = [b.sym if isinstance(b, SymValue) else b.python(tx) for b in bounds]
            evaluate(tx, "call_function", tell, [size.sym, *known], {})
            check_deferred(tx)
        return NONE


_advice(_advise_is_size)
_advice(_advise_is_bounded)


@special(torch.func.functional_call)
def _functional_call(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("module", "parameter_and_buffer_dicts", "args", "kwargs"), args, strict=False)) | kwargs
    from engine.trace.values.mappings import DictValue

    module = force(tx, given["module"])
    table = force(tx, given["parameter_and_buffer_dicts"])
    if isinstance(table, (TupleValue, ListValue)):
        merged = DictValue({})
        for part in table.items:
            merged.update(tx, part)
        table = merged
    ties, strict = (force(tx, given.get(word, Const(word == "tie_weights"))) for word in ("tie_weights", "strict"))
    if (
        not isinstance(module, ModuleValue)
        or not isinstance(table, DictValue)
        or not isinstance(ties, Const)
        or not isinstance(strict, Const)
    ):
        raise Unsupported("unknown-call", "torch.func.functional_call is called")
    wanted = {str(k): v for k, (_, v) in table.entries.items()}
    wanted = _with_tied(module.held, wanted) if ties.value else wanted
    if strict.value and wanted.keys() != _names_of_tensors(module.held):
        raise Unsupported("unknown-call", "torch.func.functional_call is not given a tensor for each name")
    inner = force(tx, given["args"]) if "args" in given else NONE
    words = force(tx, given["kwargs"]) if "kwargs" in given else NONE
    positional = list(inner.items) if isinstance(inner, TupleValue) else [] if _is_none(inner) else [inner]
    named: dict[str, Value] = {}
    if isinstance(words, DictValue):
        named = {str(k): v for k, (_, v) in words.entries.items()}
    replaced: list[tuple[ModuleValue, str]] = []
    try:
        for path, value in wanted.items():
            owner_path, _, name = path.rpartition(".")
            owner = module.at(tx, owner_path)
            if isinstance(owner, ModuleValue) and owner.replaced.get(name) is force(tx, value):
                continue
            if not isinstance(owner, ModuleValue) or not _owns(owner, name) or name in owner.replaced:
                raise Unsupported("unknown-call", f"torch.func.functional_call replaces {path!r}")
            tensor = force(tx, value)
            if not isinstance(tensor, TensorValue):
                raise Unsupported("unknown-call", "torch.func.functional_call is given what is not a tensor")
            owner.replaced[name] = tensor
            replaced.append((owner, name))
        return module.call(tx, positional, named)
    finally:
        for owner, name in replaced:
            del owner.replaced[name]


def _is_none(value: Value) -> bool:
    return isinstance(value, Const) and value.value is None


def _owns(owner: ModuleValue, name: str) -> bool:
    tables = ("_parameters", "_buffers")
    return name not in owner.written and any(owner.held.__dict__[t].get(name) is not None for t in tables)


def _names_of_tensors(module: torch.nn.Module) -> set[str]:
    members = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return {name for name, _ in itertools.chain(*members)}


def _with_tied(module: torch.nn.Module, given: dict[str, Value]) -> dict[str, Value]:
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


@special(torch.nn.RNNBase._weights_have_changed)
def _weights_have_changed(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Whether an RNN's flat list of weights is out of date: taken not to be, as long as both ways reach the same tensors."""
    module = force(tx, args[0])
    if not isinstance(module, ModuleValue) or module.origin is None or module.written or module.replaced:
        raise Unsupported("unknown-call", "the weights of a recurrent module may have changed")
    if module.held._weights_have_changed():
        raise Unsupported("unknown-call", "the weights of a recurrent module have changed")
    names = module.held._flat_weights_names
    for n, (name, weight) in enumerate(zip(names, module.held._flat_weights, strict=True)):
        if weight is not module.held._parameters.get(name):
            raise Unsupported("unknown-call", "the weights of a recurrent module are not its parameters")
        force(tx, module.member(tx, "_parameters", name))
        tx.wrap(weight, Item(Attr(module.origin, "_flat_weights"), n))
    return Const(False)
