"""Exercise resume functions: blocks exit once, and cells, iterators and calls resume."""

import contextlib
import functools
import itertools
import operator
import pickle
import weakref
from collections import namedtuple
from dataclasses import dataclass

import torch

import engine
from tests.programs import program


def one():
    return (torch.randn(3, 4),)


@program(one, breaks=1)
def in_while(x):
    """A break in a while loop with continue and else."""
    n = 0
    while n < 3:
        n += 1
        x = x + n
        engine.graph_break()
        if n == 2:
            continue
        x = x * 2
    else:
        x = -x
    return x, n


@program(one, breaks=1)
def in_nested_loops(x):
    """A break in the inner of two loops, the outer one with its iterator half-way."""
    for i, scale in enumerate([1, 2]):
        x = x * scale
        for j in range(2):
            engine.graph_break()
            x = x + i * j
    return x


@program(one, breaks=1)
def loop_left_early(x):
    """A break followed by ``break`` and the loop's else."""
    for i in (1, 2, 3):
        engine.graph_break()
        x = x + i
        if i == 2:
            break
    else:
        x = x * 100
    return x


@program(one, breaks=1)
def in_zip(x):
    """The rows of a tensor zipped with a list, a break in each round."""
    rows = []
    for row, name in zip(x, ["a", "b", "c"]):
        engine.graph_break()
        rows.append((row * 2, name))
    return rows


@program(one, breaks=1)
def in_else_of_try(x):
    """A break in the else of a try, whose finally still runs."""
    log = []
    try:
        y = x * 2
    except ValueError:
        y = x
    else:
        engine.graph_break()
        y = y + 1
    finally:
        log.append("finally")
    return y, log


@program(one, breaks=1)
def in_finally(x):
    """A break in a finally that a return passes through."""
    log = []

    def inner(y):
        try:
            return y * 2
        finally:
            engine.graph_break()
            log.append("left")

    return inner(x) + 1, log


@program(one, breaks=1)
def return_in_finally(x):
    """A return in finally swallows the exception, after a break there."""
    try:
        y = x + 1
        raise ValueError("lost")
    finally:
        engine.graph_break()
        return y * 2  # noqa: B012


@program(one, breaks=1)
def raised_again(x):
    """An exception raised again after a break in its handler, seen by the outer handler."""
    try:
        try:
            y = x + 1
            raise KeyError("k")
        except KeyError:
            engine.graph_break()
            y = y * 2
            raise
    except KeyError as error:
        return y, repr(error)


@program(one, breaks=1)
def from_another(x):
    """``raise ... from`` after a break keeps cause and context."""
    try:
        try:
            raise ValueError("cause")
        except ValueError as first:
            y = x * 2
            engine.graph_break()
            raise TypeError("effect") from first
    except TypeError as error:
        return y, repr(error.__cause__), error.__context__ is error.__cause__


class Entered:
    def __init__(self, log, swallows=False):
        self.log, self.swallows = log, swallows

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append(("exit", kind, str(error)))
        return self.swallows


@program(one, breaks=1)
def in_two_contexts(x):
    """A break two with blocks deep; both are left, inner first."""
    log = []
    with Entered(log) as a:
        with Entered(log):
            y = x * 2
            engine.graph_break()
            y = y + 1
    return y, log, a.swallows


@program(one, breaks=1)
def swallowed(x):
    """An exception after a break is swallowed by the context."""
    log = []
    with Entered(log, swallows=True):
        y = x * 2
        engine.graph_break()
        raise ValueError("gone")
    return y + 1, log


@program(one, breaks=1)
def return_in_with(x):
    """A return out of a with block after a break."""
    log = []
    with Entered(log):
        engine.graph_break()
        return x * 2, log


@program(one, breaks=1)
def loop_in_with(x):
    """Continue and break of a loop inside a with inside a loop."""
    log = []
    for i in range(3):
        with Entered(log):
            engine.graph_break()
            if i == 0:
                continue
            x = x * 2
            if i == 1:
                break
    return x, log


