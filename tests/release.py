"""Check and prepare a release, for the workflow that a tag starts.

Run ``python -m tests.release v1.2.3``. It needs no package but Python.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import tomllib
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
TAG = re.compile(r"v(\d+\.\d+\.\d+(?:rc\d+)?)")
RELATIVE_LINK = re.compile(
    r'(?P<before>\b(?:src|srcset)="|(?P<picture>!)?\[[^\]\n]*\]\()(?!https?://|#)(?P<path>[^")\s]+)'
)
VERSION = re.compile(r'^version = "[^"]+"$', re.MULTILINE)


def version_of(tag: str) -> str:
    """Return the version that a tag names.

    Raises:
        ValueError: the tag is not of the form v1.2.3 or v1.2.3rc1.
    """
    found = TAG.fullmatch(tag)
    if not found:
        raise ValueError(f"{tag} is not a tag of the form v1.2.3 or v1.2.3rc1.")
    return found.group(1)


def problems(version: str, changelog: str) -> list[str]:
    """Return what is missing in the changelog for a version."""
    part = re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if not part:
        return [f"CHANGELOG.md has no heading ## [{version}] - YYYY-MM-DD."]
    return [] if re.search(r"^- ", part.group(1), re.MULTILINE) else [f"CHANGELOG.md lists no change below {version}."]


def with_version(project: str, version: str) -> str:
    """Return the text of pyproject.toml with another version."""
    text, count = VERSION.subn(f'version = "{version}"', project, count=1)
    if not count:
        raise ValueError("pyproject.toml states no version.")
    return text


def with_absolute_links(readme: str, repository: str, tag: str) -> str:
    """Return a page's text with whole addresses, which a package index needs.

    Args:
        readme: the text, with paths in the repository.
        repository: address of the repository on GitHub.
        tag: the tag to link to.
    """

    def absolute(found: re.Match[str]) -> str:
        is_picture = found["picture"] or not found["before"].endswith("(")
        return f"{found['before']}{repository}/{'raw' if is_picture else 'blob'}/{tag}/{found['path']}"

    return RELATIVE_LINK.sub(absolute, readme)


def bill_of_materials(version: str, project: dict[str, Any]) -> dict[str, Any]:
    """Return the declared dependencies as an SPDX 2.3 document."""
    packages = [
        {
            "SPDXID": f"SPDXRef-{index}",
            "name": re.split(r"[<>=!~;\[ ]", requirement)[0],
            "comment": requirement,
            "versionInfo": version if index == 0 else "NOASSERTION",
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "licenseDeclared": project["license"] if index == 0 else "NOASSERTION",
        }
        for index, requirement in enumerate([project["name"], *project["dependencies"]])
    ]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{project['name']}-{version}",
        "documentNamespace": f"urn:spdx:{project['name']}:{version}",
        "creationInfo": {"creators": ["Tool: tests.release"], "created": "1970-01-01T00:00:00Z"},
        "packages": packages,
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-0"},
            *(
                {"spdxElementId": "SPDXRef-0", "relationshipType": "DEPENDS_ON", "relatedSpdxElement": p["SPDXID"]}
                for p in packages[1:]
            ),
        ],
    }


def main() -> int:
    """Check the changelog; write the version or the bill of materials if this was requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag")
    parser.add_argument("--write", action="store_true", help="write the version into pyproject.toml")
    parser.add_argument("--repository", help="address on GitHub: write the links of the package's page in full")
    parser.add_argument("--sbom", type=pathlib.Path, help="write the declared dependencies as SPDX")
    given = parser.parse_args()
    version = version_of(given.tag)
    found = problems(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    for problem in found:
        print(problem)
    path = ROOT / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    if given.write and not found:
        path.write_text(with_version(text, version), encoding="utf-8")
    if given.repository and not found:
        readme = ROOT / tomllib.loads(text)["project"]["readme"]
        linked = with_absolute_links(readme.read_text(encoding="utf-8"), given.repository, given.tag)
        readme.write_text(linked, encoding="utf-8")
    if given.sbom:
        document = bill_of_materials(version, tomllib.loads(text)["project"])
        given.sbom.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
