"""Lists, tuples, dicts, sets and their methods, made inside and handed in."""

import collections
import operator
from typing import Any, NamedTuple

import torch

from tests.programs import outcomes_of, program


@program(lambda: (torch.randn(3),))
def list_methods(x):
    """Every common list method on a local list."""
    items = [x]
    items.append(x + 1)
    items.extend([x + 2, x + 3])
    items.insert(0, x - 1)
    last = items.pop()
    first = items.pop(0)
    items.reverse()
    items[0] = items[0] * 2
    del items[-1]
    copy = items.copy()
    copy += [first]
    return items, last, copy, len(items), items[::-1], items * 2, [1, 2, 3].index(2), [1, 1].count(1)


@program(lambda: (torch.randn(3),))
def dict_methods(x):
    """Every common dict method on a local dict."""
    table = {"a": x}
    table["b"] = x + 1
    table.update({"c": x + 2}, d=x + 3)
    gone = table.pop("a")
    missing = table.get("zz", x * 0)
    default = table.setdefault("e", x * 5)
    merged = table | {"f": gone}
    del table["d"]
    return (
        table,
        missing,
        default,
        merged,
        list(table.keys()),
        "b" in table,
        len(table),
        list(table.items())[0][0],
        {**table, "z": x},
    )


@program(lambda: (torch.randn(3),))
def set_operations(x):
    """Sets of plain values."""
    names = {"a", "b"} | {"c"}
    names.add("d")
    names.discard("a")
    return x * len(names), "b" in names, sorted(names & {"b", "c", "z"}), frozenset(names) == {"b", "c", "d"}


@program(lambda: ({"x": torch.randn(3), "y": torch.randn(3)},))
def dict_argument(batch):
    """A dict of tensors comes in, another goes out."""
    return {"sum": batch["x"] + batch["y"], "keys": list(batch)}


@program(lambda: ([torch.randn(2), {"k": (torch.randn(2), 3)}],))
def nested_argument(data):
    """Containers in containers."""
    x = data[0]
    y, n = data[1]["k"]
    return [x + y * n, {"again": data[1]}]


@program(lambda: ([torch.randn(2)],))
def list_argument_grows(items):
    """Appending to the caller's list is seen by the caller."""
    items.append(items[0] + 1)
    items[0] = items[0] * 2
    return len(items)


@program(lambda: ({"x": torch.randn(2)},))
def dict_argument_grows(table):
    """Writing to the caller's dict is seen by the caller, in order."""
    table["y"] = table["x"] + 1
    table["x"] = table["x"] * 2
    table.pop("x")
    table["x"] = 3


@program(lambda: ([torch.randn(2)],))
def returns_its_list(items):
    """The list that comes back is the list that went in."""
    items.append(None)
    return items, items[0]


@program(lambda: (torch.randn(3),))
def shared_list(x):
    """Two names for one list stay one list."""
    a = [x]
    b = a
    b.append(x + 1)
    return a, b, a is b


@program(lambda: (torch.randn(3),))
def self_contained_list(x):
    """A dict and a list that hold one another's parts twice."""
    inner = [x]
    return {"a": inner, "b": inner, "c": (inner, inner)}


class Pair(NamedTuple):
    """Two tensors with names."""

    left: torch.Tensor
    right: torch.Tensor


@program(lambda: (Pair(torch.randn(2), torch.randn(2)),))
def named_tuples(pair):
    """Named tuples in and out, by field and by position."""
    left, right = pair
    return Pair(pair.right + left, right=pair[0]), pair._replace(left=right), isinstance(pair, tuple)


@program(lambda: (torch.randn(3),))
def special_dicts(x):
    """OrderedDict, defaultdict, Counter and deque of the standard library."""
    ordered = collections.OrderedDict(a=x, b=x + 1)
    ordered.move_to_end("a")
    grouped = collections.defaultdict(list)
    grouped["k"].append(x * 2)
    queue = collections.deque([x, x + 1], maxlen=2)
    queue.append(x + 2)
    return ordered, grouped, list(queue), collections.Counter("aab")["a"]


@program(lambda: (torch.randn(3), (1, 2, 3)))
def tuples_and_slices(x, numbers):
    """Tuple arithmetic, comparison, slicing, membership."""
    more = numbers + (4,)
    return (
        more[1:],
        more[::-1],
        3 in more,
        numbers < more,
        x * more[-1],
        more.index(2),
        tuple(n * 2 for n in more),
        hash(numbers),
    )


@program(lambda: (torch.randn(3), [1, 2, 3]), lambda: (torch.randn(3), [1, 2, 4]), lambda: (torch.randn(3), [1, 2]))
def list_of_numbers(x, weights):
    """A list of numbers is guarded by length and by what was read."""
    for w in weights:
        x = x * w
    return x


@program(lambda: ((torch.randn(2), torch.randn(2)),))
def tuple_identity(pair):
    """An untouched argument comes back as it is."""
    return pair, pair[0]