@program(one, breaks=1)
def with_in_try(x):
    """A with block inside a try, the exception passing through both."""
    log = []
    try:
        with Entered(log):
            y = x + 1
            engine.graph_break()
            {}["missing"]
    except KeyError as error:
        y = y * 2
        log.append(repr(error))
    return y, log


@program(lambda: (torch.randn(3, 4, requires_grad=True),), breaks=1)
def in_nested_modes(w):
    """A break in enable_grad inside no_grad: each mode is put back."""
    with torch.no_grad():
        with torch.enable_grad():
            y = w * 2
            engine.graph_break()
            z = y + 1
        outside = torch.is_grad_enabled()
        u = z * 2
    return z.requires_grad, u.requires_grad, outside, torch.is_grad_enabled()


@program(one, breaks=1)
def decorated_by_no_grad(x):
    """A break in a function under a decorator of grad mode."""

    @torch.no_grad()
    def inner(y):
        z = y * 2
        engine.graph_break()
        return z + 1

    return inner(x), torch.is_grad_enabled()


def keyword_only(x, *, scale, shift=1):
    y = x * scale
    engine.graph_break()
    return y + shift


@program(one, breaks=1)
def in_keyword_only_callee(x):
    """A callee with keyword-only arguments breaks."""
    return keyword_only(x, scale=3) + keyword_only(x, shift=2, scale=1)


def starred(*args, **kwargs):
    engine.graph_break()
    return sum(args) * kwargs["k"]


@program(one, breaks=1)
def in_starred_callee(x):
    """A callee that takes all arguments breaks."""
    words = {"k": 2}
    return starred(x, *[x + 1, x + 2], **words)


@program(one, breaks=1)
def in_closure(x):
    """A closure that writes the frame's variable breaks, twice."""
    total = x * 0
    count = 0

    def add(y, times=1):
        nonlocal total, count
        engine.graph_break()
        total = total + y * times
        count += 1

    add(x)
    add(x + 1, times=2)
    return total, count


def level_three(x):
    y = x * 2
    engine.graph_break()
    return y + 3


def level_two(x):
    return level_three(x + 1) * 2


def level_one(x):
    y = level_two(x - 1)
    return y, level_two(y)


@program(one, breaks=1)
def three_levels_down(x):
    """Three calls deep, on two ways."""
    a, b = level_one(x)
    return a + b


@program(one, breaks=1)
def in_recursion(x):
    """A function that calls itself breaks at each level."""

    def down(y, n):
        if n == 0:
            return y
        engine.graph_break()
        return down(y + 1, n - 1) * 2

    return down(x, 3)


@program(one, breaks=1)
def in_lambda_of_map(x):
    """A function handed to map breaks."""

    def grow(y):
        engine.graph_break()
        return y + 1

    return list(map(grow, [x, x * 2]))


@program(one, breaks=1)
def in_key_of_sorted(x):
    """The key of a sort breaks."""

    def key(n):
        engine.graph_break()
        return -n

    order = sorted([1, 3, 2], key=key)
    return x * order[0], order


@program(one, breaks=1)
def in_partial(x):
    """A partial of a partial breaks."""
    f = functools.partial(functools.partial(keyword_only, scale=2), shift=4)
    return f(x) * 2


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        y = self.linear(x)
        self.calls += 1
        engine.graph_break()
        return y.relu() * self.calls


@program(one, one, breaks=1)
class InSubmodule(torch.nn.Module):
    """A submodule with a counter breaks; a sequence of them goes on."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(Counter(), Counter())

    def forward(self, x):
        return self.layers(x).sum() + self.layers[0].calls


@program(one, breaks=1)
class InLoopOverLayers(torch.nn.Module):
    """A loop over a ModuleList still compiles its layers if each round reads a value."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        seen = []
        for layer in self.layers:
            x = layer(x)
            seen.append(operator.truth(x.sum() > -1e9))
        return x, len(seen)


class _Holder:
    def __init__(self, value):
        self.value = value

    @property
    def doubled(self):
        engine.graph_break()
        return self.value * 2


@program(one, breaks=1)
def in_property(x):
    """A property breaks."""

    return _Holder(x).doubled + 1


