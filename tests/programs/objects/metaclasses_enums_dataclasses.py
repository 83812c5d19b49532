"""Metaclasses, enums, dataclasses, descriptors, generators, patterns, attributes by name."""

import abc
import cmath
import collections
import copy
import dataclasses
import enum
import inspect
import itertools
import math
import typing
from typing import Generic, NamedTuple, Optional, Protocol, TypeVar, cast, runtime_checkable

import torch

from tests.programs import program


class Meta(type):
    def __len__(cls):
        return 4

    def __call__(cls, *a):
        o = super().__call__(*a)
        o.extra = 1
        return o

    def __instancecheck__(cls, o):
        return hasattr(o, "quack")

    def __contains__(cls, v):
        return v == 3

    def __iter__(cls):
        return iter([1, 2])

    def __getitem__(cls, k):
        return k * 2

    def __getattr__(cls, n):
        return n.upper()

    @property
    def prop(cls):
        return 11


class Duck(metaclass=Meta):
    def __init__(self, v=1):
        self.v = v


class Quacker:
    quack = True


@program(lambda: (torch.randn(3),))
def metaclass(x):
    """A metaclass gives a class a length, items, calls, attributes and instances."""
    d = Duck(5)
    return (
        x * len(Duck),
        d.extra,
        d.v,
        isinstance(Quacker(), Duck),
        isinstance(3, Duck),
        3 in Duck,
        list(Duck),
        Duck[4],
        Duck.foo,
        Duck.prop,
    )


class Color(enum.Enum):
    RED = 1
    GREEN = 2

    @property
    def pretty(self):
        return self.name.title()

    def times(self, x):
        return x * self.value

    @classmethod
    def default(cls):
        return cls.GREEN


class Perm(enum.Flag):
    R = 4
    W = 2
    X = 1


class Part(enum.Enum):
    """An enum whose members hold state, and whose methods have effects."""

    HEAD = [1]
    TAIL = [2]

    def __init__(self, value):
        self.seen = []

    @classmethod
    def pick(cls, number):
        CALLS.append(number)
        return cls.TAIL

    @staticmethod
    def note(number):
        CALLS.append(-number)
        return len(CALLS)

    @property
    def size(self):
        CALLS.append(self.name)
        return len(CALLS)

    def __iter__(self):
        yield from self.value


CALLS: list[object] = []


@program(lambda: (torch.randn(3), [Part.HEAD.value, Part.HEAD.seen, CALLS]))
def enum_methods_with_effects(x, watched):
    """Methods and properties of enum members run at each call; what members hold is shared."""
    member = Part.HEAD
    del CALLS[:], member.value[1:], member.seen[:]
    picked = member.pick(3)
    member.value.append(member.note(4) + member.size)
    member.seen.append(x)
    return x * len(CALLS), picked, list(member), [len(part) for part in watched], Part.pick(5), list(CALLS)


@program(lambda: (torch.randn(3), Perm.R | Perm.X), lambda: (torch.randn(3), Perm.W))
def flag_members(x, flags):
    """Iteration over the bits of a flag."""
    for flag in flags:
        x = x + flag.value
    return x, list(flags), [*(flags | Perm.W)], next(iter(flags)), list(Perm(0)), {f.name for f in flags}


class Lvl(enum.IntEnum):
    LO = 1
    HI = 5


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),))
def enums(x):
    """Members, aliases, flags and methods of enumerations."""
    c = Color.RED
    p = Perm.R | Perm.W
    return (
        c.times(x),
        c.name,
        c.value,
        c.pretty,
        Color(2) is Color.GREEN,
        Color["RED"],
        [m.name for m in Color],
        Perm.R in p,
        p & Perm.R,
        ~p,
        bool(p & Perm.X),
        Lvl.HI + 1,
        Lvl.HI > Lvl.LO,
        x * Lvl.HI,
        c == Color.RED,
        {Color.RED: 1}[c],
        Color.default(),
        len(Color),
        isinstance(c, Color),
        p.value,
        str(c),
        repr(p),
        f"{Lvl.LO}",
    )


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: float = 2.0


