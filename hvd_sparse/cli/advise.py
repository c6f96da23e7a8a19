"""The command ``hvd-sparse advise``: predicts whether compression makes training steps faster. The
prediction is arithmetic (``Setting.step``); nothing is measured.

The assumptions are: a collective starts after one cycle of Horovod and the latencies of all hops in
a ring of the ranks. It then overlaps with the backward pass, which selecting and encoding prolong.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from hvd_sparse.checks import check_density
from hvd_sparse.codecs.sign_mean import SignMean
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.summary import table
from hvd_sparse.methods.builder import density_for, too_few


class Model(NamedTuple):
    """A model: entries of all gradients, compressed tensors, and seconds of a backward pass."""

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
CALL_S = 1e-3
"""Seconds until the ranks have agreed on a collective, about one cycle of Horovod."""
TENSOR_S, ENTRY_S, SENT_S = 7e-5, 1.0e-9, 20e-9
DENSE_S, RECEIVED_S = 0.6e-9, 7e-9
"""``TENSOR_S``, ``ENTRY_S`` and ``SENT_S`` are the seconds of selecting and encoding per tensor,
per entry and per sent entry. ``DENSE_S`` and ``RECEIVED_S`` are the seconds of making the dense
result per entry and per received entry. Measured with ``ldte_bs``, ``index_value``, the engine
numba and one thread of an Intel Xeon with AVX-512 (docs/results/selecting.md), except ``ENTRY_S``
and ``DENSE_S``. These were 0.66 and 0.37 ns there, and up to 5 ns together in trainings on two
machines. With the values here, no prediction of these trainings is wrong by more than 22 %
(docs/results/trainings.md)."""
ENTRY_BYTES = 8
"""Bytes of an entry that "index_value" sends."""
HALF_SUM_S = {"gloo": 14e-9, "mpi": 0.0, "nccl": 0.0}
"""Additional seconds to cast and sum one entry as float16 in place of float32, for each library
that Horovod may use for the sum (docs/results/trainings.md)."""
ONE_CORE_S, SHARED_SUM_S = 12e-3, 4.1e-9
"""If a rank has a single core: additional seconds of a step in which Horovod's own thread uses the
core, and seconds in which this thread copies and sums an entry of a dense gradient. Measured with
Gloo (docs/results/trainings.md)."""
UPDATE_PART = 0.4
"""Part of the optimizer's step that a sparse step still takes: the time in which a compressor with
``optimizer=`` computes the updates. In trainings with AdamW, it was between 0.25 and 0.6
(docs/results/trainings.md)."""
MARGIN = 1.05
"""Sparse steps must be faster than all others by this factor: dense gradients keep the accuracy."""
AS_GOOD = 1.02
"""Steps whose times differ by at most this factor count as equally fast; of these, the step that
sends most is advised."""
BANDWIDTHS = tuple(10 ** (6 + i / 100) for i in range(601))
"""Bandwidths in bit/s, from 1 Mbit/s to 1 Tbit/s, at which ``Setting.paying_bit_s`` predicts."""

PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
BITS = {
    prefix + unit: factor
    for prefix, factor in PREFIXES.items()
    for unit in ("bit", "bit/s", "bps", "")
    if prefix + unit
}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def _number(text: str, units: Mapping[str, float], example: str) -> float:
    """Return the number in ``text`` times the factor of its unit."""
    pattern = rf"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?) ?({'|'.join(units)})"
    found = re.fullmatch(pattern, text.strip().lower())
    value = float(found[1]) * units[found[2]] if found else math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used: give, for example, {example}")
    return value


bandwidth = partial(_number, units=BITS, example="100Mbit or 1Gbit")
duration = partial(_number, units=SECONDS, example="50us or 80ms")


def count(text: str) -> int:
    return max(1, round(_number(text, {**PREFIXES, "b": 1e9}, "25M or 1.3B")))


@dataclass(frozen=True)
class Step:
    """Prediction of a training step whose gradients are sent in one way: "dense", "fp16" or
    "sparse"."""

    way: str
    density: float | None
    step_s: float
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
        if density is None:
            passed = 2 * others / self.world_size * numel
            nbytes, hops = passed * (4 if way == "dense" else 2), 2 * others
            works_s = SHARED_SUM_S * passed if self.one_core else 0.0
            settles_s = self.update_s
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
        sends_s = max(self.model.backward_s + works_s, nbytes * 8 / self.bandwidth_bit_s)
        step_s = self.forward_s + start_s + sends_s + settles_s
        return Step(way, density, step_s + (ONE_CORE_S if self.one_core else 0.0), nbytes)

    def steps(self, densities: Sequence[float]) -> list[Step]:
        found = [self.step("dense"), self.step("fp16")]
        return found + [self.step("sparse", density) for density in densities]

    def paying_bit_s(self, densities: Sequence[float]) -> list[float]:
        """Return the bandwidths, in ascending order, at which ``choose`` recommends compression,
        of ``BANDWIDTHS`` and this setting's. The result is one range without gaps. Under Gloo,
        dense steps can be faster above this range, and fp16 steps below it."""
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
    parser.description = "Predict the time of a step by arithmetic; nothing is measured or sent."
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", choices=MODELS, help="a model whose size is known")
    which.add_argument("--parameters", type=count, help="size of your model, as 25M or 1.3B")
    add = parser.add_argument
    add("--world-size", type=int, required=True, metavar="N", help="number of ranks")
    link = "bandwidth of a rank's link (default: %(default)s)"
    add("--bandwidth", type=bandwidth, default="1Gbit", help=link)
    hop = "latency of a message between two ranks (default: %(default)s)"
    add("--latency", type=duration, default="50us", help=hop)
    works = "time of the backward pass (default of a --model: that of 32 samples at 10 Tflop/s)"
    add("--backward", type=duration, help=works)
    rest = "time of the rest of a step, without the optimizer's (default: half of --backward)"
    add("--forward", type=duration, help=rest)
    update = f"time of the optimizer's step; sparse steps take {UPDATE_PART:g} of it (default: 0s)"
    add("--optimizer-step", type=duration, default=0.0, help=update)
    stands = "densities to compare (default: 0.001 0.01, or the density for --steps)"
    add("--density", type=float, nargs="+", help=stands)
    wants = "number of training steps, which sets density and codec, as steps= of a compressor does"
    add("--steps", type=count, metavar="N", help=wants)
    sums = "the library with which Horovod sums dense gradients (default: %(default)s)"
    add("--operations", choices=HALF_SUM_S, default="gloo", help=sums)
    add("--one-core", action="store_true", help="Horovod's own thread shares a rank's only core")


def run(options: argparse.Namespace) -> int:
    setting = _setting_of(options)
    wanted = DENSITIES if options.steps is None else [density_for(options.steps)]
    densities = options.density or wanted
    steps = setting.steps(densities)
    chosen = choose(steps)
    rows = [
        [
            "advised" if each is chosen else "",
            each.way,
            "" if each.density is None else f"{each.density:g}",
            f"{1e3 * each.step_s:,.1f}",
            f"{each.received_bytes / 1e6:,.2f}",
        ]
        for each in steps
    ]
    print(table(("", "way", "density", "ms a step", "MB received"), rows, ("", "way")))
    print(_advice(chosen, steps, setting.paying_bit_s(densities)))
    told = [too_few(each, options.steps) for each in densities if options.steps is not None]
    print(*(f"Accuracy: {each}." for each in told if each), _assumed(setting), sep="\n")
    return 0


def _setting_of(options: argparse.Namespace) -> Setting:
    if not 2 <= options.world_size < 2**31:  # Horovod's and MPI's ranks are 32-bit numbers
        raise InvalidOption(
            f"--world-size is {options.world_size}: give 2 ranks or more, and fewer than 2**31"
        )
    for density in options.density or ():
        check_density(density, "--density")
    model = MODELS.get(options.model) or Model(options.parameters, TENSORS, 0.0)
    backward_s = options.backward or model.backward_s
    if not backward_s:
        raise InvalidOption(
            "--parameters needs --backward: give the time of your model's backward pass, as 80ms"
        )
    return Setting(
        model._replace(backward_s=backward_s),
        options.forward or backward_s / 2,
        options.world_size,
        options.bandwidth,
        options.latency,
        signs=options.steps is not None,
        operations=options.operations,
        one_core=options.one_core,
        update_s=options.optimizer_step,
    )


def _advice(chosen: Step, steps: Sequence[Step], paying: Sequence[float]) -> str:
    """Return which step is recommended, and at which bandwidths, ``paying``, a sparse one is."""
    text = f"Compression will not help here: use {chosen.way}."
    if chosen.way == "sparse":
        times = min(each.step_s for each in steps[:2]) / chosen.step_s
        text = f"Compress: steps are {times:.1f} times as fast as the better of dense and fp16."
    if not paying:
        return f"{text} No bandwidth of 1 Mbit/s or more changes that."
    bounds = [f"above about {paying[0] / 1e9:.2g} Gbit/s"] if paying[0] > BANDWIDTHS[0] else []
    if paying[-1] < BANDWIDTHS[-1]:
        bounds.append(f"below about {paying[-1] / 1e9:.2g} Gbit/s")
    return f"{text} Compression pays {' and '.join(bounds) or 'at any bandwidth up to 1 Tbit/s'}."


def _assumed(setting: Setting) -> str:
    times_s = setting.model.backward_s, setting.forward_s, setting.update_s, CALL_S
    backward_ms, forward_ms, update_ms, call_ms = (1e3 * each for each in times_s)
    core = "a core that it shares" if setting.one_core else "a core of its own"
    payload = ", signs and one mean magnitude (--steps)" if setting.signs else " and float32 values"
    return f"""The prediction assumes:
  The backward pass takes {backward_ms:g} ms (--backward), the optimizer's step {update_ms:g} ms
  (--optimizer-step), and the rest of a step {forward_ms:g} ms (--forward).
  A rank's link has {setting.bandwidth_bit_s / 1e9:g} Gbit/s (--bandwidth), and a message between
  ranks takes {1e6 * setting.latency_s:g} us (--latency). A collective starts after {call_ms:g} ms.
  Horovod sums with {setting.operations} (--operations), in a thread with {core} (--one-core).
  The model has {setting.model.tensors} compressed tensors. One core of a server's processor
  selects their entries, while no gradients are computed.
  Sparse steps send indices{payload}."""
