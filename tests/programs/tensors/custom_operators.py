"""Custom operators: torch.library, script functions, marks, functions torch compiled."""

import sys
import types

import torch
import torch._dynamo
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.wrap import wrap
from torch.fx._symbolic_trace import is_fx_tracing

from tests.programs import program


def defined(name, schema, run, fake=None, **words):
    """Define an operator once, however often this file is loaded."""
    if not hasattr(torch.ops.programs_of_ours, name):
        full = f"programs_of_ours::{name}"
        torch.library.define(full, schema, **words)
        torch.library.impl(full, "CompositeExplicitAutograd", run)
        if fake is not None:
            torch.library.register_fake(full, fake)
    return getattr(torch.ops.programs_of_ours, name)


def _add_in_place(x, n):
    x.add_(n)


tripled = defined(
    "tripled", "(Tensor x) -> Tensor", lambda x: x * 3, torch.empty_like, tags=(torch.Tag.pt2_compliant_tag,)
)
unfaked = defined("unfaked", "(Tensor x) -> Tensor", lambda x: x + float(x.numpy().sum()))
changed = defined("changed", "(Tensor(a!) x, int n) -> ()", _add_in_place, lambda x, n: None)
split = defined(
    "split",
    "(Tensor x, int[] sizes) -> Tensor[]",
    lambda x, sizes: [t.clone() for t in x.split(sizes)],
    lambda x, sizes: [x.new_empty(n) for n in sizes],
)