@dataclasses.dataclass
class Conf:
    n: int
    items: list = dataclasses.field(default_factory=list)
    total: int = dataclasses.field(init=False, default=0)

    def __post_init__(self):
        self.total = self.n * 2


@dataclasses.dataclass(slots=True)
class Slotted:
    x: torch.Tensor
    k: int = 3


@dataclasses.dataclass(order=True)
class Ord:
    a: int
    b: int = 0


@program(lambda: (torch.randn(3),))
def dataclass_all(x):
    """Frozen, slotted, ordered data classes, with factories and __post_init__."""
    f = Frozen(3)
    g = dataclasses.replace(f, b=5.0)
    c = Conf(4)
    c.items.append(x)
    s = Slotted(x)
    s.k += 1
    err = None
    try:
        f.a = 4
    except dataclasses.FrozenInstanceError as e:
        err = type(e).__name__
    return (
        x * f.a * g.b,
        c.total,
        len(c.items),
        s.x * s.k,
        err,
        f == Frozen(3),
        hash(f) == hash(Frozen(3)),
        Ord(1, 2) < Ord(1, 3),
        sorted([Ord(3), Ord(1)])[0].a,
        dataclasses.asdict(g),
        dataclasses.astuple(g),
        [q.name for q in dataclasses.fields(c)],
        repr(f),
        f,
        c,
        s,
    )


Pair2 = collections.namedtuple("Pair2", "x y", defaults=[5])


class Named3(NamedTuple):
    a: int
    b: int = 3

    def total(self):
        return self.a + self.b


@program(lambda: (torch.randn(3),))
def namedtuples(x):
    """Both kinds of named tuple, and their methods."""
    p = Pair2(x)
    q = p._replace(y=7)
    n = Named3(1)
    a, b = q
    return (
        p.x * p.y,
        q._asdict(),
        q._fields,
        n.total(),
        n,
        Pair2._make([1, 2]),
        a * b,
        n == (1, 3),
        n[0],
        n._field_defaults,
        repr(n),
        Named3(b=1, a=2),
    )


class Holder:
    def __init__(self, v):
        self.v = v
        self.l = [1]


H = Holder(2)


@program(lambda: (torch.randn(3),))
def copy_objects(x):
    """copy and deepcopy of plain objects, new and old."""
    h = Holder(x)
    g = copy.copy(h)
    g.l.append(2)
    e = copy.deepcopy(h)
    e.l.append(5)
    f = copy.copy(H)
    f.v = 10
    k = copy.deepcopy(H)
    k.l.append(7)
    return h.l, e.l, g.v * 2, e.v, f.v, H.v, k.l, H.l


def helper(a, b=2, *args, c, d=4, **kw):
    return a


@program(lambda: (torch.randn(3),))
def signature(x):
    """Parameters of functions, outside and made inside."""
    s = inspect.signature(helper)
    names = list(s.parameters)
    kinds = [p.kind.name for p in s.parameters.values()]
    defaults = {k: p.default for k, p in s.parameters.items() if p.default is not inspect.Parameter.empty}

    def inner(q, r=1):
        return q

    si = inspect.signature(inner)
    return (
        x,
        names,
        kinds,
        sorted(defaults),
        list(si.parameters),
        inspect.isfunction(helper),
        inspect.isclass(Holder),
        "c" in s.parameters,
        inspect.ismethod(helper),
        callable(helper),
    )


