"""Template matrix products match eager in Triton's interpreter and fuse surrounding ops.

They are tested on every target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import engine
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.lowered_program import AtenCall, Launch, LoweredProgram
from engine.ir.kernels.template_choice import (
    AlwaysTemplateChooser,
    ChoiceRequest,
    ChoiceResult,
    FewRowsChooser,
    TemplateChooser,
)
from engine.kernels.compile_kernel import compile_kernel
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.lowering.passes import pad_matmul
from engine.lowering.templates.matmul_configs import candidate_tilings
from engine.runtime.verify.kernels import verify_kernels
from tests.engine.lowering.attention_cases import ATTENTION_CASES
from tests.engine.lowering.interpreter_results import run_in_batches
from tests.engine.lowering.matmul_cases import MATMUL_CASES
from tests.engine.lowering.trace_aten import trace_to_aten
from tests.markers import each_kind_of_target, needs_triton

F = torch.nn.functional
BF16 = torch.bfloat16


@pytest.mark.thorough
@needs_triton
@pytest.mark.parametrize("name", [*MATMUL_CASES, *ATTENTION_CASES])
def test_equals_eager(name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every result of the case agrees with eager, also where sizes are symbols."""
    found = run_in_batches(request, tmp_path_factory, "--templates")
    assert found[f"{name}:static"] == []
    assert found.get(f"{name}:dynamic", []) == []


def test_sizes_that_are_symbols_have_templates() -> None:
    """A product with a symbolic row count is one kernel fused with its activation.

    The grid and bounds are computed at each call.
    """
    traced = trace_to_aten(linear, ARGS, is_dynamic=True)
    made = lower(traced, "cuda:90", print_triton, chooser=AlwaysTemplateChooser())
    (kernel,) = made.kernels
    assert [type(s) for s in made.steps] == [Launch]
    assert "tl.dot(" in kernel.text
    assert kernel.flops.free_symbols == kernel.bytes_moved.free_symbols != set()
    assert any(a.kind == "size" for a in kernel.args)


def program(
    function: Callable[..., Any], *args: torch.Tensor, chooser: TemplateChooser | None = None
) -> LoweredProgram:
    """A function's program, with templates wherever one fits."""
    return lower(trace_to_aten(function, args), "cuda:90", print_triton, chooser=chooser or AlwaysTemplateChooser())


def linear(x: Any, w: Any, b: Any) -> Any:
    """A layer and its activation."""
    return F.gelu(torch.addmm(b, x, w.t()))


MATRIX_INSTRUCTIONS = ("wgmma", "mma.sync", "tcgen05.mma", "v_mfma", "v_wmma")
ARGS = (torch.randn(256, 96).to(BF16), torch.randn(320, 96).to(BF16), torch.randn(320).to(BF16))


@needs_triton
@each_kind_of_target
def test_every_target_compiles_it(target: str) -> None:
    """A product with bias and activation compiles to machine code without a GPU.

    It uses the target's matrix instructions; Turing has none for bfloat16.
    """
    (kernel,) = program(linear, *ARGS).kernels
    record = compile_kernel(kernel, target)
    assert not record.error
    text = next(x.text for x in record.listings if x.stage in ("ptx", "amdgcn"))
    assert any(word in text for word in MATRIX_INSTRUCTIONS) == (target != "cuda:75")


def attention(name: str, length: int = 256) -> tuple[GeneratedKernel, ...]:
    """The kernels of a case of attention, of the size of a small model's."""
    case = ATTENTION_CASES[name]
    given = [torch.randn(2, 3, length, 64).to(BF16) for _ in case.make_args]
    return program(case.function, *given).kernels


@pytest.mark.thorough
@needs_triton
@each_kind_of_target
def test_every_target_compiles_attention(target: str) -> None:
    """Attention compiles to one kernel with tensor core products on every target.

    On the main target the backward compiles too.
    """
    name = "attention_backward" if target == "cuda:90" else "causal"
    for kernel in attention(name):
        record = compile_kernel(kernel, target)
        assert not record.error
        text = next(x.text for x in record.listings if x.stage in ("ptx", "amdgcn"))
        is_product = "tl.dot(" in kernel.text
        assert any(word in text for word in MATRIX_INSTRUCTIONS) == (is_product and target != "cuda:75")


def test_kernels_of_attention_know_their_node() -> None:
    """Each line that computes belongs to a step of attention, and so to the user's call."""
    for kernel in attention("attention_backward"):
        (node,) = {o.rpartition(":")[2] for op in kernel.ops for o in op.origins}
        assert node in ("attention_with_backward", "attention_backward")
        dots = [ops for line, ops in zip(kernel.text.splitlines(), kernel.line_ops, strict=True) if "tl.dot(" in line]
        assert all(dots)
        assert kernel.flops
        assert kernel.bytes_moved


