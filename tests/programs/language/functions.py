"""Exercise calls: defaults, keywords, stars, closures, recursion, decorators and more."""

import enum
import functools
import operator
import sys
import threading
import types
from collections import deque

import torch

from tests.programs import call, program


def affine(x, scale=2.0, *, shift=1.0):
    return x * scale + shift


@program(lambda: (torch.randn(3),))
def inlined_call(x):
    """A helper with defaults and keyword-only arguments is part of the graph."""
    return affine(x), affine(x, 3.0), affine(x, shift=0.0), affine(scale=4.0, x=x)


@program(lambda: call(torch.randn(3), scale=3), lambda: call(torch.randn(3)), lambda: call(x=torch.randn(3), scale=3))
def keywords_of_the_root(x, scale=2, *, shift=0.5):
    """The compiled function itself is called with keywords and defaults."""
    return x * scale + shift


@program(lambda: call(torch.randn(3), torch.randn(3), a=torch.randn(3), b=2))
def star_arguments_of_the_root(x, *args, **kwargs):
    """The compiled function takes any arguments."""
    total = x
    for arg in args:
        total = total + arg
    for name, value in kwargs.items():
        total = total * value if name == "b" else total - value
    return total, len(args), sorted(kwargs)


@program(lambda: call(torch.randn(3), torch.randn(3), flag=True))
def positional_only(x, y, /, *, flag=False):
    """Positional-only and keyword-only parameters."""
    return x - y if flag else x + y


def gather_arguments(*args, **kwargs):
    return args, kwargs


@program(lambda: (torch.randn(3), torch.randn(3)))
def star_calls(x, y):
    """Calls with unpacked lists and dicts."""
    pair = [x, y]
    options = {"alpha": 2}
    args, kwargs = gather_arguments(*pair, x, **options, beta=y)
    return torch.add(*pair, **options), args, kwargs


@program(lambda: (torch.randn(3),))
def local_function(x):
    """A function defined inside reads names of its enclosing one."""
    scale = x.sum()

    def scaled(y):
        return y * scale

    return scaled(x) + scaled(x + 1)


@program(lambda: (torch.randn(3),))
def nonlocal_counter(x):
    """An inner function rebinds a name of its enclosing one."""
    count = 0

    def step(y):
        nonlocal count
        count += 1
        return y + count

    return step(step(step(x))), count


@program(lambda: (torch.randn(3),))
def lambdas(x):
    """Lambdas in a list, with late and early binding."""
    late = [lambda y: y * i for i in range(3)]
    early = [lambda y, i=i: y * i for i in range(3)]
    return [f(x) for f in late], [f(x) for f in early]


def make_scaler():
    scale = torch.full((3,), 2.5)
    offset = 4

    def scaler(x):
        """A closure over a tensor and a number made elsewhere."""
        return x * scale + offset

    return scaler


closure_over_tensor = program(lambda: (torch.randn(3),), lambda: (torch.randn(3),))(make_scaler())


def make_counter():
    count = 0

    def counter(x):
        """A closure that counts its own calls in a cell."""
        nonlocal count
        count += 1
        return x + count

    return counter


counting_closure = program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), steady=False)(make_counter())


def power(x, n):
    return x if n == 0 else x * power(x, n - 1)


@program(lambda: (torch.randn(3),))
def recursion(x):
    """A function that calls itself, a known number of times."""
    return power(x, 4)


@program(lambda: (torch.randn(3),))
def partials(x):
    """functools.partial with positional and keyword arguments."""
    double = functools.partial(affine, scale=2.0, shift=0.0)
    add = functools.partial(torch.add, x)
    return double(x), add(x), add(x, alpha=3)


@program(lambda: (torch.randn(3),))
def reduce_and_operator(x):
    """functools.reduce and the operator module."""
    parts = [x, x + 1, x + 2]
    return functools.reduce(operator.add, parts), operator.mul(x, 2), operator.itemgetter(1)(parts), operator.neg(x)


def doubled(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


@doubled
def plus_one(x):
    return x + 1


@program(lambda: (torch.randn(3),))
def decorated_helper(x):
    """A helper behind a wrapping decorator."""
    return plus_one(x), plus_one.__name__


@program(lambda: (torch.randn(3),))
@doubled
def decorated_root(x):
    """The compiled function is itself behind a decorator."""
    return x - 1


def pieces(x, n):
    for i in range(n):
        yield x * i
    yield x


@program(lambda: (torch.randn(3),))
def generator_helper(x):
    """A generator function consumed by a loop and by list()."""
    total = torch.zeros(3)
    for piece in pieces(x, 3):
        total = total + piece
    return total, list(pieces(x, 2))


@program(lambda: (torch.randn(3), torch.nn.functional.relu), lambda: (torch.randn(3), torch.sin))
def function_argument(x, activation):
    """A function as argument."""
    return activation(x) + 1


ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "none": lambda x: x}


