"""Glossary of the field: ``%glossary`` and ``notebooks/reference/GLOSSARY.md``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

INTRODUCTION = (
    "Terms of PyTorch compilers, as this project uses them, and where PyTorch has the same thing. "
    "In a notebook, `%glossary guard` explains one term."
)
IN_PYTORCH = "\n\nIn PyTorch: `{}`"

TERMS: Mapping[str, str] = {
    "alias": "Two tensors that share memory are aliases: a write through one is visible through the other.",
    "AMDGCN": "The machine code of an AMD GPU. ROCm writes it from LLVM IR; it is to AMD what SASS is to NVIDIA.",
    "AOT": "Ahead of time: forward and backward are traced and partitioned before either of them runs.",
    "AOT runtime wrapper": "Code around the functional graph. It restores one effect of the original call, such as an input mutation or an output that is a view.",
    "arithmetic intensity": "The number of operations that a kernel does per byte that it moves. It decides whether memory or arithmetic limits the kernel.",
    "ATen": "PyTorch's library of operators. An ATen graph holds calls to these operators and nothing else.",
    "autograd": "The part of PyTorch that computes gradients. While the forward runs, it saves what the backward needs.",
    "autotune": "Measure several versions of a kernel on the GPU (block sizes, warps, templates) and use the fastest.",
    "backend": "The part of a compiler that turns a traced graph into code that runs: Triton kernels, ATen calls, or a function of yours.",
    "block mask": "Which blocks of attention scores are empty, computed once from a mask function. Kernels of flex_attention can skip those blocks.",
    "bytecode": "The instructions that Python executes. Each function is a list of small instructions for a stack machine. The tracer follows these, not the source text.",
    "cache entry": "One compilation of a function, with its guards. A function can have several cache entries.",
    "cache hit": "A call for which all guards of a cache entry pass. The code of that entry runs, and nothing is compiled.",
    "cause": "The event and your line that led to a guard, a graph break or a recompile.",
    "closure": "A function with the variables of outer functions that it uses. Such a variable is guarded when the function reads it.",
    "collective": "A call that all ranks make together, such as an all-reduce, which gives each of them the same sum or mean.",
    "common subexpression": "An operation that occurs twice in a graph with the same operands. A pass computes it once.",
    "compiled autograd": "The capture of a whole backward as one graph, including hooks and the accumulation of gradients. The graph is then compiled.",
    "CUDA graph": "A recording of kernel launches. A replay starts all of them at once, so the CPU does little work per call.",
    "dead code elimination": "A pass that removes operations whose results nobody uses.",
    "decomposition": "A rule that replaces an operator by simpler ones: layer norm becomes means, differences and a root. Fusion works on the simple ones.",
    "dispatch key": "A part of PyTorch that handles the operators of a tensor, such as CPU or autograd. The set of these keys is guarded.",
    "dispatcher": "The code that runs in place of a compiled function. It checks the guards of each cache entry and calls the first entry whose guards pass. PyTorch also has a dispatcher of operators, see dispatch key.",
    "dynamic shape": "A shape with a size that is a symbol in the compiled code. One cache entry then works for many sizes.",
    "eager": "PyTorch's normal mode: each operation runs as soon as Python reaches it.",
    "epilogue": "Pointwise operations at the end of a template kernel, such as a bias or an activation after a matrix product. They run before the result is stored.",
    "executor": "The code that runs a compiled graph. It allocates buffers, launches kernels and calls ATen.",
    "fake tensor": "A tensor with shape, dtype and device but no data. The tracer computes with fake tensors.",
    "fallback": "An operation that runs in ATen because the compiler has no kernel for it. The record gives the reason.",
    "fix": "A change to your code that removes a graph break or a recompile. It is called verified only after a re-run with the change.",
    "functionalization": "A pass that removes mutation from a graph. Each mutation becomes a new value, and a wrapper copies the final value back into the input.",
    "fusion": "Several operations in one kernel. Intermediate results stay in registers and are never written to memory.",
    "FX graph": "A list of recorded operations, one node each, in PyTorch's format torch.fx.",
    "graph": "The tensor operations that a function runs, in order. It holds one path: loops are unrolled and branches are decided.",
    "graph break": "A line where the graph has to end because Python must run that line. A second graph starts after it.",
    "guard": "A condition that the compiler assumed when it compiled a function (a shape, a type, a value). It is checked before each call. In stock: TENSOR_MATCH, EQUALS_MATCH, TYPE_MATCH, ID_MATCH and others.",
    "guard failure": "A guard that does not pass for a call. The next cache entry is tried; if all fail, the function is recompiled.",
    "hint": "A general suggestion beside a reason, such as: use torch.where. A fix, in contrast, names your own variable.",
    "hook": "A function of yours that autograd or a module calls, for example when a gradient is ready.",
    "inlining": "Tracing into a called function, so that its operations become part of the caller's graph.",
    "joint graph": "Forward and backward in one graph, before the partitioner splits it.",
    "kernel": "A small program that computes on all elements. On a GPU thousands of copies run at once, on a CPU a few threads with vectors.",
    "lane": "One element of a vector. A vector instruction of a CPU computes all lanes at once.",
    "LLVM IR": "The language of the compiler LLVM. Kernels for a CPU are written in it; Triton translates its kernels to it on the way to PTX.",
    "loop IR": "The compiler's form of a computation between operators and Triton: loops over index ranges with loads, arithmetic and stores.",
    "lowering": "The step from operators to loops and memory accesses.",
    "mask function": "A function of batch, head, query and key that says whether an attention score counts. In PyTorch it is called mask_mod.",
    "min-cut": "The set of values with the fewest bytes that separates forward from backward in the joint graph. These values are saved for backward.",
    "multiprocessor": "A group of a GPU's cores with registers and shared memory of its own. It runs several blocks of a kernel at once.",
    "mutation": "A change of a tensor or an object in place. After a compiled call it must be the same as after a plain one.",
    "node": "One operation of a graph, with a name, its inputs, its shape and the line that it comes from.",
    "occupancy": "The share of a multiprocessor's warps that can be active at once. Registers, shared memory, and the number of blocks per multiprocessor limit it.",
    "partitioner": "The pass that splits the joint graph into forward and backward. It chooses which values are saved and which are recomputed.",
    "peak": "The most bytes that are alive at one moment of a forward or a backward. The compiler estimates it from the graph.",
    "program instance": "One of the many copies of a Triton kernel. It handles one block of the data.",
    "PTX": "NVIDIA's portable assembly language. It is forward compatible: the driver translates it to the SASS of its GPU, also of a GPU newer than the PTX. Only PTX with features of one architecture, such as sm_90a, is not.",
    "rank": "One of the processes of a distributed program. Each runs the same code on its part of the data or of the model.",
    "reason": "One sentence that says why something happened: why a graph broke, a guard failed, or two operations were not fused.",
    "recompile": "Compile a function again because the guards of all its cache entries fail for a call.",
    "recompute": "Compute a forward value again in the backward instead of saving it. This costs arithmetic and saves memory.",
    "register": "The fastest memory of a GPU, private to a thread. If there are too few, values spill to slow memory.",
    "replay": "Carry out recorded side effects after the graph, in order. For a CUDA graph: launch the recorded kernels again.",
    "resume function": "A generated function that holds the rest of a function after a graph break. It is compiled in turn.",
    "roofline": "An upper bound on a kernel's speed: memory bandwidth at low arithmetic intensity, peak arithmetic at high intensity.",
    "SASS": "The machine code that an NVIDIA GPU executes. It runs on one generation of GPUs only; PTX is the portable form.",
    "saved for backward": "A value of the forward that is stored until the backward runs.",
    "scheduler": "The pass that groups operations into kernels and orders the kernels. It decides what is fused and records the reason.",
    "score function": "A function of an attention score, batch, head, query and key that returns the new score. It is traced once and becomes part of the attention's kernel. In PyTorch it is called score_mod.",
    "session": "Everything that was recorded while a cell ran. It can be saved, opened elsewhere, and compared with another session.",
    "shape guard": "An equation or inequality between symbols and numbers, such as s77 > 100. It is checked before each call.",
    "shuffle": "An instruction with which a thread of a warp reads a register of another. Reductions over a row use it.",
    "side effect": "Anything that a function does besides returning a value, such as appending to a list or setting an attribute. It is replayed after the graph, in order.",
    "size hint": "The concrete value of a symbol in the call that was traced. Heuristics use it; correctness never depends on it.",
    "snapshot": "The static copy of the explorer below a cell, as HTML and text. It needs no kernel.",
    "source": "Where a value comes from: a local, a global, an attribute, an item of a list.",
    "specialize": "Compile code for one concrete value, such as a size. A guard checks the value. In stock, a size that mark_dynamic marked must not be specialized: ConstraintViolationError.",
    "spill": "A store of a register to memory because there are too few registers. The value is loaded back where it is used.",
    "storage overlap": "Memory that two tensors share in part. If the code writes to one of them, a guard checks the overlap.",
    "stride": "The number of elements between neighbors along a dimension. A transposed tensor has the same data and other strides.",
    "symbol": "A name for a size or a number in compiled code, such as s77. Its record shows its source, its value range and the lines that assumed something about it.",
    "synthetic base": "One tensor for the whole memory that several inputs share. The graph takes the base as its input and creates the views from it.",
    "tangent": "The gradient of an output of the forward. It is an input of the backward.",
    "template": "A hand-written Triton kernel with parameters, for matrix products or attention. The compiler fills in block sizes and the epilogue.",
    "tracing": "Following a function's bytecode with fake tensors and recording the operations on them as a graph.",
    "Triton": "A language for GPU kernels that looks like Python and works on blocks of data. The compiler's kernels are written in it.",
    "unbacked symbol": "A symbol for a number that depends on data, such as x.item() or the length of x.nonzero(). It has no size hint.",
    "undefined gradient": "A gradient that does not exist because the output was not used. Autograd passes it as None.",
    "value range": "The lowest and the highest value that a symbol or a graph value can have, as far as the compiler knows.",
    "variable": "The tracer's stand-in for a Python value, such as TensorVariable or ListVariable.",
    "view": "A tensor that shares the memory of another tensor with other sizes or strides: a slice, a transpose, a reshape.",
    "warp": "A group of 32 threads of an NVIDIA GPU that run the same instruction together. On AMD it is a wave of 32 or 64.",
}

IN_TORCH: Mapping[str, str] = {
    "AOT": "torch._functorch.aot_autograd",
    "AOT runtime wrapper": "torch._functorch._aot_autograd.runtime_wrappers.CompilerWrapper",
    "autotune": "torch._inductor.config.max_autotune",
    "backend": "torch._dynamo.list_backends",
    "block mask": "torch.nn.attention.flex_attention.BlockMask",
    "cache entry": "torch._dynamo.eval_frame._debug_get_cache_entry_list",
    "collective": "torch.distributed._functional_collectives",
    "compiled autograd": "torch._dynamo.compiled_autograd",
    "CUDA graph": "torch.cuda.CUDAGraph",
    "dead code elimination": "torch.fx.Graph.eliminate_dead_code",
    "decomposition": "torch._inductor.decomposition.select_decomp_table",
    "dispatch key": "torch._C.DispatchKey",
    "dispatcher": "torch._dynamo.eval_frame",
    "dynamic shape": "torch._dynamo.mark_dynamic",
    "executor": "torch._inductor.output_code.CompiledFxGraph",
    "fake tensor": "torch._subclasses.FakeTensor",
    "fallback": "torch._inductor.ir.FallbackKernel",
    "functionalization": "torch.func.functionalize",
    "FX graph": "torch.fx.Graph",
    "graph break": "torch._dynamo.exc.Unsupported",
    "guard": "torch._dynamo.guards.GuardBuilder",
    "hook": "torch.Tensor.register_hook",
    "inlining": "torch._dynamo.symbolic_convert.InliningInstructionTranslator",
    "joint graph": "torch._functorch.aot_autograd.aot_export_joint_simple",
    "loop IR": "torch._inductor.ir.Loops",
    "lowering": "torch._inductor.lowering",
    "mask function": "torch.nn.attention.flex_attention.create_block_mask",
    "node": "torch.fx.Node",
    "partitioner": "torch._functorch.partitioners.min_cut_rematerialization_partition",
    "recompile": "torch._dynamo.config.recompile_limit",
    "recompute": "torch._functorch.config.activation_memory_budget",
    "resume function": "torch._dynamo.resume_execution.TORCH_DYNAMO_RESUME_IN_PREFIX",
    "saved for backward": "torch.autograd.graph.saved_tensors_hooks",
    "scheduler": "torch._inductor.scheduler.Scheduler",
    "score function": "torch.nn.attention.flex_attention.flex_attention",
    "shape guard": "torch._dynamo.guards.GuardBuilder.SHAPE_ENV",
    "side effect": "torch._dynamo.side_effects.SideEffects",
    "source": "torch._guards.Source",
    "storage overlap": "torch._guards.StorageOverlap",
    "symbol": "torch.SymInt",
    "synthetic base": "torch._functorch._aot_autograd.runtime_wrappers.AOTSyntheticBaseWrapper",
    "template": "torch._inductor.select_algorithm.TritonTemplate",
    "tracing": "torch._dynamo.symbolic_convert.InstructionTranslator",
    "unbacked symbol": "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode",
    "value range": "torch.utils._sympy.value_ranges.ValueRanges",
    "variable": "torch._dynamo.variables.base.VariableTracker",
}
"""Module, class, function or setting of PyTorch that is the same thing, by term."""

VIEW_TERMS: Mapping[str, tuple[str, ...]] = {
    "linked": ("FX graph", "ATen", "loop IR", "lowering", "Triton", "LLVM IR", "PTX", "SASS"),
    "guards": ("guard", "guard failure", "source", "cache entry", "specialize"),
    "recompiles": ("recompile", "dispatcher", "symbol", "dynamic shape"),
    "breaks": ("graph break", "resume function", "side effect"),
    "graph": ("graph", "decomposition", "joint graph", "view"),
    "kernels": (
        "kernel",
        "fusion",
        "roofline",
        "arithmetic intensity",
        "occupancy",
        "register",
        "spill",
        "lane",
    ),
    "tracer": ("tracing", "bytecode", "fake tensor", "inlining"),
    "aot": (
        "AOT runtime wrapper",
        "functionalization",
        "mutation",
        "alias",
        "partitioner",
        "recompute",
    ),
    "compilations": ("session", "backend"),
}
"""Terms that each view of the explorer shows beside its keys."""


def terms_by_view() -> dict[str, list[tuple[str, str]]]:
    """Return the terms of each view with their definitions."""
    return {view: [(term, TERMS[term]) for term in terms] for view, terms in VIEW_TERMS.items()}


def explain_term(word: str) -> str:
    """Return the definition of a term; for "", all definitions.

    For an unknown term, suggest the closest known ones.
    """
    if not word:
        return "\n".join(f"{term}: {text}" for term, text in TERMS.items())
    terms = {term.lower(): term for term in TERMS}
    lowered = word.lower()
    for form in (lowered, lowered.removesuffix("s"), lowered.removesuffix("es")):
        if form in terms:
            return f"{terms[form]}: {TERMS[terms[form]]}{_in_torch(terms[form], ' In PyTorch: {}.')}"
    near = [terms[n] for n in difflib.get_close_matches(lowered, terms, 3, 0.5)]
    return f"{word!r} is not in the glossary." + (f" Did you mean {' or '.join(near)}?" if near else "")


def glossary_page() -> str:
    """Return the text of ``notebooks/reference/GLOSSARY.md``."""
    rows = "\n\n".join(f"## {term}\n\n{text}{_in_torch(term, IN_PYTORCH)}" for term, text in TERMS.items())
    return f"# Glossary\n\n{INTRODUCTION}\n\n{rows}\n"


def _in_torch(term: str, form: str) -> str:
    """Return the name of the thing in PyTorch, as a sentence, or "" if it has none."""
    return form.format(IN_TORCH[term]) if term in IN_TORCH else ""
