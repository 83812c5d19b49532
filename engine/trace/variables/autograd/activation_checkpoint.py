"""``torch.utils.checkpoint``: inlines the function and marks its nodes for recompute."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.checkpoint

from engine.graph.effect_tokens import is_with_effects
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, Kwargs, NotPythonConstant, Variable, realize
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.partials import FunctoolsPartialVariable
from engine.trace.variables.higher_order.pytrees import map_leaves
from engine.trace.variables.higher_order.subgraph import tensor_values
from engine.trace.variables.torch_api.grad_and_autocast_contexts import GradModeVariable

_CHECKPOINT_KEYWORDS = ("use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop")
"""Keyword arguments of ``checkpoint`` itself, not of the function."""


@register_rule(torch.utils.checkpoint.checkpoint)
def _checkpoint(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    call_kwargs = {k: v for k, v in kwargs.items() if k not in _CHECKPOINT_KEYWORDS}
    fakes = [fake for v in (*args[1:], *call_kwargs.values()) if (fake := realize(tx, v).fake) is not None]
    if torch.is_grad_enabled() and any(fake.is_inference() for fake in fakes):
        raise Unsupported("checkpoint-side-effect", "a checkpoint saves its arguments, here an inference tensor")
    is_differentiated = torch.is_grad_enabled() and _is_reentrant(tx, kwargs)
    if is_differentiated and not any(fake.requires_grad for fake in fakes):
        without_grad = GradModeVariable(torch.no_grad, mode=False).call(tx, args[:1], {})
        return realize(tx, without_grad).call(tx, args[1:], call_kwargs)
    policy = _policy(tx, kwargs["context_fn"]) if "context_fn" in kwargs else None
    has_other_contexts = "context_fn" in kwargs and policy is None
    region = contextlib.nullcontext() if has_other_contexts else tx.graph.checkpoint_region(policy)
    with _check_no_side_effects(tx), region:
        result = realize(tx, args[0]).call(tx, args[1:], call_kwargs)
    if is_differentiated:
        _check_results_need_gradients(tx, result)
    return result


def _is_reentrant(tx: Tracer, kwargs: Kwargs) -> bool:
    """Return True for the variant that only differentiates its tensor arguments.

    It is an ``autograd.Function``: without such a tensor nothing in it needs a gradient.
    """
    chosen = realize(tx, kwargs["use_reentrant"]) if "use_reentrant" in kwargs else None
    return chosen is None or chosen.python_type() is type(None) or bool(chosen.is_truthy(tx))


def _check_results_need_gradients(tx: Tracer, result: Variable) -> None:
    """Check that each result of a reentrant checkpoint requires a gradient.

    Its ``autograd.Function`` makes all of them require one.

    Raises:
        Unsupported: the function detaches one.
    """
    parts: Any = realize(tx, result)
    fakes = [realize(tx, part).fake for part in (parts.items if parts.python_type() is tuple else [parts])]
    if any(f is not None and (f.is_floating_point() or f.is_complex()) and not f.requires_grad for f in fakes):
        text = "a reentrant checkpoint makes a result that its function detaches require a gradient"
        raise Unsupported("autograd-function", text)


@contextlib.contextmanager
def _check_no_side_effects(tx: Tracer) -> Iterator[None]:
    """Check that a checkpointed function has no side effects.

    If gradients are needed, eager runs the function twice, and each side effect occurs twice.

    Raises:
        Unsupported: the function has a side effect.
    """
    changes, nodes_before = tx.side_effects.external_mutation_count, set(tx.graph.graph.nodes)
    input_ids = {id(value) for value, _ in tx.inputs.input_tensors}
    versions = {node: _version(node) for node in nodes_before}
    yield
    added = [node for node in tx.graph.graph.nodes if node not in nodes_before]
    if not torch.is_grad_enabled() or not any(fake.requires_grad for fake in tensor_values(added)):
        return
    written = [node.name for node, version in versions.items() if _version(node) != version]
    for value, version in tx.inputs.input_tensors:
        if id(value) not in input_ids and not value.fake.is_inference() and value.fake._version != version:
            written.append(value.describe() if value.source is None else value.source.expr)
    written += [node.name for node in added if is_with_effects(node)]
    if tx.side_effects.external_mutation_count != changes or written:
        effect = f"writes to {written[0]}" if written else "changes Python objects outside of itself"
        raise Unsupported("checkpoint-side-effect", f"a checkpointed function {effect}, and the backward recomputes it")


def _version(node: torch.fx.Node) -> int:
    return sum(fake._version for fake in tensor_values([node]) if not fake.is_inference())


def _policy(tx: Tracer, value: Variable) -> Any:
    """Return the policy of a selective checkpoint, which says per operator what is saved.

    None for other contexts.
    """
    try:
        make = _real_object(tx, realize(tx, value))
    except NotPythonConstant:
        return None
    try:
        forward, _ = make()
    except Exception:  # user-defined contexts do not change the forward's values
        return None
    return getattr(forward, "policy_fn", None)


def _real_object(tx: Tracer, value: Variable) -> Any:
    """Return the Python object of a variable, also of a ``partial`` created in traced code.

    Raises:
        NotPythonConstant: it has none.
    """
    real = tx.objects.real_object(value)
    if real is not NotImplemented:
        return real
    if isinstance(value, FunctoolsPartialVariable):
        function, *args = (_real_object(tx, realize(tx, v)) for v in (value.function, *value.positional.items))
        keywords = {k: _real_object(tx, realize(tx, v)) for k, v in value.keyword_arguments.items()}
        return functools.partial(function, *args, **keywords)
    if value.python_type() not in (list, tuple):
        raise NotPythonConstant(value)
    return map_leaves(
        tx, value, lambda item: _real_object(tx, item), lambda item: item.python_type() not in (list, tuple)
    )
