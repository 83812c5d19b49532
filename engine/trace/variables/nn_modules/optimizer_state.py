"""Creation of an optimizer's state before its first traced step.

``torch.optim`` creates moments and step counters in the first ``step``. If that were traced, the second step, which
finds the state, would be another graph and recompile. As in Dynamo, the state is created while the step is traced.

The creation is traced all the same if the optimizer of the frame's first cache entry is gone: each call has its own.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import weakref
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from engine.interrupts.weak_tables import WeakTable
from engine.trace.annotations import Tracer, UserFunctionVariable
from engine.trace.inline import inline_call
from engine.trace.variables.base import Args, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import RULES_BY_CODE
from engine.trace.variables.nn_modules.optimizer_inlining import is_optimizer_module, unwrap_disabled_optimizer_function

_FIRST_OPTIMIZERS: WeakTable[CodeType, weakref.ref[torch.optim.Optimizer]] = WeakTable()
"""The optimizer whose state was created for the first cache entry of a code."""


def _init_group_functions() -> Iterator[FunctionType]:
    """Return the methods of torch's optimizers that create the state of one parameter group."""
    for cls in torch.optim.Optimizer.__subclasses__():
        if is_optimizer_module(cls.__module__) and "_init_group" in vars(cls):
            method = vars(cls)["_init_group"]
            # Importing torch._dynamo wraps the methods.
            yield unwrap_disabled_optimizer_function(method) or method


def _is_untouched(tx: Tracer, optimizer: torch.optim.Optimizer) -> bool:
    """Return True if traced code did not read the state, and mutated nothing it depends on."""
    variables_by_id, mutated = tx.objects.variables_by_id, tx.side_effects.mutated_variables
    if id(optimizer.state) in variables_by_id:
        return False
    deciding: list[Any] = [optimizer, vars(optimizer), optimizer.param_groups]
    for group in optimizer.param_groups:
        deciding += [group, group["params"], *group["params"]]
    return not any(id(o) in variables_by_id and id(variables_by_id[id(o)][0]) in mutated for o in deciding)


def _outlives_call(tx: Tracer, optimizer: torch.optim.Optimizer) -> bool:
    """Return False if the optimizer of the frame's first cache entry is gone."""
    code, weak = tx.request.function.__code__, weakref.ref(optimizer)
    if tx.request.entry_index == 0:
        _FIRST_OPTIMIZERS[code] = weak
    first = _FIRST_OPTIMIZERS.setdefault(code, weak)
    if first() is not None and first() is not optimizer:
        gc.collect()  # an optimizer is part of a cycle of references
    return first() is not None


def _call_init_group(tx: Tracer, function: UserFunctionVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Create the state of all groups for real, then inline the method, which finds it."""
    optimizer = realize(tx, args[0]).as_python_object() if args else None
    init_group = function.real_object
    if optimizer is not None and _is_untouched(tx, optimizer) and _outlives_call(tx, optimizer):
        outputs = len(inspect.signature(init_group).parameters) - 2
        with torch.no_grad(), contextlib.suppress(Exception):  # an error is raised again by the inlined method
            for group in optimizer.param_groups:
                init_group(optimizer, group, *([] for _ in range(outputs)))
    return inline_call(tx, function, args, kwargs)


for _function in _init_group_functions():
    RULES_BY_CODE[id(_function.__code__)] = (_function.__code__, _call_init_group)
