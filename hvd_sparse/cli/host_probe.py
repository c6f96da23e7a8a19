"""The program that runs on every host before a launch, sent as text over ssh.

It can use Python's own library alone.  It writes one line of JSON with the facts about its host,
reads one with the other hosts, and writes one with those that it cannot reach.  Then it keeps its
port open until its input ends, so that the other hosts can reach it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import mmap
import os
import platform
import socket
import sys
import threading
from pathlib import Path
from typing import Any

PACKAGES = ("hvd_sparse", "horovod", "torch", "tensorflow", "numpy")
CONTROLLERS = {"gloo": b"GlooController", "mpi": b"MPIController"}
"""By what Horovod can be launched, and the class that its libraries hold for it."""
CONNECT_S = 5


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def controllers() -> list[str]:
    """Return what the installed Horovod was built with; nothing where there is no Horovod.

    Its own functions tell it too, but load TensorFlow or PyTorch for that, which takes seconds.
    """
    found = importlib.util.find_spec("horovod")
    for folder in (found and found.submodule_search_locations) or ():
        for library in Path(folder).glob("*/mpi_lib*.so"):
            with open(library, "rb") as file:
                text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with text:
                return [name for name, word in CONTROLLERS.items() if text.find(word) >= 0]
    return []


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
        "controllers": controllers(),
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
