"""Exercise Python corner cases: iterators, strings, errors, set order and locks."""

import collections
import contextlib
import functools
import io
import itertools
import operator
import sys
import threading
import types

import torch

from tests.programs import program


def one():
    return (torch.randn(3),)


@program(lambda: (torch.randn(3), {"a": 1, "b": 2, "c": 3}, {1, 2, 3}), breaks=2)
def iteration_notices_changes_after_a_break(x, words, numbers):
    """Changing a dict or set while iterating it after a break raises as in Python."""
    seen = []
    try:
        for word, n in words.items():
            print(word)
            x = x * n
            if n == 2:
                del words["c"]
    except RuntimeError as error:
        seen.append(str(error))
    try:
        for n in numbers:
            print(n)
            x = x + n
            numbers.add(n + 10)
    except RuntimeError as error:
        seen.append(str(error))
    return x, seen


class Ordered(collections.OrderedDict):
    """An OrderedDict of the user's."""


class Frozen(frozenset):
    """A frozenset of the user's."""


class Listed(collections.defaultdict):
    """A defaultdict of the user's."""


@program(one)
def texts_of_container_classes(x):
    """Container subclasses show their name; a defaultdict subclass keeps its factory."""
    made = Listed(list, a=1)
    made["b"].append(2)
    ordered = collections.OrderedDict(a=1, b=2)
    ordered.__init__([("b", 3)], c=4)
    texts = [repr(Ordered(a=1)), str(Ordered()), repr(Frozen([1])), repr(Frozen()), repr(made)]
    return x + 1, texts, made, made.default_factory, ordered


class Pair(complex):
    """A complex number of the user's."""


@program(one)
def parts_of_number_classes(x):
    """What C keeps in a number is read through a subclass."""
    pair = Pair(1, 2)
    return x + pair.real, pair.imag, pair.conjugate()


class _Empty:
    def __getattr__(self, name):
        raise AttributeError("none")


@program(one)
def what_an_attribute_error_knows(x):
    """An AttributeError says whose attribute was missing, and by which name."""

    empty = _Empty()
    try:
        return empty.missing
    except AttributeError as error:
        return x + 1, error.obj is empty, error.name, str(error)


# From 3.12 on a comprehension runs in the function (PEP 709), which breaks at each of its two calls.
@program(one, breaks=4 if sys.version_info >= (3, 12) else 3)
def keys_by_comparison(x):
    """What cmp_to_key makes is kept, compared and asked for its item."""
    keys = [functools.cmp_to_key(lambda a, b: b - a)(n) for n in range(3)]
    return x + keys[1].obj, keys[0] < keys[1], len(keys)


@program(one, breaks=1, steady=False)
def local_names_of_a_class_body(x):
    """locals() in a class body has the names of the body alone."""

    def make(outer):
        class Made:
            inner = outer
            names = [n for n in locals() if not n.startswith("__")]

            def method(self):
                return outer

        return Made

    return x + 1, make(1).names


@program(one, breaks=1)
def half_used_accumulation(x):
    """An accumulation whose running value is None goes on after a break."""
    running = itertools.accumulate([None, None, None], operator.is_)
    first = next(running)
    x = x + 1
    print("half-way")
    return x, first, list(running)


NAMES = {"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota"}


@program(
    lambda: (torch.randn(3), {"one", "two", "three", "four", "five"}),
    lambda: (torch.randn(3), set(sorted({"one", "two", "three", "four", "five"}))),
    breaks=1,
)
def order_of_sets(x, given):
    """Sets iterate in their own order, passed in or literal, before and after a break."""
    made = {
        "a",
        "bb",
        "ccc",
        "dddd",
        "eeeee",
        "ffffff",
        "ggggggg",
        "hhhhhhhh",
        "kk",
        "ll",
        "mm",
        "nn",
        "oo",
        "pp",
        "qq",
        "rr",
        "ss",
    }
    before = tuple(made)
    x = x + 1
    print("between")
    return x, before == tuple(made), before, tuple(NAMES), list(given)


class Around:
    """An object that holds what holds it."""

    def __repr__(self):
        return repr(self.value)


