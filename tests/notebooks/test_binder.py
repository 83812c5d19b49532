"""The files for Binder: pinned, in step with the package, and with commands that work."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parents[2]
BINDER = ROOT / "binder"
KNOWN = {"requirements.txt", "runtime.txt", "postBuild"}


def requirements() -> dict[str, Requirement]:
    """Requirements by name."""
    lines = (
        line.partition("#")[0].strip()
        for line in (BINDER / "requirements.txt").read_text(encoding="utf-8").splitlines()
    )
    found = [Requirement(line) for line in lines if line and line != "." and not line.startswith("-")]
    return {canonicalize_name(r.name): r for r in found}


def test_every_file_is_one_that_binder_reads() -> None:
    """Nothing in the folder is there for nothing."""
    assert {p.name for p in BINDER.iterdir()} == KNOWN


def test_every_package_is_pinned() -> None:
    """Each requirement names one version, and torch is the CPU build.

    The package itself comes from the repository.
    """
    text = (BINDER / "requirements.txt").read_text(encoding="utf-8")
    assert text.splitlines()[-1] == "."
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in text
    assert "torch==2.13.0+cpu" in text
    for requirement in requirements().values():
        (pin,) = requirement.specifier
        assert pin.operator == "==", requirement
        assert "*" not in pin.version


def test_the_pins_are_what_the_package_asks_for() -> None:
    """All dependencies of the package and its lab extra are pinned within declared bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = requirements()
    for text in (*project["dependencies"], *project["optional-dependencies"]["lab"]):
        declared = Requirement(text)
        (pin,) = pinned[canonicalize_name(declared.name)].specifier
        assert declared.specifier.contains(pin.version, prereleases=True), declared


def test_the_pins_agree_with_each_other() -> None:
    """Every requirement of an installed pinned package is pinned to a version it accepts.

    An installer would refuse other pins. The requirements are those of the packages installed here.
    """
    pinned = requirements()
    here = {canonicalize_name(d.name): d for d in distributions()}
    # Another torch, or its CUDA build, needs packages that the pinned build does not.
    compared = [n for n in pinned if n in here and (n != "torch" or pinned[n].specifier.contains(here[n].version))]
    assert len(compared) > len(pinned) // 2
    for name in compared:
        for text in here[name].requires or ():
            needed = Requirement(text)
            if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
                continue
            found = pinned.get(canonicalize_name(needed.name))
            if found is None:  # what every environment has
                assert canonicalize_name(needed.name) in {"setuptools", "pip"}, (
                    f"{name} needs {needed}, which is not pinned"
                )
                continue
            (pin,) = found.specifier
            assert needed.specifier.contains(pin.version, prereleases=True), f"{name} needs {needed}; pinned is {found}"


def test_the_python_is_one_that_the_package_takes() -> None:
    """The runtime is a Python with which everything was tested."""
    assert re.fullmatch(r"python-3\.11\n", (BINDER / "runtime.txt").read_text(encoding="utf-8"))


def links_to_binder() -> list[str]:
    """Return the links to Binder on the pages for learners and teachers."""
    pages = [ROOT / "README.md", *(ROOT / "notebooks").rglob("*.md")]
    links = [link for page in pages for link in re.findall(r"mybinder\.org/v2/\S+", page.read_text(encoding="utf-8"))]
    assert links
    return links


@pytest.mark.thorough
def test_what_runs_after_building_works(tmp_path: pathlib.Path) -> None:
    """The post-build script is executable, finds the packages and turns news requests off.

    The test runs the script here. The requests are those that JupyterLab makes to the network. What the link
    opens has no answers.
    """
    script = BINDER / "postBuild"
    assert os.access(script, os.X_OK)
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "NB_PYTHON_PREFIX": str(tmp_path), "PATH": path, "PYTHONPATH": str(ROOT)}
    subprocess.run(["bash", str(script)], env=env, cwd=tmp_path, check=True)
    settings = json.loads((tmp_path / "share/jupyter/lab/settings/overrides.json").read_text(encoding="utf-8"))
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    for link in links_to_binder():
        opened = json.loads((tmp_path / link.partition("lab/tree/")[2]).read_text(encoding="utf-8"))
        code = [cell for cell in opened["cells"] if cell["cell_type"] == "code"]
        assert not any(cell["outputs"] for cell in code)
        assert any("".join(cell["source"]).startswith("%reveal") for cell in code)


def test_links_to_binder_pin_a_tag() -> None:
    """Every link to Binder opens the tour, in the student edition, at a tag.

    A class next year then sees the version that was tested.
    """
    place = r"REPOSITORY/v\d+\.\d+\.\d+\?urlpath=lab/tree/build/editions/student/00_tour\.ipynb"
    for link in links_to_binder():
        assert re.search(place, link), link
