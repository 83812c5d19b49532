"""Write random programs as source text, from a seed.

A program is a file like those of ``tests/programs``. The writer tracks the type of every name, so that most
programs run without an exception. A matrix has the shape of the first argument, so any two can be combined.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.fuzz.definitions import used_definitions

UNARY = ("sin", "tanh", "sigmoid", "relu", "abs", "neg", "cos", "square", "clone", "contiguous", "detach", "sign")
INPLACE = ("add_(1)", "mul_(0.5)", "sin_()", "tanh_()", "neg_()", "clamp_(-2, 2)", "zero_()", "fill_(0.25)", "abs_()")
DTYPES = ("torch.float64", "torch.float32", "torch.int64", "torch.float16", "torch.bfloat16", "torch.bool")
ERRORS = ("ValueError", "KeyError", "RuntimeError", "ZeroDivisionError", "StopIteration", "Custom")
ROW_OF = ("sum(0)", "mean(0)", "amax(0)", "select(0, 0)", "var(0)", "prod(0)", "cumsum(0)[-1]")
CHECKPOINTED = (
    "double", "helper", "lambda v: v.float().sin() * v", "lambda v: F.dropout(v.float(), 0.5)", "lambda v: v * LEAF + s", "net_or_double",
    "lambda v: v.clone().mul_(2)",
)  # fmt: skip
SCALAR_OF = ("sum()", "mean()", "max()", "norm()", "std()", "min()", "flatten()[0]")


class ProgramWriter:
    """Writes one function, statement by statement."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.depth = 1
        self.counter = 0
        self.names: dict[str, list[str]] = {
            "matrix": ["x"], "int": ["n"], "float": ["s"], "bool": ["flag"], "row": [], "scalar": [], "list": [], "dict": [],
            "box": [], "function": [], "mask": [], "text": [],
        }  # fmt: skip
        self.loops = 0
        self.budget = self.rng.randint(3, 14)

    # Writing

    def line(self, text: str) -> None:
        """Write one line at the present indentation."""
        self.lines.append("    " * self.depth + text)

    def new(self, kind: str) -> str:
        """Return a new name and note its type."""
        self.counter += 1
        name = f"{kind[0]}{self.counter}"
        self.names[kind].append(name)
        return name

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Write a header and an indented block, whose names are unknown after it."""
        self.line(header)
        known = {kind: list(names) for kind, names in self.names.items()}
        self.depth += 1
        yield
        self.depth -= 1
        self.names = known

    def pick(self, *choices: Callable[[], str]) -> str:
        """Return the text of one choice."""
        return self.rng.choice(choices)()

    def one(self, kind: str) -> str:
        """Return a name of this type; the last ones are likelier."""
        names = self.names[kind]
        return self.rng.choice(names[-3:] if self.rng.random() < 0.6 else names)

    def has(self, kind: str) -> bool:
        """Return whether a name of this type is known."""
        return bool(self.names[kind])

    # Expressions

    def matrix(self, depth: int = 0) -> str:
        """A tensor of the first argument's shape."""
        if depth > 2 or self.rng.random() < 0.25:
            return self.one("matrix")
        r, m = self.rng, lambda: self.matrix(depth + 1)
        options = [
            lambda: f"{m()}.{r.choice(UNARY)}()",
            lambda: f"({m()} {r.choice('+-*')} {m()})",
            lambda: f"({m()} {r.choice('+-*/')} {self.number()})",
            lambda: f"({m()} {r.choice('+-*')} {self.row(depth + 1)})",
            lambda: f"torch.where({self.mask(depth + 1)}, {m()}, {m()})",
            lambda: f"{m()}.to({r.choice(DTYPES[:5])})",
            lambda: f"F.{r.choice(('relu', 'gelu', 'silu', 'softplus'))}({m()}.float())",
            lambda: f"{m()}.float().softmax({r.choice((0, 1, -1))})",
            lambda: f"({m()} if {self.condition()} else {m()})",
            lambda: f"torch.{r.choice(('zeros_like', 'ones_like', 'rand_like', 'empty_like'))}({m()}.float()).zero_()",
            lambda: f"torch.rand_like({m()}.float())",
            lambda: f"F.dropout({m()}.float(), 0.5, training={r.choice(('True', 'flag'))})",
            lambda: f"{m()}.t().contiguous().t()",
            lambda: f"{m()}.flip({r.choice((0, 1))})",
            lambda: f"{m()}.roll(n, {r.choice((0, 1))})",
            lambda: f"torch.cat([{m()}[:1], {m()}[1:]])",
            lambda: f"torch.stack([{m()}, {m()}]).sum(0)",
            lambda: f"helper({m()}, *[{self.number()}], scale={self.number()})",
            lambda: f"double({m()}, **{{'bias': {self.number()}}})",
            lambda: f"Scale.apply({m()}, {self.number()})",
            lambda: f"net({m()}.float())" if r.random() < 0.6 else f"linear_rows({m()}.float())",
            lambda: f"vmap(lambda v: v * {self.number()} + v.sum())({m()}.float())",
            lambda: f"checkpoint(double, {m()}, use_reentrant=False)",
            lambda: f"grad(lambda v: (v * {self.number()}).sin().sum())({m()}.float().detach())",
            lambda: f"sum([{m()} for i in range({r.choice(('n', '2', '3'))})], {m()})",
            lambda: f"functools.reduce(lambda a, b: a * 0.5 + b, [{m()}, {m()}])",
            lambda: f"next(iter([{m()}]))",
            lambda: f"max([{m()}, {m()}], key=lambda t: t.shape[0])",
            lambda: f"[w := {m()}, w + 1][n % 2]",
            lambda: f"Tagged({m()}.detach().clone()).plus({self.number()})",
            lambda: f"{m()}.to(x.dtype) @ torch.eye(x.shape[1], dtype=x.dtype)",
            lambda: f"torch.einsum('ij,ij->ij', {m()}.float(), {m()}.float())",
            lambda: f"{m()}.masked_fill({self.mask(depth + 1)}, {self.number()})",
            lambda: f"{m()}.reshape(-1).view(x.shape)",
            lambda: f"{m()}.cumsum({r.choice((0, 1))})",
            lambda: f"torch.clamp({m()}, -1, {self.number()})",
            lambda: self.promoted(depth + 1),
            lambda: self.promoted(depth + 1),
            lambda: self.written_out(depth + 1),
            lambda: self.indexed(depth + 1),
            lambda: f"checkpoint({r.choice(CHECKPOINTED)}, {m()}, use_reentrant={r.choice(('False', 'False', 'True'))})",
            lambda: f"({m()} {r.choice('+*')} {r.choice(('LEAF', 'GROWN', 'INFERRED'))})",
        ]  # fmt: skip
        if self.has("list"):
            options += [lambda: f"{self.one('list')}[{r.choice((0, -1))}]", lambda: f"sum({self.one('list')})"]
        if self.has("dict"):
            options += [lambda: f"{self.one('dict')}.get({r.choice('ab')!r}, {m()})"]
        if self.has("box"):
            options += [lambda: f"{self.one('box')}.value", lambda: f"{self.one('box')}.scaled({self.number()})"] * 2
        if self.has("function"):
            options += [lambda: f"{self.one('function')}({m()})"] * 3
        return self.pick(*options)

    def promoting(self, depth: int) -> str:
        """A number, or a tensor without dimensions of any dtype."""
        r = self.rng
        return self.pick(
            self.number, self.integer, lambda: r.choice(("True", "flag")), lambda: f"torch.tensor({self.number()})", lambda: "torch.tensor(True)",
            lambda: f"torch.tensor({r.randint(-2, 3)})", lambda: f"torch.tensor({r.uniform(-2, 2):.1f}, dtype={r.choice(DTYPES[:5])})",
            lambda: self.scalar(depth),
        )  # fmt: skip

    def promoted(self, depth: int) -> str:
        """A matrix promoted by numbers and tensors without dimensions."""
        r, m, number = self.rng, lambda: self.matrix(depth), lambda: self.promoting(depth)
        return self.pick(
            lambda: f"({m()} {r.choice('+-*/')} {number()})", lambda: f"({number()} {r.choice('+-*')} {m()})",
            lambda: f"({m()}.to({r.choice(DTYPES)}) {r.choice('+*')} {number()})", lambda: f"torch.where({self.mask(depth)}, {m()}, {number()})",
            lambda: f"torch.where({self.mask(depth)}, {number()}, {number()})", lambda: f"torch.add({m()}, {m()}, alpha={r.choice(('2', '0.5', 'n'))})",
            lambda: f"torch.{r.choice(('maximum', 'minimum', 'fmod'))}({m()}, torch.tensor({r.randint(1, 3)}))", lambda: f"({m()} // {r.randint(1, 3)})",
            lambda: f"(({m()} {r.choice(('>', '<=', '=='))} {number()}) * {number()})", lambda: f"({m()}.float() ** {r.choice(('2', '0', '3'))})",
            lambda: f"torch.full_like({m()}, {self.number()})", lambda: f"{m()}.to({r.choice(DTYPES)}).mul({number()})",
            lambda: f"torch.lerp({m()}.float(), {m()}.float(), {self.number()})", lambda: f"(({self.mask(depth)} & {self.mask(depth)}) + {number()})",
        )  # fmt: skip

    def written_out(self, depth: int) -> str:
        """A matrix that an operator writes to ``out=``: fitting, empty, a view, another dtype."""
        r, m = self.rng, lambda: self.matrix(depth)
        fresh = self.pick(
            lambda: f"torch.zeros_like({m()}.float())", lambda: "torch.empty(0)", lambda: f"torch.zeros(x.shape, dtype={r.choice(DTYPES)})",
            lambda: "torch.zeros(x.shape[1], x.shape[0]).t()", lambda: "torch.zeros(x.shape[0], 2 * x.shape[1])[:, ::2]",
        )  # fmt: skip
        place = fresh if r.random() < 0.7 else self.one("matrix")
        return self.pick(
            lambda: f"torch.{r.choice(('add', 'mul', 'sub'))}({m()}, {self.number()}, out={place})", lambda: f"torch.{r.choice(('sin', 'tanh', 'abs'))}({m()}, out={place})",
            lambda: f"torch.cat([{m()}[:1], {m()}[1:]], out={place})", lambda: f"torch.cumsum({m()}, {r.choice((0, 1))}, out={place})",
            lambda: f"torch.mm({m()}.float(), torch.eye(x.shape[1]), out={fresh})", lambda: f"torch.where({self.mask(depth)}, {m()}, {m()}, out={place})",
        )  # fmt: skip

    def indexed(self, depth: int) -> str:
        """A matrix read by masks and indices of other shapes."""
        r, m = self.rng, lambda: self.matrix(depth)
        return self.pick(
            lambda: f"{m()}[{r.choice(('[0, -1]', 'torch.tensor([0, -1])', 'torch.tensor([n, 0])'))}].sum(0, keepdim=True).expand_as(x)",
            lambda: f"{m()}[torch.arange(x.shape[0]).flip(0)]", lambda: f"{m()}[..., None].squeeze(-1)", lambda: f"{m()}[None].squeeze(0)",
            lambda: f"{m()}.index_select({r.choice((0, 1))}, torch.tensor([0])).expand_as(x)", lambda: f"{m()}[torch.tensor(0)].expand_as(x)",
            lambda: f"{m()}.gather(1, torch.zeros_like(x, dtype=torch.int64))", lambda: f"{m()}[{m()}[:, 0] > {self.number()}].sum(0).expand_as(x)",
            lambda: f"{m()}[{self.mask(depth)}].sum().expand_as(x)", lambda: f"{m()}[True].squeeze(0)", lambda: f"{m()}.masked_select({self.row(depth)} > 0).sum().expand_as(x)",
            lambda: f"{m()}.take(torch.tensor([0, -1])).prod().expand_as(x)", lambda: f"{m()}[slice(None, None, 1), torch.arange(x.shape[1])]",
            lambda: f"torch.take_along_dim({m()}, {m()}.argsort(0), 0)", lambda: f"{m()}.sort({r.choice((0, 1))}).values",
        )  # fmt: skip

    def row(self, depth: int = 0) -> str:
        """A tensor of one dimension that broadcasts with a matrix."""
        if self.has("row") and (depth > 2 or self.rng.random() < 0.4):
            return self.one("row")
        return f"{self.matrix(depth + 1)}.float().{self.rng.choice(ROW_OF)}"

    def scalar(self, depth: int = 0) -> str:
        """A tensor without dimensions."""
        if self.has("scalar") and self.rng.random() < 0.3:
            return self.one("scalar")
        return f"{self.matrix(depth + 1)}.float().{self.rng.choice(SCALAR_OF)}"

    def mask(self, depth: int = 0) -> str:
        """A tensor of bools of a matrix's shape."""
        if self.has("mask") and self.rng.random() < 0.5:
            return self.one("mask")
        return f"({self.matrix(depth + 1)} {self.rng.choice(('>', '<', '>=', '!='))} {self.number()})"

    def integer(self) -> str:
        """A Python integer."""
        r = self.rng
        return self.pick(
            lambda: self.one("int"), lambda: str(r.randint(-2, 5)), lambda: f"({self.one('int')} {r.choice('+-*%')} {r.randint(1, 4)})",
            lambda: f"x.shape[{r.choice((0, 1))}]", lambda: f"len({self.one('list')})" if self.has("list") else "len('abc')",
            lambda: f"{self.one('int')} // {r.choice(('2', '3', 'n'))}", lambda: "x.dim()", lambda: "COUNTS['calls']",
            lambda: f"{self.one('box')}.count" if self.has("box") else "1", lambda: f"int({self.one('float')})",
        )  # fmt: skip

    def number(self) -> str:
        """A Python number."""
        r = self.rng
        return self.pick(
            self.integer, lambda: self.one("float"), lambda: str(round(r.uniform(-2, 2), 2)),
            lambda: f"({self.one('float')} + {self.integer()})", lambda: f"math.sin({self.one('float')})", lambda: "random.random()",
            lambda: f"round({self.one('float')}, 1)", lambda: f"abs({self.integer()})",
        )  # fmt: skip

    def condition(self) -> str:
        """A condition that control flow depends on."""
        r = self.rng
        options = [
            lambda: f"{self.integer()} {r.choice(('>', '<', '==', '>='))} {self.integer()}",
            lambda: self.one("bool"), lambda: f"not {self.one('bool')}", lambda: f"{self.one('float')} > {round(r.uniform(-1, 2), 1)}",
            lambda: "x.requires_grad", lambda: f"x.shape[0] {r.choice('<>')} 3", lambda: "x.is_contiguous()",
            lambda: f"({self.one('bool')} and {self.integer()} > 1)", lambda: "mode in ('a', 'c')", lambda: "torch.is_grad_enabled()",
        ]  # fmt: skip
        if r.random() < 0.15:
            options = [lambda: f"{self.scalar()} > 0", lambda: f"({self.mask()}).any()"]
        return self.pick(*options)

    # Statements

    def body(self, count: int) -> None:
        """Write a few statements."""
        for _ in range(max(1, count)):
            self.statement()

    def statement(self) -> None:
        """Write one statement, simple once the budget is spent or the nesting is deep."""
        self.budget -= 1
        simple = [
            self.assign,
            self.assign,
            self.mutate,
            self.mutate,
            self.augment,
            self.view,
            self.state,
            self.make,
            self.make,
            self.note,
        ]
        compound = [
            self.branch, self.loop, self.attempt, self.context, self.match, self.closure, self.while_loop, self.unusual, self.comprehension,
        ]  # fmt: skip
        is_simple = self.depth > 3 or self.budget < 0 or self.rng.random() < 0.5
        self.rng.choice(simple if is_simple else compound)()

    def assign(self) -> None:
        """Assign a new value."""
        kind = self.rng.choice(("matrix", "matrix", "matrix", "row", "scalar", "int", "float", "mask"))
        made = {
            "matrix": self.matrix,
            "row": self.row,
            "scalar": self.scalar,
            "int": self.integer,
            "float": self.number,
            "mask": self.mask,
        }
        text = made[kind]()
        if kind == "float":
            text = f"float({text})"
        self.line(f"{self.new(kind)} = {text}")

    def mutate(self) -> None:
        """Write to a tensor in place."""
        r, t = self.rng, self.one("matrix")
        self.line(self.pick(
            lambda: f"{t}.{r.choice(INPLACE)}", lambda: f"{t}[0] = {self.number()}", lambda: f"{t}[:, 1:] += {self.number()}",
            lambda: f"{t}[{self.mask()}] = {self.number()}", lambda: f"{t}.copy_({self.matrix()})", lambda: f"{t}[-1] = {self.row()}",
            lambda: f"{t}.add_({self.matrix()}, alpha={r.choice((0.5, 2))})", lambda: f"{t}[0, 0].add_(1)", lambda: f"{t}.data.mul_(2)",
            lambda: f"{t}.detach().add_(1)", lambda: f"torch.add({t}, 1, out={t})", lambda: f"{t}.t()[0].mul_({self.number()})",
            lambda: f"{t}.index_fill_(0, torch.tensor([0]), {self.number()})", lambda: f"{t}.reshape(-1)[::2].zero_()",
            lambda: self.write_indexed(t), lambda: self.write_indexed(t), lambda: self.write_product(t), lambda: self.written_out(1),
            lambda: f"{t}.{r.choice(('mul_', 'add_', 'sub_', 'div_'))}({self.pick(self.scalar, lambda: f'torch.tensor({self.number()})', self.row)})",
        ))  # fmt: skip

    def write_indexed(self, t: str) -> str:
        """A write by a mask or by indices, some of a shape that does not fit."""
        r = self.rng
        index = self.pick(
            self.mask, lambda: f"{self.row()} > 0", lambda: f"{t}[:, 0] > {self.number()}", lambda: "torch.tensor([0, -1])", lambda: "[0, -1]",
            lambda: "torch.tensor(0)", lambda: f"..., {r.choice((0, -1))}", lambda: "None, 0", lambda: "torch.tensor([True, False])", lambda: "n",
            lambda: "torch.arange(x.shape[0]), 0", lambda: "True", lambda: "[0], [-1]",
        )  # fmt: skip
        value = self.pick(
            self.number,
            self.scalar,
            self.row,
            lambda: f"torch.tensor({self.number()})",
            lambda: f"{self.one('matrix')}[:1]",
        )
        return self.pick(
            lambda: f"{t}[{index}] {r.choice(('=', '=', '+=', '*='))} {value}", lambda: f"{t}.masked_fill_({self.mask()}, {value})",
            lambda: f"{t}.index_put_((torch.tensor([0, 0]),), {value}, accumulate={r.choice(('True', 'False'))})",
            lambda: f"{t}.scatter_({r.choice((0, 1))}, torch.zeros(1, 1, dtype=torch.int64), {self.number()})",
            lambda: f"{t}.index_add_(0, torch.tensor([0, 0]), {self.one('matrix')}[:1].expand(2, -1).clone())",
            lambda: f"{t}.index_copy_(0, torch.tensor([-1 % x.shape[0]]), {self.one('matrix')}[:1].clone())",
        )  # fmt: skip

    def write_product(self, t: str) -> str:
        """A write of a matrix product, which autocast computes in bfloat16, through a view."""
        r, product = self.rng, f"({self.matrix(1)}.float() @ torch.eye(x.shape[1]))"
        return self.pick(
            lambda: f"{t}[0].{r.choice(('copy_', 'add_', 'mul_'))}({product}[-1])", lambda: f"{t}.t().copy_({product}.t())", lambda: f"{t}[:, :1] = {product}[:, :1]",
            lambda: f"{t}.view(-1)[1:].add_({product}.reshape(-1)[:-1])", lambda: f"{t}.unsqueeze(0)[0].mul_({product})", lambda: f"{t} += {product}",
            lambda: f"{t}.select(0, 0).{r.choice(('addmv_', 'copy_'))}({product}[0])" if r.random() < 0.3 else f"{t}.diagonal().add_({product}.diagonal())",
        )  # fmt: skip

    def augment(self) -> None:
        """Use an augmented assignment, in place for tensors."""
        kind = self.rng.choice(("matrix", "matrix", "int", "float"))
        value = (
            self.integer()
            if kind == "int"
            else self.number()
            if kind == "float"
            else self.pick(self.matrix, self.number)
        )
        self.line(f"{self.one(kind)} {self.rng.choice(('+=', '-=', '*='))} {value}")

    def view(self) -> None:
        """Make a view that shares memory with a matrix."""
        t, r = self.one("matrix"), self.rng
        if r.random() < 0.5:
            text = r.choice(
                (
                    "[:]",
                    ".view_as(x)",
                    ".expand_as(x)",
                    ".squeeze(5 - 5)",
                    ".t().t()",
                    ".unsqueeze(0)[0]",
                    ".detach()",
                    ".transpose(0, 1).mT",
                    ".view(-1).view(x.shape)",
                    "[:1].expand_as(x)",
                    "[:, :1].expand_as(x)",
                    ".as_strided(x.shape, (x.shape[1], 1))",
                    ".unfold(0, 1, 1).squeeze(-1)",
                    ".swapaxes(0, 1).movedim(1, 0)",
                    ".view(x.dtype)",
                    ".T.mT",
                )
            )
            self.line(f"{self.new('matrix')} = {t}{text}")
        else:
            text = r.choice(
                (
                    "[0]",
                    ".select(0, -1)",
                    ".unbind(0)[0]",
                    ".diagonal(0)[:0].sum() + " + t + "[0]",
                    ".narrow(0, 0, 1).view(-1)",
                )
            )
            self.line(f"{self.new('row')} = {t}{text}")

    def state(self) -> None:
        """Change state outside the function."""
        r = self.rng
        self.line(self.pick(
            lambda: "COUNTS['calls'] += 1", lambda: f"LOG.append({self.integer()})", lambda: f"LOG.append({self.one('matrix')})",
            lambda: f"HELD.value = {self.matrix()}", lambda: f"HELD.count += {self.integer()}", lambda: f"print({self.integer()}, mode)",
            lambda: f'print(f"{{{self.integer()}:>4}} {{s:.2f}} {{mode!r}} {{x.shape}}")', lambda: f"BUFFER.add_({self.integer()})",
            lambda: "torch.manual_seed(n)", lambda: "net.steps.add_(1)", lambda: "LOG.pop() if LOG else None",
            lambda: f"setattr(HELD, 'extra', {self.number()})", lambda: "COUNTS.setdefault(mode, []).append(n)",
            lambda: f"mode {r.choice(('+=', '='))} {r.choice(('str(n)', repr('z'), 'mode.upper()'))}",
            lambda: f"HELD.items.extend([{self.integer()}, {self.matrix()}])", lambda: "torch.rand(2)", lambda: "random.shuffle(LOG[:0])",
        ))  # fmt: skip

    def make(self) -> None:
        """Make a container, an instance or a mutation of one."""
        r = self.rng
        kind = r.choice(("list", "dict", "box"))
        if self.has(kind) and r.random() < 0.6:
            name = self.one(kind)
            texts = {
                "list": (f"{name}.append({self.matrix()})", f"{name}[0] = {self.matrix()}", f"{name}.insert(0, {self.one('matrix')})",
                         f"{name} += [{self.matrix()}]", f"{name}.reverse()", f"{name}[1:] = []", f"{name}[-1].add_(1)"),
                "dict": (f"{name}['b'] = {self.matrix()}", f"{name}.update(c={self.matrix()})", f"{name}.pop('b', None)",
                         f"{name}['a'].mul_(2)", f"{name} |= {{'d': {self.matrix()}}}"),
                "box": (f"{name}.value = {self.matrix()}", f"{name}.count += 1", f"{name}.value.add_(1)", f"{name}.items.append({self.integer()})",
                        f"{name}.tag = {self.integer()}", f"{name}.total += {self.integer()}"),
            }  # fmt: skip
            self.line(r.choice(texts[kind]))
            return
        texts = {
            "list": (f"[{self.matrix()}, {self.one('matrix')}]", f"[t * {self.number()} for t in ({self.matrix()}, x)]", f"[*produce({self.matrix()}, 2)]",
                     f"list(map(double, [{self.matrix()}]))", f"[{self.one('matrix')}] * 2", f"sorted([{self.matrix()}], key=lambda t: t.dim())"),
            "dict": (f"{{'a': {self.matrix()}}}", f"dict(a={self.matrix()}, b={self.one('matrix')})", f"{{k: {self.matrix()} for k in 'ab'}}"),
            "box": (f"Box({self.matrix()})", f"Box({self.one('matrix')}, count={self.integer()})", f"dataclasses.replace(HELD, value={self.matrix()})", "HELD"),
        }  # fmt: skip
        text = r.choice(texts[kind])
        self.line(f"{self.new(kind)} = {text}")

    def note(self) -> None:
        """Delete, assert, break the graph, or read from a tensor."""
        self.line(self.pick(
            lambda: f"assert {self.one('matrix')}.dim() == 2, 'dims'", lambda: f"assert {self.integer()} < 40, f'too many: {{n}}'",
            lambda: f"engine_break({self.integer()})", lambda: f"LOG.append(round({self.one('matrix')}.float().sum().item(), 1) > 0)",
            lambda: f"{self.new('int')} = int(({self.mask()}).sum())", lambda: f"LOG.append({self.one('matrix')}.dtype)",
            lambda: f"LOG.append(({self.one('matrix')}.shape, {self.one('matrix')}.stride()))", lambda: f"LOG.append(isinstance({self.integer()}, bool))",
            lambda: f"{self.new('int')} = {self.one('matrix')}.argmax().item()", lambda: "x.register_hook(lambda g: g * 2) if x.requires_grad else None",
            lambda: f"LOG.append(({self.one('matrix')}.is_leaf, {self.one('matrix')}.requires_grad, {self.one('matrix')}.is_inference()))",
            lambda: f"LOG.append(torch.result_type({self.one('matrix')}, {self.number()}))", lambda: "x.retain_grad() if x.requires_grad else None",
            lambda: f"{self.new('matrix')} = torch.autograd.grad({self.matrix()}.float().sum() + x.sum(), x, retain_graph=True)[0] if x.requires_grad and torch.is_grad_enabled() else x",
            lambda: f"{self.new('matrix')} = {self.one('matrix')}.detach().float().clone().requires_grad_()",
            lambda: "LOG.append(x._version)", lambda: f"{self.new('mask')} = {self.row()} > 0",
        ))  # fmt: skip

    def branch(self) -> None:
        """Write if, elif, else."""
        with self.block(f"if {self.condition()}:"):
            self.body(self.rng.randint(1, 3))
        if self.rng.random() < 0.3:
            with self.block(f"elif {self.condition()}:"):
                self.body(1)
        if self.rng.random() < 0.5:
            with self.block("else:"):
                self.body(self.rng.randint(1, 2))

    def loop(self) -> None:
        """Write a for loop."""
        self.counter += 1
        i, t = f"i{self.counter}", f"t{self.counter}"
        header, kind, name = self.rng.choice((
            (f"for {i} in range({self.rng.choice(('n', '2', '3', 'n % 3'))}):", "int", i), (f"for {i}, {t} in enumerate([x, {self.matrix()}]):", "matrix", t),
            (f"for {t} in produce({self.matrix()}, {self.rng.choice(('n', '2'))}):", "matrix", t), (f"for {i}, {t} in zip(range(2), [x, {self.matrix()}]):", "matrix", t),
            (f"for {t}, {i} in {{1: {self.matrix()}, 2: x}}.items():", "int", t), (f"for {t} in {self.matrix()}.unbind(0)[:2]:", "row", t),
            (f"for {i} in itertools.count(1):", "int", i), (f"for {i}, _ in itertools.product('ab', range(2)):", "text", i), (f"for {i} in reversed([1, n, 3]):", "int", i),
        ))  # fmt: skip
        with self.block(header):
            self.names[kind].append(name)
            self.body(self.rng.randint(1, 2))
            if "count(1)" in header:
                self.line(f"if {i} > 2: break")
            elif self.rng.random() < 0.3:
                self.line(f"if {self.condition()}: {self.rng.choice(('break', 'continue'))}")
        if self.rng.random() < 0.15:
            with self.block("else:"):
                self.body(1)

    def while_loop(self) -> None:
        """Write a loop that ends after a few rounds."""
        self.counter += 1
        left = f"left{self.counter}"
        self.line(f"{left} = {self.rng.choice(('3', 'n % 4', '2'))}")
        with self.block(f"while {left} > 0:"):
            self.line(f"{left} -= 1")
            self.body(self.rng.randint(1, 2))

    def attempt(self) -> None:
        """Write try, except, else, finally."""
        r = self.rng
        error = r.choice(ERRORS)
        with self.block("try:"):
            self.body(1)
            self.line(self.pick(
                lambda: f"if {self.condition()}: raise {error}(f'bad {{n}}')", lambda: "LOG[99]", lambda: "{}['missing']", lambda: "1 / (n - 2)",
                lambda: "torch.zeros(3) @ torch.zeros(5)", lambda: "x.no_such_attribute", lambda: f"{self.one('matrix')}.add_(1)",
                lambda: "int(mode)", lambda: f"x[{self.integer()}]", lambda: f"return {self.matrix()}", self.raising, self.raising,
            ))  # fmt: skip
            self.body(r.randint(0, 1))
        handler = r.choice(
            (
                f"except {error}:",
                "except Exception as error:",
                "except (ValueError, KeyError, IndexError) as error:",
                "except ArithmeticError:",
                "",
            )
        )
        if handler:
            with self.block(handler):
                if "as error" in handler:
                    self.line("LOG.append(type(error).__name__)")
                self.body(1)
                if r.random() < 0.15:
                    self.line(r.choice(("raise", "raise ValueError('again') from None", "raise Custom(str(n))")))
        if handler and r.random() < 0.2:
            with self.block("else:"):
                self.body(1)
        if not handler or r.random() < 0.5:
            with self.block("finally:"):
                self.body(1)

    def raising(self) -> str:
        """An operator that mostly raises: shapes, dtypes or dimensions do not fit.

        Where only running it for real raises, its result is used: graphs drop operators without a use.
        """
        t, r = self.one("matrix"), self.rng
        return self.pick(
            lambda: f"{t}.view(7, -1)", lambda: f"torch.cat([{t}, {t}[:, :1]])", lambda: f"{t} + torch.zeros(9, 9)", lambda: f"{t}.add_(torch.zeros(9, 9))",
            lambda: f"torch.stack([{t}, {t}[0]])", lambda: f"LOG.append({t}.double() @ torch.eye(x.shape[1]))", lambda: f"{t}.sum(5)", lambda: f"{t}.long().mul_(0.5)",
            lambda: f"{t}[torch.zeros(9, dtype=torch.bool)] = 1", lambda: f"LOG.append({t}.index_select(0, torch.tensor([9])))", lambda: f"LOG.append({t}.gather(0, torch.tensor([[9]])))",
            lambda: f"torch.add({t}, 1.5, out=torch.zeros(x.shape, dtype=torch.int64))", lambda: f"{t}.expand(2, 2, 2, 2).add_(1)", lambda: f"{t}[:1].expand(3, -1).add_(1)",
            lambda: f"{t}.copy_(torch.zeros(9, 9))", lambda: f"torch.where({self.mask()}, {t}, torch.zeros(9))", lambda: f"{t}.squeeze(4)", lambda: f"{t}.numpy()",
            lambda: f"{t}.requires_grad_()", lambda: f"{t}.set_({r.choice(('x', t))}.long())", lambda: f"{t}.float().norm(p='no')",
        )  # fmt: skip

    def context(self) -> None:
        """Write a with statement."""
        header = self.rng.choice((
            "torch.no_grad()", "torch.enable_grad()", "torch.autocast('cpu', dtype=torch.bfloat16)", "Tracked(LOG)", "managed(LOG, n)",
            "contextlib.suppress(ValueError, IndexError, RuntimeError)", "torch.set_grad_enabled(flag)", "torch.inference_mode()", "contextlib.nullcontext(n) as _",
            "torch.inference_mode(flag)", "torch.autocast('cpu', enabled=flag)", "torch.autocast('cpu')",
        ))  # fmt: skip
        known = {kind: list(names) for kind, names in self.names.items()}
        with self.block(f"with {header}:"):
            self.body(self.rng.randint(1, 3))
            known = self.names if "suppress" not in header else known
        self.names = known

    def match(self) -> None:
        """Write a match statement."""
        subject = self.rng.choice(("n", "(n, mode)", "mode", "HELD", "[n, s]", "{'k': n}", "x.shape"))
        self.line(f"match {subject}:")
        cases = self.rng.sample(
            ["case 2:", "case (2, 'a'):", "case 'a' | 'b':", "case Box(count=0):", "case [int(), float()]:", "case {'k': k} if k > 2:", "case (3, _):", "case (a, 'b') if a:"], 3
        )  # fmt: skip
        self.depth += 1
        for case in [*cases, "case _:"]:
            with self.block(case):
                self.body(1)
        self.depth -= 1

    def closure(self) -> None:
        """Define a function that reads and writes its surroundings."""
        name = f"f{self.counter + 1}"
        cell = self.one("int")
        default = self.number()
        with self.block(f"def {name}(y, k={default}):"):
            is_free = cell != "n"
            if is_free and self.rng.random() < 0.4:
                self.line(f"nonlocal {cell}")
                self.line(f"{cell} += 1")
            self.names["matrix"] = ["y", *self.names["matrix"][:1]]
            for kind in ("int", "float"):
                self.names[kind] = self.names[kind][:1]
            for kind in ("row", "scalar", "mask", "function", "list", "dict", "box"):
                self.names[kind] = []
            if self.rng.random() < 0.4:
                self.line(f"y.{self.rng.choice(INPLACE)}")
            self.line(f"return {self.matrix(1)} * k")
        self.counter += 1
        self.names["function"].append(name)

    def comprehension(self) -> None:
        """Write comprehensions, generator expressions and star assignments."""
        m = self.matrix
        texts = (
            ("list", f"[t + i for i, t in enumerate(({m()}, {m()})) if i < n]+[x]"), ("dict", f"{{k: t * 2 for k, t in zip('ab', [{m()}, {m()}])}}"),
            ("matrix", f"sum(t for t in ({m()}, {m()}) if t.dim() == 2)"), ("list", f"[a for [a, *_] in [({m()}, 1), ({m()}, 2)]]"),
            ("matrix", f"(lambda *a, **k: a[0] * len(k))({m()}, {self.number()}, p=1)"), ("matrix", f"functools.partial(double, bias={self.number()})({m()})"),
            ("matrix", f"[h := {m()}, h + 1][1]"), ("int", "sum(i * i for i in range(n) if i % 2)"), ("matrix", f"Pair({m()}, n)._replace(right=s).left"),
        )  # fmt: skip
        kind, text = self.rng.choice(texts)
        self.line(f"{self.new(kind)} = {text}")

    def unusual(self) -> None:
        """Write training, threads, hooks or generators driven by hand."""
        m = self.matrix()
        for text in self.rng.choice((
            ("optimizer.zero_grad()", f"net({m}.detach().float()).square().mean().backward() if torch.is_grad_enabled() else None", "optimizer.step()"),
            ("thread = threading.Thread(target=LOG.append, args=(n,))", "thread.start()", "thread.join()"),
            ("g = echo()", "next(g)", f"NEW = g.send({m})", "g.close()"),
            (f"NEW = torch.cond({self.scalar()} > 0, lambda t: t.sin(), lambda t: t.cos(), ({self.one('matrix')}.float().detach(),))",)
            if self.rng.random() < 0.1 else (f"NEW = jvp(torch.sin, ({m}.float().detach(),), (torch.ones_like(x, dtype=torch.float32),))[0]",),
            (f"NEW = net.train(flag)({m}.float())", "net.eval()"),
            ("handle = net.register_forward_hook(lambda *a: LOG.append(n))", f"NEW = net({m}.float())", "handle.remove()"),
            ("HELD.count, COUNTS['calls'] = COUNTS['calls'], HELD.count",), ("del mode", "mode = 'b'"), (f"if {self.condition()}: return {m}",),
            (f"NEW = torch.utils._pytree.tree_map(lambda t: t + 1, {{'k': [{m}]}})['k'][0]",),
            (f"first, *others = {m}.unbind(0)", "LOG.append(len(others))"), (f"NEW = copy.copy(Box({m})).value",),
        )):  # fmt: skip
            self.line(text.replace("NEW", self.new("matrix")) if "NEW" in text else text)

    def result(self) -> None:
        """Return a few values that are alive."""
        values = [
            self.one("matrix"),
            *(self.one(k) for k in ("row", "scalar", "list", "dict", "box", "int", "mask") if self.has(k)),
        ]
        self.rng.shuffle(values)
        if self.rng.random() < 0.5:
            values.append(self.matrix())
        self.line(f"return {', '.join(values[:4])}")


