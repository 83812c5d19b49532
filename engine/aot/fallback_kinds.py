"""Kinds of fallbacks of the AOT stage: reasons to run a graph as traced, each with a hint."""

from __future__ import annotations

from engine.ir.fallback import FallbackKind

_PLAIN_TENSOR = "Pass a plain, strided tensor."
_CLONE_ALIAS = "Clone one of the tensors before the call, so that they share no memory."
_RETURN_CLONE = "Return a clone of the tensor."
_MOVE_OUT = "Move this operation out of the compiled function."
_OUT_OF_PLACE = "Use the out-of-place form of the operation."
_NOT_IN_BACKWARD = "Return new tensors from the custom backward instead of changing tensors in place."
_STATIC_SIZES = "Compile with dynamic=False, or call torch._dynamo.mark_static on the tensor."


class AotFallback(FallbackKind):
    """Why the AOT stage cannot functionalize a graph."""

    # Inputs
    SUBCLASS_INPUT = "subclass-input", _PLAIN_TENSOR
    NON_STRIDED_INPUT = "non-strided-input", _PLAIN_TENSOR
    INFERENCE_INPUT_NEEDS_GRAD = "inference-input-needs-grad", "Clone the tensor outside of inference mode."
    LAZY_CONJUGATE_INPUT = "lazy-conjugate-input", "Pass tensor.resolve_conj().resolve_neg()."
    REPLACED_STORAGE_INPUT = "replaced-storage-input", "Pass a clone of the tensor."
    GENERATOR_INPUT = "generator-input", "Draw the random numbers outside, and pass them as a tensor."
    LAYOUT_MUTATION_NEEDS_GRAD = "layout-mutation-needs-grad", _OUT_OF_PLACE
    INPUT_WITHOUT_FAKE = "input-without-fake", "Pass the value as a tensor."

    # Operators that no functional graph can hold
    ATTRIBUTE_NODE = "attribute-node", "Pass the value as an input of the function."
    MODULE_CALL_NODE = "module-call-node", "Call the module's forward from traced code."
    STATE_CHANGING_CALL = "state-changing-call", _MOVE_OUT
    TENSOR_METADATA_CHANGE = "tensor-metadata-change", _MOVE_OUT
    AUTOGRAD_IN_GRAPH = "autograd-in-graph", "Call autograd outside of the compiled function."
    SPARSE_OR_QUANTIZED_VALUE = "sparse-or-quantized-value", _MOVE_OUT
    CALL_READS_MUTATED_OBJECTS = "call-reads-mutated-objects", "Pass what the function reads as arguments."
    NO_TUPLE_RETURNED = "no-tuple-returned", "Return a tuple from the graph."

    # Writes
    WRITE_TO_OVERLAPPING_ELEMENTS = (
        "write-to-overlapping-elements",
        "Clone the expanded tensor before writing to it.",
    )
    WRITE_IN_OTHER_ORDER = "write-in-other-order", _OUT_OF_PLACE
    WRITE_THROUGH_OTHER_VIEW = "write-through-other-view", "Clone what is read before the write."
    LIST_WRITE_SHARES_MEMORY = "list-write-shares-memory", "Clone the tensors of the list that share memory."
    RUNNING_STATS_OVERLAP = "running-stats-overlap", "Give the running statistics memory of their own."
    UNCASTABLE_WRITE = "uncastable-write", "Convert the value to the dtype of the target."
    COMPLEX_COMPARISON = "complex-comparison", "Compare absolute values or real parts."
    WRITE_TO_DTYPE_VIEW = "write-to-dtype-view", "Write to the tensor itself, or detach it first."
    WRITE_AFTER_DETACH = "write-after-detach", "Write to a clone of the detached tensor."
    WRITE_WITHOUT_AUTOGRAD = "write-without-autograd", "Write to the tensor itself, or to a detached clone."
    WRITE_AFTER_NO_GRAD_VIEW = "write-after-no-grad-view", "Create the view in grad mode."
    BOOL_ALIAS_WRITE = "bool-alias-write", "Clone the bool view before the write."
    OUT_RESIZED = "out-resized", "Pass an out= tensor of the size of the result."
    STORAGE_REPLACED = "storage-replaced", _OUT_OF_PLACE
    SPLIT_VERSION_COUNTER = "split-version-counter", _CLONE_ALIAS
    VERSION_BUMP_NEEDS_GRAD = "version-bump-needs-grad", "Remove the in-place operation."

    # Memory layout and storage
    READ_PAST_STORAGE = "read-past-storage", "Call as_strided with sizes that stay inside of the storage."
    READ_OUTSIDE_INPUT = "read-outside-input", "Call as_strided on the tensor that owns the whole storage."
    AS_STRIDED_NEEDS_GRAD = "as-strided-needs-grad", "Use slices, select or unfold instead of as_strided."
    AS_STRIDED_OF_OTHER_LAYOUT = "as-strided-of-other-layout", "Use slices, select or unfold instead of as_strided."
    RANDOM_MEMORY_ORDER = "random-memory-order", "Create the tensor contiguous before filling it with random numbers."
    RESULT_LAYOUT_DIFFERS = "result-layout-differs", "Return tensor.contiguous()."
    RESULT_REPRESENTATION_DIFFERS = "result-representation-differs", "Return tensor.resolve_conj().resolve_neg()."
    PARTIAL_STORAGE_RESULT = "partial-storage-result", _RETURN_CLONE

    # Views and aliases
    INFERENCE_ALIAS_RETURNED = "inference-alias-returned", _RETURN_CLONE
    UNSAFE_VIEW_ESCAPES = "unsafe-view-escapes", "Use the operator without unsafe_ in its name."
    UNTRACED_TENSOR_RETURNED = "untraced-tensor-returned", "Pass the tensor as an input of the function."
    UNBACKED_VIEW_RETURNED = "unbacked-view-returned", _RETURN_CLONE
    CUSTOM_FUNCTION_VIEW = "custom-function-view", "Return a clone from the forward of the autograd.Function."
    VIEW_OF_OVERLAPPING_INPUT = "view-of-overlapping-input", _RETURN_CLONE
    ALIAS_INSIDE_OPERATOR = "alias-inside-operator", _RETURN_CLONE
    VIEW_OF_NO_GRAD_VIEW = "view-of-no-grad-view", "Create both views in grad mode."
    INVALIDATED_VIEW = "invalidated-view", "Create the view after the in-place operation."
    DTYPE_VIEW_RETURNED = "dtype-view-returned", _RETURN_CLONE
    VIEW_SIZE_UNREADABLE = "view-size-unreadable", _RETURN_CLONE

    # Inputs that share memory, one of which is mutated
    SHARED_INPUTS_AS_STRIDED = "shared-inputs-as-strided", _CLONE_ALIAS
    SHARED_INPUTS_DYNAMIC = "shared-inputs-dynamic", _STATIC_SIZES
    SHARED_INPUTS_OVERLAP_INSIDE = "shared-inputs-overlap-inside", _CLONE_ALIAS
    SHARED_INPUTS_LAZY_CONJUGATE = "shared-inputs-lazy-conjugate", "Pass tensor.resolve_conj().resolve_neg()."
    SHARED_INPUTS_FAR_APART = "shared-inputs-far-apart", _CLONE_ALIAS
    SHARED_INPUTS_NO_COMMON_VIEW = "shared-inputs-no-common-view", _CLONE_ALIAS
    SHARED_INPUT_VIEW_INVALIDATED = "shared-input-view-invalidated", _RETURN_CLONE

    # Tensor subclasses
    SUBCLASS_DYNAMIC = "subclass-dynamic", _STATIC_SIZES
    SUBCLASS_SIZE_UNREADABLE = "subclass-size-unreadable", _STATIC_SIZES
    SUBCLASS_LAYOUT_MUTATION = "subclass-layout-mutation", _OUT_OF_PLACE
    SUBCLASS_MUTATION_NEEDS_GRAD = "subclass-mutation-needs-grad", _OUT_OF_PLACE
    SUBCLASS_INTEGRAL_NEEDS_GRAD = "subclass-integral-needs-grad", "Compute under torch.no_grad()."
    SUBCLASS_ALIAS_NEEDS_GRAD = "subclass-alias-needs-grad", _CLONE_ALIAS
    SUBCLASS_ALIAS_RETURNED = "subclass-alias-returned", _RETURN_CLONE
    SUBCLASS_LEAF_RETURNED = "subclass-leaf-returned", "Create the tensor outside of the compiled function."
    SUBCLASS_GRADIENT_DIFFERS = "subclass-gradient-differs", "Convert the result to the type of its input."

    # Gradients
    ANOMALY_MODE = "anomaly-mode", "Turn anomaly mode off: torch.autograd.set_detect_anomaly(False)."
    INTER_OUTPUT_GRADIENT = "inter-output-gradient", "Compute the gradient with respect to an input of the function."
    GRAD_MODE_ENABLED_INSIDE = "grad-mode-enabled-inside", "Call the function in grad mode."
    RECURRENT_UNDER_AUTOCAST = "recurrent-under-autocast", "Run the recurrent layer outside of autocast."
    UNDEFINED_GRADIENT_SEEN = "undefined-gradient-seen", "Return one tensor from the custom autograd.Function."
    CUSTOM_BACKWARD_MUTATES = "custom-backward-mutates", _NOT_IN_BACKWARD
    REQUIRES_GRAD_DIFFERS = "requires-grad-differs", "Detach the output, or compute it in grad mode."
    GRADIENT_CHECKED_IN_BACKWARD = "gradient-checked-in-backward", _MOVE_OUT
    CONSTANT_GRADIENT = "constant-gradient", "Compute the gradient from the incoming gradients."

    # Errors
    MISSING_KERNEL = "missing-kernel", "Convert the operands to a dtype or layout that the operator supports."
    UNGUARDED_SIZES = "unguarded-sizes", _STATIC_SIZES
    CANNOT_TRACE = "cannot-trace", "Run the function with backend='eager' to see the error of the operator."
