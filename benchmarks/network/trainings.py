"""Measures how long whole trainings over a real network take until they are as good as dense
training at its end."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, replace
from typing import Any

from benchmarks.network import probe
from benchmarks.network.cluster import Cluster
from benchmarks.network.launching import launch
from benchmarks.network.training_store import Store, Training, best, tasks
from benchmarks.network.trainings_page import write_page

QUICK_STEPS = 24
LIMIT_S = 6 * 3600
HOROVOD_FREE = "powersgd"
"""Prefix of the names of methods that are hooks of DDP and need no Horovod."""


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.store = Store(options.output)
        self.cluster = Cluster(options.hosts)
        self._shaped: str | None = None
        self._probe = ""

    def train(self, run: Training) -> dict[str, Any]:
        if run not in self.store.results:
            self._shape(run.wire)
            controller = "mpi" if run.method.startswith(HOROVOD_FREE) else self.options.controller
            known = self.store.at_another_wire(run) if self.options.timed_steps else None
            timed = self.options.timed_steps if known else run.steps
            arguments = [json.dumps(asdict(run)), str(timed)]
            found = launch(self.cluster, controller, "training_worker", arguments, LIMIT_S)
            found |= {"probe": self._probe, "load": os.getloadavg()[1]}
            if known:
                step_s = found["step_ms"] / 1e3
                curve = [(step, step * step_s, score) for step, _, score in known["curve"]]
                found |= {"timed_steps": timed, "curve": curve, "score": known["score"]}
            self.store.results[run] = found
            write_page(self.store, self.options)
            seconds, score = found["curve"][-1][1], found["score"]
            print(f"{run}: {seconds:.1f} s, {score:.3f}", flush=True)
        return self.store.results[run]

    def _shape(self, wire: str) -> None:
        if wire != self._shaped:
            self.cluster.shape(wire)
            self._shaped, self._probe = wire, probe.describe(probe.measure(self.cluster, wire))

    def rate_of(self, run: Training) -> float:
        """Return the learning rate with the best final score of the first seed, without a limited
        link. The search tries three rates, and further ones as long as the best is the highest or
        lowest.

        fp16 uses the rate of dense, from which it differs only by rounding. If a rate was searched
        on another number of hosts, that rate is used, because both make the same steps.
        """
        task = tasks()[run.task]
        method = "dense" if run.method == "fp16" else run.method
        run = replace(run, method=method, wire="none", seed=0)
        for hosts in sorted({each.hosts for each in self.store.results}):
            tried = list(self.store.at_any_rate(replace(run, hosts=hosts)))
            if hosts != run.hosts and len({each.rate for each, _ in tried}) > 2:
                return best(tried, is_loss=task.is_loss)
        low, high = len(task.rates) // 2 - 1, len(task.rates) // 2 + 1
        while True:
            tried = [
                (each, self.train(each))
                for each in (replace(run, rate=rate) for rate in task.rates[low : high + 1])
            ]
            found = best(tried, is_loss=task.is_loss)
            if found == task.rates[low] and low > 0:
                low -= 1
            elif found == task.rates[high] and high + 1 < len(task.rates):
                high += 1
            else:
                return found


def run(options: argparse.Namespace) -> None:
    bench = Bench(options)
    bench.cluster.lay()
    for name in options.train:
        task, wanted = tasks()[name], []
        for method in options.methods:
            if method == "dgc" and task.optimizer == "adamw":
                continue  # it corrects momentum
            steps = options.steps or (QUICK_STEPS if options.quick else task.steps)
            first = Training(name, method, options.hosts, "none", options.density, steps, 0.0)
            rate = task.rates[len(task.rates) // 2] if options.quick else bench.rate_of(first)
            wanted.append(replace(first, rate=rate))
        for wire in options.rates:
            for first in wanted:
                for seed in range(options.seeds):
                    bench.train(replace(first, wire=wire, seed=seed))
    print(write_page(bench.store, options))
