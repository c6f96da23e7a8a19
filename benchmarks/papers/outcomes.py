"""What came out of each figure of the papers, in words.  No figure of ours stands here: it is read
from what a command has measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lgc.page import verdict

RESULTS = Path("docs/results")
Found = dict[str, Any]


def wasserstein(_: Found) -> str:
    """Return how much nearer Laplace is than normal, of whole models."""
    fits = json.loads((RESULTS / "distribution-fit.json").read_text(encoding="utf-8"))["fits"]
    ratios = [
        fit["normal"] / fit["laplace"]
        for fit in fits
        if fit["tensor"] == "all" and fit["what"] == "accumulated"
    ]
    nearer = sum(ratio > 1 for ratio in ratios)
    return (
        f"Laplace nearer in {nearer} of {len(ratios)}, by {min(ratios):.2f} to {max(ratios):.2f} "
        "times ([page](distribution-fit.md)); by tensor, often not"
    )


def short_training(*methods: str) -> Callable[[Found], str]:
    """Return a function that tells what a short training by each method has reached."""

    def tell(_: Found) -> str:
        runs = json.loads((RESULTS / "curves.json").read_text(encoding="utf-8"))["runs"]
        told = []
        for method in ("dense", *methods):
            scores = [
                each["result"]["score"]
                for each in runs
                if each["run"]["line"]["method"] == method
                and each["run"]["line"]["density"] in (None, 0.01)
            ]
            told.append(f"{method} {sum(scores) / len(scores):.1f} %")
        return f"digits, 10 epochs, density 0.01: {', '.join(told)} ([curves](curves.md))"

    return tell


def with_rest(tell: Callable[[Found], str], rest: str) -> Callable[[Found], str]:
    """Return a function that tells the same, and more behind it."""
    return lambda found: f"{tell(found)}; {rest}"


def greedy(_: Found) -> str:
    """Return how the published plan stands beside the quickest one."""
    models = json.loads((RESULTS / "planning.json").read_text(encoding="utf-8"))["models"]
    published = [each["ms"] for each in models if each["setting"] == "published"]
    worse = [ms["greedy"] / ms["exact"] - 1 for ms in published]
    unmerged = [ms["no_merge"] / ms["exact"] for ms in published]
    return (
        f"on paper, with the authors' constants: {min(unmerged):.2f} to {max(unmerged):.2f} times "
        f"quicker than no merging; the published greedy is up to {100 * max(worse):.0f} % slower "
        "than the exact plan ([page](planning.md))"
    )


def merged(_: Found) -> str:
    """Return how merged layers stand beside unmerged ones, on hosts."""
    rows = json.loads((RESULTS / "merging-on-hosts.json").read_text(encoding="utf-8"))["rows"]
    times = [row["times_mgs"] for row in rows if row["way"] == "wfbp"]
    quicker = sum(each["low"] > 1 for each in times)
    slower = sum(each["high"] < 1 for each in times)
    medians = [each["median"] for each in times]
    return (
        f"on shaped hosts steps are {min(medians):.2f} to {max(medians):.2f} times as quick as "
        f"without merging, in {len(times)} settings: quicker beyond the spread in {quicker}, "
        f"slower in {slower} ([page](merging-on-hosts.md))"
    )


def _by_workers() -> dict[str, dict[int, list[Found]]]:
    """Return the trainings of dense and of ScaleCom on the digits, by their number of workers."""
    runs = json.loads((RESULTS / "paired.json").read_text(encoding="utf-8"))["runs"]
    of: dict[str, dict[int, list[Found]]] = {"dense": {}, "scalecom": {}}
    for each in runs:
        line = each["run"]["line"]
        if line["method"] in of and line["task"] == "digits":
            of[line["method"]].setdefault(line["workers"], []).append(each["result"])
    return {method: dict(sorted(found.items())) for method, found in of.items()}


def curves_by_workers() -> dict[str, tuple[list[int], list[float]]]:
    """Return steps and mean accuracies of the same trainings, by what a picture calls them."""
    curves = {}
    for method, found in _by_workers().items():
        for workers, results in found.items():
            label = method if method == "dense" else f"{workers} workers"
            points = list(zip(*(each["curve"] for each in results)))
            steps = [of_seeds[0][0] for of_seeds in points]
            means = [sum(score for _, score in each) / len(each) for each in points]
            curves[label] = (steps, means)
    return curves


def many_workers(_: Found) -> str:
    """Return what ScaleCom reaches with ever more workers, beside dense."""
    found = _by_workers()
    (dense,) = found["dense"].values()
    reached = {workers: _mean_score(each) for workers, each in found["scalecom"].items()}
    told = ", ".join(f"{_mean_score(dense) - s:.1f} with {n}" for n, s in reached.items())
    return (
        f"digits, density 0.01, points under dense: {told} ([page](paired.md)); curves: right "
        "picture of the lower row"
    )


def _mean_score(results: Sequence[Found]) -> float:
    return sum(float(each["score"]) for each in results) / len(results)


def hidden(_: Found) -> str:
    """Return what layers' own densities reach, beside one that sends as many bytes."""
    text = (RESULTS / "paired.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| densities that hide"))
    _, what, own, uniform, worse, *_ = (cell.strip() for cell in row.split("|"))
    return f"a small GPT, perplexity: {what}: {own} and {uniform}, {worse} % ([page](paired.md))"


def coded(found: Found) -> str:
    """Return DGC's ratio for ResNet-50."""
    told = found["dgc"]
    return (
        f"{told['dense'] / 2**20:.1f} MiB to {told['packed'] / 2**20:.3f} MiB, {told['ratio']:.0f} "
        "times, headers included"
    )


def kept_back(found: Found) -> str:
    """Return in how many trainings the squared bound holds."""
    rows = found["contraction"]
    holds = sum(row["contraction"] <= row["contraction_of_bells"] for row in rows)
    least = min(row["contraction"] / row["contraction_of_bells"] for row in rows)
    return f"holds in {holds} of {len(rows)} trainings; measured is down to {least:.2f} of it"


def bins(found: Found) -> str:
    """Return AdaComp's ratios."""
    by_kind: dict[str, list[float]] = {}
    for row in found["adacomp"]:
        by_kind.setdefault(row["kind"], []).append(row["ratio"])
    parts = []
    for kind, ratios in by_kind.items():
        ends = dict.fromkeys(f"{ratio:.0f}" for ratio in (min(ratios), max(ratios)))
        parts.append(f"{kind}: {' to '.join(ends)} times")
    return "; ".join(parts)


def alike(found: Found) -> str:
    """Return how alike residuals are at first and at last."""
    parts = []
    for method in dict.fromkeys(row["method"] for row in found["similarity"]):
        cosines = [row["cosine"] for row in found["similarity"] if row["method"] == method]
        parts.append(f"{method}: cosine {cosines[0]:.2f} at first, {cosines[-1]:.2f} at last")
    return "; ".join(parts)


def learned(_: Found) -> str:
    """Return what LGC's page says."""
    found = json.loads((RESULTS / "lgc.json").read_text(encoding="utf-8"))
    return f"not a method here: {verdict(found)} ([page](lgc.md))"
