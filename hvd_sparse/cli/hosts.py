"""The hosts of a launch: which they are, and whether they fit together."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SparseError

PROBE = Path(__file__).with_name("host_probe.py")
LIMIT_S = 30.0
"""For everything that a host is asked before a launch."""


class LaunchError(SparseError):
    """A launch that would not work; every reason found, each with its host and the remedy."""


@dataclass(frozen=True)
class Host:
    """A host and how many ranks it takes."""

    name: str
    slots: int


def parse_hosts(text: str) -> list[Host]:
    """``host1:2,host2:2``; a host without a number takes one rank."""
    hosts = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, slots = part.partition(":")
        if not name or (slots and (not slots.isdigit() or int(slots) < 1)):
            raise LaunchError(f"host {part!r}: write NAME or NAME:RANKS, as host1:2,host2:2")
        hosts.append(Host(name, int(slots or 1)))
    return _check_names(hosts, text)


def read_hostfile(path: Path) -> list[Host]:
    """One host a line, ``NAME``, ``NAME:RANKS`` or ``NAME slots=RANKS``; ``#`` starts a comment."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise LaunchError(f"hostfile {str(path)!r} cannot be read: {error.strerror}; name another") from None
    stripped = (line.partition("#")[0].strip() for line in lines)
    return parse_hosts(",".join(line.replace(" slots=", ":").replace(" ", "") for line in stripped if line))


def _check_names(hosts: list[Host], text: str) -> list[Host]:
    names = [host.name for host in hosts]
    if not hosts:
        raise LaunchError(f"no host in {text!r}: write them as host1:2,host2:2")
    for name in names:
        if names.count(name) > 1:
            raise LaunchError(f"host {name!r} is named twice: write its ranks once, as {name}:{names.count(name)}")
    return hosts


def address_of(name: str) -> str:
    """The IPv4 address of a host, as this machine sees it; LaunchError for a name that has none."""
    try:
        return socket.gethostbyname(name)
    except OSError:
        raise LaunchError(
            f"host {name!r} has no address here: check its name, or enter it in /etc/hosts on every host"
        ) from None


def is_local(address: str) -> bool:
    """Whether an address is this machine's own, which is so if a socket can be bound to it."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


class Conversation:
    """The probe on one host, over ssh or, on this host, without."""

    def __init__(self, host: Host, command: Sequence[str]) -> None:
        self.host = host
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._received = b""

    def ask(self, question: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended; hearing it says why
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()

    def hear(self, deadline: float) -> Any:
        """Its next line of JSON; whatever else a login shell prints is passed over."""
        assert self._process.stdout is not None
        while True:
            line, newline, rest = self._received.partition(b"\n")
            if newline:
                self._received = rest
                if line.startswith(b"{"):
                    return json.loads(line)
                continue
            if not select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise LaunchError(
                    f"host {self.host.name!r} did not answer in {LIMIT_S:.0f} s: is it up, and reached by ssh?"
                )
            chunk = os.read(self._process.stdout.fileno(), 65536)
            if not chunk:
                raise LaunchError(f"host {self.host.name!r} cannot be asked: {self._last_words()}")
            self._received += chunk

    def _last_words(self) -> str:
        assert self._process.stderr is not None
        code = self._process.wait()
        said = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        remedy = "let this host in by ssh without a password" if code == 255 else "the same Python belongs there"
        return f"{said[-1] if said else 'nothing was said'} (exit code {code}); {remedy}"

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):  # unsent words of a host that is gone
                    stream.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def probe_command(host: Host, python: str, files: Iterable[str], ssh: Sequence[str]) -> list[str]:
    """What asks a host: the probe's text, in this folder, by the Python that the ranks will have."""
    here = ["env", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}", python, "-c", PROBE.read_text(encoding="utf-8")]
    script = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join([*here, *files])}"
    return ["sh", "-c", script] if is_local(address_of(host.name)) else [*ssh, host.name, script]


def survey(hosts: Sequence[Host], python: str, files: Sequence[str], ssh: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What every host has, after all of them were asked at once; LaunchError with everything that is wrong."""
    deadline = time.monotonic() + LIMIT_S
    asked: list[Conversation] = []
    try:
        for host in hosts:
            asked.append(Conversation(host, probe_command(host, python, files, ssh)))
        facts, problems = {}, []
        for conversation in asked:
            try:
                facts[conversation.host.name] = conversation.hear(deadline)
            except LaunchError as error:
                problems.append(str(error))
        problems += differences(facts)
        heard = [conversation for conversation in asked if conversation.host.name in facts]
        problems += _unreached(heard, facts, deadline)
    finally:
        for conversation in asked:
            conversation.close()
    if problems:
        raise LaunchError("these hosts do not fit together:\n  " + "\n  ".join(problems))
    return facts


def _unreached(heard: Sequence[Conversation], facts: dict[str, Any], deadline: float) -> list[str]:
    """Every pair of hosts in which one cannot connect to the other."""
    peers = [
        {"name": name, "address": _shared_address(name, facts), "port": found["port"]} for name, found in facts.items()
    ]
    for conversation in heard:
        conversation.ask([peer for peer in peers if peer["name"] != conversation.host.name])
    problems = []
    for conversation in heard:
        try:
            failed = conversation.hear(deadline)
        except LaunchError as error:
            problems.append(str(error))
            continue
        problems += [
            f"host {conversation.host.name!r} does not reach host {name!r}: {reason}; open all TCP ports between the hosts"
            for name, reason in failed.items()
        ]
    return problems


def _shared_address(name: str, facts: dict[str, Any]) -> str:
    """By which the others can find a host: its name may be a loopback address here, as Debian's own names are."""
    address = address_of(name)
    if address.startswith("127.") and len(facts) > 1:
        others = [a for entries in facts[name]["interfaces"].values() for a in entries if not a.startswith("127.")]
        return others[0] if others else address
    return address


def differences(facts: dict[str, dict[str, Any]]) -> list[str]:
    """Versions that are not the first host's, and files that are not there."""
    problems = []
    for name, found in facts.items():
        first_name, first = next(iter(facts.items()))
        for package, version in found["versions"].items():
            wanted = first["versions"][package]
            if version != wanted:
                problems.append(
                    f"host {name!r} has {package} {version or 'not at all'}, host {first_name!r} has "
                    f"{wanted or 'it not at all'}: install the same versions on every host"
                )
        problems += [f"host {name!r} has no {path!r} in {os.getcwd()}: copy it there" for path in found["missing"]]
    for package in ("hvd_sparse", "horovod"):
        if facts and not next(iter(facts.values()))["versions"][package]:
            problems.append(f"{package} is not installed for this Python: name another with --python")
    return problems


def common_interface(facts: dict[str, dict[str, Any]]) -> str | None:
    """The interface that carries every host's address; None where all are this host or an interface is not known.

    LaunchError where its name differs, as Horovod takes one name for all hosts.
    """
    names = {}
    for host, found in facts.items():
        address = _shared_address(host, facts)
        names[host] = next((name for name, entries in found["interfaces"].items() if address in entries), None)
    chosen = set(names.values())
    if len(facts) == 1 or chosen == {None}:
        return None
    if len(chosen) > 1:
        each = ", ".join(f"{host}: {name or 'none'}" for host, name in names.items())
        raise LaunchError(f"the interface between the hosts has several names ({each}): rename it, or say --interface")
    return chosen.pop()
