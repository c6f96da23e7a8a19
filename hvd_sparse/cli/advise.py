"""The command ``hvd-sparse advise``: predicts whether compression makes training steps faster. The
prediction is arithmetic (``Setting.step``); nothing is measured.

The assumptions are: a collective starts after one cycle of Horovod and the latencies of all hops in
a ring of the ranks. It then overlaps with the backward pass. Selecting and encoding make the
backward pass longer.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from hvd_sparse.checks import check_density, is_number
from hvd_sparse.codecs.sign_mean import SignMean
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.summary import table
from hvd_sparse.methods.builder import density_for, too_few


class Model(NamedTuple):
    """A model: number of entries of all gradients, number of compressed tensors, and seconds of a
    backward pass."""

    numel: int
    tensors: int
    backward_s: float


MODELS = {
    "resnet50": Model(25_557_032, 54, 0.0526),
    "vgg16": Model(138_357_544, 16, 0.1981),
    "inception_v4": Model(42_679_816, 149, 0.1572),
    "lstm": Model(66_034_000, 6, 0.0229),
    "transformer": Model(9_884_944, 27, 0.0061),
}
TENSORS = 50
"""Assumed number of compressed tensors, if only a model's number of parameters is given."""
DENSITIES = (0.001, 0.01)
"""Densities to predict if no option gives one."""
BANDWIDTH_BIT_S = 1e9
LATENCY_S = 50e-6
CALL_S = 1e-3
"""Seconds until the ranks have agreed on a collective, about one cycle of Horovod."""
TENSOR_S, ENTRY_S, SENT_S = 7e-5, 0.66e-9, 20e-9
DENSE_S, RECEIVED_S = 0.37e-9, 7e-9
"""``TENSOR_S``, ``ENTRY_S`` and ``SENT_S`` are the seconds of selecting and encoding per tensor,
per entry and per sent entry. ``DENSE_S`` and ``RECEIVED_S`` are the seconds of making the dense
result per entry and per received entry. Measured with ``ldte_bs``, ``index_value``, the engine
numba and one thread of an Intel Xeon with AVX-512 (docs/results/selecting.md)."""
ENTRY_BYTES = 8
"""Bytes of an entry that "index_value" sends."""
HALF_SUM_S = {"gloo": 14e-9, "mpi": 0.0, "nccl": 0.0}
"""Additional seconds to cast and sum one entry as float16 in place of float32, for each library
that Horovod may use for the sum (docs/results/trainings.md)."""
ONE_CORE_S, SHARED_SUM_S = 12e-3, 4.1e-9
"""If a rank has a single core: additional seconds of a step in which Horovod's own thread uses the
core, and seconds in which this thread copies and sums an entry of a dense gradient. Measured with
Gloo (docs/results/trainings.md)."""
UPDATE_PART = 0.6
"""Part of the optimizer's step that a sparse step still takes: the time in which a compressor with
``optimizer=`` computes the updates. Measured with AdamW (docs/results/trainings.md)."""
MARGIN = 1.05
"""A sparse step must be faster than dense and fp16 by this factor, because dense gradients keep the
accuracy."""
AS_GOOD = 1.02
"""Steps whose times differ by at most this factor count as equally fast; of these, the step that
sends most is advised."""
BANDWIDTHS = tuple(10 ** (6 + i / 100) for i in range(601))
"""Bandwidths in bit/s, from 1 Mbit/s to 1 Tbit/s, at which ``Setting.paying_bit_s`` predicts."""

BITS = {"bit": 1.0, "bps": 1.0, "bit/s": 1.0}
BITS |= {
    prefix + unit: value
    for prefix, value in {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}.items()
    for unit in ("", *BITS)
}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}


def bandwidth(text: str) -> float:
    return _measure(
        text, BITS, "is no bandwidth: give bits per second, for example 100Mbit or 1Gbit"
    )


def duration(text: str) -> float:
    return _measure(text, SECONDS, "is no time: give, for example, 50us or 80ms")


def count(text: str) -> int:
    return max(
        1,
        round(_measure(text, COUNTS, "is no number of parameters: give, for example, 25M or 1.3B")),
    )


