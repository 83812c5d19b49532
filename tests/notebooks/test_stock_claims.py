"""Execute every claim of the lessons about stock torch.compile on the installed torch.

Each lesson has a cell ``stock-box``. Each of its bullets is a key of ``CLAIMS``; its function raises if torch behaves
otherwise.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import engine
from tests.notebooks.notebook_runner import NOTEBOOKS, plain_python, read

CLAIMS: dict[tuple[str, str], Callable[[], None]] = {}


def claim(lesson: str, text: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register the check of one bullet."""

    def register(check: Callable[[], None]) -> Callable[[], None]:
        CLAIMS[lesson, text] = check
        return check

    return register


def boxes() -> Iterator[tuple[str, str]]:
    """Lesson number and text of each box about stock torch.compile."""
    for path in NOTEBOOKS:
        for cell in read(path).cells:
            if cell.id == "stock-box":
                yield path.stem[:2], cell.source


def graphs_after(function: Callable[..., Any], *calls: tuple[Any, ...], **settings: Any) -> list[int]:
    """How many graphs stock torch.compile has compiled after each call."""
    torch.compiler.reset()
    graphs: list[Any] = []

    def count(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(function, backend=count, **settings)
    tally = []
    with contextlib.redirect_stdout(io.StringIO()):
        for call in calls:
            compiled(*call)
            tally.append(len(graphs))
    return tally


def aot_graphs(function: Callable[..., Any], *call: Any, **settings: Any) -> tuple[list[Any], list[Any], Any]:
    """Forward graphs and backward graphs of stock's AOTAutograd, and the result of one call."""
    common = importlib.import_module("torch._dynamo.backends.common")
    boxed = importlib.import_module("functorch.compile").make_boxed_func
    forward: list[Any] = []
    backward: list[Any] = []

    def into(found: list[Any]) -> Callable[..., Any]:
        def compiler(graph: Any, _: Any) -> Any:
            found.append(graph)
            return boxed(graph.forward)

        return compiler

    torch.compiler.reset()
    backend = common.aot_autograd(fw_compiler=into(forward), bw_compiler=into(backward), **settings)
    result = torch.compile(function, backend=backend)(*call)
    return forward, backward, result


def guard_text(function: Any, *call: Any) -> str:
    """The guards of stock's first cache entry, as text."""
    torch.compiler.reset()
    torch.compile(function, backend="eager")(*call)
    entries = importlib.import_module("torch._dynamo.eval_frame")._debug_get_cache_entry_list(function.__code__)
    return str(entries[0].guard_manager)


def many(x: torch.Tensor, rounds: int) -> torch.Tensor:
    """Lesson 01."""
    y = x * 2
    for i in range(rounds):
        y = y + i
    return y.relu()


def masked_softmax(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Lesson 00."""
    return torch.softmax((scores * 0.125).masked_fill(~keep, float("-inf")), dim=-1)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Lesson 00."""
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    print("loss", round(loss.item(), 3))
    return loss * 0.5


@claim("00", "Stock also makes one graph of `masked_softmax`.")
@claim(
    "00",
    "Stock also compiles `masked_softmax` once more when the number of rows changes; further numbers of rows need no compilation.",
)
def rows_become_a_symbol() -> None:
    """Two compilations for four numbers of rows."""
    calls = [(torch.ones(rows, 128), torch.ones(rows, 128) > 0) for rows in (64, 32, 5, 7)]
    assert graphs_after(masked_softmax, *calls) == [1, 2, 2, 2]


@claim(
    "00",
    "Stock also makes two graphs of `loss_of`, because of the same line. Its log has two breaks there: `item` and `print`.",
)
def loss_breaks() -> None:
    """One before the line that prints, one after it."""
    with engine.observe_torch() as seen:
        assert graphs_after(loss_of, (torch.zeros(4, 24, 8), torch.zeros(4, 24, dtype=torch.long))) == [2]
    item, printed = (b for c in seen.compilations if c.trace for b in c.trace.breaks)
    assert item.span == printed.span
    assert "Tensor.item()" in item.explanation


def inductor_code(function: Callable[..., Any], *call: torch.Tensor) -> str:
    """The code that Inductor generates for a function; nothing is compiled."""
    inductor = "torch._inductor"
    fake, graph_module, virtualized = (
        importlib.import_module(name)
        for name in ("torch._subclasses", "torch.fx.experimental.proxy_tensor", f"{inductor}.virtualized")
    )
    rules = importlib.import_module(f"{inductor}.decomposition").select_decomp_table()
    traced = graph_module.make_fx(function, decomposition_table=rules, tracing_mode="fake")(*call)
    graph, mode = importlib.import_module(f"{inductor}.graph").GraphLowering(traced), fake.FakeTensorMode()
    debug = importlib.import_module(f"{inductor}.debug").DebugContext()
    handlers = virtualized.V
    with handlers.set_graph_handler(graph), handlers.set_fake_mode(mode), handlers.set_debug_handler(debug):
        graph.run(*[mode.from_tensor(tensor) for tensor in call])
        return str(graph.codegen()[0].value)


def gated_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Lesson 08."""
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
    return y.sigmoid() * y


def rows_then_columns(x: torch.Tensor) -> torch.Tensor:
    """Lesson 08."""
    return torch.softmax(x, dim=1).mean(0)


@claim("08", "For a CPU, Inductor also fuses `gated_norm`: all of it is one function, in C++.")
def norm_is_one_function() -> None:
    """One C++ function, and no call of ATen."""
    code = inductor_code(gated_norm, torch.randn(64, 128), torch.ones(128))
    assert len(set(re.findall(r"cpp_fused\w*", code))) == 1
    assert "extern_kernels." not in code


@claim(
    "08",
    "For a CPU, Inductor puts both reductions of `rows_then_columns` into one function, as loops one after the other.",
)
def two_reductions_in_one_function() -> None:
    """One C++ function with a loop over each of the two sizes, more than once."""
    code = inductor_code(rows_then_columns, torch.randn(96, 128))
    assert len(set(re.findall(r"cpp_fused\w*", code))) == 1
    assert code.count("<static_cast<int64_t>(96L)") >= 2
    assert code.count("<static_cast<int64_t>(128L)") >= 2


@claim(
    "08",
    "`torch._inductor.config.max_fusion_size` is 64: at most so many nodes of stock's scheduler are fused.",
)
def fusion_size() -> None:
    """The default."""
    assert importlib.import_module("torch._inductor.config").max_fusion_size == 64


@claim("01", "Stock also follows the bytecode: the graph of `many` has the same three additions.")
def same_additions() -> None:
    """Three additions."""
    found: list[Any] = []
    torch.compiler.reset()
    torch.compile(many, backend=lambda graph, _: found.append(graph) or graph.forward)(torch.ones(2, 3), 3)
    additions = [node for node in found[0].graph.nodes if node.target in (operator.add, operator.iadd)]
    assert len(additions) == 3


@claim("01", "Stock also guards on first use: an argument that the code does not read has no guard.")
def unread_argument() -> None:
    """Other values of an unread argument hit."""
    assert graphs_after(lambda x, unread: x + 1, *[(torch.ones(2), n) for n in (3, 4, "a", None)]) == [1, 1, 1, 1]


@claim("01", "Stock compiles `many` again for every new number of rounds, because `range` needs the number.")
def rounds_are_specialized() -> None:
    """One compilation per number."""
    assert graphs_after(many, *[(torch.ones(2, 3), n) for n in (3, 4, 5, 6)]) == [1, 2, 3, 4]


def clip_if_large(x: torch.Tensor) -> torch.Tensor:
    """Lesson 02."""
    scale = x.abs().max()
    if scale > 2:
        x = x / scale
    return x.sin() + 1


@claim("02", "Stock breaks the graph of `clip_if_large` at the same line.")
def same_break() -> None:
    """Two graphs, one break, at the if."""
    torch.compiler.reset()
    found = torch._dynamo.explain(clip_if_large)(torch.ones(2))
    assert (found.graph_count, found.graph_break_count) == (2, 1)
    line = clip_if_large.__code__.co_firstlineno + 3
    assert found.break_reasons[0].user_stack[-1].lineno == line


@claim(
    "02",
    "Stock breaks at `.item()`, unless `torch._dynamo.config.capture_scalar_outputs` is set. Here the number becomes an unbacked symbol.",
)
def item_breaks() -> None:
    """Two graphs; one with the setting."""
    assert graphs_after(lambda x: x / x.max().item(), (torch.ones(2),)) == [2]
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert graphs_after(lambda x: x / x.max().item(), (torch.ones(2),)) == [1]


@claim(
    "02",
    "Stock breaks at `x[mask]`, unless `torch._dynamo.config.capture_dynamic_output_shape_ops` is set. Here the size becomes an unbacked symbol.",
)
def mask_breaks() -> None:
    """Two graphs; one with the setting."""
    assert graphs_after(lambda x: x[x > 0].sum(), (torch.ones(2),)) == [2]
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert graphs_after(lambda x: x[x > 0].sum(), (torch.ones(2),)) == [1]


@claim("02", "Stock with `fullgraph=True` raises an error at the first break.")
@claim("11", "`torch.compile(f, fullgraph=True)` raises an error at the first break.")
def fullgraph_raises() -> None:
    """An error of Dynamo."""
    with pytest.raises(torch._dynamo.exc.Unsupported):
        graphs_after(clip_if_large, (torch.ones(2),), fullgraph=True)


settings = {"scale": 2.0, "name": "run 7"}


def shifted(x: torch.Tensor, offset: int) -> torch.Tensor:
    """Lesson 03."""
    return (x * settings["scale"] + offset).relu()


@claim(
    "03",
    "Stock checks a tensor's type, dtype, shape, strides, device and `requires_grad` in one guard, `TENSOR_MATCH`. Here each is a guard of its own.",
)
def tensor_match() -> None:
    """One line with all of them."""
    (line,) = [row for row in guard_text(shifted, torch.ones(4, 8), 1).splitlines() if "TENSOR_MATCH" in row]
    assert all(
        word in line for word in ("Tensor", "torch.float32", "device=", "requires_grad=", "size=[4, 8]", "stride=")
    )


@claim("03", "The guard on `offset` is `EQUALS_MATCH` in stock; six offsets need two compilations there, too.")
def offsets() -> None:
    """An equality, then a symbol."""
    assert "EQUALS_MATCH: L['offset'] == 1" in guard_text(shifted, torch.ones(4, 8), 1)
    assert graphs_after(shifted, *[(torch.ones(4, 8), n) for n in range(1, 7)])[-1] == 2


class Schedule:
    """Lesson 03."""

    label = "step-0"


@claim(
    "03",
    "Stock compiles `update` once per step until `torch._dynamo.config.recompile_limit`, which is 8. Then it runs the function eagerly.",
)
def one_per_step() -> None:
    """Eight entries in twelve calls."""
    schedule = Schedule()

    def update(weights: torch.Tensor, step: int) -> torch.Tensor:
        rate = 0.0 if schedule.label == "step-0" else 0.1
        return weights - rate

    def advance(step: int) -> tuple[torch.Tensor, int]:
        schedule.label = f"step-{step}"
        return torch.ones(4), 0

    assert torch._dynamo.config.recompile_limit == 8
    torch.compiler.reset()
    found: list[Any] = []
    compiled = torch.compile(update, backend=lambda graph, _: found.append(graph) or graph.forward)
    for step in range(12):
        compiled(*advance(step))
    assert len(found) == 8


@claim(
    "03",
    "Stock compiles nothing where no tensor operation is traced. If the first step only returned `weights`, stock would skip the function for good.",
)
def no_operations() -> None:
    """No graph in later calls either."""

    def update(weights: torch.Tensor, label: str) -> torch.Tensor:
        return weights if label == "step-0" else weights - 0.1

    assert graphs_after(update, *[(torch.ones(4), f"step-{step}") for step in range(5)]) == [0] * 5


def centered(x: torch.Tensor) -> torch.Tensor:
    """Lesson 04."""
    return (x - x.mean(0)).tanh()


def table(x: torch.Tensor) -> torch.Tensor:
    """Lesson 04."""
    return x + torch.ones(8, 4)


@claim("04", "Stock also compiles `centered` twice for the five batches, and once more for one row.")
def five_batches() -> None:
    """Static, symbol, and a row."""
    sizes = (8, 12, 16, 20, 24, 1)
    assert graphs_after(centered, *[(torch.randn(rows, 4),) for rows in sizes]) == [1, 2, 2, 2, 2, 3]


@claim(
    "04",
    "In stock, `torch._dynamo.mark_dynamic` raises a `ConstraintViolationError` where a line specializes the size, as in `table`.",
)
def marked_and_specialized() -> None:
    """An error."""
    x = torch.randn(8, 4)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(Exception, match="specialized it to be a constant") as caught:
        graphs_after(table, (x,))
    assert type(caught.value).__name__ == "ConstraintViolationError"


@claim("04", "`torch._dynamo.maybe_mark_dynamic` does not raise: the size is specialized, as here.")
def maybe_marked() -> None:
    """One graph."""
    x = torch.randn(8, 4)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    assert graphs_after(table, (x,)) == [1]


@claim(
    "04",
    "`torch.compile(f, dynamic=True)` makes sizes symbols from the first call, as `engine.compile(f, dynamic=True)` does.",
)
def dynamic_from_the_start() -> None:
    """One graph for all."""
    calls = [(torch.randn(rows, 4),) for rows in (8, 12, 16)]
    assert graphs_after(centered, *calls, dynamic=True) == [1, 1, 1]


def step_in_place(x: torch.Tensor) -> torch.Tensor:
    """Lesson 05."""
    x.add_(1)
    x.mul_(2)
    return x.sum()


def both(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Lesson 05."""
    a.add_(1)
    return b * 2


def operators(graph: Any) -> list[str]:
    """Names of the operators of a graph."""
    return [str(node.target).split(".")[1] for node in graph.graph.nodes if node.op == "call_function"]


@claim("05", "Stock's AOTAutograd functionalizes in the same way: `add_` and `mul_` become `add` and `mul`.")
def functionalized() -> None:
    """No operator that mutates."""
    assert operators(aot_graphs(step_in_place, torch.ones(3))[0][0])[:3] == ["add", "mul", "sum"]


@claim(
    "05",
    "For Inductor without a backward, stock puts the copy back into the graph, as a last `copy_`. Here a wrapper does it.",
)
def copy_in_graph() -> None:
    """With the setting that Inductor uses."""
    forward, _, _ = aot_graphs(step_in_place, torch.ones(3), keep_inference_input_mutations=True)
    assert operators(forward[0])[-1] == "copy_"


@claim(
    "05",
    "Stock (torch 2.13 and 2.15) does not guard the overlap in `both`: its second call hits the first entry, and the result is wrong.",
)
def overlap() -> None:
    """Another result than eager's."""
    torch.compiler.reset()
    results = []
    for function in (both, torch.compile(both, backend="aot_eager")):
        base = torch.zeros(6)
        function(base[:3], base[3:])
        results.append(function(base[:3], base[1:4]).tolist())
    assert results == [[4.0, 4.0, 0.0], [2.0, 2.0, 0.0]]


def mlp_loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Lesson 06."""
    return F.gelu(x @ w).pow(2).mean()


def training_graphs() -> tuple[list[Any], list[Any], Any]:
    """Stock's forward and backward of ``mlp_loss``, with its min-cut partitioner."""
    partition = importlib.import_module("torch._functorch.partitioners").min_cut_rematerialization_partition
    x, w = torch.randn(256, 64), torch.randn(64, 64, requires_grad=True)
    return aot_graphs(mlp_loss, x, w, partition_fn=partition)


@claim("06", "Stock's min-cut partitioner also saves `mm` for `mlp_loss`, and recomputes `gelu`.")
def saves_the_product() -> None:
    """Inputs and operators of its backward."""
    _, backward, result = training_graphs()
    result.backward()
    inputs = [node for node in backward[0].graph.nodes if node.op == "placeholder"]
    assert "mm" in [node.name for node in inputs]
    assert not any("gelu" in node.name for node in inputs)
    assert "gelu" in operators(backward[0])


@claim("06", "Stock also compiles the backward when `backward()` is first called, not before.")
def backward_on_demand() -> None:
    """None, then one."""
    _, backward, result = training_graphs()
    assert not backward
    result.backward()
    assert len(backward) == 1


@claim("06", "`torch._functorch.config.activation_memory_budget` is 1.0 by default; lower values recompute more.")
def memory_budget() -> None:
    """The default, and fewer saved bytes at 0."""
    config = importlib.import_module("torch._functorch.config")
    assert config.activation_memory_budget == 1.0
    with config.patch(activation_memory_budget=0.0):
        _, backward, result = training_graphs()
        result.backward()
    assert "mm" not in [node.name for node in backward[0].graph.nodes if node.op == "placeholder"]


@claim("07", "Stock captures the backward of three equal steps once, too, and once more for another hook.")
def captured_once() -> None:
    """Captures after each step."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    compiled_autograd = importlib.import_module("torch._dynamo.compiled_autograd")
    found: list[Any] = []
    tally = []
    torch.compiler.reset()
    with compiled_autograd._enable(torch.compile(backend=lambda graph, _: found.append(graph) or graph.forward)):
        for step in range(5):
            if step == 3:
                model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
            model.zero_grad(set_to_none=True)
            model(torch.ones(4, 8)).sum().backward()
            tally.append(len(found))
    assert tally == [1, 1, 1, 2, 2]


@claim(
    "07",
    "Stock turns it on with `torch._dynamo.config.compiled_autograd = True`, and `backward()` must be called inside of the compiled function; it is off by default.",
)
def compiled_autograd_setting() -> None:
    """Off: no graph for the backward. On: one for the forward and one for the backward."""

    def inside(weight: torch.Tensor) -> None:
        (weight * 3).sum().backward()

    def outside(weight: torch.Tensor) -> torch.Tensor:
        return (weight * 3).sum()

    assert torch._dynamo.config.compiled_autograd is False
    for function, setting, wanted in ((inside, False, 1), (inside, True, 2), (outside, True, 1)):
        found: list[Any] = []
        torch.compiler.reset()
        with torch._dynamo.config.patch(compiled_autograd=setting):
            result = torch.compile(function, backend=lambda g, _, f=found: f.append(g) or g.forward)(
                torch.ones(3, requires_grad=True)
            )
            if result is not None:
                result.backward()
        assert len(found) == wanted


@claim("09", "Stock lowers to Triton only for a GPU: on a CPU, Inductor generates C++ instead.")
def cpp_on_a_cpu() -> None:
    """Inductor's default for a CPU, and the code that it generates."""
    assert importlib.import_module("torch._inductor.config").cpu_backend == "cpp"
    code = inductor_code(masked_softmax, torch.randn(8, 16), torch.ones(8, 16) > 0)
    assert "cpp_fused" in code
    assert "tl.load" not in code


@claim(
    "09",
    "`torch._inductor.config.triton.unique_kernel_names` is on, so stock's kernels also carry the names of the operations that they fuse.",
)
def kernel_names() -> None:
    """Both settings."""
    triton = importlib.import_module("torch._inductor.config").triton
    assert triton.unique_kernel_names is True
    assert triton.descriptive_names == "original_aten"


class Counted(torch.nn.Module):
    """Lesson 10."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Branch on the count."""
        self.calls += 1
        return x * 2 if self.calls % 1000 == 1 else x + 1


class CountedOnly(torch.nn.Module):
    """Lesson 10."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Count, and no more."""
        self.calls += 1
        return x + 1


@claim(
    "10",
    "Stock guards the counter's exact value: in twelve calls it compiles eight times, then it runs the function eagerly.",
)
def counter() -> None:
    """Eight."""
    assert graphs_after(Counted(), *[(torch.ones(2),)] * 12) == [*range(1, 9), 8, 8, 8, 8]


@claim("10", "In stock this also holds where only `self.calls += 1` is left. Count outside of the forward there.")
def counter_alone() -> None:
    """Eight, too."""
    assert graphs_after(CountedOnly(), *[(torch.ones(2),)] * 12)[-1] == 8


@claim(
    "10",
    '`torch.compiler.set_stance("fail_on_recompile")` raises an error at a recompile, as `engine.expect(recompiles=0)` does here.',
)
@claim("11", '`torch.compiler.set_stance("fail_on_recompile")` raises an error at a recompile.')
def stance() -> None:
    """An error at the second shape."""
    torch.compiler.reset()
    compiled = torch.compile(centered, backend="eager")
    compiled(torch.ones(2, 4))
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="recompile"):
        compiled(torch.ones(3, 4))


@claim("11", "`torch._dynamo.explain(f)(x)` counts graphs and breaks of one call.")
def explain() -> None:
    """Two and one."""
    torch.compiler.reset()
    found = torch._dynamo.explain(clip_if_large)(torch.ones(2))
    assert (found.graph_count, found.graph_break_count) == (2, 1)


@claim("11", "`torch.compiler.reset()` empties the caches.")
def reset() -> None:
    """Compiled again after it."""
    found: list[Any] = []
    compiled = torch.compile(centered, backend=lambda graph, _: found.append(graph) or graph.forward)
    torch.compiler.reset()
    for _ in range(2):
        compiled(torch.ones(2, 4))
        compiled(torch.ones(2, 4))
        torch.compiler.reset()
    assert len(found) == 2


@claim(
    "12",
    "`torch._dynamo.symbolic_convert.InstructionTranslatorBase` has a method per instruction, too, such as `BINARY_OP` and `FOR_ITER`.",
)
def method_per_instruction() -> None:
    """Both, and most others."""
    translator = importlib.import_module("torch._dynamo.symbolic_convert").InstructionTranslatorBase
    for name in ("BINARY_OP", "FOR_ITER", "LOAD_CONST", "GET_ITER"):
        assert callable(getattr(translator, name))


@claim("12", "Stock also guards `scale` by value the first time, and makes it a symbol once it has changed.")
def scale_becomes_a_symbol() -> None:
    """Two compilations for three values."""
    assert graphs_after(lambda x, scale: x * scale, *[(torch.ones(2), s) for s in (1.5, 2.5, 3.5)]) == [1, 2, 2]


@claim("13", "Stock also compiles `Repaired` once for four lengths if the length is marked.")
def marked_lengths() -> None:
    """One compilation of the lesson's own model."""
    cells = {c.id: c.source for c in read(next(p for p in NOTEBOOKS if p.stem[:2] == "13")).cells}
    lesson: dict[str, Any] = {"__name__": "lesson"}
    for cell in ("setup", "model", "repaired"):
        exec(plain_python(cells[cell]), lesson)
    for tokens in lesson["batches"]:
        torch._dynamo.mark_dynamic(tokens, 1)
    with torch.no_grad():
        assert graphs_after(lesson["repaired"], *[(tokens,) for tokens in lesson["batches"]])[-1] == 1


@claim(
    "13",
    'The modes have the same names there: `"reduce-overhead"` and `"max-autotune"` are in `torch._inductor.list_mode_options()`.',
)
def mode_names() -> None:
    """Both."""
    assert {"reduce-overhead", "max-autotune"} <= set(importlib.import_module("torch._inductor").list_mode_options())


@claim(
    "13",
    "`torch._functorch.config.activation_memory_budget = 0.5` lets stock's partitioner recompute more, without `checkpoint`.",
)
def smaller_budget() -> None:
    """Fewer bytes of activations reach the backward."""
    config, partitioners = (importlib.import_module(f"torch._functorch.{n}") for n in ("config", "partitioners"))

    def loss(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ((x @ a).tanh() @ b).tanh().sum()

    def saved(budget: float) -> int:
        tensors = [torch.randn(s, requires_grad=True) for s in ((64, 8), (8, 64), (64, 8))]
        with config.patch(activation_memory_budget=budget):
            _, backward, result = aot_graphs(
                loss, *tensors, partition_fn=partitioners.min_cut_rematerialization_partition
            )
            result.backward()
        return sum(n.meta["val"].numel() for n in backward[0].graph.nodes if n.op == "placeholder")

    assert saved(0.5) < saved(1.0)


@claim("14", "A `torch.library.custom_op` is one node in stock's graph, too, and no break.")
def custom_operator() -> None:
    """One graph."""

    @torch.library.custom_op("lesson_claims::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * 2)

    twice.register_fake(torch.empty_like)
    assert graphs_after(lambda x: twice(x) + 1, (torch.ones(2),), fullgraph=True) == [1]


@claim(
    "14",
    "`torch._dynamo.config` has no list of passes; Inductor's is `torch._inductor.config.post_grad_custom_post_pass`.",
)
def custom_pass() -> None:
    """Off by default."""
    assert importlib.import_module("torch._inductor.config").post_grad_custom_post_pass is None
    assert not [name for name in dir(torch._dynamo.config) if "custom_post_pass" in name]


@claim("14", "A backend of yours has the same signature there.")
def backend_signature() -> None:
    """A graph module and a list of inputs."""
    found: list[Any] = []
    torch.compiler.reset()
    torch.compile(centered, backend=lambda graph, inputs: found.append((graph, inputs)) or graph.forward)(
        torch.ones(2, 4)
    )
    assert isinstance(found[0][0], torch.fx.GraphModule)
    assert isinstance(found[0][1], list)


@claim(
    "15",
    "Stock splits the graph of a model in `DistributedDataParallel` at the buckets of gradients, so that they are sent while the backward goes on: `torch._dynamo.config.optimize_ddp` is on.",
)
def split_at_buckets() -> None:
    """The setting, and its optimizer."""
    assert torch._dynamo.config.optimize_ddp in (True, "ddp_optimizer")
    assert importlib.import_module("torch._dynamo.backends.distributed").DDPOptimizer


@claim(
    "15",
    "A collective of `torch.distributed._functional_collectives` is a node of stock's graph, and no break.",
)
def collective_is_a_node() -> None:
    """One graph with an all-reduce, in a group of one rank."""
    collectives = importlib.import_module("torch.distributed._functional_collectives")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        graphs = graphs_after(lambda x: collectives.all_reduce(x, "sum", [0]) + 1, (torch.ones(2),), fullgraph=True)
    finally:
        torch.distributed.destroy_process_group()
    assert graphs == [1]


def flex(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Attention with a score function."""
    attention = importlib.import_module("torch.nn.attention.flex_attention")
    return lambda x: attention.flex_attention(x, x, x, score_mod=rule)


@claim("16", "Stock's graph has one node for it, `flex_attention`, and the score function is a graph of its own.")
def flex_attention_is_a_node() -> None:
    """The node, and a graph module with the operations of the function."""
    graphs: list[Any] = []
    torch.compiler.reset()
    attend = flex(lambda score, batch, head, query, key: score - (query - key).abs())
    torch.compile(attend, backend=lambda graph, _: graphs.append(graph) or graph.forward)(torch.ones(1, 1, 16, 16))
    (graph,) = graphs
    assert sum("flex_attention" in str(node.target) for node in graph.graph.nodes) == 1
    assert "abs" in str(graph.score_mod_0.graph)


@claim("16", "Without a compiler, `flex_attention` computes every score in memory, and warns.")
def flex_attention_warns() -> None:
    """The warning, which torch gives once in a process."""
    torch.compiler.reset()
    importlib.import_module("torch.nn.attention.flex_attention")._WARNINGS_SHOWN.clear()
    with pytest.warns(UserWarning, match="full scores matrix"):
        flex(lambda score, batch, head, query, key: score * 2)(torch.ones(1, 1, 16, 16))


@claim("16", "A score function must return one number for each score: another shape is an error.")
def flex_attention_wants_a_number() -> None:
    """Two numbers for a score raise."""
    torch.compiler.reset()
    attend = flex(lambda score, batch, head, query, key: torch.stack([score, score]))
    with pytest.raises(Exception):  # noqa: B017, PT011
        torch.compile(attend, backend="eager")(torch.ones(1, 1, 16, 16))


def test_every_lesson_compares_with_stock() -> None:
    """Each lesson has one box, and each of its bullets is tested."""
    written = {
        (lesson, line.removeprefix("- "))
        for lesson, text in boxes()
        for line in text.splitlines()
        if line.startswith("- ")
    }
    assert written == set(CLAIMS)
    lessons = {lesson for lesson, _ in boxes()}
    assert lessons == {p.stem[:2] for p in NOTEBOOKS}


ONLY_NAMED = {"ddp_graphs", "fusion", "kernel_code", "output_code", "perf_hints", "post_grad_graphs"}
"""Settings that print only with two ranks or a C compiler."""


def backward_inside(weight: torch.Tensor) -> None:
    """Lesson 07."""
    (weight * 3).sum().backward()


def marked_rows() -> torch.Tensor:
    """Eight rows whose number is a symbol."""
    x = torch.ones(8, 4)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    return x


LOGS: dict[str, tuple[Callable[..., Any], Callable[[], Iterable[tuple[Any, ...]]], tuple[str, ...]]] = {
    "bytecode": (many, lambda: [(torch.ones(2), 3)], ("ORIGINAL BYTECODE", "MODIFIED BYTECODE")),
    "graph_code": (many, lambda: [(torch.ones(2), 3)], ("relu",)),
    "trace_source": (many, lambda: [(torch.ones(2), 3)], ("y = x * 2", "y = y + i")),
    "guards": (many, lambda: [(torch.ones(2), 3)], ("TREE_GUARD_MANAGER", "TENSOR_MATCH", "EQUALS_MATCH")),
    "recompiles": (many, lambda: [(torch.ones(2), n) for n in (3, 4)], ("rounds == 3",)),
    "graph_breaks": (clip_if_large, lambda: [(torch.ones(2),)], ("if scale > 2",)),
    "dynamic": (table, lambda: [(marked_rows(),)], ("create_symbol", "Eq(", "x + torch.ones(8, 4)")),
    "aot_graphs": (mlp_loss, lambda: [(torch.ones(2, 2), torch.ones(2, 2).requires_grad_())], ("Forward", "Backward")),
    "aot_joint_graph": (mlp_loss, lambda: [(torch.ones(2, 2), torch.ones(2, 2).requires_grad_())], ("Joint graph",)),
    "compiled_autograd": (backward_inside, lambda: [(torch.ones(2).requires_grad_(),)], ("Compiled autograd graph",)),
    "compiled_autograd_verbose": (backward_inside, lambda: [(torch.ones(2).requires_grad_(),)], ("Cache miss due to",)),
}
"""What each setting prints, of one function and its calls."""


def test_every_log_that_a_lesson_names_is_tested() -> None:
    """Each TORCH_LOGS setting of a box is in the table above, or torch has its name."""
    registry = importlib.import_module("torch._logging._internal").log_registry
    settings = re.findall(r'TORCH_LOGS="([^"]+)"', "\n".join(text for _, text in boxes()))
    assert {name for setting in settings for name in setting.split(",")} == set(LOGS) | ONLY_NAMED
    assert set(registry.artifact_names) | set(registry.log_alias_to_log_qnames) >= ONLY_NAMED


@pytest.mark.parametrize("setting", LOGS)
def test_a_log_prints_what_a_lesson_says(setting: str) -> None:
    """A TORCH_LOGS setting prints what the lessons say that it prints."""
    function, calls, words = LOGS[setting]
    printed = io.StringIO()
    torch.compiler.reset()
    with contextlib.redirect_stderr(printed), torch._dynamo.config.patch(compiled_autograd="autograd" in setting):
        torch._logging.set_logs(**{setting: logging.INFO if setting == "dynamic" else True})
        try:
            for call in calls():
                result = torch.compile(function, backend="aot_eager")(*call)
                if setting == "aot_graphs":
                    result.backward()
        finally:
            torch._logging.set_logs()
            torch.compiler.reset()
    for word in words:
        assert word in printed.getvalue()


@pytest.mark.parametrize(("lesson", "text"), CLAIMS, ids=lambda value: re.sub(r"[^\w]+", "-", value)[:50])
def test_claims_about_stock_hold(lesson: str, text: str) -> None:
    """What a lesson says about stock torch.compile is what the installed torch does."""
    logging.disable(logging.ERROR)
    try:
        CLAIMS[lesson, text]()
    finally:
        logging.disable(logging.NOTSET)
        torch.compiler.reset()