@program(one, breaks=3)
def set_that_holds_itself(x):
    """A set reached from its own element is one set after the graph."""
    around = Around()
    made = {around}
    around.value = made
    x = x + 1
    print(repr(made))
    return x, around.value is made


@program(one, breaks=1)
def text_that_is_printed_elsewhere(x):
    """What is printed to a redirected stream is collected there."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        y = x + 1
        print("shape", tuple(y.shape))
        print("careful", file=sys.stderr)
    return y * 2, out.getvalue(), err.getvalue()


@program(one, breaks=1)
def text_printed_around_a_break(x):
    """A stream that is redirected stays so over a break, and is put back."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        x = x + 1
        sys.stdout.writelines(["inside"])
        torch._dynamo.graph_break()
        print("after")
    return x * 2, out.getvalue()


@program(one, breaks=9)
def locks_made_inside(x):
    """Locks that the traced code makes: taken, asked, and given back once too often."""
    lock, again, seen = threading.Lock(), threading.RLock(), []
    with lock:
        seen.append((lock.locked(), lock.acquire(blocking=False)))
        with again, again:
            x = x + 1
    for each in (lock, again):
        try:
            each.release()
        except RuntimeError as error:
            seen.append(str(error))
    return x * 2, seen, lock.acquire(), lock.locked()


@program(one, breaks=5)
def lock_held_over_a_break(x):
    """A lock is still held in the code that follows a break."""
    lock = threading.Lock()
    with lock:
        x = x + 1
        print("held")
        held = lock.locked()
    return x * 2, held, lock.locked()


@program(one)
def wrong_arguments_of_iterators(x):
    """Builtins that make iterators look at their arguments at once."""
    said = []
    for make in (
        lambda: enumerate("ab", "a"),
        lambda: iter([], 1),
        lambda: itertools.count("a"),
        lambda: itertools.islice([], -1),
        lambda: itertools.permutations([1], -1),
    ):
        try:
            make()
        except (TypeError, ValueError) as error:
            said.append(str(error))
    return x + 1, said


@program(one)
def operators_called_by_their_names(x):
    """Operator methods return ``NotImplemented`` or raise, with the messages of Python."""
    said = [set().__or__([]), {}.__or__(3), [].__eq__(3), {1}.__sub__([1]), [1].__rmul__(2), [1].__mul__(2)]
    for call in (
        lambda: [].__mul__("a"),
        lambda: (1,).__mul__("a"),
        lambda: set().update(x=1),
        lambda: frozenset().union(x=1),
    ):
        try:
            call()
        except TypeError as error:
            said.append(str(error))
    return x + 1, said


