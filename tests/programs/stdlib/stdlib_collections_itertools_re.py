"""The standard library in depth: re, random, itertools, operator, collections, functools."""

import bisect
import collections
import functools
import heapq
import itertools
import operator
import random
import re
import types

import torch

from tests.programs import program


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),))
def patterns_and_matches(x):
    """Patterns and all that a match can be asked, with replacement by a function."""
    found = re.search(r"(?P<kind>\w+)_(\d+)", "layer_12")
    pattern = re.compile(r"(\w)(\d)")
    y = x * int(found.group(2)) if found else x
    return (
        y,
        found.group("kind"),
        found.groups(),
        found.groupdict(),
        found.start(),
        found.span(),
        re.findall(r"\d+", "1 22 333"),
        re.split(r"[,;]", "a,b;c"),
        pattern.match("a1")[1],
        pattern.sub(r"\2\1", "a1 b2"),
        pattern.subn("", "a1b2", count=1),
        [m.group() for m in pattern.finditer("a1b2")],
        re.fullmatch("a", "b") is None,
        re.sub(r"\d", lambda m: str(int(m.group()) + 1), "a1", flags=re.IGNORECASE),
        re.escape("a.b"),
        pattern.pattern,
    )


BLOCK = re.compile(r"block\.(\d+)")


@program(lambda: (torch.randn(3), "block.3"), lambda: (torch.randn(3), "head"))
def global_pattern(x, name):
    """A pattern from outside chooses the path."""
    match = BLOCK.match(name)
    return x * int(match[1]) if match else x + 1


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),))
def seeded_random(x):
    """Seeded generators run while tracing; the shared one ends in the state of plain Python."""
    random.seed(3)
    first = random.random()
    own = random.Random(5)
    items = [1, 2, 3, 4]
    own.shuffle(items)
    return (
        x * first,
        own.random(),
        own.randint(0, 5),
        items,
        random.choice([x, x + 1]),
        random.sample(range(10), 3),
        own.choices("ab", weights=[1, 3], k=3),
        random.gauss(0.0, 1.0),
        own,
    )


@program(lambda: (torch.randn(3),), breaks=1, steady=False)
def unseeded_random(x):
    """Shared-generator numbers are graph inputs; Python shuffles the list; order is preserved."""
    y = x + 1
    scale = random.uniform(1.0, 2.0)
    y = y * scale
    order = [1, 2, 3]
    random.shuffle(order)
    return y * order[0], random.randint(1, 10), order


@program(lambda: (torch.randn(4),), lambda: (torch.randn(4),))
def numbers_drawn_anew(x):
    """Each call draws its own numbers, even unused ones, and advances the generator as Python."""
    random.random()
    drawn = [random.gauss(0, 1), random.triangular(0, 1), random.randrange(0, 10, 2), random.getrandbits(5)]
    for _ in range(3):
        x = x * random.uniform(0.5, b=1.5)
    return x * drawn[0] + drawn[2] // 2 - drawn[3] * random.random(), drawn[1]


@program(lambda: (torch.randn(4),), lambda: (torch.randn(4),))
def drawn_and_then_seeded(x):
    """What was drawn before a seed is set is an input; what is drawn afterwards is known."""
    before = random.random()
    random.seed(4)
    return x * before + random.random()


@program(lambda: (torch.randn(4),), lambda: (torch.randn(4),))
def drawn_where_the_graph_fails(x):
    """Where the graph raises what the code handles, Python draws the same numbers once more."""
    y = x * random.random()
    try:
        z = x.reshape(random.randint(7, 9), -1)
    except RuntimeError:
        z = x * random.random()
    return y + z.sum()


@program(lambda: (torch.randn(4),), lambda: (torch.randn(4),), breaks=1)
def drawn_to_decide(x):
    """A coin that is tossed between two ways is drawn by Python."""
    y = x * 2
    if random.random() < 0.5:
        return y.sin()
    return y.cos()


