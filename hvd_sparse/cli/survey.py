"""Ask all hosts of a launch at once: what they have, and whether they reach each other."""

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
from typing import Any

from hvd_sparse.cli.hosts import (
    Host,
    LaunchError,
    address_of,
    differences,
    is_local,
    shared_address,
)

PROBE = Path(__file__).with_name("host_probe.py")
LIMIT_S = 30.0
"""For everything that a host is asked before a launch."""


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
    """What asks a host: the probe's text, in this folder, by the Python that the ranks will
    have."""
    here = [
        "env",
        f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}",
        python,
        "-c",
        PROBE.read_text(encoding="utf-8"),
    ]
    script = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join([*here, *files])}"
    return ["sh", "-c", script] if is_local(address_of(host.name)) else [*ssh, host.name, script]


def survey(
    hosts: Sequence[Host], python: str, files: Sequence[str], ssh: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """What every host has, after all of them were asked at once; LaunchError with everything that
    is wrong."""
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
