"""``hvd-sparse launch``: what it refuses, what it would run, and what comes of it on several
hosts."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from installed import horovod_parts

from hvd_sparse.cli import main
from hvd_sparse.cli.hosts import (
    Host,
    LaunchError,
    common_interface,
    differences,
    parse_hosts,
    read_hostfile,
)
from hvd_sparse.cli.launch import _start, build, choose_controller
from hvd_sparse.cli.survey import probe_command, survey

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "network"))
from _spaces import finish, needs_spaces, start  # noqa: E402

from benchmarks.network.cluster import inside  # noqa: E402

SSH = ("ssh", "-o", "BatchMode=yes")


def facts(**changes: Any) -> dict[str, Any]:
    versions = {
        "python": "3.11.2",
        "hvd_sparse": "1",
        "horovod": "0.28.1",
        "torch": "2.13.0",
        "tensorflow": None,
    }
    found = {
        "versions": {**versions, "numpy": "2.0.2"},
        "controllers": ["gloo", "mpi"],
        "cores": 2,
        "interfaces": {},
        "port": 1,
        "missing": [],
    }
    return {**found, **changes}


def options(**changes: Any) -> argparse.Namespace:
    defaults: dict[str, Any] = {
        "python": sys.executable,
        "controller": "gloo",
        "ranks": 2,
        "interface": None,
    }
    return argparse.Namespace(
        **{**defaults, "log_dir": Path("logs"), "ssh_port": None, "option": [], **changes}
    )


def test_hosts_are_read_from_words_and_files(tmp_path):
    assert parse_hosts("a:2, b") == [Host("a", 2), Host("b", 1)]
    path = tmp_path / "hosts"
    path.write_text("# mine\na slots=2\nb:3  # the new one\n\nc\n")
    assert read_hostfile(path) == [Host("a", 2), Host("b", 3), Host("c", 1)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:0", "'a:0'"),
        ("a:x", "'a:x'"),
        (":2", "':2'"),
        ("", "no host"),
        ("a:1,b:1,a:2", "'a' is named twice"),
    ],
)
def test_hosts_that_are_none_are_refused_with_the_remedy(text, said):
    with pytest.raises(LaunchError, match=re.escape(said)):
        parse_hosts(text)


def test_a_hostfile_that_is_not_there_or_no_text_is_named(tmp_path):
    with pytest.raises(LaunchError, match="nowhere"):
        read_hostfile(tmp_path / "nowhere")
    (tmp_path / "bytes").write_bytes(b"host\xff")
    with pytest.raises(LaunchError, match="bytes' is no text"):
        read_hostfile(tmp_path / "bytes")


@pytest.mark.parametrize("controller", ["gloo", "mpi"])
@pytest.mark.parametrize("way", ["-H", "--hostfile"])
@pytest.mark.parametrize(
    "name", ["-oProxyCommand=touch${IFS}TOUCHED", "$(touch TOUCHED)", "a;touch TOUCHED", "a b"]
)
@pytest.mark.parametrize("checks", [[], ["--no-check", "--interface", "lo"]])
def test_a_host_name_that_is_none_is_refused_before_anything_is_started(
    tmp_path, monkeypatch, capsys, controller, way, name, checks
):
    """Everything that could be started says so in a file; nothing may."""
    monkeypatch.chdir(tmp_path)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for program in ("ssh", "horovodrun", "mpirun", "sh", "python"):
        (bin_folder / program).write_text(
            f"#!/bin/sh\necho {program} >> {shlex.quote(str(tmp_path))}/TOUCHED\n"
        )
        (bin_folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_folder), prepend=os.pathsep)
    monkeypatch.setattr(os, "execve", lambda *_: (tmp_path / "TOUCHED").write_text("execve"))
    (tmp_path / "hosts").write_text(f"localhost\n{name} slots=1\n")
    where = {"-H": f"-Hlocalhost,{name}:1", "--hostfile": "--hostfile=hosts"}[way]
    python = ["--python", str(bin_folder / "python")]
    arguments = ["launch", "--controller", controller, where, *python, *checks, "--", "true"]
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert repr(name) in said and "is no host name" in said
    assert not (tmp_path / "TOUCHED").exists()


def test_ssh_is_given_a_host_behind_the_end_of_its_options(monkeypatch, tmp_path):
    monkeypatch.setattr("hvd_sparse.cli.survey.is_local", lambda _: False)
    monkeypatch.setattr("hvd_sparse.cli.survey.address_of", lambda name: name)
    asked = probe_command(Host("far", 1), "python", [], SSH)
    assert asked[: len(SSH) + 2] == [*SSH, "--", "far"]
    watched = []
    monkeypatch.setattr(
        "hvd_sparse.cli.supervise.supervise", lambda *given: watched.append(given[2]) or 0
    )
    told = options(controller="mpi", log_dir=tmp_path)
    assert _start(["true"], {}, told, [Host("a", 1), Host("b", 1)]) == 0
    assert [line[-3:] for line in watched[0].values()] == [["--", "a", "true"], ["--", "b", "true"]]


def test_without_gloo_the_ranks_find_each_other_by_mpi():
    whole, without = {"a": facts()}, {"a": facts(controllers=["mpi"])}
    assert choose_controller(None, None) == choose_controller(None, whole) == "gloo"
    assert choose_controller(None, without) == choose_controller("mpi", whole) == "mpi"
    for hosts, wanted in ((without, "gloo"), ({**without, "b": facts()}, None)):
        said = "Horovod on host 'a' was built without Gloo: say --controller mpi, or build it with "
        with pytest.raises(LaunchError, match=re.escape(f"{said}HOROVOD_WITH_GLOO=1")):
            choose_controller(wanted, hosts)


def test_an_interface_that_a_shell_could_take_for_more_is_refused(monkeypatch):
    for interface, said in {
        "eth0;id": "'eth0;id'",
        "-x": "'-x'",
        "lo,$(id)": "'$(id)'",
        "lo,": "''",
    }.items():
        with pytest.raises(LaunchError, match=re.escape(f"interface {said} is no such name")):
            build(options(interface=interface), [Host("a", 1), Host("b", 1)], None, ["x"], {})
    monkeypatch.setattr(socket, "gethostbyname", {"a": "10.0.0.1", "b": "10.0.0.2"}.__getitem__)
    told = {name: facts(interfaces={"e;id": [f"10.0.0.{n}"]}) for n, name in enumerate("ab", 1)}
    with pytest.raises(LaunchError, match="'e;id' is no such name"):
        build(options(), [Host("a", 1), Host("b", 1)], told, ["x"], {})
    line, _ = build(
        options(interface="eth0,bond0.7"), [Host("a", 1), Host("b", 1)], None, ["x"], {}
    )
    assert "eth0,bond0.7" in line


def test_every_difference_names_the_host_the_package_and_both_versions():
    other = facts()
    other["versions"] = {**other["versions"], "torch": "2.12.0", "horovod": None}
    said = differences({"a": facts(), "b": other, "c": facts(missing=["train.py"])})
    assert len(said) == 3
    assert "'b' has horovod not at all, host 'a' has 0.28.1" in said[0]
    assert "'b' has torch 2.12.0, host 'a' has 2.13.0" in said[1]
    assert "'c' has no 'train.py'" in said[2]


def test_the_interface_is_the_one_that_carries_the_addresses(monkeypatch):
    monkeypatch.setattr(socket, "gethostbyname", {"a": "10.0.0.1", "b": "10.0.0.2"}.__getitem__)
    carried = {
        "a": facts(interfaces={"lo": ["127.0.0.1"], "eth1": ["10.0.0.1"], "eth0": ["192.168.0.1"]})
    }
    carried["b"] = facts(interfaces={"eth1": ["10.0.0.2"]})
    assert common_interface(carried) == "eth1"
    carried["b"] = facts(interfaces={"ens3": ["10.0.0.2"]})
    with pytest.raises(LaunchError, match=r"a: eth1, b: ens3.*--interface"):
        common_interface(carried)


def test_a_host_that_calls_itself_loopback_is_known_by_the_address_nearest_to_the_others(
    monkeypatch,
):
    monkeypatch.setattr(socket, "gethostbyname", {"a": "127.0.1.1", "b": "10.1.0.2"}.__getitem__)
    here = {
        "lo": ["127.0.0.1"],
        "docker0": ["172.17.0.1"],
        "eth0": ["10.1.0.1"],
        "eth1": ["10.9.0.1"],
    }
    assert (
        common_interface(
            {"a": facts(interfaces=here), "b": facts(interfaces={"eth0": ["10.1.0.2"]})}
        )
        == "eth0"
    )


def test_waiting_ranks_yield_only_where_they_outnumber_cores():
    hosts = [Host("localhost", 2)]
    roomy, _ = build(options(controller="mpi"), hosts, {"localhost": facts(cores=2)}, ["x"], {})
    assert not any("yield" in part for part in roomy)
    crowded, settings = build(
        options(controller="mpi"), hosts, {"localhost": facts(cores=1)}, ["x"], {}
    )
    assert "--mpi-args=--oversubscribe --mca mpi_yield_when_idle 1" in crowded
    assert settings["OMP_NUM_THREADS"] == "1"


def test_a_frozen_host_keeps_no_mpirun_for_ever():
    hosts = [Host("a", 1), Host("b", 1)]
    _, settings = build(options(controller="mpi", interface="eth0"), hosts, None, ["x"], {})
    assert "ServerAliveInterval" in settings["OMPI_MCA_plm_rsh_args"]
    own = {"OMPI_MCA_plm_rsh_args": "-v"}
    assert build(options(controller="mpi", interface="eth0"), hosts, None, ["x"], own)[1] == own
    assert build(options(interface="eth0"), hosts, None, ["x"], {})[1] == {}


def test_settings_reach_the_ranks_and_nothing_else_is_touched():
    surroundings = {"HVD_SPARSE_A": "1", "HOROVOD_CYCLE_TIME": "0.5", "SECRET": "x"}
    line, settings = build(
        options(), [Host("localhost", 2)], None, ["python", "t.py"], surroundings
    )
    assert settings == {"HVD_SPARSE_A": "1", "HOROVOD_CYCLE_TIME": "0.5"}
    assert line[1:4] == ["--gloo", "-np", "2"]
    assert line[-2:] == ["python", "t.py"]


def test_without_a_check_the_interface_has_to_be_said():
    hosts = [Host("a", 1), Host("b", 1)]
    with pytest.raises(LaunchError, match="--interface"):
        build(options(), hosts, None, ["x"], {})
    line, _ = build(options(interface="eth7"), hosts, None, ["x"], {})
    assert line[line.index("--network-interfaces") + 1] == "eth7"


def test_the_machine_itself_is_asked_without_ssh():
    found = survey([Host("localhost", 1)], sys.executable, [], ("false",))["localhost"]
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["cores"] >= 1
    with pytest.raises(LaunchError, match=r"'localhost' has no 'nothing\.py'"):
        survey([Host("localhost", 1)], sys.executable, ["nothing.py"], ("false",))
    with pytest.raises(LaunchError, match=r"'localhost' cannot be asked.*not-a-python"):
        survey([Host("localhost", 1)], "/usr/bin/not-a-python", [], ("false",))


def test_a_host_without_an_address_is_named():
    with pytest.raises(LaunchError, match=r"'no\.such\.host\.invalid' has no address"):
        survey([Host("no.such.host.invalid", 1)], sys.executable, [], SSH)


def test_a_dry_run_prints_a_command_that_the_shell_reads_back(tmp_path):
    command = [
        sys.executable,
        "-m",
        "hvd_sparse",
        "launch",
        "-np",
        "2",
        "--dry-run",
        "--log-dir",
        str(tmp_path / "l"),
    ]
    environment = {**os.environ, "HVD_SPARSE_NOTE": "two words", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--", "python", "-c", "print('$HOME')"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert "'HVD_SPARSE_NOTE=two words'" in done.stdout
    assert "-H localhost:2" in done.stdout
    echoed = subprocess.run(
        ["sh", "-c", f"printf '%s|' {done.stdout}"], capture_output=True, text=True, check=True
    )
    assert echoed.stdout.rstrip("\n|").endswith("python|-c|print('$HOME')")
    assert not (tmp_path / "l").exists()


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What came of the launches on a cluster of three hosts, four ranks."""
    folder = tmp_path_factory.mktemp("launch")
    script = str(ROOT / "tests" / "launch" / "_cluster_launch.py")
    code, output = finish(start(inside([sys.executable, script, str(folder)])), 280)
    assert code == 0, output[-6000:]
    return json.loads((folder / "seen.json").read_text())


