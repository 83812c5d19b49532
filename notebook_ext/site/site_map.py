"""The pages of the site in their four parts, and where each file of the repository went."""

from __future__ import annotations

import base64
import json
import pathlib
import posixpath
from dataclasses import dataclass, field

from notebook_ext.notebook_report import REPO_ROOT
from notebook_ext.site.markdown_html import Slugs, headings, sections

PARTS = {
    "tutorials": ("Tutorials", "Lessons that you read, or run: predict what a cell does, then see what it did."),
    "how-to": ("How-to", "Short answers: install it, read a log, write a pass, check a pull request, run a class."),
    "reference": ("Reference", "Every function, option, switch, graph break, guard and term."),
    "explanation": ("Explanation", "How a call becomes a kernel, and where each step is in the code."),
}
"""Folder of each part: its title, and what is in it."""


@dataclass(frozen=True)
class Text:
    """Markdown of a file: all of it, or some level-2 sections."""

    file: str
    """Path in the repository."""
    only: tuple[str, ...] = ()
    shift: int = 0
    """Levels by which headings become smaller; -1 turns a section's heading into a page title."""

    def read(self) -> str:
        """Return the Markdown, or only its ``only`` sections."""
        text = (REPO_ROOT / self.file).read_text(encoding="utf-8")
        return sections(text, self.only) if self.only else text


@dataclass(frozen=True)
class Page:
    """A page that is made from texts of the repository, a lesson, or code."""

    part: str
    name: str
    title: str
    texts: tuple[Text, ...] = ()
    lesson: str = ""
    """Path of a notebook in the repository."""
    module: str = ""
    """A module whose public names are described, or "magics", "commands" or "map"."""

    @property
    def address(self) -> str:
        """Path of the page in the site."""
        return f"{self.part}/{self.name}.html"


def site_pages() -> tuple[Page, ...]:
    """Return all pages in the order of navigation, without the first and search."""
    return (*_tutorial_pages(), *HOW_TO, *_reference_pages(), *EXPLANATION)


def _tutorial_pages() -> list[Page]:
    pages = [Page("tutorials", "workshop", "The workshop", (Text("notebooks/README.md"),))]
    lessons = sorted((REPO_ROOT / "notebooks").glob("*.ipynb"))
    pages += [Page("tutorials", p.stem, _notebook_title(p), lesson=f"notebooks/{p.name}") for p in lessons]
    files = sorted((REPO_ROOT / "notebooks" / "solutions").glob("*.md"))
    texts = tuple(Text(f"notebooks/solutions/{f.name}", shift=1) for f in files)
    return [*pages, Page("tutorials", "solutions", "Solutions", texts)]


