"""Facts about operators: which draw random numbers, write, alias, or need a kernel.

The facts of an overload come from its schema, its tags and its dispatch keys. Tables below add what none of these says.
A function or method of torch has the facts of all overloads that a call of it may choose.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
import torch.fx
import torch.nn.functional as F

from engine.torch_private.dispatch import DispatchKey, dispatch_has_kernel
from engine.torch_private.operators import OpOverload, OpOverloadPacket, linalg_functions

T = TypeVar("T")

_UNDECLARED_ALIASES = frozenset(("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "_unsafe_view"))
"""Operators whose results share memory with an argument that no schema declares."""

_UNDECLARED_STATS_UPDATES = frozenset(
    (
        "batch_norm instance_norm native_batch_norm cudnn_batch_norm miopen_batch_norm _batch_norm_impl_index "
        "batch_norm_update_stats batch_norm_gather_stats batch_norm_gather_stats_with_counts"
    ).split()
)
"""Normalizations that update running statistics, which no schema declares."""

_QUANTIZED_RESULTS = frozenset(
    (
        "quantize_per_channel quantize_per_tensor quantize_per_tensor_dynamic _make_per_channel_quantized_tensor "
        "_make_per_tensor_quantized_tensor quantized_batch_norm quantized_gru quantized_gru_cell quantized_lstm quantized_lstm_cell quantized_max_pool1d "
        "quantized_max_pool2d quantized_max_pool3d quantized_rnn_relu_cell quantized_rnn_tanh_cell"
    ).split()
)
"""Operators on quantized tensors, whose dtype no schema shows."""

_UNCOUNTED_LIST_WRITES = frozenset(
    "_amp_foreach_non_finite_check_and_unscale_ _fused_adagrad_ _fused_adam_ _fused_adamw_ _fused_sgd_".split()
)
"""Operators that write to lists of tensors and bump no version, not even for real tensors."""

_UNTAGGED_POINTWISE = frozenset(
    (
        "hardswish hardswish_backward hardsigmoid hardsigmoid_backward hardtanh_backward leaky_relu_backward elu_backward "
        "mish_backward softplus_backward softshrink_backward hardshrink_backward log_sigmoid_backward _prelu_kernel "
        "_prelu_kernel_backward"
    ).split()
)
"""Elementwise operators without the tag that says so."""

_STORAGE_OPS = frozenset(("as_strided", "as_strided_copy", "as_strided_scatter"))

_NO_DRAW = frozenset(("_fused_sdp_choice",))
"""Operators tagged as random because of dropout, which only select a kernel."""

_LINALG = frozenset(
    (
        *vars(linalg_functions),
        *"_linalg_check_errors _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd".split(),
    )
) - {"linalg_vector_norm"}  # a reduction like others

_NO_VALUE_ERRORS = frozenset(
    (
        "attention attention_backward mm addmm bmm baddbmm mv addmv addr addbmm dot vdot linear convolution convolution_backward "
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_cudnn_attention_backward _cdist_forward grid_sampler_2d grid_sampler_3d "
        "sum nansum mean prod amax amin max min any all var var_mean std std_mean norm linalg_vector_norm logsumexp "
        "count_nonzero cumsum cumprod cummax cummin logcumsumexp sort topk median _softmax _log_softmax _safe_softmax "
        "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit "
        "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training _batch_norm_with_update_functional "
        "_batch_norm_no_update cudnn_batch_norm _fused_rms_norm native_dropout mse_loss smooth_l1_loss huber_loss glu "
        "binary_cross_entropy_with_logits soft_margin_loss log_sigmoid_forward avg_pool1d avg_pool2d avg_pool3d "
        "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d max_pool2d_with_indices "
        "max_pool3d_with_indices im2col col2im upsample_nearest1d upsample_nearest2d upsample_nearest3d "
        "upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d reflection_pad1d "
        "reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d constant_pad_nd "
        "_fft_r2c _fft_c2r _fft_c2c _to_copy convert_element_type device_put clone copy lift_fresh_copy "
        "empty_like full_like zeros_like ones_like new_empty new_empty_strided new_full new_zeros new_ones rand_like "
        "randn_like randint_like exponential cat stack flip roll rot90 repeat pixel_shuffle pixel_unshuffle tril triu diag_embed "
        "slice_scatter select_scatter diagonal_scatter as_strided_scatter where isin bucketize nonzero "
        "masked_select complex polar _local_scalar_dense item all_reduce all_gather_into_tensor reduce_scatter_tensor "
        "wait_tensor"
    ).split()
)
"""Operators whose errors depend only on metadata, as those of elementwise ones and views."""

_NO_VALUE_ERROR_OVERLOADS = frozenset(
    f"aten::{name}" for name in "bernoulli.p masked_fill.Scalar masked_fill_.Scalar fill.Scalar fill_.Scalar".split()
)
"""Such overloads of operators whose other overloads may raise."""

_RAISES_ON_INTEGERS = frozenset("div floor_divide divide remainder fmod pow".split())
"""Operators that raise for integers: division by zero, negative power."""

_PLAIN_TYPES = frozenset(("str", "int", "bool", "float"))
"""Types of arguments without tensors and symbols; operators on symbols take a ``Scalar``."""

_UNMARKED_BACKWARD = frozenset(("_convolution_double_backward", "conv_tbc_backward"))
"""Derivative formulas that take no argument named as a gradient."""


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """Facts about one operator. False means no for all its overloads."""

    name: str = ""
    """Name of its out-of-place form in ATen: "add" for ``add_`` and ``operator.iadd``."""
    draws_random: bool = False
    """Draws from a generator that outlives the call, unless ``dropout`` is 0."""
    dropout: tuple[str, int] | None = None
    """Name and position of the probability of dropout; nothing is drawn if it is 0."""
    writes: bool = False
    """Writes to an argument; of a function with several overloads, not only to ``out=``."""
    writes_first: bool = False
    """Writes to its first argument."""
    counts_list_writes: bool = False
    """Writes to the tensors of its first argument, a list, and bumps their versions."""
    has_uncounted_writes: bool = False
    """Writes to arguments after its first, or to lists, without a new version."""
    running_stats: tuple[int, ...] = ()
    """Positions of running statistics that it may write to; no schema declares this."""
    has_out: bool = False
    """Writes to an ``out=`` argument."""
    is_view: bool = False
    """A result is a view of an argument."""
    hides_alias: bool = False
    """A result shares memory with an argument, which its schema does not declare."""
    detaches: bool = False
    """The result is the argument without its autograd history."""
    addresses_storage: bool = False
    """Reads or writes the storage at given strides and offset, beyond its operand."""
    is_pointwise: bool = False
    """Each result element depends only on operand elements at its own index."""
    is_composite: bool = False
    """The dispatcher computes it with other operators; it needs no kernel of its own."""
    is_linear_algebra: bool = False
    is_backward: bool = False
    """Derivative formula: takes a gradient."""
    returns_quantized: bool = False
    """Returns a quantized tensor; a fake result looks like a tensor of floats."""
    returns_sizes: bool = False
    """Returns integers, for instance sizes, and no tensor."""
    raises_on_values: bool = False
    """May raise an error that depends on the values of its tensors, as far as is known."""


_NOTHING = OperatorFacts()
_FLAGS = tuple(f.name for f in fields(OperatorFacts) if isinstance(f.default, bool))


def facts_of(target: Any) -> OperatorFacts:
    """Return the facts about an operator, a function of torch, or a method's name.

    Nothing is known about other callables.
    """
    if isinstance(target, OpOverload):
        return facts_of_overload(target)
    if target in _OTHER_FACTS:
        return _OTHER_FACTS[target]
    if target in PYTHON_OPERATORS:
        return _facts_of_python_operator(*PYTHON_OPERATORS[target])
    if isinstance(target, str):
        return _facts_of_name(target)
    if isinstance(target, OpOverloadPacket):
        return _merge(getattr(target, o) for o in target.overloads())
    if isinstance(target, _FUNCTION_TYPES) and _is_from_torch(target):
        return _facts_of_name(target.__name__)
    return _NOTHING


def facts_of_node(node: torch.fx.Node) -> OperatorFacts:
    """Return the facts about the operator that a node calls; none if it calls no operator."""
    return facts_of(node.target) if node.op in ("call_function", "call_method") else _NOTHING


def draws_random(node: torch.fx.Node) -> bool:
    """Return True if a node draws from a generator that outlives the call."""
    facts = facts_of_node(node)
    if not facts.draws_random or facts.dropout is None:
        return facts.draws_random
    name, position = facts.dropout
    argument = node.kwargs.get(name, node.args[position] if position < len(node.args) else 0.0)
    return bool(argument != 0)  # a node is not 0


def memo_by_identity(compute: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return a memo of a function of one operator. Hashing an overload would run Python code."""
    results: dict[int, tuple[Any, T]] = {}

    def find(op: Any) -> T:
        entry = results.get(id(op))
        if entry is None:
            entry = results[id(op)] = op, compute(op)  # a live operator's id is not given to another object
        return entry[1]

    return find


