"""Test what the release workflow checks and writes, and the project's community files."""

from __future__ import annotations

import pathlib
import re
import tomllib

import pytest

from tests.release import bill_of_materials, problems, version_of, with_absolute_links, with_version

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("tag", ["1.2.3", "v1.2", "v1.2.3-beta", "main"])
def test_a_tag_names_a_version(tag: str) -> None:
    """The version comes from the tag; another form is an error."""
    assert version_of("v1.2.3") == "1.2.3"
    assert version_of("v1.2.3rc1") == "1.2.3rc1"
    with pytest.raises(ValueError, match="not a tag"):
        version_of(tag)


def test_a_release_needs_its_changes() -> None:
    """A missing heading and an empty part are found."""
    text = "# Changelog\n\n## [Unreleased]\n- a\n\n## [1.1.0] - 2026-01-02\n\n## [1.0.0] - 2026-01-01\n- b\n"
    assert problems("1.0.0", text) == []
    assert "no heading" in problems("1.2.0", text)[0]
    assert "no change" in problems("1.1.0", text)[0]


def test_the_version_is_written_once() -> None:
    """Only the version of the project changes, and the result is valid."""
    before, after = tomllib.loads(PROJECT), tomllib.loads(with_version(PROJECT, "9.8.7"))
    assert after["project"].pop("version") == "9.8.7"
    before["project"].pop("version")
    assert before == after


def test_the_readme_of_a_package_index_has_whole_addresses() -> None:
    """README's pictures and files are those of the tag; other links stay as they are."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    text = with_absolute_links(readme, "https://host/a/b", "v1.2.3")
    assert 'src="https://host/a/b/raw/v1.2.3/notebooks/pictures/click-light.svg"' in text
    assert "](https://host/a/b/raw/v1.2.3/notebooks/pictures/badge-torch.svg)" in text
    assert "[LICENSE](https://host/a/b/blob/v1.2.3/LICENSE)" in text
    assert "](#what-it-does-today)" in text
    assert not re.search(r'(src|srcset)="notebooks|\]\((notebooks|[A-Z_]+\.md)', text)
    assert text.replace("https://host/a/b/raw/v1.2.3/", "").replace("https://host/a/b/blob/v1.2.3/", "") == readme


def test_the_page_of_the_package_links_to_files_of_the_tag() -> None:
    """Its paths are those of the repository's files, and all get whole addresses."""
    page = (ROOT / tomllib.loads(PROJECT)["project"]["readme"]).read_text(encoding="utf-8")
    text = with_absolute_links(page, "https://host/a/b", "v1.2.3")
    paths = re.findall(r"https://host/a/b/(?:raw|blob)/v1\.2\.3/([^)]+)", text)
    assert len(paths) == text.count("](") == 4
    assert all((ROOT / path).is_file() for path in paths)


def test_the_bill_of_materials_lists_every_dependency() -> None:
    """Each declared dependency is a package that the first one depends on."""
    project = tomllib.loads(PROJECT)["project"]
    document = bill_of_materials("9.8.7", project)
    assert [p["comment"] for p in document["packages"][1:]] == project["dependencies"]
    assert document["packages"][0]["versionInfo"] == "9.8.7"
    assert len(document["relationships"]) == len(document["packages"])


def test_the_workflow_releases_with_provenance() -> None:
    """Changelog first, then build, size and both attestations; no password is stored."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    order = [
        "tests.release",
        "-m build",
        "advzip",
        "-lt 2000000",
        "attest-build-provenance",
        "attest-sbom",
        "gh-action-pypi-publish",
    ]
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    assert "password" not in text


def test_community_files_name_what_exists() -> None:
    """Templates name commands and files of this project; nobody's address is in them."""
    pages = [
        *(ROOT / ".github").rglob("*.md"),
        ROOT / "CODE_OF_CONDUCT.md",
        ROOT / "CITATION.cff",
        ROOT / "SECURITY.md",
    ]
    assert len(pages) == 7
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"[\w.]+@[\w.]+\.\w+", text), page
        for target in re.findall(r"`make ([a-z-]+)`", text):
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"title: {tomllib.loads(PROJECT)['project']['name']}" in citation
