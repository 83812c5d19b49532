"""The map of the packages, from their own docstrings."""

from __future__ import annotations

import ast
import pathlib

from notebook_ext.notebook_report import REPO_ROOT
from notebook_ext.site.api_reference import docstring_html
from notebook_ext.site.markdown_html import Slugs, heading_html

STAGES = ("bytecode", "trace", "guards", "graph", "aot", "autograd", "lowering", "kernels", "runtime")
"""Packages of the stages, in the order in which a call passes them."""
INTRODUCTION = """
<p>A call passes nine stages; each is one package of <code>engine</code>. They never import each other: <code>pipeline</code>
calls them in order and passes on what they return. What they record, <code>records</code>, needs no torch, and is all that
<code>notebook_ext</code> shows. This page is made from the first docstring of each package.</p>
"""


def package_map_html(slugs: Slugs) -> str:
    """Return the map: the stages in their order, then other packages and modules."""
    others = sorted(
        p.name for p in (REPO_ROOT / "engine").iterdir() if (p / "__init__.py").exists() and p.name not in STAGES
    )
    parts = [heading_html(1, "Map of the packages", slugs), INTRODUCTION]
    parts += [_stages_picture(), heading_html(2, "Stages", slugs)]
    parts += [_package(REPO_ROOT / "engine" / name, slugs) for name in STAGES]
    parts.append(heading_html(2, "Around the stages", slugs))
    parts += [_package(REPO_ROOT / "engine" / name, slugs) for name in others]
    parts += [heading_html(2, "Single modules of the engine", slugs), _modules(REPO_ROOT / "engine")]
    parts += [heading_html(2, "The notebook extension", slugs), _modules(REPO_ROOT / "notebook_ext")]
    packages = sorted(p for p in (REPO_ROOT / "notebook_ext").iterdir() if (p / "__init__.py").exists())
    parts += [_package(p, slugs) for p in packages]
    return "\n".join(parts)


def _stages_picture() -> str:
    items = "".join(f'<li><a href="#engine{name}"><code>{name}</code></a></li>' for name in STAGES)
    return f'<ol class="stages" aria-label="Stages in order">{items}</ol>'


def _package(home: pathlib.Path, slugs: Slugs) -> str:
    name = home.relative_to(REPO_ROOT).as_posix().replace("/", ".")
    inner = sorted(p for p in home.iterdir() if (p / "__init__.py").exists())
    rows = "".join(
        f"<dt><code>{p.name}</code> <small>{_count(p)}</small></dt><dd>{docstring_html(_docstring(p / '__init__.py'))}</dd>"
        for p in inner
    )
    return (
        f"{heading_html(3, f'<code>{name}</code>', slugs)}<p><small>{_count(home)}</small></p>"
        f"{docstring_html(_docstring(home / '__init__.py'))}{f'<dl>{rows}</dl>' if rows else ''}"
    )


def _modules(home: pathlib.Path) -> str:
    modules = sorted(p for p in home.glob("*.py") if not p.name.startswith("__"))
    rows = "".join(
        f"<dt><code>{p.stem}</code></dt><dd>{docstring_html(_docstring(p).partition(chr(10) * 2)[0])}</dd>"
        for p in modules
    )
    return f"<dl>{rows}</dl>"


def _count(home: pathlib.Path) -> str:
    number = sum(1 for p in home.rglob("*.py") if p.name != "__init__.py")
    return f"{number} module{'s' * (number != 1)}"


def _docstring(path: pathlib.Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