class _Vector:
    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        engine.graph_break()
        return _Vector(self.value + other.value)


@program(one, breaks=1, steady=False)
def in_operator(x):
    """An operator method breaks."""

    return (_Vector(x) + _Vector(x * 2)).value


@dataclass
class Pair:
    left: object
    right: object = None

    def swap(self):
        engine.graph_break()
        self.left, self.right = self.right, self.left
        return self


@program(one, breaks=1)
def objects_live_on(x):
    """An object made before a break is the same one after it."""
    p = Pair(x, x + 1)
    q = p.swap()
    q.extra = p.left * 2
    return p, q is p, p.extra


Point = namedtuple("Point", "x y")


@program(one, breaks=1)
def in_match(x):
    """A break in an arm of match, with captured names."""
    seen = []
    for subject in (Point(x, 2), {"k": x + 1, "l": 3}, [x, 1, 2]):
        match subject:
            case Point(x=a, y=b):
                engine.graph_break()
                seen.append(a * b)
            case {"k": a, **rest}:
                seen.append((a, rest))
            case [a, *others]:
                seen.append((a, others))
    return seen


@program(one, breaks=1)
def between_operands(x):
    """A break while a call, a sum and a list wait on the stack."""
    return [x + 1, max(1, 2), torch.add(x * 2, torch.tensor(operator.truth(x.sum() > -1e9)))], x - 1


@program(one, breaks=1)
def in_condition(x):
    """A break in the middle of and/or."""
    flag = x.shape[0] == 3 and (x * x).sum() >= 0 and x.dim() == 2
    return x * 2 if flag else x


@program(one, breaks=1)
def chained_comparison(x):
    """A comparison chain whose middle is a tensor."""
    s = (x * x).sum()
    return x + 1 if -1 < s < 1e9 else x - 1


@program(one, breaks=1)
def iterator_goes_on(x):
    """An iterator used before and after a break."""
    it = iter([1, 2, 3, 4])
    y = x * next(it)
    engine.graph_break()
    y = y * next(it)
    return y, list(it)


@program(one, breaks=1)
def products_go_on(x):
    """Iterators of itertools half-way at a break."""
    pairs = itertools.product((1, 2), (3, 4))
    count = itertools.count(5)
    first, n = next(pairs), next(count)
    engine.graph_break()
    return x * first[0] + n, list(pairs), next(count)


@program(one, breaks=1)
def deleted_and_unbound(x):
    """A variable deleted before a break is unbound after it."""
    y = x + 1
    z = y * 2
    del y
    engine.graph_break()
    try:
        y  # noqa: F821
    except UnboundLocalError as error:
        z = z + len(type(error).__name__)
    return z


@program(one, breaks=1)
def views_after_a_break(x):
    """A view made before a break is still a view of what is changed after it."""
    y = x.clone()
    row = y[0]
    engine.graph_break()
    y.mul_(2)
    row.add_(1)
    return y, row


@program(one, breaks=1)
def argument_changed_on_both_sides(x):
    """The argument is changed before and after the break."""
    x.add_(1)
    engine.graph_break()
    x.mul_(2)
    return x[0]


@program(one, breaks=1)
def random_on_both_sides(x):
    """Random numbers are drawn in Python's order across a break."""
    a = torch.rand(2)
    engine.graph_break()
    b = torch.nn.functional.dropout(x, 0.5)
    return a, b, torch.rand(1)


SEEN = []


@program(one, one, breaks=1, steady=False)
def global_list_grows(x):
    """A global list is appended to before and after a break, in order."""
    SEEN.append("before")
    y = x * 2
    engine.graph_break()
    SEEN.append(len(SEEN))
    return y + len(SEEN)


@contextlib.contextmanager
def marked(log):
    log.append("in")
    try:
        yield len(log)
    finally:
        log.append("out")


@program(one, breaks=1)
def around_a_generated_context(x):
    """A context manager made from a generator, entered and left between two breaks."""
    log = []
    y = x + 1
    engine.graph_break()
    with marked(log) as n:
        y = y * n
    return y, log


