"""Exercise cond, while_loop, scan and map with closures, containers and gradients."""

import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_over
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import engine
from tests.programs import program

NO_LOWERING = {"aot_eager": "torch's own operator cannot be made functional here", "triton": "as for aot_eager"}
OFFSET = torch.tensor([0.5, -0.5, 1.0])


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3) - 5,))
def cond_plain(x):
    """One of two branches, chosen by a tensor."""
    return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos() * 2, (x,))


@program(lambda: (torch.randn(3), torch.randn(3)))
def cond_closure(x, y):
    """Branches read different tensors from outside."""
    doubled = y * 2

    def yes(a):
        return a + doubled

    def no(a):
        return a - y + OFFSET

    return torch.cond(x.sum() > 0, yes, no, (x,)) * 3


@program(lambda: (leaf(3), leaf(3)))
def cond_gradients(x, y):
    """Gradients of operands and of what branches read from outside."""
    return torch.cond(y.sum() > 100, lambda a: a.sin() * y, lambda a: a * a * y, (x,))


@program(lambda: (torch.randn(3), torch.randn(2)))
def cond_containers(x, y):
    """Operands and results are containers."""

    def yes(pair, other):
        return {"sum": pair[0] + pair[1], "rest": (other * 2, [pair[0] * 1])}

    def no(pair, other):
        return {"sum": pair[0] - pair[1], "rest": (other * 3, [pair[1] * 2])}

    found = torch.cond(x.min() > 0, yes, no, ((x, x + 1), y))
    return found["sum"], found["rest"][0], found["rest"][1][0]


@program(lambda: (torch.randn(3), 4), lambda: (torch.randn(3), -4))
def cond_on_number(x, n):
    """A condition known while tracing takes one branch."""
    return torch.cond(n > 0, lambda a: a + n, lambda a: a - n, (x,))


@program(lambda: (torch.randn(4, 4),))
def cond_nested(x):
    """A cond inside a branch of another."""

    def inner(a):
        return torch.cond(a.max() > 1, lambda b: b * 2 + x, lambda b: b - x, (a,))

    return torch.cond(x.sum() > 0, inner, lambda a: a.neg(), (x + 1,))


class Chooser(torch.nn.Module):
    """Branches with parameters of their own."""

    def __init__(self):
        super().__init__()
        self.left = torch.nn.Linear(3, 3)
        self.right = torch.nn.Linear(3, 3)

    def forward(self, x):
        return torch.cond(x.sum() > 0, self.left, lambda a: self.right(a).relu(), (x,))


program(lambda: (torch.randn(2, 3),), lambda: (torch.randn(2, 3) - 9,))(Chooser)


@program(lambda: (torch.randn(3),), breaks=1)
def cond_changes_list(x):
    """A branch that notes something outside is refused by torch too."""
    seen = []

    def yes(a):
        seen.append(1)
        return a + 1

    try:
        return torch.cond(x.sum() > 0, yes, lambda a: a - 1, (x,)), len(seen)
    except Exception as error:
        return type(error).__name__


@program(lambda: (torch.zeros(()), torch.randn(3)))
def loop_while(i, x):
    """A loop whose number of turns is a value."""
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5), (i, x))


@program(lambda: (torch.tensor(3), torch.randn(3), torch.randn(3)))
def loop_while_closure(n, x, y):
    """Condition and body read tensors from outside; what is carried is a container."""
    limit = n * 2

    def condition(i, state):
        return i < limit

    def body(i, state):
        return i + 1, {"a": state["a"] + y, "b": state["b"] * 2}

    i, state = while_loop(condition, body, (torch.tensor(0), {"a": x, "b": x + 1}))
    return i, state["a"], state["b"]


@program(lambda: (torch.randn(5, 3),))
def scan_sums(x):
    """A running sum, carried and returned at each step."""

    def step(carry, row):
        new = carry + row
        return new, new * 2

    return scan(step, torch.zeros(3), x)


