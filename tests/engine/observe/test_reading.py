"""Reading the texts of torch's trace: graphs, guards, reasons and output code, the unusual ones too."""

from __future__ import annotations

import pytest

from engine.observe.events import event_of
from engine.observe.graph_text import read_graph, read_type
from engine.observe.messages import read_break, read_guards, read_recompile_reasons
from engine.observe.output_code import read_kernels, read_lowering

GRAPH = """\
class <lambda>(torch.nn.Module):
    def forward(
        self,
        arg0_1: "f32[s77, 4][4, 1]cpu",  # PlainAOTInput(idx=0)
        arg1_1: "Sym(s77)",
    ):
        # File: /home/user/model.py:16 in f, code: y = x.split(2)
        split = torch.ops.aten.split.Tensor(arg0_1, 2);  arg0_1 = None
        getitem: "f32[2, 4][4, 1]cuda:0" = split[0];  split = None

        # No stacktrace found for following nodes
        add: "bf16[2, 4][4, 1]cuda:0" = torch.ops.aten.add.Tensor(getitem, arg1_1)
        return (
            add,  # PlainAOTOutput(idx=0)
        )
"""
OUTPUT_CODE = """\
import torch
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''
import triton
@triton.jit
def triton_poi_fused_add_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
''', device_str='cuda')
cpp_fused_mul_1 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
extern "C"  void  kernel(const float* in_ptr0, float* out_ptr0) {}
''')
def call(args):
    extern_kernels.mm(arg0_1, arg1_1, out=buf0)
    buf1 = torch.ops.aten.topk.default(buf0, 2)
    return (buf1, )
"""


def whole(end: str) -> str | None:
    """A resolver that knows one user's file."""
    return "/home/user/model.py" if "/home/user/model.py".endswith(end) else None


def test_graph_over_several_lines() -> None:
    """Inputs spread over lines, symbolic sizes, tuples and a return over lines are read."""
    graph = read_graph(GRAPH, "aten", "aten", "0/0", "title")
    nodes = {n.name: n for n in graph.nodes}
    assert list(nodes) == ["arg0_1", "arg1_1", "split", "getitem", "add", "output"]
    assert (nodes["arg0_1"].shape, nodes["arg0_1"].bytes) == (("s77", "4"), None)
    assert nodes["split"].inputs == ("aten:0/0:arg0_1",)
    assert (nodes["split"].target, nodes["split"].text) == (
        "torch.ops.aten.split.Tensor",
        "split = torch.ops.aten.split.Tensor(arg0_1, 2)",
    )
    assert nodes["getitem"].span is not None
    assert (nodes["getitem"].span.line, nodes["getitem"].device) == (16, "cuda:0")
    assert nodes["add"].span is None
    assert "no line" in nodes["add"].note
    assert (nodes["add"].dtype, nodes["add"].bytes) == ("bfloat16", 16)
    assert nodes["output"].inputs == ("aten:0/0:add",)
    assert graph.text == GRAPH


@pytest.mark.parametrize("text", ["", "garbage", "def forward(self):", "class X:\n    def forward(self, a):\n"])
def test_unreadable_graph_keeps_its_text(text: str) -> None:
    """A graph in a form that is not known is kept as text, without nodes."""
    assert (read_graph(text, "fx", "fx", "0/0", "").nodes, read_graph(text, "fx", "fx", "0/0", "").text) == ((), text)


def test_types() -> None:
    """Types of scalars, symbols and unknown dtypes."""
    assert read_type("f32[][]cpu") == ((), (), "float32", "cpu", 4)
    assert read_type("Sym(s0)") == (None, None, "", "", None)
    assert read_type("zz9[3][1]cpu")[2] == ""


