"""What can be checked of the containers without any: ``scripts/docker-test`` runs the rest. The
numbers, image, key and options of the MPIJob for Kubernetes agree with each other."""

import re
import shutil
import subprocess
import sys

import pytest
import yaml
from blocks import blocks_for
from harness import LIMIT_S, ROOT
from programs import run

DOCKER_TEST = ROOT / "scripts" / "docker-test"
DOCKERFILES = ("docker/Dockerfile", "docker/Dockerfile.cuda")
STACKS = sorted((ROOT / "scripts" / "stacks").glob("*.txt"))


def said_by_scripts(command, stack=""):
    script = f". {ROOT / 'scripts' / 'lib' / 'common.sh'} && {command}"
    done = run("bash", "-c", script, cwd=ROOT, HVD_SPARSE_STACK=stack)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stack_of(dockerfile):
    return re.search(r"^ARG STACK=(\S+)$", (ROOT / dockerfile).read_text(), re.MULTILINE)[1]


def pinned(stack=""):
    lines = said_by_scripts("stack_versions", stack).splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def test_where_no_engine_can_be_had_nothing_counts_as_passed(tmp_path):
    for tool in ("bash", "cat", "dirname", "env", "id", "mkdir", "mktemp", "rm", "sed", "true"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "HVD_SPARSE_VENV": str(tmp_path)}
    done = run(tmp_path / "bash", DOCKER_TEST, variables=environment)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "NOT RUN" in done.stdout
    assert "passed" not in done.stdout


def test_a_name_that_no_case_has_is_an_error_that_lists_the_cases(tmp_path):
    done = run(DOCKER_TEST, "--only", "nothing", TMPDIR=str(tmp_path))
    assert done.returncode == 1 and done.stdout == ""
    assert not list(tmp_path.iterdir()), "nothing is left behind"
    assert "no case matches 'nothing'" in done.stderr and "torch gloo; torch mpi;" in done.stderr


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_take_their_versions_from_the_one_list(name):
    text = (ROOT / name).read_text()
    assert "scripts/versions.txt" in text and "--constraint /build/versions.txt" in text
    pins = pinned(stack_of(name))
    for package, version in re.findall(r"\b([a-z][\w-]*)(?:\[[\w-]+\])?==([\d.]+)", text):
        assert pins[package] == version, f"{name} has {package} {version}"


def test_the_image_has_the_stacks_of_the_scripts():
    default = said_by_scripts("echo $STACK").strip()
    assert stack_of("docker/Dockerfile") == default
    assert pinned()["tensorflow"].startswith(default)
    for path in STACKS:
        found = dict(re.findall(r"^([\w-]+)==(.+)$", path.read_text(), re.MULTILINE))
        assert found["tensorflow"].startswith(path.stem)
        assert pinned(path.stem) == {**pinned(), **found} and set(found) <= set(pinned())


def test_every_stack_has_an_environment_of_its_own():
    places = [
        said_by_scripts("unset HVD_SPARSE_VENV; . scripts/lib/common.sh; echo $VENV", stack)
        for stack in ("", *(path.stem for path in STACKS))
    ]
    assert places[0].endswith("/.venv\n") and len(set(places)) == len(places)


def test_a_case_runs_the_commands_that_the_documentation_has_for_containers():
    environment = f"VENV={sys.prefix} && . scripts/lib/cases.sh"
    said = said_by_scripts(f"{environment} && commands_of_page && declare -f case_digits")
    blocks = blocks_for("docker")
    assert len(blocks) == 1 and said.startswith(blocks[0].text)
    assert re.search(r'commands_of_page > "\$WORK/page"', said)
    assert re.search(r'bash -ex "\$WORK/page"', said)
    assert '"digits gloo"' in (ROOT / "scripts" / "lib" / "cases.sh").read_text()


def test_ci_takes_one_stack_a_commit_and_every_stack_in_turn():
    counts = range(640, 656)
    taken = said_by_scripts(
        f"for each in {' '.join(map(str, counts))}; do stack_in_turn $each; done"
    )
    turns = taken.split()
    assert len(turns) == len(counts) and turns[:8] == turns[8:]  # one each, known from the commit
    default = said_by_scripts("echo $STACK").strip()
    assert turns[:8].count(default) == 7
    assert set(turns) == {default, *(path.stem for path in STACKS)}
    chosen_first = r"^export HVD_SPARSE_STACK=[^\n]*stack_in_turn.*^scripts/setup$"
    assert re.search(chosen_first, (ROOT / ".ci" / "run").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="apt-get install openssh-client")
def test_hosts_agree_on_a_key_although_one_has_died_while_it_created_one(tmp_path):
    text = (ROOT / "docker" / "host").read_text().replace("/usr/sbin/sshd -D -e", "true")
    shared = tmp_path / "cluster"
    (shared / "making").mkdir(parents=True)  # made by the dead host, with half a key
    (shared / "making" / "key").touch()

    def start(home):
        home.mkdir()
        places = {"cluster": shared, "root": home}
        moved = re.sub("/(cluster|root)", lambda found: str(places[found[1]]), text)
        return subprocess.Popen(["timeout", str(LIMIT_S), "sh", "-c", moved])

    started = [start(tmp_path / name) for name in ("first", "second")]
    assert [each.wait() for each in started] == [0, 0]
    keys = [(tmp_path / name / ".ssh/authorized_keys").read_text() for name in ("first", "second")]
    assert keys[0] == keys[1] and keys[0].startswith("ssh-ed25519 ")
    assert sorted(path.name for path in shared.iterdir()) == ["key", "making"]


@pytest.mark.parametrize("script", ["scripts/bench-network", "docker/cluster"])
def test_scripts_that_no_test_runs_are_read_by_bash(script):
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_the_mpijob_has_ranks_one_image_the_operators_key_and_a_program_that_there_is():
    job = yaml.safe_load((ROOT / "docker" / "kubernetes" / "mpijob.yaml").read_text())["spec"]
    roles = job["mpiReplicaSpecs"]
    launcher, worker = (
        roles[name]["template"]["spec"]["containers"][0] for name in ("Launcher", "Worker")
    )
    args = launcher["args"]
    ranks = job["slotsPerWorker"] * roles["Worker"]["replicas"]
    assert args[args.index("-np") + 1] == str(ranks)
    assert launcher["image"] == worker["image"]
    key = job["sshAuthMountPath"].replace("/root", "~") + "/id_rsa"
    assert f"IdentityFile {key}" in (ROOT / "docker" / "ssh_config").read_text(encoding="utf-8")
    assert "openssh-server" in (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    program, *options = args[args.index("python") + 1 :]
    assert (ROOT / program.removeprefix("/hvd-sparse/")).is_file()
    assert options == ["--density", "0.01"]
