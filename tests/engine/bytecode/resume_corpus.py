"""Functions of every kind of statement, to be split at each instruction.

``say`` is put among the globals.
"""
# ruff: noqa
# mypy: ignore-errors


def case_arithmetic(a=7, b=3, *rest, k=2, **words):
    c = a + b * k - a // b % 5**2
    c += a if a > b else b
    c -= -a + ~b
    d = not c
    e = a < b <= k or (c and d)
    f = a is b, a is not b, a in (1, 7), a not in [1]
    return c, d, e, f, rest, words, a @ 1 if 0 else a | b ^ k & 6 << 1 >> 1


def case_containers():
    a = [1, 2, *range(3)]
    b = {1, 2, *a}
    c = {"x": 1, **{"y": 2}, 3: a}
    d = (*a, 4)
    p, *q, r = d
    (s, t), u = (1, 2), 3
    a[0], a[1] = a[1], a[0]
    a[1:3] = [9, 8]
    del a[0], c["x"]
    e = a[::2], a[1:], f"{p!r:>5} {s} {len(a):03d}%d" % 3
    a[0] += 5
    return a, b, c, d, p, q, r, s, t, u, e


def case_loops():
    total = 0
    for i in range(6):
        if i == 1:
            continue
        for j in (1, 2, 3):
            if j > i:
                break
            total += i * j
        else:
            say("else", i)
        if i == 4:
            break
    else:
        say("never")
    n = 3
    while n:
        n -= 1
        if n == 1:
            continue
        say("while", n)
    else:
        say("done")
    while True:
        total += 1
        if total % 7 == 0:
            return total


def case_exceptions():
    seen = []
    for n in range(5):
        try:
            try:
                if n == 1:
                    raise ValueError("one")
                if n == 2:
                    [][n]
                if n == 3:
                    raise KeyError("three") from ValueError("cause")
                seen.append(n)
            except ValueError as error:
                seen.append(repr(error))
                raise TypeError("again") from error
            except IndexError:
                seen.append("index")
                continue
            else:
                seen.append("else")
            finally:
                say("finally", n)
        except (TypeError, KeyError) as outer:
            say(outer, outer.__cause__, outer.__context__)
    return seen


def case_handled():
    try:
        {}["missing"]
    except KeyError as first:
        say(first)
        try:
            int("x")
        except ValueError as second:
            say(second.__context__ is first)
            try:
                raise
            except ValueError as third:
                say(third is second)
        say("between")
        raise RuntimeError("last")
    finally:
        say("end")


def case_finally_returns():
    for i in range(3):
        try:
            if i == 2:
                return "try"
        finally:
            say(i)
            if i == 2:
                return "finally"


class Manager:
    def __init__(self, name, swallows=False):
        self.name, self.swallows = name, swallows

    def __enter__(self):
        say("enter", self.name)
        return self

    def __exit__(self, kind, error, traceback):
        say("exit", self.name, kind, str(error))
        return self.swallows


def case_with():
    with Manager("a") as a, Manager("b", True) as b:
        say(a.name, b.name)
        raise ValueError("swallowed")
    with Manager("c"):
        for i in range(2):
            with Manager(i):
                if i:
                    break
                say("in", i)
    with Manager("d"):
        return [m.name for m in (a, b)]


def case_with_raises():
    try:
        with Manager("outer"):
            with Manager("inner"):
                raise KeyError("k")
    except KeyError as error:
        return repr(error)


def case_comprehensions(x=3):
    a = [i * x for i in range(4) if i != 2]
    b = {i: j for i, j in enumerate(a)}
    c = {i % 2 for i in a}
    d = [[i + j for j in range(i)] for i in range(3)]
    e = sum(i for i in a)
    i = "kept"
    f = [i for i in a]
    return a, b, c, d, e, f, i


