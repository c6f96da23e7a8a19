"""One row for every table and figure of the papers.  No figure of ours stands here: it is read from
what a command has measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lgc.page import verdict

RESULTS = Path("docs/results")
Found = dict[str, Any]

NOT_HERE = "cannot be made here: CIFAR and tens of millions of parameters; the example is for it"
ON_GPUS = "cannot be made here: times on GPUs"
ACCURACY = "`hvd-sparse bench accuracy`"
CURVES = "`hvd-sparse bench curves`"


@dataclass(frozen=True)
class Row:
    """A table or figure.

    Attributes
    ----------
    paper : title of the section
    what : the table or figure
    printed : what the paper gives
    made_by : the command, or how else
    outcome : what came out, or a function of what ``python -m benchmarks.papers`` has measured
    """

    paper: str
    what: str
    printed: str
    made_by: str
    outcome: str | Callable[[Found], str]


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


def many_workers(_: Found) -> str:
    """Return what ScaleCom reaches with ever more workers, beside dense."""
    runs = json.loads((RESULTS / "paired.json").read_text(encoding="utf-8"))["runs"]
    lines = [(each["run"]["line"], each["result"]["score"]) for each in runs]
    of: dict[str, dict[int, list[float]]] = {"scalecom": {}, "dense": {}}
    for line, score in lines:
        if line["method"] in of and line["task"] == "digits":
            of[line["method"]].setdefault(line["workers"], []).append(score)
    (dense,) = of["dense"].values()
    worse = {
        workers: sum(dense) / len(dense) - sum(scores) / len(scores)
        for workers, scores in sorted(of["scalecom"].items())
    }
    told = ", ".join(f"{points:.1f} with {workers}" for workers, points in worse.items())
    return f"digits, density 0.01, points under dense: {told} ([page](paired.md))"


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


LDTE = "LDTE-BS (chen2021ldte)"
MGS, GAUSSIAN = "MGS-SGD (shi2020mgs)", "Gaussian-k (shi2019understanding)"
ADACOMP, SCALECOM = "AdaComp (chen2018adacomp)", "ScaleCom (chen2020scalecom)"
LGC, DGC = "LGC (learned gradient compression)", "DGC (lin2018dgc)"
UNREAD = "Without open text (OptQuant, SGC)"
LAGS, PAIRED = "LAGS-SGD (shi2020lags)", "`hvd-sparse bench paired`"
PAPERS = "`python -m benchmarks.papers`"
FIT = "`python -m benchmarks.distribution_fit`"
EXAMPLE = "`examples/pytorch_cifar10.py --data DIR --model resnet20`"

ROWS = (
    Row(LDTE, "Tab. 1: Wasserstein distances", "Laplace nearer by 1.45 to 2.11", FIT, wasserstein),
    Row(LDTE, "Fig. 1: histogram of residuals", "bell with a peak", PAPERS, "left picture below"),
    Row(LDTE, "Fig. 2, 3, 4: key points, search, overlap", "drawings", "-",
        "in words: `hvd_sparse/selectors/ldte.py` and `ldte_bs.py`"),
    Row(LDTE, "Fig. 5: selection by data size", "five selectors", FIT,
        "[page](distribution-fit.md); times: [selecting](selecting.md)"),
    Row(LDTE, "Tab. 2, Fig. 6: accuracy, curves", "0.28 to 1.67 points under dense, on CIFAR",
        f"{CURVES}; {ACCURACY}; {EXAMPLE}",
        with_rest(short_training("radix_select", "dgc", "redsync", "ldte_bs"),
                  f"more: [accuracy](accuracy.md); {NOT_HERE}")),
    Row(LDTE, "Tab. 3: speed at equal accuracy", "1.12 to 1.62 times radixSelect",
        "`scripts/bench-network --train fashion_mnist gpt`",
        "[time to accuracy](time-to-accuracy.md): no gain with 0.5 M parameters at 1 Gbit/s"),
    Row(LDTE, "Fig. 7, 8: scaling on K40C, V100", "curves", "`hvd-sparse simulate`",
        f"{ON_GPUS}; predicted: [simulation](simulation.md)"),
    Row(MGS, "speed-ups by model and network", "up to 31 % over no merging, 16 GPUs",
        "`hvd-sparse bench planning`; `scripts/bench-network --merging`",
        lambda found: f"{merged(found)}; {greedy(found)}"),
    Row(MGS, "where a step's time goes", "bars",
        "`scripts/bench-network --plans`", "[planned messages on hosts](plans-on-hosts.md)"),
    Row(MGS, "convergence", "near SGD's", ACCURACY, "[accuracy](accuracy.md)"),
    Row(GAUSSIAN, "bound (1 - k/d)^2 on what is kept back", "holds for bells", PAPERS, kept_back),
    Row(GAUSSIAN, "distribution of gradients", "bells", FIT, "[page](distribution-fit.md)"),
    Row(GAUSSIAN, "convergence beside top-k and Rand-k", "top-k near dense; Rand-k may fail",
        CURVES, short_training("topk", "gaussian_k", "random_k")),
    Row(GAUSSIAN, "speed of selection, scaling", "2.33 times dense, 3.63 times top-k, 16 GPUs",
        "`hvd-sparse bench select`", f"{ON_GPUS}; on a CPU: [selecting](selecting.md)"),
    Row(ADACOMP, "effective compression", "about 40 (convolutions), 200 (others)", PAPERS, bins),
    Row(ADACOMP, "accuracy", "no loss that is seen", CURVES, short_training("adacomp")),
    Row(SCALECOM, "similarity of workers' residuals", "enough for one leader's indices",
        PAPERS, alike),
    Row(SCALECOM, "accuracy at 8 to 64 workers", "within 0.5 points",
        PAIRED, many_workers),
    Row(LAGS, "convergence beside one density for all", "near SGD's", PAIRED, hidden),
    Row(DGC, "gradient size of ResNet-50", "97 MB to 0.35 MB, 277 times", PAPERS, coded),
    Row(DGC, "accuracy, perplexity", "that of momentum SGD or better",
        f"{ACCURACY}; `examples/pytorch_ptb.py --data DIR`",
        f"small networks: [accuracy](accuracy.md); {NOT_HERE}"),
    Row(UNREAD, "OptQuant: optimized quantization", "title alone is open", "-",
        "cannot be made here: neither the error nor the levels are known; no method of that name "
        "([methods](../methods/index.md))"),
    Row(UNREAD, "SGC: 99.99 % not sent, 48 times less traffic", "abstract alone is open", "-",
        "cannot be made here: how momentum is approximated and compensated is not known; no "
        "method of that name ([methods](../methods/index.md))"),
    Row(LGC, "accuracy on CIFAR-10", "0.18 points under dense", "`python -m benchmarks.lgc`",
        learned),
)  # fmt: skip
