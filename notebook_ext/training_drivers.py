"""Detects functions that run as Python: they drive training or build modules.

A function drives training if it calls ``backward()`` or ``step()`` of an optimizer.
"""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from engine.bytecode.intercept_calls import intercept_calls
from engine.records.runtime import SkippedRecord

ATTRIBUTE_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
NAME_READS = frozenset(
    "LOAD_NAME LOAD_GLOBAL LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_BORROW LOAD_DEREF LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF "
    "LOAD_FROM_DICT_OR_GLOBALS LOAD_FAST_LOAD_FAST LOAD_FAST_BORROW_LOAD_FAST_BORROW STORE_FAST_LOAD_FAST".split()
)
"""Instructions that end with the read of a name; a pair of names is the argument of some."""
GLOBAL_READS = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"})
OPTIMIZER_NAME_HINTS = ("opt", "sched", "scaler")
"""Parts of names that mark an optimizer if the object cannot be looked up yet."""


IsNotebook = Callable[[FunctionType], bool]


class TrainingCalls:
    """Calls of losses, clipping and optimizers by a cell: they run as Python."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._losses: dict[str, None] = {}
        self._clips: dict[str, None] = {}
        self._steps: dict[str, str] = {}
        """Name in the advice by name of the step; empty if it cannot be compiled."""
        self._has_backward = False

    def note_function(self, function: FunctionType) -> None:
        """Note a loss of ``F``, gradient clipping, or a ``step`` that a scheduler wraps."""
        if function.__module__ == F.__name__ and "reduction" in inspect.signature(function).parameters:
            self._losses[f"F.{function.__name__}"] = None
        elif function.__module__ == clip_grad_norm_.__module__:
            self._clips[function.__name__] = None
        elif hasattr(function, "_torchdynamo_orig_callable"):
            return  # the user compiled it
        elif function.__name__ == "step" and function.__module__.startswith("torch.optim."):
            self._note_step(function, "optimizer")  # the wrapped function names only a base class

    def note_method(self, method: MethodType) -> None:
        """Note a called method if it is a ``backward`` or a ``step``."""
        name, owner = getattr(method, "__name__", ""), method.__self__
        self._has_backward |= name == "backward" and isinstance(owner, torch.Tensor)
        if name == "step" and isinstance(owner, Optimizer):
            self._note_step(method, type(owner).__name__)

    def _note_step(self, step: Callable[..., Any], otherwise: str) -> None:
        """Note a step under the notebook's name of its optimizer, if it has one."""
        owner = getattr(step, "__self__", None)
        names = (n for n, v in self._namespace.items() if isinstance(v, Optimizer) and n[0] != "_" and step == v.step)
        name = next(names, "")
        is_compilable = not isinstance(owner, LBFGS)  # which calls a closure
        self._steps[f"{name or otherwise}.step"] = f"{name or 'optimizer'}.step" if is_compilable else ""

    def record(self, compiler: str) -> SkippedRecord | None:
        """Return what ran as Python, and how to compile it; None if the cell does not train."""
        losses, clips = (list(names) if self._has_backward else [] for names in (self._losses, self._clips))
        *names, last = (*losses, *clips, *self._steps) or ("",)
        if not last:
            return None
        loss = (
            "Compute the loss in a function that calls the model but not backward(): both are then one graph."
            if losses
            else ""
        )
        compilable = next(filter(None, self._steps.values()), "")
        step = (
            f"Call {' and '.join(clips)} and {compilable}() in one function, compile it once with {compiler}.compile(), and call the compiled function instead."
            if clips
            else f"Write compiled_step = {compiler}.compile({compilable}) once, and call compiled_step() instead of {compilable}()."
        )
        hint = f"{loss} {step if compilable else ''}".strip()
        name = f"{', '.join(names)} and {last}" if names else last
        reason = "library code called from Python; a cell compiles the notebook's functions and modules"
        return SkippedRecord(name, reason, hint, drives_training=True)


def driver_reason(
    function: FunctionType, is_notebook: IsNotebook, owner: Any = None, *, is_chosen: bool = False
) -> str:
    """Return why a function drives training ("it calls loss.backward()"), else "".

    A function that calls a driver is a driver. So the check follows notebook functions that the function
    names, and methods that it calls on its own object, ``owner``. A function that the user chose by name may call
    ``step()`` of an optimizer: it is compiled with it.
    """
    return _find_driver_reason(function, is_notebook, owner, set(), is_chosen=is_chosen)


