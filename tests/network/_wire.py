"""Runs in namespaces: creates three hosts, limits the rate of their links, and prints the results
of the probe and the counters."""

import json
import subprocess
import sys

from benchmarks.network import probe
from benchmarks.network.cluster import Cluster

cluster = Cluster(3)
cluster.lay()
cluster.shape("200mbit")
before = cluster.bytes_received()
wire = probe.measure(cluster, "200mbit")
after = cluster.bytes_received()
cluster.shape("none")
unshaped = probe.measure(cluster, "none")
names = [
    subprocess.check_output(cluster.on(host, ["hostname"]), text=True).strip()
    for host in cluster.hosts
]
received = {host: after[host] - before[host] for host in cluster.hosts}
json.dump({"shaped": wire, "unshaped": unshaped, "names": names, "received": received}, sys.stdout)