@program(lambda: (torch.randn(3),))
def strings(x):
    """String methods and all ways of formatting."""
    n = 42
    f = 3.14159
    name = "abc"
    return (
        x,
        f"{n:05d} {f:.2f} {name!r:>10} {name:^9} {n:#x} {n:,} {f:e} {n=}",
        "{:>{w}} {k}".format(n, w=6, k=1),
        "%d %s %.1f" % (n, name, f),
        "%(a)s" % {"a": 1},
        name.upper().center(9, "*"),
        " a b ".split(),
        "a-b-c".rsplit("-", 1),
        name.encode(),
        name.replace("a", "z"),
        name.startswith(("a", "b")),
        "x".join(["1", "2"]),
        name[::-1],
        name.find("c"),
        "abc".translate(str.maketrans("a", "b")),
        "Ab".swapcase(),
        "a\nb".splitlines(),
        "k=v".partition("="),
        name.zfill(6),
        "12".isdigit(),
        name.removeprefix("a"),
        "{0.real}".format(3),
        name * 2,
        "b" in name,
        sorted(name),
        [ord(c) for c in name],
        chr(97),
        name < "abd",
        max(name),
        list(enumerate(name)),
        "ß".casefold(),
        "a,b".count(","),
        "tab\t".expandtabs(4),
        "hello world".title(),
        f"{x.shape}",
        f"{x.dtype}",
        str(x.shape),
        f"{tuple(x.shape)}",
        "{}".format(x.shape[0]),
        f"{x.ndim:>3}",
        "{a[0]} {b.real}".format(a=[1, 2], b=3),
        format(f, ".3f"),
        f"{[1, 2]!r}",
        f"{ {'a': 1} }",
        "{x}".format_map({"x": 1}),
        ascii("é"),
        repr([1, (2,)]),
    )


@program(lambda: (torch.randn(3),))
def mathematics(x):
    """math and cmath."""
    return (
        x * math.sqrt(2),
        math.sin(1.0),
        math.comb(5, 2),
        math.hypot(3, 4),
        math.fsum([0.1] * 3),
        math.modf(2.5),
        math.frexp(8.0),
        math.isqrt(17),
        math.lcm(4, 6),
        math.dist((0, 0), (3, 4)),
        math.perm(5),
        math.nan != math.nan,
        math.tau,
        math.copysign(1, -2),
        math.trunc(-2.5),
        math.fmod(5, 3),
        math.erf(0.5),
        math.gamma(5),
        math.degrees(math.pi),
        cmath.sqrt(-1),
        cmath.phase(1j),
        cmath.polar(1 + 1j),
        cmath.exp(1j),
        math.log(8, 2),
        math.factorial(5),
        (1 + 2j).conjugate(),
        abs(3 + 4j),
        math.floor(x.shape[0] / 2),
        math.exp(1),
        math.ldexp(1.0, 3),
    )


@program(lambda: (torch.randn(3),))
def numbers_in_depth(x):
    """Methods of numbers."""
    n = 37
    f = 2.75
    return (
        x * n.bit_length(),
        n.bit_count(),
        n.to_bytes(2, "big"),
        int.from_bytes(b"\x01\x02", "big"),
        f.is_integer(),
        f.as_integer_ratio(),
        f.hex(),
        float.fromhex("0x1p3"),
        int("ff", 16),
        int("0b11", 0),
        float("inf"),
        round(f, 1),
        round(n, -1),
        divmod(n, 5),
        pow(2, 5, 7),
        n.numerator,
        f.real,
        n.conjugate(),
        hex(n),
        bin(n),
        oct(n),
        n // 5,
        -n // 5,
        -n % 5,
        n ^ 3,
        ~n,
        n << 2,
        int(2.9),
        float(3),
        bool([]),
        complex(1, 2),
        True + 1,
        int.__add__(1, 2),
        n.__add__(3),
        (5).__class__.__name__,
        n.real,
    )


@program(lambda: (torch.randn(3),))
def sorting_in_depth(x):
    """Order by key, in reverse, of tuples."""
    d = {"b": 2, "a": 1}
    l = [3, 1, 2]
    l.sort(reverse=True)
    return (
        x,
        sorted(d),
        sorted(d.items(), key=lambda kv: kv[1]),
        sorted([3, 1, 2], reverse=True),
        l,
        sorted(["b", "A"], key=str.lower),
        max(d, key=d.get),
        min([3, 1], default=0),
        max(3, 1, 2),
        max("a", "bb", key=len),
        sorted([(1, "b"), (1, "a")]),
        list(reversed([1, 2])),
        sorted([x.sum().shape, (1,)]),
        sum([[1], [2]], []),
        min((2, 1), (1, 2)),
        sorted({3, 1, 2}),
        sorted([1.5, 1, True]),
    )


