"""Test the values file for a JupyterHub: schema, memory, and what it opens."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from tests.notebooks.notebook_runner import NOTEBOOKS_DIR

HUB = NOTEBOOKS_DIR / "reference" / "jupyterhub"


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    """The values as Helm reads them."""
    found: dict[str, Any] = yaml.safe_load((HUB / "values.yaml").read_text(encoding="utf-8"))
    return found


def check(values: dict[str, Any]) -> None:
    """Hold values against the schema."""
    schema = json.loads((HUB / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(values, schema)


def test_the_values_fit_the_schema(values: dict[str, Any]) -> None:
    """Every key is known and has its type."""
    check(values)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("singleuser", "memory", "limit"), "much"),
        (("singleuser", "extraEnv", "OMP_NUM_THREADS"), 1),
        (("singleuser", "defaultURL"), "/lab"),
        (("cull", "enabled"), "yes please"),
    ],
)
def test_a_mistake_is_found(values: dict[str, Any], path: tuple[str, ...], wrong: object) -> None:
    """A wrong type, a wrong unit and a misspelled key are rejected."""
    changed = inner = copy.deepcopy(values)
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = wrong
    with pytest.raises(jsonschema.ValidationError):
        check(changed)


def test_the_values_are_those_of_the_page(values: dict[str, Any]) -> None:
    """Limits stand on the page for teachers, and the first notebook exists."""
    page = (NOTEBOOKS_DIR / "reference" / "WORKSHOP.md").read_text(encoding="utf-8")
    for key, name in (("limit", "mem_limit"), ("guarantee", "mem_guarantee")):
        assert f'c.Spawner.{name} = "{values["singleuser"]["memory"][key]}"' in page
    opened = values["singleuser"]["defaultUrl"]
    assert f'c.Spawner.default_url = "{opened}"' in page
    assert (NOTEBOOKS_DIR / re.sub(r"^/lab/tree/build/editions/student/", "", opened)).is_file()