def _find_driver_reason(
    function: FunctionType, is_notebook: IsNotebook, owner: Any, visited: set[CodeType], *, is_chosen: bool
) -> str:
    code = function.__code__
    if code in visited:
        return ""
    visited.add(code)
    for part in nested_codes(code):
        for base, attribute in attribute_reads(part):
            if attribute == "backward":
                return f"it calls {base}.backward()" if base else "it calls backward()"
            if attribute == "step" and not is_chosen and _is_optimizer(base, function.__globals__):
                return f"it calls {base}.step()"
    for name, named in _named_functions(function, owner):
        inner = getattr(named, "__wrapped__", named)
        if isinstance(inner, FunctionType) and inner is not function and is_notebook(inner):
            reason = _find_driver_reason(inner, is_notebook, owner, visited, is_chosen=is_chosen)
            if reason:
                return f"it calls {name}, and {reason.replace('it calls', 'that calls', 1)}"
    return ""


def builds_module(function: FunctionType) -> bool:
    """Return True if a function returns a new module, as in ``return nn.Sequential(...)``.

    Compiled, it would run as traced and recompile for each width. Each of its returns must be such a module.
    """
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, SyntaxError, TypeError, ValueError):
        return False
    assigned = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    results = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    return bool(results) and all(_creates_module(r, assigned, function.__globals__) for r in results)


def _creates_module(value: ast.expr | None, assigned: Mapping[str, ast.expr], namespace: Mapping[str, Any]) -> bool:
    if isinstance(value, ast.Name):
        value = assigned.get(value.id)
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and value.func.attr in ("eval", "train", "to"):  # return the module
        return _creates_module(value.func.value, assigned, namespace)
    head, *attributes = ast.unparse(value.func).split(".")
    called = namespace.get(head)
    for name in attributes:
        called = getattr(called, name, None)
    return isinstance(called, type) and issubclass(called, torch.nn.Module)


def _named_functions(function: FunctionType, owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the functions that a function names: globals, and methods of its own object."""
    first = function.__code__.co_varnames[:1]
    for part in nested_codes(function.__code__):
        reads = (i.argval for i in dis.get_instructions(part) if i.opname in GLOBAL_READS)
        for name in dict.fromkeys(reads):
            if name in function.__globals__:
                yield name, function.__globals__[name]
        for base, attribute in attribute_reads(part):
            if owner is not None and (base,) == first:
                yield f"{base}.{attribute}", inspect.getattr_static(type(owner), attribute, None)


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all code objects nested in it (closures, comprehensions)."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_codes(constant)


def attribute_reads(code: CodeType) -> Iterator[tuple[str, str]]:
    """Yield each attribute read with the dotted name of its owner.

    The owner is "" if it is the result of an expression.
    """
    owner = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname in NAME_READS:
            names = instruction.argval
            owner = str(names[-1] if isinstance(names, tuple) else names)
        elif instruction.opname in ATTRIBUTE_READS:
            yield owner, str(instruction.argval)
            owner = f"{owner}.{instruction.argval}" if owner else ""
        elif instruction.opname not in {"CACHE", "PUSH_NULL", "EXTENDED_ARG"}:
            owner = ""


def _is_optimizer(owner: str, namespace: Mapping[str, Any]) -> bool:
    head, _, attribute = owner.partition(".")
    value = namespace.get(head)
    if value is not None and not attribute:
        return isinstance(value, (Optimizer, LRScheduler))
    last = owner.rpartition(".")[2].lower()
    return any(hint in last for hint in OPTIMIZER_NAME_HINTS)


def with_intercepted_calls(function: FunctionType, callee: Callable[[Any], Any]) -> FunctionType:
    """Return a copy of a driver in which ``callee`` chooses the target of each call.

    Calls in its comprehensions, and in its closures that call ``backward()``, are rewritten too.
    """
    copy = FunctionType(
        _intercept_code(function.__code__, callee),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    return copy


def _intercept_code(code: CodeType, callee: Callable[[Any], Any]) -> CodeType:
    code = intercept_calls(code, callee)
    constants = tuple(
        _intercept_code(c, callee) if isinstance(c, CodeType) and _is_driver_code(c) else c for c in code.co_consts
    )
    return code.replace(co_consts=constants)


def _is_driver_code(code: CodeType) -> bool:
    """Return True for nested code that drives training.

    This holds for comprehensions and for closures that call ``backward()``. Other closures may be roots.
    """
    return is_comprehension(code) or any(
        a == "backward" for part in nested_codes(code) for _, a in attribute_reads(part)
    )


def is_comprehension(code: CodeType) -> bool:
    """Return True if the code is a comprehension or a generator expression."""
    return code.co_name.startswith("<") and code.co_name not in {"<lambda>", "<module>"}


def has_intercepted_calls(function: FunctionType, callee: Callable[[Any], Any]) -> bool:
    """Return True if ``callee`` already chooses the targets of a function's calls."""
    return any(c is callee or (isinstance(c, MethodType) and c == callee) for c in function.__code__.co_consts)
