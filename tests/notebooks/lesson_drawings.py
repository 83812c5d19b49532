"""The drawings of the lessons, one for each idea.

Command line: ``python -m tests.notebooks.lesson_drawings`` writes them into ``notebooks/drawings``.
"""

from __future__ import annotations

from tests.notebooks.drawing import Box, Drawing, Link, Squares, svg_of
from tests.notebooks.notebook_runner import NOTEBOOKS_DIR

FOLDER = NOTEBOOKS_DIR / "drawings"


def code(text: str, kind: str = "plain", name: str = "", align: str = "start") -> Box:
    """A box of code."""
    return Box(text, kind, name, code=True, align=align)


def words(text: str, name: str = "", align: str = "middle") -> Box:
    """Text without a frame."""
    return Box(text, "none", name, align=align)


def label(text: str) -> Box:
    """Text without a frame, left of a bar."""
    return words(text, align="start")


def bar(text: str, units: float, kind: str) -> Box:
    """A bar of a length, in pixels."""
    return Box(text, kind, width=units)


DRAWINGS: dict[str, Drawing] = {
    "00-stages": Drawing(
        "From a call to a result: the function is traced to a graph, the graph becomes kernels, and the kernels compute the result. Guards are checked at the next call: if they pass, the kernels run at once; if one fails, the function is traced again.",
        (
            (code("masked_softmax\n(scores, keep)", name="f"), Box("graph\nmul, masked_fill,\nsoftmax", "graph", "graph"), Box("kernel\none pass over\nthe matrix", "kernel", "kernel"), Box("result", "good")),
            (Box("next call"), Box("guards\ntypes, shapes"), None, None),
        ),
        (Link("f", "graph", "trace"), Link("graph", "kernel", "fuse"), Link("kernel", "result", "run"), Link("next call", "guards", "check"), Link("guards", "kernel", "pass: run"), Link("guards", "f", "fail: recompile", is_dashed=True)),
        gap=70, row_gap=52,
    ),
    "00-break": Drawing(
        "Two graphs with Python between them: the first graph computes the loss, Python prints it, and the second graph computes the half.",
        ((Box("graph 1\ncross_entropy", "graph"), code('print("loss", round(\n    loss.item(), 3))', "bad", "print"), Box("graph 2\nloss * 0.5", "graph"), Box("result", "good")),),
        (Link("graph 1", "print", "loss"), Link("print", "graph 2"), Link("graph 2", "result")),
    ),
    "01-trace": Drawing(
        "The tracer follows bytecode with a stack of stand-ins. Instructions that combine tensors add a node to the graph; the others only move values.",
        (
            (words("bytecode"), words("stack afterwards"), words("graph")),
            (code("LOAD_FAST x"), code("x", name="s1"), None),
            (code("LOAD_CONST 2"), code("x, 2", name="s2"), None),
            (code("BINARY_OP *"), code("mul", name="s3"), code("mul = x * 2", "graph", "n1")),
            (code("LOAD_CONST 1"), code("mul, 1", name="s4"), None),
            (code("BINARY_OP +"), code("add", name="s5"), code("add = mul + 1", "graph", "n2")),
            (code("RETURN_VALUE"), code("empty", name="s6"), code("return add", "graph", "n3")),
        ),
        (Link("BINARY_OP *", "s3"), Link("s3", "n1", "adds"), Link("BINARY_OP +", "s5"), Link("s5", "n2", "adds"), Link("RETURN_VALUE", "s6"), Link("s6", "n3")),
        row_gap=10, gap=64,
    ),
    "01-call": Drawing(
        "What runs in place of the function: new bytecode loads the inputs, calls the compiled graph, replays the side effects in order, and returns.",
        ((Box("load inputs", "plain"), Box("call the graph", "graph"), Box("replay side effects\nappend, set, ...", "bad", "effects"), Box("return", "good")),),
        (Link("load inputs", "call the graph"), Link("call the graph", "effects"), Link("effects", "return")),
    ),
    "02-break": Drawing(
        "clip_if_large breaks at its if: graph 1 computes the scale, Python reads its value and decides, and a resume function, which is compiled in turn, continues with graph 2.",
        ((code("graph 1\nabs, max", "graph"), code("if scale > 2:", "bad"), code("resume function\ngraph 2: div, sin, add", "graph", "yes")), (None, None, code("resume function\ngraph 2: sin, add", "graph", "no"))),
        (Link("graph 1", "if scale > 2:", "wait"), Link("if scale > 2:", "yes", "true"), Link("if scale > 2:", "no", "false")),
        gap=72,
    ),
    "02-where": Drawing(
        "With torch.where there is one graph: both outcomes are computed, and the comparison selects one of them, element by element. Python needs no value.",
        ((None, code("x / scale", "graph"), None), (code("scale > 2", "graph"), None, code("torch.where", "good")), (None, code("x", "graph"), None)),
        (Link("scale > 2", "torch.where", "selects"), Link("x / scale", "torch.where"), Link("x", "torch.where")),
        row_gap=14, gap=90,
    ),
    "03-dispatch": Drawing(
        "A call tries the cache entries in turn. The first entry whose guards all pass is used. If no entry fits, the function is compiled again, and the new entry is tried by later calls.",
        (
            (code("shifted(x, 3)", name="call"), Box("entry 1: offset == 1\nguard fails", "bad", "one"), Box("entry 2: offset is a symbol\nall guards pass", "good", "two"), Box("run its code", "kernel", "run")),
            (None, None, Box("no entry fits: recompile", "bad", "new"), None),
        ),
        (Link("call", "one", "check"), Link("one", "two", "next"), Link("two", "run", "hit"), Link("two", "new", "miss", is_dashed=True), Link("new", "run", "new entry", is_dashed=True)),
        gap=66,
    ),
    "04-automatic": Drawing(
        "Five calls of centered: 8 rows make the first entry, for 8 rows. 12 rows make the second, with a symbol for the rows. 16, 20 and 24 rows hit the second entry.",
        (
            (Box("8 rows"), Box("12 rows"), Box("16, 20, 24 rows")),
            (Box("entry 1\n8 rows", "graph", "one"), Box("entry 2\ns77 rows, 2 or more", "good", "two"), None),
        ),
        (Link("8 rows", "one", "compile"), Link("12 rows", "two", "compile"), Link("16, 20, 24 rows", "two", "hit")),
        gap=40, row_gap=54,
    ),
    "04-outcomes": Drawing(
        "What a line can do to a symbol: x.reshape(-1) leaves it free, x.shape[0] > 100 divides its values by a shape guard, and x + torch.ones(8, 4) specializes it to 8.",
        (
            (None, code("x.reshape(-1)", align="middle"), Box("stays a symbol: 2 or more", "good", "free")),
            (code("s77 rows", "graph"), code("if x.shape[0] > 100", align="middle"), Box("shape guard: s77 <= 100, or another entry", "graph", "guard")),
            (None, code("x + torch.ones(8, 4)", align="middle"), Box("specialized: s77 == 8, one size only", "bad", "fixed")),
        ),
        (Link("s77 rows", "if x.shape[0] > 100"), Link("s77 rows", "x.reshape(-1)"), Link("s77 rows", "x + torch.ones(8, 4)"), Link("x.reshape(-1)", "free"), Link("if x.shape[0] > 100", "guard"), Link("x + torch.ones(8, 4)", "fixed")),
        row_gap=26, gap=72,
    ),
    "05-wrappers": Drawing(
        "The functional graph inside makes new values only. The AOT runtime wrappers outside copy the last value back into x, so that the call looks as in eager.",
        (
            (Box("x"), code("x1 = x + 1\nx2 = x1 * 2\nsum = x2.sum()", "graph", "graph"), Box("sum", "good")),
            (Box("x, as eager leaves it", "good", "after"), Box("wrapper: copy x2 into x", "bad", "copy"), None),
        ),
        (Link("x", "graph", "input"), Link("graph", "sum", "output"), Link("graph", "copy", "x2"), Link("copy", "after")),
        row_gap=40, gap=70,
    ),
    "05-overlap": Drawing(
        "Two inputs of both that share memory: a is elements 0 to 2 of base, b is elements 1 to 3. A write to a changes elements 1 and 2 of b.",
        (
            (label("base"), Squares(("012345",), "base-row")),
            (label("a = base[:3]"), Squares(("012...",), "a-row", "bad")),
            (label("b = base[1:4]"), Squares((".123..",), "b-row", "good")),
        ),
        row_gap=8, gap=16, is_left_aligned=True,
    ),
    "06-partition": Drawing(
        "The joint graph of mlp_loss. The forward computes the product, gelu and the mean. Only the product crosses to the backward, which recomputes gelu from it and then computes the gradient of w.",
        (
            (words("forward"), Box("x @ w\nexpensive", "kernel", "mm"), Box("gelu\ncheap", "graph", "gelu"), Box("square, mean", "graph", "mean"), Box("loss", "good")),
            (words("backward"), Box("gradient of w", "good", "grad"), Box("gradient of gelu", "graph", "dgelu"), Box("gelu again\nrecomputed", "bad", "again"), Box("tangent", "plain")),
        ),
        (Link("mm", "gelu"), Link("gelu", "mean"), Link("mean", "loss"), Link("mm", "again", "saved: 64 KiB"), Link("tangent", "again"), Link("again", "dgelu"), Link("dgelu", "grad")),
        row_gap=56,
    ),
    "07-capture": Drawing(
        "Autograd's nodes run from the loss back to the parameters, with hooks between them. Compiled autograd captures nodes, hooks and the accumulation into .grad as one graph.",
        (
            (words("autograd's nodes"), Box("loss"), Box("MulBackward"), Box("your hook", "bad"), Box("MmBackward"), Box("AccumulateGrad")),
            (words("captured graph"), Box("tangent", "graph"), Box("mul", "graph"), Box("call of the hook", "bad", "hook"), Box("mm", "graph"), Box("w.grad += ...", "good", "grad")),
        ),
        (Link("loss", "MulBackward"), Link("MulBackward", "your hook"), Link("your hook", "MmBackward"), Link("MmBackward", "AccumulateGrad"), Link("tangent", "mul"), Link("mul", "hook"), Link("hook", "mm"), Link("mm", "grad"), Link("MulBackward", "mul"), Link("your hook", "hook"), Link("MmBackward", "mm"), Link("AccumulateGrad", "grad")),
        gap=30,
    ),
    "08-bytes": Drawing(
        "Bytes of gated_norm: eager moves 50.4 MB in twelve passes over a matrix of 4.2 MB. As one kernel, 8.4 MB are moved: x is read once, the result is written once.",
        (
            (label("eager: 12 passes"), bar("50.4 MB", 504, "bad")),
            (label("one kernel: 2 passes"), bar("8.4 MB", 84, "good")),
        ),
        row_gap=10, gap=16, is_left_aligned=True,
    ),
    "08-rows": Drawing(
        "rows_then_columns: the first kernel reduces along rows, to a maximum and a sum each. The second adds up the softmax down the columns, for some rows at a time. The third adds those sums.",
        (
            (Squares(("→→→→→→",) * 6, "rows"), Squares(("↓↓↓↓↓↓",) * 3 + ("↓↓↓↓↓↓",) * 3, "columns", "kernel"), Squares(("↓↓↓↓↓↓",) * 2, "sums", "good"), Squares(("######",), "mean", "good")),
            (words("kernel 1: maximum and\nsum of each row"), words("kernel 2: softmax, added\nup for some rows each"), words("kernel 3:\nadd those sums"), words("mean of\neach column")),
        ),
        (Link("rows", "columns"), Link("columns", "sums"), Link("sums", "mean")),
        row_gap=8, gap=44,
    ),
    "08-roofline": Drawing(
        "The roofline of an H100: up to 20 operations per byte the memory limits a kernel, and its least time is bytes divided by 3.35 TB/s. Beyond that arithmetic limits it, and its least time is operations divided by 67 TFLOP/s.",
        (
            (words("operations per byte:"), bar("below 20: bound by memory", 300, "graph"), bar("above 20: bound by arithmetic", 300, "kernel")),
            (words("least time:"), code("bytes / 3.35e12", name="bytes", align="middle"), code("operations / 67e12", name="operations", align="middle")),
            (words("helps:"), Box("fuse, use fewer bits"), Box("do less arithmetic, use tensor cores")),
        ),
        row_gap=10, gap=6,
    ),
    "09-ladder": Drawing(
        "The stages below Triton: TTIR, TTGIR and LLVM IR are intermediate languages. For NVIDIA, PTX is assembly and SASS machine code; for AMD the machine code is AMDGCN.",
        (
            (Box("Triton", "kernel"), Box("TTIR\nblocks", "graph"), Box("TTGIR\nblocks and layouts", "graph"), Box("LLVM IR\nthreads", "graph"), Box("PTX\nassembly", "plain"), Box("SASS\nNVIDIA", "good")),
            (None, None, None, None, None, Box("AMDGCN\nAMD", "good")),
        ),
        (Link("Triton", "TTIR"), Link("TTIR", "TTGIR"), Link("TTGIR", "LLVM IR"), Link("LLVM IR", "PTX"), Link("PTX", "SASS"), Link("LLVM IR", "AMDGCN")),
        gap=34, row_gap=24,
    ),
    "09-occupancy": Drawing(
        "How many warps of the softmax kernel fit into a multiprocessor of 64 warps: registers would allow 48, 32 blocks of one warp allow 32. The smallest limit decides: 32 of 64 warps, an occupancy of 50 percent.",
        (
            (label("warp slots"), bar("64", 448, "plain")),
            (label("registers, 34 a thread"), bar("48", 336, "plain")),
            (label("blocks: 32 of one warp"), bar("32: this limit decides", 224, "bad")),
        ),
        row_gap=8, gap=16, is_left_aligned=True,
    ),
    "10-method": Drawing(
        "A method: list the breaks and recompiles, ask for each who needs the value and when, repair one, run again and compare with eager. Repeat until the list is empty.",
        (
            (Box("list\nbreaks, recompiles", "graph"), Box("ask\nwho needs this value,\nand when?", "plain"), Box("repair one", "kernel"), Box("run, compare\nwith eager", "graph", "run"), Box("keep it\nengine.expect", "good")),
            (None, None, Box("not empty yet", "bad"), None, None),
        ),
        (Link("list", "ask"), Link("ask", "repair one"), Link("repair one", "run"), Link("run", "keep it", "empty"), Link("run", "not empty yet", is_dashed=True), Link("not empty yet", "list", is_dashed=True)),
        gap=60, row_gap=26,
    ),
    "11-logs": Drawing(
        "Two ways to the same views of stock torch.compile: live, with a magic on top of a cell; or from the files that a job wrote because TORCH_TRACE was set, on any machine.",
        (
            (Box("notebook cell"), code("%%compile --backend torch", align="middle"), None),
            (None, None, Box("graphs, breaks,\nguards, recompiles", "good", "views")),
            (Box("job of last night\nTORCH_TRACE=logs", "plain", "job"), code("%explore logs", align="middle"), None),
        ),
        (Link("notebook cell", "%%compile --backend torch"), Link("%%compile --backend torch", "views", "live"), Link("job", "%explore logs", "files"), Link("%explore logs", "views", "later")),
        row_gap=22, gap=64,
    ),
    "12-stages": Drawing(
        "The stages of the small compiler: bytecode is followed to nodes, the nodes are simplified, loops are made of them, and LLVM turns their text into machine code. Guards come from what was read. An instruction without a handler ends the attempt, and the call runs in eager.",
        (
            (Box("bytecode"), Box("graph\nnodes", "graph"), Box("simplified graph", "graph"), Box("loops", "kernel"), Box("LLVM IR", "kernel"), Box("machine code", "good")),
            (Box("eager, with a reason", "bad", "eager"), Box("guards"), None, None, None, None),
        ),
        (Link("bytecode", "graph", "follow"), Link("graph", "simplified graph"), Link("simplified graph", "loops", "fuse"), Link("loops", "LLVM IR", "print"), Link("LLVM IR", "machine code"), Link("bytecode", "eager", "no handler", is_dashed=True), Link("graph", "guards", "what was read")),
        gap=60,
    ),
    "13-order": Drawing(
        "The order of the ten steps, with the figure of each: baseline and profile, one graph, few compilations and dynamic shapes, fusion, attention and checkpoints, fewer bits, cold start and GPU settings.",
        (
            (Box("1, 2\nwhat runs", "plain", "a"), Box("3\none graph", "graph", "b"), Box("4, 5\nfew compilations", "graph", "c"), Box("6\nfusion", "kernel", "d"), Box("7, 8\nless saved", "kernel", "e"), Box("9\nfewer bits", "kernel", "f"), Box("10\ncold start", "good", "g")),
            (words("time,\noperators"), words("breaks"), words("recompiles"), words("bytes,\ntime"), words("MB saved"), words("difference"), words("first call")),
        ),
        (Link("a", "b"), Link("b", "c"), Link("c", "d"), Link("d", "e"), Link("e", "f"), Link("f", "g")),
        gap=26, row_gap=6,
    ),
    "14-doors": Drawing(
        "Where code of yours enters: a custom operator is one node of the graph, a pass changes the graph, and a backend receives the graph and returns what is called. With torch.export the graph leaves, without Python and without a second entry.",
        (
            (None, Box("custom operator\none node, opaque", "good"), Box("pass\ngraph to graph", "good"), Box("backend\nreturns what to call", "good")),
            (Box("function"), Box("graph", "graph"), Box("functional graph", "graph"), Box("what runs", "kernel")),
            (None, Box("torch.export\nthe graph leaves", "bad"), None, None),
        ),
        (Link("function", "graph", "trace"), Link("graph", "functional graph"), Link("functional graph", "what runs", "lower"), Link("custom operator", "graph"), Link("pass", "functional graph"), Link("backend", "what runs"), Link("graph", "torch.export")),
        gap=60, row_gap=34,
    ),
    "15-parallel": Drawing(
        "Data parallel on two ranks: each has the whole model and a part of the data. After the backward, an all-reduce gives both the mean of their gradients, and both take the same step.",
        (
            (Box("rank 0: data 0"), Box("whole model\nforward, backward", "graph", "m0"), Box("gradients 0", "plain"), Box("same step", "good", "s0")),
            (None, None, Box("all-reduce: mean", "bad", "reduce"), None),
            (Box("rank 1: data 1"), Box("whole model\nforward, backward", "graph", "m1"), Box("gradients 1", "plain"), Box("same step", "good", "s1")),
        ),
        (Link("rank 0: data 0", "m0"), Link("m0", "gradients 0"), Link("gradients 0", "reduce"), Link("gradients 1", "reduce"), Link("reduce", "s0"), Link("reduce", "s1"), Link("rank 1: data 1", "m1"), Link("m1", "gradients 1")),
        row_gap=30,
    ),
    "15-sharded": Drawing(
        "Sharded training of one layer on one rank: its part of the parameters is gathered to the whole layer, used, and freed. In the backward it is gathered again, and a reduce-scatter leaves each rank its part of the gradients.",
        (
            (Box("1/64 of the\nparameters", "plain", "part"), Box("all-gather", "bad", "g1"), Box("whole layer:\nforward", "graph", "f"), Box("free", "plain", "free1")),
            (Box("1/64 of the\ngradients", "good", "grads"), Box("reduce-scatter", "bad", "rs"), Box("whole layer:\nbackward", "graph", "b"), Box("all-gather", "bad", "g2")),
        ),
        (Link("part", "g1"), Link("g1", "f"), Link("f", "free1"), Link("free1", "g2"), Link("g2", "b"), Link("b", "rs"), Link("rs", "grads")),
        row_gap=40,
    ),
    "16-scores": Drawing(
        "A score function becomes part of one kernel: queries and keys are multiplied, one kernel applies the scale, the score function and the softmax, and its weights are multiplied with the values.",
        (
            (None, code("def near(score, ...)", "good", align="middle"), None, None),
            (Box("queries × keys", "graph", "qk"), Box("scale, score function,\nmask, softmax", "kernel", "soft"), Box("weights × values", "graph", "pv"), Box("result", "plain")),
        ),
        (Link("qk", "soft", "all scores"), Link("def near(score, ...)", "soft", "traced once"), Link("soft", "pv", "weights"), Link("pv", "result")),
        gap=92, row_gap=40,
    ),
}  # fmt: skip


def write_drawings() -> None:
    """Write all drawings."""
    FOLDER.mkdir(exist_ok=True)
    for name, drawing in DRAWINGS.items():
        (FOLDER / f"{name}.svg").write_text(svg_of(drawing), encoding="utf-8")


if __name__ == "__main__":
    write_drawings()
