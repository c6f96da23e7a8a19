"""The hosts of a launch: which they are, where they are found, and in what they differ."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_sparse.errors import SparseError


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
        raise LaunchError(
            f"hostfile {str(path)!r} cannot be read: {error.strerror}; name another"
        ) from None
    stripped = (line.partition("#")[0].strip() for line in lines)
    return parse_hosts(
        ",".join(line.replace(" slots=", ":").replace(" ", "") for line in stripped if line)
    )


def _check_names(hosts: list[Host], text: str) -> list[Host]:
    names = [host.name for host in hosts]
    if not hosts:
        raise LaunchError(f"no host in {text!r}: write them as host1:2,host2:2")
    for name in names:
        if names.count(name) > 1:
            raise LaunchError(
                f"host {name!r} is named twice: write its ranks once, as {name}:{names.count(name)}"
            )
    return hosts


def address_of(name: str) -> str:
    """The IPv4 address of a host, as this machine sees it; LaunchError for a name that has none."""
    try:
        return socket.gethostbyname(name)
    except OSError:
        raise LaunchError(
            f"host {name!r} has no address here: check its name, or enter it in /etc/hosts on "
            "every host"
        ) from None


def is_local(address: str) -> bool:
    """Whether an address is this machine's own, which is so if a socket can be bound to it."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def shared_address(name: str, facts: dict[str, Any]) -> str:
    """By which the others find a host.

    Its name may be a loopback address here, as Debian's own names are: then of its addresses the
    one nearest to theirs.
    """
    address = address_of(name)
    if not address.startswith("127.") or len(facts) == 1:
        return address
    theirs = [_bits(a) for a in map(address_of, facts) if not a.startswith("127.")]
    mine = [
        a
        for entries in facts[name]["interfaces"].values()
        for a in entries
        if not a.startswith("127.")
    ]
    return max(
        mine,
        key=lambda a: max((32 - (_bits(a) ^ their).bit_length() for their in theirs), default=0),
        default=address,
    )


def _bits(address: str) -> int:
    return int(ipaddress.IPv4Address(address))


def differences(facts: dict[str, dict[str, Any]]) -> list[str]:
    """Versions that are not the first host's, and files that are not there."""
    problems = []
    for name, found in facts.items():
        first_name, first = next(iter(facts.items()))
        for package, version in found["versions"].items():
            wanted = first["versions"][package]
            if version != wanted:
                problems.append(
                    f"host {name!r} has {package} {version or 'not at all'}, host {first_name!r} "
                    "has "
                    f"{wanted or 'it not at all'}: install the same versions on every host"
                )
        problems += [
            f"host {name!r} has no {path!r} in {os.getcwd()}: copy it there"
            for path in found["missing"]
        ]
    for package in ("hvd_sparse", "horovod"):
        if facts and not next(iter(facts.values()))["versions"][package]:
            problems.append(
                f"{package} is not installed for this Python: name another with --python"
            )
    return problems


def common_interface(facts: dict[str, dict[str, Any]]) -> str | None:
    """The interface that carries every host's address; None where all are this host or an interface
    is not known.

    LaunchError where its name differs, as Horovod takes one name for all hosts.
    """
    names = {}
    for host, found in facts.items():
        address = shared_address(host, facts)
        names[host] = next(
            (name for name, entries in found["interfaces"].items() if address in entries), None
        )
    chosen = set(names.values())
    if len(facts) == 1 or chosen == {None}:
        return None
    if len(chosen) > 1:
        each = ", ".join(f"{host}: {name or 'none'}" for host, name in names.items())
        raise LaunchError(
            f"the interface between the hosts has several names ({each}): rename it, or say "
            "--interface"
        )
    return chosen.pop()