@memo_by_identity
def facts_of_overload(op: OpOverload) -> OperatorFacts:
    """Return the facts of an overload's schema and tags, with known errors corrected."""
    schema, tags = op._schema, op.tags
    arguments, returns = schema.arguments, schema.returns  # a schema makes new objects at each access
    name = schema.name.partition("::")[2]
    written = [a for a in arguments if (alias := a.alias_info) is not None and alias.is_write]
    in_place = [a for a in written if not a.kwarg_only]
    names = [a.name for a in arguments]
    writes_first = bool(in_place) and in_place[0].name == names[0]
    hides_alias, is_torch = name in _UNDECLARED_ALIASES, op.namespace in ("aten", "prims")
    is_view = any((alias := r.alias_info) is not None and not alias.is_write for r in returns)
    base = name.removesuffix("_") if writes_first and is_torch else name
    is_pointwise = torch.Tag.pointwise in tags or (is_torch and base in _UNTAGGED_POINTWISE)
    return OperatorFacts(
        name=base,
        draws_random=torch.Tag.nondeterministic_seeded in tags and name not in _NO_DRAW,
        dropout=next(((a, n) for n, a in enumerate(names) if a in ("dropout_p", "dropout")), None),
        writes=bool(written),
        writes_first=writes_first,
        counts_list_writes=writes_first
        and str(in_place[0].type) == "List[Tensor]"
        and name not in _UNCOUNTED_LIST_WRITES,
        has_uncounted_writes=len(in_place) > writes_first or name in _UNCOUNTED_LIST_WRITES,
        running_stats=tuple(n for n, a in enumerate(names) if a in ("running_mean", "running_var"))
        if is_torch and name in _UNDECLARED_STATS_UPDATES
        else (),
        has_out=len(written) > len(in_place),
        is_view=is_view,
        hides_alias=hides_alias,
        detaches=is_torch and base == "detach",
        addresses_storage=is_torch and base in _STORAGE_OPS,
        is_pointwise=is_pointwise,
        is_composite=_is_composite(op),
        is_linear_algebra=is_torch and name in _LINALG,
        is_backward=name in _UNMARKED_BACKWARD or any(a.startswith("grad") for a in names),
        returns_quantized=is_torch and name in _QUANTIZED_RESULTS,
        returns_sizes=bool(returns) and all(str(r.type) in ("int", "List[int]") for r in returns),
        raises_on_values=not (
            is_view or hides_alias or base in _NO_VALUE_ERRORS or op.name() in _NO_VALUE_ERROR_OVERLOADS
        )
        and (base in _RAISES_ON_INTEGERS or not is_pointwise)
        and any("Tensor" in str(a.type) for a in arguments),
    )


