"""The metadata of an installed hvd_sparse: licence, Pythons, extras; built offline."""

import re
import shutil
import sys
from email.parser import Parser

import pytest
from harness import ROOT
from programs import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Metadata as installers ask the build backend for it, from a copy."""
    copy = tmp_path_factory.mktemp("metadata")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(
        ROOT / "hvd_sparse", copy / "hvd_sparse", ignore=shutil.ignore_patterns("__pycache__")
    )
    backend = (
        "from setuptools import build_meta\n"
        "print('in', build_meta.prepare_metadata_for_build_wheel('out'))"
    )
    (copy / "out").mkdir()
    done = run(sys.executable, "-c", backend, cwd=copy)
    assert done.returncode == 0, done.stderr
    assert "Deprecat" not in done.stderr, done.stderr
    return copy / "out" / done.stdout.splitlines()[-1].removeprefix("in ")


@pytest.fixture(scope="module")
def metadata(folder):
    return Parser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))


def pythons(metadata):
    found = re.fullmatch(
        r"<3\.(\d+),>=3\.(\d+)", ",".join(sorted(metadata["Requires-Python"].split(",")))
    )
    assert found is not None, metadata["Requires-Python"]
    return int(found.group(2)), int(found.group(1)) - 1


def test_the_licence_is_an_expression_with_its_text(metadata, folder):
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["License"] is None
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert "Apache License" in (folder / "licenses" / "LICENSE").read_text(encoding="utf-8")
    assert not [each for each in metadata.get_all("Classifier") if each.startswith("License")]


def test_the_pythons_are_those_that_setup_takes_and_readme_names(metadata):
    oldest, newest = pythons(metadata)
    setup = (ROOT / "scripts" / "setup").read_text(encoding="utf-8")
    assert f"(3, {oldest}) <= sys.version_info[:2] <= (3, {newest})" in setup
    assert f"Python 3.{oldest} to 3.{newest}" in (ROOT / "README.md").read_text(encoding="utf-8")
    versions = [
        each.rpartition(" ")[2]
        for each in metadata.get_all("Classifier")
        if ":: Python :: 3." in each
    ]
    assert versions == [f"3.{minor}" for minor in range(oldest, newest + 1)]


def test_numpy_is_all_that_is_needed_without_extras(metadata):
    needed = [each for each in metadata.get_all("Requires-Dist") if "extra ==" not in each]
    assert [re.match(r"[\w-]+", each)[0] for each in needed] == ["numpy"]


def test_what_the_extras_for_users_bring_is_pinned_and_so_was_installed_and_tested(metadata):
    pinned = (ROOT / "scripts" / "versions.txt").read_text(encoding="utf-8")
    needed = [each for each in metadata.get_all("Requires-Dist") if 'extra == "dev"' not in each]
    packages = {re.match(r"[\w-]+", each)[0] for each in needed}
    assert len(packages) > 15
    assert packages - set(re.findall(r"^([\w-]+)==", pinned, re.MULTILINE)) == set()
