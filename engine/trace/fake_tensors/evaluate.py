"""Run an operator over fake tensors and roll back what a failure changed."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any, cast

import torch

from engine.errors import error_line
from engine.graph.device_dependent_composites_autograd import is_padded_rnn_call
from engine.graph.fake_tensors.eager_error import eager_error_text
from engine.graph.fake_tensors.fake_mode import without_absent_generator
from engine.graph.fake_tensors.placement_cache import forget_symbolic_placements, symbolic_calls
from engine.graph.recurrent_layers import run_recurrent
from engine.ir.introspection.symbols import has_unbacked_symbols
from engine.torch_private.dispatch import PreserveDispatchKeyGuard, enable_python_dispatcher
from engine.torch_private.fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from engine.torch_private.operators import OPDEFS
from engine.torch_private.symbolic_shapes import GuardOnDataDependentSymNode
from engine.trace.annotations import Tracer
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.symbols.unbacked_symints import operator_break

_TEMPLATE = (lambda function, args, kwargs: function(*args, **kwargs)).__code__  # On one line: its first.


def call_at_line(
    file: str, line: int, namespace: dict[str, Any], function: Callable[..., Any], args: Sequence[Any], kwargs: Any
) -> Any:
    """Return ``function(*args, **kwargs)``, called from a frame of that line and namespace.

    Python and torch attribute a warning to the calling frame, and count it as seen in its namespace.
    """
    return FunctionType(_code_at(file, line), namespace)(function, args, kwargs)


@functools.lru_cache(maxsize=1024)
def _code_at(file: str, line: int) -> CodeType:
    return _TEMPLATE.replace(co_filename=file, co_firstlineno=line)


_DATA_DEPENDENT = (DataDependentOutputException, GuardOnDataDependentSymNode)


def evaluate_on_fakes(
    tx: Tracer, op: str, target: Any, args: list[Any], kwargs: dict[str, Any], run: Callable[..., Any] | None = None
) -> Any:
    """Run the operation on fake tensors; it raises the errors of ``emit_node``."""
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    operands, is_own, kwargs = args, run is not None, without_absent_generator(kwargs)
    try:
        with tx.symbols.fake_mode:
            if run is None:
                run, args = (getattr(args[0], target), args[1:]) if op == "call_method" else (target, args)
            by_python = bool(tx.symbols.shape_env.var_to_range)
            try:
                return call_on_fakes(run, args, kwargs, by_python=by_python, tx=tx)
            except _DATA_DEPENDENT:
                if by_python:
                    raise
                # C++ composites may read values that the Python decompositions do not need.
                # They also miss a fake tensor inside a functorch wrapper.
                return call_on_fakes(run, args, kwargs, by_python=True, tx=tx)
    except _DATA_DEPENDENT as error:
        raise operator_break(tx, name, getattr(error, "cond", None)) from error
    except DynamicOutputShapeException as error:
        raise Unsupported("dynamic-output", f"the output size of {name} depends on data") from error
    except UnsupportedOperatorException as error:
        raise Unsupported("no-fake-implementation", f"{name} does not run on fake tensors") from error
    except NotImplementedError as error:
        raise Unsupported(
            "no-fake-implementation", f"{name} does not run on fake tensors: {error_line(error)}"
        ) from error
    except RecursionError:
        raise  # the stack of the tracer is exhausted, not that of the user
    except (
        RuntimeError,
        TypeError,
        ValueError,
        IndexError,
        KeyError,
        AttributeError,
        AssertionError,
        ZeroDivisionError,
        OverflowError,
        Warning,  # a filter turns it into an error
    ) as error:
        if has_unbacked_symbols((args, kwargs)):
            raise Unsupported("unbacked-size", f"{name} needs a concrete size: {error_line(error)}") from error
        if _lacks_fake_implementation(target):
            raise Unsupported("no-fake-implementation", f"{name} has no fake implementation") from error
        if any(text in str(error) for text in _ERRORS_OF_FAKES):
            what = f"{name} does not run on fake tensors: {error_line(error)}"
            raise Unsupported("no-fake-implementation", what) from error
        text = str(error) if is_own else eager_error_text(op, target, operands, kwargs, error)
        line = text.strip().partition("\n")[0]
        raise SkipFrame("raises", f"{name} raises {type(error).__name__}: {line}") from error


_ERRORS_OF_FAKES = ("data is not allocated", "INTERNAL ASSERT FAILED")
"""Parts of errors of C++ code that reads values, or expects another kind of tensor."""


def _lacks_fake_implementation(target: Any) -> bool:
    """Return True for a ``torch.library.custom_op`` without ``register_fake``."""
    operator = OPDEFS.get(getattr(target, "_name", ""))
    return operator is not None and operator._abstract_fn is None


_MAY_RETURN_INPUT = frozenset(("dropout", "dropout_"))
"""Operators that may return their input.

The Python decomposition returns a copy; the C++ one supports symbols.
"""


_RECURRENT = frozenset((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu))


def call_on_fakes(
    run: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *, by_python: bool, tx: Tracer | None = None
) -> Any:
    """Call ``run`` on fake tensors, with ``tx`` as the user's line that it traces.

    With ``by_python``, composite operators run through torch's Python decompositions. Symbols need this: C++
    composites specialize them or fail.
    """
    by_python = by_python and getattr(run, "__name__", "") not in _MAY_RETURN_INPUT
    if run in _RECURRENT and is_padded_rnn_call(*args, **kwargs):
        run = functools.partial(run_recurrent, run.__name__)
    try:
        with enable_python_dispatcher() if by_python else contextlib.nullcontext():
            if tx is None or not tx.call_stack.frames:
                return run(*args, **kwargs)
            frame = tx.call_stack.frames[-1]
            namespace = cast("dict[str, Any]", frame.globals.values)
            return call_at_line(frame.code.co_filename, frame.line, namespace, run, args, kwargs)
    except Exception as error:
        with PreserveDispatchKeyGuard():  # locals of torch's frames may set dispatch keys when they are freed
            traceback.clear_frames(error.__traceback__)
        raise
    finally:
        if symbolic_calls:
            forget_symbolic_placements()
