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
        "patient": "Model.forward: 6 graphs, 4 breaks (line 29: if x.isnan().any():",
        "breaks": ["if x.isnan().any():", "logits.norm().item()", "best[best > 0].numel()"],
        "recompiles": ["self.attention.calls is 1", "tag"],
        "marked": "Plain.forward: 1 graph, no breaks, 3 kernels",
    },
}
