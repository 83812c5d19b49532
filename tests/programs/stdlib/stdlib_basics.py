"""Python's standard library in the middle of tensor code."""

import base64
import binascii
import collections
import contextlib
import copy
import functools
import heapq
import inspect
import itertools
import json
import logging
import math
import re
import struct
import unicodedata
import warnings
import weakref
import zlib

import torch

from tests.programs import program


@program(lambda: (torch.randn(3),))
def itertools_chain_product(x):
    """chain, product, zip_longest, islice, accumulate, repeat, count."""
    total = x * 0
    for a, b in itertools.product([1, 2], [3, 4]):
        total = total + x * a * b
    for v in itertools.chain([1], (2, 3)):
        total = total + v
    for v, _ in zip(itertools.count(5, 2), range(3)):
        total = total + v
    pairs = list(itertools.zip_longest([1, 2, 3], [4], fillvalue=0))
    sums = list(itertools.accumulate([x, x, x], torch.add))
    return total, pairs, sums, list(itertools.islice(itertools.repeat(7), 2)), list(itertools.combinations("abc", 2))


@program(lambda: (torch.randn(3),))
def zip_enumerate_map(x):
    """Lazy builtins over lists of tensors."""
    parts = [x, x + 1, x + 2]
    out = [a * i + b for i, (a, b) in enumerate(zip(parts, reversed(parts)), start=1)]
    return out, list(map(torch.sin, parts)), list(zip(*[[1, 2], [3, 4]])), sum(map(lambda p: p.sum(), parts))


@functools.lru_cache(maxsize=None)
def table_size(n):
    return n * n + 1


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), steady=True)
def cached_helper(x):
    """A helper behind functools.lru_cache."""
    return x * table_size(4), table_size(3)


@functools.singledispatch
def describe(value):
    return "something"


@describe.register
def _(value: int):
    return "int"


@program(lambda: (torch.randn(3),))
def single_dispatch(x):
    """functools.singledispatch chooses by type."""
    return x, describe(3), describe("text")


@program(lambda: (torch.randn(3), {"a": [1, 2], "b": (3,)}))
def copies(x, settings):
    """copy and deepcopy of containers and tensors."""
    shallow = copy.copy(settings)
    deep = copy.deepcopy(settings)
    deep["a"].append(9)
    shallow["c"] = 1
    return x * len(deep["a"]), deep, shallow["a"] is settings["a"]


@program(lambda: (torch.randn(3), "block_12.weight"))
def regular_expressions(x, name):
    """Compiled patterns on constant text."""
    match = re.match(r"block_(\d+)\.(\w+)", name)
    if match:
        return x * int(match.group(1)), match.group(2), re.sub(r"\d+", "N", name)
    return x


def scaled(x, scale=2, *, shift=0):
    return x * scale + shift


@program(lambda: (torch.randn(3),))
def signatures(x):
    """inspect.signature of a helper decides how it is called."""
    names = list(inspect.signature(scaled).parameters)
    options = {"shift": 1} if "shift" in names else {}
    return scaled(x, **options), names


@program(lambda: (torch.randn(3),))
def math_functions(x):
    """math on plain numbers, with infinities."""
    return (
        x * math.ceil(2.1) + math.floor(-0.5),
        math.log2(8),
        math.isinf(math.inf),
        math.prod([2, 3]),
        math.gcd(12, 18),
        math.isclose(0.1 + 0.2, 0.3),
    )


class Node:
    """Something to refer to weakly."""

    def __init__(self, value):
        self.value = value


KEPT = Node(3)
LINK = weakref.ref(KEPT)


@program(lambda: (torch.randn(3),))
def weak_reference(x):
    """A weak reference that is alive."""
    node = LINK()
    return x * node.value if node is not None else x


@program(lambda: (torch.randn(3),))
def warns(x):
    """A warning reaches the caller's filters."""
    if x.shape[0] < 10:
        warnings.warn("short input", UserWarning)
    return x * 2


LOGGER = logging.getLogger("programs")


@program(lambda: (torch.randn(3),))
def logs(x):
    """Logging at a level that is off."""
    LOGGER.debug("shape %s", x.shape)
    return x + 1


@program(lambda: (torch.randn(3),))
def null_and_exit_stack(x):
    """nullcontext, suppress and ExitStack."""
    with contextlib.nullcontext(4) as four, contextlib.suppress(KeyError):
        x = x * four
        {}["missing"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        inside = torch.is_grad_enabled()
    return x, inside, torch.is_grad_enabled()


@program(lambda: (torch.randn(3),))
def chain_map_and_ordered(x):
    """ChainMap, OrderedDict.popitem, Counter.most_common, namedtuple made inside."""
    layers = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    ordered = collections.OrderedDict([("k", 1), ("l", 2)])
    point = collections.namedtuple("point", ["u", "v"])
    p = point(x, 2)
    return (
        x * layers["b"] + layers["a"],
        ordered.popitem(last=False),
        collections.Counter("aabbb").most_common(1),
        p.u * p.v,
    )


ITERATOR = iter(range(100))


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), steady=False)
def global_iterator(x):
    """A global iterator that every call advances."""
    return x * next(ITERATOR)


@program(lambda: (torch.randn(3),))
def callable_and_type(x):
    """callable, type, isinstance with tuples, id-free introspection."""
    kinds = [type(v).__name__ for v in (1, "s", None, x, [])]
    return (
        x,
        kinds,
        callable(scaled),
        callable(3),
        isinstance(x, (list, torch.Tensor)),
        isinstance(True, int),
        issubclass(bool, int),
        type(x) is torch.Tensor,
    )