def may_raise(op: OpOverload, result_dtypes: Iterable[torch.dtype]) -> bool:
    """Return True if a call may raise an error about values."""
    facts = facts_of_overload(op)
    is_safe = facts.name in _RAISES_ON_INTEGERS and all(d.is_floating_point for d in result_dtypes)
    return facts.raises_on_values and not is_safe


def has_only_effect(target: Any) -> bool:
    """Return True for an operator without tensors and results, such as ``aten._print``.

    Compiling must not run it.
    """
    # The memo would keep other targets alive, which may hold values of the user.
    return isinstance(target, (OpOverload, OpOverloadPacket)) and _has_only_effect(target)


def runs_for_effect(target: Any) -> bool:
    """Return True if a call of an operator stays in the graph though nothing uses its results.

    Such operators return nothing (they raise an error, or print), or the user defined them.
    """
    if not isinstance(target, OpOverload):
        return False
    return not target._schema.returns or target.namespace not in ("aten", "prims", "engine")


@memo_by_identity
def _has_only_effect(op: Any) -> bool:
    overloads = getattr(op, "overloads", None)
    schemas: list[Any] = [o._schema for o in ([op] if overloads is None else (getattr(op, n) for n in overloads()))]
    return all(not s.returns and all(str(a.type) in _PLAIN_TYPES for a in s.arguments) for s in schemas)


