"""One row for every table and figure of the papers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.papers.outcomes import (
    Found,
    alike,
    bins,
    coded,
    greedy,
    hidden,
    kept_back,
    learned,
    many_workers,
    merged,
    short_training,
    wasserstein,
    with_rest,
)

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
    Row(LDTE, "Fig. 1: histogram of residuals", "bell with a peak", PAPERS, "first picture below"),
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
        "[time to accuracy](time-to-accuracy.md): 3.6 times dense's speed at 100 Mbit/s "
        "with 0.5 M parameters, 1.4 with a GPT of 0.1 M, slower than dense at 1 Gbit/s"),
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