@program(lambda: (torch.randn(3),))
def infinite_recursion(x):
    """Recursion without end ends as Python ends it."""

    def forever(y):
        return forever(y)

    try:
        return forever(x)
    except RecursionError:
        return x + 1


class Linked:
    """Knows what it belongs to by a weak reference."""

    def __init__(self, value, owner=None):
        self.value = value
        self.parts = []
        self.owner = None if owner is None else weakref.ref(owner)
        if owner is not None:
            owner.parts.append(self)


@program(lambda: (torch.randn(3),))
def weak_links_of_a_tree(x):
    """Objects made inside hold weak references to owners that a variable keeps alive."""
    root = Linked(x.sin())
    part = Linked(x.cos(), root)
    leaf = Linked(x + 1, part)
    return part.value + root.value, leaf.value * len(root.parts), root.parts[0].owner() is root


HELD = weakref.WeakValueDictionary(kept=KEPT)


@program(lambda: (torch.randn(3),))
def held_by_a_weak_dictionary(x):
    """An object from outside is found in a dictionary that holds it weakly."""
    return x.sin() * len(HELD), HELD["kept"] is LINK(), HELD.get("other")


@program(lambda: (torch.randn(3),), breaks=1)
def dies_with_its_last_name(x):
    """An object made inside dies with its last name; a function that checks runs as Python."""
    made = Linked(x.sin())
    link = weakref.ref(made)
    value = made.value
    del made
    return value * (1 if link() is None else 2)


@program(lambda: (torch.randn(3),), breaks=1)
def lives_as_long_as_its_name(x):
    """A weak dictionary holds an object as long as a variable does, even if no longer read."""
    found = weakref.WeakValueDictionary()
    made = Linked(x.sin())
    found["a"] = made
    return found["a"].value * len(found)


@program(lambda: (torch.randn(3),), breaks=1)
def dies_after_a_break(x):
    """A weak reference that outlives a break: the object still dies with its last name."""
    made = Linked(x.sin())
    link = weakref.ref(made)
    print("half-way")
    value = link().value * 2
    del made
    return value, link() is None


def _error_of(call, *args):
    try:
        return call(*args)
    except ValueError as error:
        return type(error), str(error)


@program(lambda: (torch.ones(2), b"abc"), lambda: (torch.ones(2), b"abcd"))
def encoded_bytes(x, content):
    """Functions that encode, compress and check bytes, also wrong ones."""
    encoded = base64.b64encode(content), binascii.hexlify(content), zlib.compress(content), zlib.crc32(content)
    decoded = base64.b64decode(encoded[0]), binascii.unhexlify(encoded[1]), zlib.decompress(encoded[2])
    wrong = _error_of(base64.b64decode, content[1:]), _error_of(unicodedata.name, "\n")
    names = unicodedata.name("a"), unicodedata.category("a"), unicodedata.normalize("NFC", "e\u0301")
    return x * (encoded[3] % 7), encoded, decoded, wrong, names, struct.unpack_from("<H", content, 1)


CONFIG = {"layers": [1, 2], "name": "small", "rate": 0.5}


@program(lambda: (torch.ones(2), 3), lambda: (torch.ones(2), 4), lambda: (torch.ones(2), 5))
def json_texts(x, steps):
    """JSON is written and read; a text that is no JSON raises an error with a position."""
    CONFIG["steps"] = steps
    text = json.dumps(copy.deepcopy(CONFIG), sort_keys=True)
    first, second = json.loads(text), json.loads(text)
    first["layers"].append(steps)
    try:
        json.loads("[1, oops]")
    except json.JSONDecodeError as caught:
        error = caught
    try:
        json.dumps({"x": {1}})
    except TypeError as caught:
        message = str(caught)
    return x * first["rate"], text, first, second, (error, error.pos, error.msg, str(error)), message


@program(lambda: (torch.ones(2), 3), lambda: (torch.ones(2), 4), lambda: (torch.ones(2), 5))
def copied_sizes(x, steps):
    """A copy of a number that is an input remains dynamic."""
    return x * steps, copy.deepcopy([steps, {"n": steps}]), copy.copy(steps)


class Candidate:
    """A candidate that is ordered by its cost."""

    def __init__(self, cost):
        self.cost = cost

    def __lt__(self, other):
        return self.cost < other.cost


QUEUE = [4, 7]


@program(lambda: (torch.ones(2), 3), lambda: (torch.ones(2), 5))
def heaps(x, cost):
    """Heaps of numbers, tuples and objects, one of them from outside."""
    heapq.heappush(QUEUE, cost)
    pairs = [(3, "c"), (1, "a"), (2, "b")]
    heapq.heapify(pairs)
    smallest = heapq.heappushpop(pairs, (0, "z"))
    objects = [Candidate(n) for n in (5, 2, 8)]
    heapq.heapify(objects)
    first = heapq.heapreplace(objects, Candidate(1)).cost
    try:
        heapq.heappop([])
    except IndexError as caught:
        message = str(caught)
    try:
        heapq.heappush(pairs, (1, None))
    except TypeError as caught:
        message += str(caught)
    largest = heapq.nlargest(2, objects, key=lambda c: -c.cost)[0].cost
    return x * heapq.heappop(QUEUE), list(QUEUE), pairs, smallest, first, objects[0].cost, largest, message
