"""Runs the documentation's commands for several hosts on host1 of a cluster of three namespaces, as
a user would, and prints the results as JSON.

The commands for SLURM get the variables that SLURM sets in a job of three nodes. From these, Open
MPI finds hosts and ranks. They also get the host names that ``scontrol`` would print. SLURM itself
does not run; ssh starts the programs that srun would start.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from blocks import TRAINING, blocks_for  # noqa: E402
from harness import LIMIT_S  # noqa: E402

from benchmarks.network.cluster import Cluster  # noqa: E402

JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOBID": "7",
    "SLURM_NNODES": "3",
    "SLURM_NODELIST": "host[1-3]",
    "SLURM_JOB_NODELIST": "host[1-3]",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_TASKS_PER_NODE": "1(x3)",
    "SLURM_CPUS_PER_TASK": "1",
    "OMPI_MCA_plm": "rsh",  # there is no srun to start anything on a host
}


def user_at(folder):
    (folder / ".venv" / "bin").mkdir(parents=True)
    activate = f'PATH="{Path(sys.executable).parent}:$PATH"\n'
    (folder / ".venv" / "bin" / "activate").write_text(activate)
    (folder / "train.py").symlink_to(TRAINING)
    (folder / "scripts").symlink_to(ROOT / "scripts")
    names = folder / "bin" / "scontrol"
    names.parent.mkdir()
    names.write_text('#!/bin/sh\n[ "$*" = "show hostnames host[1-3]" ] && echo host1 host2 host3 |'
                     ' tr " " "\\n"\n')  # fmt: skip
    names.chmod(0o755)
    return folder


def typed(cluster, block, folder):
    script = folder / "commands"
    script.write_text(block.text)
    shell = ["bash", "-e"] if block.where == "slurm" else ["sh", "-e"]
    command = cluster.on("host1", ["sh", "-c", f"cd {folder} && exec {' '.join(shell)} {script}"])
    settings = JOB if block.where == "slurm" else {}
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        # The hosts share this machine's cores, which none of them knows of.
        env={**os.environ, **settings, "PATH": path, "OMPI_MCA_mpi_yield_when_idle": "1"},
    )
    return {"code": done.returncode, "output": done.stdout + done.stderr}


if __name__ == "__main__":
    cluster = Cluster(3)
    cluster.lay()
    os.environ.update(cluster.environment(), OMP_NUM_THREADS="1")
    there = Path(sys.argv[1])
    blocks = {each.name: each for where in ("hosts", "slurm") for each in blocks_for(where)}
    seen = {}
    for number, name in enumerate(sys.argv[2:]):
        seen[name] = typed(cluster, blocks[name], user_at(there / str(number)))
        print(name, seen[name]["code"], flush=True)
    (there / "seen.json").write_text(json.dumps(seen))