def _squared_sum():
    """Defined once, however often this file is loaded."""

    @torch.library.custom_op("programs_of_ours::squared_sum", mutates_args=())
    def squared_sum(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return (x * x).sum() * scale

    @squared_sum.register_fake
    def _(x, scale=1.0):
        return x.new_empty(())

    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.scale = inputs[1]

    squared_sum.register_autograd(lambda ctx, g: (g * 2 * ctx.saved_tensors[0] * ctx.scale, None), setup_context=keep)

    @torch.library.custom_op("programs_of_ours::filled", mutates_args={"out"})
    def filled(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x + 1)

    return types.SimpleNamespace(squared_sum=squared_sum, filled=filled)


if "operators_of_ours" not in sys.modules:
    OURS = sys.modules["operators_of_ours"] = types.ModuleType("operators_of_ours")
    vars(OURS).update(vars(_squared_sum()))
OURS = sys.modules["operators_of_ours"]


@program(lambda: (torch.randn(3),))
def library_operator(x):
    """An operator defined with Library.define."""
    return tripled(x) + torch.ops.programs_of_ours.tripled.default(x)


@program(lambda: (torch.randn(3),), breaks=1)
def library_operator_without_fake(x):
    """An operator that cannot say what it returns is run by Python."""
    return unfaked(x * 2) * 3


@program(lambda: (torch.randn(3),))
def library_operator_changes(x):
    """An operator that changes its argument."""
    y = x * 2
    changed(y, 3)
    return y


@program(lambda: (torch.randn(5),))
def library_operator_of_lists(x):
    """A list of tensors as result."""
    a, b = split(x, [2, 3])
    return a * 2, b


@program(lambda: (torch.randn(3, requires_grad=True),))
def custom_operator(x):
    """torch.library.custom_op with a fake and a derivative."""
    return OURS.squared_sum(x * 2, 3.0) + torch.ops.programs_of_ours.squared_sum(x)


@program(lambda: (torch.randn(3), torch.empty(3)))
def custom_operator_changes(x, out):
    """mutates_args."""
    OURS.filled(x, out)
    return out * 2


@torch.jit.script
def scripted(x: torch.Tensor, n: int) -> torch.Tensor:
    if n > 2:
        return x * n
    return x + n


@program(lambda: (torch.randn(3),))
def script_function(x):
    """A ScriptFunction is one node."""
    return scripted(x, 3) + 1


class Inner(torch.nn.Module):
    def forward(self, x):
        return x.relu() * 2


def made_once(name, make):
    """Something of torch's that two copies of this file must share to be compared."""
    if not hasattr(OURS, name):
        setattr(OURS, name, make())


made_once("scripted_module", lambda: torch.jit.script(Inner()))


@program(lambda: (torch.randn(3),), breaks=2)
def script_module(x):
    """A ScriptModule is run by Python."""
    return OURS.scripted_module(x) + 1


@torch.compile(backend="eager")
def compiled_by_torch(x):
    return x.sin() + 1


@program(lambda: (torch.randn(3),))
def compiled_function_called(x):
    """A function under torch.compile is looked into."""
    return compiled_by_torch(x) * 2


made_once("compiled_module", lambda: torch.compile(torch.nn.Linear(3, 3), backend="eager"))


@program(lambda: (torch.randn(2, 3),))
def compiled_module_called(x):
    """A module under torch.compile is looked into."""
    return OURS.compiled_module(x).relu()


@torch.compiler.disable
def left_alone(x):
    return x + 1


@program(lambda: (torch.randn(3),), breaks=1)
def disabled_function(x):
    """torch.compiler.disable."""
    return left_alone(x * 2) * 3


@torch.compiler.allow_in_graph
def one_node(x):
    return x.cos()


@program(lambda: (torch.randn(3),))
def allowed_function(x):
    """torch.compiler.allow_in_graph."""
    return one_node(x) + 1


SHIFTS = [1.0]


@torch.compiler.allow_in_graph
def shifted_by_list(x):
    return x + SHIFTS[0]


@program(lambda: (torch.randn(3),), breaks=1)
def allowed_function_after_a_write(x):
    """It reads what the call wrote before it."""
    SHIFTS[0] = 2.0
    return shifted_by_list(x)


@program(lambda: (torch.randn(3),))
def compiler_asked(x):
    """Marks on tensors made inside, and questions to the compiler."""
    y = x * 2
    torch._dynamo.mark_dynamic(y, 0)
    torch._dynamo.mark_static_address(y)
    return y, torch.compiler.is_exporting()


@program(lambda: (torch.randn(3),), breaks=1)
def broken_by_torch(x):
    """torch._dynamo.graph_break."""
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


class Twice(torch.nn.Module):
    """A module whose forward is compiled by torch already."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    @torch.compile(backend="eager")
    def forward(self, x):
        return self.linear(x) * 2


program(lambda: (torch.randn(2, 3),))(Twice)


@torch.compiler.nested_compile_region
def region(x, y):
    return (x * y).sin()


@program(lambda: (torch.randn(3), torch.randn(3)))
def regions(x, y):
    """A region that is to be compiled once."""
    return region(x, y) + region(y, x)


@program(lambda: (torch.randn(3), torch.randn(3)))
def bodies_of_operators(x, y):
    """Operators around a body, whose body is traced like a call."""
    seen = []

    def body(a, *, b=None):
        seen.append(1)
        return {"sum": a + y, "other": b}

    first = wrap(body, x, b=3)
    second = hints_wrapper(lambda a: a.sin(), (first["sum"],), {}, hints={"fast": True})
    third = torch.func.functionalize(lambda a: a.clone().add_(1))(second)
    return first["other"], second, third, seen


WEIGHTS = {"a": torch.nn.LayerNorm(3), "b": torch.nn.LayerNorm(3)}


@torch._dynamo.nonstrict_trace
def not_looked_into(x, options):
    torch._dynamo.graph_break()
    return x * options["scale"] + options["by"]["a"](x), x.dim()


def looked_into_elsewhere(x):
    torch._dynamo.graph_break()
    return x + 42


@program(lambda: (torch.randn(2, 3, requires_grad=True),))
def opaque_functions(x):
    """Functions that become one node, whatever they are given."""
    y, n = not_looked_into(x, {"scale": x + 1, "by": WEIGHTS})
    return torch._dynamo.nonstrict_trace(looked_into_elsewhere)(y) * n


@torch._dynamo.assume_constant_result
def first_is_one(y):
    return y[0].item() == 1


@torch._dynamo.dont_skip_tracing
def traced_anyway(x):
    return x + 1


@program(lambda: (torch.randn(3), torch.tensor([1])))
def words_to_the_compiler(x, y):
    """Settings, assumed constants and compiled functions made in traced code."""
    with torch._dynamo.patch_dynamo_config(capture_scalar_outputs=True):
        x = x + 1
    if first_is_one(y):
        x = x * 2
    doubled = torch.compile(lambda t: t * 2, backend="eager")
    return doubled(traced_anyway(x)), is_fx_tracing()


def _add_to_each(xs, y):
    for x in xs:
        x.add_(y)


added_to_each = defined("added_to_each", "(Tensor(a!)[] xs, Tensor y) -> ()", _add_to_each, lambda xs, y: None)


@program(lambda: (torch.ones(3), torch.zeros(3), torch.ones(1)))
def a_list_is_written_to(x, y, z):
    """Each tensor of the list counts the write: an input, a view of one, and one made inside."""
    made = x * 2
    added_to_each([made, y, x[:1]], z)
    return made, x + y, made._version, x._version, y._version


@program(*[lambda n=n: (torch.linspace(-1, 3, n * 3).reshape(n, 3).requires_grad_(),) for n in (2, 3, 4)])
def fake_quantized(x):
    """Quantization that training simulates, of a whole tensor and by channel, with gradients."""
    scale, zero = torch.full((3,), 0.1), torch.zeros(3, dtype=torch.int32)
    whole = torch.fake_quantize_per_tensor_affine(x * 2, 0.1, 3, 0, 15)
    learned = torch.fake_quantize_per_tensor_affine(x, scale[:1], zero[:1], 0, 15)
    return whole + learned, torch.fake_quantize_per_channel_affine(x, scale, zero, 1, 0, 15)
