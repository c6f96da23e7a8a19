"""The survey of all hosts of a launch: what each has installed, and which reach each other."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from hvd_sparse.cli.hosts import (
    Facts,
    Host,
    LaunchError,
    address_of,
    differences,
    is_local,
    shared_address,
)

PROBE = Path(__file__).with_name("host_probe.py")
LIMIT_S = 30.0
"""Seconds for everything that a host is asked before a launch."""


class HostProbe:
    """The probe that runs on one host, over ssh or, on this host, without it.

    Parameters
    ----------
    host : the host
    command : starts the probe
    """

    def __init__(self, host: Host, command: Sequence[str]) -> None:
        self.host = host
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._received = b""

    def ask(self, question: object) -> None:
        """Send a line of JSON."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the probe has ended; ``hear`` says why
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()

    def hear(self, deadline: float) -> Facts:
        """Return the probe's next line of JSON; other lines, as of a login shell, are skipped.

        Parameters
        ----------
        deadline : in seconds of ``time.monotonic``

        Raises
        ------
        LaunchError
            If the probe has ended, or does not answer in time.
        """
        assert self._process.stdout is not None
        while True:
            line, newline, rest = self._received.partition(b"\n")
            if newline:
                self._received = rest
                if line.startswith(b"{"):
                    answer: Facts = json.loads(line)
                    return answer
                continue
            if not select.select(
                [self._process.stdout], [], [], max(0.0, deadline - time.monotonic())
            )[0]:
                raise LaunchError(
                    f"host {self.host.name!r} did not answer in {LIMIT_S:.0f} s: is it up, and "
                    "reached by ssh?"
                )
            chunk = os.read(self._process.stdout.fileno(), 65536)
            if not chunk:
                raise LaunchError(f"host {self.host.name!r} cannot be asked: {self._last_words()}")
            self._received += chunk

    def _last_words(self) -> str:
        assert self._process.stderr is not None
        code = self._process.wait()
        said = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        remedy = (
            "let this host in by ssh without a password"
            if code == 255
            else "the same Python belongs there"
        )
        return f"{said[-1] if said else 'nothing was said'} (exit code {code}); {remedy}"

    def close(self) -> None:
        """End the probe."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):  # a question could not be sent to a host
                    stream.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def probe_command(host: Host, python: str, files: Iterable[str], ssh: Sequence[str]) -> list[str]:
    """Return the command that runs the probe's text on a host.

    Parameters
    ----------
    host : the host
    python : the Python that the ranks will have
    files : paths that the host must have, in this folder
    ssh : beginning of an ssh command
    """
    here = [
        "env",
        f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}",
        python,
        "-c",
        PROBE.read_text(encoding="utf-8"),
    ]
    script = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join([*here, *files])}"
    if is_local(address_of(host.name)):
        return ["sh", "-c", script]
    return over_ssh(ssh, host, script)


def over_ssh(ssh: Sequence[str], host: Host, script: str) -> list[str]:
    """Return the command that runs a script on a host; behind ``--`` nothing is an option of
    ssh."""
    return [*ssh, "--", host.name, script]


def survey(
    hosts: Sequence[Host], python: str, files: Sequence[str], ssh: Sequence[str]
) -> dict[str, Facts]:
    """Ask all hosts at once.

    Parameters
    ----------
    hosts : of the launch
    python : the Python that the ranks will have
    files : paths that every host must have
    ssh : beginning of an ssh command

    Returns
    -------
    Facts by the host's name

    Raises
    ------
    LaunchError
        With everything that is wrong: hosts that do not answer, differ or do not reach each other.
    """
    deadline = time.monotonic() + LIMIT_S
    asked: list[HostProbe] = []
    try:
        for host in hosts:
            asked.append(HostProbe(host, probe_command(host, python, files, ssh)))
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


def _unreached(heard: Sequence[HostProbe], facts: dict[str, Facts], deadline: float) -> list[str]:
    """Return a line for each pair of hosts in which one cannot connect to the other."""
    peers = [
        {"name": name, "address": shared_address(name, facts), "port": found["port"]}
        for name, found in facts.items()
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
            f"host {conversation.host.name!r} does not reach host {name!r}: {reason}; open all TCP "
            "ports between the hosts"
            for name, reason in failed.items()
        ]
    return problems
