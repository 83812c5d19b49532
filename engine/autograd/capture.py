"""What a backward would do, written down while torch walks through it: one call a node, its steps, and the values between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.autograd import adapter
from engine.autograd.sizes import Arithmetic, NotASize, Sizes


@dataclass(eq=False)
class Value:
    """What a step makes, or an input: ``source`` is the step, or the name of the list that it stands in, and ``index`` its place there.

    ``terms``: it is a sum, of these, in the order in which eager would make them.
    """

    source: Step | str
    index: int | None = None
    terms: tuple[Value, ...] = ()


@dataclass(eq=False)
class Step:
    """One thing that a node does. ``kind`` says what; ``args`` hold Values wherever tensors, sizes or hooks go."""

    kind: str
    name: str
    args: tuple[Any, ...]
    call: Call
    results: int | None = None
    """How many values it makes; None: one, not in a list."""
    position: int = 0
    """Of a hook on one of several gradients: which."""


@dataclass(eq=False)
class Call:
    """One autograd node: its name, its place in the order that torch walks in, and what it does."""

    name: str
    index: int
    owner: Any = None
    steps: list[Step] = field(default_factory=list)
    gradients: tuple[Any, ...] | None = None
    """Values of the gradients that come in, before any hook; None: it has none."""

    def comes_in(self, gradients: Sequence[Any]) -> None:
        """Keep what comes in, told with the first step."""
        if self.gradients is None:
            self.gradients = tuple(gradients)


@dataclass(frozen=True)
class Captured:
    """A whole backward: its calls, what it returns, and what the lists that it is called with held at capture."""

    calls: tuple[Call, ...]
    results: tuple[Value | None, ...]
    inputs: tuple[torch.Tensor, ...]
    """Descriptions of the tensors: on the meta device."""
    devices: tuple[torch.device, ...]
    sizes: int
    """How many sizes are symbols."""
    added_to: int = 0
    """How many leaves have a ``.grad`` already."""


class Refused(Exception):
    """A backward that cannot be captured; the text says why. Nothing has run."""


class Capture:
    """Implements ``adapter.Recorder``.

    No method raises: torch's nodes hold stand-ins for what they saved while it walks, and an exception would leave them there. What goes wrong
    is kept, and raised at the end.
    """

    def __init__(self, finish: Callable[[Captured], tuple[Any, Any]], begun: Callable[[], None]) -> None:
        self._finish = finish
        self._begun = begun
        self._values: dict[int, Value] = {}
        self._alive: list[torch.Tensor] = []
        self._calls: list[Call] = [Call("", -1)]
        self._inputs: tuple[torch.Tensor, ...] = ()
        self._devices: tuple[torch.device, ...] = ()
        self._count = 0
        self._added_to = 0
        self._sizes = Sizes()
        self._failure: BaseException | None = None
        self._zeros: Any = _Zeros(self.zeros)
        self._is_open = False

    # Stand-ins.

    def _stand_in(self, value: Value, *, like: torch.Tensor | None = None) -> torch.Tensor:
        made = torch.empty(0)
        if like is not None and like.requires_grad:
            made.requires_grad_()
        self._values[id(made)] = value
        self._alive.append(made)
        return made

    def _several(self, step: Step, count: int) -> list[Any]:
        step.results = count
        return [self._stand_in(Value(step, n)) for n in range(count)]

    def _step(self, kind: str, name: str, *args: Any, coming: Sequence[Any] = (), position: int = 0) -> Step:
        """One step of the node at hand; ``coming``: the gradients that it is told with."""
        call = self._calls[-1]
        if coming:
            call.comes_in(self._of(list(coming)))
        step = Step(kind, name, tuple(self._of(a) for a in args), call, position=position)
        call.steps.append(step)
        return step

    def _of(self, thing: Any) -> Any:
        """Stand-ins replaced by what they stand for, also inside of lists and tuples."""
        if isinstance(thing, torch.Tensor):
            found = self._values.get(id(thing))
            return self._made(thing) if found is None else found
        if isinstance(thing, (torch.SymInt, torch.SymFloat)):
            return self._size(thing)
        if isinstance(thing, (list, tuple)):
            return (
                type(thing)([self._of(t) for t in thing])
                if type(thing) in (list, tuple)
                else tuple(map(self._of, thing))
            )
        return thing

    def _made(self, tensor: torch.Tensor) -> Value:
        """A tensor that torch made while it walked: zeros where a Python function wants no undefined gradients."""
        value = Value(self._step("zeros", "zeros", tuple(tensor.shape), tensor.dtype, tensor.device))
        if self._sizes.are_used or bool(tensor.count_nonzero()):
            self.fail(Refused("torch made a tensor while the backward was captured"))
        self._values[id(tensor)] = value
        self._alive.append(tensor)
        return value

    def zeros(self, size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The same where sizes are symbols, of which torch cannot make a tensor."""
        return self._stand_in(Value(self._step("zeros", "zeros", tuple(size), dtype, device)))

    def _size(self, size: Any) -> Any:
        try:
            return self._sizes.value_of(size)
        except NotASize as error:
            self.fail(Refused(str(error)))
            return 0

    def fail(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def close(self) -> None:
        """Leave torch's modes as they were."""
        if self._is_open:
            self._is_open = False
            self._zeros.__exit__(None, None, None)

    # The protocol.

    def begin(self, inputs: Sequence[torch.Tensor], sizes: Sequence[int], scalars: Sequence[Any]) -> tuple[Any, ...]:
        self._inputs, self._devices = tuple(map(_described, inputs)), tuple(t.device for t in inputs)
        self._count = len(sizes)
        if sizes or scalars:
            self._zeros.__enter__()
            self._is_open = True
        stand_ins = [self._stand_in(Value("inputs", n), like=t) for n, t in enumerate(inputs)]
        made = [self._sizes.symbol(s, Value("sizes", n)) for n, s in enumerate(sizes)]
        numbers = [self._sizes.symbol(s, Value("scalars", n)) for n, s in enumerate(scalars)]
        self._begun()
        return stand_ins, made, numbers

    def node(self, name: str, index: int, owner: Any) -> None:
        self._calls.append(Call(name, index, owner))

    def function(self, name: str, grads: Sequence[Any], args: Sequence[Any], results: int) -> list[Any]:
        kind = "opaque" if adapter.is_opaque(name) else "function"
        return self._several(self._step(kind, name, list(grads), *args, coming=grads), results)

    def validate(self, values: Sequence[Any], metadata: Sequence[Any]) -> list[Any]:
        if not any(v is not None and m is not None for v, m in zip(values, metadata, strict=False)):
            return list(values)
        sizes = [None if m is None else tuple(m[1]) for m in metadata]
        plain = [m if m is None else (m[0], (), *m[2:]) for m in metadata]
        step = self._step("validate", self._calls[-1].name, list(values), sizes)
        step.name, step.args = f"validate_{self._calls[-1].name.rpartition('::')[2]}", (*step.args, plain)
        found = self._several(step, len(values))
        return [None if v is None else f for v, f in zip(values, found, strict=True)]

    def python(
        self, grads: Sequence[Any], metadata: Sequence[Any], saved: Sequence[Any], place: int, owner: Any
    ) -> list[Any]:
        present = tuple(m is not None for m in metadata)
        args = (Value("hooks", place), tuple(saved), present, tuple(grads))
        step = self._step("python", type(owner).__name__, *args, coming=grads)
        found = self._several(step, len(metadata))
        return [f if there else None for f, there in zip(found, present, strict=True)]

    def add(self, old: Any, new: Any) -> Any:
        first, second = self._of(old), self._of(new)
        step = Step("add", "add", (first, second), self._calls[-1])
        return self._stand_in(Value(step, None, (*(first.terms or (first,)), second)))

    def accumulate(self, variable: Any, grad: Any, old: Any) -> Any:
        self._added_to += old is not None
        step = self._step("accumulate", "accumulate_grad", variable, grad, coming=[grad])
        return self._stand_in(Value(step), like=variable)

    def hook(self, kind: str, place: int, values: Sequence[Any], others: Sequence[Any] = ()) -> list[Any]:
        hook = Value("hooks", place)
        if kind == "post_acc_grad_hook":
            self._step(kind, kind, hook, values[0])
            return list(values)
        if kind == "post_hook":
            return self._several(self._step(kind, kind, hook, tuple(values), tuple(others)), len(values))
        return self._several(self._step(kind, kind, hook, tuple(values), coming=values), len(values))

    def tensor_hook(self, place: int, values: Sequence[Any], position: int, *, is_builtin: bool) -> list[Any]:
        kind = "retain_grad" if is_builtin else "tensor_pre_hook"
        hook = place if is_builtin else Value("hooks", place)
        result = list(values)
        step = self._step(kind, kind, hook, values[position], coming=values, position=position)
        result[position] = self._stand_in(Value(step))
        return result

    def unpack(self, hook: int, packed: int) -> Any:
        step = self._step("unpack_hook", "unpack_hook", Value("hooks", hook), Value("packed_data", packed))
        return self._stand_in(Value(step))

    def slices_before(self, grads: Sequence[Any], geometry: Sequence[Any]) -> list[Any]:
        placed = [tuple(g) if isinstance(g, (list, tuple)) else g for g in geometry]
        return self._several(self._step("slices_before", "slices_before", grads[0], *placed, coming=grads), 3)

    def slices_after(self, needed: Sequence[bool], result: Any, grads: Sequence[Any], part: Any) -> list[Any]:
        before = self._of(part).source
        assert isinstance(before, Step)
        # The written part is seen anew: what came between may have been compiled apart.
        step = self._step("slices_after", "slices_after", tuple(needed), result, list(grads))
        step.args = (*step.args, *before.args[3:])
        return self._several(step, len(needed))

    def end(self, results: Sequence[Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Raises:
        Refused: something on the way could not be captured.
        """
        self.close()
        try:
            return self._finish(self._captured(results))
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"{type(error).__name__}: {error}") from error

    def _captured(self, results: Sequence[Any]) -> Captured:
        returned = tuple(None if r is None else _before_hooks(self._of(r)) for r in results)
        if self._sizes.has_decided():
            self.fail(Refused("a formula depends on the value of a size"))
        if self._failure is not None:
            raise self._failure
        calls = tuple(c for c in self._calls if c.index >= 0 or c.steps)
        self._values.clear()
        self._alive.clear()
        return Captured(calls, returned, self._inputs, self._devices, self._count, self._added_to)


class _Zeros(TorchDispatchMode):
    """Notices zeros that torch makes where a Python function wants no undefined gradients, also of symbolic sizes."""

    def __init__(self, made: Callable[..., torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made = made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.zeros.default:
            return self._made(args[0], kwargs.get("dtype") or torch.get_default_dtype(), kwargs.get("device"))
        return func(*args, **(kwargs or {}))


TENSOR_HOOKS = ("tensor_pre_hook", "retain_grad")


def _before_hooks(value: Value) -> Value:
    """What ``torch.autograd.grad`` returns of a gradient on its way: before its hooks, unless the way ends here (then its node does nothing)."""
    step = value.source
    while (
        isinstance(step, Step)
        and step.kind in TENSOR_HOOKS
        and any(s.kind not in TENSOR_HOOKS for s in step.call.steps)
    ):
        value = step.args[1]
        step = value.source
    return value


def _described(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return torch.empty(() if tensor.is_nested else tensor.shape, dtype=tensor.dtype, device="meta")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def values_in(thing: Any) -> Iterator[Value]:
    """All Values in a step's arguments."""
    if isinstance(thing, Value):
        yield thing
    elif isinstance(thing, Arithmetic):
        yield from values_in(thing.args)
    elif isinstance(thing, (list, tuple)):
        for part in thing:
            yield from values_in(part)