@program(one, breaks=1)
def comprehension_after(x):
    """Comprehensions of every kind after a break, their variables hidden."""
    i = "kept"
    engine.graph_break()
    a = [x * i for i in range(3) if i != 1]
    b = {i: v.shape[0] for i, v in enumerate(a)}
    c = {i % 2 for i in range(4)}
    return a, b, c, i


@program(one, breaks=1)
def closures_of_a_comprehension(x):
    """Functions of a comprehension share its variable, not the frame's one of that name."""
    i = 7
    outer = lambda: i  # noqa: E731
    engine.graph_break()
    inner = [lambda: i for i in range(3)]
    return x * inner[0](), outer(), i, [sum(a * b for b in (1, 2)) for a in (3, 4)]


@program(one, breaks=1)
def generator_between(x):
    """A generator used up before a break, another after it."""

    def rows(n):
        for k in range(n):
            yield x * k

    first = sum(rows(3))
    engine.graph_break()
    return first, [*rows(2)]


@program(one, breaks=1)
def long_values(x):
    """A break between the parts of a starred call and an f-string."""
    y = torch.stack([*x, x[0]])
    text = f"{y.shape[0]}:{x.sum().item() * 0:.1f}:{y.dim()}"
    return y, text.replace("-", "")


class Scaled:
    """What the classes below inherit."""

    def scale(self, x, by):
        """A plain step."""
        return x * by + len(type(self).__name__)


class BreaksBeforeSuper(Scaled):
    """``super()`` after a break: it looks at whatever comes first among the arguments."""

    def scale(self, x, by):
        """The names before ``self`` in the alphabet matter."""
        amount = by * 2
        print("scaling")
        above = super().scale(x, amount)
        print("scaled")
        return super().scale(above, by)


class KeepsItself(Scaled):
    """The same where ``self`` lives in a cell."""

    def scale(self, x, by):
        """An inner function holds ``self``."""

        def name():
            return type(self).__name__

        print("scaling", name())
        above = super().scale(x, by)
        print("scaled", name())
        return super().scale(above, by + len(name()))


@program(lambda: (torch.randn(3),), breaks=4)
def super_after_breaks(x):
    """Resume functions find the object that ``super()`` is about."""
    return BreaksBeforeSuper().scale(x, 3), KeepsItself().scale(x, 2)


def bent(x, scale):
    """Breaks where it looks at a value."""
    return x * scale if x.sum() > 0 else x - scale


@program(one, breaks=1)
def loop_whose_callee_breaks(x):
    """A loop over several iterators at once; what each round calls breaks."""
    seen = []
    for n, (scale, name) in enumerate(zip([1.0, 2.0, 3.0], ("a", "b", "c", "d"))):
        x = bent(x, scale) + n
        seen.append(name)
    return x, seen


@program(one, breaks=1)
def loop_of_many_rounds(x):
    """More rounds than one frame has cache entries, each with a break."""
    for n in range(20):
        x = x + n
        engine.graph_break()
        x = x / 2
    return x


def half_way(values):
    made = iter(values)
    next(made)
    return made


def moving():
    return torch.randn(3), half_way([1, 2, 3, 4, 5]), enumerate(zip(half_way((1, 2, 3)), range(7, 9)), 5)


@program(moving)
def iterators_given(x, numbers, pairs):
    """Iterators that are partly consumed before the call resume; the caller gets the rest."""
    for n in numbers:
        x = x + n
        if n == 3:
            break
    for at, (left, right) in pairs:
        x = x * at - left * right
    return x, list(numbers), list(pairs)


@program(lambda: (torch.randn(3), half_way([1, 2, 3, 4, 5, 6])))
def one_iterator_twice(x, numbers):
    """An iterator zipped with itself, and asked by itself before and after."""
    x = x + next(numbers)
    for left, right in zip(numbers, numbers):
        x = x * left - right
        if left > 2:
            break
    return x, next(numbers), next(numbers, None)


@engine.disable
def put(items, item):
    items.append(item)


@program(lambda: (torch.randn(3), [iter([1, 2, 3, 4])]), breaks=1)
def iterator_left_to_the_caller(x, held):
    """What the traced code takes is gone for whoever asks next."""
    x = x * next(held[0]) + next(held[0])
    put(held, next(held[0]))
    return x, list(held[0])