@program(lambda: (torch.randn(3, 5), torch.randn(3)))
def scan_reversed(x, weight):
    """From the end, along another dimension, with a tensor from outside."""

    def step(carry, item):
        return {"c": carry["c"] * 0.5 + item}, (item * weight,)

    return scan(step, {"c": torch.ones(3)}, x, dim=1, reverse=True)


@program(lambda: (torch.randn(4, 3), torch.randn(3)))
def map_rows(x, y):
    """A function of each row and of a tensor that stays."""
    scale = y.abs()
    return map_over(lambda row, other: (row * other + scale, row.sum()), x, y)


@program(lambda: (leaf(4, 3), leaf(3)))
def map_gradients(x, y):
    """Gradients through a map."""
    return map_over(lambda row, other: row.sin() * other, x, y)


@program(lambda: (torch.randn(6, 2),))
def associative(x):
    """A scan by an associative function."""
    return associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")


@program(lambda: (torch.randn(5, 2),))
def associative_pairs(x):
    """Over several tensors at once, from the end."""

    def combine(a, b):
        return {"x": a["x"] + b["x"], "y": a["y"] * b["y"]}

    return associative_scan(combine, {"x": x, "y": x + 1}, 0, reverse=True, combine_mode="generic")


@program(lambda: (torch.randn(4),))
def cond_under_no_grad(x):
    """Where gradients are off."""
    with torch.no_grad():
        y = torch.cond(x.sum() > 0, lambda a: a.exp(), lambda a: a.abs(), (x,))
    return y, y.requires_grad


@program(lambda: (torch.randn(4), torch.randn(4)))
def cond_many_times(x, y):
    """The same function in several conds."""

    def add(a, b):
        return a + b

    def multiply(a, b):
        return a * b

    for _ in range(3):
        x = torch.cond(x.sum() > y.sum(), add, multiply, (x, y))
    return x


@program(lambda: (torch.randn(1, 2, 16, 8), torch.randn(2)))
def flexible_attention(q, slopes):
    """Attention with a function of scores that reads a tensor from outside."""

    def bias(score, b, h, i, j):
        return score + slopes[h] * (i - j)

    return flex_attention(q, q, q, score_mod=bias)


MASK = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu")


@program(lambda: (torch.randn(1, 2, 16, 8),))
def flexible_attention_masked(q):
    """With a block mask, and the logarithm of sums."""
    return flex_attention(q, q, q, block_mask=MASK, return_lse=True)


@program(lambda: (torch.randn(1, 2, 16, 8), torch.arange(16) // 5))
def flexible_attention_over_documents(q, documents):
    """With a block mask made in the call, that looks up which document a position is in."""

    def is_seen(b, h, i, j):
        return (documents[i] == documents[j]) & (i >= j)

    mask = create_block_mask(is_seen, None, None, 16, 16, device="cpu", BLOCK_SIZE=8)
    return flex_attention(q, q, q, block_mask=mask), mask.kv_indices


def reader(is_full):
    value = 3

    def read(x):
        try:
            return x + 1, value
        except NameError as error:
            return x, str(error)

    if not is_full:
        del value
    return read


READERS = (reader(True), reader(False))


@program(*(lambda n=n: (torch.randn(3), n) for n in (0, 1, 0)), steady=False)
def closure_variable_that_may_be_gone(x, n):
    """A closure passes on an unread variable, or lacks it in another function of its code."""
    return READERS[n](x * 2)


def with_or_without_global(x, is_there):
    if is_there:
        globals()["SOMETIMES"] = 4
    else:
        globals().pop("SOMETIMES", None)
    engine.graph_break()
    try:
        return x + 1, SOMETIMES  # noqa: F821
    except NameError as error:
        return x, str(error)


@program(*(lambda n=n: (torch.randn(3), n) for n in (True, False, True)), breaks=2, steady=False)
def global_that_may_be_gone(x, is_there):
    """A global variable that comes and goes between calls."""
    return with_or_without_global(x * 2, is_there)
