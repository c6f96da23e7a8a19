"""Calls from one rank to another rank's listener, over TCP."""

from __future__ import annotations

import socket
import time

from hvd_sparse.watch.listener import CHUNK_BYTES, LONGEST_LINE

SHORTEST_S = 0.01
TRIES = 2
"""Connections to an address that hangs up.  A crowded listener hangs up on strangers before it
knows who calls."""


def addresses() -> tuple[str, ...]:
    """Return this machine's IPv4 addresses at which other hosts might reach it."""
    try:
        import psutil  # type: ignore[import-untyped] # Horovod depends on it
    except ImportError:
        found = [
            str(info[4][0])
            for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        ]
    else:
        interfaces = psutil.net_if_addrs().values()
        found = [
            a.address for addresses in interfaces for a in addresses if a.family == socket.AF_INET
        ]
    return tuple(sorted({address for address in found if not address.startswith("127.")}))


def call(address: str, port: int, line: bytes, patience_s: float) -> bytes | str:
    """Return the line said at an address, or why there is none: "silent", "ended" or
    "unreachable"."""
    for _ in range(TRIES):
        try:
            connection = socket.create_connection((address, port), patience_s)
        except ConnectionRefusedError:
            return "ended"
        except OSError:  # no route to it, or the connection was not taken in time
            return "unreachable"
        with connection:
            try:
                connection.sendall(line)
                return _read_line(connection, patience_s)
            except TimeoutError:
                return "silent"
            except (OSError, ValueError):  # hung up on, as strangers in a crowd are: once more
                continue
    return "unreachable"


def _read_line(connection: socket.socket, patience_s: float) -> bytes:
    """Return one line; raise TimeoutError unless all of it comes in time, however small its pieces
    are."""
    end_s, line = time.monotonic() + patience_s, bytearray()
    while not line.endswith(b"\n"):
        connection.settimeout(max(SHORTEST_S, end_s - time.monotonic()))
        part = connection.recv(CHUNK_BYTES)
        line += part
        if not part or len(line) > LONGEST_LINE:
            raise ValueError("no whole line arrived")
        if time.monotonic() > end_s:
            raise TimeoutError
    return bytes(line)