def growing():
    values = [1, 2]
    return torch.randn(3), iter(values), values


@program(growing)
def list_grows_under_its_iterator(x, numbers, values):
    """A list gets longer while an iterator made before the call goes through it."""
    for n in numbers:
        x = x + n
        if len(values) < 5:
            values.append(n)
    return x, values


class Held:
    """What a weak reference can be made to."""


def note(notes, held):
    notes.append(weakref.ref(held))
    engine.graph_break()


@program(one, breaks=3)
def weakly_kept_by_a_call_that_breaks(x):
    """An unread object lives as long as its variable, also between two graph breaks."""
    notes, alive = [], []
    x = x + 1
    for scale in (2, 3):
        engine.graph_break()
        held = Held()
        note(notes, held)
        x = x * scale
    put(alive, notes[-1]() is not None)
    return x, alive


def is_odd(number):
    return number % 2 == 1


def doubled(x):
    y = x + 1
    print("doubled", tuple(y.shape))
    return y * 2


@program(lambda: ([torch.ones(2), torch.ones(2) * 3],), breaks=1)
def callee_breaks_under_builtins(xs):
    """Builtins that call a function which breaks, through generators or directly."""
    total = sum(doubled(x) for x in xs)
    made = [*map(doubled, xs), *(doubled(x) for x in xs)]
    found = any(doubled(x) is None for x in xs)
    first, second = (doubled(x) for x in xs)
    pairs = dict((n, doubled(x)) for n, x in enumerate(xs))
    reduced = functools.reduce(lambda a, b: a + doubled(b), xs)
    ordered = sorted(xs, key=lambda x: -float(doubled(x).sum()))
    return (
        total,
        made,
        found,
        first - second,
        pairs,
        reduced,
        ordered,
        list(itertools.accumulate(xs, lambda a, b: doubled(a) + b)),
    )


@engine.disable
def told(*iterators):
    return [i.__reduce__()[1][0] for i in iterators], pickle.dumps(iterators[1])


@program(lambda: (torch.ones(2), [1, 2, 3]), breaks=1)
def iterators_hold_their_own_functions(x, numbers):
    """An iterator that outlives a break holds the original function and its remaining items."""
    mapped, odd, taken = map(torch.relu, [x, x + 1]), filter(is_odd, numbers), itertools.takewhile(is_odd, numbers)
    functions, _ = told(mapped, odd, taken)
    same = functions[1] is is_odd and functions[2] is is_odd
    return x * 2, same, list(mapped), list(mapped), list(odd), list(taken)


@engine.disable
def consume(values):
    return list(values), list(values)


@program(lambda: ([torch.ones(2), torch.ones(2) * 3],), breaks=2)
def iterator_handed_to_python(xs):
    """A call that is not compiled draws from an iterator of a function."""
    return consume(map(torch.relu, xs)), consume(filter(is_odd, [1, 2, 3]))


class SizesInBuffers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("stride", torch.tensor(2))
        self.register_buffer("enabled", torch.tensor([1], dtype=torch.uint8))

    def forward(self, x):
        missing = (x.shape[-1] - 1) % self.stride
        if missing > 0 and self.enabled[0] == 1:
            x = torch.nn.functional.pad(x, (0, missing))
        return x[..., :: self.stride.item()]


_SIZES = SizesInBuffers()


@program(lambda: (_SIZES, torch.ones(2, 6)), lambda: (SizesInBuffers(), torch.ones(2, 6)))
def sizes_kept_in_buffers(module, x):
    """What follows from small integer buffers alone is worked out, and guarded."""
    return module(x) * 2


