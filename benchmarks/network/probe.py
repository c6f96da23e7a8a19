"""Measures the real speed of the links by TCP transfers between hosts of the cluster.

    python -m benchmarks.network.probe serve PORT             receives, and confirms each transfer
    python -m benchmarks.network.probe send HOST PORT BYTES   prints seconds, for each of BYTES

A time ends when the sender gets the confirmation.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import Any

from benchmarks.network.cluster import Cluster, bits_per_second, burst_bytes

PORT = 29_500
LIMIT_S = 600
SMALL_BYTES, MEDIUM_BYTES = 100_000, 1_000_000
LONG_S = 0.5
"""Intended seconds of the long transfers."""

FASTEST_BIT_S = 40e9
"""Assumed rate of a link without a limit, which determines the length of its long transfer."""


def serve(port: int) -> None:
    with socket.create_server(("", port)) as listener:
        connection, _ = listener.accept()
        with connection:
            buffer = bytearray(1 << 20)
            while header := connection.recv(8, socket.MSG_WAITALL):
                left = int.from_bytes(header, "big")
                while left > 0:
                    left -= connection.recv_into(buffer, min(left, len(buffer)))
                connection.sendall(b"!")


def send(host: str, port: int, sizes: list[int]) -> None:
    with _connect(host, port) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for size in sizes:
            content = memoryview(bytes(size))
            start = time.perf_counter()
            connection.sendall(size.to_bytes(8, "big"))
            connection.sendall(content)
            connection.recv(1)
            print(time.perf_counter() - start)


def _connect(host: str, port: int) -> socket.socket:
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return socket.create_connection((host, port), timeout=LIMIT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def measure(cluster: Cluster, rate: str) -> dict[str, Any]:
    """Return Mbit/s from one host to another by size, and of all hosts sending at once. Raises
    RuntimeError if a transfer is faster than the rate."""
    nominal = FASTEST_BIT_S if rate == "none" else bits_per_second(rate)
    long = int(nominal / 8 * LONG_S)
    sizes = [MEDIUM_BYTES, *[SMALL_BYTES] * 5, *[MEDIUM_BYTES] * 5, long]
    times = _ring(cluster, sizes, pairs=1)[0]
    medians = {"small": sorted(times[1:6])[2], "medium": sorted(times[6:11])[2], "long": times[11]}
    moved = {"small": SMALL_BYTES, "medium": MEDIUM_BYTES, "long": long}
    ring = [seconds[-1] for seconds in _ring(cluster, [MEDIUM_BYTES, long], pairs=cluster.size)]
    if rate != "none":
        for size, seconds in [
            *((moved[name], medians[name]) for name in moved),
            *((long, seconds) for seconds in ring),
        ]:
            if size > burst_bytes(rate) + 1.05 * nominal / 8 * seconds:
                raise RuntimeError(
                    f"the wire is not shaped to {rate}: {size} bytes took {seconds} s"
                )
    return {
        "nominal_mbit_s": None if rate == "none" else nominal / 1e6,
        "burst_bytes": 0 if rate == "none" else burst_bytes(rate),
        "alone_mbit_s": {name: moved[name] * 8 / medians[name] / 1e6 for name in moved},
        "ring_mbit_s": [long * 8 / seconds / 1e6 for seconds in ring],
    }


def describe(wire: dict[str, Any]) -> str:
    alone, ring = wire["alone_mbit_s"], wire["ring_mbit_s"]
    return (
        f"one host to another {alone['long']:,.0f} Mbit/s ({alone['medium']:,.0f} for 1 MB, "
        f"{alone['small']:,.0f} for 100 kB, the reply included); all at once, each to the next: "
        f"{min(ring):,.0f} to {max(ring):,.0f} Mbit/s"
    )


def _ring(cluster: Cluster, sizes: list[int], pairs: int) -> list[list[float]]:
    """Let each of the first ``pairs`` hosts send to the next; return the seconds of all
    transfers."""
    running = []
    for i in range(pairs):
        source, target = cluster.hosts[i], cluster.hosts[(i + 1) % cluster.size]
        script = [sys.executable, "-m", "benchmarks.network.probe"]
        server = subprocess.Popen(cluster.on(target, [*script, "serve", str(PORT)]))
        arguments = [target, str(PORT), *(str(size) for size in sizes)]
        client = subprocess.Popen(
            cluster.on(source, [*script, "send", *arguments]), stdout=subprocess.PIPE, text=True
        )
        running.append((server, client))
    results = []
    for server, client in running:
        printed = client.communicate(timeout=LIMIT_S)[0]
        server.wait(timeout=LIMIT_S)
        results.append([float(line) for line in printed.split()])
    return results


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        send(sys.argv[2], int(sys.argv[3]), [int(size) for size in sys.argv[4:]])
