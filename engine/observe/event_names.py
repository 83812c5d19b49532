"""Event names of the structured traces of torch 2.6 to 2.15, and their handling.

A name that is not listed is reported as unknown. Renamed events are listed under all their names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GraphKind:
    """A kind of printed graph: stage, node id prefix, title, position among the stages."""

    stage: str
    id_prefix: str
    title: str
    order: float
    is_backward: bool = False


GRAPH_EVENTS = {
    "compiled_autograd_graph_pre_reordering": GraphKind("autograd before", "cab", "Compiled autograd, before reordering", 0.1),
    "compiled_autograd_graph": GraphKind("autograd", "ca", "Compiled autograd graph", 0.2),
    "dynamo_output_graph": GraphKind("fx", "fx", "FX graph (Dynamo)", 1),
    "optimize_ddp_split_graph": GraphKind("ddp", "ddp", "FX graph split at DDP's buckets", 1.1),
    "before_pre_grad_graph": GraphKind("pre-grad before", "pgb", "Before Inductor's pre-grad passes", 1.2),
    "after_pre_grad_graph": GraphKind("pre-grad", "pg", "After Inductor's pre-grad passes", 1.3),
    "aot_joint_graph": GraphKind("joint", "joint", "Joint graph (AOTAutograd)", 2),
    "before_joint_graph": GraphKind("joint before", "jb", "Before Inductor's joint-graph passes", 2.1),
    "after_joint_graph": GraphKind("joint after", "ja", "After Inductor's joint-graph passes", 2.2),
    "aot_inference_graph": GraphKind("aten", "aten", "ATen graph (AOTAutograd, inference)", 3),
    "aot_inference_graph_after_hop_passes": GraphKind("aten hop", "atenhop", "ATen graph after passes over higher-order operators", 3.1),
    "aot_forward_graph": GraphKind("forward", "aten", "ATen forward graph (AOTAutograd)", 3.2),
    "before_post_grad_graph": GraphKind("post-grad before", "postb", "Before Inductor's post-grad passes", 4),
    "inductor_post_grad_graph": GraphKind("decomposed", "post", "Graph after Inductor's own passes", 5),
    "after_post_grad_graph": GraphKind("decomposed", "post", "Graph after Inductor's own passes", 5),
    "aot_backward_graph": GraphKind("backward", "backward", "ATen backward graph (AOTAutograd)", 6, is_backward=True),
    "exported_program": GraphKind("exported", "ep", "Exported program", 7),
}  # fmt: skip

BACKWARD_GRAPH_KINDS = {
    "post-grad before": GraphKind("backward post-grad before", "bpostb", "Backward before Inductor's post-grad passes", 6.1, is_backward=True),
    "decomposed": GraphKind("backward decomposed", "bpost", "Backward after Inductor's own passes", 6.2, is_backward=True),
}  # fmt: skip
"""Stages that a training compilation runs twice -> the kind of the second, backward graph."""

STAGE_BEFORE_PASSES = {
    "after_pre_grad_graph": "pre-grad before",
    "after_joint_graph": "joint before",
    "inductor_post_grad_graph": "post-grad before",
    "after_post_grad_graph": "post-grad before",
    "compiled_autograd_graph": "autograd before",
}
"""Graph after passes -> the stage before them; if they are equal, only one is shown."""

CACHE_EVENTS = {
    "fx_graph_cache": "FX graph cache",
    "fx_graph_bundled_cache": "FX graph cache (bundled)",
    "aotautograd_cache": "AOTAutograd cache",
    "dynamo_cache": "Dynamo cache",
    "precompile_cache": "Precompile cache",
}
CACHE_EVENT_PATTERN = re.compile(rf"^(?P<cache>{'|'.join(CACHE_EVENTS)})_(?P<outcome>hit|miss|bypass)$")

FAILURE_EVENTS = {
    "dynamo_error": "trace",
    "eager_compile_backwards_failure": "aot",
    "fx_interpreter_error": "graph",
    "make_fx_fail_partial": "aot",
    "aotautograd_cache_pickle_failure": "aot",
    "dynamo_cache_exception": "trace",
    "min_cut_failed_fx_graph": "aot",
    "min_cut_failed_edge_list": "aot",
    "missing_fake_kernel": "aot",
    "mismatched_fake_kernel": "aot",
    "inductor_spmd_graph_mismatch": "lowering",
}
"""Failure events -> the stage that failed."""

EXPORT_FRAME = "export"
"""Frame of events without a compile id."""
EXPORT_EVENTS = frozenset({
    "inductor_output_code", "inductor_provenance_tracking_node_mappings", "aot_forward_graph_fw_metadata",
    "missing_fake_kernel", "mismatched_fake_kernel", "inductor_aot_wrapper_code", "inductor_aot_kernel_code",
})  # fmt: skip
"""Events besides graphs that torch.export and AOTInductor log without a compile id."""

METRICS_EVENTS = (
    "compilation_metrics",
    "bwd_compilation_metrics",
    "aot_autograd_backward_compilation_metrics",
    "compilation_metrics_runtime",
)

IGNORED_EVENTS = frozenset({
    "chromium_event", "describe_storage", "str", "stack", "inductor_provenance_tracking_kernel_stack_traces", "expression_created",
    "guard_added", "propagate_real_tensors_provenance", "symbolic_shape_specialization_fast",
})  # fmt: skip
"""Events that other records cover."""

TEXT_EVENTS = frozenset({
    "fx_graph_runnable", "dynamo_side_effects", "runtime_wrapper_orchestration", "compiled_fn_wrapper", "backward_prologue",
    "backward_epilogue", "compiled_function_forward", "compiled_function_backward", "torch._functorch.config",
    "torch._inductor.config", "triton_kernel_info", "aot_saved_tensors_hooks_graphs", "min_cut_information", "min_cut_failed_svg",
    "aot_joint_graph_sync_decision_cross_ranks", "aot_forward_graph_fw_subclass_metadata", "aot_forward_graph_fw_metadata",
    "inductor_collective_schedule", "inductor_runtime_and_tensor_meta", "inductor_tlparse_runtime", "inductor_tlparse_tensor_meta",
    "graph_execution", "inductor_overlap_cyclic_extra_deps", "reorder_communication_preserving_peak_memory",
    "sink_waits_iterative_info", "scheduler_nodes_before_comm_overlap", "pge_profile_vs_analytical",
    "inductor_fx_passes_overlap_bucketing", "fx_compute_nodes_runtime_estimation", "fx_collectives_analytical_estimation",
    "fx_collectives_node_runtime_estimation", "pre_bucketing_fsdp_collectives", "pre_bucketing_collective_sizes",
    "pre_bucketing_collective_sizes_after", "fx_bucketing_passes_reduce_scatter_buckets", "fx_bucketing_passes_all_gather_buckets",
    "overlap_scheduling_graph_before", "overlap_scheduling_graph_after", "pre_decomp_comms", "post_decomp_comms",
    "inductor_autotune_at_compile_time_code", "before_activation_quantization_fwd_aten_pass",
    "after_activation_quantization_fwd_aten_pass", "before_activation_quantization_bwd_aten_pass",
    "after_activation_quantization_bwd_aten_pass", "fx_net_acc_splitter_finder_events", "invoke_subgraph_backward_duplicate",
    "compiler_collective", "get_local_code_state", "get_remote_code_state", "get_extra_remote_code_state",
    "put_local_code_state", "put_remote_code_state", "dynamo_cache_entries", "cudagraph_skip", "cudagraph_skip_no_reason",
    "hipify", "precompile_context", "optimize_ddp_split_child", "link", "dump_file", "export", "graph_dump",
    "propagate_real_tensors", "guard_on_data_dependent_error", "inductor_provenance_tracking_node_mappings",
    "inductor_triton_kernel_to_post_grad_nodes", "dynamo_guards", "rank_print", "torch_version", "codegen_node_mapping",
    "memoizer_artifacts", "artifact_registration", "aot_autograd_runtime_wrappers", "native_dsl_compile", "compile_worker_status",
    "compile_worker_sidecar_death",
})  # fmt: skip
"""Events shown by name as plain text."""

TEXT_EVENT_PATTERN = re.compile(
    r"_(?:ORIGINAL|MODIFIED)_BYTECODE$|_wrapper$|_(?:pre|post)_grad$|^(?:pre|post)_grad_|_code_state$|^vllm_|^inductor_|^subclass_|^graph_|^flex_gemm_|^min_cut_|"
    r"_cache_(?:hit|miss|bypass)_|^(?:before|after)_"
)
"""Pattern of names that contain a pass's or a function's name; shown as plain text."""


def is_text_event(name: str) -> bool:
    """Return True if an event is known to be shown as plain text."""
    return name in TEXT_EVENTS or TEXT_EVENT_PATTERN.search(name) is not None
