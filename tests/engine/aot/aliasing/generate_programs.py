"""Generate programs that alias and mutate tensors in every way, from a seed.

A program is the text of the inputs, of the function, and of what its caller does.
"""

from __future__ import annotations

import linecache
import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from tests.engine.aot.aliasing import program_features
from tests.torch_internals import TwoTensor

Kind = Literal["plain", "sizes", "wrapped"]
"""``sizes``: input sizes grow with ``k``; ``wrapped``: some inputs are subclasses."""

MAX_ELEMENTS = 64
NAMES = "abcdefgh"


def two_tensor(t: torch.Tensor) -> torch.Tensor:
    """Wrap ``t`` and its double in a tensor subclass, keeping ``requires_grad``.

    The double is ``t * 2``.
    """
    made: torch.Tensor = TwoTensor(t.detach(), t.detach() * 2)
    return made.requires_grad_() if t.requires_grad else made


@dataclass(frozen=True)
class Case:
    """One program: ``inputs`` makes the arguments, ``after`` is what the caller does.

    ``apart`` makes the same arguments without shared memory.
    """

    seed: int
    inputs: str
    body: str
    after: str
    kind: Kind = "plain"
    backward: str = "once"
    """One of ``alias_wider.BACKWARDS``."""

    @property
    def text(self) -> str:
        """All of it, for a person."""
        return f"# case {self.seed} {self.kind}, backward {self.backward}\n{self.inputs}\n{self.body}\n{self.after}"

    def functions(self, copy: str) -> dict[str, Any]:
        """Return ``make()``, ``program(*args)`` and ``after(args, kept, result)`` as functions.

        They live in a namespace of their own.
        """
        file = f"<alias case {self.seed} {copy}>"
        linecache.cache[file] = (len(self.text), None, self.text.splitlines(keepends=True), file)
        namespace = _namespace()
        exec(compile(self.text, file, "exec"), namespace)
        return namespace


@dataclass
class _ProgramScope:
    """Track the values alive while a program is written.

    Every value is real, so that each step is known to be possible.
    """

    rng: random.Random
    values: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    count: int = 0
    raised: bool = False
    is_wider: bool = False

    def tensors(self) -> list[str]:
        return [n for n, v in self.values.items() if isinstance(v, torch.Tensor)]

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def pick(self, among: list[str] | None = None) -> str:
        return self.rng.choice(among or self.tensors())

    def attempt(self, line: str, indent: str = "") -> bool:
        """Run one statement; keep it when it can be run, and now and then when it raises."""
        scope = dict(self.values)
        space = _namespace()
        if _grows(line, scope) or _mixes(line, scope):
            return False
        try:
            exec(line, space, scope)
        except Exception:
            if self.rng.random() < 0.02:
                self.lines.append(indent + line)
                self.raised = True
                return True
            return False
        if any(isinstance(v, torch.Tensor) and v.numel() > MAX_ELEMENTS for v in scope.values()):
            return False
        self.values = {k: v for k, v in scope.items() if isinstance(v, (torch.Tensor, tuple, list))}
        self.lines.append(indent + line)
        return True


def _namespace() -> dict[str, Any]:
    return {"torch": torch, "F": torch.nn.functional, "two": two_tensor, **program_features.NAMES}


def _grows(line: str, values: dict[str, Any]) -> bool:
    """Return whether a resize gives a tensor more elements than its storage holds.

    The contents of the extra elements are undefined. The parts of a subclass have storages of their own.
    """
    name, resizes, _ = line.partition(".resize_(2)")
    held = values.get(name)
    parts = (held.a, held.b) if isinstance(held, TwoTensor) else (held,)
    return bool(resizes) and any(
        isinstance(t, torch.Tensor) and t.untyped_storage().nbytes() < (t.storage_offset() + 2) * t.element_size()
        for t in parts
    )


def _mixes(line: str, values: dict[str, Any]) -> bool:
    """Return whether ``.data`` is assigned across a plain tensor and a subclass.

    Using such a tensor may end the process.
    """
    name, gives, other = line.partition(".data = ")
    return bool(gives) and type(values.get(name)) is not type(values.get(other))


