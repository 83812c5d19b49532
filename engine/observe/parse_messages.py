"""Parser of torch's messages: breaks, recompile reasons, printed guard trees, metrics."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.observe.break_words import with_catalog_words
from engine.observe.json_values import as_list, as_number
from engine.observe.parse_graph import SHORT_DTYPES
from engine.records.bytecode import Span
from engine.records.guards import Fix, GuardFailure, GuardRecord, GuardsRecord, separate_entries
from engine.records.runtime import Timing
from engine.records.trace import BreakRecord

_FRAME = re.compile(r'^ {2,3}File "(?P<file>.+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)
_TITLE = re.compile(r"Graph Break Reason: (?P<text>.*?)(?=\n  Explanation:|\nUser code traceback:|\Z)", re.DOTALL)
_SECTION = re.compile(r"^  (?P<name>Explanation|Hint|Developer debug context): ?", re.MULTILINE)
_COMMENT = re.compile(r"\s+# (?P<comment>.*)$")
_GUARD_COMMENT = re.compile(r"# (?P<file>[^#\s]\S*):(?P<line>\d+) in (?P<name>[\w<>.]+)")
_SIZE = re.compile(
    r"tensor '(?P<name>.+)' (?P<what>size|stride) mismatch at index (?P<dim>\d+)\. expected (?P<expected>.+), actual (?P<actual>.+)"
)
_TENSOR = re.compile(
    r"tensor '(?P<name>.+)' (?P<what>.+?)\.? expected (?P<expected>.+?)[,.] (?:actual|but got) (?P<actual>.+)"
)
_REQUIRES_GRAD = re.compile(r"tensor '(?P<name>.+)' requires_grad mismatch\. expected requires_grad=(?P<expected>[01])")
_NO_TENSOR = re.compile(r"expected type of '(?P<name>.+)' to be a tensor type, ' but found <class '(?P<actual>[^']+)'>")
_GLOBAL_STATE = re.compile(r"^GLOBAL_STATE changed: (?P<name>.+)$")
_DISPATCH_KEYS = re.compile(r"\w+(?=[,)])")
_IDENTITY = re.compile(r"^___check_(?P<check>type|obj)_id\((?P<source>.+), \d+\)(?:, type=<class '(?P<type>[^']+)'>)?")
_EQUALS = re.compile(r"^(?P<left>.+?) == (?P<expected>.+)$")
_OPTIMIZER_OPTION = re.compile(r"\.param_groups\[\d+\]\['(\w+)'\]$")
_ATTRIBUTE = re.compile(r"\w+(?:\.\w+)+")
_NUMBER = re.compile(r"-?\d+(\.\d*)?(e[+-]?\d+)?")
_GUARD = re.compile(r"^(?P<bars>(?:\| )*)\+- (?P<kind>\w+): ?(?P<rest>.*)$")
_SOURCE = re.compile(r"source=(?P<source>.+?), accessed_by=(?P<by>.+)$")

_CHECK_TENSOR = re.compile(
    r"^check_tensor\([^,]+, \w+, DispatchKeySet\((?P<key>\w*)[^)]*\), torch\.(?P<dtype>\w+), device=(?P<index>\w+), "
    r"requires_grad=(?P<grad>\w+), size=(?P<size>\[.*?\]), stride=(?P<stride>\[.*?\])\)$"
)
_STACK_VALUE = re.compile(r"^L\['___stack\d+'\]")
"""Source of a value that a graph break left on Python's stack for the resume function."""
_MARKING = re.compile(r"^hasattr\(.+, '_dynamo_(?P<marking>\w+)_indices'\) == False$")
_MARKING_WORDS = {
    "dynamic": "dynamic",
    "weak_dynamic": "dynamic where possible",
    "unbacked": "unbacked",
    "strict_unbacked": "strictly unbacked",
    "static": "static",
}
_SCALAR_TYPES = {
    "Float": "f32", "Double": "f64", "Half": "f16", "BFloat16": "bf16", "Long": "i64", "Int": "i32", "Short": "i16", "Char": "i8",
    "Byte": "u8", "Bool": "b8", "ComplexFloat": "c64", "ComplexDouble": "c128",
}  # fmt: skip
"""Short names of dtypes, by the names that torch's C++ code prints."""
_CALLED_CHECKS = {
    "___check_global_state()": "torch's global state as at the compilation: grad mode, autocast, threads, default dtype",
    "___check_torch_function_mode_stack()": "the same torch function modes as at the compilation",
}
"""Expectations of checks whose printed call says nothing about them."""
_STATE_CHECKS = {
    "torch._functorch.aot_autograd.utils.top_saved_tensors_hooks ids == None": "no hooks on saved tensors",
    "utils_device.CURRENT_DEVICE == None": "no default device",
}
"""Expectations of checks that name a variable inside torch."""