@pytest.mark.parametrize("name", ["mask_gradient", "causal_mask_gradient"])
def test_the_gradient_of_a_mask_is_written_where_scores_are_made_again(name: str) -> None:
    """The kernel of the queries' gradient stores the mask gradient only when it is used.

    It stores the gradient for every score.
    """
    case = ATTENTION_CASES[name]
    *_, queries = (k for k in program(case.function, *case.args()).kernels if k.name.startswith("attention"))
    assert "grad_mask_ptr" in queries.text
    unseen = program(lambda *args: case.function(*args)[:3], *case.args())
    assert not any("grad_mask_ptr" in k.text for k in unseen.kernels)
    assert len([k for k in unseen.kernels if k.name.startswith("attention")]) == 3


def test_equal_layers_share_their_kernels() -> None:
    """Two calls of the same sizes launch one kernel on buffers of their own."""

    def twice(q: Any, k: Any, v: Any) -> Any:
        attend = ATTENTION_CASES["causal"].function
        return attend(attend(q, k, v), k, v)

    made = program(twice, *(torch.randn(2, 3, 40, 16) for _ in range(3)))
    first, second = made.kernels
    assert (first.id, first.text) == (second.id, second.text)
    assert [a.buffer for a in second.args if a.kind == "pointer"] == ["attention", "arg1_1", "arg2_1", "attention_1"]


def test_what_no_template_computes_stays() -> None:
    """Dropped weights, and heads too wide for any block."""
    q = torch.randn(1, 2, 8, 300)
    wide = program(ATTENTION_CASES["causal"].function, q, q, q)
    assert [type(s) for s in wide.steps] == [AtenCall]


@needs_triton
def test_little_shared_memory_gets_smaller_inner_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tiles, with less on the way at once."""
    from dataclasses import replace

    from engine.kernels import resources

    (kernel,) = program(linear, *ARGS).kernels
    taken = compile_kernel(kernel, "cuda:80").resources
    assert taken is not None
    assert taken.shared_bytes
    monkeypatch.setitem(
        resources.DEVICE_LIMITS,
        "cuda:80",
        replace(resources.DEVICE_LIMITS["cuda:80"], max_shared_per_block=taken.shared_bytes - 1),
    )
    record = compile_kernel(kernel, "cuda:80")
    assert not record.error
    assert record.smaller_blocks_note.startswith("It runs with INNER=")


def lines_of(kernel: GeneratedKernel, text: str) -> list[set[str]]:
    """The nodes behind each line that holds a text."""
    origins = {op.id: op.origins for op in kernel.ops}
    found = zip(kernel.text.splitlines(), kernel.line_ops, strict=True)
    return [{o.rpartition(":")[2] for i in ops for o in origins[i]} for line, ops in found if text in line]


def test_lines_know_the_nodes_they_come_from() -> None:
    """The sum is the product's, what follows it the activation's; the store is both."""
    (kernel,) = program(linear, *ARGS).kernels
    assert lines_of(kernel, "tl.dot(") == [{"addmm"}]
    assert lines_of(kernel, "arg1_ptr +") == [{"addmm"}]
    assert lines_of(kernel, "gelu = ") == [{"gelu"}]
    assert kernel.flops is not None
    assert kernel.flops > 2 * 256 * 320 * 96
    assert kernel.bytes_moved == 2 * (256 * 96 + 320 * 96 + 320 + 256 * 320)


@needs_triton
def test_a_template_is_verified_like_any_kernel() -> None:
    """The interpreter runs it on ATen's values, and finds no difference."""
    graph = trace_to_aten(linear, ARGS)
    found = verify_kernels(lower(graph, "cuda:90", print_triton, chooser=AlwaysTemplateChooser()), graph, ARGS)
    assert [r.outcome for r in found.values()] == ["close"] or [r.outcome for r in found.values()] == ["equal"]


def test_nothing_changes_unless_it_is_asked_for() -> None:
    """Without anyone who measures, the library computes products, and nothing is recorded."""
    usual = lower(trace_to_aten(linear, ARGS), "cuda:90", print_triton)
    assert [type(s) for s in usual.steps] == [AtenCall, Launch]
    assert usual.record.autotune_choices == ()


@dataclass
class SelectingChooser:
    """Choose the candidates at these positions, one request at a time, and log the requests."""

    positions: list[int]
    request_count: list[ChoiceRequest] = field(default_factory=list)

    def choose(self, question: ChoiceRequest) -> ChoiceResult:
        """The next position."""
        self.request_count.append(question)
        return ChoiceResult(self.positions[len(self.request_count) - 1], reason="It was told to.")


