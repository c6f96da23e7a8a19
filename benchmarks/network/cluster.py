"""Hosts made of network namespaces: one switch, a shaped link to every host.

python -m benchmarks.network.cluster --hosts 2 --rate 100mbit -- COMMAND   runs a command on host1

Everything is made inside namespaces of this process (``scripts/bench-network`` starts it in them),
so that the kernel takes it all away when the process ends, however it ends; nothing of the
machine's own network is touched.
"""

from __future__ import annotations

import argparse
import json
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
MARK = "HVD_SPARSE_CLUSTER"
"""Set by ``inside``: the process has namespaces of its own."""

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def inside(command: Sequence[str]) -> list[str]:
    """The command in namespaces of its own; its first process dies with the one outside."""
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
    for unit, factor in UNITS.items():
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * factor
    raise ValueError(f"rate {rate!r}: a number and one of {', '.join(UNITS)}, as 1gbit")


def burst_bytes(rate: str) -> int:
    """The bucket: what 2 ms let through, and at least one segment of the kernel's offloading.

    What fits into a full bucket is not shaped, so it should be small; but where the hosts share a
    few cores, a bucket that holds less than they are kept waiting for one halves the rate of long
    transfers, which flatters sparse ones.
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
        """Make the switch, the hosts, their links, and the names by which they find each other."""
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

    def shape(self, rate: str | None) -> None:
        """Limit what hosts send, and what the switch sends to them; None lifts the limits."""
        for host in self.hosts:
            for where in (("-n", host), ()):
                device = INTERFACE if where else host
                tc = ["tc", *where, "qdisc"]
                if rate is None:
                    subprocess.run(
                        [*tc, "del", "dev", device, "root"], capture_output=True, check=False
                    )
                    continue
                limits = ["rate", rate, "burst", str(burst_bytes(rate)), "latency", "50ms"]
                _run(*tc, "replace", "dev", device, "root", "tbf", *limits)

    def on(self, host: str, command: Sequence[str]) -> list[str]:
        return [str(AGENT / "ssh"), "--", host, shlex.join(command)]

    def environment(self) -> dict[str, str]:
        """Under which ``horovodrun`` and ``mpirun`` find the hosts: their ssh is ours."""
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
    """Received and sent by this host's interfaces but the loopback, headers included."""
    received = sent = 0
    for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()[2:]:
        name, _, counters = line.partition(":")
        if name.strip() != "lo":
            fields = counters.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def main() -> int:
    """Run a command on the first of new hosts; their links and processes end with it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network.cluster")
    parser.add_argument("--hosts", type=int, default=2, help="host1, host2, ...")
    parser.add_argument("--rate", help="of every link, each way, as tc writes it: 100mbit")
    parser.add_argument("command", nargs="+")
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
