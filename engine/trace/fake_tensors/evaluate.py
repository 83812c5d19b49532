"""Run an operator over fake tensors and roll back what a failure changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from engine.ir.introspection.unbacked_symbols import has_unbacked_symbols
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.symbols.unbacked_symints import data_dependent_break

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer


_DATA_DEPENDENT = (DataDependentOutputException, GuardOnDataDependentSymNode)


def evaluate_on_fakes(
    tx: Tracer, op: str, target: Any, args: list[Any], kwargs: dict[str, Any], run: Callable[..., Any] | None = None
) -> Any:
    """The operation over fake tensors; see ``emit`` for what it raises."""
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    try:
        with tx.fake_mode:
            if run is None:
                run, args = (getattr(args[0], target), args[1:]) if op == "call_method" else (target, args)
            by_python = bool(tx.shape_env.var_to_range)
            try:
                return call_on_fakes(run, args, kwargs, by_python=by_python)
            except _DATA_DEPENDENT:
                if by_python:
                    raise
                # Composites in C++ look at values where Python forms need not, and do not see a fake under torch.func's wrappers.
                return call_on_fakes(run, args, kwargs, by_python=True)
    except _DATA_DEPENDENT as error:
        condition = getattr(error, "cond", None)
        raise data_dependent_break(tx, condition, "data-dependent", f"{name} needs the value of a tensor") from error
    except DynamicOutputShapeException as error:
        raise Unsupported("dynamic-output", f"the size of the result of {name} depends on values") from error
    except UnsupportedOperatorException as error:
        raise Unsupported("unsupported-operation", f"{name} cannot be evaluated without real tensors") from error
    except NotImplementedError as error:
        raise Unsupported(
            "unsupported-operation", f"{name} cannot be evaluated without real tensors: {_first_line(error)}"
        ) from error
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
    ) as error:
        if has_unbacked_symbols((args, kwargs)):
            raise Unsupported("data-dependent", f"{name} needs to know a size: {_first_line(error)}") from error
        raise SkipFrame("raises", f"{name} raises {type(error).__name__}: {_first_line(error)}") from error


_MAY_RETURN_INPUT = frozenset(("dropout", "dropout_"))
"""Operators that may give back their operand, of which the Python form makes a copy; that in C++ keeps symbols."""


def call_on_fakes(run: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *, by_python: bool) -> Any:
    """What ``run`` gives; by torch's Python forms of composites where that is asked, as for symbols: those in C++ make plain numbers of them, or fail."""
    by_python = by_python and getattr(run, "__name__", "") not in _MAY_RETURN_INPUT
    with enable_python_dispatcher() if by_python else contextlib.nullcontext():
        return run(*args, **kwargs)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else ""