TIMED_STAGES = (
    ("compile", "entire_frame_compile_time_s", ""),
    ("before the last restart", "dynamo_time_before_restart_s", "compile"),
    ("backend", "backend_compile_time_s", "compile"),
    ("pre-grad passes", "pre_grad_pass_time_us", "backend"),
    ("joint-graph passes", "joint_graph_pass_time_us", "backend"),
    ("inductor", "inductor_compile_time_s", "backend"),
    ("post-grad passes", "post_grad_pass_time_us", "inductor"),
    ("code generation", "code_gen_time_s", "inductor"),
    ("kernel compilation", "triton_compile_time_us", "code generation"),
)
"""(stage, its metric, its parent stage), in the order in which they run."""
_LISTED = ("# File ", 'File "')
"""Starts of lines that quote the user's source in an explanation."""
_NO_HINT = ("This graph break is fundamental", "Please report an issue to PyTorch")
"""Starts of hints that name nothing to do."""

PathResolver = Callable[[str], str | None]
"""Resolves a path suffix, as torch prints it, to a user file's path; None for other files."""


def parse_break(text: str) -> BreakRecord:
    """Parse a graph-break report: title, context, explanation, hints, user stack.

    The stack is outermost first.
    """
    report, _, traceback = text.partition("User code traceback:")
    user, _, _ = traceback.partition("\nTraceback (most recent call last):")
    title, context = _break_title(report)
    sections = _sections(report)
    stack = tuple(Span(m["file"], int(m["line"])) for m in _FRAME.finditer(user))
    what = sections.get("Developer debug context", [""])[0]
    graph_break = BreakRecord(
        kind="-".join(re.findall("[a-z0-9]+", title.lower()))[:60] or "graph-break",
        title=title,
        context=what or context,
        explanation=_without_listing(sections.get("Explanation", [""])[0].removesuffix(" Message: None")),
        hints=tuple(h for h in sections.get("Hint", []) if not h.startswith(_NO_HINT)),
        span=stack[-1] if stack else None,
        stack=stack,
    )
    return with_catalog_words(graph_break)


UNSUPPORTED_ERROR = "torch._dynamo.exc.Unsupported: "
"""Start of the error of a graph break after which a frame has no graph."""


def fullgraph_report(error: str) -> str:
    """Return an error that ``fullgraph=True`` raised in the form of a graph-break report."""
    report, _, code = error.rpartition(UNSUPPORTED_ERROR)[2].partition("\nfrom user code:\n")
    return f"Graph Break Reason: {report}\n\nUser code traceback:\n{code}"


def as_fullgraph_error(record: BreakRecord) -> BreakRecord:
    """Return a graph break that torch raised to the caller, with the other way out."""
    hint = "Remove fullgraph=True: this line then runs as Python between two graphs"
    return replace(record, title=f"{record.title}, an error with fullgraph=True", hints=(*record.hints, hint))


def _without_listing(text: str) -> str:
    """Return an explanation without the source lines and nodes that torch lists at its end."""
    kept = list(itertools.takewhile(lambda line: not line.startswith(_LISTED), text.splitlines()))
    if len(kept) < len(text.splitlines()) and kept and kept[-1].endswith(":"):
        kept[-1] = kept[-1].rpartition(". ")[0] + "." if ". " in kept[-1] else ""
    return "\n".join(kept).strip()


def _break_title(report: str) -> tuple[str, str]:
    """Return the title and context of a break report.

    If the break is in a call, torch prints the location first, followed by a colon.
    """
    match = _TITLE.search(report)
    if match is None:
        first = report.strip().splitlines()
        return (first[0] if first else "graph break"), ""
    lines = [line.strip() for line in match["text"].strip().splitlines() if line.strip()]
    return (lines[-1], lines[0]) if len(lines) > 1 and lines[0].endswith(":") else (lines[0], "")


