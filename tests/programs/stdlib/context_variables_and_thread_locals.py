"""State of a context or a thread: context variables, thread-local data, weak proxies."""

import contextlib
import contextvars
import functools
import inspect
import random
import threading
import traceback
import typing
import weakref

import torch

from tests.programs import program

SCALE = contextvars.ContextVar("scale", default=3)
UNSET = contextvars.ContextVar("unset")


@program(lambda: (torch.randn(3),), breaks=4)
def variable_set_and_reset(x):
    """A context variable is set, read and put back; its token tells what it held."""
    token = SCALE.set(5)
    y = x * SCALE.get()
    told = (token.var is SCALE, token.old_value is contextvars.Token.MISSING, SCALE.name)
    SCALE.reset(token)
    return y + SCALE.get(), told


@program(lambda: (torch.randn(3),), steady=False, breaks=2)
def variable_left_set(x):
    """What a context variable was set to is seen outside, twice set is set to the last."""
    found = UNSET.get(None)
    UNSET.set(x + 1)
    UNSET.set(x + 2)
    return x * 2, found is None, UNSET.get()


@program(lambda: (torch.randn(3),), breaks=5)
def token_handed_out(x):
    """A token that is handed out resets the variable later."""
    first = SCALE.set(7)
    second = SCALE.set(8)
    return x * SCALE.get(), [first.old_value is contextvars.Token.MISSING, second.old_value], SCALE.reset(first)


@contextlib.contextmanager
def scaled_by(number):
    token = SCALE.set(number)
    try:
        yield
    finally:
        SCALE.reset(token)


@program(lambda: (torch.randn(3),), breaks=1)
def variable_in_manager(x):
    """A context manager sets a context variable for a while."""
    with scaled_by(11), scaled_by(12):
        y = x * SCALE.get()
    return y + SCALE.get()


@program(lambda: (torch.randn(3),), breaks=3)
def break_while_set(x):
    """A context variable set across a graph break is visible in between and reset afterwards."""
    token = SCALE.set(4)
    try:
        y = x * SCALE.get()
        print(SCALE.get())
        y = y + SCALE.get()
    finally:
        SCALE.reset(token)
    return y * SCALE.get()


@program(lambda: (torch.randn(3),), breaks=5)
def copied_context(x):
    """What is set in a copy of the context stays there."""
    context = contextvars.copy_context()

    def inside(y):
        SCALE.set(20)
        return y * SCALE.get()

    return context.run(inside, x), SCALE.get(), context[SCALE], UNSET in contextvars.copy_context()


@program(lambda: (torch.randn(3),), breaks=2, steady=False)
def variable_made_inside(x):
    """A context variable made inside has no value until set, and is returned with its value."""
    made = contextvars.ContextVar("made")
    try:
        made.get()
    except LookupError as error:
        same = error.args[0] is made
    before = made.get(2)
    made.set(x)
    return x * before, same, made.get()


OF_THREAD = threading.local()
OF_THREAD.depth = 2


class Depths(threading.local):
    def __init__(self):
        self.names = []
        self.level = 0

    def push(self, name):
        self.names.append(name)
        self.level += 1


DEPTHS = Depths()


@program(lambda: (torch.randn(3),))
def data_of_the_thread(x):
    """Thread-local attributes are read, set, deleted and tested; subclass methods are inlined."""
    OF_THREAD.depth = OF_THREAD.depth * 2
    OF_THREAD.kept = x
    y = x * OF_THREAD.depth
    del OF_THREAD.kept
    OF_THREAD.depth = 2
    DEPTHS.push("a")
    y = y * DEPTHS.level
    DEPTHS.level = 0
    return y, DEPTHS.names.pop(), len(DEPTHS.names), hasattr(OF_THREAD, "kept"), getattr(OF_THREAD, "absent", 5)


@program(lambda: (torch.randn(3),))
def data_made_inside(x):
    """Thread-local data made inside is handed out."""
    data = threading.local()
    data.number = 3
    return x * data.number, data


