"""Handmade sessions for tests of the front end.

They hold real listings of one kernel, three frames, six compilations and eight calls.
"""

from __future__ import annotations

import functools
import json
import pathlib
from dataclasses import replace
from typing import Any

from engine.records.aot import AotRecord, ValueFacts, WrapperAction, WrapperRecord
from engine.records.autograd import AutogradNodeRecord, BackwardRecord, CacheMissReason
from engine.records.bytecode import Instruction, SourceFile, Span
from engine.records.graph import GraphRecord, NodeRecord
from engine.records.guards import Fix, GuardFailure, GuardRecord, GuardResult, GuardsRecord
from engine.records.kernels import KernelRecord, KernelResources, LineLink, Listing, LoopOp, TargetRecord, VerifyRecord
from engine.records.lowering import ExternCall, FusionDecision, LoweringRecord
from engine.records.runtime import CallRecord, SkippedRecord, StageFailure, Timing
from engine.records.session import CompilationRecord, FrameRecord, Session
from engine.records.trace import BreakRecord, DiscardedAttempt, InlinedCall, StepRecord, TraceRecord

CELL = "<ipython-input-3-cell>"
CALLER = [
    "",
    "head = Head()",
    "with torch.no_grad():",
    "    for rows in (64, 64, 96, 128, 32, 256, 64, 1):",
    "        y, left = head(torch.randn(rows, 128), torch.rand(rows, 128) > 0.1)",
    "        loss(y)",
]


@functools.cache
def kernel_facts() -> dict[str, Any]:
    """Listings of one real kernel, and the bytecode of the two functions behind it."""
    return json.loads(pathlib.Path(__file__).with_name("head_kernel.json").read_text(encoding="utf-8"))


def at(line: int, start: int = -1, end: int = -1) -> Span:
    """A piece of one line of the cell."""
    return Span(CELL, line, line, start, end)


CALL = at(11, 12, 38)
# name, text, shape, span, callers
FX = [
    ("x", "x", "64,128", None, ()),
    ("keep", "keep", "64,128", None, ()),
    ("weight", "weight", "128", None, ()),
    ("bias", "bias", "128", None, ()),
    ("total", "total", "128", None, ()),
    ("mul", "x * 0.125", "64,128", at(11, 22, 31), ()),
    ("invert", "~keep", "64,128", at(8, 29, 34), (CALL,)),
    ("masked_fill", "mul.masked_fill(invert, -1000000000.0)", "64,128", at(8, 15, 41), (CALL,)),
    ("softmax", "torch.softmax(masked_fill, dim=-1)", "64,128", at(12, 12, 36), ()),
    ("layer_norm", "F.layer_norm(softmax, (128,), weight, bias, 1e-05)", "64,128", at(13, 12, 24), ()),
    ("add", "layer_norm + x", "64,128", at(13, 12, 28), ()),
    ("sum_1", "add.sum(0)", "128", at(14, 22, 30), ()),
    ("iadd", "total.add_(sum_1)", "128", at(14, 8, 30), ()),
    ("getitem", "x[:, :64]", "64,64", at(15, 18, 27), ()),
    ("output", "return (add, getitem)", "", None, ()),
]
# name, text, fx origin
ATEN = [
    ("x", "x", "x"),
    ("keep", "keep", "keep"),
    ("mul", "aten.mul(x, 0.125)", "mul"),
    ("not_", "aten.bitwise_not(keep)", "invert"),
    ("where", "aten.where(not_, -1e9, mul)", "masked_fill"),
    ("amax", "aten.amax(where, [-1], True)", "softmax"),
    ("sub", "aten.sub(where, amax)", "softmax"),
    ("exp", "aten.exp(sub)", "softmax"),
    ("sum_1", "aten.sum(exp, [-1], True)", "softmax"),
    ("div", "aten.div(exp, sum_1)", "softmax"),
    ("var_mean", "aten.var_mean(div, [1], correction=0)", "layer_norm"),
    ("rsqrt", "aten.rsqrt(var_mean_0 + 1e-05)", "layer_norm"),
    ("mul_1", "aten.mul(div - var_mean_1, rsqrt)", "layer_norm"),
    ("affine", "aten.add(aten.mul(mul_1, weight), bias)", "layer_norm"),
    ("add", "aten.add(affine, x)", "add"),
    ("sum_2", "aten.sum(add, [0])", "sum_1"),
    ("add_1", "aten.add(total, sum_2)", "iadd"),
    ("slice_1", "aten.slice(x, 1, 0, 64)", "getitem"),
    ("output", "return (add, slice_1, add_1)", ""),
]
# text, aten origins, Triton lines
LOOPS = [
    ("row, col = program_id, arange(128)", "", (3, 4, 5)),
    ("x = load(x, 128*row + col)", "x mul", (6,)),
    ("keep = load(keep, 128*row + col)", "keep not_", (7,)),
    ("s = x * 0.125", "mul", (8,)),
    ("s = where(keep, s, -1e9)", "where not_", (9,)),
    ("top = reduce_max(col, s)", "amax", (10,)),
    ("e = exp(s - top)", "sub exp", (11,)),
    ("z = reduce_sum(col, e)", "sum_1", (12,)),
    ("p = e / z", "div", (13,)),
    ("mu = reduce_sum(col, p) / 128", "var_mean", (14, 15)),
    ("var = reduce_sum(col, (p - mu)**2) / 128", "var_mean", (16,)),
    ("r = rsqrt(var + 1e-05)", "rsqrt", (17,)),
    ("y = (p - mu) * r * w + b", "mul_1 affine", (18, 19, 20)),
    ("store(y, 128*row + col, y + x)", "add", (21,)),
]


