"""Apply input mutations after the functional graph: contents, layouts, version counters."""

from __future__ import annotations

from typing import Any

import torch

from engine.aot.version_counters import set_version_counter
from engine.aot.wrappers.base import FunctionalCall, PreCompileResult
from engine.aot.wrappers.codegen import WrapperCode, offset_expr, sizes_expr, symbol_reads
from engine.ir.aot.aot_metadata import AotMetadata, InputAliasInfo, view_sizes
from engine.records.aot import WrapperAction

NAME = "input mutation"


def pre_compile(call: FunctionalCall) -> PreCompileResult[FunctionalCall]:
    """Return one action per mutation of an input."""
    return PreCompileResult(call, tuple(action for i in call.metadata.inputs for action in _describe_actions(i)))


def _describe_actions(i: InputAliasInfo) -> list[WrapperAction]:
    actions = []
    if i.new_layout is not None:
        why = "the functional graph reads it with its original layout"
        actions.append(WrapperAction(i.name, f"set to the sizes {sizes_expr(i.new_layout.sizes)}", why))
    if i.is_mutated:
        why = "the functional graph returns its new value instead of mutating it"
        actions.append(
            WrapperAction(
                i.name, "copied back without autograd" if i.mutation_hidden_from_autograd else "copied back", why
            )
        )
    if not _version_matches_eager(i):
        why = "version counters must equal eager's: saved tensors and views check them"
        bumps = f"increased by {i.version_bumps}" if i.version_bumps else "left as it was"
        actions.append(WrapperAction(i.name, f"version counter {bumps}", why))
    return actions


def _version_matches_eager(i: InputAliasInfo) -> bool:
    """Return True if the generated code bumps the version counter exactly as eager does."""
    return not i.has_version_counter or (i.version_bumps == i.is_mutated and i.new_layout is None)


def post_compile(change: PreCompileResult[FunctionalCall]) -> WrapperCode:
    """Return the code that mutates the inputs."""
    return mutate_inputs(change.call.metadata)


def mutate_inputs(plan: AotMetadata) -> WrapperCode:
    """Return code with ``copy_``, ``as_strided_`` and version updates for mutated inputs.

    The version counter is set only where the other two do not match eager, and then not increased before.
    """
    names: dict[str, Any] = {}
    before = [*symbol_reads(plan, view_sizes(i.new_layout for i in plan.inputs))]
    after: list[str] = []
    for n, i in enumerate(plan.inputs):
        if not _version_matches_eager(i):
            names["set_version"] = set_version_counter
            before.append(f"c{n} = i{n}._version")
        if i.is_mutated and not i.has_version_counter:
            copy = f"i{n}.copy_(r{i.result_index})"
            after += ["with no_grad():", f"    {copy}"] if i.mutation_hidden_from_autograd else [copy]
        if i.mutation_hidden_from_autograd:
            names["no_grad"] = torch.no_grad
    after += _copy_back_lines(plan)
    for n, i in enumerate(plan.inputs):
        if i.new_layout is not None:
            layout = f"{sizes_expr(i.new_layout.sizes)}, {sizes_expr(i.new_layout.strides)}"
            after.append(f"i{n}.as_strided_({layout}, {offset_expr(f'i{n}', i.new_layout.offset)})")
    if any(i.is_mutated and i.has_version_counter for i in plan.inputs):
        names |= {"copy_results": copy_results, "copy_without_grad": torch.no_grad()(copy_results)}
    if any(i.is_mutated and i.has_version_counter and _version_matches_eager(i) for i in plan.inputs):
        names["increment_version"] = torch.autograd.graph.increment_version
        after.append("if written: increment_version(written)")
    counted = sorted((i.version_bumps, n) for n, i in enumerate(plan.inputs) if not _version_matches_eager(i))
    if counted:
        tensors, counts = (f"i{n}, " for _, n in counted), (f"c{n} + {writes}, " for writes, n in counted)
        after.append(f"set_version(({''.join(tensors)}), ({''.join(counts)}))")
    # Regenerate the grad_fn now: after a layout change (``.data =``), the view would cover other elements of its base.
    after += [f"i{n}.grad_fn" for n, i in enumerate(plan.inputs) if i.regenerates_grad_fn]
    return WrapperCode(before=tuple(before), after=tuple(after), namespace=names)


def _copy_back_lines(plan: AotMetadata) -> list[str]:
    """Return code that copies new values into inputs.

    The code stores in ``written`` the inputs that kernels have written themselves.
    """
    counted = [(n, i) for n, i in enumerate(plan.inputs) if i.is_mutated and i.has_version_counter]
    lines: list[str] = []
    for is_hidden, copy in ((False, "copy_results"), (True, "copy_without_grad")):
        chosen = [(n, i) for n, i in counted if i.mutation_hidden_from_autograd is is_hidden]
        if pairs := [(f"i{n}", f"r{i.result_index}") for n, i in chosen]:
            inputs = "".join(f"i{n}, " for n, i in chosen if _version_matches_eager(i))
            are_written = " and ".join(f"{r} is {i}" for i, r in pairs)
            copied = f"{copy}({', '.join(f'({i}, {r})' for i, r in pairs)})"
            lines.append(f"written {'+=' if lines else '='} ({inputs}) if {are_written} else {copied}")
    return lines


def copy_results(*pairs: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Copy new values into inputs; return the inputs that kernels have written themselves."""
    for target, result in pairs:
        if result is not target:
            target.copy_(result)
    return tuple(target for target, result in pairs if result is target)
