"""The files around the code say what is true: versions, targets, templates, and the example of a test."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import yaml

from dp_forward.noise import release_batch
from dp_forward.privacy import AnalyticGaussian, Budget, calibrate, normalise

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_is_of_this_version_and_names_the_paper() -> None:
    cited = yaml.safe_load(read("CITATION.cff"))
    assert (str(cited["version"]), cited["license"]) == (PROJECT["version"], PROJECT["license"])
    assert (cited["title"], cited["repository-code"]) == (PROJECT["name"], PROJECT["urls"]["Repository"])
    (paper,) = cited["references"]
    assert (paper["doi"], paper["year"], len(paper["authors"])) == ("10.1145/3576915.3616592", 2023, 6)


def test_the_changelog_has_a_place_for_what_comes() -> None:
    assert read("CHANGELOG.md").count("\n## [Unreleased]\n") == 1


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "RELEASING.md", ".github/pull_request_template.md"])
def test_every_make_target_that_is_named_exists_and_every_target_is_explained(page: str) -> None:
    (targets,) = re.findall(r"^\.PHONY: (.*)$", read("Makefile"), flags=re.MULTILINE)
    named = set(re.findall(r"(?:`|\$ )make (\w+)", read(page)))
    assert named <= set(targets.split())
    if page == "CONTRIBUTING.md":
        assert set(targets.split()) - named <= {"demo", "clean"}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_is_a_form_that_points_to_the_private_way(template: Path) -> None:
    form: dict[str, Any] = yaml.safe_load(template.read_text(encoding="utf-8"))
    if template.stem == "config":
        (link,) = form["contact_links"]
        assert link["url"].startswith(PROJECT["urls"]["Repository"])
        assert form["blank_issues_enabled"] is False
        return
    assert {"name", "description", "body"} <= form.keys()
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in asked}) == len(asked) >= 2
    assert all(part["attributes"]["label"] for part in asked)
    if template.stem != "question":
        assert "SECURITY.md" in str(form)


def test_every_kind_of_issue_has_a_template() -> None:
    assert {path.stem for path in TEMPLATES} == {"bug", "privacy", "question", "config"}


def test_the_example_of_a_test_passes_as_it_stands() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", read("CONTRIBUTING.md"), flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"math": math, "np": np, "pytest": pytest, "release_batch": release_batch}
    names |= {"AnalyticGaussian": AnalyticGaussian, "Budget": Budget}
    names |= {"calibrate": calibrate, "normalise": normalise}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    honest, control = (
        value
        for value in names.values()
        if isinstance(value, FunctionType) and value.__name__.startswith("test")
    )
    honest()
    for share in control.pytestmark[0].args[1]:
        control(share)