def _measure(text: str, units: Mapping[str, float], remedy: str) -> float:
    """Return the number in ``text`` times the factor of its unit. The unit "" means no unit. If
    ``text`` is not a number with a unit, the error says so with ``remedy``."""
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?) ?([a-z/]*)", text.strip().lower())
    try:
        value = float(found[1]) * units[found[2]] if found else math.nan
    except (KeyError, ValueError):
        value = math.nan
    if not is_number(value) or value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} {remedy}")
    return value


@dataclass(frozen=True)
class Step:
    """Prediction of a training step whose gradients are sent in one way: "dense", "fp16" or
    "sparse". ``waiting_s`` is the part of the step's time ``step_s`` in which a rank only waits for
    the network."""

    way: str
    density: float | None
    step_s: float
    waiting_s: float
    received_bytes: float


@dataclass(frozen=True)
class Setting:
    """A model, the ranks that train it, and the network between them.

    forward_s : seconds of a step without the backward pass and the optimizer's step
    update_s : seconds of the optimizer's step. A sparse step takes ``UPDATE_PART`` of it
    signs : if True, sparse steps send indices, signs and one mean magnitude, as a compressor with
        ``steps=`` does; otherwise they send indices and float32 values
    operations : library with which Horovod sums: "gloo", "mpi" or "nccl"
    one_core : each rank has a single core, which Horovod's own thread shares
    """

    model: Model
    backward_s: float
    forward_s: float
    world_size: int
    bandwidth_bit_s: float
    latency_s: float
    signs: bool = False
    operations: str = "gloo"
    one_core: bool = False
    update_s: float = 0.0

    def step(self, way: str, density: float | None = None) -> Step:
        others, numel = self.world_size - 1, self.model.numel
        works_s = settles_s = shared_s = 0.0
        if density is None:
            settles_s = self.update_s
            passed = 2 * others / self.world_size * numel
            nbytes, hops = passed * (4 if way == "dense" else 2), 2 * others
            shared_s = SHARED_SUM_S * passed
            if way == "fp16":
                settles_s += HALF_SUM_S[self.operations] * passed / 2
        else:
            sent, hops = density * numel, others
            payload = sent * ENTRY_BYTES
            if self.signs:
                payload = SignMean().signs_bytes(max(1, round(sent)), numel)
            nbytes = others * payload
            dense = self.step("dense")
            if nbytes >= dense.received_bytes:  # a compressor then sends this step dense
                return replace(dense, way=way, density=density)
            works_s = TENSOR_S * self.model.tensors + ENTRY_S * numel + SENT_S * sent
            works_s += UPDATE_PART * self.update_s
            settles_s = DENSE_S * numel + RECEIVED_S * others * sent
        start_s = CALL_S + hops * self.latency_s
        computes_s = self.backward_s + works_s + (shared_s if self.one_core else 0.0)
        ends_s = start_s + max(computes_s, nbytes * 8 / self.bandwidth_bit_s)
        step_s = self.forward_s + ends_s + settles_s + (ONE_CORE_S if self.one_core else 0.0)
        return Step(way, density, step_s, ends_s - computes_s, nbytes)

    def steps(self, densities: Sequence[float]) -> list[Step]:
        found = [self.step("dense"), self.step("fp16")]
        return found + [self.step("sparse", density) for density in densities]

    def paying_bit_s(self, densities: Sequence[float]) -> list[float]:
        """Return the bandwidths, in ascending order, at which ``choose`` recommends compression.
        The candidates are ``BANDWIDTHS`` and this setting's bandwidth. The result is one range
        without gaps. Under Gloo, dense steps can be faster above this range, and fp16 steps below
        it."""
        return [
            speed
            for speed in sorted({*BANDWIDTHS, self.bandwidth_bit_s})
            if choose(replace(self, bandwidth_bit_s=speed).steps(densities)).way == "sparse"
        ]