def shape_of(text: str, rows: str) -> tuple[str, ...]:
    """A shape, with the row count replaced."""
    return tuple(rows if size == "64" and i == 0 else size for i, size in enumerate(text.split(","))) if text else ()


def fx_graph(compilation: str, rows: str) -> GraphRecord:
    """The traced graph of Head.forward."""
    names = [name for name, *_ in FX]
    nodes = []
    for name, text, shape, span, callers in FX:
        op = "placeholder" if span is None and name != "output" else "output" if name == "output" else "call_function"
        inputs = tuple(
            f"fx:{compilation}:{n}"
            for n in names
            if op != "placeholder"
            and n
            in text.replace("(", " ")
            .replace(")", " ")
            .replace(",", " ")
            .replace(".", " ")
            .replace("[", " ")
            .replace("~", "")
            .split()
        )
        nodes.append(
            NodeRecord(
                id=f"fx:{compilation}:{name}",
                name=name,
                op=op,
                target=name,
                text=text if op != "call_function" else f"{name} = {text}",
                inputs=inputs,
                shape=shape_of(shape, rows) or None,
                dtype="b8" if name in ("keep", "invert") else "f32" if shape else "",
                device="cpu" if shape else "",
                bytes=None if not shape else 4 * 64 * 128,
                span=span,
                stack=(*callers, span) if span else (),
                module="norm" if name == "layer_norm" else "",
            )
        )
    return GraphRecord(id=f"fx:{compilation}", stage="fx", title="FX", nodes=tuple(nodes))


def aten_graph(compilation: str, rows: str) -> GraphRecord:
    """The functional graph of Head.forward."""
    names = [name for name, *_ in ATEN]
    nodes = []
    for name, text, origin in ATEN:
        op = "placeholder" if text == name else "output" if name == "output" else "call_function"
        words = (
            text.replace("(", " ").replace(")", " ").replace(",", " ").replace("_0", " ").replace("_1 ", "_1 ").split()
        )
        inputs = tuple(f"aten:{compilation}:{n}" for n in names if n in words and n != name)
        source = next((f for f in FX if f[0] == origin), None)
        nodes.append(
            NodeRecord(
                id=f"aten:{compilation}:{name}",
                name=name,
                op=op,
                target=name,
                text=text if op != "call_function" else f"{name} = {text}",
                inputs=inputs,
                shape=shape_of(source[2], rows) if source else None,
                dtype="f32",
                device="cpu",
                origins=(f"fx:{compilation}:{origin}",) if origin else (),
                span=source[3] if source else None,
                note="" if origin else "generated: what the graph returns",
            )
        )
    return GraphRecord(id=f"aten:{compilation}", stage="aten", title="ATen", nodes=tuple(nodes))


