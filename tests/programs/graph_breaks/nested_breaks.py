"""Exercise graph breaks in nested calls: every caller resumes with the call's result."""

import contextlib

import torch

from engine import graph_break
from tests.programs import program

LOG = []


def doubled(x, log):
    y = x * 2
    log.append("before")
    graph_break()
    log.append("after")
    return y + len(log)


@program(lambda: (torch.randn(3),), breaks=1)
def list_shared_with_the_caller(x):
    """A list that the caller made is the same one on both sides of the break."""
    log = []
    kept = {"log": log}
    y = doubled(x.sin(), log)
    log.append("caller")
    return y * 3, kept, kept["log"] is log


def with_finally(x, log):
    try:
        inner = doubled(x + 1, log)
        return inner - x
    finally:
        log.append("finally")


@program(lambda: (torch.randn(3),), breaks=1)
def caller_in_try_finally(x):
    """A caller's ``finally`` between the root and the break runs after its callee ends."""
    log = []
    y = with_finally(x.cos(), log)
    return y.exp(), log


def raising(x, message):
    y = x * 3
    graph_break()
    if message:
        raise ValueError(message, tuple(y.shape))
    return y


def passes_through(x, message):
    z = x + 1
    w = raising(z, message=message)
    return w - z


def recovers(x, message):
    z = x.sin()
    try:
        return passes_through(z, message) + 1
    except ValueError as error:
        return z * len(error.args[0])


@program(lambda: (torch.randn(3), "four"), lambda: (torch.randn(3), ""), breaks=2)
def exception_passes_callers(x, message):
    """An exception after the break passes callers without a handler up to one with one."""
    return recovers(x + 1, message) * 2


@program(lambda: (torch.randn(3), KeyError), lambda: (torch.randn(3), ValueError), breaks=3)
def exception_reaches_the_root(x, kind):
    """The root's own handler takes what fits, with the exception as Python raised it."""
    y = x + 1
    try:
        return passes_through(y, "all the way")
    except kind as error:
        return y, repr(error), error.__traceback__ is not None


class Scale:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append("exit" if kind is None else kind.__name__)
        return kind is ValueError


def in_with(x, log, message):
    with Scale(log) as scale, torch.no_grad():
        y = passes_through(x * 2, message)
        scale.log.append(torch.is_grad_enabled())
        return y
    return x


@program(lambda: (torch.randn(3, requires_grad=True), ""), lambda: (torch.randn(3, requires_grad=True), "no"), breaks=2)
def caller_in_with(x, message):
    """A caller's context manager exits after its body and may suppress the exception."""
    log = []
    y = in_with(x.sin(), log, message)
    return y + x, log, torch.is_grad_enabled()


def counter():
    count = 10

    def add(x, *more, scale=1, **rest):
        nonlocal count
        y = x * scale + count
        count += 1
        graph_break()
        count += len(more) + len(rest)
        return y * count, lambda: count

    return add


@program(lambda: (torch.randn(3),), breaks=1)
def closure_of_the_callee(x):
    """Cells that the callee and its closures share stay shared across the break."""
    add = counter()
    y, peek = add(x, 1, 2, scale=3, extra=4)
    z, other = add(y + peek())
    return z, peek(), other()


SHARED = counter()


@program(lambda: (torch.randn(3),), breaks=3, steady=False)
def closure_from_outside(x):
    """Cells of a function that exists are its own, not copies."""
    y, peek = SHARED(x + 1)
    return y, peek(), SHARED.__closure__[0].cell_contents


def rounds(x, n):
    total = x * 0
    for i in range(n):
        total = total + x.sin() * i
        graph_break()
        if i == 2:
            continue
        total = total * 2
    return total, i


@program(lambda: (torch.randn(3), 4), breaks=1)
def loop_in_the_callee(x, n):
    """A loop inside the callee breaks in every round."""
    y, last = rounds(x + 1, n)
    return [y + last for _ in range(2)]


@program(lambda: (torch.randn(3),), breaks=1)
def loop_in_the_caller(x):
    """A callee that breaks is called in every round of the root's loop."""
    log, out = [], []
    for step in range(3):
        out.append(doubled(x + step, log) - 1)
    return out, log


def down(x, n):
    y = x.cos() + n
    if n == 0:
        graph_break()
        return y
    return down(y, n - 1) * y


@program(lambda: (torch.randn(3),), breaks=1)
def recursion(x):
    """The same function is on the stack several times."""
    return down(x, 4) + 1


@torch.no_grad()
def decorated(x):
    y = x * 2
    graph_break()
    return y, torch.is_grad_enabled()


@program(lambda: (torch.randn(3, requires_grad=True),), breaks=1)
def decorated_callee(x):
    """A decorator of torch's lies between the caller and what breaks."""
    y, inside = decorated(x.sin())
    return x * y, inside, torch.is_grad_enabled()


@contextlib.contextmanager
def noted(log):
    log.append("in")
    try:
        yield len(log)
    finally:
        log.append("out")


def under_generator(x, log):
    with noted(log) as size:
        return doubled(x + size, log)


@program(lambda: (torch.randn(3),), breaks=1)
def caller_in_generator_context(x):
    """A generator-based context manager resumes at its ``yield`` after the graph ends."""
    log = []
    return under_generator(x.sin(), log) + 1, log


