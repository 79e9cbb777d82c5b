"""Version, changelog, citation and tag say the same, and the hosting service reads what is in .github."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from lfpo.config.version import VERSION

ROOT = Path(__file__).parents[2]


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


def read_yaml(path: str) -> dict[Any, Any]:
    values = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    assert isinstance(values, dict)
    return values


def test_a_release_needs_authors_and_addresses():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    authors = read_yaml("CITATION.cff")["authors"]
    assert project["authors"] == [{"name": author["name"]} for author in authors]
    assert all(address.startswith("https://") for address in project["urls"].values())


def steps(workflow: str) -> list[dict[str, Any]]:
    """The steps of a workflow's only job."""
    (job,) = read_yaml(f".github/workflows/{workflow}.yml")["jobs"].values()
    return job["steps"]


def commands(workflow: str) -> str:
    return "\n".join(step.get("run", "") for step in steps(workflow))


@pytest.mark.parametrize(
    ("workflow", "starts"),  # PyYAML reads the key `on` as true
    [
        ("ci", {"push": {"branches": ["main"]}, "pull_request": None}),
        ("newest", {"schedule": [{"cron": "17 4 * * 1"}], "workflow_dispatch": None}),
        ("release", {"push": {"tags": ["v*"]}}),
    ],
)
def test_workflows_start_when_they_should_and_may_write_only_a_release(workflow: str, starts: dict[str, Any]):
    values = read_yaml(f".github/workflows/{workflow}.yml")
    assert values[True] == starts
    assert values["permissions"] == {"contents": "write" if workflow == "release" else "read"}
    assert {path.stem for path in (ROOT / ".github/workflows").iterdir()} == {"ci", "newest", "release"}


def test_the_weekly_workflow_is_the_daily_one_without_constraints():
    (every,), (weekly,) = ([s for s in steps(name) if s.get("run") == ".ci/run"] for name in ("ci", "newest"))
    assert "env" not in every and weekly["env"] == {"CONSTRAINTS": "/dev/null"}
    assert os.access(ROOT / ".ci/run", os.X_OK)
    made = subprocess.run(
        ["make", "--dry-run", "install", "VENV=nowhere"],
        cwd=ROOT,
        env={**os.environ, **weekly["env"]},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    assert "-c /dev/null -e" in made.stdout and "constraints.txt" not in made.stdout


def test_the_release_workflow_uses_targets_that_exist_and_takes_one_section_of_the_changelog(tmp_path: Path):
    targets = re.findall(r"^make ([\w-]+)$", commands("release"), re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets == ["install", "wheel-check"] and all(f"\n{target}:" in makefile for target in targets)
    (script,) = (step["run"] for step in steps("release") if "notes.md" in step.get("run", "") and "awk" in step["run"])
    newest = "## [0.1.1] - 2027-01-01\n\nthis\n### Fixed\n- x [y](z)\n\n"
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## [Unreleased]\n\nnext\n\n{newest}## [0.1.0]\nold\n")
    for tag, section in [("v0.1.1", "\nthis\n### Fixed\n- x [y](z)\n\n"), ("v0.1.0", "old\n")]:
        env = {**os.environ, "GITHUB_REF_NAME": tag}
        subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=env, check=True)
        assert (tmp_path / "notes.md").read_text() == section
    env = {**os.environ, "GITHUB_REF_NAME": "v0.1"}
    assert subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=env).returncode == 1  # no such section


FIELDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


@pytest.mark.parametrize("form", ["bug", "feature", "wrong-number"])
def test_an_issue_form_asks_for_what_is_needed(form: str):
    values = read_yaml(f".github/ISSUE_TEMPLATE/{form}.yml")
    assert values["name"] and values["description"]
    questions = [field for field in values["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in values["body"]} <= FIELDS
    assert all(field["attributes"]["label"] for field in questions)
    ids = [field["id"] for field in questions]
    assert len(set(ids)) == len(ids)
    assert any(field.get("validations", {}).get("required") for field in questions)


def test_pre_commit_runs_what_make_check_runs():
    hooks = {
        hook["entry"].split()[0] for repo in read_yaml(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]
    }
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    check = re.search(r"^check:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert check is not None
    assert set(re.findall(r"\$\(BIN\)/([\w-]+)", check[1])) == {"ruff", "lint-imports", "mypy"} <= hooks