def _notebook_title(path: pathlib.Path) -> str:
    """Return the first heading of a notebook."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for _, title in headings("".join(cell["source"])) if cell["cell_type"] == "markdown" else ():
            return title
    return path.stem


HOW_TO = (
    Page("how-to", "install", "Install and first cell", (Text("README.md", ("Install", "Two commands", "Make")),)),
    Page(
        "how-to",
        "logs",
        "Read logs of stock torch.compile",
        (Text("README.md", ("Logs of stock torch.compile",), shift=-1),),
    ),
    Page("how-to", "recipes", "Recipes", (Text("notebook_ext/recipes.md"),)),
    Page("how-to", "ci", "Compile checks in CI", (Text("notebooks/reference/CI.md"),)),
    Page("how-to", "class", "Run a class", (Text("notebooks/reference/WORKSHOP.md"),)),
)
_CATALOGS = (
    ("breaks", "Graph breaks", "BREAKS"),
    ("guards", "Guards", "GUARDS"),
    ("fallbacks", "Fallbacks", "FALLBACKS"),
    ("switches", "Switches of torch.compile", "STOCK_SWITCHES"),
    ("torch", "torch 2.14 and 2.15", "TORCH"),
    ("faults", "Faults", "FAULTS"),
    ("glossary", "Glossary", "GLOSSARY"),
)


def _reference_pages() -> list[Page]:
    code = (
        Page("reference", "engine", "engine", module="engine"),
        Page("reference", "magics", "Magics", module="magics"),
        Page("reference", "lesson", "notebook_ext.lesson", module="notebook_ext.lesson"),
        Page("reference", "command-line", "Command line", module="commands"),
    )
    catalogs = (
        Page("reference", name, title, (Text(f"notebooks/reference/{file}.md"),)) for name, title, file in _CATALOGS
    )
    return [*code, *catalogs]


EXPLANATION = (
    Page(
        "explanation",
        "how-it-works",
        "How it works",
        (Text("CONTRIBUTING.md", ("How a call becomes a kernel",), shift=-1),),
    ),
    Page("explanation", "map", "Map of the packages", module="map"),
    Page(
        "explanation",
        "names",
        "If you know Dynamo, AOTAutograd, Inductor",
        (Text("CONTRIBUTING.md", ("If you know Dynamo, AOTAutograd, Inductor",), shift=-1),),
    ),
    Page(
        "explanation",
        "scope",
        "What it does, and its limits",
        (Text("README.md", ("What it does today", "Limits", "Compared with other tools", "What was tested")),),
    ),
    Page(
        "explanation",
        "contributing",
        "Contributing",
        (Text("CONTRIBUTING.md", ("House rules", "How to add …", "Notebooks and pages", "Releases")),),
    ),
)


@dataclass
class SiteMap:
    """Addresses of files and of their headings."""

    pages: tuple[Page, ...] = field(default_factory=site_pages)

    def __post_init__(self) -> None:
        self._anchors: dict[tuple[str, str], str] = {}
        self._files: dict[str, str] = {}
        for page in self.pages:
            slugs = Slugs()
            for text in page.texts:
                own = Slugs()
                titles = headings(text.read())
                for _, title in titles:
                    anchor = slugs.next_slug(title)
                    self._anchors[text.file, own.next_slug(title)] = f"{page.address}#{anchor}"
                    self._files.setdefault(
                        text.file, page.address if len(page.texts) == 1 else f"{page.address}#{anchor}"
                    )
                self._files.setdefault(posixpath.dirname(text.file) + "/", page.address)
            if page.lesson:
                self._files[page.lesson] = page.address

    def anchored(self, file: str, anchor: str) -> str | None:
        """Return the address of a heading of a file, else of the file; None if it is on no page."""
        address = self._anchors.get((file, anchor)) if anchor else None
        address = address or self._files.get(file) or self._files.get(f"{file}/")
        return address if address is None or "#" in address or not anchor else f"{address}#{anchor}"


@dataclass(frozen=True)
class FileLinks:
    """Links and pictures of a file that is shown on a page."""

    site: SiteMap
    page: str
    """Address of the page."""
    file: str
    """Path in the repository."""

    def address(self, url: str) -> str | None:
        """Return the address of a link's target as seen from the page.

        None where the target is not on the site.

        Raises:
            LookupError: the repository has no such file.
        """
        path, _, anchor = url.partition("#")
        target = self._page_path(path) if path else self.file
        anchored = self.site.anchored(target, anchor)
        if anchored is None:
            if not (REPO_ROOT / target).exists():
                raise LookupError(f"{self.file} links to {url}, which does not exist.")
            return None
        address, hash_mark, fragment = anchored.partition("#")
        return relative(address, self.page) + hash_mark + fragment

    def pictures(self, url: str) -> tuple[str, ...]:
        """Return a picture of the repository as data: URLs.

        There is one, or one for a light and one for a dark page.
        """
        light = REPO_ROOT / self._page_path(url)
        dark = light.with_name(light.name.replace("-light.", "-dark."))
        return tuple(_data_url(path) for path in dict.fromkeys((light, dark)))

    def _page_path(self, url: str) -> str:
        return posixpath.normpath(posixpath.join(posixpath.dirname(self.file), url))


def _data_url(path: pathlib.Path) -> str:
    kind = {".png": "image/png", ".svg": "image/svg+xml"}[path.suffix]
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def relative(target: str, page: str) -> str:
    """Return the address of one page of the site as seen from another."""
    return posixpath.relpath(target, posixpath.dirname(page) or ".")
