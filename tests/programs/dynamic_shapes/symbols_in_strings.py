"""Exercise strings with dynamic numbers, torch's queries, and tensors made of numbers."""

import collections
import dataclasses
import warnings

import numpy as np
import torch
from torch.fx.experimental import symbolic_shapes

from tests.programs import program


@program(*[lambda n=n: (torch.randn(3), n) for n in (2, 3, 4, 5)], breaks=1)
def formatted_after_a_break(x, n):
    """A number that is only formatted is not taken for granted: later calls compile nothing."""
    x = x + 1
    print("so far")
    y = x * n
    return y, f"{n} of {n:>3} {n!r}"


@program(*[lambda n=n: (torch.randn(3), f"run {n}", n) for n in (2, 3, 4, 5)], breaks=2)
def printed_progress(x, name, epoch):
    """Values that are only shown are not guarded, also those carried over a break."""
    loss = (x * x).mean()
    print(f"{name}: epoch {epoch} loss {loss.item():.4f} {epoch=}")
    print(f"{name} {x.sum().tolist():.2f}", f"{len(name)}")
    return x * 2, f"{name}/{epoch}", not (x > 9).all().item()


class Run:
    """Counts its steps."""

    def __init__(self, name):
        self.name, self.step = name, len(name)


@program(*[lambda n=n: (torch.randn(3), Run("a" * n), ["b" * n, "c"]) for n in (1, 2, 3)], steady=False)
def texts_of_what_changes(x, run, words):
    """A text shows the values at its time, not those that are assigned later."""
    text = f"{run.name}{run.step}{words[0]}{words[0]!r:>9}"
    run.step += 1
    run.name, words[0] = f"{words[0]}!", "d"
    return x * 2, text, f"{run.name}{run.step}{words[0]}", run, words, f"{words[1]}" == "c", {f"{text}": 1}


@program(lambda: (torch.randn(2, 3),), lambda: (torch.randn(4, 3),), lambda: (torch.randn(5, 3),))
def formatted_sizes(x):
    """Sizes in text, unused, returned, joined, in a message and looked at."""
    f"{x.shape[0]}"
    words = {f"rows {x.shape[0]}": 1}
    text = f"{x.shape[0]} by " + f"{x.shape[1]}"
    try:
        raise ValueError(f"bad size {x.shape[0]}")
    except ValueError as error:
        said = error
    return x.sin(), text, words, text.startswith("4"), said.args


@program(lambda: (torch.randn(8),), lambda: (torch.randn(9),), lambda: (torch.randn(10),))
def asked_of_sizes(x):
    """torch's questions about sizes are answered while tracing."""
    both = symbolic_shapes.sym_and(x.shape[0] > 2, x.shape[0] > 3, x.shape[0] < 100)
    none = symbolic_shapes.sym_or(x.shape[0] < 2, x.shape[0] < 3)
    oblivious = symbolic_shapes.guard_size_oblivious(x.shape[0] == 0)
    return x + 1, bool(both), bool(none), oblivious, symbolic_shapes.has_static_value(4)


@program(lambda: (torch.tensor([1, 0, 2]), torch.tensor(2.5, dtype=torch.float64)))
def tensors_of_tensors(x, y):
    """Tensors of one element are numbers in the data of a new tensor, whose type is theirs."""
    n = x.sum()
    return (
        torch.tensor([n, x[0]]),
        torch.tensor([[y], [y]]),
        x.new_tensor([n.item(), 1]),
        torch.tensor(range(3)),
        torch.tensor(data=range(3), dtype=torch.float64),
        torch.tensor([n], dtype=torch.int32),
    )


@program(lambda: (torch.zeros(2, 2),), lambda: (torch.ones(2, 2),))
def truth_as_a_number(x):
    """The truth of a tensor is a number of the graph where nothing depends on it."""
    return bool((x == 0).all()), bool(x.sum()), x + 1


@dataclasses.dataclass
class Point:
    """Equal by its fields."""

    x: int


class Named:
    """Equal by name; says nothing of inequality."""

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return self.name == other.name if isinstance(other, Named) else NotImplemented

    def __hash__(self):
        return hash(self.name)


@program(lambda: (torch.randn(3),))
def inequality_by_equality(x):
    """``!=`` is the opposite of ``__eq__`` where a class defines that alone."""
    a, b = Named("a"), Named("a")
    return x + 1, Point(1) != Point(1), Point(1) != Point(2), a != b, a != Named("b"), a != 3, 3 != a, [a] != [b]


