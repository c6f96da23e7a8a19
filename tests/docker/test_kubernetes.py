"""The numbers, image, key and options of the MPIJob agree with each other."""

import yaml
from harness import ROOT

JOB = yaml.safe_load((ROOT / "docker" / "kubernetes" / "mpijob.yaml").read_text(encoding="utf-8"))


def test_ranks_are_slots_times_workers():
    replicas = JOB["spec"]["mpiReplicaSpecs"]
    args = replicas["Launcher"]["template"]["spec"]["containers"][0]["args"]
    ranks = JOB["spec"]["slotsPerWorker"] * replicas["Worker"]["replicas"]
    assert args[args.index("-np") + 1] == str(ranks)


def test_launcher_and_workers_have_one_image_with_ssh_and_the_operators_key():
    roles = JOB["spec"]["mpiReplicaSpecs"].values()
    images = {each["template"]["spec"]["containers"][0]["image"] for each in roles}
    assert len(images) == 1
    key = JOB["spec"]["sshAuthMountPath"].replace("/root", "~") + "/id_rsa"
    assert f"IdentityFile {key}" in (ROOT / "docker" / "ssh_config").read_text(encoding="utf-8")
    assert "openssh-server" in (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")


def test_the_program_takes_its_options():
    launcher = JOB["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    program = launcher["args"][launcher["args"].index("python") + 1 :]
    script = ROOT / program[0].removeprefix("/hvd-sparse/")
    text = (script.parent / "digits.py").read_text(encoding="utf-8")
    assert script.is_file() and '"--density"' in text
    assert program[1:] == ["--density", "0.01"]
