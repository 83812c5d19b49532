"""Kinds of fallbacks of the AOT stage: reasons to run a graph as traced."""

import pathlib

from engine.ir.fallback import FallbackKind
from engine.ir.reason_catalog import ReasonCatalog

AOT_REASONS = ReasonCatalog(pathlib.Path(__file__).with_name("catalog"))


class AotFallback(FallbackKind, reasons=AOT_REASONS):
    """Why the AOT stage cannot functionalize a graph."""

    # Inputs
    SUBCLASS_INPUT = "subclass-input"
    NON_STRIDED_INPUT = "non-strided-input"
    INFERENCE_INPUT_NEEDS_GRAD = "inference-input-needs-grad"
    LAZY_CONJUGATE_INPUT = "lazy-conjugate-input"
    REPLACED_STORAGE_INPUT = "replaced-storage-input"
    GENERATOR_INPUT = "generator-input"
    LAYOUT_MUTATION_NEEDS_GRAD = "layout-mutation-needs-grad"

    # Operators that a functional graph cannot contain
    ATTRIBUTE_NODE = "attribute-node"
    STATE_CHANGING_CALL = "state-changing-call"
    TENSOR_METADATA_CHANGE = "tensor-metadata-change"
    AUTOGRAD_IN_GRAPH = "autograd-in-graph"
    SPARSE_OR_QUANTIZED_VALUE = "sparse-or-quantized-value"
    CALL_READS_MUTATED_OBJECTS = "call-reads-mutated-objects"

    # Mutations
    WRITE_TO_OVERLAPPING_ELEMENTS = "write-to-overlapping-elements"
    WRITE_IN_OTHER_ORDER = "write-in-other-order"
    WRITE_THROUGH_OTHER_VIEW = "write-through-other-view"
    LIST_WRITE_SHARES_MEMORY = "list-write-shares-memory"
    RUNNING_STATS_OVERLAP = "running-stats-overlap"
    UNCASTABLE_WRITE = "uncastable-write"
    COMPLEX_COMPARISON = "complex-comparison"
    WRITE_TO_DTYPE_VIEW = "write-to-dtype-view"
    WRITE_AFTER_DETACH = "write-after-detach"
    WRITE_AFTER_NO_GRAD_VIEW = "write-after-no-grad-view"
    BOOL_ALIAS_WRITE = "bool-alias-write"
    INFERENCE_INPUT_WRITTEN = "inference-input-written"
    OUT_RESIZED = "out-resized"
    OUT_OF_OTHER_DTYPE = "out-of-other-dtype"
    VERSION_BUMP_NEEDS_GRAD = "version-bump-needs-grad"
    VERSION_BUMP_OF_SAVED_INPUT = "version-bump-of-saved-input"

    # Memory layout and storage
    READ_PAST_STORAGE = "read-past-storage"
    READ_OUTSIDE_INPUT = "read-outside-input"
    AS_STRIDED_NEEDS_GRAD = "as-strided-needs-grad"
    AS_STRIDED_OF_OTHER_LAYOUT = "as-strided-of-other-layout"
    RANDOM_MEMORY_ORDER = "random-memory-order"
    RESULT_REPRESENTATION_DIFFERS = "result-representation-differs"
    PARTIAL_STORAGE_RESULT = "partial-storage-result"

    # Views and aliases
    INFERENCE_ALIAS_RETURNED = "inference-alias-returned"
    UNSAFE_VIEW_ESCAPES = "unsafe-view-escapes"
    UNBACKED_VIEW_RETURNED = "unbacked-view-returned"
    CUSTOM_FUNCTION_VIEW = "custom-function-view"
    VIEW_OF_OVERLAPPING_INPUT = "view-of-overlapping-input"
    VIEW_OF_NO_GRAD_VIEW = "view-of-no-grad-view"
    INVALIDATED_VIEW = "invalidated-view"
    DTYPE_VIEW_RETURNED = "dtype-view-returned"

    # Inputs that share memory, one of which is mutated
    SHARED_INPUTS_AS_STRIDED = "shared-inputs-as-strided"
    SHARED_INPUTS_DYNAMIC = "shared-inputs-dynamic"
    SHARED_INPUTS_OVERLAP_INSIDE = "shared-inputs-overlap-inside"
    SHARED_INPUTS_LAZY_CONJUGATE = "shared-inputs-lazy-conjugate"
    SHARED_INPUTS_FAR_APART = "shared-inputs-far-apart"
    SHARED_INPUTS_NO_COMMON_VIEW = "shared-inputs-no-common-view"
    SHARED_INPUT_VIEW_INVALIDATED = "shared-input-view-invalidated"

    # Tensor subclasses
    SUBCLASS_DYNAMIC = "subclass-dynamic"
    SUBCLASS_LAYOUT_MUTATION = "subclass-layout-mutation"
    SUBCLASS_MUTATION_NEEDS_GRAD = "subclass-mutation-needs-grad"
    SUBCLASS_ALIAS_NEEDS_GRAD = "subclass-alias-needs-grad"
    SUBCLASS_ALIAS_RETURNED = "subclass-alias-returned"
    SUBCLASS_LEAF_RETURNED = "subclass-leaf-returned"
    SUBCLASS_GRADIENT_DIFFERS = "subclass-gradient-differs"

    # Gradients
    ANOMALY_MODE = "anomaly-mode"
    INTER_OUTPUT_GRADIENT = "inter-output-gradient"
    GRAD_MODE_ENABLED_INSIDE = "grad-mode-enabled-inside"
    UNDEFINED_GRADIENT_SEEN = "undefined-gradient-seen"
    CUSTOM_BACKWARD_MUTATES = "custom-backward-mutates"
    GRADIENT_CHECKED_IN_BACKWARD = "gradient-checked-in-backward"
    CONSTANT_GRADIENT = "constant-gradient"

    # Double backward: the gradients raise when they are differentiated
    DOUBLE_BACKWARD_OF_MUTATED_INPUT = "double-backward-of-mutated-input"
    DOUBLE_BACKWARD_INPUT_FREED = "double-backward-input-freed"

    # Errors
    MISSING_KERNEL = "missing-kernel"
    CANNOT_TRACE = "cannot-trace"
