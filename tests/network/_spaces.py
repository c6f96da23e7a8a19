"""Runs a script on a cluster of network namespaces, if the machine permits to create one."""

import functools
import os
import shutil
import subprocess

import pytest
from harness import LIMIT_S, ROOT, launch_environment

from benchmarks._limited import run_limited
from benchmarks.network.cluster import inside

TOOLS = ("ip", "tc", "unshare", "setpriv")


@functools.lru_cache
def why_not():
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} missing: apt-get install iproute2 util-linux"
    script = "ip link add probe type bridge && ip netns add probe || exit 1"
    mount = (
        "mount -t tmpfs netns /run/netns 2>/dev/null || "
        "{ mkdir -p /run/netns && mount -t tmpfs netns /run/netns; }"
    )
    done = subprocess.run(
        inside(["sh", "-c", f"{mount} && {script}"]), capture_output=True, text=True, check=False
    )
    return None if done.returncode == 0 else f"no network namespaces here: {done.stderr.strip()}"


needs_spaces = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def start(command):
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **launch_environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def finish(command, limit_s=LIMIT_S):
    """Return the output of a command that must end well."""
    code, output = run_limited(command, {**os.environ, **launch_environment()}, limit_s)
    assert code == 0, f"exit code {code}\n{output[-6000:]}"
    return output
