"""FakeTensorMode for traced graphs, with eager's strides and correct view storage."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engine.graph.fake_tensors.eager_results import (
    FAKE_RESULTS,
    RESULT_RULES,
    FakeResults,
    ResultRule,
    arguments_by_name,
)
from engine.graph.fake_tensors.eager_stride_rules import StrideRule, eager_strides, stride_rule_for
from engine.graph.fake_tensors.placement_cache import patch_placement_caches, patched_classes
from engine.interrupts.weak_tables import WeakTable, WeakValueTable
from engine.ir.introspection.operator_facts import has_only_effect, memo_by_identity
from engine.torch_private.fake_tensors import BypassDispatchCache, FakeTensor, FakeTensorMode
from engine.torch_private.higher_order_ops import with_effects
from engine.torch_private.operators import OpOverload
from engine.torch_private.symbolic_shapes import ShapeEnv

MAX_CACHED_RESULTS = 20_000
"""Largest size of torch's cache of fake results, which has no limit, when tracing begins."""


@functools.cache
def _run_first_backward() -> None:
    """Run the process's first backward on a real tensor, for a CUDA build without a GPU.

    Autograd counts the devices in its first backward. If that backward were traced, autograd would also count the device
    of the fake tensors and start a thread for it. Forks of the process could then run no backward.
    """
    if torch.backends.cuda.is_built() and not torch.cuda.is_available():
        with torch.inference_mode(False), torch.enable_grad():
            torch.ones((), device="cpu", requires_grad=True).backward()


_CACHED_METHODS: tuple[Any, ...] = tuple(method for method in vars(ShapeEnv).values() if hasattr(method, "cache_clear"))


def clear_symbol_caches() -> None:
    """Free the ShapeEnvs that caches of their methods hold.

    Sources of symbols hold the globals of user functions.
    """
    for method in _CACHED_METHODS:
        method.cache_clear()


def interruptible_fake_mode(shape_env: ShapeEnv) -> FakeTensorMode:
    """Return a FakeTensorMode that loses no Ctrl-C when a tensor that it saw or made is freed."""
    mode = FakeTensorMode(shape_env=shape_env)
    converter: Any = mode.fake_tensor_converter.meta_converter
    converter.tensor_memo, converter.storage_memo = WeakValueTable(), WeakValueTable()
    converter.describer.lookup_tensor, converter.describer.lookup_storage = WeakTable(), WeakTable()
    return mode


def without_absent_generator(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Drop ``generator=None``: factories that are given one reject symbolic sizes."""
    is_absent = kwargs.get("generator", kwargs) is None
    return {name: value for name, value in kwargs.items() if name != "generator"} if is_absent else kwargs


def make_fake_mode(shape_env: ShapeEnv) -> FakeTensorMode:
    """Return a FakeTensorMode that excludes unmarked view operators from torch's cache.

    Some operators return views without a view tag (``prims.as_strided``). A cached result of them would have
    its own storage; torch decomposes views of empty tensors to such operators. Results have eager's strides.
    The class stays FakeTensorMode, because rules of higher-order operators are registered by class.
    """
    _run_first_backward()
    if not patched_classes and "torch.distributed.tensor" in sys.modules:
        patch_placement_caches()
    clear_symbol_caches()
    if len(FakeTensorMode.cache) > MAX_CACHED_RESULTS:  # each constant of each traced function is a new key
        FakeTensorMode.cache_clear()
    mode = interruptible_fake_mode(shape_env)
    # Since Python 3.13 a stack summary holds code objects, which the garbage collector does not look into: the compiled
    # code of a caller and the graph of its resume function would keep each other alive. torch reads it in one message.
    mode._stack_trace = traceback.StackSummary()
    validate, dispatch = mode._validate_cache_key, mode.dispatch

    def validate_views_too(func: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        if isinstance(func, OpOverload) and func.namespace == "prims" and _returns_view(func):
            raise BypassDispatchCache("a view that autograd does not track as a view")
        validate(func, args, kwargs)

    def dispatch_laid_out(
        func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # A fake tensor mode would run the operator now, although the compiled graph runs it too.
        only_has_effect, make, correct, rule = _rules_for(func)
        if only_has_effect:
            return None
        if func is with_effects and has_only_effect(args[1]):
            with mode:
                return torch.empty(0), None
        if make is not None:
            with mode:
                return make(arguments_by_name(func, args, kwargs or {}))
        results = dispatch(func, types, args, kwargs or {})
        if correct is not None and results is not NotImplemented:  # a subclass such as DTensor takes the call
            with mode:
                results = correct(arguments_by_name(func, args, kwargs or {}), results)
        if rule is None:
            return results

        def laid_out(result: Any) -> Any:
            if type(result) is not FakeTensor:
                return result
            strides = eager_strides(func, rule, args, kwargs or {}, result)
            if strides is None:
                return result
            with mode:
                if func.is_view:
                    return torch.as_strided(args[0], result.shape, strides, result.storage_offset())
                return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)

        return tuple(map(laid_out, results)) if isinstance(results, tuple) else laid_out(results)

    mode._validate_cache_key = validate_views_too  # type: ignore[method-assign]
    mode.dispatch = dispatch_laid_out  # type: ignore[method-assign]
    return mode


@memo_by_identity
def _rules_for(func: Any) -> tuple[bool, FakeResults | None, ResultRule | None, StrideRule | None]:
    """Return True if an operator has only an effect, and its rules for results and strides."""
    only_has_effect = has_only_effect(func)
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return only_has_effect, None, None, None
    return only_has_effect, FAKE_RESULTS.get(func._opname), RESULT_RULES.get(func._opname), stride_rule_for(func)


def _returns_view(func: OpOverload) -> bool:
    return any(r.alias_info is not None for r in func._schema.returns)
