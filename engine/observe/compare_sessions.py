"""Comparison of two sessions of this engine or of torch.compile."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from engine.observe.canonical.compare_compilations import compare_graph_lists, limit_lines
from engine.observe.canonical.compare_kernels import compare_kernel_lists, pair_kernels
from engine.observe.canonical.returned_value import returned_term
from engine.records.counts import compile_seconds, unique_kernels
from engine.records.format_amounts import format_seconds
from engine.records.guards import GuardRecord
from engine.records.session import CompilationRecord, FrameRecord, Session
from engine.records.session_comparison import AspectComparison, FrameComparison, KernelPair, SessionComparison

TIME_TOLERANCE = 1.25
"""Maximum ratio of two times that count as equal."""
_PROCESS_NUMBERS = re.compile(r"\b(?:0x[0-9a-fA-F]{4,}|\d{6,})\b")
"""Addresses and ids, which differ between processes."""
_GENERATED = re.compile(r"\b(__\w*?_)\d+\b")
"""Names that torch.compile generates with a process-wide number: ``__builtins_dict___3``."""
_HASH = re.compile(r"\b[a-z2-7]{40,}\b")
_DIGITS = re.compile(r"\d+")
_NAME_KINDS = {"code", "library functions"}
"""Kinds of guards on what a name refers to."""
_STOCK_NAME_TYPES = {f"<class '{kind}'>" for kind in ("module", "builtin_function_or_method", "function", "code")}
"""Types in guards of torch.compile on what a name refers to."""
_LIBRARY_MODULE = re.compile(r"^(?:<class ')?torch\.nn\.modules\.")
"""Type of a module of torch, whose settings are constants of the graph."""
_MODULE_IDENTITY = re.compile(r"^G\[\S+ is G\[\S+$")
_LIBRARY_NAME = re.compile(r"G\['(?:__builtins_dict___|__import_|torch'\])")
"""Start of the sources by which torch.compile guards names of Python and torch."""
_INDICES = re.compile(r"(?:\[[^\[\]]*\])+$")
_NO_OVERLAP = "no memory shared with "
_NAME_SUFFIX = re.compile(r"( \((from line|rank|process) \d+\))+$")

CompilationRecords = tuple[CompilationRecord, ...]
FrameGroups = dict[tuple[str, str, int], list[FrameRecord]]


def compare_sessions(first: Session, second: Session) -> SessionComparison:
    """Compare two sessions as a whole and function by function.

    Functions are matched by name and file, not by line or id, and what runs after a graph break by its order.
    Two different compilers are compared by compilations, graphs and the lines of breaks; the rest is figures.
    """
    before = _group_frames(first)
    is_one_compiler = first.compiler == second.compiler
    after = _match_names(before, _group_frames(second), is_one_compiler=is_one_compiler)
    frames = [
        _compare_frame(key, before.get(key, []), after.get(key, []), first, second)
        for key in dict.fromkeys([*before, *after])
    ]
    whole = _compare_aspects(first.compilations, second.compilations, is_one_compiler=is_one_compiler)
    return SessionComparison(tuple(replace(c, only_first=(), only_second=()) for c in whole), tuple(frames))


def _group_frames(session: Session) -> FrameGroups:
    """Group frames by name, file and occurrence number.

    Several frames can have one name, as each call of a decorator creates one.
    """
    groups: FrameGroups = {}
    seen: Counter[tuple[str, str]] = Counter()
    compiled = {c.frame for c in session.compilations}
    for frame in session.frames:
        if frame.id not in compiled:
            continue
        key = (_NAME_SUFFIX.sub("", frame.name), _file_key(frame.file))
        groups.setdefault((*key, seen[key]), []).append(frame)
        seen[key] += 1
    return groups


def _match_names(before: FrameGroups, after: FrameGroups, *, is_one_compiler: bool) -> FrameGroups:
    """Return the second session's groups under the first one's names.

    One session may have ``Net.forward`` where the other does not know the class and has ``forward``. A file may have
    been renamed. What is left of two compilers is matched in order.
    """
    free = [key for key in before if key not in after]
    matched = after
    for short in (_without_owner, _without_file):
        names: dict[tuple[str, str, int], tuple[str, str, int]] = {}
        for key in matched:
            equal = None if key in before else next((k for k in free if short(k) == short(key)), None)
            if equal is not None:
                free.remove(equal)
                names[key] = equal
        matched = {names.get(key, key): frames for key, frames in matched.items()}
    left = [key for key in matched if key not in before]
    if is_one_compiler or len(left) != len(free):
        return matched
    # One of them gives a frame of its own to a wrapper that the other one looks through.
    names = dict(zip(left, free, strict=True))
    return {names.get(key, key): frames for key, frames in matched.items()}


def _without_file(key: tuple[str, str, int]) -> tuple[str, int]:
    return key[0], key[2]


def _without_owner(key: tuple[str, str, int]) -> tuple[str, str]:
    return key[0].rpartition(".")[2], key[1]


def _compare_frame(
    key: tuple[str, str, int], before: list[FrameRecord], after: list[FrameRecord], first: Session, second: Session
) -> FrameComparison:
    old, new = _compilations_of(first, before), _compilations_of(second, after)
    is_one_compiler = first.compiler == second.compiler
    changes = _compare_aspects(old, new, is_one_compiler=is_one_compiler) if before and after else ()
    frame = (before or after)[0]
    kernels = pair_kernels(old, new) if before and after else ()
    verdict = (
        _function_verdict(changes, kernels) if before and after else f"only in the {'first' if before else 'second'}"
    )
    ids = tuple(c.id for c in old), tuple(c.id for c in new)
    return FrameComparison(frame.name, key[1], *ids, changes, kernels, verdict)


def _function_verdict(aspects: tuple[AspectComparison, ...], kernels: tuple[KernelPair, ...]) -> str:
    """Return the verdict on a function that both sessions have."""
    changed = {a.aspect: a for a in aspects if not a.is_same and not a.is_figure}
    if "graphs" in changed:
        line = changed["graphs"].line
        return f"different (line {line})" if line else "different"
    if not changed:
        return "equal, reordered" if any(a.is_reordered for a in aspects) else "equal"
    if changed.keys() == {"kernels"} and all(pair.is_same for pair in kernels):
        return "different: text of kernels"
    is_fusion = changed.keys() <= {"kernels", "library calls"}
    return "equal, fused otherwise" if is_fusion else f"different: {', '.join(changed)}"


def _compilations_of(session: Session, frames: list[FrameRecord]) -> CompilationRecords:
    ids = {f.id for f in frames}
    return tuple(c for c in session.compilations if c.frame in ids)


def _compare_aspects(
    before: CompilationRecords, after: CompilationRecords, *, is_one_compiler: bool
) -> tuple[AspectComparison, ...]:
    graphs = compare_graph_lists(before, after, is_one_compiler=is_one_compiler)
    # The text of equal graphs' kernels differs only by an edit; stock's generated names differ by themselves.
    is_engine = all(c.compiler == "engine" for c in (*before, *after))
    aspects = (
        _compare_aspect("compilations", before, after, lambda cs: (c.cause for c in cs), lambda c: str(len(c))),
        graphs,
        _compare_aspect("results", before, after, _results),
        _compare_aspect("breaks", before, after, _breaks if is_one_compiler else _break_lines),
        _compare_aspect("guards", before, after, _guards),
        compare_kernel_lists(before, after, with_text=is_engine and graphs.is_same and not graphs.is_reordered),
        _compare_aspect("library calls", before, after, _externs),
        _compare_aspect("restarts", before, after, lambda cs: (r for c in cs for r in c.restart_reasons)),
        _compare_aspect("failures", before, after, lambda cs: (f.sentence for c in cs for f in c.failures)),
        _compare_times("compile time", _compile_seconds(before), _compile_seconds(after)),
        _compare_times("run time of kernels", _run_seconds(before), _run_seconds(after)),
    )
    # Only bytecode of one compiler shows how results are assembled.
    return aspects if is_one_compiler else tuple(_without_wording(a) for a in aspects if a.aspect != "results")


def _without_wording(aspect: AspectComparison) -> AspectComparison:
    """Keep what two compilers have in common.

    Each words causes and guards, and cuts kernels, in its own way.
    """
    if aspect.aspect in ("graphs", "breaks"):
        return aspect
    return replace(aspect, only_first=(), only_second=(), is_figure=aspect.aspect != "compilations")


def _compare_aspect(
    what: str,
    before: CompilationRecords,
    after: CompilationRecords,
    facts_of: Callable[[CompilationRecords], Iterable[str]],
    short: Callable[[CompilationRecords], str] | None = None,
) -> AspectComparison:
    """Compare one aspect: facts that only one side has, with their excess counts."""
    old, new = (
        Counter(map(normalize_process_names, facts_of(before))),
        Counter(map(normalize_process_names, facts_of(after))),
    )
    counts = (short(before), short(after)) if short else (str(old.total()), str(new.total()))
    return AspectComparison(what, *counts, _counted_lines(old - new), _counted_lines(new - old))


def _counted_lines(counted: Counter[str]) -> tuple[str, ...]:
    return limit_lines([text if count == 1 else f"{text}  (× {count})" for text, count in counted.items()])


def normalize_process_names(text: str) -> str:
    """Replace what differs in each process: generated numbers, addresses, ids and hashes."""
    text = _GENERATED.sub(r"\1…", text)
    return _HASH.sub("…", _PROCESS_NUMBERS.sub("…", text))


def _breaks(compilations: CompilationRecords) -> Iterable[str]:
    for record in (b for c in compilations if c.trace for b in c.trace.breaks):
        where = f" ({_file_key(record.span.file)})" if record.span else ""
        yield f"{record.title}: {record.context}{where}" + (", the frame runs as Python" if record.skips_frame else "")


def _break_lines(compilations: CompilationRecords) -> Iterable[str]:
    for record in (b for c in compilations if c.trace for b in c.trace.breaks):
        yield f"line {record.span.line} of {_file_key(record.span.file)}" if record.span else record.title


def _results(compilations: CompilationRecords) -> Iterable[str]:
    """Yield how the code after each graph assembles the returned value.

    Code with a graph break contains what Python runs, which spellings of one computation do not share.
    """
    traces = (c.trace for c in compilations if c.trace and not c.trace.breaks)
    return filter(None, (returned_term(trace.modified_instructions) for trace in traces))


def _guards(compilations: CompilationRecords) -> Iterable[str]:
    """Yield the guards on values; those on functions and on torch's modules are spelling."""
    for compilation in (c for c in compilations if c.guards):
        guards = compilation.guards.guards if compilation.guards else ()
        modules = {g.source for g in guards if _LIBRARY_MODULE.search(g.expected)}
        tensors = {g.source for g in guards if g.kind in ("dtype", "TENSOR_MATCH")}
        for record in guards:
            owner = _INDICES.sub("", record.source).rpartition(".")[0]
            is_setting = record.source not in tensors and not modules.isdisjoint((record.source, owner))
            if not is_setting and not _is_of_name(record):
                yield _guard_text(record)