@program(lambda: (torch.randn(3),))
def dict_order_and_views(x):
    """Iteration order, views, dict from pairs and zip."""
    table = dict(zip(["b", "a"], [x, x + 1]))
    table2 = dict([("k", 1)], l=2)
    total = x * 0
    for key, value in table.items():
        total = total + value * len(key)
    for value in table.values():
        total = total + value
    return total, list(table), table2, dict.fromkeys(["p", "q"], 0), next(iter(table))


@program(lambda: (torch.ones(2), 7), lambda: (torch.ones(2), 2), lambda: (torch.ones(2), 3), breaks=1)
def counted_by_text(x, number):
    """Explaining a guard failure adds no key to a ``defaultdict`` whose key varies by call."""
    counts = collections.defaultdict(int)
    counts[f"number {number}"] = number
    print(end="")
    return x + sum(counts.values()), counts


@program(lambda: (torch.ones(2), 5), lambda: (torch.ones(2), 6), lambda: (torch.ones(2), 7))
def place_of_what_is_not_there(x, number):
    """The error of ``index`` shows the missing value's ``repr``, also if it varies by call."""
    told = []
    for items in ([1, 2], (1, 2), collections.deque([1])):
        for wanted in (number, "a", [number], None):
            try:
                items.index(wanted)
            except ValueError as error:
                told.append(str(error))
    return x + 1, told


@program(lambda: (torch.ones(2), collections.deque([1, 2, 3], 3)))
def errors_of_deques(x: torch.Tensor, queue: collections.deque[Any]) -> Any:
    """A deque has no slices; a full one drops items at the other end and inserts none."""
    calls = (
        lambda: queue[0:1],
        lambda: operator.setitem(queue, slice(0, 1), [1]),
        lambda: operator.delitem(queue, slice(0, 1)),
        lambda: queue[9],
        lambda: queue.insert(0, x),
        lambda: queue.remove(9),
        lambda: queue.appendleft(x + 1),
        lambda: queue.rotate(1),
        lambda: queue.pop(),
        lambda: queue.insert(1, 7),
    )
    return outcomes_of(*calls), list(queue), x * 2


class Corner(NamedTuple):
    """Two numbers."""

    width: int
    height: int


@program(lambda: (torch.ones(2),))
def errors_of_tuple_indices(x: torch.Tensor) -> Any:
    """Every tuple class words the errors of indices as tuple does."""
    corner, size = Corner(1, 2), x.size()
    calls = (
        lambda: corner[5],
        lambda: corner["a"],  # type: ignore[call-overload]
        lambda: size[5],
        lambda: size["a"],  # type: ignore[call-overload]
        lambda: corner._replace(width=4),
        lambda: corner._asdict(),
        lambda: corner.__getnewargs__(),
        lambda: corner.index(9),
    )
    return outcomes_of(*calls), x * 2


class Table(dict):
    """A dict with its own class."""


def ones_and_dicts():
    return torch.ones(2), [{"a": 1}, Table(a=1), collections.OrderedDict(a=1), collections.defaultdict(int, a=1)]


@program(ones_and_dicts, breaks=1)
def attributes_that_are_no_methods(x, tables):
    """Data attributes of C classes, before and after a graph break."""
    views = [view() for table in tables for view in (table.keys, table.values, table.items)]
    read = [
        (view.mapping == dict(view.mapping), type(view.mapping).__name__, view.__class__.__name__) for view in views
    ]
    print("a")
    kept = [(view.mapping == table, view.mapping is table) for table in tables for view in (table.keys(),)]
    hashes = [value.__hash__ is None for value in ([], {}, set(), (), x.shape)]
    return x + len(views), read, kept, hashes, outcomes_of(lambda: views[0].missing, lambda: iter(()).missing)


@program(
    lambda: (torch.arange(3) - 1.0, 2), lambda: (torch.arange(4) - 1.0, 3), lambda: (torch.arange(5) - 1.0, 0), breaks=1
)
def truth_of_an_element_at_a_symbolic_place(x, n):
    """The branch breaks the graph, like that of an element at a constant place."""
    return x + 1 if (x > 0)[n] else x - 1


@program(lambda: (torch.ones(2),))
def list_at_a_new_tensor(x):
    """A list indexed by a tensor of a constant: its number is known while tracing."""
    parts = [x, x + 1, x * 3]
    return parts[torch.tensor(1)] + parts[torch.tensor(2)]


@program(lambda: (torch.ones(2), {"mean": torch.ones(2), "count": [1]}))
def values_stored_back_into_their_dict(x, state):
    """Storing the value that a key has is no mutation, and keeps the order of keys."""
    mean = state["mean"]
    mean.mul_(0.5).add_(x)
    state["mean"] = mean
    state["count"] = state["count"]
    state["step"] = state.pop("step", 0) + 1
    return x + mean, list(state)