def choose(steps: Sequence[Step]) -> Step:
    """Return the recommended step. ``steps`` has a dense step, an fp16 step and any number of
    sparse steps, in this order.

    If the fastest sparse step is faster than both the dense and the fp16 step by the factor
    ``MARGIN``, return a sparse step: of those that take at most ``AS_GOOD`` times as long as the
    fastest, the one with the highest density. Otherwise return the dense step, unless the fp16 step
    is faster by more than the factor ``AS_GOOD``.
    """
    dense, fp16, *sparse = steps
    better_s = min(dense.step_s, fp16.step_s)
    quickest_s = min((each.step_s for each in sparse), default=math.inf)
    if quickest_s * MARGIN <= better_s:
        quick = [each for each in sparse if each.step_s <= AS_GOOD * quickest_s]
        return max(quick, key=lambda each: each.density or 0.0)
    return dense if dense.step_s <= AS_GOOD * fp16.step_s else fp16


def set_up(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Predict the time of a step from the given numbers; nothing is measured or sent."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", choices=MODELS, help="a model whose size is known")
    which.add_argument(
        "--parameters", type=count, metavar="N", help="size of your model, as 25M or 1.3B"
    )
    parser.add_argument(
        "--world-size", type=int, required=True, metavar="N", help="number of ranks"
    )
    parser.add_argument(
        "--bandwidth", type=bandwidth, help="bandwidth of a rank's link (default: 1Gbit)"
    )
    hop = "latency of a message between two ranks (default: 50us)"
    parser.add_argument("--latency", type=duration, help=hop)
    works = (
        "time of the backward pass, as 80ms; required with --parameters (default of a --model: "
        "that of 32 samples at 10 Tflop/s)"
    )
    parser.add_argument("--backward", type=duration, help=works)
    rest = (
        "time of the rest of a step, without the optimizer's (default: half of the backward pass)"
    )
    parser.add_argument("--forward", type=duration, help=rest)
    update = (
        "time of the optimizer's step; in sparse steps, a compressor with optimizer= replaces it, "
        f"and takes {UPDATE_PART:g} of its time (default: none)"
    )
    parser.add_argument("--optimizer-step", type=duration, help=update)
    stands = "densities to compare (default: 0.001 0.01, or the density for --steps)"
    parser.add_argument("--density", type=float, nargs="+", help=stands)
    wants = (
        "number of training steps, from which the needed density is computed; sparse steps then "
        "send signs, as with steps= of a compressor"
    )
    parser.add_argument("--steps", type=count, metavar="N", help=wants)
    sums = "the library with which Horovod sums dense gradients (default: gloo)"
    parser.add_argument("--operations", choices=HALF_SUM_S, help=sums)
    single = "each rank has a single core, which Horovod's own thread shares"
    parser.add_argument("--one-core", action="store_true", help=single)
    parser.add_argument("--json", action="store_true", help="print all numbers, as JSON")


def run(options: argparse.Namespace) -> int:
    setting, assumed = _described(options)
    wanted = None if options.steps is None else density_for(options.steps)
    densities = options.density or (DENSITIES if wanted is None else (wanted,))
    steps = setting.steps(densities)
    chosen = choose(steps)
    told = chosen if chosen.way == "sparse" else min(steps[2:], key=lambda each: each.step_s)
    paying = setting.paying_bit_s(densities)
    slowest, quickest = (paying[0], paying[-1]) if paying else (0.0, 0.0)
    sentence = " ".join([_sentence(chosen, told, steps), _range(slowest, quickest)])
    if wanted is not None:
        sentence += " " + _accuracy(options.steps, wanted, densities)
    if options.json:
        found = {
            "choice": chosen.way,
            "density": chosen.density,
            "density_wanted": wanted,
            "step_s": chosen.step_s,
            "steps": [asdict(each) for each in steps],
            "crossover_bit_s": None if quickest >= BANDWIDTHS[-1] else quickest,
            "pays_from_bit_s": None if slowest <= BANDWIDTHS[0] else slowest,
            "sentence": sentence,
            "assumed": assumed,
        }
        print(json.dumps(found, indent=1))
        return 0
    rows = [
        [
            "advised" if each == chosen else "",
            each.way,
            "" if each.density is None else f"{each.density:g}",
            f"{1e3 * each.step_s:,.1f}",
            f"{1e3 * each.waiting_s:,.1f}",
            f"{each.received_bytes / 1e6:,.2f}",
        ]
        for each in steps
    ]
    headings = ("", "way", "density", "ms a step", "ms waiting", "MB received")
    print(table(headings, rows, ("", "way")))
    print(sentence)
    print("\n".join(["assumed, because no option sets it:", *(f"  {each}" for each in assumed)]))
    return 0


