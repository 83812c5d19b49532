"""Parse the texts of torch's trace: graphs, guards, reasons and output code.

Unusual texts are among them.
"""

from __future__ import annotations

import pytest

from engine.observe import lazy_records
from engine.observe.frame_registry import FrameRegistry
from engine.observe.lazy_records import LazyGraph
from engine.observe.parse_aot_metadata import parse_aot_metadata
from engine.observe.parse_graph import parse_nodes, parse_tensor_type
from engine.observe.parse_messages import parse_break, parse_guards, parse_recompile_reasons, parse_timings
from engine.observe.parse_output_code import parse_kernels, parse_lowering
from engine.observe.source_files import SourceFiles, is_generated_file, strip_notebook_frames
from engine.observe.trace_events import frame_id_of, parse_compile_id, parse_event
from engine.observe.trace_files import InMemoryPayload
from engine.records.bytecode import SourceFile, Span
from engine.records.findings import find_problems
from engine.records.session import CompilationRecord, Session

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
    nodes = {n.name: n for n in parse_nodes(GRAPH, "aten", "0/0")}
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
    assert (nodes["output"].inputs, nodes["output"].text) == (("aten:0/0:add",), "return (add,)")


@pytest.mark.parametrize("text", ["", "garbage", "def forward(self):", "class X:\n    def forward(self, a):\n"])
def test_unreadable_graph_has_no_nodes(text: str) -> None:
    """A graph in a form that is not known has no nodes."""
    assert parse_nodes(text, "fx", "0/0") == ()


def test_types() -> None:
    """Types of scalars, symbols and unknown dtypes."""
    assert parse_tensor_type("f32[][]cpu") == ((), (), "float32", "cpu", 4)
    assert parse_tensor_type("Sym(s0)") == (None, None, "", "", None)
    assert parse_tensor_type("zz9[3][1]cpu")[2] == ""


@pytest.mark.parametrize(
    ("text", "origin", "expected", "actual"),
    [
        ("0/0: tensor 'x' size mismatch at index 1. expected 3, actual 4", "L['x']", "3 in dimension 1", "4"),
        ("0/0: tensor 'x' stride mismatch at index 0. expected 1, actual 2", "L['x']", "1 in dimension 0", "2"),
        ("0/0: tensor 'x' dtype mismatch. expected Float, actual Double", "L['x']", "f32", "f64"),
        ("0/0: tensor 'x' rank mismatch. expected 1, actual 2", "L['x']", "1", "2"),
        ("0/0: tensor 'x' requires_grad mismatch. expected requires_grad=0", "L['x']", "False", "True"),
        ("0/0: n == 2      # y = y+n  # er/model.py:18 in f", "L['n']", "2", ""),
        ("0/0: len(xs) == 2", "len(xs)", "2", ""),
        ("0/0: ___check_obj_id(L['f'], 1234)", "L['f']", "", ""),
        ("0/0: ___check_type_id(L['fn'], 94), type=<class 'a.b.Linear'> (HINT: type Linear)", "L['fn']", "Linear", ""),
        ("something else entirely", "something else entirely", "", ""),
    ],
)
def test_recompile_reasons(text: str, origin: str, expected: str, actual: str) -> None:
    """Value, expected and actual are read where the reason says them; each gives a sentence."""
    (rejection,) = parse_recompile_reasons(text, whole)
    assert (rejection.source, rejection.expected, rejection.actual) == (origin, expected, actual)
    assert rejection.sentence.endswith(".")
    assert (rejection.span is not None) == ("model.py" in text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tensor 'x' rank mismatch. expected 1, actual 2", "x has 2 dimensions; the compiled code expects 1."),
        ("tensor 'x' dtype mismatch. expected Half, actual Double", "x has dtype f64; the compiled code expects f16."),
        (
            "expected type of 'x' to be a tensor type, ' but found <class 'torch.nn.parameter.Parameter'>",
            "x is of type Parameter; the compiled code expects a tensor.",
        ),
        ("GLOBAL_STATE changed: grad_mode ", "The global state grad_mode of torch has changed."),
        (
            "tensor 'x' dispatch key set mismatch. expected DispatchKeySet(CPU, AutogradCPU), actual DispatchKeySet(CPU, Conjugate, AutogradCPU)",
            "The dispatch keys of x have changed: +Conjugate.",
        ),
    ],
)
def test_recompile_reasons_are_sentences(text: str, sentence: str) -> None:
    """Ranks, types, global states and dispatch keys read as sentences, not as torch's check."""
    (rejection,) = parse_recompile_reasons(f"0/0: {text}", whole)
    assert rejection.sentence == sentence


