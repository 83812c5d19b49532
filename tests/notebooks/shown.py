"""What cells must show, by notebook and cell: words that their text holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SHOWN: Mapping[str, Mapping[str, str | Sequence[str]]] = {
    "00_tour": {
        "code-04": "masked_softmax: 1 graph, no breaks, 1 kernel for cuda:90",
        "code-07": "0/0 k0 close",
        "code-11": "1 recompile (line 2: scores.size(0) 64 -> 32)",
        "code-13": "This call would use entry 0/1.",
        "code-17": "GPT.forward: 1 graph, no breaks, 2 recompiles",
        "code-21": ["ptx", "sass"],
        "code-23": "loss_of: 2 graphs, 2 breaks (line 3: loss.item",
        "code-25": "True",
        "code-28": "stock torch.compile · GPT.forward: 1 graph",
    },
    "02_graph_breaks": {
        "branch": "clip_if_large: 2 graphs, 1 break (line 3: scale > 2)",
        "where": ["True", "clip_with_where: 1 graph, no breaks"],
        "sizes": "many_ifs: 1 graph, no breaks",
        "catalogue": "return torch.where(x.sum() > 0, x + 1, x - 1)",
        "expect": "break",
    },
    "03_guards": {
        "guarded": ["shape          [4, 8]", "G['settings']['scale']         equals         2.0"],
        "ask": "offset is 2, the compiled code was specialised for 1.",
        "offsets": "1 recompile (line 2: offset equals: 1 -> 2)",
        "modes": "2 recompiles",
        "schedule": "4 recompiles (line 2: schedule.label equals: 'step-0' -> 'step-1', …)",
        "verified": "50 steps, 2 entries",
    },
    "04_dynamic_shapes": {
        "sizes": "1 recompile (line 2: x.size(0) 8 -> 12)",
        "story": "x.shape[0], serves 2 to any size",
        "one": "sizes 0 and 1 are always compiled apart",
        "mark": "scaled: 1 graph, no breaks, 1 kernel",
        "pinned-story": "became 8   line 5",
        "shape-guard-list": "> 100",
    },
    "08_loops_to_triton": {
        "norm": "gated_norm: 1 graph, no breaks, 1 kernel for cuda:90",
        "norm-bytes": "8.4 MB moved",
        "decisions": "The kernel walks the same rows",
        "text": ["@triton.jit", "tl.store(", "grid: (1024)"],
        "verify": "close to ATen's result",
        "two": "rows_then_columns: 1 graph, no breaks, 3 kernels",
        "two-decisions": "NOT fused",
        "roofline": ["bound by memory", "the bend is at 20 operations per byte"],
        "recorded": "gated_norm: 1 graph, no breaks, 1 kernel for cuda:90",
    },
    "10_debug_a_model": {
        "patient": "breaks (line 29: if x.isnan().any():, …)",
        "breaks": ["if x.isnan().any():", "logits.norm().item()", "best.flatten().tolist()"],
        "recompiles": ["1 × self.attention.calls", "3 × tag"],
        "marked": "Plain.forward: 1 graph, no breaks, 3 kernels",
    },
    "01_bytecode_to_graph": {
        "bytecode": "BINARY_OP",
        "steps-graph": ["add_2", "relu"],
        "steps-text-form": ["(not looked at)", "node mul", "steps in all"],
        "rewritten": "RETURN_VALUE",
        "effects": "1",
        "effects-told": "0 breaks; replayed: ",
    },
    "05_functionalisation": {
        "mutation": "(tensor(12.), tensor([4., 4., 4.]))",
        "mutation-facts": ["data mutated", "copied back"],
        "alias-facts": ["made again as a view of x", "tensor([[0., 0., 0.]"],
        "overlap-why": "The tensors see their memory as a from byte 0, b from byte 4",
    },
    "06_training": {
        "partition": ["saved       mm", "recomputed  gelu"],
        "graphs": "backward graph",
        "kernels": "b0 ",
        "dropout-partition": "saved",
    },
    "07_compiled_autograd": {
        "tape": "SumBackward0 → AddmmBackward0 → ReluBackward0",
        "capture": ["captured", "hit"],
        "nodes": "AccumulateGrad",
        "fused": "b0/0 fused_threshold_backward_sum",
        "fused-shown": "2 kernels",
        "hooks": "largest gradient: 0.1",
        "hook-nodes": "tensor_pre_hook",
    },
    "09_ptx_and_sass": {
        "setup": "compiled here",
        "ladder": ["cuda:80     sass", "hip:gfx942  amdgcn"],
        "follow": ["max.f32", "FMNMX", "v_max_f32"],
        "shuffles": "8 shuffles",
        "resources": "hip:gfx942",
    },
    "11_stock_torch_compile": {
        "live": "stock torch.compile · score: 2 graphs",
        "ours": "score: 2 graphs, 1 break (line 3: y.mean)",
        "trace": "Counts(graphs=3, breaks=2, recompiles=3, kernels=0)",
        "anatomy": "first call",
        "stock-guards": "hit: None",
    },
}
