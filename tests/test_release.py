"""Version, changelog, citation and tag say the same."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from lfpo.config.version import VERSION

ROOT = Path(__file__).parent.parent


def released() -> list[str]:
    """The versions of CHANGELOG.md's sections, the newest first."""
    return re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_version_is_that_of_the_newest_section_or_leads_to_the_next():
    """A release has its own section; between releases the version ends in .devN and is above the newest section's."""
    if ".dev" not in VERSION:
        assert released()[0] == VERSION
        return
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[([^\]]*)\]", text, re.MULTILINE)[1] == "Unreleased"  # type: ignore[index]
    numbers = [tuple(map(int, v.partition(".dev")[0].split("."))) for v in (VERSION, *released()[:1])]
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) == len(numbers)


def test_the_citation_has_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == VERSION
    assert {"cff-version", "message", "title", "authors", "license"} <= citation.keys()


def test_a_tag_of_this_commit_names_this_version():
    try:
        found = subprocess.run(["git", "tag", "--points-at", "HEAD", "v*"], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no git")
    if not found.stdout.split():
        pytest.skip("this commit has no tag of a version")
    assert found.stdout.split() == [f"v{VERSION}"]
