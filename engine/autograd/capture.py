"""Records one backward while torch walks it: a call per node, its steps and their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.autograd import cpp_engine_adapter
from engine.autograd.fallback_kinds import CaptureFallback
from engine.autograd.lifted_scalars import LiftedScalars, SizeExpression
from engine.ir.fallback import FallbackRequired
from engine.torch_private.dispatch import TorchDispatchMode


@dataclass(eq=False)
class CapturedValue:
    """Result of a step, or an input of the backward.

    ``source`` is the step or the name of the input list. ``index`` is the index among its values.
    ``terms``: the terms of a sum, in the order in which eager adds them.
    """

    source: NodeStep | str
    index: int | None = None
    terms: tuple[CapturedValue, ...] = ()

    @property
    def step(self) -> NodeStep | None:
        """The step that computes the value; None for an input of the backward."""
        return None if isinstance(self.source, str) else self.source

    @property
    def is_zeros(self) -> bool:
        """True if the value represents an undefined gradient."""
        return self.step is not None and self.step.kind == "zeros"


@dataclass(eq=False)
class NodeStep:
    """One operation of a node.

    ``kind`` classifies it. ``args`` hold ``CapturedValue`` objects in place of tensors, sizes and hooks.
    """

    kind: str
    name: str
    args: tuple[Any, ...]
    call: NodeCall
    results: int | None = None
    """Number of results in a list; None: a single result without a list."""
    position: int = 0
    """Index of the gradient that a tensor hook is on."""


@dataclass(eq=False)
class NodeCall:
    """One autograd node: its name, its index in torch's walk, and its steps."""

    name: str
    index: int
    context: Any = None
    steps: list[NodeStep] = field(default_factory=list)
    incoming_gradients: tuple[Any, ...] | None = None
    """Incoming gradients before any hook; None if the node has none."""

    def record_gradients(self, gradients: Sequence[Any]) -> None:
        """Store the incoming gradients of the first step that receives any."""
        if self.incoming_gradients is None:
            self.incoming_gradients = tuple(gradients)


@dataclass(frozen=True)
class BackwardCapture:
    """A complete backward: its calls, its results, and metadata of its inputs at capture."""

    calls: tuple[NodeCall, ...]
    results: tuple[CapturedValue | None, ...]
    inputs: tuple[torch.Tensor, ...]
    """Inputs as tensors on the meta device."""
    devices: tuple[torch.device, ...]
    symbolic_size_count: int
    """Number of symbolic sizes."""
    leaves_with_grad: int = 0
    """Number of leaves that had a ``.grad`` at capture."""