def case_cells_of_comprehensions(x=3):
    i = 5
    outer = lambda: i
    fs = [lambda: i + x for i in range(3)]
    gs = [lambda: i for i in range(2)]
    h = [sum(a * b for b in (1, 2)) for a in (3, 4)]
    return outer(), i, [f() for f in fs], [g() for g in gs], h, x


def case_closures(a=1, *args, k=2):
    def add(n, *, step=k):
        nonlocal a
        a += n * step
        return a

    first = add(2)
    second = add(3, step=1)
    third = (lambda q=first: q + a)()
    say(a)
    return first, second, third, a, [add(i) for i in range(2)]


class Base:
    kind = "base"

    def value(self, n, *, by=1):
        return n + by

    @property
    def half(self):
        return 0.5


class Derived(Base):
    def value(self, n, **words):
        return super().value(n, **words) * 2, super().kind


def case_calls():
    d = Derived()
    d.attribute = d.value(1)
    a = d.value(2, by=3), max(1, 2, key=lambda v: -v), print.__name__.upper().lower()
    words = {"by": 4}
    b = d.value(*(5,), **words), dict(a=1, **words), max(*[1, 2], 3)
    del d.attribute
    return a, b, d.half, hasattr(d, "attribute"), "-".join(str(v) for v in range(3))


def case_match():
    seen = []
    for subject in (1, "two", [3, 4, 5], {"k": 6, "l": 7}, (8,), Derived(), None, 9.5, []):
        match subject:
            case 1 | 2:
                seen.append("number")
            case str(text) if len(text) > 2:
                seen.append(text)
            case [first, *others] if others:
                seen.append((first, others))
            case {"k": k, **rest}:
                seen.append((k, rest))
            case (only,):
                seen.append(only)
            case Base(kind=kind):
                seen.append(kind)
            case None:
                seen.append("none")
            case []:
                seen.append("empty")
            case _:
                seen.append("other")
    return seen


def case_walrus_and_chains(x=10):
    if (n := x // 3) > 2 and (m := n + 1) < 10:
        y = 0 < n < m < 5
    else:
        y = None
    return y, n, m, [k for v in (1, 2) if (k := v * 2)], (x and None) or "default"


def case_globals_and_imports():
    global WRITTEN
    import os.path as path
    from math import floor, pi as circle

    WRITTEN = floor(circle)
    here = WRITTEN
    del WRITTEN
    assert here == 3, "three"
    try:
        WRITTEN
    except NameError as error:
        say(error)
    return here, path.join("a", "b")


def case_unbound():
    if say:
        x = 1
    del x
    try:
        return x
    except UnboundLocalError as error:
        say(error)
    y = 2
    for y in ():
        pass
    return y


def _numbers(n):
    try:
        for i in range(n):
            got = yield i
            if got:
                say("got", got)
        return "returned"
    finally:
        say("closed")


def _delegates():
    result = yield from _numbers(2)
    yield result


def case_generators():
    g = _numbers(3)
    a = next(g), g.send("x")
    g.close()
    b = [*_delegates()]
    for value in (v * 2 for v in _numbers(2)):
        say(value)
    return a, b


def case_makes_classes():
    class Made:
        x = 1

        def get(self):
            return __class__.x

    return Made().get(), Made.__qualname__


def case_many_variables(a=1):
    v0 = v1 = v2 = v3 = v4 = v5 = v6 = v7 = v8 = v9 = a
    w0 = w1 = w2 = w3 = w4 = w5 = w6 = w7 = w8 = w9 = v0 + v9
    y, z = w9, v1
    z, y = y, z
    fs = [lambda: q + z for q in (y, z)]
    return v0 + v1 + v2 + v3 + v4 + v5 + v6 + v7 + v8 + w0 + w1 + w2 + w3 + w4 + w5 + w6 + w7 + w8 + w9, [
        f() for f in fs
    ]


def case_exception_groups():
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError as group:
        say(group.exceptions)
    except* KeyError as group:
        say("keys", group.exceptions)
    return "after"