@program(lambda: (torch.randn(3),))
def dict_views(x):
    """Views of dicts, and set operations on them."""
    a = {"a": 1, "b": 2}
    b = {"b": 3, "c": 4}
    k = a.keys()
    v = a.values()
    it = a.items()
    a["z"] = 9
    return (
        x,
        sorted(k & b.keys()),
        sorted(k | b),
        sorted(a.keys() - b.keys()),
        sorted(k ^ b.keys()),
        ("a", 1) in it,
        k == {"a", "b", "z"},
        list(v),
        len(it),
        k.isdisjoint({"q"}),
        a.keys() <= a.keys(),
        list(reversed(a)),
        list(reversed(a.items())),
        a | b,
        {k2: v2 for k2, v2 in it},
        sorted(a.items() & {("a", 1)}),
        list(a.items())[0],
        dict.fromkeys("ab", 0),
        a.setdefault("q", 5),
        a.pop("q"),
        a.pop("nope", None),
        a == {"a": 1, "b": 2, "z": 9},
        list(k),
        set(k),
        max(a.values()),
        a.popitem(),
    )


@program(lambda: (torch.randn(3),))
def slice_objects(x):
    """Slices and ranges as objects."""
    s = slice(None, -1, 2)
    return (
        x[s],
        s.indices(10),
        s.start,
        s.stop,
        s.step,
        [1, 2, 3, 4][s],
        "abcd"[s],
        slice(1, 3) == slice(1, 3),
        range(10)[s],
        range(10)[2],
        list(range(10)[::-3]),
        range(3).index(2),
        5 in range(0, 10, 5),
        range(5).count(2),
        len(range(0, 10, 3)),
        range(3) == range(0, 3),
        range(2, 8).start,
        (1, 2, 3)[s],
        x[..., None][slice(0, 2)],
    )


class Bag:
    kind = "bag"

    def __init__(self):
        self.a = 1


BAG = Bag()


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),))
def dynamic_attrs(x):
    """Attributes by name: set, deleted, listed."""
    b = Bag()
    setattr(b, "q", x)
    delattr(b, "a")
    for n in ("u", "v"):
        setattr(b, n, len(n))
    d = vars(b)
    names = sorted(n for n in dir(b) if not n.startswith("_"))
    return (
        b.q,
        sorted(d),
        hasattr(b, "a"),
        names,
        getattr(b, "zzz", 3),
        type(b).__name__,
        type(b) is Bag,
        b.__class__ is Bag,
        b.__dict__["q"] * 2,
        getattr(BAG, "a"),
        vars(BAG)["a"],
        isinstance(b, object),
    )


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),))
def dict_write(x):
    """Attributes written through __dict__."""
    b = Bag()
    b.__dict__["z"] = 4
    b.__dict__.update(w=x)
    BAG.__dict__["t"] = 5
    return b.z, b.w, BAG.t


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),))
def id_memo(x):
    """Objects told apart by id."""
    memo = {}
    layers = [BAG, Bag(), BAG]
    for l in layers:
        memo[id(l)] = memo.get(id(l), 0) + 1
    return x * len(memo), sorted(memo.values())


def gen(x):
    got = yield x
    try:
        while True:
            got = yield (got or 0) + 1
    except ValueError:
        yield "caught"
    finally:
        LOG.append("closed")


LOG = []


@program(lambda: (torch.randn(3),), steady=False)
def generators(x):
    """send, throw, close, yield from."""
    g = gen(x)
    a = next(g)
    b = g.send(5)
    c = next(g)
    d = g.throw(ValueError("q"))
    g.close()

    def outer():
        r = yield from inner()
        yield r

    def inner():
        yield 1
        return 9

    gg = (v * 2 for v in [1, 2, 3] if v > 1)
    h = gen(x)
    next(h)
    h.close()
    return (
        a,
        b,
        c,
        d,
        list(outer()),
        list(gg),
        list(LOG),
        sum(v for v in range(4)),
        dict((k, v) for k, v in zip("ab", [1, 2])),
        tuple(outer()),
        [*outer()],
        max(v for v in [1, 2]),
    )


