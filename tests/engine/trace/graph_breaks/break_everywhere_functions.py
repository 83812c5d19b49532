"""Short functions of a tensor, each with one shape of control flow.

``test_breaks_everywhere`` puts a graph break at each of their statements.
"""
# ruff: noqa
# mypy: ignore-errors

import contextlib
import functools
import itertools
from collections import namedtuple
from dataclasses import dataclass

import torch


def straight(x):
    y = x * 2
    z = y + x
    y = z.relu()
    return y, z


def branches(x):
    if x.shape[0] > 2:
        y = x + 1
        if y.dim() == 2:
            y = y * 2
        else:
            y = y - 1
    elif x.shape[0] == 2:
        y = x - 1
    else:
        y = x
    return y


def for_range(x):
    total = x * 0
    for i in range(4):
        if i == 1:
            continue
        total = total + x * i
        if i == 2:
            break
    else:
        total = total - 100
    return total


def for_else(x):
    for i, scale in enumerate([1, 2, 3]):
        x = x * scale
        for j in (4, 5):
            x = x + j
            if j > i + 4:
                break
    else:
        x = x - 1
    return x


def while_loop(x):
    n = 0
    while n < 3:
        n += 1
        x = x + n
        if n == 2:
            continue
        x = x * 2
    else:
        x = -x
    return x, n


def zipped(x):
    parts = []
    for a, (b, c) in zip(x, enumerate(x + 1)):
        parts.append(a * b + c)
    return torch.stack(parts)


def try_except(x):
    y = x + 1
    try:
        y = y * 2
        raise ValueError("a")
    except KeyError:
        y = y * 100
    except ValueError as error:
        y = y + len(str(error))
    else:
        y = y - 1
    finally:
        y = y * 3
    return y


def try_else(x):
    try:
        y = x * 2
    except ValueError:
        y = x
    else:
        y = y + 1
    finally:
        z = y * 2
    return y, z


def nested_try(x):
    y = x
    for i in range(3):
        try:
            try:
                y = y + i
                if i == 1:
                    raise KeyError("inner")
            except KeyError as first:
                y = y * 2
                raise TypeError("outer") from first
            finally:
                y = y + 10
        except TypeError as second:
            y = y + len(repr(second.__cause__))
            continue
        y = y - 1
    return y


def reraises(x):
    try:
        y = x * 2
        raise ValueError("seen outside")
    except ValueError:
        y = y + 1
        raise
    finally:
        x.add_(1)


def finally_returns(x):
    for i in range(2):
        try:
            y = x + i
            if i:
                return y
        finally:
            y = x * 2
    return x


def uncaught(x):
    y = x + 1
    if y.shape[0] == 3:
        raise RuntimeError(f"shape {tuple(y.shape)}")
    return y


def bad_shapes(x):
    y = x * 2
    try:
        y = y @ y
    except RuntimeError:
        y = y + 1
    return y


class Manager:
    def __init__(self, log, name, swallows=False):
        self.log, self.name, self.swallows = log, name, swallows

    def __enter__(self):
        self.log.append(("enter", self.name))
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append(("exit", self.name, kind, str(error)))
        return self.swallows


def with_blocks(x):
    log = []
    with Manager(log, "a") as a:
        y = x + 1
        with Manager(log, "b", True):
            y = y * 2
            raise ValueError("swallowed")
        y = y - len(a.name)
    return y, log


def with_and_try(x):
    log = []
    y = x
    try:
        with Manager(log, "a"):
            y = y + 1
            try:
                with Manager(log, "b"):
                    y = y * 2
                    raise KeyError("k")
            except KeyError:
                y = y + 3
                raise TypeError("t")
            finally:
                y = y * 5
    except TypeError as error:
        log.append(repr(error.__context__))
        y = y - 1
    return y, log


def with_in_loop(x):
    log = []
    for i in range(3):
        with Manager(log, i):
            x = x + i
            if i == 0:
                continue
            x = x * 2
            if i == 1:
                break
        log.append("after")
    return x, log


def with_returns(x):
    log = []
    with Manager(log, "a"), Manager(log, "b"):
        y = x * 2
        return y, log


def grad_modes(x):
    w = x.detach().clone().requires_grad_()
    with torch.no_grad():
        y = w * 2
        with torch.enable_grad():
            z = w * 3
        inside = torch.is_grad_enabled()
    u = z + y
    return u, u.requires_grad, y.requires_grad, inside, torch.is_grad_enabled()


def grad_mode_raises(x):
    try:
        with torch.no_grad():
            y = x * 2
            raise ValueError("out")
    except ValueError:
        z = x + 1
    return y, z, torch.is_grad_enabled()


