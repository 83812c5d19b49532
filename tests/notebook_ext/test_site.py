"""The static site: its pages, links, search and explorers, from one build."""

from __future__ import annotations

import functools
import itertools
import json
import pathlib
import re
from typing import Any
from urllib.parse import unquote

import pytest

import engine
from notebook_ext.cell_arguments import COMPILE_OPTIONS
from notebook_ext.glossary import TERMS
from notebook_ext.site import __main__ as command
from notebook_ext.site import lesson_explorers
from notebook_ext.site.api_reference import docstring_html
from notebook_ext.site.build_site import page_body
from notebook_ext.site.lesson_page import lesson_html, title_of_cell
from notebook_ext.site.markdown_html import Slugs, markdown_html
from notebook_ext.site.package_map import STAGES
from notebook_ext.site.page_frame import POLICY
from notebook_ext.site.search_index import page_sections, search_index
from notebook_ext.site.site_map import PARTS, FileLinks, Page, SiteMap, Text
from notebook_ext.widgets.page_template import policy_source, script_safe_json
from tests.notebook_ext.sample_sessions import head_session
from tests.notebook_ext.site_pages import PageFacts, contrast, page_facts
from tests.notebooks.notebook_runner import NOTEBOOKS

ROOT = pathlib.Path(__file__).parents[2]
LEAST_CONTRAST = 4.5
CSS = ROOT / "notebook_ext" / "static" / "site" / "site.css"
HOSTILE = '<script>alert(1)</script><img src=x onerror=alert(1)><a href="javascript:alert(1)">x</a>'


