"""Goals for ResNet-50's gradients on 4 hosts, and the measured steps beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks._streams import markdown_table
from benchmarks.network.summary import summarize


@dataclass(frozen=True)
class Goal:
    """A goal: in a setting, a step of ``method`` takes at least ``times`` as long as one of
    ours."""

    rate: str
    compute: str
    method: str
    times: float


GOALS = (
    Goal("100mbit", "none", "dense", 150.0),
    Goal("1gbit", "none", "dense", 50.0),
    Goal("1gbit", "none", "fp16", 25.0),
    Goal("1gbit", "none", "dgc", 2.0),
    Goal("1gbit", "asleep", "dense", 15.0),
    Goal("1gbit", "asleep", "topk", 3.7),
    Goal("1gbit", "asleep", "dgc", 1.6),
    Goal("10gbit", "none", "dense", 1.5),
    Goal("10gbit", "none", "fp16", 1.0),
    Goal("none", "none", "dense", 0.95),
    Goal("none", "none", "fp16", 0.95),
)
"""The last two ask for a setting that goes dense by itself where it would lose."""


NAMES = {"gloo": "Gloo", "mpi": "MPI"}
CONTROLLERS = tuple(NAMES)


def table(settings: list[dict[str, Any]]) -> str:
    """One line a goal: what was measured by either controller."""
    summaries = {
        (s["rate"], s["compute"], s["controller"]): summarize(s)
        for s in settings
        if (s["model"], s["hosts"]) == ("resnet50", 4)
    }
    rows = []
    for goal in GOALS:
        found = {c: summaries.get((goal.rate, goal.compute, c), {}) for c in CONTROLLERS}
        found = {
            controller: summary for controller, summary in found.items() if goal.method in summary
        }
        rate = "unshaped" if goal.rate == "none" else goal.rate
        where = f"{rate}, {goal.compute}, over {goal.method}"
        cells = [
            _cell(found[c][goal.method]["times_ours"]) if c in found else "not measured"
            for c in CONTROLLERS
        ]
        rows.append([where, f"{goal.times:g}", *cells, _verdict(goal, found)])
    heads = ["ResNet-50 sizes, 4 hosts: wire, compute, over", "at least", "by Gloo", "by MPI", ""]
    return markdown_table(heads, rows)


def _cell(times: dict[str, float]) -> str:
    return f"{times['median']:.2f} ({times['low']:.2f} to {times['high']:.2f})"


def _verdict(goal: Goal, found: dict[str, Any]) -> str:
    """Return in words whether a goal is met and by which controller, or by how much it is missed
    and what limits it."""
    medians = {
        controller: summary[goal.method]["times_ours"]["median"]
        for controller, summary in found.items()
    }
    if not medians:
        return ""
    met = [controller for controller, median in medians.items() if median >= goal.times]
    if len(met) == len(medians):
        return "met"
    nearest = max(medians, key=medians.__getitem__)
    summary = found[nearest]
    ours, allowed_ms = (
        summary[list(summary)[-1]],
        summary[goal.method]["step_ms"]["median"] / goal.times,
    )
    if met:
        return f"met by {NAMES[met[0]]} alone"
    return (
        f"missed by {goal.times / medians[nearest]:.1f} times by {NAMES[nearest]}: it would be a "
        f"step of {allowed_ms:.0f} ms, "
        f"and the threads of one rank work {ours['worked_ms']:.0f} ms"
    )


def why(settings: list[dict[str, Any]], cores: int) -> str:
    """Return in words the limit of a step of ours on this machine, from its use of the
    processor."""
    lines = []
    for setting in settings:
        summary, hosts = summarize(setting), setting["hosts"]
        ours = list(summary)[-1]
        numbers = summary[ours]
        work = numbers["worked_ms"]
        floor = work * max(1.0, hosts / cores)
        where = (
            f"{setting['rate']}, {setting['model']}, {setting['compute']}, {hosts} hosts, "
            f"{setting['controller']}"
        )
        step, waited = numbers["step_ms"]["median"], numbers["phases_ms"]["send"]
        lines.append(
            f"- {where}: all threads of a rank of {ours} work {work:.0f} ms a step, so {hosts} "
            f"ranks on {cores} cores take at "
            f"least {floor:.0f} ms, of {step:.0f} ms measured; {waited:.0f} ms are waited for the "
            "wire and for other ranks."
        )
    return "\n".join(lines)