def autocast_block(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.T
        z = y + 1
    return z, z.dtype, torch.is_autocast_enabled("cpu")


@contextlib.contextmanager
def labelled(log, name):
    log.append(("in", name))
    try:
        yield name.upper()
    finally:
        log.append(("out", name))


def generator_manager(x):
    log = []
    y = x
    with labelled(log, "g") as name:
        y = y + len(name)
        y = y * 2
    return y, log


def helper(x, scale=2, *, shift=1):
    y = x * scale
    z = y + shift
    return z


def calls_helper(x):
    y = helper(x)
    z = helper(y, 3, shift=2)
    return helper(scale=4, x=z)


def outer_helper(x, n):
    if n:
        y = outer_helper(x + 1, n - 1)
        y = y * 2
        return y
    return helper(x)


def recursive(x):
    y = outer_helper(x, 2)
    return y + 1


def closures(x):
    total = x * 0
    count = 0

    def add(y, *, times=1):
        nonlocal total, count
        total = total + y * times
        count += 1
        return count

    first = add(x)
    second = add(x + 1, times=2)
    return total, count, first, second


def makes_functions(x):
    fs = []
    for i in range(3):

        def scaled(y, i=i, *rest, k=x):
            z = y * i
            return z + k

        fs.append(scaled)
    y = x
    for f in fs:
        y = f(y)
    return y


def decorated(x):
    def twice(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            y = f(*args, **kwargs)
            y = f(y, **kwargs)
            return y

        return inner

    @twice
    def grow(y, by=1):
        z = y + by
        return z

    return grow(x, by=2)


def comprehension(x):
    a = [x * i for i in range(3) if i != 1]
    b = {i: y + 1 for i, y in enumerate(a)}
    c = sum(y.sum() for y in a)
    return a, b, c


def numbers(x, n):
    for i in range(n):
        y = x * i
        yield y
    yield x


def consumes_generator(x):
    total = x * 0
    for y in numbers(x, 3):
        total = total + y
    first, *rest = numbers(x, 2)
    return total, first, rest


def delegates(x):
    def inner():
        got = yield x
        yield x * 2
        return x * 3

    def outer():
        result = yield from inner()
        yield result

    parts = list(outer())
    return parts


def lists_and_dicts(x):
    items = [x, x + 1]
    table = {"items": items, "n": 1}
    items.append(x * 2)
    table["n"] += len(items)
    items[0], items[1] = items[1], items[0]
    del items[-1]
    again = table["items"]
    again.extend([x - 1, 5])
    return items, table, again is items


def mutates_argument(x):
    x.add_(1)
    y = x * 2
    x.mul_(3)
    y.sub_(x)
    v = x[0]
    v.zero_()
    return y, v


@dataclass
class Record:
    value: object
    count: int = 0

    def grow(self, by):
        self.value = self.value + by
        self.count += 1
        return self


Pair = namedtuple("Pair", "left right")


def objects(x):
    r = Record(x)
    r.grow(1)
    s = r.grow(2)
    p = Pair(r.value, right=s.count)
    s.extra = p.left * 2
    return r, p, s is r, r.extra


class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)
        return self

    @property
    def top(self):
        top = self.items[-1]
        return top

    def __len__(self):
        return len(self.items)

    def __getitem__(self, n):
        item = self.items[n]
        return item


def protocols(x):
    s = Stack()
    s.push(x).push(x + 1)
    y = s.top * len(s)
    z = s[0] + y
    return z, s


def matches(x):
    seen = []
    for subject in ((1, 2), {"k": x}, "text", Pair(x, 3), None):
        match subject:
            case {"k": value}:
                seen.append(value + 1)
            case Pair(left=left, right=3):
                seen.append(left * 2)
            case (a, b):
                seen.append(x * a + b)
            case str():
                seen.append(subject)
            case _:
                seen.append(x)
    return seen


def walrus(x):
    if (n := x.shape[0]) > 2 and (y := x * n) is not None:
        z = y + n
    flag = 1 < n < 5
    w = z if flag else x
    return w, n


def unpacking(x):
    a, *b = x
    (c, d), e = (a, b[0]), b[-1]
    args = (c, 2)
    words = {"shift": 3}
    y = helper(*args, **words)
    return y, torch.stack([*b, d]), e


def global_counter(x):
    global COUNTER
    COUNTER = COUNTER + 1
    y = x * COUNTER
    COUNTER += 1
    return y


COUNTER = 0


def deletes(x):
    y = x + 1
    z = y * 2
    del y
    try:
        y
    except UnboundLocalError as error:
        z = z + len(type(error).__name__)
    y = z
    return y


def asserts(x):
    assert x.dim() == 2, "two"
    y = x + 1
    try:
        assert y.dim() == 3, f"not {y.dim()}"
    except AssertionError as error:
        y = y * len(str(error))
    return y


def iterators(x):
    it = iter([1, 2, 3, 4])
    y = x * next(it)
    for n in it:
        y = y + n
        if n == 2:
            break
    y = y * next(it)
    rest = list(it)
    pairs = list(itertools.product((1, 2), repeat=2))
    return y, rest, pairs


def partials(x):
    f = functools.partial(helper, scale=3)
    g = lambda y: f(y, shift=5)
    y = g(x)
    z = list(map(g, [x, y]))
    return z, sorted([3, 1, 2], key=lambda v: -v)


def in_handler(x):
    y = x
    try:
        {}["missing"]
    except KeyError as first:
        y = y + 1
        try:
            [][3]
        except IndexError as second:
            y = y * 2
            same = second.__context__ is first
        y = y - 3
    return y, same


def loop_in_handler(x):
    y = x
    for n in range(2):
        try:
            raise ValueError(n)
        except ValueError as error:
            for m in range(2):
                y = y + error.args[0] + m
                if m:
                    break
    return y


def random_numbers(x):
    a = torch.rand(3)
    y = torch.nn.functional.dropout(x, 0.5)
    b = torch.randn(2)
    return a, y, b


def modules(x):
    torch.manual_seed(3)
    m = LAYER
    y = m(x)
    m.train(False)
    z = m(y[:, :4])
    m.train(True)
    return z


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.drop = torch.nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x):
        y = self.linear(x)
        self.calls += 1
        y = self.drop(y)
        return y


torch.manual_seed(0)
LAYER = Layer()
