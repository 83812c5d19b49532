"""Partials and caches in depth, weak proxies, recursive reprs, random numbers for Python."""

from __future__ import annotations

import functools
import importlib
import operator
import random
import reprlib
import sys
import weakref

import torch

from tests.programs import program


def _imported_again(name):
    first = sys.modules.pop(name)
    try:
        return importlib.import_module(name)
    finally:
        sys.modules[name] = first


AGAIN = _imported_again("_functools")
OPERATORS_AGAIN = _imported_again("_operator")


class Named(functools.partial):
    """A partial function with a name."""

    def named(self, name):
        """Give it a name."""
        self.name = name
        return self


def _added(x, *args, scale=1, **words):
    return x * scale + sum(args) + sum(words.values())


@program(lambda: (torch.randn(3),), breaks=5)
def partial_subclass(x):
    """A ``partial`` subclass instance has own attributes; a partial of a partial is flattened."""
    p = Named(_added, x, 1).named("first")
    q = functools.partial(functools.partial(_added, x), 2, scale=3)
    return (
        p(2),
        p.name,
        type(p) is Named,
        isinstance(p, functools.partial),
        p.func is _added,
        q(1),
        q.func is _added,
        q.args[1:],
    )


@program(lambda: (torch.randn(3),))
def partial_state(x):
    """A partial has one dict of keywords, and the attributes of its class."""
    p = functools.partial(_added, x)
    p.keywords["scale"] = 4
    return p(), p.func is _added, p.keywords, p, hasattr(p, "__name__"), p.__call__(1), p.__class__ is functools.partial


@program(lambda: (torch.randn(3),))
def partial_text(x):
    """The repr of a partial of a builtin shows its function and arguments."""
    return x + 1, repr(functools.partial(int, "7", base=8))


@program(lambda: (torch.randn(3),), breaks=3)
def partial_kept(x):
    """A partial function of a subclass is handed on with its attributes."""
    return Named(torch.mul, x).named("second")


@program(lambda: (torch.randn(3),), breaks=2)
def partial_misused(x):
    """What is called must be callable, and keywords text."""
    told = []
    for wrong in (
        lambda: functools.partial(),
        lambda: functools.partial(3),
        lambda: functools.partial(len).__setstate__(()),
    ):
        try:
            wrong()
        except TypeError as error:
            told.append(str(error))
    p = functools.partial(_added, x)
    p.keywords[3] = 1
    try:
        p()
    except TypeError as error:
        told.append(str(error))
    return x * 2, told


@program(lambda: (torch.randn(3),), breaks=12, steady=False)
def modules_imported_again(x):
    """Functions and classes of a reimported C module behave like the first but are distinct."""
    p = AGAIN.partial(_added, x, scale=2)
    calls = []

    def counted(n):
        calls.append(n)
        return n + 1

    cached = AGAIN._lru_cache_wrapper(counted, 2, False, tuple)
    order = sorted([3, 1, 2], key=AGAIN.cmp_to_key(lambda a, b: b - a))
    total = AGAIN.reduce(operator.add, [1, 2, 3])
    first, joined = OPERATORS_AGAIN.itemgetter(0), OPERATORS_AGAIN.concat([1], [2])
    return (
        p(1),
        type(p) is AGAIN.partial,
        type(p) is functools.partial,
        [cached(1), cached(1), cached(2)],
        calls,
        order,
        total,
        first([4, 5]),
        joined,
    )


class _Counting:
    calls = 0

    @functools.lru_cache(maxsize=None)
    def scaled(self, factor):
        """Counts."""
        _Counting.calls += 1
        return factor * 2


@program(lambda: (torch.randn(3),), breaks=7, steady=False)
def cached_methods(x):
    """A cache around a method of a class made here, around a builtin, and one with attributes."""

    of, other = _Counting(), _Counting()
    found = [of.scaled(2), of.scaled(2), other.scaled(2)]
    longest = functools.lru_cache()(len)
    longest.note = "kept"
    return (
        x * found[0],
        _Counting.calls,
        longest((1, 2)),
        longest.cache_info().misses,
        longest.note,
        _Counting.scaled.__doc__,
    )


