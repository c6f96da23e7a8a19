"""The program that runs on every host before a launch, sent as text over ssh.

It can use Python's own library alone.  It writes one line of JSON with the facts about its host,
reads one with the other hosts, and writes one with those that it cannot reach.  Then it keeps its
port open until its input ends, so that the other hosts can reach it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import socket
import sys
import threading
from typing import Any

PACKAGES = ("hvd_sparse", "horovod", "torch", "tensorflow", "numpy")
CONNECT_S = 5


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def interfaces() -> dict[str, list[str]]:
    """Return the IPv4 addresses by interface; none where psutil is not installed."""
    try:
        import psutil  # type: ignore[import-untyped] # Horovod depends on it
    except ImportError:
        return {}
    return {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
    }


def answer(listener: socket.socket) -> None:
    """Accept and close connections for ever."""
    while True:
        connection, _ = listener.accept()
        connection.close()


def reach(peer: dict[str, Any]) -> str | None:  # Any: JSON of the asking host
    """Return the reason why another host's port cannot be connected to; None if it can."""
    try:
        socket.create_connection((peer["address"], peer["port"]), timeout=CONNECT_S).close()
    except OSError as error:
        return str(error)
    return None


def main(files: list[str]) -> None:
    """Answer the questions of ``survey``.

    Parameters
    ----------
    files : paths that the host must have
    """
    listener = socket.create_server(("", 0))
    threading.Thread(target=answer, args=(listener,), daemon=True).start()
    facts = {
        "versions": {
            "python": platform.python_version(),
            **{package: version_of(package) for package in PACKAGES},
        },
        "cores": len(os.sched_getaffinity(0)),
        "interfaces": interfaces(),
        "port": listener.getsockname()[1],
        "missing": [path for path in files if not os.path.exists(path)],
    }
    print(json.dumps(facts), flush=True)
    peers = json.loads(sys.stdin.readline() or "[]")
    print(
        json.dumps({peer["name"]: reason for peer in peers if (reason := reach(peer))}), flush=True
    )
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