class Base(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        y = self.linear(x)
        graph_break()
        return y + self.calls


class Derived(Base):
    def forward(self, x):
        return super().forward(x * 2) - 1


@program(lambda: (torch.randn(2, 4),), breaks=1, steady=False)
class Stack(torch.nn.Module):
    """Blocks that break, through ``super()``, with attributes that they set."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Derived(), Derived()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x).relu() + x
        return x, [block.calls for block in self.blocks]


def comprehension(x, log):
    return [doubled(x + i, log) for i in range(2)]


@program(lambda: (torch.randn(3),), breaks=1)
def comprehension_in_the_callee(x):
    """The body of a comprehension is no function to go on in."""
    log = []
    return comprehension(x.sin(), log)[1] * 2, log


def writes(x, log):
    LOG.append(len(log))
    x.add_(1)
    log[:] = [*log, "written"]
    graph_break()
    x.mul_(2)
    return x


@program(lambda: (torch.randn(3),), breaks=1, steady=False)
def changes_before_the_break(x):
    """What was changed before the break is seen by Python there, and by the caller."""
    log = ["first"]
    y = writes(x, log)
    return y is x, log, x + 1, len(LOG)


def picks(x, table):
    del table["gone"]
    first, *others = (x + 1, x + 2, x + 3)
    graph_break()
    return first, {"others": others, **table}


@program(lambda: (torch.randn(3),), breaks=1)
def structure_comes_back(x):
    """A structure that the rest of the callee returns is taken apart by the caller."""
    first, found = picks(x.sin(), {"gone": 1, "kept": x})
    return first + found["others"][0], sorted(found), found["kept"] is x


def printing(x, *, end):
    y = x + 1
    print("callee", tuple(y.shape), end=end, sep="-")
    return y


@program(lambda: (torch.randn(3),), breaks=2)
def keywords_at_the_break(x):
    """The broken call has keywords of its own."""
    print("root")
    return printing(x * 2, end="!\n") * 2


def remembering(x, message):
    count = 0

    def note():
        nonlocal count
        count += 1
        return count

    try:
        y = passes_through(x, message)
    except ValueError:
        y = x * 10
    finally:
        note()
    return y * note(), note


@program(lambda: (torch.randn(3), ""), lambda: (torch.randn(3), "no"), breaks=2)
def cells_on_both_ways(x, message):
    """The cells of a caller are needed whether what it calls returns or raises."""
    y, note = remembering(x.sin(), message)
    return y + 1, note()


class Unhappy(torch.nn.Module):
    def forward(self, x, mask=None):
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones_like(x)
        return x * mask[:, None]


@program(lambda: (torch.randn(3),))
class RaisesOnlyCompiled(torch.nn.Module):
    """Code that raises only if it sees that it is compiled is traced as in plain Python."""

    def __init__(self):
        super().__init__()
        self.inner = Unhappy()

    def forward(self, x):
        return self.inner(x + 1) * 2


def deletes_its_parameter(x, flag):
    def double():
        nonlocal x
        y = x * 2
        if flag:
            del x
        return y

    y = double()
    graph_break()
    try:
        return y, x + 1
    except NameError as error:
        return y, isinstance(error, NameError)


@program(lambda: (torch.randn(3), False), lambda: (torch.randn(3), True), lambda: (torch.randn(3), False), breaks=1)
def parameter_deleted_by_a_closure(x, flag):
    """The resumed callee finds its parameter unless a closure deleted it before the break."""
    return deletes_its_parameter(x.sin(), flag)


@program(lambda: (torch.randn(3), False), lambda: (torch.randn(3), True), lambda: (torch.randn(3), False), breaks=1)
def own_parameter_deleted_by_a_closure(x, flag):
    """The same with the root's own parameter."""

    def double():
        nonlocal x
        y = x * 2
        if flag:
            del x
        return y

    y = double()
    graph_break()
    try:
        return y, x + 1
    except NameError as error:
        return y, isinstance(error, NameError)


def steps_with_clean_up(x, log):
    try:
        for i in range(3):
            y = x * i
            graph_break()
            yield y
    finally:
        log.append("closed")


def first_two_steps(x, log):
    for i, y in enumerate(steps_with_clean_up(x, log)):
        if i == 1:
            return y


@program(lambda: (torch.randn(3),), breaks=1)
def generator_left_in_the_callee(x):
    """A generator that a callee leaves unfinished is closed as the callee returns."""
    log = []
    y = first_two_steps(x + 1, log)
    return y, list(log)


def broken_under_a_mode(x):
    y = x + 1
    graph_break()
    return y + 2, torch.is_grad_enabled()


@program(lambda: (torch.randn(3, requires_grad=True),), breaks=1)
def decorated_twice_while_running(x):
    """A function that two contexts decorate, one inside of the other, breaks the graph."""
    return torch.no_grad()(torch.enable_grad()(torch.no_grad()(broken_under_a_mode)))(x)


def all_positive(x):
    return bool((x.sin() > 0).all())


def scaled(x, is_positive):
    return x * [0.5, 2.0][is_positive]


def scaled_by_sign(x):
    y = x.cos()
    return scaled(y, all_positive(x)) + 1


@program(
    lambda: (torch.ones(3, requires_grad=True),),
    lambda: (-torch.ones(3, requires_grad=True),),
    lambda: (torch.ones(3, requires_grad=True),),
    breaks=1,
)
def number_of_one_call_in_another(x):
    """One call computes a number that another needs: the graph breaks in the first."""
    return scaled_by_sign(x * 2) * 3
