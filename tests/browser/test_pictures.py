"""Test that README uses all its pictures, and that they show today's explorer."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from tests.notebooks import pictures

README = (pictures.NOTEBOOKS_DIR.parent / "README.md").read_text(encoding="utf-8")
RECORD = json.loads(pictures.SHOWN.read_text(encoding="utf-8"))


def test_pictures_are_those_that_the_script_wrote() -> None:
    """Each file has the digest that was noted, and the folder holds nothing else."""
    names = {p.name for p in pictures.FOLDER.iterdir()} - {pictures.SHOWN.name}
    assert names == set(RECORD["files"])
    for name, digest in RECORD["files"].items():
        assert pictures.digest(pictures.FOLDER / name) == digest, f"{name} changed without `make pictures`"
    assert set(RECORD["text"]) == set(pictures.SCENES)


def test_pictures_are_small_and_load_nothing() -> None:
    """No picture has 2 MB; a moving one loads nothing and respects reduced motion."""
    for path in pictures.FOLDER.iterdir():
        assert path.stat().st_size < 2_000_000
        if path.suffix == ".svg":
            text = path.read_text(encoding="utf-8")
            ET.fromstring(text)
            assert "<script" not in text
            assert not re.search(r'(?:href|src)="(?!data:)', text)
            assert "@keyframes" not in text or "prefers-reduced-motion:reduce" in text


def test_badges_are_true() -> None:
    """Each badge is what the project declares now."""
    for label, value in pictures.badges().items():
        written = (pictures.FOLDER / f"badge-{label}.svg").read_text(encoding="utf-8")
        assert written == pictures.badge(label, value), "run `make pictures`"


def test_readme_shows_every_picture_with_words() -> None:
    """Each picture is in README, with a text for readers who do not see it."""
    for name in RECORD["files"]:
        assert f"notebooks/pictures/{name}" in README
    images = re.findall(r"<img [^>]*>", README)
    assert all(re.search(r'alt="[^"]{8,}"', image) for image in images)
    for name, scene in pictures.SCENES.items():
        assert any(f"{name}-light" in image and f'alt="{scene.says}"' in image for image in images), name


@pytest.mark.browser
@pytest.mark.parametrize("name", pictures.SCENES)
def test_pictures_show_what_the_explorer_shows(name: str, browser: Any) -> None:
    """Opened again, each scene says what it said when its pictures were made."""
    pytest.importorskip("triton", reason="the pictures show kernels that Triton compiled")
    scene = pictures.SCENES[name]
    shown = [frame.text.splitlines() for frame in pictures.show(scene, pictures.session_of(scene), browser, "light")]
    assert shown == RECORD["text"][name], "the picture is stale: run `make pictures`"