def listing(stage: str) -> Listing:
    """One stage of the real kernel, each line linked to its Triton line."""
    facts = kernel_facts()
    rows = facts[stage]
    links = []
    for number, row in enumerate(rows, 1):
        triton = row[1] if row[1] not in (None, 2) else 0
        library = tuple(facts["libs"][row[2]].split(" < ")[::-1]) if len(row) > 2 and row[2] is not None else ()
        links.append(LineLink(number, triton, library, "" if triton else "generated: kernel arguments"))
    linked = sum(bool(link.triton_line) for link in links)
    return Listing(stage, "\n".join(row[0] for row in rows), tuple(links), len(rows), linked, len(rows) - linked)


def head_kernel(compilation: str, *, compiled: bool = True) -> KernelRecord:
    """The kernel that softmax, mask and layer norm were fused into."""
    text = "\n".join(kernel_facts()["triton"])
    ops = tuple(
        LoopOp(f"loop:{compilation}:k0:{i}", op, tuple(f"aten:{compilation}:{n}" for n in origins.split()))
        for i, (op, origins, _) in enumerate(LOOPS)
    )
    line_ops = tuple(
        tuple(ops[i].id for i, loop in enumerate(LOOPS) if number in loop[2])
        for number in range(1, text.count("\n") + 2)
    )
    targets = (
        TargetRecord(
            "cuda:90",
            tuple(listing(s) for s in ("ttir", "ttgir", "llir", "ptx", "sass")),
            KernelResources(registers=28, spills=0, shared_bytes=0, warps=1, occupancy=0.5, limit="blocks"),
            0.31,
        ),
    )
    return KernelRecord(
        "k0",
        "head_fwd_0",
        text,
        line_ops,
        ops,
        "(64,)",
        {"N": "128", "BLOCK": "128", "num_warps": "1"},
        111_616,
        163_840,
        tuple(sorted({n for op in ops for n in op.origins})),
        targets if compiled else (),
    )


def sum_kernel(compilation: str) -> KernelRecord:
    """The kernel for the buffer's sum, not compiled yet."""
    ops = (
        LoopOp(f"loop:{compilation}:k1:0", "acc = reduce_sum(row, y)", (f"aten:{compilation}:sum_2",)),
        LoopOp(f"loop:{compilation}:k1:1", "store(total, col, total[col] + acc)", (f"aten:{compilation}:add_1",)),
    )
    text = "@triton.jit\ndef head_fwd_1(y_ptr, total_ptr, M, BLOCK: tl.constexpr):\n    col = tl.program_id(0)\n    acc = tl.sum(tl.load(y_ptr + tl.arange(0, BLOCK) * 128 + col), 0)\n    tl.store(total_ptr + col, tl.load(total_ptr + col) + acc)"
    return KernelRecord(
        "k1",
        "head_fwd_1",
        text,
        ((), (), (), (ops[0].id,), (ops[1].id,)),
        ops,
        "(128,)",
        {"M": "64", "BLOCK": "64", "num_warps": "4"},
        34_000,
        8_192,
        (f"aten:{compilation}:sum_2", f"aten:{compilation}:add_1"),
    )


def instructions() -> tuple[Instruction, ...]:
    """The bytecode of Head.forward."""
    return tuple(
        Instruction(offset, op, argument, at(line, start, end))
        for offset, op, argument, line, start, end in kernel_facts()["bc"]["forward"]
    )