SHAPES = ["(4,)", "(3, 4)", "(2, 3)", "(1, 4)", "(2, 2, 3)", "()", "(4, 4)", "(0, 3)", "(2, 3, 2, 2)", "(6,)", "(1,)"]
SHAPE_WEIGHTS = [4, 6, 4, 2, 2, 1, 4, 1, 1, 3, 1]


def _root(r: random.Random, kind: Kind) -> str:
    text = _plain_root(r)
    if kind != "wrapped" or r.random() < 0.3:
        return text
    if text.endswith(" * 1.5"):
        return f"two({text.removesuffix(' * 1.5')}) * 1.5"
    return f"two({text})"


def _plain_root(r: random.Random) -> str:
    shape = r.choices(SHAPES, SHAPE_WEIGHTS)[0]
    kind = r.choices(
        ["plain", "leaf", "made", "channels", "strided", "complex", "int", "bool", "double", "parameter", "expanded"],
        [12, 5, 5, 1, 2, 1, 2, 1, 1, 1, 1],
    )[0]
    text = f"torch.randn({shape}, generator=g)"
    match kind:
        case "plain":
            return text
        case "leaf":
            return f"{text}.requires_grad_()"
        case "made":
            return f"{text}.requires_grad_() * 1.5"
        case "channels":
            return "torch.randn((2, 3, 2, 2), generator=g).to(memory_format=torch.channels_last)"
        case "strided":
            return r.choice(["torch.randn((4, 3), generator=g).t()", "torch.randn((4, 6), generator=g)[:, ::2]"])
        case "complex":
            return f"torch.randn({shape}, generator=g, dtype=torch.complex64)"
        case "int":
            return f"torch.randint(0, 9, {shape}, generator=g)"
        case "bool":
            return f"torch.randn({shape}, generator=g) > 0"
        case "double":
            return f"torch.randn({shape}, generator=g, dtype=torch.float64)"
        case "parameter":
            return f"torch.nn.Parameter({text})"
        case _:
            return r.choice(["torch.randn((1, 4), generator=g).expand(3, 4)", "torch.randn((), generator=g).expand(4)"])


def _inputs(r: random.Random, kind: Kind, *, is_wider: bool) -> _ProgramScope:
    """One to four arguments over one to three memories, in every pattern of sharing."""
    scene = _ProgramScope(r)
    scene.values = {}
    space = {"g": torch.Generator().manual_seed(1)}
    made = _ProgramScope(r, {"g": space["g"]})  # type: ignore[dict-item]
    roots = r.choices([1, 2, 3], [5, 4, 2])[0]
    for n in range(roots):
        text = _root(r, kind)
        _define(made, f"s{n} = {text}")
        if is_wider and r.random() < 0.3:  # a view of what needs a gradient, or complex numbers that do
            forms = [f"{text}.requires_grad_() * 1.5"]
            if kind != "wrapped":  # the subclass drops what it is told of conjugates
                forms += [f"torch.complex({text}, {text}).requires_grad_()", f"{text}.cfloat().requires_grad_() * 2j"]
            _define(made, f"s{n} = {r.choice(forms)}")
    if not made.tensors():
        _define(made, "s0 = torch.ones(4)")
    for n in range(r.choices([0, 1, 2, 3], [4, 4, 3, 1])[0]):
        for _ in range(4):
            if _define(made, f"w{n} = {_view(r, made, made.pick())}"):
                break
    pool = made.tensors()
    count = r.choices([1, 2, 3, 4], [4, 6, 4, 2])[0]
    chosen = [r.choice(pool) for _ in range(count)]
    lines = ["def make(k=0):", "    g = torch.Generator().manual_seed(1)", *(f"    {line}" for line in made.lines)]
    lines.append(f"    return ({''.join(f'{c}, ' for c in chosen)}), ({''.join(f'{p}, ' for p in pool)})")
    scene.lines = lines
    return scene


def _define(scene: _ProgramScope, line: str) -> bool:
    scope = dict(scene.values)
    try:
        exec(line, {"torch": torch, "two": two_tensor}, scope)
    except Exception:
        return False
    new = line.split(" = ", 1)[0]
    if not isinstance(scope[new], torch.Tensor) or scope[new].numel() > MAX_ELEMENTS:
        return False
    scene.values = scope
    scene.lines.append(line)
    return True


