"""``scripts/launch``: refusals, command lines, and what comes of them on several hosts."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from blocks import blocks_for
from harness import LIMIT_S, ROOT
from installed import horovod_parts
from network._spaces import finish, needs_spaces
from programs import put_program, run

from benchmarks.network.cluster import inside

ALL_LIMIT_S = 3 * LIMIT_S
pytestmark = pytest.mark.timeout(ALL_LIMIT_S + 60)


def launch(folder, *arguments, **settings):
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    settings = {"HVD_SPARSE_VENV": str(folder / "none"), "PATH": path, **settings}
    return run(ROOT / "scripts" / "launch", *arguments, cwd=folder, **settings)


def line_of(folder, *arguments):
    put_program(folder / "bin" / "horovodrun", "touch TOUCHED")
    done = launch(folder, *arguments, "--dry-run", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert not (folder / "TOUCHED").exists() and not (folder / "logs").exists()
    line = shlex.split(done.stdout)
    assert line[0] == "horovodrun" and line[-2:] == ["python", "train.py"]
    return line


NO_NAMES = ["-oProxyCommand=id", "a;id:1", "$(id):2", "me@host", ".hidden", "host:0", "host:a", ""]


@pytest.mark.parametrize("name", NO_NAMES)
@pytest.mark.parametrize("way", ["-H", "--hostfile"])
def test_a_host_name_that_is_none_is_refused_before_anything_is_started(tmp_path, way, name):
    """Everything that could be started says so in a file; nothing may."""
    for each in ("ssh", "horovodrun", "mpirun", "id"):
        put_program(tmp_path / "bin" / each, f"touch {tmp_path}/TOUCHED")
    (tmp_path / "hosts").write_text(f"localhost\n{name}:\n" if not name else f"localhost\n{name}\n")
    where = {"-H": f"localhost,{name}:1", "--hostfile": "hosts"}[way]
    done = launch(tmp_path, way, where, "--interface", "lo", "--", "true")
    assert done.returncode == 1 and "is no host name" in done.stderr and name in done.stderr
    assert not (tmp_path / "TOUCHED").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-H", "a,b", "--interface", "eth0;id", "--", "x"), "interface 'eth0;id' is no such name"),
        (("-H", "a,b", "--interface", "-x", "--", "x"), "interface '-x' is no such name"),
        (("-H", "a,no.such.host.invalid", "--", "x"), "has no address here"),
        (("-H", "localhost,127.0.0.1", "--", "x"), "say --interface"),
        (("-H", "a:2", "-np", "3", "--", "x"), "the hosts take 1 to 2 ranks"),
        (("-H", "a", "-np", "many", "--", "x"), "-np many"),
        (("-H", "a", "--controller", "nccl", "--", "x"), "neither gloo nor mpi"),
        (("-H", "", "--", "x"), "the list of hosts is empty"),
        (("--hostfile", os.devnull, "--", "x"), "the list of hosts is empty"),
        (("-H", "a"), "nothing to run"),
        (("-H",), "-H needs a value"),
    ],
)
def test_what_cannot_be_launched_is_refused_with_a_remedy(tmp_path, arguments, words):
    put_program(tmp_path / "bin" / "horovodrun", "exit 0")
    done = launch(tmp_path, *arguments)
    assert done.returncode == 1 and "what to do:" in done.stderr
    if words != "has no address here" or "'a'" not in done.stderr:  # neither host has one
        assert words in done.stderr


def test_without_horovod_the_launch_says_so(tmp_path):
    for each in ("awk", "bash", "cat", "dirname", "env", "nproc", "sed"):
        put_program(
            tmp_path / "bin" / each, f'exec {subprocess.getoutput(f"command -v {each}")} "$@"'
        )
    done = launch(tmp_path, "--", "true", PATH=str(tmp_path / "bin"))
    assert done.returncode == 1 and "there is no horovodrun" in done.stderr


def test_the_line_of_horovodrun_has_hosts_ranks_interface_and_logs(tmp_path):
    line = line_of(tmp_path, "-H", "a:2,b", "--interface", "eth0,bond0.7", "--ssh-port", "2222")
    assert line[1:6] == ["--gloo", "-np", "3", "-H", "a:2,b"]
    assert line[line.index("--network-interfaces") + 1] == "eth0,bond0.7"
    assert line[line.index("--output-filename") + 1] == "logs"
    assert line[line.index("--ssh-port") + 1] == "2222", "other options reach horovodrun"
    alone = line_of(tmp_path, "-np", "2")
    assert "localhost:2" in alone and "--network-interfaces" not in alone


def test_a_hostfile_has_all_three_forms(tmp_path):
    (tmp_path / "hosts").write_text("# ours\na\n\nb:2   # two\nc slots=3\n")
    line = line_of(tmp_path, "--hostfile", "hosts", "--interface", "eth0")
    assert line[line.index("-H") + 1] == "a,b:2,c:3" and line[line.index("-np") + 1] == "6"


def test_the_settings_and_the_environment_of_the_program_stay_as_they_are(tmp_path):
    put_program(tmp_path / "bin" / "horovodrun", "env; command -v horovodrun")
    put_program(tmp_path / "other" / "bin" / "horovodrun", "echo of the checkout")
    own = {"TF_USE_LEGACY_KERAS": "0", "HVD_SPARSE_VENV": str(tmp_path / "other")}
    said = launch(tmp_path, "--", "true", **own).stdout.splitlines()
    assert "TF_USE_LEGACY_KERAS=0" in said and said[-1] == str(tmp_path / "bin" / "horovodrun")


def test_waiting_ranks_yield_only_where_they_outnumber_cores(tmp_path):
    put_program(tmp_path / "bin" / "nproc", "echo 2")
    assert not any("yield" in part for part in line_of(tmp_path, "-np", "2", "--controller", "mpi"))
    crowded = line_of(tmp_path, "-np", "3", "--controller", "mpi")
    assert "--mpi-args=--oversubscribe --mca mpi_yield_when_idle 1" in crowded
    put_program(tmp_path / "bin" / "horovodrun", "env")
    assert "OMP_NUM_THREADS=1\n" in launch(tmp_path, "-np", "3", "--", "true").stdout
    own = launch(tmp_path, "-np", "3", "--", "true", OMP_NUM_THREADS="4")
    assert "OMP_NUM_THREADS=4\n" in own.stdout


def of_mpirun(folder, script):
    """Launch where horovodrun becomes a shell that runs mpirun, as Horovod's does."""
    put_program(folder / "bin" / "mpirun", script)
    put_program(folder / "bin" / "horovodrun", 'exec /bin/sh -c "mpirun; exit \\$?"')
    return launch(folder, "-H", "a,b", "--controller", "mpi", "--interface", "eth0", "--", "true")


