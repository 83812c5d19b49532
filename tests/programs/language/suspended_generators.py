"""Exercise suspended generators: returned, resumed after a break, closed if unnamed."""

import contextlib
import functools
import itertools

import numpy as np
import torch

import engine
from tests.programs import program


def counted(x):
    number = 0
    yield x.sin() + number
    number += 1
    yield x.cos() + number
    number += 1
    yield x.tan() + number


@program(lambda: (torch.randn(3),))
def handed_out_half_way(x):
    """A generator that has begun is handed out where it waits, with its variables."""
    made = counted(x)
    first = next(made)
    return first, made


@program(lambda: (torch.randn(3),))
def handed_out_in_every_state(x):
    """New, half-way through ``yield from``, and at their end."""

    def outer(y):
        yield from counted(y)
        yield y

    new, waiting, done = counted(x), outer(x), counted(x)
    next(waiting)
    total = sum(done)
    return total, new, waiting, done


@program(lambda: (torch.randn(3),))
def shares_a_variable(x):
    """A returned generator shares its closure's variables with the function that made it."""
    number = 1

    def made():
        nonlocal number
        yield x * number
        number += 1
        yield x * number

    waiting = made()
    first = next(waiting)
    number = 10
    return first, waiting, lambda: number


@program(lambda: (torch.randn(3),))
def waits_in_a_handler(x):
    """Throwing into a returned generator that waits inside ``try`` finds the handler."""

    def made():
        try:
            yield x.sin()
        except KeyError as error:
            yield error.args[0]
        yield x.cos()

    waiting = made()
    next(waiting)
    return x + 1, waiting


@program(lambda: (torch.randn(3),), breaks=1)
def continued_after_a_break(x):
    """A graph ends while a generator is half-way: the rest of it goes on from there."""
    made = counted(x)
    y = next(made)
    engine.graph_break("here")
    return y + sum(made)


@program(lambda: (torch.randn(3),), breaks=1)
def left_half_way_after_a_break(x):
    """One that is still half-way when the rest of the function ends is asked by Python."""
    made = counted(x)
    y = next(made)
    engine.graph_break("here")
    return y + next(made)


@program(lambda: (torch.randn(3),), breaks=1)
def broken_inside(x):
    """A graph ends inside of a generator's body."""

    def made():
        yield x.sin()
        engine.graph_break("inside")
        yield x.cos()

    return sum(made())


@program(lambda: (torch.randn(3),), breaks=1)
def loop_with_breaks(x):
    """A graph ends in each round of a loop over a generator."""
    total = x * 0
    for row in counted(x):
        total = total + row
        print(total.shape)
    return total


@contextlib.contextmanager
def noted(log, name):
    log.append(f"enter {name}")
    try:
        yield name
    finally:
        log.append(f"leave {name}")


@program(lambda: (torch.randn(3),))
def left_by_break(x):
    """The generator of a loop that ends early is closed right after the loop."""
    log = []

    def made():
        with noted(log, "loop"):
            yield from range(5)

    for number in made():
        x = x + number
        if number == 2:
            break
    log.append("after")
    return x, log


@program(lambda: (torch.randn(3),))
def closed_at_the_end(x):
    """One that a variable holds is closed when the function ends, after its result was made."""
    log = []

    def made(name):
        try:
            yield x
            yield x
        finally:
            log.append((name, x + 1))

    def inside():
        waiting = made("inside")
        return next(waiting)

    kept = made("kept")
    y = next(kept) + inside()
    log.append("end")
    return y, len(log), log


@program(lambda: (torch.randn(3),))
def closed_after_use(x):
    """Builtins that stop early drop what they drew from."""
    log = []

    def made(count):
        try:
            yield from range(count)
        finally:
            log.append(count)

    found = any(n == 2 for n in made(5))
    log.append("a")
    found = found and 1 in made(4)
    log.append("b")
    pairs = list(zip(made(2), made(3), strict=False))
    log.append("c")
    taken = list(itertools.islice(made(6), 2))
    log.append("d")
    total = functools.reduce(lambda a, b: a + b + next(made(7)), [1, 2])
    log.append(next(made(8)))
    return x + total, found, pairs, taken, log


class Drawing:
    """An iterator whose generator holds it: only a search for cycles frees the two."""

    def __init__(self, log):
        self.log = log

    def __iter__(self):
        self.inner = self.numbers()
        return self

    def numbers(self):
        try:
            yield from range(3)
        finally:
            self.log.append("closed")

    def __next__(self):
        return next(self.inner)


@program(lambda: (torch.randn(3),))
def cycle_is_not_closed(x):
    """A generator that holds itself is not closed when the last other name goes."""
    left, used = [], []
    first = next(iter(Drawing(left)))
    count = len(left)
    largest = max(Drawing(used), key=lambda n: -n)
    return x + first, largest, count, used