def _sections(report: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    marks = list(_SECTION.finditer(report))
    for mark, following in itertools.zip_longest(marks, marks[1:]):
        body = report[mark.end() : following.start() if following else None]
        body = body.split("\n For more details about this graph break")[0]
        sections.setdefault(mark["name"], []).append(
            "\n".join(line.strip() for line in body.strip().splitlines()).strip()
        )
    return sections


def parse_recompile_reasons(text: str, resolve: PathResolver) -> tuple[GuardFailure, ...]:
    """Parse the reasons why cache entries failed: a JSON list, or plain text for one reason."""
    try:
        reasons = json.loads(text)
    except ValueError:
        reasons = [text]
    return tuple(_guard_failure(str(reason), resolve) for reason in as_list(reasons) or [text])


def _guard_failure(text: str, resolve: PathResolver) -> GuardFailure:
    entry, _, rest = text.partition(": ")
    if not re.fullmatch(r"\d+/\d+", entry):
        entry, rest = "", text
    head = rest.splitlines()[0] if rest else ""
    code = _COMMENT.sub("", head) if "  #" in head else head
    frames = list(_FRAME.finditer(rest))
    span = Span(frames[-1]["file"], int(frames[-1]["line"])) if frames else _user_span(head, resolve)
    origin, kind, expected, actual = _parse_reason(code.strip())
    sentence = _sentence(code.strip(), origin, kind, expected, actual)
    return GuardFailure(entry, "", origin, kind, expected, actual, sentence, span, _fixes(origin, kind, expected))


def _fixes(origin: str, kind: str, expected: str) -> tuple[Fix, ...]:
    """Return the fixes for a changed value, in terms of stock torch."""
    if _STACK_VALUE.search(origin):
        return (Fix("Remove the graph break before this line: the value then stays inside the graph."),)
    name = user_expr(origin)
    size, _, dimension = expected.partition(" in dimension ")
    if kind == "tensor size" and size.isdigit() and dimension.isdigit():
        return (
            Fix(
                f"Mark dimension {dimension} of {name} as dynamic before the first call",
                f"torch._dynamo.mark_dynamic({name}, {dimension})",
            ),
            Fix("Make all sizes symbols from the first call", "torch.compile(..., dynamic=True)"),
        )
    if kind == "tensor stride":
        return (Fix(f"Always pass {name} with the same strides", f"{name} = {name}.contiguous()"),)
    if kind.startswith("tensor requires_grad"):
        return (Fix(f"Detach {name} if no gradient must flow through it", f"{name} = {name}.detach()"),)
    if kind == "tensor dtype":
        return (Fix(f"Convert {name} before the call, so that one cache entry is enough."),)
    if kind == "equal" and expected.isdigit() and name.isidentifier():
        return (Fix(f"Make {name} a symbol from the first call", "torch.compile(..., dynamic=True)"),)
    if kind == "equal" and _NUMBER.fullmatch(expected) and (option := _OPTIMIZER_OPTION.search(name)):
        return (
            Fix(
                f"Create the optimizer with {option[1]} as a tensor: its value is then data, not part of the code",
                f"{option[1]}=torch.tensor({expected})",
            ),
        )
    if kind == "equal" and _NUMBER.fullmatch(expected) and not name.startswith("len("):
        verb = "Store" if _ATTRIBUTE.fullmatch(name) else "Pass"
        tensor = Fix(
            f"{verb} {name} as a tensor: its value is then data, not part of the code", f"{name} = torch.tensor({name})"
        )
        symbol = Fix(
            "Make numbers in attributes of modules symbols", "torch._dynamo.config.allow_unspec_int_on_nn_module = True"
        )
        return (tensor, symbol) if verb == "Store" and expected.isdigit() else (tensor,)
    if kind == "type":
        return (Fix(f"Always pass {name} with the same type, or write one function per type."),)
    if kind == "identity":
        return (Fix(f"Create {name} once, outside the compiled function, and pass the same object to each call."),)
    if kind == "equal":
        return (separate_entries(name, is_flag=expected in ("True", "False")),)
    return ()


def user_expr(origin: str) -> str:
    """Return the user's expression of a source: ``L['x'][0]`` is ``x[0]``."""
    return re.sub(r"^(len\()?L\['(\w+)'\]", r"\1\2", _STACK_VALUE.sub("the value at a graph break", origin))


def _parse_reason(code: str) -> tuple[str, str, str, str]:
    """Return source, kind, expected and actual value of a reason; empty where missing."""
    if match := _SIZE.search(code):
        return (
            _local_source(match["name"]),
            f"tensor {match['what']}",
            f"{match['expected']} in dimension {match['dim']}",
            match["actual"],
        )
    if match := _TENSOR.search(code):
        expected, actual = (_SCALAR_TYPES.get(match[part], match[part]) for part in ("expected", "actual"))
        return _local_source(match["name"]), f"tensor {match['what'].removesuffix(' mismatch')}", expected, actual
    if match := _NO_TENSOR.search(code):
        return _local_source(match["name"]), "type", "a tensor", match["actual"].rpartition(".")[2]
    if match := _REQUIRES_GRAD.search(code):
        needed = match["expected"] == "1"
        return _local_source(match["name"]), "tensor requires_grad", str(needed), str(not needed)
    if match := _IDENTITY.match(code):
        if match["check"] == "obj":
            return match["source"], "identity", "", ""
        return match["source"], "type", (match["type"] or "").rpartition(".")[2], ""
    if match := _EQUALS.match(code):
        left = match["left"]
        return (_local_source(left) if left.isidentifier() else left), "equal", match["expected"], ""
    return code, "guard", "", ""


def _local_source(name: str) -> str:
    """Return the source expression; torch omits ``L[...]`` around the first name."""
    return name if name.startswith(("L[", "G[")) else re.sub(r"^\w+", lambda m: f"L[{m[0]!r}]", name)


def _sentence(code: str, origin: str, kind: str, expected: str, actual: str) -> str:
    if kind == "identity":
        return f"{user_expr(origin)} is another object; the compiled code expects the one of the first call."
    if kind == "type":
        wanted = f"; the compiled code expects {expected}" if expected else ""
        return f"{user_expr(origin)} {f'is of type {actual}' if actual else 'has another type'}{wanted}."
    if match := _GLOBAL_STATE.match(code):
        return f"The global state {match['name']} of torch has changed."
    if kind == "tensor dtype":
        return f"{user_expr(origin)} has dtype {actual}; the compiled code expects {expected}."
    if kind == "tensor rank":
        return f"{user_expr(origin)} has {actual} dimension{'' if actual == '1' else 's'}; the compiled code expects {expected}."
    if expected.startswith("DispatchKeySet"):
        now, before = (dict.fromkeys(_DISPATCH_KEYS.findall(keys)) for keys in (actual, expected))
        changes = [*(f"+{k}" for k in now if k not in before), *(f"-{k}" for k in before if k not in now)]
        return f"The dispatch keys of {user_expr(origin)} have changed: {' '.join(changes)}."
    wanted, _, dimension = expected.partition(" in dimension ")
    if dimension and actual:
        what = kind.removeprefix("tensor ")
        return f"{user_expr(origin)} has {what} {actual} in dimension {dimension}; the compiled code expects {wanted}."
    if kind == "tensor requires_grad":
        return f"{user_expr(origin)}.requires_grad is {actual}; the compiled code expects {expected}."
    if expected and actual:
        return f"{user_expr(origin)} is {actual}; the compiled code expects {expected}."
    if expected:
        return f"{user_expr(origin)} has changed; the compiled code expects {expected}."
    return f"{code} is no longer true."


def _user_span(text: str, resolve: PathResolver) -> Span | None:
    for match in reversed(list(_GUARD_COMMENT.finditer(text))):
        file = resolve(match["file"])
        if file is not None:
            return Span(file, int(match["line"]))
    return None


@dataclass(frozen=True, slots=True)
class _GuardManager:
    """A guard manager in the printed tree: its source, and the accessors from the root."""

    source: str
    path: tuple[str, ...]


def parse_guards(text: str, resolve: PathResolver) -> GuardsRecord:
    """Parse a printed guard tree into a flat list, in the order of evaluation."""
    return GuardsRecord(tuple(_guards(text, resolve)), text.strip())


def _guards(text: str, resolve: PathResolver) -> Iterator[GuardRecord]:
    managers: list[_GuardManager] = []
    count = 0
    for line in text.splitlines():
        match = _GUARD.match(line)
        if match is None:
            continue
        depth = len(match["bars"]) // 2
        del managers[depth:]
        parent = managers[-1] if managers else _GuardManager("", ())
        source = _SOURCE.search(match["rest"])
        if "Manager" in match["kind"] and source:
            managers += [parent] * (depth - len(managers))
            managers.append(_child(parent, source["source"]))
            continue
        yield _leaf(f"g{count}", parent, match["kind"], match["rest"], resolve)
        count += 1


def _child(parent: _GuardManager, source: str) -> _GuardManager:
    if source.endswith(".__dict__"):  # an accessor of the guard, not part of the user's expression
        return parent
    step = source.removeprefix(parent.source) if parent.source and source.startswith(parent.source) else source
    return _GuardManager(source, (*parent.path, step))


def _leaf(id: str, parent: _GuardManager, kind: str, rest: str, resolve: PathResolver) -> GuardRecord:
    expected, code, why = _leaf_texts(rest, parent.source)
    return GuardRecord(id, parent.source, parent.path, kind, expected, code, why, _user_span(rest, resolve))


@functools.lru_cache(maxsize=2048)
def _leaf_texts(rest: str, source: str) -> tuple[str, str, str]:
    """Return what a guard expects, its code, and who reads the value."""
    code, _, comment = rest.partition("  #")
    why = _GUARD_COMMENT.sub("", comment).strip(" #").split("  #")[0].strip()
    why += "...)" if why.endswith("(") else ""  # torch prints one line of a call that spans several
    return _expected(code.strip(), source), code.strip(), f"read by: {why}" if why else ""


def _expected(code: str, source: str) -> str:
    """Return what a guard expects, in words where torch prints a call."""
    if match := _CHECK_TENSOR.match(code):
        return _expected_tensor(match)
    if match := _MARKING.match(code):
        marking = _MARKING_WORDS.get(match["marking"], match["marking"].replace("_", " "))
        return f"no dimension marked {marking}"
    if code.startswith("check_no_aliasing("):
        return f"different tensors: {', '.join(map(user_expr, code[18:-1].split(', ')))}"
    if (text := _CALLED_CHECKS.get(code.partition(" against ")[0])) is not None:
        return text
    if (text := _STATE_CHECKS.get(code)) is not None:
        return text
    if source and (match := _EQUALS.match(code)) and "(" not in match["expected"]:
        return match["expected"]
    if "type=" in code:
        return code.partition("type=")[2]
    return code


def _expected_tensor(match: re.Match[str]) -> str:
    """Return a tensor's expected metadata in the form of ``describe_value``, with its strides."""
    device = match["key"].lower() + ("" if match["index"] == "None" else f":{match['index']}")
    size, stride = (match[part].replace("None", "any") for part in ("size", "stride"))
    grad = ", requires grad" if match["grad"] == "True" else ""
    dtype = SHORT_DTYPES.get(match["dtype"], match["dtype"])
    return f"{dtype}{size} on {device}, stride {stride}{grad}"


def parse_timings(facts: Mapping[str, Any], epoch: float, *, is_forward: bool) -> tuple[Timing, ...]:
    """Return the stage timings of one compilation.

    torch reports durations only. The last stage of a parent ends with it, the others follow each other from its start.
    Stages of a backward that was compiled later are named "backward ...".
    """
    clock = as_number(facts.get("start_time"))
    begun = 0.0 if clock is None else max(float(clock) - epoch, 0.0)
    opening = "" if is_forward else "backward "
    times = list(_times(facts))
    last_of = {parent: stage for stage, _, parent in times}
    free_from, ends = {"": begun}, {"": begun}
    timings = []
    for stage, seconds, parent in times:
        start = free_from[parent]
        if parent and last_of[parent] == stage:
            start = max(start, ends[parent] - seconds)
        free_from[parent] = ends[stage] = start + seconds
        free_from[stage] = start
        timings.append(Timing(opening + stage, start, seconds, opening + parent if parent else ""))
    return tuple(timings)


def _times(facts: Mapping[str, Any]) -> Iterator[tuple[str, float, str]]:
    parents = {stage: parent for stage, _, parent in TIMED_STAGES}
    measured_stages = {""}
    for stage, key, parent in TIMED_STAGES:
        value = as_number(facts.get(key))
        if value is not None and (value > 0 or (key.endswith("_s") and stage != "before the last restart")):
            measured_stages.add(stage)
            while parent not in measured_stages:
                parent = parents[parent]
            yield stage, float(value) / (1e6 if key.endswith("_us") else 1.0), parent