def guards(rows: str) -> GuardsRecord:
    """Sixteen guards in executed order."""
    facts = [
        ("torch", ("torch",), "grad mode", "off", "torch.is_grad_enabled() is False", "Traced under no_grad: with grad mode on a backward graph would be needed.", 23),
        ("L['self']", ("L['self']",), "type", "Head", "type(self) is Head", "The method mask was looked up on this type and inlined.", 11),
        ("L['self'].mask", ("L['self']", ".mask"), "code", "Head.mask, unchanged", "self.mask.__code__ is c0", "The body of Head.mask is part of the graph.", 11),
        ("L['x']", ("L['x']",), "dtype", "float32", "x.dtype is float32", "The kernel loads 4-byte floats.", 11),
        ("L['x']", ("L['x']",), "device", "cpu", "x.device == cpu", "The graph was traced on this device.", 11),
        ("L['x']", ("L['x']",), "requires_grad", "False", "x.requires_grad is False", "An input that needs no gradient has no backward.", 11),
        ("L['x']", ("L['x']",), "shape", f"[{rows}, 128]", "tuple(x.shape) == (64, 128)", "First compile: every size is taken as it is. Line 11 looked at the shape first.", 11),
        ("L['x']", ("L['x']",), "stride", "[128, 1]", "x.stride() == (128, 1)", "Loads are 16 bytes wide because the last dimension is contiguous.", 11),
        ("L['keep']", ("L['keep']",), "dtype", "bool", "keep.dtype is bool", "On line 8, ~keep means logical not only for bool.", 8),
        ("L['keep']", ("L['keep']",), "shape", f"[{rows}, 128]", "tuple(keep.shape) == (64, 128)", "masked_fill on line 8 was traced with this shape.", 8),
        ("L['keep']", ("L['keep']",), "stride", "[128, 1]", "keep.stride() == (128, 1)", "The mask is read 4 bytes at a time.", 8),
        ("L['self'].norm", ("L['self']", ".norm"), "type", "LayerNorm", "type(self.norm) is LayerNorm", "Its forward was inlined from torch.nn.", 13),
        ("L['self'].norm.eps", ("L['self']", ".norm", ".eps"), "equals", "1e-05", "self.norm.eps == 1e-05", "A Python float read while tracing is a constant in the kernel.", 13),
        ("L['self'].norm.weight", ("L['self']", ".norm", ".weight"), "shape", "[128]", "tuple(self.norm.weight.shape) == (128,)", "Parameters are inputs, guarded by metadata.", 13),
        ("L['self'].norm.bias", ("L['self']", ".norm", ".bias"), "shape", "[128]", "tuple(self.norm.bias.shape) == (128,)", "Parameters are inputs, guarded by metadata.", 13),
        ("L['self'].total", ("L['self']", ".total"), "shape", "[128]", "tuple(self.total.shape) == (128,)", "Changed in place on line 14.", 14),
    ]  # fmt: skip
    return GuardsRecord(
        tuple(
            GuardRecord(f"g{i}", origin, path, kind, expected, code, why, at(line), 30.0 + 3 * i)
            for i, (origin, path, kind, expected, code, why, line) in enumerate(facts)
        ),
        "def check(cells, self, x, keep):\n    return " + "\n        and ".join(f[4] for f in facts),
    )


def rejection(entry: str, expected: str, actual: str) -> GuardFailure:
    """The shape of x did not match."""
    results = tuple(
        GuardResult(
            f"g{i}",
            "fail" if i == 6 else "pass" if i < 6 else "would fail" if i == 9 else "would pass",
            actual if i in (6, 9) else "",
        )
        for i in range(16)
    )
    return GuardFailure(
        entry,
        "g6",
        "L['x']",
        "shape",
        expected,
        actual,
        f"x has shape {actual}, the entry was compiled for {expected}.",
        at(11),
        (
            Fix("One entry serves all row counts.", "engine.mark_dynamic(x, 0)"),
            Fix("Leave it: the second size makes dimension 0 dynamic by itself."),
        ),
        results,
    )


def timings(start: float, scale: float) -> tuple[Timing, ...]:
    """Stages of one compilation."""
    stages = [
        ("trace", 0.0, 0.12, ""),
        ("guards", 0.12, 0.02, ""),
        ("aot", 0.14, 0.13, ""),
        ("lowering", 0.27, 0.1, ""),
        ("fuse", 0.29, 0.05, "lowering"),
        ("kernels", 0.37, 0.04, ""),
    ]
    return tuple(
        Timing(stage, start + offset * scale, seconds * scale, parent) for stage, offset, seconds, parent in stages
    )


def head_compilation(entry: int, rows: str, cause: str, *, compiled: bool = True) -> CompilationRecord:
    """One compilation of Head.forward."""
    id = f"0/{entry}"
    return CompilationRecord(
        id, "0", cause, {"x": f"f32[{rows}, 128]", "keep": f"b8[{rows}, 128]"},
        trace=TraceRecord(instructions(), inlined=(InlinedCall("Head.mask", CALL, CELL, 7),), side_effects=("self.total is written in place",)),
        guards=guards(rows), graphs=(fx_graph(id, rows), aten_graph(id, rows)),
        lowering=LoweringRecord(
            "cuda:90",
            (
                FusionDecision((f"aten:{id}:where",), (f"aten:{id}:amax",), True, "mask and softmax read the same row: it stays in registers", 65_536),
                FusionDecision((f"aten:{id}:add",), (f"aten:{id}:sum_2",), False, "the sum goes over rows, the kernel before it has one row a program"),
            ),
            (ExternCall(f"aten:{id}:slice_1", "aten.slice", "a view: index arithmetic, no bytes", is_library=True),), 15, 16,
        ),
        kernels=(head_kernel(id, compiled=compiled), sum_kernel(id)), timings=timings(0.1 + entry, 1.0 + entry / 2), backend="triton",
    )  # fmt: skip


