"""Regenerate outputs that alias inputs or intermediates, so that they alias as in eager."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from engine.aot.version_counters import set_version_counter
from engine.aot.wrappers.base import FunctionalCall, PreCompileResult
from engine.aot.wrappers.codegen import WrapperCode, offset_expr, size_expr, sizes_expr, symbol_names, symbol_reads
from engine.ir.aot.aot_metadata import AotMetadata, OutputAliasInfo, ViewSpec, view_sizes
from engine.records.aot import WrapperAction
from engine.torch_private.autograd import CreationMeta, set_creation_meta
from engine.torch_private.operators import neg_view

NAME = "output aliasing"


def pre_compile(call: FunctionalCall) -> PreCompileResult[FunctionalCall]:
    """Return one action per output that is not simply a result of the graph."""
    plan = call.metadata
    return PreCompileResult(
        call, tuple(action for n, o in enumerate(plan.outputs) for action in _describe_actions(plan, n, o))
    )


def _describe_actions(plan: AotMetadata, position: int, output: OutputAliasInfo) -> tuple[WrapperAction, ...]:
    name = f"output {position}"
    match output.kind:
        case "input":
            return (
                WrapperAction(name, f"is {plan.inputs[output.index].name} itself", "eager returns the same object"),
            )
        case "alias of input":
            base = plan.inputs[output.index].name
            why = f"eager returns a view of {base}: a write to one must be visible in the other"
            return (WrapperAction(name, f"created again as a view of {base}", why),)
        case "alias of result":
            why = "eager returns a view: a write to one output must be visible in the other"
            return (WrapperAction(name, "created again as a view of an intermediate", why),)
        case "root" | "alias of root":
            why = "eager returns a tensor that shares this memory but is not a view, or a view of such a tensor"
            return (WrapperAction(name, f"created again over the memory of {_aliased_name(plan, output)}", why),)
        case "constant":
            return (WrapperAction(name, "returned as a constant", "it does not depend on any tensor"),)
        case "result":
            return ()


def _aliased_name(plan: AotMetadata, output: OutputAliasInfo) -> str:
    root = plan.detached_bases[output.index]
    return plan.inputs[root.index].name if root.kind == "alias of input" else "an intermediate"


def post_compile(change: PreCompileResult[FunctionalCall]) -> WrapperCode:
    """Return the code that regenerates the outputs."""
    return regenerate_outputs(change.call.metadata)


def regenerate_outputs(plan: AotMetadata) -> WrapperCode:
    """Return code that reads the sizes, then regenerates each output once.

    An output that is returned twice is the same object twice.
    """
    names: dict[str, Any] = {}
    lines: list[str] = []
    early: list[str] = []
    name_by_output: dict[int, str] = {}
    lines += [f"r{n} = r{n}.detach()" for n in sorted(plan.results_as_views)]
    readable = {name for name, *_ in plan.symbol_sources}
    known_strides = [(n, s) for n, s in plan.result_strides if readable.issuperset(symbol_names(s))]
    for n, strides in known_strides:
        names["laid_out"] = _with_strides
        lines.append(f"if r{n}.stride() != {sizes_expr(strides)}: r{n} = laid_out(r{n}, {sizes_expr(strides)})")
    for n, writes in plan.result_version_bumps:
        names["set_version"] = set_version_counter
        lines.append(f"set_version((r{n},), ({writes},))")
    for n, root in enumerate(plan.detached_bases):
        lines.append(f"t{n} = {_expression(root, names)}")
        if root.version_bumps:
            names["set_version"] = set_version_counter
            lines.append(f"set_version((t{n},), ({root.version_bumps},))")
    outputs = []
    for output in plan.outputs:
        if id(output) not in name_by_output:
            name_by_output[id(output)] = expression = _expression(output, names)
            if output.view is not None:
                name_by_output[id(output)] = f"o{len(name_by_output)}"
                (early if output.taken_before_mutation else lines).append(f"o{len(name_by_output)} = {expression}")
        outputs.append(name_by_output[id(output)])
    sizes = view_sizes(o.view for o in (*plan.outputs, *plan.detached_bases))
    read = symbol_reads(plan, (*sizes, *(s for _, strides in known_strides for s in strides)))
    return WrapperCode(
        before=(*read, *early),
        num_results=plan.num_results,
        after=tuple(lines),
        output_exprs=tuple(outputs),
        namespace=names,
    )


def _expression(output: OutputAliasInfo, names: dict[str, Any]) -> str:
    match output.kind:
        case "result":
            return f"r{output.index}"
        case "input":
            return f"i{output.index}"
        case "root":
            return f"t{output.index}"
        case "constant":
            name = f"constant_{len(names)}"
            names[name] = output.constant
            return name
        case "alias of input" | "alias of result" | "alias of root":
            assert output.view is not None
            return view_expr(f"{_LOCAL_PREFIX[output.kind]}{output.index}", output.view, names)


_LOCAL_PREFIX = {"alias of input": "i", "alias of result": "r", "alias of root": "t"}


def view_expr(base: str, view: ViewSpec, names: dict[str, Any]) -> str:
    """Return the expression for a view of ``base``; add the constants it needs to ``names``."""
    text = _view_geometry_expr(base, view, names)
    if view.is_multi_output:
        names["one_of_several"] = _mark_multi_output_view
        text = f"one_of_several({text})"
    if view.is_from_custom_function:
        names["mark_custom_function_view"] = _mark_custom_function_view
        text = f"mark_custom_function_view({text})"
    if view.creation_grad_mode:
        names[f"made_under_{view.creation_grad_mode}"] = _MARK_CREATION_GRAD_MODE[view.creation_grad_mode]
        text = f"made_under_{view.creation_grad_mode}({text})"
    if not view.made_without_grad:
        return text
    names["unseen"] = torch.no_grad()(_call_view)
    return f"unseen(lambda: {text})"


def _creation_meta_setter(meta: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def mark(view: torch.Tensor) -> torch.Tensor:
        set_creation_meta(view, meta)
        return view

    return mark


_CreationMeta: Any = CreationMeta


_mark_multi_output_view = _creation_meta_setter(_CreationMeta.MULTI_OUTPUT_NODE)


_mark_custom_function_view = _creation_meta_setter(_CreationMeta.IN_CUSTOM_FUNCTION)


_MARK_CREATION_GRAD_MODE = {
    "no_grad": _creation_meta_setter(_CreationMeta.NO_GRAD_MODE),
    "enable_grad": _creation_meta_setter(_CreationMeta.DEFAULT),
}


def _call_view(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    return make()


def _view_geometry_expr(base: str, view: ViewSpec, names: dict[str, Any]) -> str:
    if view.detach_kind:  # detach first: torch rejects a view of a view whose grad_fn is invalid
        base = f"{base}.detach()"
    if view.is_contiguous_view:
        # A tuple of sizes takes torch half a call longer to parse.
        text = f"{base}.view({', '.join(map(size_expr, view.sizes)) or '()'})"
    else:
        if view.dtype is not None:
            base = _dtype_view_expr(base, view, view.dtype, names)
        where = "" if size_expr(view.offset) == "0" else f", {offset_expr(base, view.offset)}"
        text = f"as_strided({base}, {sizes_expr(view.sizes)}, {sizes_expr(view.strides)}{where})"
    for flip in view.conj_neg_bits:
        names[f"flip_{flip}"] = {"conj": torch.conj, "neg": neg_view}[flip]
        text = f"flip_{flip}({text})"
    match view.detach_kind:
        case "":
            return text
        case "detach":
            return f"{text}.detach()"
        case "data":
            return f"{text}.data"


def _dtype_view_expr(base: str, view: ViewSpec, dtype: torch.dtype, names: dict[str, Any]) -> str:
    if view.dtype_view_numel is None:
        names[f"dtype_{len(names)}"] = dtype
        return f"{base}.view(dtype_{len(names) - 1})"
    if view.detach_kind:
        names[f"retype_{len(names)}"] = functools.partial(_reinterpret_flat, dtype, view.dtype_view_numel)
    else:
        names[f"retype_{len(names)}"] = functools.partial(
            _as_complex if dtype.is_complex else _as_real, view.dtype_view_numel
        )
    return f"retype_{len(names) - 1}({base})"


def _reinterpret_flat(dtype: torch.dtype, reach: int, base: torch.Tensor) -> torch.Tensor:
    per = max(dtype.itemsize // base.element_size(), 1)
    return base.as_strided((reach // per * per,), (1,)).view(dtype)


def _as_real(reach: int, base: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(base.as_strided((reach,), (1,)))


def _as_complex(reach: int, base: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(base.as_strided((reach // 2, 2), (2, 1)))


def _with_strides(result: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Return a result with eager's strides, for which its views were computed.

    An operator, above all a custom one, may return other strides than its fake implementation. An in-place operator
    preserves strides in dimensions of size 1, its functional form may not: only the strides are then set.
    """
    if all(n < 2 or a == b for n, a, b in zip(result.shape, result.stride(), strides, strict=True)):
        version = 0 if result.is_inference() else result._version
        with torch.inference_mode(result.is_inference()), torch.no_grad():
            result.as_strided_(result.shape, strides)
        if not result.is_inference():
            set_version_counter((result,), (version,))
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device).copy_(result)
