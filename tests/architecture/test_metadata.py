"""What pyproject.toml says of the package: licence, Pythons, extras."""

import re

from harness import ROOT
from setuptools.config.pyprojecttoml import load_file

PROJECT = load_file(ROOT / "pyproject.toml")["project"]


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def names_of(requirements):
    return {re.match(r"[\w-]+", each)[0] for each in requirements}


def test_the_licence_is_an_expression_with_its_text():
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert "Apache License" in text_of("LICENSE")
    assert not [each for each in PROJECT["classifiers"] if each.startswith("License")]


def test_the_pythons_are_those_that_setup_takes_and_readme_names():
    found = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"])
    oldest, newest = int(found[1]), int(found[2]) - 1
    assert f"(3, {oldest}) <= sys.version_info[:2] <= (3, {newest})" in text_of("scripts/setup")
    assert f"Python 3.{oldest} to 3.{newest}" in text_of("README.md")
    versions = re.findall(r":: Python :: 3\.(\d+)", "\n".join(PROJECT["classifiers"]))
    assert list(map(int, versions)) == list(range(oldest, newest + 1))


def test_numpy_is_all_that_is_needed_without_extras():
    assert names_of(PROJECT["dependencies"]) == {"numpy"}


def test_what_the_extras_for_users_bring_is_pinned_and_so_was_installed_and_tested():
    extras = PROJECT["optional-dependencies"]
    needed = {
        name for extra, listed in extras.items() if extra != "dev" for name in names_of(listed)
    }
    assert len(needed) > 15
    pinned = set(re.findall(r"^([\w-]+)==", text_of("scripts/versions.txt"), re.MULTILINE))
    assert needed - pinned == set()