@needs_spaces
@pytest.mark.parametrize("controller", ["gloo", "mpi"])
def test_every_rank_of_every_host_runs_and_has_a_log(seen, controller):
    if controller not in horovod_parts():
        pytest.skip(f"Horovod was built without {controller}")
    outcome = seen[controller]
    assert outcome["code"] == 0, outcome["output"][-4000:]
    places = ["0 of 1 on host1", "0 of 2 on host2", "1 of 2 on host2", "0 of 1 on host3"]
    assert sorted(outcome["logs"]) == [f"rank.{rank}.log" for rank in range(4)]
    for rank, (text, place) in enumerate(zip(outcome["logs"].values(), places)):
        assert f"rank {rank} of 4, {place}: 6.0" in text
        assert "HVD_SPARSE_MARK is passed on" in text  # written to stderr: one log has both
        assert text.count("rank ") == 1


@needs_spaces
def test_a_rank_that_fails_fails_the_launch(seen):
    assert seen["failing"]["code"] != 0
    assert re.search(r"Exit code: +7\b", seen["failing"]["output"])


@needs_spaces
def test_the_interface_between_the_hosts_is_found(seen):
    if "mpi" not in horovod_parts():
        pytest.skip("Horovod was built without mpi, by which that launch goes")
    assert "--network-interfaces eth0" in seen["dry"]["output"]
    assert "-H host1:1,host2:2,host3:1" in seen["dry"]["output"]


@needs_spaces
def test_the_host_that_cannot_be_reached_is_named(seen):
    assert seen["unplugged"]["code"] == 1
    said = seen["unplugged"]["output"]
    assert "host 'host1' does not reach host 'host3'" in said
    assert "host 'host1' does not reach host 'host2'" not in said