@program(lambda: (torch.randn(3),))
def generator_infinite(x):
    """Generators without end."""

    def nat():
        n = 0
        while True:
            yield n
            n += 1

    total = x
    for n in nat():
        if n > 3:
            break
        total = total + n
    it = nat()
    first = [next(it) for _ in range(3)]
    z = list(zip(nat(), "abc"))
    e, *r = itertools.islice(nat(), 4)
    return total, first, z, e, r


@dataclasses.dataclass
class Pt:
    x: object
    y: int


class CMD(enum.Enum):
    GO = 1
    STOP = 2


def describe(v):
    match v:
        case 0 | 1:
            return "small"
        case int(n) if n > 100:
            return f"big {n}"
        case -1:
            return "neg"
        case str() as s:
            return s.upper()
        case []:
            return "empty"
        case [a]:
            return ("one", a)
        case [a, b, *rest]:
            return ("many", a, b, rest)
        case {"k": val, **others}:
            return (val, others)
        case Pt(x=0, y=yy):
            return ("zero", yy)
        case Pt(a, b):
            return ("pt", b)
        case CMD.GO:
            return "go"
        case None:
            return "none"
        case torch.Tensor():
            return v * 2
        case float() | complex():
            return "num"
        case _:
            return "other"


@program(lambda: (torch.randn(3),))
def matching(x):
    """Every kind of pattern."""
    return [
        describe(v)
        for v in (
            0,
            500,
            -1,
            "hi",
            [],
            [1],
            (1, 2, 3, 4),
            {"k": 1, "z": 2},
            Pt(0, 3),
            Pt(1, 2),
            CMD.GO,
            CMD.STOP,
            None,
            2.5,
            {1},
            True,
            {"q": 1},
        )
    ]


@program(lambda: (torch.randn(3),))
def unpacking(x):
    """Stars on both sides."""
    a, *b, c = [x, 1, 2, x + 1]
    (d, (e, *f)), g = ("p", (1, 2, 3)), 4
    (*h,) = "abc"

    def f2(*args, k=1, **kw):
        return (args, k, kw)

    l = [1, 2]
    return (
        a + c,
        b,
        d,
        e,
        f,
        h,
        f2(*l, *range(2), k=3, **{"z": 1}, **{"w": 2}),
        [*l, *b],
        {*l, *b},
        (*l, 1),
        {**{"a": 1}},
        print.__name__,
        (lambda *a, **k: (a, k))(*l, q=1),
    )


CNT = 0
STATE = {"n": 0}


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), steady=False)
def scope(x):
    """global, nonlocal, walrus, closures in loops."""
    global CNT
    CNT += 1
    n = 0

    def inc(by=1):
        nonlocal n
        n += by
        return n

    inc()
    inc(3)
    STATE["n"] += 1
    if (y := x.sum()).ndim == 0 and 0 < n <= 4 < 5:
        x = x + n
    vals = [last := v for v in range(3)]
    fs = [lambda i=i: i for i in range(3)]
    gs = [lambda: i for i in range(3)]
    return x, y, n, CNT, vals, last, [f() for f in fs], [g() for g in gs], 1 < 2 < 3, 1 < 2 > 3, not 1 in [2]


class Sl:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Sub(Sl):
    __slots__ = ("c",)


class Reg:
    known = []

    def __init_subclass__(cls, tag=None, **kw):
        cls.tag = tag
        Reg.known.append(cls.__name__)

    def __class_getitem__(cls, k):
        return (cls.__name__, k)


class R1(Reg, tag="one"):
    pass


class Named:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, o, t=None):
        return self if o is None else getattr(o, self.name, 42)

    def __set__(self, o, v):
        setattr(o, self.name, v * 2)


class UsesNamed:
    f = Named()


@program(lambda: (torch.randn(3),))
def class_protocols(x):
    """Slots, __init_subclass__, __class_getitem__, __set_name__."""
    s = Sub(x)
    s.b = 2
    s.c = 3
    missing = hasattr(Sl(1), "b")
    err = None
    try:
        Sl(1).zzz = 3
    except AttributeError as e:
        err = str(e)
    u = UsesNamed()
    before = u.f
    u.f = 4
    return s.a * s.b * s.c, missing, err, R1.tag, Reg[int], before, u.f, u._f, Sl.__slots__, s