class Steps(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("step", torch.tensor(0))

    def forward(self, x):
        y = x * 2 if self.step % 2 == 0 else x * 3
        self.step += 1
        return y


@program(lambda: (Steps(), torch.ones(2)))
def decision_by_a_buffer_that_changes(module, x):
    """A decision by a mutated buffer assumes only its outcome, not the buffer's values."""
    return module(x), module(x), module(x), module.step


class Packs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.GRU(4, 4, batch_first=True)

    def forward(self, x, lengths):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        size, kind = packed.data.shape[0], packed.batch_sizes.dtype
        out, last = self.layer(packed)
        padded, found = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return padded * size, last, found, kind


_PACKS = Packs()


@program(lambda: (_PACKS, torch.ones(3, 6, 4), torch.tensor([6, 3, 4])))
def packed_sequence_sizes(module, x, lengths):
    """A packed sequence's length and its batch sizes' number type are as in eager."""
    return module(x, lengths)


@program(lambda: (torch.ones(2, 6), torch.tensor(3)))
def tensor_among_sizes(x, n):
    """A tensor of one integer stands for its number where sizes are listed."""
    return torch.zeros(2, n, 3) + 1, x.view(n, -1), x.new_full((n, 2), 1.0), torch.nn.functional.pad(x, (n, 1))


class Asserts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        y = self.norm(x)
        if not (y.abs() < 100).all():
            raise ValueError("too large")
        return self.norm(y + 1)


@program(lambda: (Asserts(), torch.ones(3, 4).cumsum(0)), lambda: (Asserts(), torch.full((3, 4), torch.nan)))
def check_between_changed_statistics(module, x):
    """A check that only raises stays in the graph; if it fails, statistics are as in eager."""
    try:
        return module(x), None, module.norm.running_mean
    except ValueError as error:
        return module.norm.num_batches_tracked, str(error), module.norm.running_mean


@contextlib.contextmanager
def scaled_inside(x, log):
    log.append("in")
    try:
        yield x * 2
    except ValueError as error:
        log.append(str(error))
    finally:
        log.append("out")


@program(lambda: (torch.ones(3),), lambda: (-torch.ones(3),), breaks=1)
def manager_open_at_a_break(x):
    """A generator context manager is open at the break; the resume runs its code after yield."""
    log = []
    with scaled_inside(x, log) as y:
        if y.sum() > 0:
            y = y + 1
        y = y.sin()
    return y, log


@program(lambda: (torch.ones(3),), breaks=1)
def manager_open_at_a_break_takes_an_exception(x):
    """The generator catches, after the graph, what the block raises."""
    log = []
    with scaled_inside(x, log) as y:
        if y.sum() > 0:
            y = y + 1
        raise ValueError("caught inside")
    return y, log


def growing(x, n):
    for i in range(n):
        x = x + i
        yield x


@program(lambda: (torch.ones(3),), breaks=1)
def generator_half_way_at_a_break(x):
    """A generator that has given one item goes on after the graph from there."""
    items = growing(x, 3)
    first = next(items)
    if first.sum() > 0:
        first = first * 2
    return first, next(items), list(items), items.gi_frame is None


@program(lambda: (torch.ones(3),))
def generator_half_way_is_returned(x):
    """What is returned half-way goes on where it was."""
    items = growing(x, 3)
    next(items)
    return [item + 1 for item in iter(generator_taken_on(items), None)]


def generator_taken_on(items):
    return lambda: next(items, None)


@program(lambda: (torch.ones(3),), breaks=1)
def generator_left_to_python_after_a_break(x):
    """A recreated generator that only Python consumes resumes; it is not taken as suspended."""
    items = growing(x, 4)
    first = next(items)
    if first.sum() > 0:
        first = first * 2
    return first, [*map(torch.clone, items)]


class Keeper:
    """Keeps what it is told last, in an object of its own."""

    def note(self, x):
        self.last = Part(x)

    def tell(self, *parts):
        return self.last.x, parts


class Part:
    def __init__(self, x):
        self.x = x


@program(lambda: (Keeper(), torch.ones(3)), breaks=1)
def breaks_in_turn_while_arguments_are_made(keeper, x):
    """Objects on the stack at each round's break keep their place and the round's values."""
    told = []
    for n in (1, 2, 3):
        keeper.note(x + n)
        told += keeper.tell(n, engine.graph_break(), x * n)
    return told


def many():
    return ([torch.full((3,), float(n)) for n in range(1, 13)],)


@program(many, breaks=1)
def rounds_share_code(xs):
    """A long loop over a list breaks in each round without a guard on the list position."""
    total = torch.zeros(3)
    for x in xs:
        total = total + x.sin()
        engine.graph_break()
        total = total * 2
    return total


@program(many, breaks=1)
def rounds_over_a_range(xs):
    """The number of the round becomes a symbol."""
    y = xs[0]
    for n in range(len(xs)):
        y = y + n
        engine.graph_break()
        y = y.cos()
    return y


@program(many, breaks=1)
def rounds_numbered(xs):
    """A loop over ``enumerate`` from five breaks each round and fills an unread list and dict."""
    rows, by_number = [], {}
    for n, x in enumerate(xs, 5):
        engine.graph_break()
        rows.append(x * n)
        by_number["last"] = x
        by_number[n % 2] = n
    return rows, by_number


@program(many, breaks=1)
def rounds_zipped(xs):
    """Two lists side by side, the second one shorter."""
    out = []
    for x, y in zip(xs, xs[2:]):
        engine.graph_break()
        out.append(x - y)
    return out


@program(many, breaks=1)
def list_grows_under_its_loop(xs):
    """The list that is gone through grows in its first rounds."""
    seen = 0
    for x in xs:
        engine.graph_break()
        if seen < 2:
            xs.append(x + 1)
        seen += 1
    return seen, torch.stack(xs)


@program(many, breaks=1)
def list_shrinks_under_its_loop(xs):
    """Items are taken out before the loop comes to them."""
    kept = []
    for x in xs:
        engine.graph_break()
        kept.append(x * 2)
        if len(xs) > 8:
            xs.pop()
    return kept, len(xs)


@program(many, breaks=1)
def written_unseen(xs):
    """Contents that come to be looked at after something was added to them."""
    log, table = [0], {"first": 0}
    engine.graph_break()
    log.append(xs[0] + 1)
    log.extend([xs[1], 2])
    table["second"] = xs[0] * 2
    table["first"] = 1
    known = table["second"]
    shown = list(table), len(log), log[0]
    log.append(3)
    table["third"] = 3
    return known, shown, log, table


@program(many, breaks=1)
def written_twice_unseen(xs):
    """One list and one dict by two names."""
    log, table = [], {}
    also, same = log, table
    engine.graph_break()
    log.append(xs[0] + 1)
    also.append(xs[1])
    table["a"] = 1
    same["a"] = 2
    same["b"] = xs[2]
    log += [5]
    return also, same, log is also


@program(many, breaks=1)
def appended_to_itself(xs):
    """A list that is put into itself, and a dict that holds itself."""
    log, table = [xs[0]], {}
    engine.graph_break()
    log.append(log)
    table["self"] = table
    return log[1] is log, table["self"] is table, log[0] + 1


@program(lambda: (torch.ones(4), torch.tensor([5])))
def data_written_before_an_error_in_try(x, index):
    """What is written through ``.data`` before an error that is caught is written once."""
    try:
        x.data.add_(1)
        return x[index]
    except IndexError:
        return x.sum()


@program(lambda: (torch.randn(4).expand(5, 4), []))
def write_to_an_expanded_tensor(x, log):
    """Python's side effects before the error stay; the error is eager's."""
    log.append(1)
    x *= x
    return x


@program(lambda: (torch.ones(4), torch.tensor([5]), []))
def data_of_a_view_written_before_an_error(x, index, log):
    """The same through a view, in a function that appends to a list and raises."""
    log.append(1)
    x[1:].data.mul_(3)
    return x[index]


@program(*[lambda n=n: (torch.rand(2, n) + 0.5, torch.tensor([[1, 2]])) for n in (5, 6, 7)], breaks=2)
def loop_left_early_in_inference_mode(p, ids):
    """Code after a break in inference mode reads inference tensors and is captured."""
    accepted = 0
    with torch.inference_mode():
        q = p.softmax(-1)
        tokens = torch.cat([ids, ids], 1)
        for i in range(2):
            if (q[0, tokens[0, i]] / q[0, 1]).item() < 0.1:
                break
            accepted += 1
        q = q * accepted
    return q.clone()
