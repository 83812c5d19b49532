"""Run a program plainly and compiled, and report every difference a user could notice."""

from __future__ import annotations

import cmath
import contextlib
import functools
import io
import logging
import random
import re
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from engine.torch_private.pytree import tree_map_only
from tests.programs import Call, Program, load_copy, program_of

SEED = 1234
TOLERANCES = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (1e-5, 1e-5),
    torch.float16: (1e-3, 1e-3),
    torch.bfloat16: (1e-2, 1e-2),
    torch.complex64: (1e-5, 1e-5),
}
ROUNDING_FACTOR = 2.0
"""Error of a compiled run in units of eager's error, both against float64."""
LARGEST_ROUNDING_ERROR = 0.05
"""Largest error of eager that counts as rounding, relative to the largest float64 value."""
PLAIN = (bool, int, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, range, slice)
OPAQUE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    types.CodeType,
    classmethod,
    staticmethod,
    property,
    functools._lru_cache_wrapper,
    logging.Logger,
    weakref.ref,
)


@dataclass
class Observation:
    """Results of one program run: each call's outcome and all reachable state.

    The state is everything reachable from the run's inputs and globals.
    """

    outcomes: list[dict[str, Any]] = field(default_factory=list)
    target: Any = None
    globals: dict[str, Any] = field(default_factory=dict)
    random: tuple[Any, ...] = ()
    warned: list[str] = field(default_factory=list)


@dataclass
class Loaded:
    """A program with its own globals, ready to run; ``target`` is the plain callable.

    The target is a function or a module.
    """

    program: Program
    target: Any
    module: types.ModuleType

    def arguments(self, index: int) -> Call:
        """Fresh arguments of one call; the same at every time of asking."""
        set_seed(SEED + index)
        made = self.program.calls[index]()
        return made if isinstance(made, Call) else Call(made)


def set_seed(seed: int) -> None:
    """Seed torch's generators.

    Without a GPU, ``torch.manual_seed`` formats the stack three times, once per kind of device: longer than a
    small program takes.
    """
    seed_generators = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
    seed_generators(seed)


def prepare(name: str, copy: str) -> Loaded:
    """Load ``file.program`` under its own globals; a module is made from a fixed seed."""
    stem, _, function = name.partition(".")
    module = load_copy(stem, copy)
    program = program_of(getattr(module, function))
    assert program is not None, name
    target = program.target
    if isinstance(target, type) and issubclass(target, torch.nn.Module):
        set_seed(SEED)
        target = target()
    return Loaded(program, target, module)


def observe(loaded: Loaded, run: Callable[..., Any], *, grad: bool = True) -> Observation:
    """Make every call of the program through ``run`` and record the outcomes.

    With ``grad=False`` gradients are off.
    """
    seen = Observation(target=loaded.target)
    set_seed(SEED)
    random.seed(SEED)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for index in range(len(loaded.program.calls)):
            arguments = loaded.arguments(index)
            set_seed(SEED)
            seen.outcomes.append(observe_call(run, arguments, grad=grad))
    seen.warned = [
        f"{w.category.__name__}: {w.message}" for w in caught if w.category is UserWarning and "tests" in w.filename
    ]
    seen.globals = {k: v for k, v in vars(loaded.module).items() if not k.startswith("__")}
    seen.random = (torch.get_rng_state(), random.getstate())
    return seen


def observe_call(run: Callable[..., Any], arguments: Call, *, grad: bool) -> dict[str, Any]:
    """Record one call: its result or exception, printed text and final arguments."""
    printed = io.StringIO()
    outcome: dict[str, Any] = {"args": arguments.args, "kwargs": dict(arguments.kwargs)}
    with contextlib.redirect_stdout(printed), torch.set_grad_enabled(grad):
        try:
            outcome["result"] = run(*arguments.args, **arguments.kwargs)
        except Exception as error:  # the user's own, to be compared
            outcome["error"] = (type(error).__name__, str(error), type(error.__cause__).__name__)
    outcome["printed"] = printed.getvalue()
    outcome["grad mode"] = torch.is_grad_enabled()
    outcome["differentiated"] = differentiate(outcome.get("result")) if grad else False
    return outcome