def test_candidates_compute_the_same() -> None:
    """Each candidate is a separate program with the same inputs.

    One is the ATen call with the kernels around it; the template replaces both.
    """
    picky = SelectingChooser([0])
    made = program(linear, *ARGS, chooser=picky)
    assert [type(s) for s in made.steps] == [AtenCall, Launch]
    assert made.record.externs[0].reason == "It was told to."
    (question,) = picky.request_count
    usual, *others = (way.make() for way in question.candidates)
    assert [type(s) for s in usual.steps] == [AtenCall, Launch]
    assert {len(o.steps) for o in others} == {1}
    assert {frozenset(p.inputs) for p in (usual, *others)} == {frozenset(("arg0_1", "arg1_1", "arg2_1"))}
    assert made.record.autotune_choices[0].chosen == "vendor"


def test_prologues_are_fused_or_computed_before() -> None:
    """An operand's cast is fused into the template's prologue or runs as a separate kernel."""

    def cast(x: Any, w: Any) -> Any:
        return x @ w.to(BF16)

    picky = SelectingChooser([1])
    args = (torch.randn(64, 64).to(BF16), torch.randn(64, 64))
    taken = program(cast, *args, chooser=picky)
    assert len(taken.kernels) == 1
    labels = [way.label for way in picky.request_count[0].candidates]
    last = program(cast, *args, chooser=SelectingChooser([len(labels) - 1]))
    assert len(last.kernels) == 2
    assert {len(way.make().kernels) for way in picky.request_count[0].candidates} == {1, 2}


def test_candidates_are_few_and_fit() -> None:
    """The cost model keeps a few tilings that fit shared memory, with flat tiles for few rows."""
    for sizes in ((1, 16, 50257, 768), (1, 4096, 4096, 4096), (12, 512, 512, 64), (1, 300, 17, 20)):
        found = candidate_tilings(*sizes, 2)
        assert 1 <= len(found) <= 8
        assert all(2 * (t.block_m + t.block_n) * t.block_k * t.num_stages <= 200_000 for t in found)
    assert candidate_tilings(1, 16, 50257, 768, 2)[0].block_m == 16
    assert candidate_tilings(1, 4096, 4096, 4096, 2)[0].block_m >= 64


def test_few_rows_take_the_template_unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """For few rows and a weight that needs padding, the template is chosen unmeasured.

    The library is called for more rows, for a matrix that needs no padding, and for float32.
    """
    monkeypatch.setattr(pad_matmul, "MIN_GAIN_SECONDS", -1.0)
    odd, even = torch.randn(99, 64).to(BF16), torch.randn(104, 64).to(BF16)
    few = program(lambda x, w: x @ w.t(), torch.randn(16, 64).to(BF16), odd, chooser=FewRowsChooser())
    assert ([k.name for k in few.kernels if "tl.dot(" in k.text], few.record.externs) == ([few.kernels[0].name], ())
    assert few.record.autotune_choices[0].reason.startswith("For at most 32 rows")
    for x, w in (
        (torch.randn(64, 64).to(BF16), odd),
        (torch.randn(16, 64).to(BF16), even),
        (torch.randn(16, 64), odd.float()),
    ):
        many = program(lambda x, w: x @ w.t(), x, w, chooser=FewRowsChooser())
        assert not any("tl.dot(" in k.text for k in many.kernels)
        assert many.record.autotune_choices == ()


def test_an_option_asks_for_templates() -> None:
    """With ``templates="always"`` a session shows the template kernel without a GPU.

    Results equal eager's. Any other option value is rejected with one sentence.
    """
    engine.reset()
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU())
    x = torch.randn(48, 32)
    with engine.record() as session, torch.no_grad():
        found = engine.compile(model, options={"templates": "always"})(x)
    torch.testing.assert_close(found, model(x))
    (compiled,) = session.compilations
    assert ["tl.dot" in k.text for k in compiled.kernels] == [True]
    assert compiled.lowering is not None
    assert compiled.lowering.externs == ()
    assert (
        compiled.lowering.autotune_choices[0].reason
        == "The option templates requires a template; nothing was measured."
    )
    with pytest.raises(engine.errors.BadArgument, match="'templates' must be one of never, known, measured, always"):
        engine.compile(model, options={"templates": "sometimes"})


def test_measuring_without_a_gpu_is_the_library_every_time() -> None:
    """The mode that measures changes nothing where there is nothing to measure on."""
    if torch.cuda.is_available():
        pytest.skip("this machine has something to measure on")
    engine.reset()
    with engine.record() as session:
        engine.compile(lambda x: torch.relu(x @ x), options={"mode": "max-autotune"})(torch.randn(32, 32))
    (compiled,) = session.compilations
    assert compiled.lowering is not None
    assert [e.is_library for e in compiled.lowering.externs] == [True]
