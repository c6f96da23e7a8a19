"""What can be checked of the containers without any: ``scripts/docker-test`` runs the rest."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKERFILES = ("docker/Dockerfile", "docker/Dockerfile.cuda")


def pinned() -> dict[str, str]:
    lines = (ROOT / "scripts" / "versions.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def test_where_no_engine_can_be_had_nothing_counts_as_passed(tmp_path):
    for tool in ("bash", "cat", "dirname", "env", "id", "mkdir", "mktemp", "rm", "sed", "true"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "HVD_SPARSE_VENV": str(tmp_path)}
    done = subprocess.run(
        [str(tmp_path / "bash"), str(ROOT / "scripts" / "docker-test")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stdout + done.stderr
    assert "NOT RUN" in done.stdout
    assert "passed" not in done.stdout


def test_every_exchange_and_every_fault_is_a_case():
    listed = subprocess.run(
        [str(ROOT / "scripts" / "docker-test"), "--list"],
        capture_output=True,
        text=True,
        check=True,
    )
    cases = listed.stdout.split("\n")
    for controller in ("gloo", "mpi"):
        for what in ("torch", "tensorflow", "stop", "kill", "pause", "cut"):
            assert f"{what} {controller}" in cases
    for what in ("stop", "kill", "pause", "cut", "add"):
        assert f"elastic {what}" in cases


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_take_their_versions_from_the_one_list(name):
    text = (ROOT / name).read_text()
    assert "scripts/versions.txt" in text and "--constraint /build/versions.txt" in text
    for package, version in re.findall(r"\b([a-z][\w-]*)(?:\[[\w-]+\])?==([\d.]+)", text):
        assert pinned()[package] == version, f"{name} has {package} {version}"


def test_the_image_has_the_stacks_of_the_scripts():
    scripts = ROOT / "scripts"
    default = re.search(r"^DEFAULT_STACK=(\S+)", (scripts / "lib" / "common.sh").read_text(), re.M)[
        1
    ]
    assert f"ARG STACK={default}\n" in (ROOT / "docker" / "Dockerfile").read_text()
    assert pinned()["tensorflow"].startswith(default)
    for path in (scripts / "stacks").glob("*.txt"):
        found = dict(re.findall(r"^([\w-]+)==(.+)$", path.read_text(), re.M))
        assert found["tensorflow"].startswith(path.stem) and set(found) <= set(pinned())


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_copy_only_what_is_there(name):
    for sources in re.findall(
        r"^COPY (?!--from)(.+) \S+$", (ROOT / name).read_text(), flags=re.MULTILINE
    ):
        for source in sources.split():
            assert "$" in source or (ROOT / source).exists(), f"{name} copies {source}"


def test_the_cluster_is_private_and_shares_its_key():
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
    assert compose["networks"]["wire"]["internal"] is True
    assert compose["services"]["host"]["volumes"] == ["cluster:/cluster"]
    assert "ports" not in compose["services"]["host"]


@pytest.mark.parametrize(
    "script",
    [
        "docker-test",
        "bench-network",
        "launch",
        "gpu-check",
        "lib/engine.sh",
        "lib/image.sh",
        "lib/cases.sh",
        "../docker/cluster",
        "../docker/host",
    ],
)
def test_scripts_are_read_by_their_shell(script):
    path = ROOT / "scripts" / script
    shell = "sh" if path.read_text().startswith("#!/bin/sh") else "bash"
    subprocess.run([shell, "-n", str(path)], check=True)


@pytest.mark.parametrize("program", ["exchanges.py", "endless.py", "elastic.py"])
def test_programs_for_the_containers_are_python(program):
    ast.parse((ROOT / "tests" / "docker" / program).read_text())
