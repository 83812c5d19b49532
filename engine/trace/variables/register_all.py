"""Import all variable families and opcode handlers, which fill the registries.

The order matters where two families register a rule for the same callable: the later one wins.
"""

from __future__ import annotations

import importlib
import importlib.util

FAMILIES = (
    "autograd.autograd_functions",
    "objects.attribute_builtins",
    "objects.class_builtins",
    "containers.container_constructors",
    "stdlib.interpreter_limits",
    "containers.iteration_builtins",
    "containers.external_iterators",
    "stdlib.number_functions",
    "callables.operator_module",
    "stdlib.text_builtins",
    "callables.lru_cache",
    "callables.singledispatch",
    "autograd.activation_checkpoint",
    "torch_api.collectives",
    "torch_api.compiler_api",
    "tensors.distributed_tensors",
    "constants",
    "containers.builtin_subclasses",
    "torch_api.grad_and_autocast_contexts",
    "higher_order.flex_attention",
    "torch_api.foreach_grouping",
    "autograd.forward_ad",
    "torch_api.torch_contexts",
    "higher_order.control_flow",
    "autograd.grad_and_tensor_hooks",
    "stdlib.introspection",
    "stdlib.os_environ",
    "objects.copy_pickle",
    "callables.descriptors",
    "callables.functools_module",
    "containers.heapq_bisect",
    "objects.globals_dict",
    "objects.id_and_hash",
    "containers.itertools_module",
    "objects.class_creation",
    "objects.construction",
    "exceptions.exception_groups",
    "nn_modules.module_construction",
    "nn_modules.optimizer_state",
    "containers.dict_constructors",
    "containers.mapping_proxy",
    "objects.simple_namespace",
    "callables.partials",
    "stdlib.regex",
    "stdlib.random_numbers",
    "objects.weakrefs",
    "stdlib.warning_calls",
    "stdlib.loggers",
    "objects.thread_local",
    "nn_modules.hook_handles",
    "stdlib.locks",
    "tensors.contiguous_outputs",
    "tensors.eager_value_errors",
    "nn_modules.nn_module",
    "nn_modules.parameter_construction",
    "tensors.set_data",
    "torch_api.custom_and_script_ops",
    "tensors.legacy_constructors",
    "tensors.packed_sequences",
    "stdlib.io_buffers",
    "stdlib.datetimes",
    "stdlib.context_vars",
    "torch_api.sdpa_params",
    "torch_api.torch_generators",
    "autograd.autograd_ctx",
    "tensors.storages",
    "tensors.torch_function_protocol",
    "tensors.tensor_attributes",
    "tensors.tensor_inputs",
    "tensors.tensor_metadata",
    "tensors.tensor_methods",
    "torch_api.torch_functions",
    "torch_api.trace_rules",
    "callables.unbound_methods",
    "torch_api.global_state",
    "torch_api.autocast_functions",
    "torch_api.symbolic_shape_functions",
    "nn_modules.functional_call",
    "higher_order.functorch",
    "torch_api.triton_kernels",
    "callables.builtin_functions",
    "objects.python_modules",
    "tensors.automatic_dynamic",
)
"""Modules below ``engine.trace.variables`` that register builders and rules."""

importlib.import_module("engine.trace.handlers")
for _family in FAMILIES:
    importlib.import_module(f"engine.trace.variables.{_family}")
if importlib.util.find_spec("numpy") is not None:
    importlib.import_module("engine.trace.variables.tensors.constant_numpy_arrays")
    importlib.import_module("engine.trace.variables.tensors.tensor_construction")
