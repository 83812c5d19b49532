"""House rules of words and layout, run by ``python -m tests.house_rules``.

They are part of ``make lint`` and check only what no other tool checks.

Each check yields ``file:line: message``. A word list holds only words that are nowhere today, so that each
new use is a finding.
"""

from __future__ import annotations

import ast
import functools
import gc
import io
import itertools
import pathlib
import re
import sys
import tokenize
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tests import torch_private_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("engine", "notebook_ext")
SUMMARY_LENGTH = 88
MAX_FILES = 25

VAGUE_OPENINGS = ("What", "Whether", "Where", "That", "Which", "The same", "How")

BRITISH = re.compile(
    r"[a-z]{2,}is(?:e|ed|es|er|ers|ing|ation|ations)"
    r"|[a-z]*(?:behavi|col|fav|flav|hon|lab|neighb)our[a-z]*"
    r"|[a-z]*analys(?:e|ed|er|ing)|catalogues?|cent(?:re|res|red|ring)|grey|learnt|spelt|whilst|artefacts?|judgement"
)
NOT_BRITISH = re.compile(
    r"[a-z]*(?:wise|exercis|rais|nois|vis|pris|promis)(?:e|ed|es|er|ers|ing)?|a?ris(?:e|es|ing)|concise|cruise|disguised?|expertise|"
    r"precise|premises?|treatise"
)
"""Words that end like British spellings and are American too."""

PRIVATE = frozenset({
    "absence", "admit", "admits", "aloud", "crossing", "halt", "halts", "hearsay", "lying", "mend", "mended", "mends", "onion", "onions", "owes",
    "peel", "peeled", "remedies", "remedy", "rescue", "rescued", "rescues", "settled", "story", "stranger", "strangers", "twin", "twins",
    "unreached", "unread",
})  # fmt: skip
"""Words of the project's past; PyTorch has others, see the map in CONTRIBUTING.md."""

VAGUE_IN_PROSE = {
    "afresh": "again, from the start", "alike": "equal, the same", "anew": "again", "apart": "disjoint, separately, not fused",
    "asked": "requested, queried", "kept": "stored, cached, retained", "lies": "is, is stored", "pinned": "specialized, fixed",
    "quiet": "suppressed", "refuse": "reject, fail", "refused": "rejected, failed", "refuses": "rejects, fails", "serve": "be used for",
    "served": "used for", "serves": "is used for, works for", "tell": "say, pass, report", "tells": "says, passes, reports",
    "told": "reported, passed", "truths": "conditions, bools", "unseen": "not recorded, not traced",
}  # fmt: skip
"""Words that stand for many concepts, with clearer ones; local variables may have them."""

MAY_HOLD = {
    # Names of fields and events in sessions that older versions saved.
    "engine/records/migrate.py": frozenset({"remedy", "remedies", "settled", "specialised"}),
}

EVERYDAY_MODULES = frozenset({
    "again", "apart", "asked", "asked_later", "kept", "lying", "made", "mended", "rescued", "second_time", "settled", "shown", "told", "unread",
    "whole",
})  # fmt: skip

SHARED_CLASS_NAMES: dict[str, str] = {}
"""Public class names that two modules of the engine may have, each with the reason."""


