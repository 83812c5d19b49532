"""The pages of reference are what the code says, and what they show is true."""

from __future__ import annotations

import linecache
import pathlib
import pkgutil
from typing import Any

import pytest
import torch

import engine
from engine.guards.guard_kind_examples import GUARD_EXAMPLES
from engine.ir.guards import aliasing, global_state, python_values, tensors
from engine.ir.guards.base import Guard
from notebook_ext.glossary import IN_TORCH, TERMS, VIEW_TERMS, explain_term
from notebook_ext.reference_docs import PAGES
from notebook_ext.views.explorer_parts import overview
from notebook_ext.widgets.bundle_assets import STATIC
from tests.notebook_ext.sample_sessions import head_session

DOCS = pathlib.Path(__file__).parents[2] / "notebooks" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str, request: pytest.FixtureRequest) -> None:
    """The committed page is the rendered one; ``make accept`` writes it."""
    if request.config.getoption("--accept"):
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name]()


def test_static_sizes_are_advised_only_where_sizes_stay_the_same() -> None:
    """With sizes that change, ``dynamic=False`` recompiles for each."""
    pages = list(pathlib.Path(engine.__path__[0]).rglob("catalog/*.md"))
    advice = [line for p in pages for line in p.read_text(encoding="utf-8").split("\n") if line.startswith("- ")]
    unconditional = [a for a in advice if "dynamic=False" in a and "if sizes stay the same" not in a]
    assert pages
    assert unconditional == []


@pytest.mark.parametrize("kind", GUARD_EXAMPLES)
def test_an_example_of_a_guard_is_true(kind: str) -> None:
    """The second call of a guard example fails a guard of the example's kind first.

    The function is compiled for the first call.
    """
    example = GUARD_EXAMPLES[kind]
    names: dict[str, Any] = {"torch": torch, "engine": engine}
    file = f"<guard {kind}>"
    linecache.cache[file] = (len(example.code), None, example.code.splitlines(keepends=True), file)
    exec(compile(example.code, file, "exec"), names)
    exec(example.setup, names)
    names["f"] = engine.compile(names["f"], backend="aot_eager")
    try:
        eval(f"f({example.first_args})", names)
        exec(example.between_calls, names)
        told = eval(f"engine.explain_call(f, {example.failing_args})", names)
    finally:
        torch.set_grad_enabled(True)
    assert told.hit is None
    found = told.guard_failures[0].kind
    assert (found if kind != "global state" else "global state") == kind
    if kind == "global state":
        assert found == "grad mode"


def test_every_kind_of_guard_is_on_the_page() -> None:
    """Every kind of guard that users meet has an example on the page.

    The two kinds that have none are named with their reason.
    """
    kinds = {
        value.kind
        for module in (python_values, tensors, global_state, aliasing)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Guard) and value.kind
    }
    assert kinds - set(GUARD_EXAMPLES) == {"tensor", "tensor subclass"}


def test_the_glossary_knows_forms_and_neighbors() -> None:
    """The glossary finds a term by its plural, and suggests near terms for a typo.

    Terms are in alphabetical order and end in a period.
    """
    assert explain_term("guards").startswith("guard: ")
    assert explain_term("PTX").startswith("PTX: ")
    assert "Did you mean" in explain_term("gaurd")
    assert list(TERMS) == sorted(TERMS, key=str.lower)
    assert all(text.endswith(".") for text in TERMS.values())


def test_views_have_their_words() -> None:
    """The explorer gets the glossary terms of each view, and every named view exists."""
    told = overview(head_session())["words"]
    assert {view: tuple(term for term, _ in terms) for view, terms in told.items()} == VIEW_TERMS
    assert all(TERMS[term] == text for terms in told.values() for term, text in terms)
    frame = (STATIC / "explorer.js").read_text(encoding="utf-8")
    assert all(f'["{view}", ' in frame for view in VIEW_TERMS)


def test_help_leads_on(shell: Any) -> None:
    """``%%compile?`` and ``engine.compile?`` name the options and related commands.

    ``%%compile?`` lists the options and the related magics, ``engine.compile?`` the related functions for code.
    All that they name exists.
    """
    magic = str(shell.shell.find_cell_magic("compile").__doc__)
    assert "--backend" in magic
    for name in ("explore", "guards", "recompiles", "kernels", "glossary"):
        assert f"%{name}" in magic
        assert shell.shell.find_line_magic(name)
    text = str(engine.compile.__doc__)
    for name in (
        "explain",
        "record",
        "expect",
        "guards_of",
        "explain_call",
        "mark_dynamic",
        "disable",
        "observe_torch",
    ):
        assert f"``{name}``" in text
        assert callable(getattr(engine, name))
    for page in ("BREAKS.md", "GUARDS.md"):
        assert page in magic
        assert page in text
        assert (DOCS / page).exists()


@pytest.mark.parametrize("term", IN_TORCH)
def test_names_of_the_glossary_exist_in_torch(term: str) -> None:
    """Each term is one of the glossary's, and PyTorch has what it names."""
    assert term in TERMS
    pkgutil.resolve_name(IN_TORCH[term])