def _view(r: random.Random, s: _ProgramScope, x: str) -> str:
    """An expression for another view of what ``x`` sees (which may turn out to be impossible)."""
    t = s.values[x]
    n = t.dim()
    d = r.randrange(max(n, 1))
    forms = [
        (f"{x}[1:]", 3), (f"{x}[0]", 3), (f"{x}[..., 0]", 1), (f"{x}[::2]", 1), (f"{x}.t()", 3), (f"{x}.view(-1)", 4),
        (f"{x}.reshape(-1)", 2), (f"{x}.transpose(0, -1)", 2), (f"{x}.unsqueeze({d})", 2), (f"{x}.squeeze()", 1),
        (f"{x}.squeeze(0)", 1), (f"{x}.expand(2, *{x}.shape)", 1), (f"{x}.narrow({d}, 0, 1)", 1), (f"{x}.select({d}, -1)", 1),
        (f"{x}.diagonal()", 2), (f"{x}.as_strided((2,), (1,), 1)", 1), (f"{x}.as_strided((2, 2), (1, 1))", 1), (f"{x}.as_strided((3,), (1,))", 1),
        (f"{x}.detach()", 4), (f"{x}.data", 1), (f"{x}.view_as({x})", 2), (f"{x}.unfold(0, 2, 1)", 1), (f"{x}.flatten()", 1),
        (f"{x}.view(torch.int32)", 1), (f"torch.view_as_real({x})", 1), (f"{x}.real", 1), (f"{x}[:]", 2), (f"{x}[None]", 1),
        (f"{x}.contiguous()", 1), (f"{x}.to({t.dtype})", 1), (f"{x}.permute({', '.join(map(str, reversed(range(n))))})", 1),
        (f"{x}.movedim(0, -1)", 1), (f"{x}.expand_as({x})", 1), (f"{x}.unbind(0)[0]", 1), (f"{x}.split(1)[-1]", 1), (f"{x}.chunk(2)[0]", 1),
        (f"{x}.view({', '.join(map(str, t.shape))})", 1), (f"torch.atleast_2d({x})", 1), (f"{x}.mT", 1),
        (f"{x}.unflatten(0, (-1, 1))", 1), (f"{x}.swapaxes(0, -1)", 1), (f"torch.ops.aten.alias({x})", 1), (f"{x}[1:2]", 1),
        (f"{x}.view(torch.complex64)", 1), (f"{x}.imag", 1), (f"{x}.hsplit(2)[1]", 1), (f"{x}.view(torch.uint8)", 1),
    ]  # fmt: skip
    return r.choices([f for f, _ in forms], [w for _, w in forms])[0]


def _pure(r: random.Random, s: _ProgramScope, x: str) -> str:
    y = s.pick()
    forms = [
        f"{x} + 1", f"{x} * 2", f"{x} * {y}", f"{x} + {y}", f"{x}.sin()", f"{x}.clone()", f"{x}.exp()", f"{x}.relu()",
        f"torch.cat([{x}, {y}])", f"{x}.sum()", f"{x} @ {y}", f"{x}.float()", f"{x}.double()", f"torch.where({x} > 0, {x}, {y})",
        f"{x}.sigmoid()", f"torch.zeros_like({x})", "torch.ones(3)", f"{x}.new_zeros(4)", f"torch.stack([{x}, {x}])",
        f"{x}.repeat(2)", f"{x}.flip(0)", f"{x}.sum(0)", f"{x}.amax(0)", f"F.dropout({x}, 0.5, False)", f"{x}.clone().t()",
        f"({x} + 1).view(-1)", f"({x} * 2)[0]", f"{x}.contiguous()", f"{x}.to(torch.float32)", f"torch.empty_like({x}).copy_({x})",
        f"F.softmax({x}, -1)", f"{x}.cumsum(0)", f"-{x}", f"{x}.abs()", f"{x}.new_full((2,), 3)", "torch.arange(4.)", f"{x}.clone().detach()",
    ]  # fmt: skip
    return r.choice(forms)