class Site:
    """A built site: the text and the facts of each page by address, without explorers."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        paths = [path for path in folder.rglob("*.html") if path.parent.name != "explorers"]
        self.texts = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}

    @functools.cached_property
    def facts(self) -> dict[str, PageFacts]:
        """Facts of each page by address."""
        return {address: page_facts(text) for address, text in self.texts.items()}


@pytest.fixture(scope="module")
def site(site_folder: pathlib.Path) -> Site:
    """The site that this run built."""
    return Site(site_folder)


@pytest.mark.thorough
def test_each_lesson_and_each_page_of_reference_is_on_the_site(site: Site) -> None:
    """Notebooks, reference pages and generated pages have an address in one of four parts."""
    shown = {text.file for page in SiteMap().pages for text in page.texts}
    lessons = {page.lesson for page in SiteMap().pages}
    for path in (ROOT / "notebooks" / "reference").glob("*.md"):
        assert f"notebooks/reference/{path.name}" in shown
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"notebooks/{path.name}" in lessons
    assert {page.part for page in SiteMap().pages} == set(PARTS)
    assert {page.address for page in SiteMap().pages} | {"index.html", "search.html"} == set(site.texts)


@pytest.mark.thorough
def test_every_link_leads_somewhere(site: Site) -> None:
    """Internal links and anchors exist; links to other sites use https."""
    broken = []
    for address, facts in site.facts.items():
        for link in [*facts.links, *facts.explorers]:
            if link.startswith("https://"):
                continue
            path, _, anchor = link.partition("#")
            target = (site.folder / address).parent / unquote(path) if path else site.folder / address
            name = target.resolve().relative_to(site.folder.resolve()).as_posix()
            exists = target.is_file() and (not anchor or name not in site.facts or anchor in site.facts[name].ids)
            broken += [] if exists else [f"{address}: {link}"]
    assert broken == []


def test_search_results_lead_somewhere(site: Site) -> None:
    """Each section of the index is on its page."""
    index = index_of(site)
    for number, anchor, _, _ in index["sections"]:
        address = index["pages"][number][0]
        assert not anchor or anchor in site.facts[address].ids, (address, anchor)


def index_of(site: Site) -> Any:
    """The search index in the page of search."""
    (text,) = re.findall(r'<script type="application/json" id="index">(.*?)</script>', site.texts["search.html"])
    return json.loads(text)


def test_pages_request_nothing(site: Site) -> None:
    """No page loads a resource; its policy allows its own script alone, by hash."""
    for address, facts in site.facts.items():
        assert facts.requests == [], address
        (script,) = re.findall(r"<script>(.*?)</script>", site.texts[address], re.DOTALL)
        assert facts.policy == POLICY.format(script=policy_source(script)), address


def test_pages_are_described(site: Site) -> None:
    """Each page has a language, a title of its own, and names for pictures and fields."""
    titles = [facts.title for facts in site.facts.values()]
    assert len(set(titles)) == len(titles)
    for address, facts in site.facts.items():
        assert facts.language == "en", address
        assert facts.title, address
        assert facts.pictures_without_text == 0, address
        assert facts.unnamed_fields == 0, address
        assert len(set(facts.ids)) == len(facts.ids), address


def test_headings_are_in_order(site: Site) -> None:
    """A page has one first-level heading, first; no heading skips a level."""
    for address, facts in site.facts.items():
        levels = [level for level, _ in facts.headings]
        assert levels[0] == 1, address
        assert levels.count(1) == 1, address
        jumps = [facts.headings[i + 1] for i, (a, b) in enumerate(itertools.pairwise(levels)) if b > a + 1]
        assert jumps == [], address
        assert all(text.strip("# ") for _, text in facts.headings), address


def test_colors_have_contrast(site: Site) -> None:
    """Text and code have enough contrast in both themes."""
    themes = [
        dict(re.findall(r"--(\w+): (#\w{6})", block))
        for block in re.findall(r"^:root[^{]*\{(.*?)\}", CSS.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    ]
    style = site.texts["index.html"].partition("<style>")[2].partition("</style>")[0]
    dark_code = re.findall(
        r'^:root\[data-theme="dark"\] \.code \.\w+ \{[^}]*?(?<![\w-])color: (#\w{3,6})', style, re.MULTILINE
    )
    light_code = re.findall(r"^\.code \.\w+ \{[^}]*?(?<![\w-])color: (#\w{3,6})", style, re.MULTILINE)
    for theme, code in zip(themes[:2], (light_code, dark_code), strict=True):
        pairs = [(ink, ground) for ink in ("ink", "quiet", "link") for ground in ("ground", "code", "note")]
        pairs += [("ink", "mark"), ("ink", "error")]
        assert {p: round(c, 1) for p in pairs if (c := contrast(theme[p[0]], theme[p[1]])) < LEAST_CONTRAST} == {}
        assert len(code) > 20
        assert {c for c in code if contrast(c, theme["code"]) < LEAST_CONTRAST} == set()


def test_the_reference_has_every_public_name(site: Site) -> None:
    """Public names, options, commands, stages, guards and terms each have an entry."""
    engine_page = site.facts["reference/engine.html"].ids
    assert {name.lower() for name in engine.__all__} <= set(engine_page)
    for flag, _ in COMPILE_OPTIONS:
        assert f"<code>{flag}" in site.texts["reference/magics.html"]
    for magic in ("%%compile", "%explore", "%guards", "%glossary"):
        assert f"<code>{magic}</code>" in site.texts["reference/magics.html"]
    for name in ("report", "doctor", "demo", "lab"):
        assert name in site.facts["reference/command-line.html"].ids
    assert {f"engine{stage}" for stage in STAGES} <= set(site.facts["explanation/map.html"].ids)
    titles = {text.rstrip("#") for _, text in site.facts["reference/glossary.html"].headings}
    assert set(TERMS) <= titles


def test_lessons_have_outputs_and_explorers(site: Site) -> None:
    """A lesson shows its saved outputs, and explorers of cells with a session."""
    text = site.texts["tutorials/08_loops_to_triton.html"]
    assert '<div class="output">' in text
    facts = site.facts["tutorials/08_loops_to_triton.html"]
    assert facts.explorers
    for address in facts.explorers:
        page = (site.folder / "tutorials" / address).read_text(encoding="utf-8")
        assert "<!doctype html>" in page
        assert "Explorer of" in page
    assert site.facts["index.html"].explorers


def links(file: str = "README.md") -> FileLinks:
    """Links of a file as seen from a page of tutorials."""
    return FileLinks(SiteMap(), "tutorials/x.html", file)


def test_text_of_documents_is_never_html() -> None:
    """Tags in Markdown, cells, outputs, docstrings and titles are shown as text."""
    cells = [
        {"cell_type": "markdown", "id": "a", "source": [HOSTILE]},
        {
            "cell_type": "code",
            "id": "b",
            "source": [HOSTILE],
            "outputs": [{"output_type": "stream", "text": [HOSTILE]}],
        },
    ]
    made = [
        markdown_html(f"# {HOSTILE}\n\n{HOSTILE}\n\n`{HOSTILE}`\n\n| a |\n|---|\n| {HOSTILE} |", links(), Slugs()),
        lesson_html({"cells": cells}, links(), Slugs(), {"b": '"><script>'}),
        docstring_html(f"{HOSTILE}\n\nArgs:\n    x: {HOSTILE}\n\n    {HOSTILE}\n"),
    ]
    for html in made:
        assert "<script" not in html
        assert "<img" not in html
        assert "<a href=" not in html.replace('<a href="#', "").replace('<a href="&quot;', "")
    index = script_safe_json(search_index({"a.html": ("</script>", f"<h1 id='x'>{HOSTILE}</h1>")}))
    assert "<" not in index


def test_a_link_to_nothing_stops_the_build() -> None:
    """A missing file or another scheme raises; a file that is not on the site is text."""
    with pytest.raises(LookupError, match=r"README\.md links to missing\.md"):
        markdown_html("[x](missing.md)", links(), Slugs())
    with pytest.raises(LookupError, match="javascript"):
        markdown_html("[x](javascript:alert(1))", links(), Slugs())
    assert markdown_html("[x](LICENSE)", links(), Slugs()) == "<p>x</p>\n"


def test_links_between_files_become_links_between_pages() -> None:
    """A link keeps its anchor, also where a section of a file is on another page."""
    to = links("notebooks/02_graph_breaks.ipynb").address
    assert to("reference/GLOSSARY.md#guard") == "../reference/glossary.html#guard"
    assert to("03_guards.ipynb") == "03_guards.html"
    assert to("../README.md#limits") == "../explanation/scope.html#limits"
    assert to("solutions/02_graph_breaks.md") == "solutions.html#solutions-to-02-graph-breaks"
    assert to("teaching/") is None


def test_a_block_that_no_test_runs_says_why() -> None:
    """The comment above a block becomes a note."""
    html = markdown_html("<!-- not run: it needs a Hub -->\n```python\nc = 1\n```", links(), Slugs())
    assert "No test runs this block: it needs a Hub" in html


def test_long_names_may_break_between_their_parts() -> None:
    """A long path has places for a line break, outside entities; a short name has none."""
    html = markdown_html("`engine/runtime/dispatch.py` `a_b.c` `a<b.engine/runtime/xy`", links(), Slugs())
    assert "<code>engine/<wbr>runtime/<wbr>dispatch.<wbr>py</code> <code>a_b.c</code>" in html
    assert "<code>a&lt;b.<wbr>engine/<wbr>runtime/<wbr>xy</code>" in html


def test_repeated_headings_have_different_anchors() -> None:
    """Anchors are those of GitHub; the second of a name gets a number."""
    html = markdown_html("# One\n## Is it `f_x()`?\n## Same\n## Same\n", links(), Slugs())
    assert page_facts(html).ids == ["one", "is-it-f_x", "same", "same-1"]


def test_outputs_are_not_searched() -> None:
    """The index has the text and the code of a lesson, not what its cells printed."""
    html = '<h1 id="a">T</h1><p>text</p><div class="cell"><pre>code</pre><div class="output"><p>printed<br></p></div></div><p>end</p>'
    (section,) = page_sections(html)
    assert "".join(section.texts).split() == ["text", "code", "end"]


def test_a_lesson_runs_only_if_it_changed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed lesson runs again, an unchanged one does not, and a failed one raises."""
    ran = []

    def execute(notebook: Any, home: pathlib.Path, folder: pathlib.Path, *, steady: bool) -> str:
        ran.append(home)
        head_session().save(folder / "0.json")
        notebook.cells[0].outputs[0].metadata["compile-explorer"] = {"session": 0}
        return "it failed" if "raise" in notebook.cells[0].source else ""

    monkeypatch.setattr(lesson_explorers, "execute_notebook", execute)
    lesson = tmp_path / "05_short.ipynb"
    outputs = [{"output_type": "display_data", "data": {"text/plain": ""}, "metadata": {}}]
    cell = {"cell_type": "code", "id": "c", "metadata": {}, "execution_count": None, "source": "1", "outputs": outputs}
    for source in ("1", "1", "2"):
        cell["source"] = source
        lesson.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
        found = lesson_explorers.recorded_explorers(lesson, tmp_path / "kept")
        assert list(found) == ["c"]
        assert found["c"].is_file()
    assert len(ran) == 2
    lesson.write_text(lesson.read_text().replace('"2"', '"raise"'))
    with pytest.raises(RuntimeError, match="it failed"):
        lesson_explorers.recorded_explorers(lesson, tmp_path / "kept")