class CaptureRecorder:
    """Recorder of one backward, called by ``cpp_engine_adapter.AutogradCompilerAdapter``.

    Tensors are stand-ins that are compared by identity. None is an undefined gradient.

    No method before ``end`` raises: torch's nodes hold stand-ins for saved tensors during the walk, and an
    exception would leave them there. Errors are stored, and ``end`` raises them.
    """

    def __init__(self, finish: Callable[[BackwardCapture], tuple[Any, Any]], begun: Callable[[], None]) -> None:
        self._on_end = finish
        self._on_begin = begun
        self._values: dict[int, CapturedValue] = {}
        self._alive: list[torch.Tensor] = []
        self._calls: list[NodeCall] = [NodeCall("", -1)]
        self._inputs: tuple[torch.Tensor, ...] = ()
        self._devices: tuple[torch.device, ...] = ()
        self._size_count = 0
        self._leaves_with_grad = 0
        self._lifted_scalars = LiftedScalars()
        self._failure: BaseException | None = None
        self._zeros_mode: Any = _ZerosInterceptor(self.intercepted_zeros)
        self._zeros_mode_is_active = False

    # Stand-ins.

    def _placeholder_tensor(self, value: CapturedValue, *, like: torch.Tensor | None = None) -> torch.Tensor:
        tensor = torch.empty(0)
        if like is not None and like.requires_grad:
            tensor.requires_grad_()
        self._values[id(tensor)] = value
        self._alive.append(tensor)
        return tensor

    def _placeholder_tensors(self, step: NodeStep, count: int) -> list[Any]:
        step.results = count
        return [self._placeholder_tensor(CapturedValue(step, n)) for n in range(count)]

    def _add_step(self, kind: str, name: str, *args: Any, coming: Sequence[Any] = (), position: int = 0) -> NodeStep:
        """Add a step to the current node; ``coming``: the incoming gradients that torch passed."""
        call = self._calls[-1]
        if coming:
            call.record_gradients(self._resolve(list(coming)))
        step = NodeStep(kind, name, tuple(self._resolve(a) for a in args), call, position=position)
        call.steps.append(step)
        return step

    def _resolve(self, value: Any) -> Any:
        """Replace stand-ins by their captured values, also inside lists and tuples."""
        if isinstance(value, torch.Tensor):
            captured = self._values.get(id(value))
            return self._record_zeros(value) if captured is None else captured
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return self._resolve_size(value)
        if isinstance(value, (list, tuple)):
            items = [self._resolve(t) for t in value]
            return items if isinstance(value, list) else tuple(items)
        return value

    def _record_zeros(self, tensor: torch.Tensor) -> CapturedValue:
        """Record zeros that torch created in the walk to materialize an undefined gradient."""
        value = CapturedValue(self._add_step("zeros", "zeros", tuple(tensor.shape), tensor.dtype, tensor.device))
        if self._lifted_scalars.has_symbols or bool(tensor.count_nonzero()):
            self.fail(
                FallbackRequired(
                    CaptureFallback.UNKNOWN_TENSOR, "torch created a tensor of unknown contents during the capture"
                )
            )
        self._values[id(tensor)] = value
        self._alive.append(tensor)
        return value

    def intercepted_zeros(self, size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Record zeros of symbolic size, which torch itself cannot create."""
        return self._placeholder_tensor(CapturedValue(self._add_step("zeros", "zeros", tuple(size), dtype, device)))

    def _resolve_size(self, size: Any) -> Any:
        try:
            return self._lifted_scalars.graph_value(size)
        except FallbackRequired as error:
            self.fail(error)
            return 0

    def fail(self, error: BaseException) -> None:
        """Store an error, which ``end`` raises."""
        self._failure = self._failure or error

    def close(self) -> None:
        """Restore torch's modes."""
        if self._zeros_mode_is_active:
            self._zeros_mode_is_active = False
            self._zeros_mode.__exit__(None, None, None)

    # Callbacks.

    def begin(self, inputs: Sequence[torch.Tensor], sizes: Sequence[int], scalars: Sequence[Any]) -> tuple[Any, ...]:
        """Return stand-ins for the tensors, sizes and scalars of the inputs, as three lists."""
        self._inputs, self._devices = tuple(map(_as_meta_tensor, inputs)), tuple(t.device for t in inputs)
        self._size_count = len(sizes)
        if sizes or scalars:
            self._zeros_mode.__enter__()
            self._zeros_mode_is_active = True
        stand_ins = [self._placeholder_tensor(CapturedValue("inputs", n), like=t) for n, t in enumerate(inputs)]
        symbols = [self._lifted_scalars.create_symbol(s, CapturedValue("sizes", n)) for n, s in enumerate(sizes)]
        numbers = [self._lifted_scalars.create_symbol(s, CapturedValue("scalars", n)) for n, s in enumerate(scalars)]
        self._on_begin()
        return stand_ins, symbols, numbers

    def begin_node(self, name: str, index: int, owner: Any) -> None:
        """Begin an autograd node; ``owner`` is the ctx of an autograd.Function."""
        self._calls.append(NodeCall(name, index, owner))

    def function(self, name: str, grads: Sequence[Any], args: Sequence[Any], results: int) -> list[Any]:
        """Record the formula of a built-in node."""
        kind = "opaque" if cpp_engine_adapter.is_opaque_formula(name) else "function"
        return self._placeholder_tensors(self._add_step(kind, name, list(grads), *args, coming=grads), results)

    def validate(self, values: Sequence[Any], metadata: Sequence[Any]) -> list[Any]:
        """Record the validation of a node's outputs against the metadata of the next nodes."""
        if not any(v is not None and m is not None for v, m in zip(values, metadata, strict=False)):
            return list(values)
        sizes = [None if m is None else tuple(m[1]) for m in metadata]
        plain = [m if m is None else (m[0], (), *m[2:]) for m in metadata]
        step = self._add_step("validate", self._calls[-1].name, list(values), sizes)
        step.name, step.args = f"validate_{short_name(self._calls[-1].name)}", (*step.args, plain)
        placeholders = self._placeholder_tensors(step, len(values))
        return [None if v is None else f for v, f in zip(values, placeholders, strict=True)]

    def python_function(
        self, grads: Sequence[Any], metadata: Sequence[Any], saved: Sequence[Any], node_index: int, owner: Any
    ) -> list[Any]:
        """Record an autograd.Function's backward; ``node_index`` is its ctx in ``hooks``."""
        present = tuple(m is not None for m in metadata)
        args = (CapturedValue("hooks", node_index), tuple(saved), present, tuple(grads))
        step = self._add_step("python", type(owner).__name__, *args, coming=grads)
        placeholders = self._placeholder_tensors(step, len(metadata))
        return [f if is_defined else None for f, is_defined in zip(placeholders, present, strict=True)]

    def add_gradients(self, old: Any, new: Any) -> Any:
        """Record the addition of two gradients."""
        first, second = self._resolve(old), self._resolve(new)
        step = NodeStep("add", "add", (first, second), self._calls[-1])
        return self._placeholder_tensor(CapturedValue(step, None, (*(first.terms or (first,)), second)))

    def accumulate_grad(self, variable: Any, grad: Any, old: Any) -> Any:
        """Record the accumulation into a leaf's ``.grad``, whose value was ``old``."""
        self._leaves_with_grad += old is not None
        step = self._add_step("accumulate", "accumulate_grad", variable, grad, coming=[grad])
        return self._placeholder_tensor(CapturedValue(step), like=variable)

    def hook(self, kind: str, node_index: int, values: Sequence[Any], other_arguments: Sequence[Any] = ()) -> list[Any]:
        """Record a user hook of a kind ("pre_hook") on several values."""
        hook = CapturedValue("hooks", node_index)
        if kind == "post_acc_grad_hook":
            self._add_step(kind, kind, hook, values[0])
            return list(values)
        if kind == "post_hook":
            return self._placeholder_tensors(
                self._add_step(kind, kind, hook, tuple(values), tuple(other_arguments)), len(values)
            )
        return self._placeholder_tensors(self._add_step(kind, kind, hook, tuple(values), coming=values), len(values))

    def tensor_hook(self, node_index: int, values: Sequence[Any], position: int, *, is_builtin: bool) -> list[Any]:
        """Record a hook on one of several gradients; a built-in one implements ``retain_grad``."""
        kind = "retain_grad" if is_builtin else "tensor_pre_hook"
        hook = node_index if is_builtin else CapturedValue("hooks", node_index)
        result = list(values)
        step = self._add_step(kind, kind, hook, values[position], coming=values, position=position)
        result[position] = self._placeholder_tensor(CapturedValue(step))
        return result

    def unpack(self, hook: int, packed: int) -> Any:
        """Record a hook that unpacks a saved tensor."""
        step = self._add_step(
            "unpack_hook", "unpack_hook", CapturedValue("hooks", hook), CapturedValue("packed_data", packed)
        )
        return self._placeholder_tensor(CapturedValue(step))

    def copy_slices_prologue(self, grads: Sequence[Any], geometry: Sequence[Any]) -> list[Any]:
        """Record the first half of CopySlices, the backward of an in-place write to a view."""
        placed = [tuple(g) if isinstance(g, (list, tuple)) else g for g in geometry]
        return self._placeholder_tensors(
            self._add_step("copy_slices_prologue", "copy_slices_prologue", grads[0], *placed, coming=grads), 3
        )

    def copy_slices_epilogue(self, needed: Sequence[bool], result: Any, grads: Sequence[Any], part: Any) -> list[Any]:
        """Record the second half of CopySlices."""
        before = self._resolve(part).step
        # Create the view of the written part again: the steps between may be compiled separately.
        step = self._add_step("copy_slices_epilogue", "copy_slices_epilogue", tuple(needed), result, list(grads))
        step.args = (*step.args, *before.args[3:])
        return self._placeholder_tensors(step, len(needed))

    def end(self, results: Sequence[Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the run function and the captured backward.

        Raises:
            FallbackRequired: A step could not be captured; nothing of the backward has run.
        """
        self.close()
        try:
            return self._on_end(self._build_capture(results))
        except FallbackRequired:
            raise
        except Exception as error:
            raise FallbackRequired(CaptureFallback.CAPTURE_FAILED, f"{type(error).__name__}: {error}") from error

    def _build_capture(self, results: Sequence[Any]) -> BackwardCapture:
        returned = tuple(None if r is None else _before_hooks(self._resolve(r)) for r in results)
        if self._lifted_scalars.has_guards():
            self.fail(
                FallbackRequired(CaptureFallback.BRANCH_ON_SIZE, "a derivative formula branches on the value of a size")
            )
        if self._failure is not None:
            raise self._failure
        calls = tuple(c for c in self._calls if c.index >= 0 or c.steps)
        self._values.clear()
        self._alive.clear()
        return BackwardCapture(calls, returned, self._inputs, self._devices, self._size_count, self._leaves_with_grad)


class _ZerosInterceptor(TorchDispatchMode):
    """Dispatch mode that intercepts zeros of undefined gradients, also of symbolic size."""

    def __init__(self, make_zeros: Callable[..., torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_zeros = make_zeros

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.zeros.default:
            return self._on_zeros(args[0], kwargs.get("dtype") or torch.get_default_dtype(), kwargs.get("device"))
        return func(*args, **(kwargs or {}))


def short_name(name: str) -> str:
    """Return the part of a C++ name after its last namespace."""
    return name.rpartition("::")[2]


TENSOR_HOOK_KINDS = ("tensor_pre_hook", "retain_grad")


def _before_hooks(value: CapturedValue) -> CapturedValue:
    """Return the gradient before its tensor hooks, as ``torch.autograd.grad`` does.

    A node at which the backward ends has no other steps. Its hooks then apply to the result.
    """
    step = value.step
    while (
        step is not None
        and step.kind in TENSOR_HOOK_KINDS
        and any(s.kind not in TENSOR_HOOK_KINDS for s in step.call.steps)
    ):
        value = step.args[1]
        step = value.step
    return value


def _as_meta_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return torch.empty(() if tensor.is_nested else tensor.shape, dtype=tensor.dtype, device="meta")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def map_captured(
    value: Any, on_value: Callable[[CapturedValue], Any], on_size: Callable[[Any, tuple[Any, ...]], Any]
) -> Any:
    """Replace captured values and size expressions in a step's arguments, lists included.

    ``on_size`` gets the function that computes a size, and its replaced arguments.
    """
    if isinstance(value, CapturedValue):
        return on_value(value)
    if isinstance(value, SizeExpression):
        return on_size(value.run, tuple(map_captured(a, on_value, on_size) for a in value.args))
    if isinstance(value, (list, tuple)):
        return type(value)([map_captured(t, on_value, on_size) for t in value])
    return value


def values_in(value: Any) -> list[CapturedValue]:
    """Return all captured values in a step's arguments."""
    values: list[CapturedValue] = []
    map_captured(value, values.append, lambda _, args: args)
    return values