def _guard_text(record: GuardRecord) -> str:
    if record.kind == "no overlap":  # of a pair, one has the guard: the one that the code reads first
        names = {_short_name(record.source), *record.expected.removeprefix(_NO_OVERLAP).split(", ")}
        return f"{record.kind}: {', '.join(sorted(names))}"
    # Hooks are numbered in a process.
    expected = _DIGITS.sub("…", record.expected) if record.source.endswith("_hooks") else record.expected
    return f"{record.source} {record.kind}: {expected}"


def _short_name(source: str) -> str:
    """Return a source as the guard against overlap names it: ``x`` for ``L['x']``."""
    return re.sub(r"^L\['(\w+)'\]", r"\1", source)


def _is_of_name(guard: GuardRecord) -> bool:
    """Return True for a guard that a name still refers to the same function, class or module."""
    return (
        guard.kind in _NAME_KINDS
        or (guard.kind == "id" and guard.expected.startswith(("module ", "missing", "builtin_function_or_method")))
        or (guard.kind == "id" and guard.expected == f"function {guard.source}")
        or _MODULE_IDENTITY.search(guard.expected) is not None
        or _LIBRARY_NAME.match(guard.source) is not None
        or (guard.kind == "ID_MATCH" and guard.expected in _STOCK_NAME_TYPES)
    )


def _externs(compilations: CompilationRecords) -> Iterable[str]:
    return (e.op for c in compilations if c.lowering for e in c.lowering.externs)


def _compile_seconds(compilations: CompilationRecords) -> float:
    return sum(map(compile_seconds, compilations))


def _run_seconds(compilations: CompilationRecords) -> float:
    """Return the seconds of one launch of each kernel, as far as they are measured."""
    kernels = [k for c in compilations for k in (*c.cpu_kernels, *unique_kernels(c))]
    return sum(k.measured.seconds * k.measured.launches for k in kernels if k.measured is not None)


def _compare_times(aspect: str, old: float, new: float) -> AspectComparison:
    slow, fast = max(old, new), min(old, new)
    texts = [format_seconds(t, 3) if t else "not measured" for t in (old, new)]
    return AspectComparison(aspect, texts[0], texts[0] if slow <= fast * TIME_TOLERANCE else texts[1], is_figure=True)


def _file_key(file: str) -> str:
    """Return the file name without its folder; all notebook cells count as one file.

    Each notebook kernel numbers its cells differently.
    """
    return "a cell" if "ipykernel_" in file or file.startswith("<ipython") else re.split(r"[/\\]", file)[-1]