def _described(options: argparse.Namespace) -> tuple[Setting, list[str]]:
    if not 2 <= options.world_size < 2**31:  # Horovod's and MPI's ranks are 32-bit numbers
        raise InvalidOption(
            f"--world-size is {options.world_size}: give 2 ranks or more, below 2**31, because "
            "one rank sends nothing"
        )
    for density in options.density or ():
        check_density(density, "--density")
    if options.model is None and options.backward is None:
        raise InvalidOption(
            "--parameters needs --backward: give the time of your model's backward pass, for "
            "example --backward 80ms"
        )
    model = MODELS.get(options.model) or Model(options.parameters, TENSORS, 0.0)
    backward_s = options.backward or model.backward_s
    forward_s = options.forward or backward_s / 2
    speed = options.bandwidth or BANDWIDTH_BIT_S
    latency_s = options.latency or LATENCY_S
    assumed = {
        "backward": f"the backward pass takes {1e3 * backward_s:.1f} ms, as for 32 samples at 10 "
        "Tflop/s (--backward)",
        "forward": f"the rest of a step takes {1e3 * forward_s:.1f} ms, half of the backward pass "
        "(--forward)",
        "bandwidth": f"a rank's link has {speed / 1e9:g} Gbit/s (--bandwidth)",
        "operations": "Horovod sums with Gloo, which needs 14 ns to sum a float16 (--operations)",
        "latency": f"a message between ranks takes {1e6 * latency_s:g} us (--latency)",
    }
    told = [words for name, words in assumed.items() if getattr(options, name) is None]
    if options.model is None:
        told.append(f"the model has {TENSORS} compressed tensors; only --model knows the number")
    told.append("one core of a server's processor selects, while no gradients are computed")
    if not options.one_core:
        told.append("Horovod's own thread has another core (--one-core if it has none)")
    told.append(f"a collective needs {1e3 * CALL_S:g} ms to start")
    signs, ranks = options.steps is not None, options.world_size
    payload = ", signs and their mean magnitude (--steps)" if signs else " and float32 values"
    told.append(f"sparse steps send indices{payload}")
    setting = Setting(
        model, backward_s, forward_s, ranks, speed, latency_s, signs,
        options.operations or "gloo", options.one_core, options.optimizer_step or 0.0,
    )  # fmt: skip
    return setting, told


def _accuracy(steps: int, wanted: float, densities: Sequence[float]) -> str:
    text = (
        f"A training of {steps:,} steps needs density {wanted:.2g}, which a compressor uses if it "
        f"gets steps={steps}. The rule comes from small trainings, and predicted the perplexity of "
        "others with an error of about 5 % (docs/results/accuracy.md)."
    )
    low = [words for words in (too_few(each, steps) for each in densities) if words]
    return " ".join([text, *(f"{words[0].upper()}{words[1:]}." for words in low)])


def _sentence(chosen: Step, told: Step, steps: Sequence[Step]) -> str:
    dense, fp16 = steps[:2]
    both = f"dense {1e3 * dense.step_s:,.1f} ms and fp16 {1e3 * fp16.step_s:,.1f} ms"
    if chosen is told:
        times = min(dense.step_s, fp16.step_s) / told.step_s
        return (
            f"Compress: density {told.density:g} takes {1e3 * told.step_s:,.1f} ms a step, "
            f"{both}: {times:.1f} times as fast as the better of the two."
        )
    return (
        f"Compression will not help here: use {chosen.way}. Density {told.density:g} takes "
        f"{1e3 * told.step_s:,.1f} ms a step, {both}; {1e3 * chosen.waiting_s:,.1f} ms of "
        f"{chosen.way}'s step are spent waiting for the network."
    )


def _range(slowest: float, quickest: float) -> str:
    if not quickest:
        return "No bandwidth of 1 Mbit/s or more changes that."
    bounds = [f"above about {slowest / 1e9:.2g} Gbit/s"] if slowest > BANDWIDTHS[0] else []
    if quickest < BANDWIDTHS[-1]:
        bounds.append(f"below about {quickest / 1e9:.2g} Gbit/s")
    return f"Compression pays {' and '.join(bounds) or 'at any bandwidth up to 1 Tbit/s'}."