def test_a_length_becomes_no_tensor() -> None:
    """The number of items of a container is no value that a program could pass as a tensor."""
    (rejection,) = parse_recompile_reasons("0/0: len(L['xs']) == 2", whole)
    assert "as a tensor" not in " ".join(f.text for f in rejection.fixes)


def test_a_changed_learning_rate_becomes_a_tensor() -> None:
    """The number is an option of the optimizer: no name of the user's holds it."""
    (rejection,) = parse_recompile_reasons("0/0: L['self'].param_groups[0]['lr'] == 0.1", whole)
    assert [f.code for f in rejection.fixes] == ["lr=torch.tensor(0.1)"]


def test_several_recompile_reasons() -> None:
    """A JSON list gives one rejection each, in its order."""
    found = parse_recompile_reasons('["0/1: n == 2", "0/0: tensor \'x\' rank mismatch. expected 1, actual 2"]', whole)
    assert [r.entry for r in found] == ["0/1", "0/0"]


def test_guard_tree() -> None:
    """The printed guard tree is flattened; each guard has its path and only user spans.

    Only lines of the user become spans.
    """
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
    device, kind, value, size = parse_guards(tree, whole).guards
    assert (device.source, device.span) == ("", None)
    assert (kind.source, kind.expected) == ("L['self']", "<class 'M'>")
    assert (value.path, value.expected, value.why) == (("L['self']", ".w"), "3", "read by: return self.w * x")
    assert value.span is not None
    assert (value.span.file, value.span.line) == ("/home/user/model.py", 9)
    assert (size.source, size.code) == ("", "2 <= L['x'].size()[0]")


def test_break_without_sections() -> None:
    """A report of another form still gives a title."""
    told = parse_break("Graph break: something new")
    assert (told.title, told.span) == ("Graph break: something new", None)
    assert parse_break("").title


def test_kernels_and_library_calls() -> None:
    """Kernels are cut out of the output code with their language; library calls are listed."""
    triton, cpp = parse_kernels(OUTPUT_CODE, first=3)
    assert [(k.id, k.name, k.language) for k in (triton, cpp)] == [
        ("k3", "triton_poi_fused_add_0", "triton"),
        ("k4", "cpp_fused_mul_1", "cpp"),
    ]
    assert triton.text.startswith("import triton")
    assert "void  kernel" in cpp.text
    lowering = parse_lowering(OUTPUT_CODE)
    assert [e.op for e in lowering.externs] == ["extern_kernels.mm", "torch.ops.aten.topk.default"]
    assert "xoffset" not in lowering.wrapper_text


def test_a_kernel_ends_at_the_quotes_that_open_it() -> None:
    """Other quotes are part of a kernel's text; the program has one line for the kernel."""
    text = 'import torch\n\nk = async_compile.triton("k", \'\'\'\n"""Doc."""\nx = 1\n\'\'\', device_str="cuda")\ncall = 1\n'
    (kernel,) = parse_kernels(text)
    assert kernel.text == '"""Doc."""\nx = 1'
    program = parse_lowering(text).wrapper_text
    assert program == 'import torch\n\nk = async_compile.triton(...  # 3 lines, device_str="cuda")\ncall = 1\n'