@pytest.mark.parametrize(
    ("text", "origin", "expected", "actual"),
    [
        ("0/0: tensor 'x' size mismatch at index 1. expected 3, actual 4", "L['x']", "3 in dimension 1", "4"),
        ("0/0: tensor 'x' stride mismatch at index 0. expected 1, actual 2", "L['x']", "1 in dimension 0", "2"),
        ("0/0: tensor 'x' dtype mismatch. expected Float, actual Double", "L['x']", "Float", "Double"),
        ("0/0: tensor 'x' rank mismatch. expected 1, actual 2", "L['x']", "1", "2"),
        ("0/0: n == 2      # y = y+n  # er/model.py:18 in f", "L['n']", "2", ""),
        ("0/0: len(xs) == 2", "len(xs)", "2", ""),
        ("0/0: ___check_obj_id(L['f'], 1234)", "___check_obj_id(L['f'], 1234)", "", ""),
        ("something else entirely", "something else entirely", "", ""),
    ],
)
def test_recompile_reasons(text: str, origin: str, expected: str, actual: str) -> None:
    """Value, expected and actual are read where the reason says them; each gives a sentence."""
    (rejection,) = read_recompile_reasons(text, whole)
    assert (rejection.origin, rejection.expected, rejection.actual) == (origin, expected, actual)
    assert rejection.sentence.endswith(".")
    assert (rejection.span is not None) == ("model.py" in text)


def test_several_recompile_reasons() -> None:
    """A JSON list gives one rejection each, in its order."""
    found = read_recompile_reasons('["0/1: n == 2", "0/0: tensor \'x\' rank mismatch. expected 1, actual 2"]', whole)
    assert [r.entry for r in found] == ["0/1", "0/0"]


def test_guard_tree() -> None:
    """The printed tree is flattened; each guard has the path to its value, and only the user's lines become places."""
    tree = """
TREE_GUARD_MANAGER:
+- RootGuardManager
| +- DEFAULT_DEVICE: utils_device.CURRENT_DEVICE == None   # _dynamo/output_graph.py:1122 in init_ambient_guards
| +- GuardManager: source=L['self'], accessed_by=FrameLocalsGuardAccessor(key='self', framelocals_idx=0), type=<class 'M'>
| | +- TYPE_MATCH: ___check_type_id(L['self'], 94), type=<class 'M'>  # return self.w * x  # er/model.py:9 in forward
| | +- GuardManager: source=L['self'].w, accessed_by=GetAttrGuardAccessor(w), type=<class 'int'>
| | | +- EQUALS_MATCH: L['self'].w == 3   # return self.w * x  # er/model.py:9 in forward
+- LAMBDA_GUARD: 2 <= L['x'].size()[0]
Guard latency = 1 us
"""
    device, kind, value, size = read_guards(tree, whole).guards
    assert (device.origin, device.span) == ("", None)
    assert (kind.origin, kind.expected) == ("L['self']", "<class 'M'>")
    assert (value.path, value.expected, value.why) == (("L['self']", ".w"), "3", "read by: return self.w * x")
    assert value.span is not None
    assert (value.span.file, value.span.line) == ("/home/user/model.py", 9)
    assert (size.origin, size.code) == ("", "2 <= L['x'].size()[0]")


def test_break_without_sections() -> None:
    """A report of another form still gives a title."""
    told = read_break("Graph break: something new")
    assert (told.title, told.span) == ("Graph break: something new", None)
    assert read_break("").title


def test_kernels_and_library_calls() -> None:
    """Kernels are cut out of the output code with their language; library calls are listed."""
    triton, cpp = read_kernels(OUTPUT_CODE, first=3)
    assert [(k.id, k.name, k.language) for k in (triton, cpp)] == [
        ("k3", "triton_poi_fused_add_0", "triton"),
        ("k4", "cpp_fused_mul_1", "cpp"),
    ]
    assert triton.text.startswith("import triton")
    assert "void  kernel" in cpp.text
    lowering = read_lowering(OUTPUT_CODE, "0/0")
    assert [e.op for e in lowering.externs] == ["extern_kernels.mm", "torch.ops.aten.topk.default"]
    assert "xoffset" not in lowering.wrapper_text


def test_events_need_one_kind() -> None:
    """A record with no kind, or with two, is no event; frame and entry make the compilation's id."""
    assert event_of({"frame_id": 1}, None) is None
    assert event_of({"a": 1, "b": 2}, None) is None
    event = event_of(
        {"artifact": {"name": "x"}, "frame_id": 1, "frame_compile_id": 2, "attempt": 0, "has_payload": "md5"}, "text"
    )
    assert event is not None
    assert (event.compilation, event.frame, event.artifact, event.text) == ("1/2", "1", "x", "text")
