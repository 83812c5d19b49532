"""Arguments of the magics: parsing, checks and completion."""

from __future__ import annotations

import argparse
import difflib
import pathlib
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic_arguments import argument

from notebook_ext.compilers import CompileSettings, backend_names, is_torch_backend

COMPILE_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "--backend",
        {
            "default": "triton",
            "metavar": "B",
            "help": "triton (default), aot_eager, eager, inductor, or torch[:inductor|:aot_eager|:eager] for stock torch.compile.",
        },
    ),
    (
        "--target",
        {
            "default": None,
            "metavar": "T",
            "help": "Target of the kernels: cuda:90, hip:gfx942, ... Default: the GPU of this machine, else cuda:90.",
        },
    ),
    ("--dynamic", {"action": "store_true", "help": "Make every size a symbol."}),
    (
        "--static",
        {"action": "store_true", "help": "Make no size a symbol. Default: static first, then those seen to change."},
    ),
    (
        "--fused-random",
        {"action": "store_true", "help": "Let kernels on a GPU generate random numbers, which are not those of eager."},
    ),
    ("--fullgraph", {"action": "store_true", "help": "Raise GraphBreak instead of breaking the graph."}),
    (
        "--compare",
        {
            "action": "store_true",
            "help": "Also run the recorded calls through stock torch.compile, on copies of their inputs.",
        },
    ),
    (
        "--verify",
        {
            "action": "store_true",
            "help": "Run the kernels on this CPU or in Triton's interpreter and compare with ATen.",
        },
    ),
    ("--steps", {"action": "store_true", "help": "Keep every instruction that the tracer executes."}),
    (
        "--launches",
        {
            "action": "store_true",
            "help": "Record each launch of a kernel: shapes, grid, time, and the call that led to it.",
        },
    ),
    (
        "--keep",
        {"action": "store_true", "help": "Continue with what earlier cells compiled instead of starting empty."},
    ),
    (
        "--no-static",
        {"action": "store_true", "help": "Save the summary line only, without the static tables and pictures."},
    ),
    (
        "--save",
        {
            "default": "",
            "metavar": "FILE",
            "help": "Save the session: as one page that needs nothing when FILE ends in .html, else as JSON. The file holds your source code.",
        },
    ),
    (
        "--world",
        {
            "default": None,
            "type": int,
            "metavar": "N",
            "help": "Plan the cell as one rank of N without devices, instead of running it: collectives, memory, modeled time.",
        },
    ),
    ("--mesh", {"default": "", "metavar": "M", "help": "With --world: sizes of the mesh by name, as dp=8,tp=8."}),
    (
        "-o",
        {
            "default": "",
            "metavar": "NAME",
            "dest": "output",
            "help": "Also bind the session or plan to NAME; _compile always has the last session, _plan the last plan.",
        },
    ),
)


