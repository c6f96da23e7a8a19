"""Hosts made of network namespaces: one switch, and a link of limited bandwidth to every host.

    python -m benchmarks.network.cluster --hosts 2 --rate 100mbit -- COMMAND   runs COMMAND on host1

The command starts itself again in new namespaces, as ``scripts/bench-network`` does, and creates
all interfaces there. When its process ends, for whatever reason, the kernel removes them. The
network of the machine does not change.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

AGENT = Path(__file__).resolve().parent / "agent"
SUBNET = "10.77.0"
INTERFACE = "eth0"
MARK = "HVD_SPARSE_NAMESPACES"
"""Environment variable that ``inside`` sets: the process runs in namespaces of its own."""

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def inside(command: Sequence[str]) -> list[str]:
    """Return a command line that runs ``command`` in new namespaces. When the calling process ends,
    the processes in the namespaces are killed."""
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    spaces = ["--mount", "--net", "--pid", "--uts", "--fork", "--kill-child=KILL", "--mount-proc"]
    return [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        *user,
        *spaces,
        "env",
        f"{MARK}=1",
        *command,
    ]


def bits_per_second(rate: str) -> float:
    """Return the number for a rate as ``tc`` writes it; inf for "none"."""
    if rate == "none":
        return math.inf
    number, unit = rate[:-4], rate[-4:]
    if unit in UNITS and number.replace(".", "", 1).isdecimal() and float(number):
        return float(number) * UNITS[unit]
    raise argparse.ArgumentTypeError(f"{rate!r}: a number and one of {', '.join(UNITS)}, as 1gbit")


def rate_argument(text: str) -> str:
    bits_per_second(text)
    return text


def burst_bytes(rate: str) -> int:
    """Return the size of the token bucket: the bytes of 2 ms, but at least those of one segment of
    the kernel's offloading.

    Bytes that fit into a full bucket are not delayed, so a small bucket is more exact. But where
    hosts share a few cores, a host may have to wait for a core. If the bucket holds fewer bytes
    than the link carries during this wait, long transfers get only half the rate, which would
    favour sparse methods.
    """
    return max(65_536 + 1_514, int(bits_per_second(rate) / 8 * 2e-3))


@dataclass(frozen=True)
class Cluster:
    """``size`` hosts called host1, host2, ... at SUBNET.1, SUBNET.2, ..."""

    size: int

    @property
    def hosts(self) -> list[str]:
        return [f"host{i}" for i in range(1, self.size + 1)]

    def lay(self) -> None:
        """Create the switch, the hosts, their links and their host names."""
        if os.environ.get(MARK) != "1":
            raise RuntimeError(
                "the cluster needs namespaces of its own: start it with scripts/bench-network"
            )
        Path("/run/netns").mkdir(exist_ok=True)
        _run("mount", "--make-rprivate", "/")
        _run("mount", "-t", "tmpfs", "netns", "/run/netns")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "switch", "type", "bridge")
        _run("ip", "link", "set", "switch", "up")
        for number, host in enumerate(self.hosts, 1):
            _run("ip", "netns", "add", host)
            _run(
                "ip", "link", "add", host, "type", "veth", "peer", "name", INTERFACE, "netns", host
            )
            _run("ip", "link", "set", host, "master", "switch", "up")
            _run("ip", "-n", host, "address", "add", f"{SUBNET}.{number}/24", "dev", INTERFACE)
            for interface in ("lo", INTERFACE):
                _run("ip", "-n", host, "link", "set", interface, "up")
        self._name_hosts()

    def _name_hosts(self) -> None:
        lines = [
            "127.0.0.1 localhost",
            *(f"{SUBNET}.{i} {host}" for i, host in enumerate(self.hosts, 1)),
        ]
        table = Path("/run/netns/.hosts")
        table.write_text("\n".join(lines) + "\n", encoding="ascii")
        _run("mount", "--bind", str(table), "/etc/hosts")

    def shape(self, rate: str) -> None:
        """Limit the rate of every link in both directions; "none" removes the limits."""
        for host in self.hosts:
            for where in (("-n", host), ()):
                device = INTERFACE if where else host
                tc = ["tc", *where, "qdisc"]
                if rate == "none":
                    subprocess.run(
                        [*tc, "del", "dev", device, "root"], capture_output=True, check=False
                    )
                    continue
                limits = ["rate", rate, "burst", str(burst_bytes(rate)), "latency", "50ms"]
                _run(*tc, "replace", "dev", device, "root", "tbf", *limits)

    def on(self, host: str, command: Sequence[str]) -> list[str]:
        return [str(AGENT / "ssh"), "--", host, shlex.join(command)]

    def environment(self) -> dict[str, str]:
        """Return the environment in which ``horovodrun`` and ``mpirun`` use our substitute for
        ssh."""
        return {
            "PATH": os.pathsep.join(
                [str(AGENT), str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def bytes_received(self) -> dict[str, int]:
        return {host: _counter(host) for host in self.hosts}


def _counter(host: str) -> int:
    link = json.loads(_run("ip", "-n", host, "-s", "-j", "link", "show", INTERFACE))[0]
    return int(link["stats64"]["rx"]["bytes"])


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def interface_bytes() -> tuple[int, int]:
    """Return the bytes that this host has received and sent (without loopback, with headers)."""
    received = sent = 0
    for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()[2:]:
        name, _, counters = line.partition(":")
        if name.strip() != "lo":
            fields = counters.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def main() -> int:
    """Create hosts, run a command on the first one, and return its exit code. All hosts end with
    the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network.cluster")
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (default: 2)")
    parser.add_argument("--rate", type=rate_argument, default="none", help="limit, as 100mbit")
    parser.add_argument("command", nargs="+", help="command to run on host1, after --")
    options = parser.parse_args()
    if os.environ.get(MARK) != "1":
        me = [sys.executable, "-m", "benchmarks.network.cluster", *sys.argv[1:]]
        return subprocess.run(inside(me), check=False).returncode
    cluster = Cluster(options.hosts)
    cluster.lay()
    cluster.shape(options.rate)
    environment = {**os.environ, **cluster.environment()}
    command = cluster.on(cluster.hosts[0], options.command)
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