def _written(r: random.Random, s: _ProgramScope, x: str) -> str:
    y = s.pick()
    forms = [
        f"{x}.add_(1)", f"{x}.mul_(2)", f"{x}.mul_({y})", f"{x}.add_({y})", f"{x}.copy_({y})", f"{x}.zero_()", f"{x}.fill_(2)",
        f"{x}[0] = 1", f"{x}[1:] = {y}", f"{x}[0] = {y}", f"{x} += {y}", f"{x} *= 3", f"{x}.sin_()", f"{x}.relu_()", f"F.relu({x}, inplace=True)",
        f"torch.add({x}, 1, out={y})", f"torch.sin({x}, out={x})", f"torch.mul({x}, {x}, out={y})", f"{x}.clamp_(-1, 1)",
        f"{x}.masked_fill_({x} > 0, 0.5)", f"{x}.t().add_(1)", f"{x}[1:].mul_(3)", f"{x}.view(-1)[0] = 5", f"{x}.index_add_(0, torch.tensor([0]), {x}[:1].clone())",
        f"{x}.sigmoid_()", f"{x}[...] = {y}", f"{x}.copy_({x}.flip(0))", f"{x}.detach().add_(1)", f"{x}.data.mul_(2)", f"{x}[{x} > 0] = 0",
        f"{x}.sub_({y}).mul_(2)", f"{x}.squeeze_()", f"{x}.t_()", f"{x}.transpose_(0, -1)", f"{x}.unsqueeze_(0)", f"{x}.neg_()",
        f"{x}.diagonal().fill_(7)", f"{x}.swapaxes_(0, -1)", f"{x}.exp_()", f"{x}.scatter_(0, torch.zeros_like({x}, dtype=torch.int64), 2)",
        f"{x}.addcmul_({y}, {y})", f"{x}.lerp_({y}, 0.5)", f"{x}.index_fill_(0, torch.tensor([0]), 4)", f"{x}.cumsum_(0)", f"{x}.div_(2)", f"{x}.normal_()",
    ]  # fmt: skip
    # A wrapper has no memory to be given: torch itself reads past it, and ends the process.
    given = x if type(s.values[y]) is TwoTensor else y
    rare = [
        f"{x}.resize_(2)", f"{x}.set_({given})", f"{x}.requires_grad_()", f"{x}.detach_()", f"{x}.as_strided_((2,), (1,))",
        f"{x}.data = {y}", f"{x}.resize_({x}.shape)", f"{x}.requires_grad_(False)", f"{x}.retain_grad()",
    ]  # fmt: skip
    return r.choice(rare) if r.random() < 0.04 else r.choice(forms)


_GRAD_MODE_BLOCKS = ("with torch.no_grad():", "with torch.enable_grad():", "with torch.set_grad_enabled(False):")


def _statement(r: random.Random, s: _ProgramScope) -> str:
    """One statement over what is alive; views of arguments and writes to them come up most."""
    arguments = [n for n in s.tensors() if n in NAMES]
    x = s.pick(arguments) if arguments and r.random() < 0.5 else s.pick()
    if s.is_wider and r.random() < 0.4:
        return program_features.statement(r, s.fresh, x, s.pick(), s.values[x])
    kind = r.choices(["view", "write", "pure", "many"], [8, 8, 5, 1])[0]
    match kind:
        case "view":
            return f"{s.fresh()} = {_view(r, s, x)}"
        case "write":
            return _written(r, s, x)
        case "many":
            form = r.choice(
                [f"{x}.unbind(0)", f"{x}.chunk(2)", f"{x}.split(1)", f"torch.broadcast_tensors({x}, {s.pick()})"]
            )
            return f"{s.fresh()}, {s.fresh()} = {form}"
        case _:
            return f"{s.fresh()} = {_pure(r, s, x)}"


def _program(r: random.Random, scene: _ProgramScope) -> None:
    wanted = r.choices([1, 2, 3, 4, 6, 8], [2, 4, 5, 5, 4, 2])[0]
    done = tries = 0
    while done < wanted and tries < 40 and not scene.raised:
        tries += 1
        if r.random() < 0.12:
            done += _add_grad_mode_block(r, scene)
            continue
        done += scene.attempt(_statement(r, scene))