def loss_compilation(frame: str, entry: int, rows: str, cause: str) -> CompilationRecord:
    """One compilation of loss, or of what resumes after its print."""
    id = f"{frame}/{entry}"
    first = frame == "1"
    names = (
        [("mul", "y * y", at(18, 9, 14)), ("mean", "mul.mean()", at(18, 8, 22))]
        if first
        else [("mul", "l * 0.5", at(20, 11, 18))]
    )
    placeholder = NodeRecord(
        f"fx:{id}:y", "y", "placeholder", "y", "y", shape=(rows, "128") if first else (), dtype="f32", device="cpu"
    )
    nodes = [placeholder]
    for name, text, span in names:
        nodes.append(
            NodeRecord(
                f"fx:{id}:{name}",
                name,
                "call_function",
                name,
                f"{name} = {text}",
                (nodes[-1].id,),
                (),
                dtype="f32",
                device="cpu",
                span=span,
                stack=(span,),
            )
        )
    broken = BreakRecord(
        "print",
        "print needs a value that only exists when the code runs",
        'print("loss", l.item())',
        "l.item() is a Python number, and print shows it now: the graph ends here.",
        ("Move the print out of the compiled function.", "Print the tensor after the call."),
        at(19, 4, 27),
        (at(19, 4, 27),),
    )
    return CompilationRecord(
        id, frame, cause, {"y": f"f32[{rows}, 128]"} if first else {"l": "f32[]"}, trace=TraceRecord(breaks=(broken,) if first else ()), guards=GuardsRecord(),
        graphs=(GraphRecord(f"fx:{id}", "fx", "FX", tuple(nodes)),), timings=timings(0.5 + entry, 0.3), backend="triton",
    )  # fmt: skip


def head_session() -> Session:
    """Two roots, one of them broken by a print; recompiles; kernels down to SASS."""
    session = Session(target="cuda:90", device="cpu")
    session.seconds = 1.8
    session.versions = {"torch": "2.13.0", "triton": "3.7.1", "python": "3.11.7"}
    session.add_file(SourceFile(CELL, "cell 3", "\n".join([*kernel_facts()["src"], *CALLER]) + "\n"))
    session.add_frame(FrameRecord("0", "Head.forward", CELL, 10))
    session.add_frame(FrameRecord("1", "loss", CELL, 17))
    session.add_frame(FrameRecord("2", "loss, resumed after line 19", CELL, 17, "resume", "1", at(19)))
    session.put_compilation(head_compilation(0, "64", "first call"))
    session.put_compilation(loss_compilation("1", 0, "64", "first call"))
    session.put_compilation(loss_compilation("2", 0, "64", "first call"))
    session.put_compilation(head_compilation(1, "s0", "x.size(0) changed from 64 to 96", compiled=False))
    session.put_compilation(loss_compilation("1", 1, "s0", "y.size(0) changed from 64 to 96"))
    session.put_compilation(head_compilation(2, "1", "size 1 is always special", compiled=False))
    add_calls(session)
    session.add_skipped(
        SkippedRecord("plot", "it computes with NumPy only, not with tensors", "Nothing to do: it ran as Python.")
    )
    return session


def add_calls(session: Session) -> None:
    """Eight calls of each root."""
    caller, after = at(25, 18, 75), at(26, 8, 15)
    for rows in (64, 64, 96, 128, 32, 256, 64, 1):
        shape = f"[{rows}, 128]"
        x = {"x": f"f32{shape}", "keep": f"b8{shape}"}
        zero, one = rejection("0/0", "[64, 128]", shape), rejection("0/1", "[s0, 128], s0 >= 2", shape)
        if rows == 64:
            first = not session.calls
            session.add_call(CallRecord(0, "0", "compiled" if first else "hit", "0/0", caller, x, ("0/0",)))
        elif rows == 96:
            session.add_call(CallRecord(0, "0", "compiled", "0/1", caller, x, ("0/0",), (zero,)))
        elif rows == 1:
            session.add_call(CallRecord(0, "0", "compiled", "0/2", caller, x, ("0/0", "0/1"), (zero, one)))
        else:
            session.add_call(CallRecord(0, "0", "hit", "0/1", caller, x, ("0/0", "0/1")))
        outcome = "compiled" if len(session.calls) == 1 or rows == 96 else "hit"
        lossy = replace(
            rejection("1/0", "[64, 128]", shape),
            source="L['y']",
            results=(),
            span=at(18),
            sentence="y has another shape.",
        )
        entry = "1/0" if rows == 64 else "1/1"
        session.add_call(
            CallRecord(
                0,
                "1",
                outcome,
                entry,
                after,
                {"y": f"f32{shape}"},
                ("1/0", "1/1")[: int(entry[-1]) + 1],
                (lossy,) if rows == 96 else (),
            )
        )
        session.add_call(
            CallRecord(
                0, "2", "compiled" if len(session.calls) == 2 else "hit", "2/0", at(19), {"l": "f32[]"}, ("2/0",)
            )
        )


