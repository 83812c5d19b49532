"""Run functions through the tracer alone.

Slots are filled by hand, graphs run as traced, and resume functions are traced when called.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import types
from collections.abc import Callable
from typing import Any

import torch

from engine.ir.compiler_protocol import CompileRequest
from engine.ir.sources.base import FrameScope
from engine.ir.traced_frame import CALLEE_SLOT, ConstSlot, TracedFrame
from engine.options import Options
from engine.trace.driver import trace_frame

DEFAULT = Options()


class Traced:
    """Call a function by tracing it at each call.

    ``frames`` holds what was traced, the root frame first.
    """

    def __init__(self, function: types.FunctionType, options: Options = DEFAULT, *, steps: bool = False) -> None:
        self.function = function
        self.options = options
        self.steps = steps
        self.frames: list[TracedFrame] = []

    @property
    def breaks(self) -> list[str]:
        """Kinds of all breaks and skips met, in order."""
        return [b.kind for f in self.frames for b in f.record.breaks]

    @property
    def graphs(self) -> int:
        """How many graphs were made."""
        return sum(f.graph is not None for f in self.frames)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self.function)(*args, **kwargs)

    def run(self, function: types.FunctionType) -> Callable[..., Any]:
        """``function`` traced at each call."""

        def call(*args: Any, **kwargs: Any) -> Any:
            request = request_for(function, args, kwargs)
            traced = trace_frame(request, self.options, steps=self.steps)
            self.frames.append(traced)
            if traced.code is None:
                return function(*args, **kwargs)
            assert all(
                guard.test(guard.source.resolve(scope_of(request))) for guard in traced.guards if is_plain(guard)
            )
            return self.link(function, traced)(*args, **kwargs)

        return call

    def link(self, function: types.FunctionType, traced: TracedFrame) -> Callable[..., Any]:
        """The traced code as a function."""
        assert traced.code is not None
        objects: dict[ConstSlot, Any] = {CALLEE_SLOT: lambda obj: obj, **traced.slot_values}
        if traced.graph is not None:
            objects[traced.graph.slot] = types.MethodType(type(traced.graph.graph).forward, traced.graph.graph)
        for resume in traced.resume_functions:
            objects[resume.slot] = (
                self.run if resume.makes_closure else self.run(types.FunctionType(resume.code, resume.globals))
            )
        consts = tuple(objects[c] if isinstance(c, ConstSlot) else c for c in traced.code.co_consts)
        code = traced.code.replace(co_consts=consts)
        made = types.FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        made.__kwdefaults__ = function.__kwdefaults__
        return made


def is_plain(guard: Any) -> bool:
    """Whether a guard can be tested on its own value alone."""
    return type(guard).__name__ in ("TypeIs", "IsObject", "Equals", "LengthIs", "CodeIs")


def scope_of(request: CompileRequest) -> FrameScope:
    """Where guards' origins read from."""
    cells = dict(zip(request.function.__code__.co_freevars, request.function.__closure__ or (), strict=True))
    return FrameScope(request.arguments, cells)


def request_for(function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CompileRequest:
    """The request that a dispatcher would make for this call."""
    code = function.__code__
    bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    bound.apply_defaults()
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    arguments = {name: bound.arguments[name] for name in code.co_varnames[:count]}
    return CompileRequest(function, arguments, "0", 0, "first call")


def call_outcome(run: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """Result or exception, printed text, and the arguments afterwards."""
    printed = io.StringIO()
    torch.manual_seed(0)
    seen: dict[str, Any] = {"args": args}
    with contextlib.redirect_stdout(printed):
        try:
            seen["result"] = run(*args)
        except Exception as error:  # the user's own
            seen["error"] = (type(error).__name__, str(error))
    seen["printed"] = printed.getvalue()
    seen["grad"] = torch.is_grad_enabled()
    return seen


def equal_outcomes(a: Any, b: Any) -> bool:
    """Equal in type, value, layout and structure."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        facts = [(t.shape, t.stride(), t.dtype, t.requires_grad) for t in (a, b)]
        return facts[0] == facts[1] and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal_outcomes, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal_outcomes(a[k], b[k]) for k in a)
    if isinstance(a, torch.nn.Module):
        return equal_outcomes(a.state_dict(), b.state_dict())
    if hasattr(a, "__dict__") and not callable(a):
        return equal_outcomes(vars(a), vars(b))
    return bool(a == b) or callable(a)


def compare_with_eager(function: Any, *args: Any) -> Traced:
    """Run a function or a module's forward plainly and traced; fail on any difference."""
    forward: Any = type(function).forward if isinstance(function, torch.nn.Module) else function
    first = (function,) if isinstance(function, torch.nn.Module) else ()
    traced = Traced(forward)
    plain_args, traced_args = copy.deepcopy((*first, *args)), copy.deepcopy((*first, *args))
    expected, actual = call_outcome(forward, plain_args), call_outcome(traced, traced_args)
    assert equal_outcomes(expected, actual), f"expected {expected}\ngot {actual}"
    assert "internal" not in traced.breaks, [f.record.breaks for f in traced.frames]
    return traced
