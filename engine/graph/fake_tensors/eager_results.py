"""Rules for results where fake tensors differ from eager in more than strides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from engine.graph.fake_tensors.output_strides import UnknownStrides, empty_like_strides, sizes_equal
from engine.torch_private.symbolic_shapes import guard_or_false, statically_known_true

ResultRule = Callable[[Mapping[str, Any], Any], Any]
"""Corrects the fake results of a call, given its arguments by name."""


FakeResults = Callable[[Mapping[str, Any]], Any]
"""Makes the fake results of a call, given its arguments by name."""


def _attention_without_weights(arguments: Mapping[str, Any], result: Any) -> tuple[Any, ...]:
    """Return None for the weights if they are not needed."""
    return result if arguments.get("need_weights", True) or not arguments["query"].numel() else (result[0], None)


def _int64_indices(arguments: Mapping[str, Any], result: Any) -> tuple[Any, ...]:
    """Return indices and counts as int64; for an empty input, fakes have the input's dtype."""
    values, *others = result
    return (values, *(t if t.dtype == torch.int64 else torch.empty_like(t, dtype=torch.int64) for t in others))


def _counts_of_weights(arguments: Mapping[str, Any], result: Any) -> Any:
    """Return sums of weights as float32 or float64, as in eager.

    Before torch 2.13 the fake result is int64.
    """
    weights = arguments.get("weights")
    if weights is None:
        return result
    dtype = torch.float32 if weights.dtype == torch.float32 else torch.float64
    return result if result.dtype == dtype else torch.empty_like(result, dtype=dtype)


def _selected_within_bounds(arguments: Mapping[str, Any], result: Any) -> Any:
    """Guard that the index is in range.

    Fake tensors do so for a selection since torch 2.13, and for a scatter in no version.
    """
    index, size = arguments["index"], arguments["self"].size(arguments["dim"])
    if guard_or_false(index >= size) or guard_or_false(index < -size):
        raise IndexError(f"select(): index {index} out of range for size {size}")
    return result


def _mask_fits(arguments: Mapping[str, Any], result: Any) -> Any:
    """Raise IndexError if a boolean index does not have the shape of what it indexes."""
    dim = 0
    for index in arguments["indices"]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            dim += 1
            continue
        for size in index.shape:
            if guard_or_false(size != arguments["self"].size(dim)):
                raise IndexError(f"a mask of {size} elements indexes dimension {dim}")
            dim += 1
    return result


def _copied_where_only_cropped(arguments: Mapping[str, Any], result: Any) -> Any:
    """Return eager's strides if no padding adds elements: those of a copy of the rest.

    Fake tensors return contiguous strides if one padding is 0 and a size is symbolic.
    """
    pad = arguments["pad"]
    if any(statically_known_true(count > 0) for count in pad):
        return result
    try:
        strides = empty_like_strides(tuple(result.shape), arguments["self"].stride())
        if sizes_equal(strides, result.stride()) or not all(count <= 0 for count in pad):
            return result
    except UnknownStrides:
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)


def has_float_statistics(input: torch.Tensor, parameters: Sequence[torch.Tensor | None]) -> bool:
    """Return True if a norm on the CPU saves float32 statistics of a half-precision input.

    ATen does if its weight, bias or running statistics are float32; torch's decompositions save the input's dtype.
    """
    is_half = input.device.type == "cpu" and input.dtype in {torch.bfloat16, torch.float16}
    return is_half and any(p is not None and p.dtype == torch.float32 for p in parameters)


def _saved_statistics(arguments: Mapping[str, Any], result: Any) -> tuple[Any, ...]:
    """Return a norm's statistics as float32 where eager does."""
    output, mean, deviation, *others = result
    parameters = [arguments.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    if arguments.get("training", True) and has_float_statistics(arguments["input"], parameters):
        mean, deviation = (torch.empty_like(t, dtype=torch.float32) for t in (mean, deviation))
    return (output, mean, deviation, *others)


def _gradient_like_input(arguments: Mapping[str, Any], result: Any) -> tuple[Any, ...]:
    """Return the input's gradient in its dtype; fakes have that of the statistics."""
    gradient, *others = result
    dtype = arguments["input"].dtype
    return (gradient if gradient is None else torch.empty_like(gradient, dtype=dtype), *others)


def _with_mask(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    return torch.empty_like(arguments["self"]), torch.empty_like(arguments["self"], dtype=torch.bool)


def _item(arguments: Mapping[str, Any]) -> Any:
    """Return a symbol; in inference mode torch cannot do so for symbolic layouts."""
    return torch.ops.aten.item.default.decompose(arguments["self"])


def _unique(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return results of unknown size: before torch 2.13 they have the size for zeros, one."""
    options = (arguments[name] for name in ("sorted", "return_inverse") if name in arguments)
    values, inverse, _ = torch.ops.aten._unique2(arguments["self"], *options)
    return values, inverse


FAKE_RESULTS: dict[str, FakeResults] = {
    **dict.fromkeys(
        (
            "fake_quantize_per_tensor_affine_cachemask",
            "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
            "fake_quantize_per_channel_affine_cachemask",
        ),
        _with_mask,
    ),
    "_unique": _unique,
    "item": _item,
}
"""Fake results by name of ATen operators without a fake implementation in some torch."""

RESULT_RULES: dict[str, ResultRule] = {
    "_native_multi_head_attention": _attention_without_weights,
    "bincount": _counts_of_weights,
    "constant_pad_nd": _copied_where_only_cropped,
    **dict.fromkeys(
        (
            *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
            *("native_layer_norm", "native_group_norm"),
        ),
        _saved_statistics,
    ),
    **dict.fromkeys(("select", "select_copy", "select_scatter"), _selected_within_bounds),
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), _mask_fits),
    "native_group_norm_backward": _gradient_like_input,
    **dict.fromkeys(("_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"), _int64_indices),
}
"""Corrections of fake results by name of ATen operators, without overload."""


def arguments_by_name(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by their names in the schema."""
    names = [a.name for a in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}