def verified_session() -> Session:
    """As head_session, with every kernel checked."""
    session = head_session()
    for compilation in session.compilations:
        kernels = tuple(
            replace(k, verify=VerifyRecord("close", "Triton interpreter", 2.4e-7, 1e-5)) for k in compilation.kernels
        )
        session.put_compilation(replace(compilation, kernels=kernels))
    return session


def broken_session() -> Session:
    """Build a session with one graph break with an example and two discarded attempts.

    Both attempts had side effects.
    """
    session = head_session()
    for number, kept in (("1/0", 1), ("0/0", 0)):
        record = session.compilation(number)
        assert record.trace is not None
        attempt = DiscardedAttempt(
            "print", "print() is called", at(19), (), 3, 1, ("seen: contents are replaced",), ("grad mode",)
        )
        told = tuple(
            replace(b, example_before="def f(x):\n    print(x)", example_after="def f(x): ...")
            for b in record.trace.breaks[:kept]
        )
        session.put_compilation(
            replace(record, trace=replace(record.trace, breaks=told, discarded_attempts=(attempt,)))
        )
    return session


def empty_session() -> Session:
    """Nothing was compiled, and why."""
    session = Session(target="cuda:90")
    session.seconds = 0.2
    session.add_skipped(
        SkippedRecord(
            "main",
            "it is an async function, and those run as Python",
            "Put the tensor work in a plain function and compile that.",
        )
    )
    return session


HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>\x1b[31mred\x1b[0m\x07 ${1} `${2}` \u2028 &amp;"


def hostile_session() -> Session:
    """Every text field holds markup and terminal escapes."""
    session = Session(target=HOSTILE, device="cpu")
    file = SourceFile("evil.py", HOSTILE, f"def f(x):\n    return x + 1  # {HOSTILE.splitlines()[0]}\n")
    session.add_file(file)
    span = Span("evil.py", 2, 2, 11, 16)
    session.add_frame(FrameRecord("0", HOSTILE, "evil.py", 1))
    node = NodeRecord(
        "fx:0/0:add",
        "add",
        "call_function",
        HOSTILE,
        HOSTILE,
        shape=(HOSTILE,),
        dtype=HOSTILE,
        span=span,
        stack=(span,),
        note=HOSTILE,
    )
    op = LoopOp("loop:0/0:k0:0", HOSTILE, ("aten:0/0:add",))
    record = Listing("ptx", HOSTILE, (LineLink(1, 1, (HOSTILE,), HOSTILE),), 1, 1, 0)
    kernel = KernelRecord(
        "k0",
        HOSTILE,
        HOSTILE,
        (("loop:0/0:k0:0",),),
        (op,),
        HOSTILE,
        {HOSTILE: HOSTILE},
        targets=(TargetRecord("cuda:90", (record,), error=HOSTILE),),
    )
    guard = GuardRecord("g0", HOSTILE, (HOSTILE,), HOSTILE, HOSTILE, HOSTILE, HOSTILE, span)
    refused = GuardFailure(
        "0/0",
        "g0",
        HOSTILE,
        HOSTILE,
        HOSTILE,
        HOSTILE,
        HOSTILE,
        span,
        (Fix(HOSTILE, HOSTILE, HOSTILE),),
        (GuardResult("g0", "fail", HOSTILE),),
    )
    broken = BreakRecord(HOSTILE, HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), span)
    texts = (HOSTILE,)
    step = StepRecord(
        0, 0, HOSTILE, 0, HOSTILE, HOSTILE, span, texts, {HOSTILE: HOSTILE}, texts, texts, texts, "break", 0, texts
    )
    ring = WrapperRecord(HOSTILE, (WrapperAction(HOSTILE, HOSTILE, HOSTILE),))
    aot = AotRecord(HOSTILE, (ValueFacts(HOSTILE, HOSTILE, texts),), (ring, WrapperRecord(HOSTILE)), HOSTILE)
    session.put_compilation(
        CompilationRecord(
            "0/0", "0", HOSTILE, {HOSTILE: HOSTILE}, TraceRecord((Instruction(0, HOSTILE, HOSTILE, span),), breaks=(broken,), steps=(step,)), GuardsRecord((guard,), HOSTILE),
            (GraphRecord("fx:0/0", "fx", HOSTILE, (node,)), GraphRecord("aten:0/0", "aten", HOSTILE, (replace(node, id="aten:0/0:add", origins=("fx:0/0:add",)),))), aot,
            kernels=(kernel,), failures=(StageFailure(HOSTILE, HOSTILE, HOSTILE, HOSTILE),), timings=(Timing(HOSTILE, 0.0, 1.0),), backend=HOSTILE,
        )
    )  # fmt: skip
    session.add_call(CallRecord(0, "0", "compiled", "0/0", span, {HOSTILE: HOSTILE}, ("0/0",), (refused,)))
    session.add_skipped(SkippedRecord(HOSTILE, HOSTILE, HOSTILE))
    session.add_failure(StageFailure(HOSTILE, HOSTILE, HOSTILE, HOSTILE))
    session.add_note(HOSTILE)
    autograd = AutogradNodeRecord("autograd:b0:0", HOSTILE, 0, 0, captured=("captured:b0:add",), hooks=texts)
    graph = GraphRecord("captured:b0", "captured", HOSTILE, (replace(node, id="captured:b0:add"),))
    cause = CacheMissReason(HOSTILE, HOSTILE, texts)
    session.put_backward(BackwardRecord("b0", cause, (autograd,), (graph,), HOSTILE, notes=texts))
    session.add_backward_call("captured", "b0", HOSTILE)
    return session


def large_session(lines: int = 10_000) -> Session:
    """One kernel whose PTX has ``lines`` lines, from a hundred source lines."""
    session = Session(target="cuda:90")
    source = "def f(x):\n" + "".join(f"    x = x + {i}\n" for i in range(100)) + "    return x\n"
    session.add_file(SourceFile("big.py", "cell 1", source))
    session.add_frame(FrameRecord("0", "f", "big.py", 1))
    spans = [Span("big.py", i + 2, i + 2, 8, 14) for i in range(100)]
    fx = tuple(
        NodeRecord(
            f"fx:0/0:add_{i}",
            f"add_{i}",
            "call_function",
            "add",
            f"add_{i} = x + {i}",
            (f"fx:0/0:add_{i - 1}",) if i else (),
            ("64",),
            dtype="f32",
            span=s,
            stack=(s,),
        )
        for i, s in enumerate(spans)
    )
    aten = tuple(replace(n, id=n.id.replace("fx", "aten"), inputs=(), origins=(n.id,)) for n in fx)
    ops = tuple(LoopOp(f"loop:0/0:k0:{i}", f"x = x + {i}", (n.id,)) for i, n in enumerate(aten))
    triton = "\n".join(f"    x = x + {i}" for i in range(100))
    ptx = Listing(
        "ptx",
        "\n".join(f"add.f32 %f{i}, %f{i}, 1.0;" for i in range(lines)),
        tuple(LineLink(i + 1, i * 100 // lines + 1) for i in range(lines)),
        lines,
        lines,
        0,
    )
    kernel = KernelRecord(
        "k0",
        "f_0",
        triton,
        tuple((o.id,) for o in ops),
        ops,
        "(1,)",
        targets=(TargetRecord("cuda:90", (ptx, replace(ptx, stage="sass"))),),
    )
    session.put_compilation(
        CompilationRecord(
            "0/0",
            "0",
            "first call",
            graphs=(GraphRecord("fx", "fx", "FX", fx), GraphRecord("aten", "aten", "ATen", aten)),
            kernels=(kernel,),
            backend="triton",
        )
    )
    session.add_call(CallRecord(0, "0", "compiled", "0/0", None, {"x": "f32[64]"}, ("0/0",)))
    return session