@program(lambda: (torch.randn(3),), breaks=6)
def cache_across_a_break(x):
    """A cache made before a break counts what is asked of it afterwards."""

    @functools.lru_cache(maxsize=1)
    def doubled(n):
        return n * 2

    print("so far")
    found = [doubled(1), doubled(1), doubled(2)]
    return x + found[2], doubled.cache_info()


@program(lambda: (torch.randn(3),))
def wrapped_by_position(x):
    """``wraps`` takes its attribute lists by position; annotations are the function's dict."""

    def inner(a: int) -> str:
        return a

    inner.mark = 3

    @functools.wraps(inner, (), ())
    def bare(a):
        return a + 1

    @functools.wraps(inner)
    def full(a):
        return a + 2

    functools.update_wrapper(full, max, ("__name__",))
    inner.__annotations__["b"] = float
    return (
        bare(x),
        full(x),
        bare.__name__,
        hasattr(bare, "mark"),
        full.mark,
        full.__name__,
        full.__annotations__ is inner.__annotations__,
    )


class _Holder:
    factor = 3


@program(lambda: (torch.randn(3),))
def bound_by_hand(x):
    """A function is bound by its ``__get__``."""

    def scaled(self, y):
        return y * self.factor

    holder = _Holder()
    return scaled.__get__(holder, _Holder)(x), _added.__get__(x)(1), scaled.__get__(None, _Holder) is scaled


class Link:
    """One place of a ring."""

    __slots__ = ("__weakref__", "next", "previous", "value")


@program(lambda: (torch.randn(3),), breaks=1)
def ring_of_proxies(x):
    """Weak proxies lead back through a list of links; each object has one."""
    hard = Link()
    root = weakref.proxy(hard)
    root.next = root.previous = root
    links = []
    for n in range(3):
        link = Link()
        link.value, link.next, link.previous = x + n, root, root.previous
        root.previous.next = link
        root.previous = weakref.proxy(link)
        links.append(link)
    total, at = 0, root.previous
    while at is not root:
        total = total + at.value
        at = at.previous
    return total, weakref.proxy(hard) is root, type(root) is weakref.ProxyType, isinstance(root, Link)


class Nested:
    """Shows itself inside of itself as dots."""

    def __init__(self):
        self.inside = [self, 2]

    @reprlib.recursive_repr("<dots>")
    def __repr__(self):
        return f"Nested({self.inside!r})"


@program(lambda: (torch.randn(3),))
def text_that_holds_itself(x):
    """A function that looks out for recursion gives its dots."""
    return x + 1, repr(Nested())


class _Key:
    def __init__(self, *parts):
        self.parts = parts
        self.number = hash(parts)

    def __hash__(self):
        return self.number

    def __eq__(self, other):
        return self.parts == other.parts


@program(lambda: (torch.randn(3),))
def hashes_of_objects(x):
    """Equal tuples of objects have equal hashes, which also serve as hashes of objects."""

    mark = object()
    found = {_Key(mark, 1): x, _Key(mark, 2): x + 1}
    return found[_Key(mark, 2)], hash((mark,)) == hash((mark,))


@program(lambda: (4,), steady=False)
def drawn_for_python(n):
    """With no tensor involved, random numbers are drawn while tracing, from the current state."""
    items = list(range(n))
    random.shuffle(items)
    found = [i for i in range(n) if random.random() < 0.5]
    return items, found, random.choice("abc"), random.sample(range(9), 3), {random.randrange(5): "x"}


class _Resource:
    pass


@program(lambda: (torch.ones(2),), breaks=1)
def finalizer(x):
    """A finalizer runs as soon as its object is freed."""
    freed = []
    resource = _Resource()
    watch = weakref.finalize(resource, freed.append, 1)
    alive = watch.alive
    del resource
    return x + 1, alive, watch.alive, freed