class Noticed:
    """What tells when it goes."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def __del__(self):
        self.log.append(self.name)


def make_noticed(x, log):
    first = Noticed("inner", log)
    x = x * 2
    first = Noticed("second", log)
    log.append(type(first).__name__)
    return x


@program(lambda: (torch.randn(3), []), breaks=1)
def objects_that_tell_when_they_go(x, log):
    """An object with ``__del__`` dies when Python would free it, in a call or after a break."""
    y = make_noticed(x + 1, log)
    log.append("between")
    held = Noticed("outer", log)
    y = y * 2
    print(log)
    held = None
    return y + 1, list(log)


class CountingKey:
    """A key that notes when it is asked."""

    def __init__(self, number, asked):
        self.number = number
        self.asked = asked

    def __hash__(self):
        self.asked.append("hash")
        return 7

    def __eq__(self, other):
        self.asked.append("eq")
        return self.number == other.number


@program(lambda: (torch.ones(2), []))
def keys_that_count(x, asked):
    """How often a container hashes and compares its keys shows in what their methods change."""
    one, again, two = (CountingKey(n, asked) for n in (1, 1, 2))
    table = {one: x}
    table[again] = x + 1
    return len(table), len({one, two})


class _Key:
    def __init__(self, emptied):
        self.emptied = emptied

    def __hash__(self):
        return 5

    def __eq__(self, other):
        for table in self.emptied:
            table.clear()
        return False


@program(lambda: (torch.ones(2),))
def keys_that_empty_their_container(x):
    """Keys of equal hash are compared on insertion, and not again where the graph ends."""

    emptied = []
    table = {_Key(emptied): 1, _Key(emptied): 2}
    emptied.append(table)
    table[9] = 3
    table[_Key(emptied)] = 4
    return x + len(table), len(table)


def leave_room_for(calls):
    depth = 1
    while True:
        try:
            sys.setrecursionlimit(depth)
        except RecursionError:
            depth += 1
        else:
            break
    sys.setrecursionlimit(depth + calls)


def endless():
    endless()


@program(lambda: (torch.ones(2),), breaks=1)
def little_room_for_calls(x):
    """A function that leaves itself a few calls only has them, and puts the limit back."""
    y = x + 1
    limit = sys.getrecursionlimit()
    try:
        leave_room_for(40)
        endless()
    except RecursionError as error:
        return y * 2, type(error)
    finally:
        sys.setrecursionlimit(limit)


@program(lambda: (torch.ones(2),), breaks=1)
def limit_after_little_room(x):
    """The limit is as it was once such a function is done."""
    limit = sys.getrecursionlimit()
    y, error = little_room_for_calls(x)
    return y + 1, error, sys.getrecursionlimit() == limit


class OwnKeys(dict):
    def keys(self):
        return ["b", "a"]


class LikeAMapping:
    def __init__(self, value):
        self.value = value
        self.keys = lambda: ["a", "b"]

    def __getitem__(self, key):
        return self.value


class Dotted(dict):
    __getattr__ = dict.get
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


class Holding:
    pass


class Members(set):
    pass


@program(lambda: (torch.randn(3),))
def dicts_of_other_kinds(x):
    """``dict`` accepts subclasses with own keys, objects with only keys, and proxies."""
    own = OwnKeys(a=1, b=2)
    shown = types.MappingProxyType({"a": x})
    try:
        shown["b"] = 1
    except TypeError as error:
        told = str(error)
    dotted = Dotted(a=1)
    dotted.b = x
    del dotted.a
    held = Holding()
    made = {}
    made.update(shown)
    return (
        list(dict(own)),
        list({**own}),
        dict(LikeAMapping(x), c=1),
        told,
        shown["a"] + 1,
        shown | {"z": 1},
        shown.copy(),
        made,
        dotted.b,
        dotted.absent,
        dotted,
        vars(held) is held.__dict__,
    )


@program(lambda: (torch.randn(3),))
def sets_of_other_kinds(x):
    """Operations on subclasses of sets, and the first common element ends a search."""
    left, right = Members("abc"), Members("bcd")
    drawn = []

    def counted():
        for number in (1, 2, 3):
            drawn.append(number)
            yield number

    apart = {2, 4}.isdisjoint(counted())
    return (
        x + 1,
        sorted(left - right),
        sorted(left | right),
        sorted(left & right),
        sorted(left ^ right),
        type(left - right) is set,
        sorted({"a", "z"} | left),
        apart,
        drawn,
    )


@program(one, breaks=2 if sys.version_info >= (3, 12) else 1)
def truths_that_warn(x):
    """``~`` of a bool warns from Python 3.12 on; NotImplemented has no truth from 3.14 on."""
    inverted = ~isinstance(x, torch.Tensor)
    try:
        truth = bool(NotImplemented)
    except TypeError:
        truth = "none"
    return x + inverted, truth


@program(lambda: (torch.ones(3), 0.1), steady=False)
def floats_added_up(x, step):
    """``sum`` adds floats accurately from Python 3.12 on, complex numbers from 3.14 on."""
    halves = [1, True, *[step] * 9]
    return sum([step] * 10), sum(halves), sum(halves, 0.5j), x * sum([0.1, 0.2, 0.3, x[0], 0.1, 0.2, 0.3])


@program(one)
def comprehensions_over_closure_variables(x):
    """Since Python 3.12 a comprehension borrows the variable and gives it back."""
    i, j = 10, 20

    def captured():
        return i, j

    plain = [i * x + j for i in range(2) for j in range(2)]
    made = [lambda: (i, j) for i in range(2) for j in range(2)]
    for _ in range(2):
        nested = [[(i, j) for j in range(i)] for i in range(3)]
        i = i + 1
    try:
        plain.append([1 / i for i in (2, 0)])
    except ZeroDivisionError:
        plain.append(i)
    return plain, nested, i, j, captured(), [f() for f in made]