def _is_composite(op: OpOverload) -> bool:
    key = DispatchKey.CompositeImplicitAutograd
    return dispatch_has_kernel(op.name()) and op.has_kernel_for_dispatch_key(key)


@functools.cache
def _facts_of_name(name: str) -> OperatorFacts:
    """Return the facts about the ATen operator with this name, over all its overloads."""
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, OpOverloadPacket):
        return _NOTHING
    return _merge(getattr(packet, o) for o in packet.overloads())


def _merge(overloads: Iterable[OpOverload]) -> OperatorFacts:
    """Return what is true for any overload; a call chooses one of them."""
    every = [facts_of_overload(o) for o in overloads if dispatch_has_kernel(o.name())]
    considered = [f for f in every if not f.has_out] or every
    if not considered:
        return _NOTHING
    merged: dict[str, Any] = {flag: True for f in considered for flag in _FLAGS if getattr(f, flag)}
    return replace(considered[0], **merged | {"has_out": len(considered) < len(every) or considered[0].has_out})


_FUNCTION_TYPES = (types.BuiltinFunctionType, types.FunctionType, types.MethodDescriptorType)


def _is_from_torch(function: Any) -> bool:
    return str(getattr(function, "__module__", None) or "torch").partition(".")[0] == "torch"


_SPECIAL_METHODS = {
    **{name: name for name in "add sub mul pow matmul neg abs eq ne lt le gt ge".split()},
    **{name: f"bitwise_{name}" for name in ("and", "or", "xor")},
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "pos": "positive",
    "invert": "bitwise_not",
}
"""Name in ATen of each operator of Python, by the name of its special method."""


def _python_operators() -> Mapping[Any, tuple[str, bool]]:
    """Return the names in ATen of Python's operators; True for in-place ones."""
    operators: dict[Any, tuple[str, bool]] = {}
    for name, aten in _SPECIAL_METHODS.items():
        operators |= dict.fromkeys((getattr(operator, f"__{name}__"), f"__{name}__", f"__r{name}__"), (aten, False))
        if hasattr(operator, f"__i{name}__"):
            operators |= dict.fromkeys((getattr(operator, f"__i{name}__"), f"__i{name}__"), (aten, True))
    return operators | {abs: ("abs", False), pow: ("pow", False), round: ("round", False)}


PYTHON_OPERATORS = _python_operators()
"""Functions and methods of Python's operators: name in ATen; True for in-place ones."""


@functools.cache
def _facts_of_python_operator(name: str, in_place: bool) -> OperatorFacts:
    facts = _facts_of_name(name)
    return replace(facts, writes=True, writes_first=True) if in_place else facts


_WRITES = OperatorFacts(writes=True, writes_first=True)
_DRAWS = OperatorFacts(draws_random=True)
_OTHER_FACTS: Mapping[Any, OperatorFacts] = {
    **dict.fromkeys("__idiv__ __setitem__ __delitem__ apply_ map_ map2_ share_memory_".split(), _WRITES),
    **dict.fromkeys((operator.setitem, operator.delitem, operator.iconcat), _WRITES),
    **dict.fromkeys((F.dropout1d, F.dropout2d, F.dropout3d, F.gumbel_softmax), _DRAWS),
    **dict.fromkeys((F.fractional_max_pool2d, F.fractional_max_pool2d_with_indices), _DRAWS),
    **dict.fromkeys((F.fractional_max_pool3d, F.fractional_max_pool3d_with_indices), _DRAWS),
    **dict.fromkeys((torch.pca_lowrank, torch.svd_lowrank), _DRAWS),
    F.batch_norm: OperatorFacts("batch_norm", running_stats=(1, 2)),
    F.instance_norm: OperatorFacts("instance_norm", running_stats=(1, 2)),
    F.multi_head_attention_forward: replace(_DRAWS, dropout=("dropout_p", 10)),
}
"""Facts about methods and Python functions of torch that are no operators."""