class Finding(NamedTuple):
    """One violation: file, line and what is wrong."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        """Return the line that editors can open."""
        return f"{self.path}:{self.line}: {self.message}"


class Source(NamedTuple):
    """What all checks need of a Python file, read and parsed once."""

    path: str
    text: str
    docstrings: dict[int, str]
    classes: dict[str, int]
    definitions: list[tuple[int, str]]
    torch_private: list[torch_private_names.Use]


@functools.cache
def read_packages(root: pathlib.Path, packages: tuple[str, ...] = PACKAGES) -> tuple[Source, ...]:
    """Read and parse all Python files of the packages, once for all checks."""
    found = []
    for path in (path for package in packages for path in sorted((root / package).rglob("*.py"))):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)  # not retained: a garbage collector that walks all trees takes longer than parsing them
        classes = {node.name: node.lineno for node in tree.body if isinstance(node, ast.ClassDef)}
        statements = list(_statements(tree))
        name = path.relative_to(root).as_posix()
        private = list(torch_private_names.uses_outside(name, tree)) if "torch" in text else []
        found.append(Source(name, text, _docstrings(statements), classes, list(_definitions(statements)), private))
    return tuple(found)


def _text_files(root: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yield front end files and pages as path and text.

    In a page code is blank, since it quotes programs and their output.
    """
    for path in sorted((root / "notebook_ext" / "static").rglob("*.js")):
        yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
    pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for path in [*(p for p in pages if p.exists()), *sorted((root / "notebooks").rglob("*.md"))]:
        code = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
        text = code.sub(lambda found: "\n" * found.group().count("\n"), path.read_text(encoding="utf-8"))
        yield path.relative_to(root).as_posix(), text


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """All statements of a module; expressions, which are most of a tree, are not visited."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            for child in getattr(node, part, ()) if not isinstance(node, ast.Expr) else ():
                pending.append(child)
                if isinstance(child, ast.stmt):
                    yield child


def _docstrings(statements: list[ast.stmt]) -> dict[int, str]:
    """Docstrings by line: of modules, classes and functions, and those after an assignment."""
    return {
        node.lineno: node.value.value
        for node in statements
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def _definitions(statements: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Classes and functions at any depth, and the declared fields of classes."""
    for node in statements:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield field.lineno, field.target.id