def test_events_need_one_kind() -> None:
    """A record with no kind or two kinds is no event; frame and entry form the compile id."""
    assert parse_event({"frame_id": 1}, None) is None
    assert parse_event({"a": 1, "b": 2}, None) is None
    event = parse_event(
        {"artifact": {"name": "x"}, "frame_id": 1, "frame_compile_id": 2, "attempt": 0, "has_payload": "md5"},
        InMemoryPayload("text"),
    )
    assert event is not None
    assert (event.compilation, event.frame, event.artifact_name, event.text) == ("1/2", "1", "x", "text")


def test_compiled_autograd_has_ids_of_its_own() -> None:
    """Compiled autograd graphs, and frames compiled inside them, have ids of their own."""
    assert parse_compile_id({"compiled_autograd_id": 3}) == "!3/0"
    assert parse_compile_id({"compiled_autograd_id": 3, "frame_id": 1, "frame_compile_id": 2}) == "!3/1/2"
    assert [frame_id_of(id) for id in ("!3/0", "!3/1/2", "0/1")] == ["!3", "!3/1", "0"]


def test_joint_graph_lists_its_inputs() -> None:
    """A joint graph's inputs, named in its body, become nodes; the unpacking code does not."""
    text = """\
class inner_f(torch.nn.Module):
    def forward(
        self,
        primals,
        tangents,
    ):
        primals_1: "f32[2][1]cpu"  # PlainAOTInput(idx=0)
        tangents_1: "f32[2][1]cpu"  # TangentAOTInput(output=PlainAOTOutput(idx=0))
        primals_1, tangents_1, = fx_pytree.tree_flatten_spec([primals, tangents], self._in_spec)
        mul: "f32[2][1]cpu" = torch.ops.aten.mul.Tensor(primals_1, tangents_1)
        return pytree.tree_unflatten([mul], self._out_spec)
"""
    nodes = parse_nodes(text, "joint", "0/0")
    assert [(n.name, n.op) for n in nodes] == [
        ("primals_1", "placeholder"),
        ("tangents_1", "placeholder"),
        ("mul", "call_function"),
        ("output", "output"),
    ]
    assert nodes[2].inputs == ("joint:0/0:primals_1", "joint:0/0:tangents_1")
    assert nodes[3].text == "return (mul,)"
    over_lines = text.replace("[mul]", "[\n            mul,  # Plain(idx=0)\n            None,  # None\n        ]")
    output = parse_nodes(over_lines, "joint", "0/0")[3]
    assert output.text == "return (mul, None,)"
    assert output.inputs == ("joint:0/0:mul",)


def test_aot_metadata_in_words() -> None:
    """Mutated inputs and outputs that are views are told; nothing in the text is evaluated."""
    text = """ViewAndMutationMeta(input_info=[InputAliasInfo(is_leaf=True, mutates_data=True, requires_grad=False),
      InputAliasInfo(is_leaf=True, mutates_data=False, requires_grad=True)],
      output_info=[OutputAliasInfo(output_type=<OutputType.alias_of_input: 2>, raw_type=<class 'torch.Tensor'>, base_idx=1,
      dynamic_dims={0, 1}, requires_grad=True), OutputAliasInfo(output_type=<OutputType.non_alias: 1>, base_idx=None)],
      traced_tangents_descs=[], note='a, (b')"""
    told = parse_aot_metadata(text)
    assert told is not None
    assert [v.facts for v in told.values] == [
        ("its data is mutated",),
        ("requires grad",),
        ("a view of an input (1)", "requires grad"),
        (),
    ]


@pytest.mark.parametrize(
    ("tangents", "mode"),
    [
        ("[]", "inference"),
        ("[FakeTensor(..., size=(2, 3))]", "training"),
        ("[], traced_tangents_descs=[1]", "inference"),
    ],
)
def test_aot_metadata_say_whether_a_graph_is_for_training(tangents: str, mode: str) -> None:
    """A graph is for training if it was traced with tangents; the field alone does not say so."""
    record = parse_aot_metadata(f"ViewAndMutationMeta(input_info=[InputAliasInfo()], traced_tangents={tangents})")
    assert record is not None
    assert record.mode == mode