def calls_of(rng: random.Random) -> list[str]:
    """Return the arguments of each call: other numbers, shapes, layouts and dtypes."""
    shape = (rng.randint(1, 5), rng.randint(1, 6))
    calls = []
    for _ in range(rng.randint(2, 4)):
        if rng.random() < 0.4:
            shape = (rng.randint(1, 6), rng.randint(1, 7))
        a, b = shape
        x = rng.choice((
            f"torch.randn({a}, {b})", f"torch.randn({a}, {b})", f"torch.randn({b}, {a}).t()", f"torch.randn({a}, {2 * b})[:, ::2]", f"torch.randn({a}, {b}, requires_grad=True)",
            f"torch.randn({a}, {b}, requires_grad=True) * 1", f"torch.randn({a}, {b}, dtype=torch.float64)", f"torch.arange({a * b}).reshape({a}, {b})",
            f"torch.randn(1, {b}).expand({a}, {b})", f"torch.randn({a}, 1).expand({a}, {b})", f"torch.randn({a * b + 3})[3:].view({a}, {b})", f"torch.randn({2 * a}, {b})[::2]",
            f"torch.inference_mode()(torch.randn)({a}, {b})", f"torch.randn({a}, {b}, dtype=torch.{rng.choice(('bfloat16', 'float16'))})", f"torch.randn({a}, {b}) > 0",
            f"torch.randn({a}, {b}, requires_grad=True)", f"torch.randn({b}, {a}, requires_grad=True).t()", f"torch.randn({a}, {b}, requires_grad=True).detach()",
            f"torch.randn({a}, {b})", f"torch.randn({a}, {b})", f"torch.randn({a}, {b}).t().contiguous().t()",
        ))  # fmt: skip
        numbers = (rng.randint(0, 4), round(rng.uniform(-1, 3), 1), rng.random() < 0.5, rng.choice("abc"))
        calls.append(f"lambda: ({x}, {', '.join(map(repr, numbers))})")
    return calls


def write_program(seed: int) -> str:
    """Return the text of one program file."""
    writer = ProgramWriter(seed)
    writer.line("x0 = x.clone()")
    writer.names["matrix"] += ["x0"]
    writer.body(writer.rng.randint(3, 9))
    writer.result()
    calls = ",\n    ".join(calls_of(writer.rng))
    function = "\n".join(writer.lines)
    text = f"@program(\n    {calls},\n    tolerance=1e-4,\n)\ndef fuzzed(x, n, s, flag, mode):\n{function}\n"
    return f'"""Random program {seed}."""\n\n{used_definitions(text)}\n\n{text}'