def test_an_mpirun_without_ranks_that_does_not_end_is_ended(tmp_path):
    seen = tmp_path / "SEEN"  # until then, mpirun has a rank
    looks = f'found="$({shutil.which("ps")} "$@")"'
    put_program(tmp_path / "bin" / "ps", f'{looks} && {{ echo "$found"; touch {seen}; }}')
    waits = f"(until [ -e {seen} ]; do sleep 0.1; done)\nmkfifo {tmp_path}/never\n"
    done = of_mpirun(tmp_path, f"{waits}read line <>{tmp_path}/never")
    assert done.returncode == 1
    assert "mpirun still waits for a host that is frozen or cut off" in done.stderr


def test_an_mpirun_that_has_ranks_is_left_alone(tmp_path):
    done = of_mpirun(tmp_path, "sleep 14; echo over; exit 7")
    assert (done.returncode, done.stdout) == (7, "over\n"), done.stderr


def test_a_frozen_host_keeps_no_session_for_ever(tmp_path):
    assert "ServerAliveInterval" in of_mpirun(tmp_path, "echo $OMPI_MCA_plm_rsh_agent").stdout


def on_cluster(folder, controller, what):
    if controller not in horovod_parts():
        pytest.skip(f"Horovod was built without {controller}")
    script = str(ROOT / "tests" / "launch" / "_cluster.py")
    finish(inside([sys.executable, script, str(folder), what]), ALL_LIMIT_S)
    outcome = json.loads((folder / "seen.json").read_text())
    assert outcome["code"] == 0, outcome["output"][-4000:]
    return outcome


@needs_spaces
@pytest.mark.parametrize("controller", ["gloo", "mpi"])
def test_every_rank_of_every_host_runs_and_has_a_log_and_can_fail_the_launch(controller, tmp_path):
    outcome = on_cluster(tmp_path, controller, controller)
    places = ["0 of 1 on host1", "0 of 2 on host2", "1 of 2 on host2", "0 of 1 on host3"]
    assert len(outcome["logs"]) == 4
    for rank, (text, place) in enumerate(zip(outcome["logs"].values(), places)):
        assert f"rank {rank} of 4, {place}: 6.0" in text
        assert "HVD_SPARSE_MARK is passed on" in text and text.count("rank ") == 1
    assert outcome["failing"]["code"] != 0
    assert re.search(r"[Ee]xit code: +7\b", outcome["failing"]["output"])
    assert "--network-interfaces eth0" in outcome["dry"]["output"]
    assert "-H host1:1\\,host2:2\\,host3:1" in outcome["dry"]["output"]
    if controller == "mpi":
        words = (
            "InvalidOption: exchange hierarchical takes the ranks 0, 1 for one node, but they run "
            "on the hosts host1, host2"
        )
        told = outcome["in turn"]["output"]
        assert told.count(words) == 4, told


RANKS = {"hosts": 4, "slurm": 3}
BLOCKS = [each for where in RANKS for each in blocks_for(where)]


@needs_spaces
@pytest.mark.parametrize("block", BLOCKS, ids=lambda each: each.name)
def test_a_command_of_the_documentation_runs_on_several_hosts(block, tmp_path):
    controller = "mpi" if "mpirun" in block.text else "gloo"
    outcome = on_cluster(tmp_path, controller, block.name)
    for rank in range(RANKS[block.where]):
        told = f"rank {rank} of {RANKS[block.where]} has trained 3 steps"
        assert told in outcome["output"]