def test_pages_of_sections_have_a_title() -> None:
    """A page of some sections of a file gets a first-level heading; a missing section raises."""
    page = Page("how-to", "x", "Two things", (Text("README.md", ("Limits",)),))
    assert page_body(page, SiteMap(), {}).startswith("<h1>Two things</h1>")
    with pytest.raises(KeyError):
        Text("README.md", ("No such section",)).read()


def test_the_command_says_where_the_site_is(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``make site`` runs the lessons and prints a link; a failed lesson is an error."""
    asked = {}

    def build(folder: pathlib.Path, explorers: Any) -> list[pathlib.Path]:
        asked["explorers"] = explorers
        return [folder / "index.html"]

    monkeypatch.setattr(command, "build_site", build)
    monkeypatch.setattr(command, "recorded_explorers", lambda lesson, folder: {"cell": folder / lesson.stem})
    assert command.main([str(tmp_path)]) == 0
    assert set(asked["explorers"]) == {path.stem for path in NOTEBOOKS}
    assert capsys.readouterr().out.strip().endswith((tmp_path / "index.html").as_uri())
    assert command.main([str(tmp_path), "--committed"]) == 0
    assert asked["explorers"] is None

    def fail(lesson: pathlib.Path, folder: pathlib.Path) -> None:
        raise RuntimeError(f"A cell of {lesson.name} failed")

    monkeypatch.setattr(command, "recorded_explorers", fail)
    assert command.main([str(tmp_path)]) == 1
    assert "A cell of 00_tour.ipynb failed" in capsys.readouterr().err
    assert "-m notebook_ext.site build/site" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_github_pages_get_what_make_site_built() -> None:
    """The workflow builds and checks the site, and publishes it with few rights."""
    text = (ROOT / ".github" / "workflows" / "pages.yml").read_text(encoding="utf-8")
    steps = ["make site", "test_site.py --site build/site", "upload-pages-artifact", "path: build/site", "deploy-pages"]
    places = [text.index(step) for step in steps]
    assert places == sorted(places)
    assert "contents: write" not in text


def test_an_explorer_has_the_name_of_its_functions() -> None:
    """An explorer is named for what its summary lists, else for what the cell opens."""
    summary = "stock torch.compile · GPT.forward: 1 graph, no breaks · loss_of: 2 graphs, 2 breaks (line 3: print, …)"
    shown = {"source": ["%%compile\n", "torch.manual_seed(0)"], "outputs": [{"data": {"text/plain": [summary]}}]}
    assert title_of_cell(shown) == "GPT.forward, loss_of"
    assert title_of_cell({"source": ["%explore sessions/train.log.gz"], "outputs": []}) == "train"
    assert title_of_cell({"source": ["%%compile\n", "f(x)"], "outputs": []}) == "f(x)"
