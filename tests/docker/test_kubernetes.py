"""The MPIJob has the form of kubeflow.org/v2beta1, its numbers agree, its options are known.

Fields are those of the operator's published types; no cluster runs it here.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
JOB = yaml.safe_load((ROOT / "docker" / "kubernetes" / "mpijob.yaml").read_text(encoding="utf-8"))
SPEC = {
    "slotsPerWorker": int,
    "sshAuthMountPath": str,
    "waitForWorkers": bool,
    "mpiImplementation": ("OpenMPI", "Intel"),
    "runPolicy": {
        "cleanPodPolicy": ("All", "Running", "None"),
        "ttlSecondsAfterFinished": int,
        "activeDeadlineSeconds": int,
        "backoffLimit": int,
        "suspend": bool,
    },
}
REPLICAS = {"replicas": int, "restartPolicy": ("Always", "OnFailure", "Never", "ExitCode")}
CONTAINER = {
    "name": str,
    "image": str,
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "command": list,
    "args": list,
    "env": list,
    "ports": list,
    "resources": dict,
    "volumeMounts": list,
}


def wrong(given: Any, form: Any, place: str) -> list[str]:
    """Return what is not as the form has it: a type, a choice, or the fields of a mapping."""
    if isinstance(form, dict):
        found = [f"{place}.{key} is not known" for key in given.keys() - form.keys()]
        for key in given.keys() & form.keys():
            found += wrong(given[key], form[key], f"{place}.{key}")
        return found
    is_right = given in form if isinstance(form, tuple) else type(given) is form
    return [] if is_right else [f"{place} is {given!r}"]


def mistakes(job: dict[str, Any]) -> list[str]:
    """Return all that the operator, or Kubernetes, would refuse."""
    if (job["apiVersion"], job["kind"]) != ("kubeflow.org/v2beta1", "MPIJob"):
        return ["it is no MPIJob of kubeflow.org/v2beta1"]
    spec = dict(job["spec"])
    replicas = spec.pop("mpiReplicaSpecs")
    found = wrong(spec, SPEC, "spec")
    if set(replicas) != {"Launcher", "Worker"} or replicas["Launcher"]["replicas"] != 1:
        found.append("there must be one launcher, and workers")
    for role, each in replicas.items():
        template = each["template"]["spec"]
        found += wrong({k: v for k, v in each.items() if k != "template"}, REPLICAS, role)
        volumes = {volume["name"] for volume in template.get("volumes", [])}
        for container in template["containers"]:
            found += wrong(container, CONTAINER, f"{role}.container")
            words = [*container.get("command", []), *container.get("args", [])]
            words += [each["value"] for each in container.get("env", [])]
            found += [f"{role}: {word!r} is no text" for word in words if type(word) is not str]
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            found += [f"{role}: no volume {name!r}" for name in mounted - volumes]
    return found


def test_the_job_has_the_operators_form():
    assert mistakes(JOB) == []


@pytest.mark.parametrize(
    "path",
    ["slotsPerWorker", "runPolicy.cleanPodPolicy", "mpiReplicaSpecs.Launcher.replicas"],
)
def test_a_wrong_value_is_found(path: str):
    job = copy.deepcopy(JOB)
    *way, last = path.split(".")
    place = job["spec"]
    for key in way:
        place = place[key]
    place[last] = "Some"
    assert mistakes(job) != []
    place[f"{last}s"] = place.pop(last) if last != "replicas" else 1
    assert mistakes(job) != []


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
