"""Edited graphs: compile a function with an edited text in place of one of its graphs."""

from __future__ import annotations

import ast
import functools
import hashlib
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch.fx

from engine import api, errors
from engine.editing.edit_kernels import KernelTextEdit, editable_kernels, is_kernel_text, kernel_text
from engine.find_compilation import find_compilation
from engine.graph.user_passes.read_graph import graph_digest, lines_of, read_graph
from engine.ir.generated_sources import store_source
from engine.ir.pass_set import UserPass
from engine.ir.unwrap_compiled import unwrap_compiled
from engine.options import Options
from engine.pipeline import Pipeline
from engine.records.bytecode import Span
from engine.records.session import Session

STAGES = {"fx": "traced", "aten": "aten", "joint": "aten"}
"""Stage of an editable graph -> stage of the pass that replaces it."""
_HEAD = re.compile(r"# (\w+) graph (\S*) of (.*): (\w+)$")


def graph_text(session: Session, compilation: str, stage: str = "aten") -> str:
    """Return a recorded graph as Python text, or the text of a kernel, for ``engine.edited``.

    Args:
        session: a live or loaded session.
        compilation: id of the compilation ("0/0").
        stage: "fx" (the traced graph), "aten" (a call without gradients), "joint" (with gradients), or the id of a
            kernel ("k0").

    Raises:
        BadArgument: there is no such compilation, graph or kernel; the message lists those that exist.
    """
    record = find_compilation(session, compilation)
    graphs = {g.stage: g for g in record.graphs if g.stage in STAGES and g.nodes}
    kernels = {k.id: k for k in editable_kernels(record)}
    graph, kernel = graphs.get(stage), kernels.get(stage)
    if graph is None and kernel is None:
        raise errors.BadArgument(
            f"{compilation} has no {stage!r} to edit. It has {', '.join((*graphs, *kernels)) or 'none'}."
        )
    name = next((f.name for f in session.frames if f.id == record.frame), "")
    if kernel is not None:
        return kernel_text(kernel, compilation, name)
    assert graph is not None
    digest = graph.digest or graph_digest(n.text for n in graph.nodes)
    inputs = [n.name for n in graph.nodes if n.op == "placeholder"]
    lines = [f"# {stage} graph {compilation} of {name}: {digest}", f"def graph({', '.join(inputs)}):"]
    for node in graph.nodes:
        if node.op != "placeholder":
            kind = f"  # {node.dtype}[{', '.join(node.shape)}]" if node.shape is not None else ""
            lines.append(f"    {node.text}{kind}")
    return "\n".join(lines) + "\n"


