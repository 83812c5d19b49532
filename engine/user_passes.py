"""Public API of graph passes: register a pass, or a pattern with its replacement."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import torch.fx

from engine import errors
from engine.cache.fallback_kinds import NotCached
from engine.cache.function_key import function_fingerprint
from engine.cache.serialize_values import serialize_value
from engine.ir.pass_set import PASS_STAGES, UserPass, active_passes, ordered
from engine.pattern_passes import PatternPass
from engine.records.bytecode import Span

GraphPassFunction = Callable[[torch.fx.GraphModule], torch.fx.GraphModule | None]

_numbers = itertools.count()


class RegisteredPass:
    """A registered pass, until ``remove()`` or the end of a ``with`` block.

    It is callable like its function.
    """

    def __init__(self, user_pass: UserPass, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._pass = user_pass
        self._function = function
        self._register()

    @property
    def is_registered(self) -> bool:
        """True until the pass is removed."""
        return self._pass in active_passes.passes

    def remove(self) -> None:
        """Remove the pass: calls no longer use functions that were compiled with it."""
        if self.is_registered:
            active_passes.change(lambda registered: tuple(p for p in registered if p is not self._pass))

    def _register(self) -> None:
        if not self.is_registered:
            _check_order((*active_passes.passes, self._pass), self._pass.stage)
            active_passes.change(lambda registered: (*registered, self._pass))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of the pass."""
        return self._function(*args, **kwargs)

    def __enter__(self) -> Self:
        self._register()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def register_pass(
    fn: GraphPassFunction | None = None,
    *,
    stage: str,
    before: str | None = None,
    after: str | None = None,
    version: str | int | None = None,
    verify: bool = False,
) -> Any:
    """Register a pass over the graphs that the engine compiles; also a decorator.

    The pass gets a copy of each graph as a ``torch.fx.GraphModule``. It changes the copy, or returns another
    graph. The inputs keep their names and order. After the pass, the shapes, dtypes, strides, devices and memory
    sharing of the results, and the mutations of inputs, are compared with those before. A pass that raises or
    alters one of these is undone, with a ``PassUndone`` warning that names the line at fault, and recorded. New
    nodes get fake values, and the source lines of the nodes that they replace.

    Functions compiled before, and entries on disk, are not used while another set of passes is registered.

    Args:
        fn: ``(graph_module) -> graph_module or None``.
        stage: "traced" (the traced graph: torch functions and methods), "aten" (the functional ATen graph;
            the joint graph of forward and backward if gradients are needed) or "decomposed" (each graph that is
            lowered to kernels).
        before: name of a pass of the stage that it precedes: one registered earlier, or for "decomposed" an
            engine's pass ("fuse_attention", "pad_matmul", "bool_to_bias_mask", "separate_conv_bias"). Default: it
            runs last.
        after: name of a pass of the stage that it follows ("decompose", too).
        version: identifies the pass in cache keys. Default: a hash of its code and constants. A pass whose
            code reads what cannot be hashed is compiled again at each registration and not cached on disk.
        verify: also compare values: on the call's inputs at "traced", on random ones at other stages.

    Returns:
        A ``RegisteredPass``: use it in ``with``, or call ``remove()``. Used as a decorator, the pass is
        registered until then.

    Raises:
        BadArgument: the stage or the named pass does not exist, or ``fn`` is not callable.
    """
    if fn is None:
        return functools.partial(register_pass, stage=stage, before=before, after=after, version=version, verify=verify)
    _check_stage(stage)
    if not callable(fn):
        raise errors.BadArgument("A pass is a function (graph_module) -> graph_module or None.")
    name = getattr(fn, "__name__", type(fn).__name__)
    key, not_hashable = _key_of((fn,), name, version)
    user_pass = UserPass(name, stage, fn, key, _span_of(fn), before, after, verify, not_hashable)
    return RegisteredPass(user_pass, fn)


def replace_pattern(
    pattern: Callable[..., Any],
    replacement: Callable[..., Any],
    example_inputs: Sequence[Any],
    *,
    stage: str = "aten",
    before: str | None = None,
    after: str | None = None,
    version: str | int | None = None,
    verify: bool = False,
) -> RegisteredPass:
    """Register a pass that replaces each match of one function by another.

    Both functions are traced and, for later stages than "traced", functionalized as the graph was: ``F.gelu(x + b)``
    finds ``aten.add`` and ``aten.gelu``. Where the operators match, both are traced again for the shapes found.
    A match is left alone if its nodes are written to, or write, in between, or if it is not connected to all
    parameters. Values of the match that others read stay.

    Args:
        pattern: function of tensors that is looked for.
        replacement: function of the same tensors with equal results.
        example_inputs: one tensor per parameter, of the rank and dtype to look for.
        stage: as for ``register_pass``.
        before: as for ``register_pass``.
        after: as for ``register_pass``.
        version: as for ``register_pass``.
        verify: as for ``register_pass``.

    Returns:
        The registered pass, as from ``register_pass``.

    Raises:
        BadArgument: a function cannot be traced as one graph, or does nothing; or as for ``register_pass``.
    """
    _check_stage(stage)
    if not all(hasattr(fn, "__code__") for fn in (pattern, replacement)):
        raise errors.BadArgument("A pattern and its replacement are Python functions: call an operator in one.")
    pattern_pass = PatternPass(pattern, replacement, tuple(example_inputs), stage)
    key, not_hashable = _key_of((pattern, replacement), pattern.__name__, version)
    user_pass = UserPass(
        pattern.__name__, stage, pattern_pass, key, _span_of(pattern), before, after, verify, not_hashable
    )
    return RegisteredPass(user_pass, pattern)


def _check_stage(stage: str) -> None:
    if stage not in PASS_STAGES:
        raise errors.BadArgument(f"There is no stage {stage!r} for passes: choose one of {', '.join(PASS_STAGES)}.")


def _check_order(passes: tuple[UserPass, ...], stage: str) -> None:
    try:
        ordered(tuple(p for p in passes if p.stage == stage), PASS_STAGES[stage])
    except LookupError as error:
        text = str(error)
        raise errors.BadArgument(f"{text[:1].upper()}{text[1:]}.") from None


def _span_of(fn: Any) -> Span:
    code = getattr(getattr(fn, "__func__", fn), "__code__", None) or type(fn).__call__.__code__
    return Span(code.co_filename, code.co_firstlineno)


def _serialize(value: Any) -> Any:
    """Return a value that a pass reads as JSON; torch's own operators by name."""
    is_operator = hasattr(value, "_schema") or hasattr(value, "overloads")
    if is_operator and str(value).startswith(("aten.", "prims.")):
        return {"operator": str(value)}
    return serialize_value(value)


def _key_of(functions: Sequence[Any], name: str, version: str | int | None) -> tuple[str, str]:
    """Return the key of some functions, and why results made with them must not be on disk."""
    if version is not None:
        return f"version {version!r}", ""
    try:
        parts = [function_fingerprint(fn, _serialize) for fn in functions]
    except (NotCached, AttributeError, TypeError) as error:
        not_hashable = f"the pass {name} has no version, and its code cannot be hashed: {error}"
        return f"registration {next(_numbers)}", not_hashable
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest(), ""