@program(lambda: (torch.randn(3), "relu"), lambda: (torch.randn(3), "none"))
def table_of_functions(x, name):
    """Functions looked up in a global dict."""
    return ACTIVATIONS[name](x)


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), steady=False)
def mutable_default(x, seen=[]):
    """A default list keeps what earlier calls put in."""
    seen.append(len(seen))
    return x + len(seen)


@program(lambda: (torch.randn(3),))
def returns_function(x):
    """A function that returns a closure."""

    def inner(y):
        return x + y

    return inner(x)


@program(lambda: (torch.randn(3),))
def getattr_by_name(x):
    """Methods of tensors looked up by name, bound methods stored."""
    method = x.add
    return getattr(x, "sin")(), method(1), hasattr(x, "cos"), hasattr(x, "nothing"), getattr(x, "nothing", 3)


@program(lambda: (torch.randn(2, 4), torch.randn(4)), breaks=0)
def tensor_called_self(self, y):
    """A plain function whose first parameter is called self."""
    return self * 2 + y


@program(lambda: (torch.randn(3),))
def wrapped_by_name(x):
    """``functools.wraps`` wraps an outside function; ``vars`` and ``locals`` list local names."""
    y = x.cos()

    @functools.wraps(plain_helper)
    def helper():
        return plain_helper(y)

    known = "y" in vars() and "nothing" not in locals()
    return helper(), helper.__name__, helper.__wrapped__ is plain_helper, known


def plain_helper(x):
    return x.sin()


class Places(enum.IntEnum):
    """Positions, with what is computed of them."""

    FIRST = 0
    SECOND = 1

    @classmethod
    def both(cls):
        return slice(cls.FIRST, cls.SECOND + 1)


@program(lambda: (torch.randn(2, 5),))
def positions_of(x):
    """``index`` honors its bounds, an enum gives slices, and the Python version is known."""
    y = x.clone()
    y[..., Places.both()] = 0
    places = [
        [1, 2, 1].index(1, 1),
        (3, 4, 3).index(3, -1),
        deque([5, 6, 5]).index(5, 1, 3),
        torch.Size([1, 2]).index(2),
    ]
    try:
        [1, 2].index(1, 1)
    except ValueError:
        places.append(-1)
    return y, places, sys.version_info >= (3, 9)


@program(*[lambda: (torch.randn(3),)] * 3)
def attributes_of_a_function(x):
    """A function counts its calls and remembers a tensor in attributes of its own."""
    of = attributes_of_a_function
    of.calls = getattr(of, "calls", 0) + 1
    try:
        of.total += x.sum()
    except AttributeError:
        of.total = x.sum()
    if not hasattr(of, "cache"):
        of.cache = {}
    of.cache["last"] = x * of.calls
    of.__dict__["kind"] = "set"
    del of.kind
    return of.total, of.calls, sorted(of.cache), sorted(vars(of))


def counts_calls(function):
    """Count the calls in an attribute of the wrapper."""

    @functools.wraps(function)
    def wrapper(*args):
        wrapper.calls += 1
        return function(*args)

    wrapper.calls = 0
    return wrapper


@counts_calls
def scaled_by_calls(x):
    return x * scaled_by_calls.calls


@program(*[lambda: (torch.randn(3),)] * 3)
def decorator_that_counts(x):
    """A decorator counts calls in an attribute of its wrapper."""
    return scaled_by_calls(x) + scaled_by_calls(x), scaled_by_calls.calls


def scaled(x):
    return x * getattr(scaled, "scale", 1.0)


cached_width = functools.lru_cache(lambda: 3)
settings = types.ModuleType("settings")
thread = threading.local()


def with_scale(scale):
    """Set or delete an attribute of several objects between the calls."""
    for of in (scaled, cached_width, settings, thread):
        if scale is None:
            vars(of).pop("scale", None)
        else:
            of.scale = scale
    return (torch.ones(2),)


@program(*[lambda s=s: with_scale(s) for s in (None, 2.0, 3.0, None)])
def attributes_that_appear(x):
    """Functions, a module and a thread-local gain an attribute between calls."""
    try:
        x = x + settings.scale
    except AttributeError:
        x = x - 1
    return scaled(x) * getattr(cached_width, "scale", 1.0), hasattr(thread, "scale")