@pytest.mark.parametrize("text", ["", "))((", "x(", "A(b=[" * 5000, "__import__('os')", "A(input_info=3)"])
def test_odd_aot_metadata_is_left_out(text: str) -> None:
    """A text in another form gives no record, and no error."""
    assert parse_aot_metadata(text) is None


def test_triton_kernels_name_their_nodes() -> None:
    """The comment above a Triton kernel names the graph nodes that were fused into it."""
    text = """
# kernel path: /tmp/x.py
# Topologically Sorted Source Nodes: [y], Original ATen: [aten.add]
# Graph fragment:
#   %arg0_1 : Tensor "f32[8][1]cuda:0" = PlaceHolder[target=arg0_1]
#   %add : Tensor "f32[8][1]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%arg0_1, 1), kwargs = {})
#   return %add
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''
import triton
''', device_str='cuda')
"""
    (kernel,) = parse_kernels(text, prefix="post:0/0:")
    assert kernel.fused_nodes == ("post:0/0:add",)


def test_what_the_notebooks_kernel_did_is_no_part_of_a_stack() -> None:
    """Only the frames below the notebook shell remain; other stacks stay unchanged."""
    shell = (Span("/env/ipykernel_launcher.py", 18), Span("/env/IPython/core/interactiveshell.py", 9))
    own = (Span("/tmp/ipykernel_1/12.py", 4), Span("/home/me/model.py", 2))
    assert strip_notebook_frames((*shell, Span("/env/notebook_ext/cell.py", 2), *own)) == own
    assert strip_notebook_frames(own) == own
    assert strip_notebook_frames(()) == ()


def test_printed_guards_are_read_whole() -> None:
    """What a guard expects is in words: a tensor's metadata, markings, distinct tensors."""
    text = """\
+- LAMBDA_GUARD: utils_device.CURRENT_DEVICE == None
+- GuardManager: source=L['x'], accessed_by=FrameLocalsGuardAccessor(key='x')
| +- TENSOR_MATCH: check_tensor(L['x'], Tensor, DispatchKeySet(CUDA, AutogradCUDA), torch.float16, device=1, requires_grad=True, size=[None, 16], stride=[16, 1])
| +- DIMENSION_DYNAMIC_MARKING_GUARD: hasattr(L['x'], '_dynamo_weak_dynamic_indices') == False
| +- NO_TENSOR_ALIASING: check_no_aliasing(L['x'], L['w'])
"""
    assert [g.expected for g in parse_guards(text, whole).guards] == [
        "no default device",
        "f16[any, 16] on cuda:1, stride [16, 1], requires grad",
        "no dimension marked dynamic where possible",
        "different tensors: x, w",
    ]


def test_a_read_that_spans_lines_is_not_cut_open() -> None:
    """torch prints the first line of the call that reads a value."""
    text = "+- GuardManager: source=L['x']\n| +- TENSOR_MATCH: hasattr(L['x'], 'y') == False  # return F.conv2d(  # nn/conv.py:5 in f\n"
    guard = parse_guards(text, whole).guards[-1]
    assert guard.why == "read by: return F.conv2d(...)"