def differentiate(result: Any) -> bool:
    """Run the backward of a weighted sum of all results that require a gradient.

    Gradients are then compared as part of the tensors.
    """
    total: torch.Tensor | None = None
    for position, tensor in enumerate(tensors_in(result)):
        if tensor.requires_grad and tensor.grad_fn is not None and tensor.dtype.is_floating_point:
            part = (tensor.double() * weights(tensor)).sum() * (position + 1)
            total = part if total is None else total + part
    if total is None:
        return False
    total.backward()
    return True


def weights(tensor: torch.Tensor) -> torch.Tensor:
    """Different weights for all elements, so that swapped gradients show."""
    return torch.linspace(-1.0, 2.0, max(tensor.numel(), 1), dtype=torch.float64).resize_(tensor.shape)


def tensors_in(value: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Tensors in nested containers and in the attributes of plain objects."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item, seen)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from tensors_in(item, seen)
    elif hasattr(value, "__dict__") and not isinstance(value, (*OPAQUE, type)):
        for item in vars(value).values():
            yield from tensors_in(item, seen)


_MODULE = re.compile(r"\btests\.programs\.\w+__(?:plain|compiled)\b")


def _anywhere(text: str) -> str:
    """Remove the run's own module name from a text, since each run has a different one."""
    return _MODULE.sub("tests.programs", text)


class Comparison:
    """A walk over two observations at once.

    Two mutable objects correspond when the walk meets them in the same place; meeting one of them again beside another object is an
    aliasing difference. Storages are compared the same way.
    """

    def __init__(self, tolerances: Mapping[torch.dtype, tuple[float, float]] | None = None) -> None:
        self.tolerances = tolerances
        self.differences: list[str] = []
        self.unequal: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        """Floating-point tensors whose values differ, by the text of the difference."""
        self._pairs: dict[int, int] = {}
        self._back: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._storages_back: dict[int, int] = {}
        self._alive: list[Any] = []

    def differ(self, where: str, what: str) -> None:
        """Note one difference."""
        self.differences.append(f"{where}: {what}")

    def observations(self, plain: Observation, compiled: Observation) -> list[str]:
        """All differences between two runs."""
        for index, (a, b) in enumerate(zip(plain.outcomes, compiled.outcomes, strict=True)):
            for name, x, y in (("plain", a, b), ("compiled", b, a)):
                if "error" in x and "error" not in y:
                    self.differ(f"call {index}", f"only the {name} one raised {': '.join(x['error'][:2])}")
            self.values(a, b, f"call {index}")
        if not isinstance(plain.target, OPAQUE):
            self.values(plain.target, compiled.target, "target")
        self.values(plain.globals, compiled.globals, "globals")
        self.values(plain.warned, compiled.warned, "warnings")
        self.values(plain.random, compiled.random, "random state")
        return self.differences

    def values(self, a: Any, b: Any, where: str) -> None:
        """Compare two values of any kind."""
        if isinstance(a, (*OPAQUE, Program)):
            return
        if type(a).__qualname__ != type(b).__qualname__:
            self.differ(where, f"{type(a).__qualname__} became {type(b).__qualname__}")
        elif isinstance(a, PLAIN):
            if a != b and not (isinstance(a, str) and _anywhere(a) == _anywhere(b)):
                self.differ(where, f"{a!r} became {b!r}")
        elif isinstance(a, (float, complex)):
            self.number(a, b, where)
        elif isinstance(a, type):
            self.classes(a, b, where)
        elif not isinstance(a, (tuple, frozenset)) and self.is_known(a, b, where):
            return
        else:
            self.contents(a, b, where)

    def number(self, a: complex, b: complex, where: str) -> None:
        """Compare two floats; equal to the last bit unless tolerances were given."""
        rtol, atol = (0.0, 0.0) if self.tolerances is None else self.tolerances[torch.float32]
        if a != b and not (cmath.isnan(a) and cmath.isnan(b)) and abs(a - b) > atol + rtol * abs(a):
            self.differ(where, f"{a!r} became {b!r}")

    def is_known(self, a: Any, b: Any, where: str) -> bool:
        """Whether this pair was met before; notes a difference where only one of them was."""
        known, back = self._pairs.get(id(a)), self._back.get(id(b))
        if known is None and back is None:
            self._pairs[id(a)], self._back[id(b)] = id(b), id(a)
            self._alive += [a, b]
            return False
        if known != id(b) or back != id(a):
            self.differ(
                where, "is another object than before (identity)" if known else "is an object met before (identity)"
            )
        return True

    def contents(self, a: Any, b: Any, where: str) -> None:
        """Compare what two objects of one type hold."""
        if isinstance(a, torch.Tensor):
            self.tensors(a, b, where)
        elif isinstance(a, (np.ndarray, np.generic)):
            self.arrays(a, b, where)
        elif isinstance(a, Mapping):
            self.mappings(a, b, where)
        elif isinstance(a, (list, tuple)):
            if len(a) != len(b):
                self.differ(where, f"{len(a)} items became {len(b)}")
            for index, (x, y) in enumerate(zip(a, b, strict=False)):
                self.values(x, y, f"{where}[{index}]")
        elif isinstance(a, (set, frozenset)) and sorted(map(repr, a)) != sorted(map(repr, b)):
            self.differ(where, f"{a!r} became {b!r}")
        if hasattr(a, "__dict__") and not isinstance(a, torch.Tensor):
            # Each run loads the program as a module of its own, whose name a cached property holds since Python 3.13.
            own = [{k: v for k, v in vars(t).items() if k != "__module__"} for t in (a, b)]
            self.mappings(*own, where, attribute=True)

    def mappings(self, a: Mapping[Any, Any], b: Mapping[Any, Any], where: str, *, attribute: bool = False) -> None:
        """Compare keys, their order, and values."""
        if "_hooks" in where.rpartition(".")[2]:  # keyed by a number that counts up through the whole process
            self.values(list(a.values()), list(b.values()), where)
            return
        # The text of a tensor has its rounded elements, which are compared elsewhere.
        keys = [["Tensor" if isinstance(k, torch.Tensor) else str(k) for k in m] for m in (a, b)]
        if keys[0] != keys[1]:
            self.differ(where, f"keys {list(a)} became {list(b)}")
        # Tensors are keys by identity, and the other run has its own: they correspond by their place.
        found = list(b.values()) if any(isinstance(k, torch.Tensor) for k in a) else [b.get(key, None) for key in a]
        for (key, x), y in zip(a.items(), found, strict=False):
            self.values(x, y, f"{where}.{key}" if attribute else f"{where}[{key!r}]")

    def classes(self, a: type, b: type, where: str) -> None:
        """Compare two classes by name and, for the program's own, by plain attribute values."""
        if a.__qualname__ != b.__qualname__:
            self.differ(where, f"class {a.__qualname__} became {b.__qualname__}")
        elif a.__module__.startswith("tests.programs") and not self.is_known(a, b, where):
            own = {k: v for k, v in vars(a).items() if not k.startswith("__")}
            self.mappings(own, {k: vars(b).get(k) for k in own}, where, attribute=True)

    def tensors(self, a: torch.Tensor, b: torch.Tensor, where: str) -> None:
        """Compare two tensors in everything that shows."""
        for fact in ("dtype", "device", "shape", "layout", "requires_grad", "is_leaf"):
            x, y = getattr(a, fact), getattr(b, fact)
            if x != y:
                self.differ(where, f"{fact} {x} became {y}")
        if a.shape != b.shape or a.dtype != b.dtype:
            return
        if a.layout is torch.strided and a.numel() and a.stride() != b.stride():
            self.differ(where, f"stride {a.stride()} became {b.stride()}")
        self.storages(a, b, where)
        if hasattr(a, "__tensor_flatten__"):
            self.values(vars(a), vars(b), where)
            return
        if a.is_meta:
            return
        if a.layout is not torch.strided or a.is_quantized:
            a, b = (t.dequantize() if t.is_quantized else t.to_dense() for t in (a, b))
        self.elements(a.detach().as_subclass(torch.Tensor), b.detach().as_subclass(torch.Tensor), where)
        if a.is_leaf and b.is_leaf and (a.grad is not None or b.grad is not None):
            self.values(a.grad, b.grad, f"{where}.grad")
        if isinstance(a, torch.nn.Parameter):
            # torch.cond and its like mark parameters when they are called plainly: they compile themselves.
            own = [{k: v for k, v in vars(t).items() if not k.startswith("_dynamo")} for t in (a, b)]
            self.mappings(own[0], own[1], where, attribute=True)

    def arrays(self, a: Any, b: Any, where: str) -> None:
        """Compare two numpy arrays or numbers with a tolerance.

        Torch's kernels may round the last bit differently from numpy's.
        """
        if a.dtype != b.dtype or a.shape != b.shape:
            self.differ(where, f"array {a.dtype}{a.shape} became {b.dtype}{b.shape}")
        elif a.dtype.kind not in "biufc":
            if not np.array_equal(a, b):
                self.differ(where, f"{a!r} became {b!r}")
        elif not np.allclose(a, b, rtol=1e-6, atol=1e-7, equal_nan=True):
            self.differ(where, f"{a!r} became {b!r}")

    def storages(self, a: torch.Tensor, b: torch.Tensor, where: str) -> None:
        """Compare who shares memory with whom, and from where."""
        if a.layout is not torch.strided or not a.numel() or a.is_meta or hasattr(a, "__tensor_flatten__"):
            return
        x, y = a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr()
        self._alive += [a, b]
        known, back = self._storages.get(x), self._storages_back.get(y)
        if known is None and back is None:
            self._storages[x], self._storages_back[y] = y, x
        elif known != y or back != x:
            self.differ(
                where, "no longer shares memory" if known is not None else "shares memory that it did not share"
            )
        elif a.storage_offset() != b.storage_offset():
            self.differ(where, f"storage offset {a.storage_offset()} became {b.storage_offset()}")

    def elements(self, a: torch.Tensor, b: torch.Tensor, where: str) -> None:
        """Compare the elements, to the last bit unless tolerances were given."""
        if self.tolerances is None or not (a.dtype.is_floating_point or a.dtype.is_complex):
            same = (
                torch.equal(a.nan_to_num(nan=7.5e5), b.nan_to_num(nan=7.5e5))
                if a.dtype.is_floating_point
                else torch.equal(a, b)
            )
        else:
            rtol, atol = self.tolerances.get(a.dtype, (0.0, 0.0))
            same = torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
        if not same:
            worst = (a.to(torch.complex128) - b.to(torch.complex128)).abs().nan_to_num().max().item()
            self.differ(where, f"values differ by up to {worst:.3g}")
            if a.dtype.is_floating_point and self.tolerances is not None:
                self.unequal[where] = (a, b)


def tolerances(program: Program) -> Mapping[torch.dtype, tuple[float, float]]:
    """What a reordering backend may differ by, per dtype."""
    if program.tolerance is None:
        return TOLERANCES
    return {dtype: (max(r, program.tolerance), max(a, program.tolerance)) for dtype, (r, a) in TOLERANCES.items()}


@dataclass
class DoubleLoaded(Loaded):
    """A program whose module and arguments are in float64."""

    def arguments(self, index: int) -> Call:
        """Fresh arguments of one call, in float64."""
        made = super().arguments(index)
        args, kwargs = tree_map_only(torch.Tensor, _in_double, (tuple(made.args), dict(made.kwargs)))
        return Call(args, kwargs)


def _in_double(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dtype.is_floating_point or tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


class InDouble(TorchFunctionMode):
    """Widens the casts of a run in float64, and disables autocast.

    Tensors that a program makes itself keep their dtype, so that random numbers stay the same.
    """

    WIDENED = (torch.float32, torch.float16, torch.bfloat16)
    CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one function; its result is float64 where a cast would make it narrower."""
        kwargs = kwargs or {}
        if func in self.CASTS:
            func, kwargs = torch.Tensor.double, {}
        elif next(tensors_in(args), None) is not None:
            args, kwargs = tree_map_only(
                torch.dtype, lambda d: torch.float64 if d in self.WIDENED else d, (args, kwargs)
            )
        with torch.autocast("cpu", enabled=False):
            return func(*args, **kwargs)


class TensorCollector(Comparison):
    """Collects the second run's tensors by their place, whatever their dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, torch.Tensor] = {}

    def tensors(self, a: torch.Tensor, b: torch.Tensor, where: str) -> None:
        """Note a tensor and its gradient."""
        self.found[where] = b.detach()
        if a.is_leaf and b.is_leaf and a.grad is not None and b.grad is not None:
            self.tensors(a.grad, b.grad, f"{where}.grad")


def beyond_rounding(
    name: str, found: Comparison, plain: Observation, compiled: Observation, *, grad: bool, rounds: int = 1
) -> list[str]:
    """Return the differences of two runs, less rounding errors like eager's.

    The program runs once more in float64, as many ``rounds`` of its calls as were made until then, its casts and autocast too. A tensor may be ``ROUNDING_FACTOR`` times as far from its values as eager's.
    """
    found.observations(plain, compiled)
    if not found.unequal:
        return found.differences
    loaded = prepare(name, "float64")
    loaded = DoubleLoaded(loaded.program, loaded.target, loaded.module)
    for module in (loaded.target, *vars(loaded.module).values()):
        if isinstance(module, torch.nn.Module):
            module.double()
    exact = TensorCollector()
    try:
        with InDouble():
            for _ in range(rounds):
                seen = observe(loaded, loaded.target, grad=grad)
            exact.observations(plain, seen)
    except RuntimeError:  # without autocast, a product saves the tensor itself, which a later write changes
        excused = {where for where, pair in found.unequal.items() if is_near(*pair)}
    else:
        excused = {where for where, pair in found.unequal.items() if is_rounding_error(*pair, exact.found.get(where))}
    return [line for line in found.differences if line.partition(": ")[0] not in excused]


def is_near(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if no element differs by more than a share of the largest one."""
    if not torch.equal(a.isfinite(), b.isfinite()):
        return False
    first, second = (t.double().nan_to_num(posinf=0.0, neginf=0.0) for t in (a, b))
    return bool((first - second).abs().max() <= LARGEST_ROUNDING_ERROR * first.abs().max())


def is_rounding_error(a: torch.Tensor, b: torch.Tensor, exact: torch.Tensor | None) -> bool:
    """Return True if ``b`` is about as near to the exact values as ``a``, and these are near.

    Other random numbers, or another branch taken in float64, are no rounding errors of ``a``.
    """
    if exact is None or exact.dtype != torch.float64 or exact.shape != a.shape:
        return False
    if not all(torch.equal(t.isfinite(), exact.isfinite()) for t in (a, b)):
        return False
    exact = exact.nan_to_num(posinf=0.0, neginf=0.0)
    errors = [(t.double().nan_to_num(posinf=0.0, neginf=0.0) - exact).abs().max().item() for t in (a, b)]
    is_rounding = errors[0] <= LARGEST_ROUNDING_ERROR * exact.abs().max().item()
    return is_rounding and errors[1] <= ROUNDING_FACTOR * errors[0]


def differences(
    name: str, compile: Callable[[Any], Callable[..., Any]], *, exact: bool = True, grad: bool = True
) -> list[str]:
    """Run ``file.program`` plainly and through ``compile``; return one line per difference.

    The result is empty when they agree.
    """
    plain, compiled = prepare(name, "plain"), prepare(name, "compiled")
    expected = observe(plain, plain.target, grad=grad)
    actual = observe(compiled, compile(compiled.target), grad=grad)
    return Comparison(None if exact else tolerances(plain.program)).observations(expected, actual)
