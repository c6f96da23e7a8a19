"""What the project wants of ResNet-50's gradients on 4 hosts, and what of it was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks._streams import markdown_table
from benchmarks.network.summary import summarize


@dataclass(frozen=True)
class Goal:
    """In a setting, a step of ``method`` takes at least ``times`` as long as one of ours."""

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


def table(settings: list[dict[str, Any]]) -> str:
    """One line a goal that was measured."""
    measured = {
        (s["rate"], s["compute"]): s
        for s in settings
        if (s["model"], s["hosts"], s["controller"]) == ("resnet50", 4, "gloo")
    }
    rows = []
    for goal in GOALS:
        setting = measured.get((goal.rate, goal.compute))
        summary = summarize(setting) if setting else {}
        numbers = summary.get(goal.method)
        where = f"{'unshaped' if goal.rate == 'none' else goal.rate}, {goal.compute}, over {goal.method}"
        if numbers is None:
            rows.append([where, f"{goal.times:g}", "not measured", ""])
            continue
        times = numbers["times_ours"]
        found = f"{times['median']:.2f} ({times['low']:.2f} to {times['high']:.2f})"
        ours, allowed_ms = summary[list(summary)[-1]], numbers["step_ms"]["median"] / goal.times
        missed = (
            f"missed by {goal.times / times['median']:.1f} times: it would be a step of {allowed_ms:.0f} ms, and the threads of "
            f"one rank work {ours['worked_ms']:.0f} ms"
        )
        verdict = "met" if times["median"] >= goal.times else missed
        rows.append([where, f"{goal.times:g}", found, verdict])
    return markdown_table(["ResNet-50 sizes, 4 hosts: wire, compute, over", "at least", "measured", ""], rows)


def why(settings: list[dict[str, Any]], cores: int) -> str:
    """What a step of ours cannot be faster than on this machine, from what it used of the processor."""
    lines = []
    for setting in settings:
        summary, hosts = summarize(setting), setting["hosts"]
        ours = list(summary)[-1]
        numbers = summary[ours]
        work = numbers["worked_ms"]
        floor = work * max(1.0, hosts / cores)
        where = f"{setting['rate']}, {setting['model']}, {setting['compute']}, {hosts} hosts, {setting['controller']}"
        step, waited = numbers["step_ms"]["median"], numbers["phases_ms"]["send"]
        lines.append(
            f"- {where}: all threads of a rank of {ours} work {work:.0f} ms a step, so {hosts} ranks on {cores} cores take at "
            f"least {floor:.0f} ms, of {step:.0f} ms measured; {waited:.0f} ms are waited for the wire and for other ranks."
        )
    return "\n".join(lines)