class Holder:
    def __init__(self, number):
        self.number = number

    def __len__(self):
        return 4

    def scale(self, x):
        return x * self.number


HOLDER = Holder(3)
PROXY = weakref.proxy(HOLDER)
REFERENCE = weakref.ref(HOLDER)


@program(lambda: (torch.randn(3),), breaks=10)
def weak_proxies(x):
    """A weak proxy is read, written, called and measured like what it stands for."""
    PROXY.number = PROXY.number + 1
    y = PROXY.scale(x) + len(PROXY)
    other = weakref.proxy(HOLDER)
    PROXY.number = 3
    return y, isinstance(PROXY, Holder), other.number, other is PROXY, bool(PROXY)


@program(lambda: (torch.randn(3),))
def one_reference_for_each(x):
    """An object has one weak reference without a callback; each one with a callback is new."""
    called = weakref.ref(HOLDER, print)
    return x + 1, weakref.ref(HOLDER) is REFERENCE, called is REFERENCE, called() is HOLDER


def add(a, b, c=1):
    return a + b * c


class Named(functools.partial):
    pass


class Doubled(functools.partial):
    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs) * 2


class Labelled(functools.partial):
    def __new__(cls, function, *args, label="none", **kwargs):
        made = super().__new__(cls, function, *args, **kwargs)
        made.label = label
        return made


NAMED = Named(add, 2, c=3)
DOUBLED = Doubled(add, 2)


@program(lambda: (torch.randn(3),), breaks=9, steady=False)
def partial_subclasses(x):
    """Instances of ``partial`` subclasses, from outside or made inside, have own attributes."""
    made = Labelled(add, 1, c=2, label="mine")
    plain = functools.partial(add, 5)
    plain.note = 7
    return (
        NAMED(x),
        DOUBLED(x, c=4),
        made(x),
        made.label,
        NAMED.args,
        NAMED.keywords,
        plain(x) * plain.note,
        Doubled(add, 1),
    )


@program(lambda: (torch.randn(3),))
def annotations_read(x):
    """Annotations of functions and classes, as ``typing`` and ``inspect`` give them."""

    def count(table):
        return {name: kind is int for name, kind in table.items()}

    return (
        x + 1,
        count(typing.get_type_hints(_annotated)),
        count(inspect.get_annotations(_annotated)),
        inspect.getfullargspec(_annotated).args,
        list(typing.get_type_hints(_Annotated)),
    )


def _annotated(a: int, b: "str" = "q") -> float:
    raise NotImplementedError(a, b)


class _Annotated:
    a: int
    b: typing.Optional[str] = None


@program(lambda: (torch.randn(3),))
def states_of_a_generator(x):
    """The state of a generator of random numbers made inside is taken and put back."""
    made = random.Random(3)
    state = made.getstate()
    first = made.random()
    made.setstate(state)
    return x * first, made.random() == first, made.getstate()[0], made


@program(lambda: (torch.randn(3),), breaks=1)
def traceback_formatted(x):
    """A traceback in text names the line that raised."""
    try:
        raise ValueError("wrong")
    except ValueError:
        return x + 1, traceback.format_exc().splitlines()[-2:]


@program(lambda: (torch.randn(3),))
def exception_formatted(x):
    """The last line of a traceback, as text."""
    try:
        raise KeyError("wrong")
    except KeyError as error:
        return x + 1, traceback.format_exception_only(error)


EMPTIED = threading.local()


@program(lambda: (torch.ones(2),), steady=False)  # the second call finds the attribute that the first one set
def attributes_of_a_thread_deleted_through_its_dict(x):
    """Thread-local attributes are deleted through ``__dict__``, and another is set."""
    EMPTIED.old = 1
    del EMPTIED.__dict__["old"]
    EMPTIED.new = 2
    return x + 1, dict(EMPTIED.__dict__)