@program(lambda: (torch.randn(3),))
def slots_error(x):
    """A slot that was never filled."""
    s = Sl(1)
    try:
        return s.b
    except AttributeError as e:
        return str(e), x


def generic_class():
    element = TypeVar("element")

    class Box(Generic[element]):
        def __init__(self, v: element):
            self.v = v

        def get(self) -> element:
            return self.v

    return Box


Box = generic_class()


class Shape(Protocol):
    def area(self) -> float: ...


@runtime_checkable
class HasGo(Protocol):
    def go(self): ...


class Goer:
    def go(self):
        return 1


class Abs(abc.ABC):
    @abc.abstractmethod
    def f(self): ...
    @property
    @abc.abstractmethod
    def p(self): ...


class Con(Abs):
    def f(self):
        return 3

    @property
    def p(self):
        return 4


@program(lambda: (torch.randn(3),))
def typings(x):
    """typing at run time: generics, protocols, abstract classes."""
    b = Box[int](x)
    c = Box[int](3)
    y: Optional[int] = cast(int, 3)
    err = None
    try:
        Abs()
    except TypeError as e:
        err = str(e)
    return (
        b.get() * y,
        c.get(),
        isinstance(Goer(), HasGo),
        isinstance(3, HasGo),
        Con().f() + Con().p,
        isinstance(Con(), Abs),
        err,
        isinstance(3, (int, str)),
        isinstance(3, int | str),
        list[int] == list[int],
        Optional[int] is Optional[int],
        isinstance([1], collections.abc.Sequence),
        isinstance({}, typing.Mapping),
        isinstance(x, typing.Hashable),
    )


class Results(collections.OrderedDict):
    """A dict whose items are attributes too, as results of models often are."""

    def __setattr__(self, name, value):
        super().__setitem__(name, value)
        super().__setattr__(name, value)


def results():
    """One made outside, with one entry."""
    made = Results()
    made.first = torch.ones(2)
    return made


@program(lambda: (results(), torch.randn(2)), lambda: (results(), torch.randn(2)), breaks=1)
def results_written(found, x):
    """A dict of attributes mutated around a break is one object with its contents to guards."""
    found.second = x * 2
    print("written")
    found.third = found["second"] + found.first
    return found, list(found), found.third


class Labelled:
    """An object with attributes whose names no code can write after a dot."""

    def __init__(self):
        setattr(self, "learning rate", 0.5)
        self.__dict__["class"] = 3


@program(lambda: (Labelled(), torch.randn(2)), lambda: (Labelled(), torch.randn(3)))
def attributes_with_any_name(given, x):
    """Attributes may have any text as a name; they are guarded by it."""
    return x * getattr(given, "learning rate") + getattr(given, "class")


class Activation(enum.Enum):
    SIGMOID = "sigmoid"
    TANH = "tanh"

    @property
    def function(self):
        return getattr(torch, self.value)

    @staticmethod
    def doubled(x):
        return x * 2

    def __call__(self, x, *, scale=1.0):
        return self.function(x) * scale


@program(lambda: (torch.randn(3),))
def functions_of_enum_members(x):
    chosen = Activation("sigmoid")
    return chosen.function(x), chosen.doubled(x), [a(x, scale=0.5) for a in Activation]


class Calls:
    def one(self):
        return 1

    def two(self):
        return 2


@program(lambda: (torch.randn(3), Calls(), Calls()), lambda: (torch.randn(4), *[Calls()] * 2))
def equal_bound_methods(x, first, second):
    """Bound methods are equal with the same object and function; sizes hash as numbers."""
    both = [first.one, second.two]
    return (
        x + (first.one == first.one),
        (first.one == second.one, first.one != second.one, first.one == first.two, first.one == 3),
        (second.one in both, second.two in both, both.index(second.two), Calls().one == Calls().one),
        hash(len(x)) == hash(x.shape[0]),
    )