def add_compile_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of ``%%compile`` to a magic, in the order of the help text."""
    for flag, details in reversed(COMPILE_OPTIONS):
        function = argument(flag, **details)(function)
    names = argument(
        "names",
        nargs="*",
        metavar="NAMES",
        help="Functions and modules to compile. Default: those that the cell calls.",
    )
    return names(function)  # type: ignore[no-any-return]


def parse_arguments(magic: Any, line: str, name: str) -> argparse.Namespace:
    """Parse the line of the magic called ``name``.

    Raises:
        UsageError: an unknown argument, an option without its value, or an unclosed quote.
    """
    try:
        tokens = split_words(line)
    except ValueError:
        raise UsageError(f"A quote is not closed in the line of {name}: {line.strip()}") from None
    try:
        options, unknown = magic.parser.parse_known_intermixed_args(tokens)
    except UsageError as error:
        raise UsageError(_readable_usage(str(error), name)) from None
    if unknown:
        flags = [flag for action in magic.parser._actions for flag in action.option_strings]
        near = difflib.get_close_matches(unknown[0].partition("=")[0], flags, n=1)
        hint = f"did you mean {near[0]}?" if near else f"{name}? lists all."
        raise UsageError(f"{name} has no option {unknown[0]!r}: {hint}")
    arguments: argparse.Namespace = options
    return arguments


def _readable_usage(text: str, name: str) -> str:
    """Return argparse's text on an option's value as a sentence that names the option."""
    if missing := re.fullmatch(r"argument (\S+): expected one argument", text):
        return f"{name} {missing[1]} needs a value after it; {name}? lists all options."
    if number := re.fullmatch(r"argument (\S+): invalid int value: (.*)", text):
        return f"{name} {number[1]} needs a whole number, not {number[2]}."
    return text


def split_words(line: str) -> list[str]:
    """Split a line into words. Quotes group words; backslashes stay (paths on Windows).

    Raises:
        ValueError: a quote is not closed.
    """
    words = shlex.shlex(line, posix=True)
    words.whitespace_split, words.commenters, words.escape = True, "", ""
    return list(words)


def to_settings(arguments: argparse.Namespace) -> CompileSettings:
    """Return the compile settings that the arguments select.

    Raises:
        UsageError: the arguments contradict each other, or one has an invalid value.
    """
    if arguments.dynamic and arguments.static:
        raise UsageError("--dynamic and --static exclude each other: give one of them, or neither for static first.")
    if arguments.mesh and arguments.world is None:
        raise UsageError("--mesh needs --world: give the number of ranks too.")
    if arguments.output and not arguments.output.isidentifier():
        raise UsageError(f"-o needs a Python name to bind the session to, not {arguments.output!r}.")
    if arguments.save and not pathlib.Path(arguments.save).expanduser().absolute().parent.is_dir():
        raise UsageError(f"--save: there is no folder {str(pathlib.Path(arguments.save).parent)!r} to save into.")
    if arguments.compare and is_torch_backend(arguments.backend):
        raise UsageError("--compare compares our compiler with torch.compile: leave out --backend torch.")
    if arguments.launches and is_torch_backend(arguments.backend):
        raise UsageError("--launches records kernels of our compiler: leave out --backend torch.")
    if arguments.fused_random and is_torch_backend(arguments.backend):
        raise UsageError("--fused-random is an option of our compiler: leave out --backend torch.")
    dynamic = True if arguments.dynamic else False if arguments.static else None
    return CompileSettings(
        backend=arguments.backend,
        target=arguments.target,
        dynamic=dynamic,
        fullgraph=arguments.fullgraph,
        fused_random=arguments.fused_random,
        level="steps" if arguments.steps else "standard",
        launches=arguments.launches,
    )


@dataclass(frozen=True)
class RunOptions:
    """Options of ``%%compile`` that do not concern the compiler, but the run and its session."""

    output: str = ""
    """Name to bind the session to, beside ``_compile``."""
    compare: bool = False
    verify: bool = False
    save: pathlib.Path | None = None
    no_static: bool = False


def to_run_options(arguments: argparse.Namespace) -> RunOptions:
    """Return the run's options; kernels of stock torch.compile cannot be verified."""
    verify = arguments.verify and not is_torch_backend(arguments.backend)
    save = pathlib.Path(arguments.save) if arguments.save else None
    return RunOptions(arguments.output, arguments.compare, verify, save, arguments.no_static)


def make_completer(shell: InteractiveShell) -> Callable[[SimpleNamespace], list[str]]:
    """Return a completer for the line of ``%%compile``.

    It completes options, their values, and names of functions and modules.
    """

    def complete(event: SimpleNamespace) -> list[str]:
        words = event.text_until_cursor.split("\n")[0].split()
        at_word = bool(event.symbol) or event.text_until_cursor.endswith(":")
        before = words[-2] if at_word and len(words) > 1 else words[-1] if words else ""
        current = words[-1] if at_word and words else ""
        if before == "--backend":
            return _after_colon(backend_names(), current)
        if before == "--target":
            return _after_colon(target_names(), current)
        return [*(flag for flag, _ in COMPILE_OPTIONS), *compilable_names(shell)]

    return complete


def _after_colon(words: tuple[str, ...], current: str) -> list[str]:
    """Return the candidates; after a colon only the rest, as IPython completes single words."""
    head, colon, _ = current.rpartition(":")
    return [w.removeprefix(f"{head}:") for w in words if w.startswith(f"{head}{colon}")] if colon else list(words)


def target_names() -> tuple[str, ...]:
    """Return the GPUs that ``--target`` accepts."""
    from engine.kernels.gpu_targets import TARGETS

    return tuple(TARGETS)


def compilable_names(shell: InteractiveShell) -> list[str]:
    """Return the names of functions and modules in the notebook."""
    hidden = shell.user_ns_hidden
    return sorted(
        name
        for name, value in shell.user_ns.items()
        if name not in hidden and not name.startswith("_") and isinstance(value, (torch.nn.Module, FunctionType))
    )


def split_leading_options(line: str) -> tuple[str, str]:
    """Split ``--backend eager f(x) - 1`` into the options and the expression after them."""
    valued = {flag for flag, details in COMPILE_OPTIONS if details.get("action") != "store_true"}
    remaining = line.strip()
    options: list[str] = []
    while match := re.match(r"(--?[a-z][\w-]*)(=\S+)?(\s+|$)", remaining):
        options.append(match.group(0).strip())
        remaining = remaining[match.end() :]
        if match.group(1) in valued and not match.group(2):
            value, _, remaining = remaining.partition(" ")
            options.append(value)
            remaining = remaining.strip()
    return " ".join(options), remaining