@program(lambda: (torch.randn(3),))
def kept_by_an_exception(x):
    """What a function held that an exception left lives until the exception was handled."""
    log = []

    def made():
        try:
            yield 1
        finally:
            log.append("closed")

    def fails():
        waiting = made()
        next(waiting)
        raise ValueError("no")

    try:
        fails()
    except ValueError:
        log.append("caught")
    log.append("end")
    return x + 1, log


@program(lambda: (torch.randn(3),))
def thrown_in_three_ways(x):
    """An instance, a class, and a class with what an instance is made of."""

    def made():
        while True:
            try:
                yield "go on"
            except ValueError as error:
                yield error.args

    waiting = made()
    found = []
    for given in ((ValueError("a", 1),), (ValueError,), (ValueError, "b"), (ValueError, ("c", 2)), (ValueError, None)):
        next(waiting)
        found.append(waiting.throw(*given))
    return x + 1, found


class Coded(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code

    def __str__(self):
        return "told: " + super().__str__()


@program(lambda: (torch.randn(3),))
def own_text_of_an_exception(x):
    """``__str__`` of an exception can call the builtin; its line and traceback are kept."""
    try:
        raise Coded(4)
    except Coded as error:
        caught = error
        same = caught.__traceback__ is error.__traceback__
    return x + caught.code, str(caught), repr(caught), caught, same


@program(lambda: (torch.ones(1, 2, 3),), lambda: (torch.ones(2),), breaks=1)
def open_where_an_operation_fails(x):
    """A suspended generator stays usable after a torch operation raises or succeeds."""

    def numbers():
        yield 1
        yield 2

    log = []
    waiting = numbers()
    log.append(next(waiting))
    try:
        x = x.expand(2)
    except RuntimeError as error:
        log.append((type(error).__name__, getattr(error, "code", None)))
    return x + 1, log


CLOSED: list[str] = []


def tells_its_end():
    try:
        yield 1
        yield 2
    finally:
        CLOSED.append("closed")


@program(lambda: (torch.ones(2), False), lambda: (torch.ones(2), True), lambda: (torch.ones(2), True), breaks=1)
def left_beside_another(x, leaves):
    """A generator left early is released, though the code that follows makes another one."""
    for _ in tells_its_end():
        print(end="")
        if leaves:
            break
    waiting = counted(x)
    return next(waiting)


@program(lambda: (torch.ones(2), torch.ones(3)), lambda: (torch.ones(2), torch.ones(4)), breaks=1)
def open_where_an_error_leaves_the_call(x, other):
    """An unread generator is closed when a torch operation raises out of the call."""
    waiting = tells_its_end()
    next(waiting)
    x = x + 1
    x += other
    return x


@program(lambda: (torch.ones(2), {"a": 1}), lambda: (torch.ones(2), {"a": 1}), breaks=1, steady=False)
def closed_when_its_call_is_over(x, table):
    """The trace keeps no references: the next call finds the earlier generator closed."""
    before = len(CLOSED)
    waiting = tells_its_end()
    next(waiting)
    table.update(a=2)
    print(end="")
    return x + table["a"], before


@program(lambda: (torch.ones(2), {"a": 1}), lambda: (torch.ones(2), {"a": 1}), breaks=1, steady=False)
def closed_beside_a_caught_error(x, table):
    """A frame that an exception passed through is released when the call is over."""
    before = len(CLOSED)
    waiting = tells_its_end()
    next(waiting)
    try:
        table["b"]
    except KeyError as error:
        print(end=str(error)[:0])
    return x + table["a"], before


@program(lambda: (torch.ones(2), np.ones(3)), lambda: (torch.ones(2), np.ones(3)), breaks=4, steady=False)
def closed_beside_an_error_after_breaks(x, array):
    """A Python error after breaks ends with its handler, and its frames keep no references."""
    before = len(CLOSED)
    backwards = np.clip(array, -1, 1)[::-1].copy()
    waiting = tells_its_end()
    next(waiting)
    try:
        backwards.reshape(9, 9)
    except ValueError:
        x = x * 2
    return x + 1, before


def notes_its_end(count, log, name):
    try:
        yield from range(count)
    finally:
        log.append(name)


@program(lambda: (torch.randn(3), []), breaks=1)
def closed_before_the_handler(x, log):
    """An operator raises in two loops: the inner generator ends, the outer, the handler."""
    y = x.sin()
    try:
        for _ in notes_its_end(3, log, "outer"):
            for n in enumerate(notes_its_end(2, log, "inner")):
                y = y.reshape(3 - n[0])
    except RuntimeError:
        log.append("handler")
    return y, log