@program(lambda: (torch.randn(3),))
def itertools_completely(x):
    """All of itertools."""
    data = [1, 2, 3, 4, 5]
    left, right = itertools.tee(data)
    next(left)
    turns = itertools.cycle([x, x + 1])
    return (
        [next(turns) for _ in range(3)],
        [(k, list(g)) for k, g in itertools.groupby(sorted("aabbb"))],
        [k for k, _ in itertools.groupby([1, 3, 2, 4], key=lambda v: v % 2)],
        list(left),
        list(right),
        list(itertools.takewhile(lambda v: v < 3, data)),
        list(itertools.dropwhile(lambda v: v < 3, data)),
        list(itertools.filterfalse(lambda v: v % 2, data)),
        list(itertools.compress("abc", [1, 0, 1])),
        list(itertools.starmap(pow, [(2, 3), (3, 2)])),
        list(itertools.accumulate(data, operator.mul, initial=1)),
        list(itertools.accumulate(data, func=max)),
        list(itertools.pairwise(data)),
        list(itertools.permutations(data[:3], 2)),
        list(itertools.combinations_with_replacement("ab", 2)),
        list(itertools.product("ab", repeat=2)),
        list(itertools.islice(itertools.count(3), 2, 8, 2)),
        list(itertools.chain.from_iterable([[1], [2]])),
        list(itertools.zip_longest("ab", "c", fillvalue="-")),
        list(iter(iter([4, 3, 0, 2]).__next__, 0)),
    )


@program(lambda: (torch.randn(3),))
def lazy_iterators(x):
    """Iterators consume their underlying iterators only on demand, including endless ones."""
    seen = []

    def note(value):
        seen.append(value)
        return value

    chained = itertools.chain(map(note, [1, 2]), map(note, [3, 4]))
    first = next(chained)
    part = list(itertools.islice(map(note, itertools.count()), 2))
    sums = itertools.accumulate(map(note, itertools.count(10)))
    two = next(sums), next(sums)
    rows = itertools.starmap(lambda a, b: note(a + b), zip(itertools.count(), itertools.count(5)))
    return x + first, part, two, next(rows), seen, list(chained)


@program(lambda: (torch.randn(3),))
def uneven_zip(x):
    """zip(strict=True) says which argument ended."""
    told = []
    for columns in (([1, 2], [1]), ([1], [1, 2]), ([1], [2], [3, 4])):
        try:
            list(zip(*columns, strict=True))
        except ValueError as error:
            told.append(str(error))
    return x * len(told), told


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),))
def operator_callables(x):
    """itemgetter, attrgetter, methodcaller and the sequence functions."""
    two = operator.itemgetter(0, 2)
    total = operator.methodcaller("sum", dim=0)
    return (
        operator.itemgetter(1)([x, x + 1]),
        two([1, 2, 3]),
        operator.attrgetter("shape")(x),
        operator.attrgetter("real.imag")(3),
        total(x),
        operator.concat([1], [2]),
        operator.countOf([1, 1, 2], 1),
        operator.indexOf([1, 2], 2),
        sorted([(1, 2), (0, 3)], key=operator.itemgetter(1)),
    )


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), breaks=1)
def getters_across_a_break(x):
    """Callables made before a break are known after it by what they are made of."""
    pick = operator.itemgetter(1)
    shape = operator.attrgetter("shape")
    double = operator.methodcaller("mul", 2)
    plus = functools.partial(torch.add, other=1)
    print("break")
    return pick([x, x + 1]), shape(x), double(x), plus(x)


@program(lambda: (torch.randn(3),))
def counters(x):
    """Counter: missing keys, arithmetic, update, most_common, and one that is returned."""
    letters = collections.Counter("abbc")
    letters["z"] += 2
    letters.update("aa")
    other = collections.Counter(a=1, b=5)
    other.subtract({"b": 1})
    return (
        x * letters["b"],
        letters.most_common(2),
        letters["none"],
        sum(letters.values()),
        sorted(letters.elements()),
        dict(letters + other),
        dict(letters - other),
        dict(letters & other),
        dict(letters | other),
        letters.total(),
        other,
    )


