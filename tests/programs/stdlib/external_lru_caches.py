"""Existing ``functools.lru_cache`` functions, known subclasses, and sets of new objects."""

import dataclasses
import functools

import torch

from tests.programs import program


@functools.lru_cache(maxsize=None)
def halves(shape, pattern):
    """Sizes that follow from sizes."""
    return tuple(n // 2 if c == "h" else n for n, c in zip(shape, pattern))


@program(lambda: (torch.randn(4, 6),), lambda: (torch.randn(8, 6),), lambda: (torch.randn(10, 6),))
def sizes_given_to_a_cache(x):
    """A cached function of sizes is looked into once for all sizes."""
    rows, columns = halves(tuple(x.shape), "hw")
    return x.reshape(2, rows, columns).sum(0), halves((4, 4), "hh")


class Recipe:
    """Is found again by what it holds."""

    def __init__(self, scale):
        self.scale = scale

    def __hash__(self):
        return hash(self.scale)

    def __eq__(self, other):
        return isinstance(other, Recipe) and self.scale == other.scale


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Never changes."""

    scale: int


@functools.lru_cache(maxsize=8)
def factors(recipe, times):
    """A factor for each time."""
    return [recipe.scale * n for n in range(times)]


@program(
    lambda: (torch.randn(3), Recipe(2), Frozen(5)),
    lambda: (torch.randn(3), Recipe(2), Frozen(5)),
    lambda: (torch.randn(3), Recipe(3), Frozen(7)),
)
def objects_given_to_a_cache(x, recipe, frozen):
    """A cached function of objects that hash by what they hold is looked into."""
    return x * sum(factors(recipe, 3)), len(factors(frozen, 2))


class Shape:
    """Knows its kinds."""

    name = "shape"


class Circle(Shape):
    """One kind."""

    name = "circle"


class Square(Shape):
    """Another kind."""

    name = "square"


class Tile(Square):
    """A kind of a kind."""

    name = "tile"


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),))
def subclasses_found(x):
    """All classes below a class, found by asking each."""
    found, waiting = [], Shape.__subclasses__()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        found.append(kind)
    return x * len(found), [kind.name for kind in found], Tile.__subclasses__()


class Axis:
    """Every axis is one of its own."""

    def __init__(self, size):
        self.size = size


@program(lambda: (torch.randn(3),))
def set_of_new_objects(x):
    """What is made of a set of objects in any order."""
    axes = {Axis(2), Axis(3), "c"}
    sizes = {a.size for a in axes if not isinstance(a, str)}
    names = set.difference({a for a in axes if isinstance(a, str)}, {"d"})
    return x * sum(sizes), names, sorted(a.size for a in axes if isinstance(a, Axis))


@program(lambda: (torch.randn(3),), breaks=3)
def order_of_a_set_across_a_break(x):
    """A list made before a print fits what is made after it."""
    axes = {Axis(size) for size in (2, 3, 5, 7, 11)}
    first = list(axes)
    print("between")
    return x * 2, list(axes) == first


@functools.lru_cache(maxsize=8)
def marks(count):
    """A list that all callers share."""
    return list(range(count))


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), breaks=1, steady=False)
def cached_list_is_added_to(x):
    """An item appended to a cached list is there in the next call: the cache holds that list."""
    found = marks(3)
    found.append(7)
    return x * len(found)


@functools.lru_cache(maxsize=8)
def lengths(count):
    """A list that all callers share, and that is asked for again."""
    return list(range(count))


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), breaks=2, steady=False)
def cached_list_is_added_to_and_asked_for_again(x):
    """What was added is there when the cache is asked again."""
    lengths(3).append(7)
    return x * len(lengths(3))


@functools.lru_cache(maxsize=8)
def settings(name):
    """A dict in a dict, and an object, that all callers share."""
    return {"inner": {"name": name}, "axis": Axis(1)}


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), breaks=1, steady=False)
def what_a_cached_dict_holds_is_changed(x):
    """Changes inside of what a cache gave are there in the next call."""
    found = settings("a")
    found["axis"].size += 1
    found["inner"][str(len(found["inner"]))] = 1
    return x * found["axis"].size, list(found["inner"])


@functools.lru_cache(maxsize=8)
def ramp(count):
    """A tensor that all callers share."""
    return torch.arange(count, dtype=torch.float32)


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), breaks=1)
def cached_tensor_is_changed_in_place(x):
    """A tensor from a cache that is written to is the cache's."""
    found = ramp(3)
    found[1:] += 1
    return x * found


@functools.lru_cache(maxsize=8)
def steps(count):
    """Another list that all callers share."""
    return [count]


@program(lambda: (torch.randn(3), [0]), lambda: (torch.randn(3), [0]), breaks=1)
def cached_list_is_handed_on(x, held):
    """A list from a cache that the caller gets is the cache's own."""
    found = steps(4)
    held[0] = found
    return x * len(found), found, found is held[0]
