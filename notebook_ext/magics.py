"""``%%compile`` and the line magics; each parses its line, calls the engine and displays."""

from __future__ import annotations

import argparse
import ast
import os
import pathlib
import shlex
from types import FunctionType
from typing import Any

import torch
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import magic_arguments

from engine import errors
from engine.errors import NotATrace
from engine.observe.load_torch_trace import is_torch_trace, load_torch_trace
from engine.records.base import RecordError
from engine.records.plan import Plan
from engine.records.session import Session
from notebook_ext import cell_arguments, compile_roots, display, line_magic_output, module_shadowing, run_cell
from notebook_ext.compile_run import CompileRun, ExecutingCell
from notebook_ext.compilers import CellCompiler, CompileSettings
from notebook_ext.lesson import LessonMagics
from notebook_ext.plan_cell import LAST_PLAN_NAME, plan_cell
from notebook_ext.run_cell import Cell
from notebook_ext.shell_sessions import LAST_SESSION_NAME, ShellSessions
from notebook_ext.training_drivers import driver_reason
from notebook_ext.views.cell_edits import CellText
from notebook_ext.views.plan import plan_session

COMPLETED_MAGICS = ("%%compile", "%compile")


@magics_class
class CompileMagics(Magics):
    """Magics and sessions of one shell."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.sessions = ShellSessions(shell)

    @no_var_expand
    @magic_arguments("%compile")
    @cell_arguments.add_compile_options
    @cell_magic("compile")  # type: ignore[arg-type]
    def compile_cell(self, line: str, body: str) -> None:
        """Run the cell once with its functions and modules compiled, and show the result.

        Without NAMES, %%compile compiles the nn.Modules and notebook functions that the top level of the cell
        calls. A function that itself calls backward() or an optimizer's step() runs as Python; the modules and
        losses that it calls are compiled. If the cell calls none of these but computes with tensors, the cell
        itself is compiled.

        The session is bound to _compile. Related magics: %compile EXPR runs one expression, %explore shows a
        session or a log again, %guards, %recompiles and %kernels print text, %glossary WORD explains a term.
        Outside a notebook: engine.compile?, engine.record?, engine.explain?. The project's notebooks/ teach all
        of this; notebooks/reference/ lists every reason for a graph break (BREAKS.md) and every kind of guard
        (GUARDS.md).
        """
        options = cell_arguments.parse_arguments(self.compile_cell, line, "%%compile")
        choice, names = cell_arguments.to_settings(options), tuple(options.names)
        subject = self._subject(choice, keep=options.keep) if options.world is None else None
        try:
            parsed = run_cell.parse_cell(self.shell, body)
        except (SyntaxError, ValueError, OverflowError) as error:
            self.shell.showsyntaxerror()
            executing = ExecutingCell(self.shell)
            if not executing.is_cell_magic:
                raise
            executing.mark_failed(error)
            return
        if subject is None:
            plan_cell(self.shell, parsed, options)
            return
        compile_roots.check_names(names, self.shell.user_ns, parsed.bound_names)
        self._run_parsed(options, subject, parsed, names, CellText(line.strip(), body, parsed.file))

    def _subject(self, choice: CompileSettings, *, keep: bool) -> CellCompiler:
        module_shadowing.check_engine_not_shadowed()
        try:
            return self.sessions.compiler_for(choice, keep=keep)
        except errors.EngineError as error:
            raise UsageError(str(error)) from None

    def _run_parsed(
        self,
        options: argparse.Namespace,
        subject: CellCompiler,
        parsed: Cell,
        names: tuple[str, ...],
        text: CellText | None = None,
    ) -> None:
        run = CompileRun(self.shell, cell_arguments.to_run_options(options), subject, parsed, names, text)
        run.record(self.sessions)
        run.check()
        run.save()
        run.show()
        run.finish()

    # Line magics.

    @no_var_expand
    @line_magic("compile")  # type: ignore[arg-type]
    def compile_line(self, line: str) -> Any:
        """Compile a function or module (``%compile NAME``), or run one expression compiled.

        ``%compile NAME`` compiles all later calls of the function or module. ``%compile EXPR`` runs an expression as
        ``%%compile`` does. Options of ``%%compile`` may precede either.
        """
        flags, text = cell_arguments.split_leading_options(line)
        if not text:
            raise UsageError("%compile needs a function, a module or an expression: %compile model, or %compile f(x).")
        options = cell_arguments.parse_arguments(self.compile_cell, flags, "%compile")
        subject = self._subject(cell_arguments.to_settings(options), keep=options.keep)
        tree = parse_expression(text)
        if isinstance(tree, (ast.Name, ast.Attribute, ast.Subscript)):
            self._keep_compiled(text, subject)
            return None
        return self._run_expression(options, subject, text)

    def _keep_compiled(self, text: str, subject: CellCompiler) -> None:
        value = self._evaluate(text)
        if problem := compile_roots.why_not_root(value):
            raise UsageError(f"{text!r} cannot be compiled: {problem}.")
        if isinstance(value, torch.nn.Module):
            subject.compile_module(value)
        elif isinstance(value, FunctionType) and text.isidentifier():
            if kind := compile_roots.uncompilable_kind(value):
                raise UsageError(f"{text!r} cannot be compiled: it is {kind}, and those run as Python.")
            if reason := driver_reason(value, lambda f: f.__globals__ is self.shell.user_ns, is_chosen=True):
                raise UsageError(
                    f"{text!r} runs as Python because {reason}: compile the modules and losses that it calls."
                )
            self.shell.user_ns[text] = compile_roots.compile_root(subject, value)
        else:
            raise UsageError(
                f"%compile needs a module or a function that is bound to a name: give {text!r} a name first."
            )
        print(f"{text} is compiled from now on; its calls in %%compile --keep cells are recorded.")

    def _run_expression(self, options: argparse.Namespace, subject: CellCompiler, text: str) -> Any:
        name = "_compile_value"
        parsed = run_cell.parse_cell(self.shell, f"{name} = ({text})")
        try:
            self._run_parsed(options, subject, parsed, ())
            return self.shell.user_ns.get(name)
        finally:
            self.shell.user_ns.pop(name, None)

    @no_var_expand
    @line_magic
    def explore(self, line: str) -> None:
        """Show a recorded session, or the changes between two sessions.

        ``%explore``: the last session.
        ``%explore FILE``: a saved session, or a trace of stock torch.compile (a TORCH_TRACE log or a folder of logs).
        ``%explore NAME``: the session or plan bound to a name.
        ``%explore A B``: the changes between two sessions.
        ``%explore --diff``: the changes since the previous run of the last cell.
        ``%explore --diff A``: the changes from A to the last session.
        """
        paths_text = line.strip().removeprefix("--diff")
        if paths_text != line.strip() and not paths_text[:1].strip():
            self._explore_comparison(self._split_paths(paths_text))
            return
        paths = self._split_paths(line)
        if len(paths) == 2:
            first, second = map(self._resolve_session, paths)
            display.show_session_comparison(self.shell, first, second, *paths)
        elif len(paths) > 2:
            raise UsageError("%explore needs one session, or two to compare; quote a path that contains spaces.")
        else:
            display.explore(self.shell, self._resolve_session(paths[0] if paths else ""))

    def _explore_comparison(self, paths: list[str]) -> None:
        if len(paths) > 2:
            raise UsageError("%explore --diff needs at most two sessions; quote a path that contains spaces.")
        if paths:
            first, second = self._resolve_session(paths[0]), self._resolve_session(paths[1] if len(paths) > 1 else "")
            names = (paths[0], paths[1] if len(paths) > 1 else "the last session")
        else:
            second, names = self._resolve_session(""), ("the previous run", "this run")
            before = self.sessions.previous_run(second)
            if before is None:
                raise UsageError(
                    "The last %%compile cell ran only once: run it again, or name two sessions: %explore --diff A B."
                )
            first = before
        display.show_session_comparison(self.shell, first, second, *names)

    def _split_paths(self, line: str) -> list[str]:
        """Split a line into words; an existing path may hold spaces without quotes."""
        text = line.strip()
        if not text or text in self.shell.user_ns or pathlib.Path(text.strip("\"'")).expanduser().exists():
            return [text] if text else []
        try:
            return shlex.split(text, posix=os.name != "nt")
        except ValueError:
            return [text]

    @no_var_expand
    @line_magic
    def guards(self, line: str) -> None:
        """Show guards, or explain which entry a call would use.

        ``%guards f``: all guards of f's cache entries.
        ``%guards f(x, 2)``: which entry the call would use and which guards of the others fail. Runs nothing.
        With widgets, it also opens the explorer on these guards.
        """
        tree = parse_expression(line)
        if isinstance(tree, ast.Call):
            value = self._evaluate_callable(ast.unparse(tree.func))
            positional, keywords = self._evaluate(f"(lambda *a, **k: (a, k))({_call_arguments(tree)})")
            explanation = line_magic_output.explain_call(value, positional, keywords)
            print(explanation if isinstance(explanation, str) else line_magic_output.explanation_text(explanation))
            if not isinstance(explanation, str):
                display.show_guards_of_call(self.shell, self.sessions.last, explanation)
        else:
            print(line_magic_output.guards_text(self._evaluate_callable(line), self.sessions.last))

    @no_var_expand
    @line_magic
    def recompiles(self, line: str) -> None:
        """Show why f was compiled more than once in the last recorded cell: ``%recompiles f``."""
        print(line_magic_output.recompiles_text(self._resolve_session(""), self._evaluate_callable(line)))

    @no_var_expand
    @line_magic
    def kernels(self, line: str) -> None:
        """Show the kernels of f in the last recorded cell as Triton code: ``%kernels f``."""
        print(line_magic_output.kernels_text(self._resolve_session(""), self._evaluate_callable(line)))

    def _resolve_session(self, text: str) -> Session:
        if not text:
            if self.sessions.last is None:
                raise UsageError("Nothing is recorded yet: run a %%compile cell first.")
            return self.sessions.last
        named = self.shell.user_ns.get(text)
        if isinstance(named, Session):
            return named
        if isinstance(named, Plan):
            return plan_session(named)
        path_text = named if isinstance(named, (str, pathlib.Path)) else text.strip("\"'")
        path = pathlib.Path(path_text).expanduser()
        if not path.exists():
            raise UsageError(
                f"{text!r} is neither a session or plan bound to a name, nor the file of a saved session or of a torch trace."
            )
        try:
            return load_torch_trace(path) if is_torch_trace(path) else Session.load(path)
        except (RecordError, NotATrace) as error:
            raise UsageError(str(error)) from None

    def _evaluate_callable(self, text: str) -> Any:
        if not text.strip():
            raise UsageError("Which function? Name a compiled function or module, for example %guards f.")
        value = self._evaluate(text)
        if problem := compile_roots.why_not_root(value):
            raise UsageError(f"{text.strip()!r} is not something that was compiled: {problem}.")
        return value

    def _evaluate(self, text: str) -> Any:
        try:
            return eval(text.strip(), self.shell.user_global_ns, self.shell.user_ns)
        except Exception as error:
            raise UsageError(f"{text.strip()!r} cannot be evaluated: {type(error).__name__}: {error}") from None


def parse_expression(text: str) -> ast.expr:
    """Parse one expression.

    Raises:
        UsageError: the text is not an expression.
    """
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise UsageError(f"{text.strip()!r} is not a Python expression: {error.msg}.") from None


def _call_arguments(call: ast.Call) -> str:
    return ", ".join(
        [
            *map(ast.unparse, call.args),
            *(f"{k.arg}={ast.unparse(k.value)}" if k.arg else f"**{ast.unparse(k.value)}" for k in call.keywords),
        ]
    )


def register(shell: InteractiveShell) -> None:
    """Add the magics and their completion to a shell."""
    shell.register_magics(CompileMagics(shell), LessonMagics(shell))
    complete = cell_arguments.make_completer(shell)
    for key in COMPLETED_MAGICS:
        shell.strdispatchers["complete_command"].strs.pop(key, None)
        shell.set_hook("complete_command", lambda _, event: complete(event), str_key=key)


def unregister(shell: InteractiveShell) -> None:
    """Remove the magics, their completion and the name of the last session."""
    manager = shell.magics_manager
    for magics in (CompileMagics, LessonMagics):
        for kind, names in magics.magics.items():
            for name in names:
                manager.magics[kind].pop(name, None)
        manager.registry.pop(magics.__name__, None)
    for key in COMPLETED_MAGICS:
        shell.strdispatchers["complete_command"].strs.pop(key, None)
    shell.user_ns.pop(LAST_PLAN_NAME, None)
    shell.user_ns.pop(LAST_SESSION_NAME, None)
    shell.user_ns_hidden.pop(LAST_SESSION_NAME, None)
