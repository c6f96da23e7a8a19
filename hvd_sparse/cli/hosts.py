"""The hosts of a launch: their names, addresses and differences."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_sparse.errors import SparseError

Facts = dict[str, Any]
"""The first answer of ``host_probe`` on one host.  Any, as it is JSON."""


class LaunchError(SparseError):
    """An error of a launch that would not work, with each reason, its host and the remedy."""


# a name that began with "-" would be an option of ssh
HOST_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
INTERFACE_NAME = r"[A-Za-z0-9_][A-Za-z0-9._:@-]*"


@dataclass(frozen=True)
class Host:
    """A host and the number of ranks that it takes.

    The name ends up on the command lines of ssh, horovodrun and mpirun, some of which a shell
    reads.

    Attributes
    ----------
    name : name of the host
    slots : number of ranks

    Raises
    ------
    LaunchError
        If the name could be read as more than a name.
    """

    name: str
    slots: int

    def __post_init__(self) -> None:
        if not re.fullmatch(HOST_NAME, self.name):
            raise LaunchError(
                f"host {self.name!r} is no host name: it begins with a letter, a digit or '_', and "
                "has only "
                "these, '.' and '-' in it; a user name belongs into ~/.ssh/config"
            )


def parse_hosts(text: str) -> list[Host]:
    """Read ``host1:2,host2:2``; a host without a number takes one rank.

    Raises
    ------
    LaunchError
        If the text names no host, one twice, or a number that is none.
    """
    hosts = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, slots = part.partition(":")
        # no int() of whatever is there: it takes "+2", "1_000" and digits of other scripts
        if not name or (slots and not re.fullmatch("0*[1-9][0-9]{0,8}", slots)):
            raise LaunchError(f"host {part!r}: write NAME or NAME:RANKS, as host1:2,host2:2")
        hosts.append(Host(name, int(slots or 1)))
    return _check_names(hosts, text)


def read_hostfile(path: Path) -> list[Host]:
    """Read a host a line, ``NAME``, ``NAME:RANKS`` or ``NAME slots=RANKS``; ``#`` starts a comment.

    Raises
    ------
    LaunchError
        If the file cannot be read, or ``parse_hosts`` refuses its content.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise LaunchError(
            f"hostfile {str(path)!r} cannot be read: {error.strerror}; name another"
        ) from None
    except ValueError as error:
        raise LaunchError(
            f"hostfile {str(path)!r} is no text in UTF-8: {error}; name another"
        ) from None
    stripped = (line.partition("#")[0].strip() for line in lines)
    return parse_hosts(",".join(re.sub(r"\s+slots\s*=\s*", ":", line) for line in stripped if line))


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
    """Return the IPv4 address of a host, as this machine resolves it.

    Raises
    ------
    LaunchError
        If the name has no address.
    """
    try:
        return socket.gethostbyname(name)
    except OSError:
        raise LaunchError(
            f"host {name!r} has no address here: check its name, or enter it in /etc/hosts on "
            "every host"
        ) from None


def is_local(address: str) -> bool:
    """Tell whether an address is this machine's own: a socket can be bound to it."""
    with socket.socket() as probe:
        try:
            # asks the kernel, where a list of interfaces would miss addresses that were added
            # since
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def shared_address(name: str, facts: dict[str, Facts]) -> str:
    """Return the address by which the other hosts find a host.

    On this host its own name may be a loopback address, as Debian sets it up.  The address of its
    interfaces that is nearest to the other hosts' is then taken.

    Parameters
    ----------
    name : name of the host
    facts : of all hosts, by name
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
        # the longest common prefix with any other host's address, in bits
        key=lambda a: max((32 - (_bits(a) ^ their).bit_length() for their in theirs), default=0),
        default=address,
    )


def _bits(address: str) -> int:
    return int(ipaddress.IPv4Address(address))


def differences(facts: dict[str, Facts]) -> list[str]:
    """Return the versions that are not the first host's, and the missing files, in words."""
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


def common_interface(facts: dict[str, Facts]) -> str | None:
    """Return the interface that carries every host's address.

    Returns
    -------
    Its name; None where there is one host alone, or no interface is known

    Raises
    ------
    LaunchError
        If its name differs between hosts, as Horovod takes one name for all.
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


def check_interface(names: str) -> str:
    """Return the name of an interface, or several with commas, if it is safe.

    It comes from the user or the other hosts, and horovodrun passes it to shells.

    Raises
    ------
    LaunchError
        If a shell could read it as more than names.
    """
    for name in names.split(","):
        if not re.fullmatch(INTERFACE_NAME, name):
            raise LaunchError(
                f"interface {name!r} is no such name as eth0: rename it, or say --interface"
            )
    return names