class GraphEdit:
    """A pass that replaces each graph whose text equals the original of an edited text."""

    def __init__(self, text: str, file: str) -> None:
        """Read the comment at the head of a text.

        Raises:
            BadArgument: the text does not begin with it.
        """
        head = _HEAD.match(text.partition("\n")[0])
        if head is None or head[1] not in STAGES:
            raise errors.BadArgument(
                "The text of an edited graph must begin with the comment that engine.graph_text wrote: "
                "it names the graph that the edit is for."
            )
        self.stage, self.place, self.digest = head[1], head[2], head[4]
        self.text, self.file, self.applied = text, file, 0
        store_source(file, text)

    def __call__(self, module: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
        """Return the edited graph; None if ``module`` is not the graph that was edited."""
        if graph_digest(lines_of(module)) != self.digest:
            return None
        self.applied += 1
        return read_graph(module, self.text, self.file)

    @property
    def unused(self) -> str:
        """Why the edit had no effect; empty if a graph was replaced."""
        if self.applied:
            return ""
        return (
            f"Compiled without your edit: no graph equals the {self.stage} graph {self.place} now. Something that the "
            "function reads, such as an attribute or a size, has changed since. Run it again, and edit the new graph."
        )

    def as_pass(self) -> UserPass:
        """Return the edit as a pass that runs after the registered ones."""
        key = hashlib.sha256(self.text.encode()).hexdigest()
        name = f"edit of the {self.stage} graph"
        return UserPass(name, STAGES[self.stage], self, key, Span(self.file, 2), reports_difference=True)


class EditedFunction:
    """A compiled function with edited graphs; called like the function."""

    def __init__(self, fn: Callable[..., Any], texts: Mapping[str, str], options: Options) -> None:
        functools.update_wrapper(self, fn, updated=())
        kernels = {name: KernelTextEdit(text) for name, text in texts.items() if is_kernel_text(text)}
        graphs = [GraphEdit(text, f"<edit {name}>") for name, text in texts.items() if name not in kernels]
        self._edits: list[GraphEdit | KernelTextEdit] = [*graphs, *kernels.values()]
        self._texts = dict(texts)
        self._options = options
        pipeline = Pipeline(options)
        pipeline.edits = tuple(e.as_pass() for e in graphs)
        pipeline.kernel_edits = tuple(kernels.values())
        self._run = api.compile_with(unwrap_compiled(fn), pipeline)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function with the edited graphs."""
        return self._run(*args, **kwargs)

    @property
    def unused(self) -> tuple[str, ...]:
        """Edits that replaced nothing: no graph or kernel had the original text. Sentences."""
        return tuple(e.unused for e in self._edits if e.unused)

    def keep(self, path: str | pathlib.Path) -> pathlib.Path:
        """Write a Python file whose ``apply(fn)`` compiles a function with these edits."""
        file = pathlib.Path(path)
        backend = self._options.backend if api.backend_is_named(self._options) else "triton"
        file.write_text(edit_file_text(self._texts, str(backend)), encoding="utf-8")
        return file


def edit_file_text(texts: Mapping[str, str], backend: str) -> str:
    """Return a Python file whose ``apply(fn)`` compiles with edited graphs and kernels."""
    entries = "".join(f"    {name!r}: {_string_literal(text)},\n" for name, text in texts.items())
    return f'''"""Edited graphs and kernels: "apply(function)" compiles the function with them.

They were checked on the inputs of one call; other inputs were not checked.
"""

import engine

# The first line of each text names the graph or kernel that it replaces: leave it as it is.
TEXTS = {{
{entries}}}


def apply(fn):
    """Return the function compiled with the edited texts."""
    return engine.edited(fn, TEXTS, backend={backend!r})
'''


def _string_literal(text: str) -> str:
    """Return a text as a literal that spans its lines.

    It is written as by ``repr`` if Python would read another text.
    """
    escaped = text.replace("\\", "\\\\").replace('"""', r"\"\"\"")
    literal = f'"""\\\n{escaped}"""'
    try:
        return literal if ast.literal_eval(literal) == text else repr(text)
    except (SyntaxError, ValueError):
        return repr(text)


def edited(
    fn: Callable[..., Any],
    texts: Mapping[str, str],
    *,
    backend: str | Callable[..., Any] = "triton",
    dynamic: bool | None = None,
    target: str | None = None,
) -> EditedFunction:
    """Compile a function with edited text in the place of some of its graphs and kernels.

    Each text is an edited copy of what ``engine.graph_text`` returned. It replaces every graph or kernel that had the
    original text, and later stages continue from it. An edited kernel runs in this process without any checks.
    Unchanged lines retain their source lines, values and symbols. The results must have the same layouts as before,
    else the edit is undone with a ``PassUndone`` warning that names the line. Values are compared too; a difference is
    a ``WrongResult`` warning.

    Args:
        fn: a function or a module, compiled or not.
        texts: texts by a name of your choice, which messages use.
        backend: as for ``compile``.
        dynamic: as for ``compile``.
        target: as for ``compile``.

    Raises:
        BadArgument: a text does not begin with the comment of ``graph_text``; or as for ``compile``.
    """
    return EditedFunction(fn, texts, api.make_options(backend, dynamic=dynamic, target=target))