PARTIAL = """\
| +- GuardManager: source=L['fn'], accessed_by=FrameLocalsGuardAccessor(key='fn'), type=<class 'functools.partial'>
| | +- GuardManager: source=L['fn'].func, accessed_by=GetAttrGuardAccessor(func), type=<class '{type}'>
| | +- EQUALS_MATCH: L['fn'].keywords['by'] == 0.5         #   # <string>:2 in {reader}
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (PARTIAL.format(type="function", reader="made"), "made"),
        (PARTIAL.format(type="__main__.Scaler", reader="__call__"), "Scaler.__call__"),
        (PARTIAL.partition("\n")[0], "partial"),
    ],
)
def test_a_partial_without_source_has_the_users_name(text: str, name: str) -> None:
    """Dynamo compiles a wrapper of its own in its place, whose name says nothing."""
    session = Session()
    registry = FrameRegistry(
        session, SourceFiles("/lib/torch/", lambda file: SourceFile(file, file, ""), session.add_file), ""
    )
    registry.add("0", [("inner", Span("/lib/torch/_dynamo/external_utils.py", 67))])
    registry.record_self_type("0", text)
    registry.finish()
    assert [f.name for f in session.frames] == [name]


def test_stages_of_a_compilation_do_not_overlap() -> None:
    """A parent's last stage ends with it, the others follow each other from its start."""
    facts = {"start_time": 12.0, "entire_frame_compile_time_s": 10.0, "backend_compile_time_s": 6.0}
    facts |= {"dynamo_time_before_restart_s": 1.0, "pre_grad_pass_time_us": 1e6, "inductor_compile_time_s": 4.0}
    facts |= {"triton_compile_time_us": 1e6}
    found = {t.stage: (t.start, t.start + t.seconds, t.parent) for t in parse_timings(facts, 10.0, is_forward=True)}
    assert found == {
        "compile": (2.0, 12.0, ""),
        "before the last restart": (2.0, 3.0, "compile"),
        "backend": (6.0, 12.0, "compile"),
        "pre-grad passes": (6.0, 7.0, "backend"),
        "inductor": (8.0, 12.0, "backend"),
        "kernel compilation": (11.0, 12.0, "inductor"),
    }
    facts["dynamo_time_before_restart_s"] = 0.0
    assert "before the last restart" not in {t.stage for t in parse_timings(facts, 10.0, is_forward=True)}


def test_a_cell_of_a_terminal_is_a_users_file() -> None:
    """IPython gives a cell a name in angle brackets, as generated code has."""
    assert not is_generated_file("<ipython-input-7-854ed3eef98f>")
    assert is_generated_file("<eval_with_key>.3")


def test_an_explanation_ends_before_the_listing_that_torch_adds() -> None:
    """Quoted source is left out; our advice replaces hints without a setting of Dynamo's."""
    report = (
        "Data-dependent branching\n"
        "  Explanation: Detected data-dependent branching. Dynamo does not trace it.\n\n"
        "      The condition involves a tensor computed as follows:\n"
        '        # File "<ipython-input-1>", line 3, in f\n'
        "        gt = gt(sum_1, 0)\n"
        "  Hint: This graph break is fundamental - it is unlikely that it will ever be traced.\n"
        "  Hint: Use `torch.cond`.\n"
        "  Hint: Set `torch._dynamo.config.capture_scalar_outputs = True`.\n"
    )
    found = parse_break(report)
    assert found.title == "A branch depends on a tensor's value"
    assert found.explanation == (
        'Detected data-dependent branching. Dynamo does not trace it. Dynamo calls it "Data-dependent branching".'
    )
    assert found.hints == (
        "Use torch.where to compute both outcomes, or torch.cond.",
        "Move the condition out of the compiled function.",
        "Set `torch._dynamo.config.capture_scalar_outputs = True`.",
    )


@pytest.mark.parametrize(
    ("title", "context", "expected"),
    [
        ("Failed to trace builtin operator", "builtin print [<class 'C'>] False", "Output is printed"),
        ("Failed to trace builtin operator", "builtin sum [<class 'C'>] False", "Failed to trace builtin operator"),
        (
            "Attempted to call function marked as skipped",
            "module: time, qualname: perf_counter, skip reason: <missing reason>",
            "The time is read",
        ),
        (
            "Unsupported Tensor.item() call with capture_scalar_outputs=False",
            "call_method TensorVariable() item () {}",
            "A tensor's value is needed in Python",
        ),
    ],
)
def test_a_break_of_dynamo_is_named_as_ours(title: str, context: str, expected: str) -> None:
    """The title is our catalog's where it means the same; Dynamo's follows the explanation."""
    report = f"Graph Break Reason: {title}\n  Explanation: It says why.\n\n  Developer debug context: {context}\n"
    found = parse_break(report)
    assert (found.title, found.context) == (expected, context)
    assert (f'Dynamo calls it "{title}".' in found.explanation) == (expected != title)