@program(lambda: (torch.randn(3),))
def names_of_errors(x):
    """Errors of missing names and attributes tell which; a new object has no weak reference."""
    try:
        return x + undefined_thing  # noqa: F821
    except NameError as error:
        return x + 1, error.name, str(error), Named("a").__weakref__


@program(lambda: (torch.randn(3),))
def dicts_from_keys(x):
    """``fromkeys`` of the dicts of ``collections``."""
    return collections.defaultdict.fromkeys("ab", x), collections.OrderedDict.fromkeys(["c"], value=x + 1)


@program(lambda: (np.arange(2), np.arange(2) + 2))
def arrays_of_arrays(x, y):
    """``numpy.array`` of arrays stacks them."""
    return np.array([x, y]), np.array([[x, y], [y, x]], dtype=float)


@program(lambda: (torch.randn(3),))
def flags_of_torch(x):
    """Flags of torch's backends and modes are read while tracing."""
    a, b = torch.backends.cuda.matmul.allow_tf32, torch._C._are_functorch_transforms_active()
    return x + 1, a, b, torch.get_autocast_gpu_dtype()


@program(lambda: (torch.randn(3),), breaks=3)
def warnings_that_are_kept(x):
    """``catch_warnings(record=True)`` around what gives none; and one that is handed out."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        y = x.sin()
    made = warnings.catch_warnings(record=True)
    return y, len(given), bool(given), list(given), type(made).__name__, given


@program(lambda: (torch.randn(3),), breaks=2)
def warnings_that_are_looked_at(x):
    """What was given is there, in order, for who looks."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        warnings.warn("first", stacklevel=1)
        y = x.sin()
        warnings.warn("second", DeprecationWarning, stacklevel=1)
    return y, len(given), [str(w.message) for w in given], [w.category for w in given]


@program(
    lambda: (torch.randn(3), {"a": 1, "b": 2}.keys(), {"a": 1.5}.items()),
    lambda: (torch.randn(3), {"a": 1, "bb": 2, "c": 3}.keys(), {}.items()),
)
def views_from_outside(x, keys, items):
    """Views of dicts that are not at hand."""
    for key in keys:
        x = x + len(key)
    for _, value in items:
        x = x * value
    return x, "c" in keys, len(items), sorted(keys)


WORDS = {"a": 1}


@program(lambda: (torch.randn(3), WORDS, WORDS.keys()), breaks=1)
def views_of_what_changes(x, words, keys):
    """A view shows what its dict holds by now."""
    before = list(keys)
    words["b"] = x
    return x + 1, before, list(keys)


@program(lambda: (torch.tensor([5, 6]),), lambda: (torch.tensor([8, 7]),))
def membership_and_numpy_numbers(x):
    """``in`` moves an iterator on; numbers of numpy's types are made inside."""
    steps = iter(["a", "b", "c"])
    found = "b" in steps
    first, second = x.tolist()
    return x + 1, found, list(steps), int(np.int64(16) + 1), x.reshape(np.int_(2)), first + second


class Plain:
    """Shows its address."""

    def method(self):
        """Nothing."""


OUTSIDE = Plain()


@program(lambda: (torch.randn(3),), breaks=2, steady=False)
def addresses_compared(x):
    """Texts with addresses in them are equal for one object, and differ for two."""
    a, b = Plain(), Plain()

    def inner():
        return a

    return (
        x + 1,
        repr(a) == str(a) != repr(b),
        f"{inner}" == repr(inner),
        repr(a.method) == f"<bound method Plain.method of {a!r}>",
        repr(a).startswith("<") and " object at 0x" in repr(a),
        repr([a]) == f"[{a}]",
        repr(OUTSIDE) == f"{OUTSIDE}",
    )


@program(lambda: (torch.randn(3),), breaks=2, steady=False)
def address_across_a_break(x):
    """Python builds a string with an object's address if the string outlives the graph."""
    a, b = Plain(), Plain()
    text = repr(a)
    b.text = f"about {a!r}"
    x = x * 2
    print("so far")
    return x + 1, text == repr(a), b.text == f"about {a}"


def pair(n, m):
    return lambda: (torch.ones(3), n, m)


@program(pair(4, 6), pair(5, 7), pair(7, 9), pair(8, 21), pair(10, 6), steady=False)
def text_of_what_numbers_come_to(x, n, m):
    """Strings, keys, ranges and memberships of a sum of two dynamic ints differ per call."""
    found = [str(n + m), [n + m], list(range(n + m))[-1], (n + m) in (12, 16), {12: "a", 16: "b"}.get(n + m)]
    return x + 1, f"{found}", "%03d" % sum([n, m])