def _comments(text: str, words: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield comments with their lines.

    Files in which no line has one of these words after a ``#`` are not tokenized: that is slow.
    """
    if re.search(rf"(?i)#.*(?:{'|'.join(sorted(words))})", text):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""Parts of snake_case and camelCase names are words."""


def _find_words(text: str, is_wanted: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """The wanted words of a text, with the number of newlines before each."""
    wanted = {word for word in set(WORD.findall(text)) if is_wanted(word.lower())}
    for line, row in enumerate(text.split("\n")) if wanted else ():
        for word in WORD.findall(row):
            if word in wanted:
                yield line, word.lower()


@functools.cache
def _is_british(word: str) -> bool:
    return bool(len(word) > 3 and BRITISH.fullmatch(word) and not NOT_BRITISH.fullmatch(word))


def _word_findings(path: str, text: str) -> Iterator[Finding]:
    may = MAY_HOLD.get(path, frozenset())
    for line, word in _find_words(text, lambda word: (word in PRIVATE or _is_british(word)) and word not in may):
        fault = (
            "is a private word: use the word of the field"
            if word in PRIVATE
            else "is British: write it as PyTorch does"
        )
        yield Finding(path, line + 1, f'"{word}" {fault}')


def check_docstrings(root: pathlib.Path = ROOT) -> Iterator[Finding]:
    """The first line of a docstring is a summary of one line that opens with a verb or noun.

    A reader of a list of symbols, or of tests, sees only this line. One that opens with "Whether" or "What" describes the answer, not the function.
    """
    for source in (*read_packages(root), *read_packages(root, ("tests",))):
        for line, text in source.docstrings.items():
            summary = text.strip().split("\n")[0].strip()
            if len(summary) > SUMMARY_LENGTH:
                yield Finding(
                    source.path,
                    line,
                    f"the docstring's first line has {len(summary)} characters ({SUMMARY_LENGTH} at most)",
                )
            if source.path.startswith("tests/"):
                continue
            if opening := next((o for o in VAGUE_OPENINGS if re.match(rf"{o}\b", summary)), None):
                yield Finding(source.path, line, f'the docstring opens with "{opening}": say what the thing is or does')


def check_words(root: pathlib.Path = ROOT) -> Iterator[Finding]:
    """Names, texts and pages use American spelling and the field's words.

    One word for one concept, the one that PyTorch uses, so that a search finds every place.
    """
    for source in read_packages(root):
        yield from _word_findings(source.path, source.text)
    for path, text in _text_files(root):
        yield from _word_findings(path, text)


def check_prose(root: pathlib.Path = ROOT) -> Iterator[Finding]:
    """Docstrings, comments, pages and definitions avoid words that stood for many concepts.

    Examples are "told" and "kept". ``check_words`` covers the words that are in no name either. Names of local
    variables, also those quoted in double backquotes, are left to review.
    """
    prose = [(source.path, line, name) for source in read_packages(root) for line, name in source.definitions]
    prose += [
        (source.path, line, re.sub(r"``[^`]*``", "", text))
        for source in read_packages(root)
        for line, text in itertools.chain(source.docstrings.items(), _comments(source.text, frozenset(VAGUE_IN_PROSE)))
    ]
    pages = [(path, 1, text) for path, text in _text_files(root) if path.endswith(".md")]
    for path, line, text in prose + pages:
        for offset, word in _find_words(text, VAGUE_IN_PROSE.__contains__):
            yield Finding(
                path, line + offset, f'"{word}" says too little here: write for example {VAGUE_IN_PROSE[word]}'
            )


def check_class_names(root: pathlib.Path = ROOT) -> Iterator[Finding]:
    """No two public classes of the engine share a name.

    A class is known by its bare name in tracebacks, records and searches, so one name must mean one class.
    """
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for source in read_packages(root):
        if source.path.startswith("engine/"):
            for name, line in source.classes.items():
                if not name.startswith("_"):
                    places[name].append((source.path, line))
    for name, found in places.items():
        if len(found) > 1 and name not in SHARED_CLASS_NAMES:
            for path, line in found[1:]:
                yield Finding(path, line, f"class {name} is also defined in {found[0][0]}: give both a qualifier")


def check_folders(root: pathlib.Path = ROOT) -> Iterator[Finding]:
    """A folder holds at most 25 Python files.

    A longer list is not read any more: the folder has parts that want names.
    """
    counts: Counter[str] = Counter()
    for package in PACKAGES:
        counts.update(path.parent.relative_to(root).as_posix() for path in (root / package).rglob("*.py"))
    for folder, count in sorted(counts.items()):
        if count > MAX_FILES:
            yield Finding(
                folder, 1, f"the folder holds {count} Python files ({MAX_FILES} at most): split it into packages"
            )


def check_module_names(root: pathlib.Path = ROOT) -> Iterator[Finding]:
    """No module is named by a participle or an everyday word.

    The path alone must say what a module holds; "kept" or "again" fits anything.
    """
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if (path.suffix == ".py" or path.is_dir()) and path.stem.lstrip("_") in EVERYDAY_MODULES:
                yield Finding(
                    path.relative_to(root).as_posix(), 1, f'a module named "{path.stem}" says nothing of what it holds'
                )


def check_torch_private(root: pathlib.Path = ROOT) -> Iterator[Finding]:
    """Private names of torch are used only in ``engine/torch_private``.

    There each has an entry that says what the engine does without it, so that another version of torch is no error.
    """
    for source in (*read_packages(root), *read_packages(root, ("tests",))):
        for use in source.torch_private:
            yield Finding(source.path, use.line, f"{use.name} is private to torch: import it from engine.torch_private")


CHECKS: tuple[Callable[[pathlib.Path], Iterator[Finding]], ...] = (
    check_docstrings,
    check_words,
    check_prose,
    check_class_names,
    check_folders,
    check_module_names,
    check_torch_private,
)


def main(root: pathlib.Path = ROOT) -> int:
    """Print every finding and return the exit status."""
    findings = sorted({finding for check in CHECKS for finding in check(root)})
    print(*findings, sep="\n", end="\n" if findings else "")
    return int(bool(findings))


if __name__ == "__main__":
    gc.disable()  # syntax trees have no cycles, and collections visit all that are alive
    sys.exit(main())