def test_nodes_by_source_are_the_first_nodes_of_their_lines() -> None:
    """One node per source line, in order; not of nested graphs, not of the output."""
    nodes = [f'        v{i}: "f32[2]" = torch.sin(v{i});' for i in range(3)]
    lines = [f"         # File: /app/m.py:{n} in f, code: x" for n in (7, 3, 7)]
    text = "\n".join([
        "    def forward(self, x):", *(part for pair in zip(lines, nodes, strict=True) for part in pair),
        lines[0].replace(":7", ":8"), "        return (v2,)",
        "    class body(torch.nn.Module):", "        def forward(self, x):", f"    {lines[0].replace(':7', ':9')}", f"    {nodes[0]}",
    ])  # fmt: skip
    graph = LazyGraph("fx:0/0", "fx", "FX", InMemoryPayload(text), "fx", "0/0")
    by_line = {n.span.line: n for n in reversed(graph.nodes) if n.span}
    assert list(graph.nodes_by_source) == [by_line[7], by_line[3]]


def test_findings_of_a_log_parse_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Library calls of Inductor name no node, so that no graph is searched for them."""
    session = Session(subject="torch")
    graph = LazyGraph("fx:0/0", "fx", "FX", InMemoryPayload("    def forward(self, x):\n"), "fx", "0/0")
    lowering = parse_lowering(OUTPUT_CODE)
    session.put_compilation(
        CompilationRecord("0/0", "0", "first call", graphs=(graph,), lowering=lowering, compiler="torch")
    )
    monkeypatch.setattr(lazy_records, "parse_nodes", None)
    assert lowering.externs
    assert [f for f in find_problems(session) if f.kind == "aten-fallback"] == []
    assert graph.find_nodes(["post:0/0:mm"]) == []


def test_a_number_in_an_attribute_is_stored_as_a_tensor() -> None:
    """A counter on a module is not passed: it is stored as a tensor, or made a symbol."""
    (counter,) = parse_recompile_reasons(
        "0/1: self.seen == 1  # self.seen += 1  # model.py:30 in forward", lambda _: None
    )
    assert [f.text.partition(":")[0] for f in counter.fixes] == [
        "Store self.seen as a tensor",
        "Make numbers in attributes of modules symbols",
    ]


def test_inputs_have_the_names_that_this_compiler_gives() -> None:
    """Dicts of modules are left out; a name that a node has gets an underscore."""
    text = """\
class GraphModule(torch.nn.Module):
    def forward(self, L_self_modules_layers_modules_0_parameters_weight_: "f32[4, 4]", G_net_buffers_mean_: "f32[4]", L_x_: "f32[2, 4]", L_y_: "f32[2, 4]"):
        l_self_modules_layers_modules_0_parameters_weight_ = L_self_modules_layers_modules_0_parameters_weight_
        g_net_buffers_mean_ = G_net_buffers_mean_
        l_x_ = L_x_
        l_y_ = L_y_

         # File: model.py:3 in forward, code: y = x @ self.layers[0].weight
        y: "f32[2, 4]" = l_x_ @ l_self_modules_layers_modules_0_parameters_weight_;  l_x_ = None
        add: "f32[2, 4]" = y + g_net_buffers_mean_;  y = None
        mul: "f32[2, 4]" = add * l_y_;  add = l_y_ = None
        return (mul,)
"""
    nodes = parse_nodes(text, "fx", "0/0")
    assert [n.name for n in nodes] == ["layers_0_weight", "net_mean", "x", "y_", "y", "add", "mul", "output"]
    assert nodes[4].text == "y = x @ layers_0_weight"
    assert nodes[4].inputs == ("fx:0/0:x", "fx:0/0:layers_0_weight")
    assert nodes[6].text == "mul = add * y_"
