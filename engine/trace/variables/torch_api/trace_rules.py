"""Rules for torch functions: trace, inline, constant-fold or leave to Python."""

from __future__ import annotations

import binascii
import bisect
import cmath
import json
import math
import operator
import re
import struct
import sys
import types
import unicodedata
import zlib
from typing import Any

import torch
import torch.nested
import torch.nn.functional

from engine.torch_private import operators

_NOT_IN_GRAPH = frozenset(
    "triplet_margin_with_distance_loss has_torch_function has_torch_function_unary has_torch_function_variadic handle_torch_function "
    "boolean_dispatch assert_int_or_pair list_to_tuple from_numpy frombuffer from_file asarray get_device is_grad_enabled "
    "sparse_compressed_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor".split()
)


_FUNCTIONAL_MODULES = ("torch.nn.functional", "torch._jit_internal", "torch.functional")


def _collect_in_graph_functions() -> dict[int, Any]:
    """Return torch's functions that are nodes of a graph, by id."""
    python_functions = {
        name: f
        for name, f in vars(torch.nn.functional).items()
        if isinstance(f, types.FunctionType) and f.__module__ in _FUNCTIONAL_MODULES
    }
    c_functions = {n: f for n, f in _builtins_of(torch.nn.functional).items() if str(f.__module__).startswith("torch")}
    named = [(name, f) for name, f in (python_functions | c_functions).items() if not name.startswith("_")]
    for namespace in (
        operators.VariableFunctions,
        operators.nn_functions,
        operators.linalg_functions,
        operators.fft_functions,
        operators.special_functions,
        operators.sparse_functions,
    ):
        members = {name: getattr(namespace, name) for name in dir(namespace) if not name.startswith("__")}
        named += [(name, member) for name, member in members.items() if callable(member)]
    named += [(name, f) for name, f in _builtins_of(torch).items() if hasattr(operators.VariableFunctions, name)]
    functions = [function for name, function in named if name not in _NOT_IN_GRAPH]
    functions += [getattr(torch, name) for name in torch.functional.__all__]
    for namespace in (torch.linalg, torch.fft, torch.special):
        functions += [f for name, f in _builtins_of(namespace).items() if not name.startswith("_")]
    functions += [torch.nested.nested_tensor_from_jagged, torch.nested.narrow, torch.nested.to_padded_tensor]
    return {id(function): function for function in (*functions, torch.tensor, torch.as_tensor)}


def _builtins_of(module: Any) -> dict[str, Any]:
    """Return the functions of a module that are written in C."""
    return {name: f for name, f in vars(module).items() if isinstance(f, types.BuiltinFunctionType)}


_IN_GRAPH_FUNCTIONS = _collect_in_graph_functions()


_FOLDABLE_FUNCTIONS: dict[int, Any] = {
    id(f): f
    for f in (
        *(f for n, f in vars(math).items() if callable(f)),
        *(f for n, f in vars(cmath).items() if callable(f)),
        *(f for n, f in vars(operator).items() if callable(f) and not isinstance(f, type) and not n.startswith("_") and not n.startswith("i")),
        operator.index, operator.inv, operator.invert,
        abs, ascii, bin, chr, divmod, format, hash, hex, oct, ord, pow, repr, round, sum,
        torch.promote_types, torch.can_cast, torch.is_storage,
        struct.pack, struct.unpack, struct.unpack_from, struct.calcsize, re.escape, sys.intern, bisect.bisect_left, bisect.bisect_right,
        binascii.a2b_base64, binascii.b2a_base64, binascii.hexlify, binascii.unhexlify, zlib.crc32, zlib.compress, zlib.decompress,
        unicodedata.category, unicodedata.name, unicodedata.normalize, json.dumps, json.loads, str.maketrans, bytes.fromhex, dict.fromkeys, int.from_bytes, float.fromhex,
    )
}  # fmt: skip


def is_in_graph_function(fn: Any) -> bool:
    """Return True if a call of the function becomes one graph node."""
    function = _IN_GRAPH_FUNCTIONS.get(id(fn))
    if function is not None:
        return function is fn
    return isinstance(fn, (operators.OpOverload, operators.OpOverloadPacket))


def can_constant_fold(fn: Any) -> bool:
    """Return True if the function can run while tracing: deterministic, no side effects."""
    function = _FOLDABLE_FUNCTIONS.get(id(fn))
    if function is not None:
        return function is fn
    owner = getattr(fn, "__self__", None)
    return isinstance(owner, type) and owner in (str, bytes, int, float, dict)


_SKIPPED_TORCH_MODULES = tuple(
    f"torch.{name}"
    for name in (
        "_C _compile _decomp _dispatch _dynamo _export _functorch _guards _higher_order_ops _inductor _library _logging _ops "
        "_prims _python_dispatcher _subclasses _tensor_str _thread_safe_fork _utils_internal _vendor _weights_only_unpickler "
        "ao.ns ao.pruning ao.quantization autograd backends compiler contrib cpu cuda distributed export futures fx hub jit library "
        "mps mtia monitor multiprocessing nested onnx optim package profiler quasirandom serialization sparse storage "
        "utils.backend_registration utils.benchmark utils.bottleneck utils.bundled_inputs utils.cpp_extension utils.data "
        "utils.dlpack utils.flop_counter utils.hooks utils.mobile_optimizer utils.model_zoo utils.tensorboard utils.viz xpu"
    ).split()
)
"""Parts of torch that are not inlined: they work on processes, files, devices, compilers."""


_SKIPPED_TORCH_PREFIXES = tuple(f"{name}." for name in _SKIPPED_TORCH_MODULES)


_INLINED_TORCH_PREFIXES = tuple(
    (
        "torch.autograd.grad_mode torch._higher_order_ops torch._dynamo.comptime "
        "torch._dynamo.external_utils torch._dynamo.mutation_guard "
        "torch._dynamo._trace_wrapped_higher_order_op torch._functorch.functional_call torch.optim "
        "torch.sparse torch.distributed._functional_collectives "
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper torch.distributed.tensor._api "
        "torch.distributed.tensor.experimental._func_map torch.distributed.tensor.parallel"
    ).split()
)


_SKIPPED_PACKAGES = frozenset(
    "logging warnings _py_warnings importlib asyncio subprocess socket os io pdb numpy scipy pandas matplotlib tqdm IPython time "
    "gc sys traceback multiprocessing concurrent shutil pathlib json pickle tempfile linecache".split()
)


def may_inline(fn: types.FunctionType) -> bool:
    """Return True if a Python function's body is inlined."""
    module = str(fn.__module__ or "")
    top = module.partition(".")[0]
    if top == "torch":
        return module.startswith(_INLINED_TORCH_PREFIXES) or not f"{module}.".startswith(_SKIPPED_TORCH_PREFIXES)
    if top == "threading":
        return fn.__qualname__ in ("Event.is_set", "Event.isSet")
    if top == "weakref":  # the registry of finalizers loses entries whenever an object dies
        return not fn.__qualname__.startswith("finalize.")
    return top not in _SKIPPED_PACKAGES and (
        top != "unittest" or module in ("unittest.case", "unittest.util", "unittest.result")
    )
