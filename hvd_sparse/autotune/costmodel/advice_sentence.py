"""An advice as a sentence."""

from __future__ import annotations

import math

from hvd_sparse.autotune.costmodel.candidate import Candidate
from hvd_sparse.autotune.costmodel.predict import Prediction


def sentence_of(
    method: str,
    chosen: Candidate | None,
    quickest: Candidate,
    dense: Prediction,
    fp16: Prediction,
    uncompressed: str,
    crossover: float | None,
) -> str:
    """Say what to do and why: also where compressing does not pay, and from where on it would.

    uncompressed : "dense" or "fp16", which to use where compressing does not pay
    """
    steps = f"dense {_ms(dense.step_s)} and fp16 {_ms(fp16.step_s)}"
    better = min(dense.step_s, fp16.step_s)
    if chosen is not None:
        times = better / chosen.prediction.step_s
        text = (
            f"Compress: {method} at density {chosen.density:g} with codec {chosen.codec} by "
            f"exchange {chosen.exchange} takes "
            f"{_ms(chosen.prediction.step_s)} a step, {steps}: {times:.1f} times as quick as the "
            "better of the two."
        )
    else:
        found = quickest.prediction
        taken = "goes dense by itself" if found.goes_dense else f"takes {_ms(found.step_s)}"
        name = uncompressed
        waiting_s = (dense if name == "dense" else fp16).waiting_s
        text = (
            f"Compression will not help here: use {name}. The quickest way to compress {taken} a "
            f"step, {steps}; "
            f"only {_ms(waiting_s)} of {name}'s step are spent waiting for the network."
        )
    if crossover is None:
        return text
    if crossover == 0.0:
        return f"{text} No bandwidth of 1 Mbit/s or more changes that."
    if math.isinf(crossover):
        return f"{text} That holds for any bandwidth up to 1 Tbit/s."
    return f"{text} It pays below about {crossover / 1e9:.2g} Gbit/s."


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"