def _add_grad_mode_block(r: random.Random, scene: _ProgramScope) -> int:
    head = r.choice(_GRAD_MODE_BLOCKS)
    grad = "enable_grad" in head
    scene.lines.append(head)
    done = 0
    with torch.set_grad_enabled(grad):
        for _ in range(r.choice([1, 1, 2, 3])):
            for _ in range(4):
                if scene.attempt(_statement(r, scene), "    "):
                    done += 1
                    break
            if scene.raised:
                break
    if not done:
        scene.lines.pop()
    return done


def _returned(r: random.Random, scene: _ProgramScope) -> str:
    names = scene.tensors()
    arguments = [n for n in names if n in NAMES]
    made = [n for n in names if n not in NAMES]
    items = []
    for _ in range(r.choices([0, 1, 2, 3, 4], [1, 6, 6, 4, 2])[0]):
        x = r.choice(made) if made and r.random() < 0.7 else r.choice(arguments or names)
        items.append(x if r.random() < 0.75 else _view(r, scene, x))
    items = [i for i in items if _can_be(scene, i)]
    if len(items) == 1 and r.random() < 0.5:
        return items[0]
    return f"({''.join(f'{i}, ' for i in items)})"


def _can_be(scene: _ProgramScope, expression: str) -> bool:
    try:
        value = eval(expression, {"torch": torch, "two": two_tensor}, dict(scene.values))
    except Exception:
        return False
    return not isinstance(value, torch.Tensor) or value.numel() <= MAX_ELEMENTS


def generate(seed: int, kind: Kind = "plain", *, is_wider: bool = False) -> Case:
    """Generate the case with this number and kind, deterministically.

    ``is_wider`` adds the statements of ``alias_wider``.
    """
    r = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = _generate(seed, kind, r, is_wider=is_wider)
    return replace(case, backward=r.choice(program_features.BACKWARDS)) if is_wider else case


def _growing(line: str) -> str:
    """A line of ``make`` with every size but 0 and 1 growing with ``k``."""

    def grown(shape: re.Match[str]) -> str:
        return re.sub(r"[2-9]", lambda n: f"{n[0]} + k", shape[0])

    return re.sub(r"\([\d, ]*\), generator", grown, line)


def _generate(seed: int, kind: Kind, r: random.Random, *, is_wider: bool) -> Case:
    inputs = _inputs(r, kind, is_wider=is_wider)
    space: dict[str, Any] = {"torch": torch, "two": two_tensor}
    exec("\n".join(inputs.lines), space)
    args, _ = space["make"]()
    scene = _ProgramScope(r, {n: a for n, a in zip(NAMES, args, strict=False)}, is_wider=is_wider)
    parameters = ", ".join(scene.values)
    mode = r.choices(["", "@torch.no_grad()", "@torch.inference_mode()"], [14, 3, 0])[0]
    with torch.no_grad() if mode else torch.enable_grad():
        _program(r, scene)
        result = _returned(r, scene)
    body = [
        *([mode] if mode else []),
        f"def program({parameters}):",
        *(f"    {line}" for line in scene.lines),
        f"    return {result}",
    ]
    lines = map(_growing, inputs.lines) if kind == "sizes" else inputs.lines
    return Case(seed, "\n".join(lines), "\n".join(body), _after(r), kind)


_AFTER: tuple[tuple[str, int], ...] = (
    ("pass", 10),
    ("first(result).mul_(2)", 2),
    ("first(result)[0] = 3", 1),
    ("with torch.no_grad():\n        first(result).add_(1)", 1),
    ("last(result).mul_(2)", 1),
    ("last(args).mul_(2)", 1),
    ("with torch.no_grad():\n        first(args).add_(1)", 1),
)


def _after(r: random.Random) -> str:
    text = r.choices([t for t, _ in _AFTER], [w for _, w in _AFTER])[0]
    return f"def after(args, result, first, last):\n    {text}"


Make = Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]
