"""Runs in namespaces: creates three hosts, limits the rate of their links, and checks the results
of the probe and the counters."""

import subprocess

from benchmarks.network import probe
from benchmarks.network.cluster import Cluster

cluster = Cluster(3)
cluster.lay()
for host in cluster.hosts:
    assert subprocess.check_output(cluster.on(host, ["hostname"]), text=True).strip() == host
assert list(cluster.hosts) == ["host1", "host2", "host3"]
cluster.shape("200mbit")
before = cluster.bytes_received()
limited = probe.measure(cluster, "200mbit")
after = cluster.bytes_received()
cluster.shape("none")
free = probe.measure(cluster, "none")
alone, ring = limited["alone_mbit_s"], limited["ring_mbit_s"]
assert len(ring) == 3 and max(alone["long"], *ring) <= 1.05 * 200, limited
assert free["alone_mbit_s"]["long"] > 2 * alone["long"], (free, limited)
for host in ("host2", "host3"):
    long_bytes = 200e6 / 8 * probe.LONG_S
    assert after[host] - before[host] >= long_bytes + probe.MEDIUM_BYTES, (before, after)