@program(lambda: (torch.randn(3),))
def deques(x):
    """deque with a bound and without: rotation, both ends, copies, errors."""
    bound = collections.deque([1, 2, 3], maxlen=3)
    bound.append(4)
    bound.appendleft(0)
    bound.rotate(1)
    free = collections.deque([x])
    free.extend([x + 1, x + 2])
    free.extendleft([x * 5])
    ends = free.popleft() + free.pop()
    try:
        collections.deque().pop()
    except IndexError as error:
        told = str(error)
    return ends, list(bound), bound.maxlen, bound.index(2), list(reversed(bound)), free, bound.copy(), told


@program(lambda: (torch.randn(3),))
def simple_namespaces(x):
    """SimpleNamespace made, changed, compared and returned."""
    space = types.SimpleNamespace(a=1, b=x)
    space.c = space.a + 2
    del space.a
    same = space == types.SimpleNamespace(b=space.b, c=3)
    return space.b * space.c, space, hasattr(space, "a"), vars(space)["c"], same, repr(types.SimpleNamespace(q=1))


SETTINGS = types.SimpleNamespace(scale=3, items=[1, 2])


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), steady=False)
def global_namespace_written(x):
    """A namespace from outside is read and written."""
    SETTINGS.count = getattr(SETTINGS, "count", 0) + 1
    return x * SETTINGS.scale + len(SETTINGS.items)


@functools.singledispatch
def doubled(value):
    return "any"


@doubled.register
def _(value: int):
    return "int"


@doubled.register
def _(value: torch.Tensor):
    return value * 2


class Table:
    """Methods made by functools."""

    def __init__(self, n):
        self.n = n
        self.calls = 0

    @functools.cached_property
    def table(self):
        self.calls += 1
        return self.n * 2

    def add(self, a, b):
        return a + b + self.n

    add5 = functools.partialmethod(add, 5)
    add_b = functools.partialmethod(add, b=7)


@functools.total_ordering
class Version:
    """Ordered by one method."""

    def __init__(self, v):
        self.v = v

    def __eq__(self, other):
        return self.v == other.v

    def __lt__(self, other):
        return self.v < other.v


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), breaks=2)
def functools_in_depth(x):
    """singledispatch on tensors, partialmethod, cached_property, total_ordering, cmp_to_key."""
    made = Table(3)
    scale = made.table + made.table
    order = sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))
    return (
        doubled(x),
        doubled(3),
        doubled("s"),
        x * scale,
        made.calls,
        made.add5(1),
        made.add_b(2),
        Version(1) <= Version(2),
        Version(3) >= Version(4),
        max(Version(1), Version(5)).v,
        order,
    )


@program(lambda: (torch.randn(3),))
def heaps(x):
    """heapq on numbers and on tuples with tensors behind."""
    heap = [5, 1, 4]
    heapq.heapify(heap)
    heapq.heappush(heap, 0)
    beams = []
    for score in (3, 1, 2):
        heapq.heappush(beams, (score, x * score))
    best = heapq.heappop(beams)
    return heapq.heappop(heap), heap, best, heapq.nlargest(2, [1, 9, 3]), heapq.nsmallest(1, ["b", "a"])


@program(lambda: (torch.randn(4), [1, 3, 3, 5]), breaks=3)
def sorted_lists_searched(x, known):
    """``bisect`` on lists and tuples, with bounds and keys, and insertion in an outside list."""
    found = bisect.bisect_left(known, 3), bisect.bisect(known, 3), bisect.bisect_right((1, 2), 9, lo=1)
    bisect.insort(known, 4)
    rows = [("a", 1), ("b", 4)]
    bisect.insort_left(rows, ("c", 2), key=lambda row: row[1])
    try:
        bisect.bisect(known, "text")
    except TypeError as error:
        text = str(error)
    return x.sin() * found[0], found, rows, text, bisect.bisect_left(rows, 4, key=lambda row: row[1])
