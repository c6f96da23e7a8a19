"""Predictions of a step: dense, fp16, and compressed by any configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from hvd_sparse.autotune.costmodel.costs import (
    DENSE,
    FP16,
    Line,
    Work,
    one_after_another,
)
from hvd_sparse.autotune.costmodel.instance import Instance, Plan
from hvd_sparse.autotune.costmodel.network import Setting
from hvd_sparse.autotune.costmodel.planner import best
from hvd_sparse.autotune.costmodel.profile import Profile
from hvd_sparse.autotune.costmodel.timeline import evaluate
from hvd_sparse.autotune.costmodel.volumes import (
    by_collective,
    density_of,
    exchange_of,
    inbound_bytes,
    received_entries,
)
from hvd_sparse.checks import count_from_density
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.wire.message import overhead_bytes
from hvd_sparse.errors import InvalidOption
from hvd_sparse.exchanges.contract import DENSE_BYTES, Exchange, dense_inbound

Strategy = Callable[[Instance], Plan]
"""A function that makes a plan for an instance."""


@dataclass(frozen=True)
class Prediction:
    """The predicted seconds of a step.

    Attributes
    ----------
    step_s : seconds of all of it
    compute_s : seconds of forward pass, backward pass, optimizer, selecting and encoding
    waiting_s : seconds of communication that nothing hides
    settle_s : seconds in which dense gradients are made of the received messages
    plan : ends of the groups, among the layers that are sent so, in the order of the backward pass
    goes_dense : the density is so high that a compressor goes dense by itself (``allow_dense``),
        and the seconds are those of dense
    """

    step_s: float
    compute_s: float
    waiting_s: float
    settle_s: float
    plan: Plan
    goes_dense: bool = False

    def to_dict(self) -> dict[str, object]:
        """Return all of it, JSON-able."""
        return asdict(self)


def dense_instance(
    profile: Profile, setting: Setting, value_bytes: int = DENSE_BYTES, cast_s: float = 0.0
) -> Instance:
    """Return the instance of a step in which Horovod's allreduce sums all gradients.

    Parameters
    ----------
    profile : the model's layers
    setting : ranks and costs
    value_bytes : bytes of an entry: 4, or 2 with Horovod's fp16 compression
    cast_s : seconds of a cast for each entry, before and after; 0 by default, in favour of fp16
    """
    numel = np.array([layer.numel for layer in profile.layers])
    submit_s = setting.work.dense_submit_s
    backward_s = (
        np.asarray(profile.idle_s((submit_s + cast_s * numel).tolist()), np.float64) + submit_s
    )
    nbytes = numel * dense_inbound(setting.placement) * value_bytes / DENSE_BYTES
    wire = setting.wire.line(DENSE if value_bytes == DENSE_BYTES else FP16, setting.placement)
    return Instance(backward_s, numel, np.zeros(len(numel)), nbytes, wire, Work(entry_s=cast_s))


def dense_step(
    profile: Profile,
    setting: Setting,
    value_bytes: int = DENSE_BYTES,
    cast_s: float = 0.0,
    strategy: Strategy = best,
) -> Prediction:
    """Predict a step of Horovod without this package.

    Its tensors are fused in the best way there is, in favour of dense.  The parameters are those of
    ``dense_instance``.

    Parameters
    ----------
    strategy : makes the plan
    """
    instance = dense_instance(profile, setting, value_bytes, cast_s)
    settle_s = cast_s * profile.numel + setting.work.dense_collect_s * len(profile.layers)
    return _prediction(profile.other_s, instance, strategy(instance), settle_s, 0.0)


def sparse_instance(
    profile: Profile,
    configuration: Configuration,
    setting: Setting,
    *,
    densities: Sequence[float] | None = None,
    per_tensor: bool = True,
) -> Instance:
    """Return the instance of the compressed layers, by the formulas of exchange and codec.

    Parameters
    ----------
    profile : all layers; those that are not compressed only take their time
    configuration : the compressor's
    setting : ranks and costs
    densities : of every compressed layer, in the order of the backward pass; by default the
        configuration's behind any warm-up
    per_tensor : select from each tensor when it is ready; else from the group as one vector

    Raises
    ------
    InvalidOption
        If the method takes no density and ``densities`` is not given, or has another length.

    Notes
    -----
    Of an exchange with several collectives the first begins with the group, and the others when the
    backward pass is over, as the driver runs them.  Exchanges declare the bytes of all of them
    together; each is taken to bring the same number.  Exchanges that sum first are different: their
    first collective stays inside the nodes.
    """
    compressed = profile.compressed
    exchange, placement = exchange_of(configuration, profile, setting), setting.placement
    wanted = (
        densities
        if densities is not None
        else [density_of(configuration, spec) for spec in compressed.specs]
    )
    if len(wanted) != len(compressed.layers):
        raise InvalidOption(
            f"{len(wanted)} densities for {len(compressed.layers)} compressed layers: one for each"
        )
    # float64, as products with seconds and bytes follow; entries are far below 2**53
    numel = np.array([layer.numel for layer in compressed.layers], np.float64)
    sent = np.array(
        [count_from_density(layer.numel, d) for layer, d in zip(compressed.layers, wanted)],
        np.float64,
    )
    inbound = np.array(
        [
            inbound_bytes(configuration, exchange, placement, x.numel, d)
            for x, d in zip(compressed.layers, wanted)
        ]
    )
    kinds = exchange.phases(configuration.selector, placement.world_size)
    # every other rank's message has a header of its own
    headers = overhead_bytes(1) * (placement.world_size - 1)
    lines = [_with_headers(setting.wire.line(kind, placement), headers) for kind in kinds]
    first, late, share = lines[0], one_after_another(lines[1:]), 1.0
    if exchange.sums_first:
        first = setting.wire.local_line(placement)
        # the ranks of a node divide its sum among them, and select each from their part
        share = placement.node_count / placement.world_size
    first_nbytes, late_nbytes = by_collective(exchange, len(kinds), placement, numel, inbound)
    work = setting.work.of(exchange.id)
    selecting_s = work.select_s(numel * share) + work.sent_s * sent * share
    backward_s = np.array(_before_s(profile, selecting_s, work.submit_s))
    return Instance(
        backward_s,
        numel * share,
        sent * share,
        first_nbytes,
        first,
        work,
        per_tensor,
        late,
        late_nbytes,
    )


def sparse_step(
    profile: Profile,
    configuration: Configuration,
    setting: Setting,
    *,
    densities: Sequence[float] | None = None,
    per_tensor: bool = True,
    strategy: Strategy = best,
) -> Prediction:
    """Predict a step of a compressor.  The parameters are those of ``sparse_instance``.

    Behind the messages come an allreduce of all small tensors, an allreduce of the carriers, which
    are float64 and so not fused with them, and the sums.  In a real step these overlap.

    Parameters
    ----------
    strategy : makes the plan
    """
    if densities is None and goes_dense(profile, configuration, setting):
        # a compressor that goes dense by itself sends float32, never fp16
        dense = dense_step(profile, setting)
        return Prediction(**{**vars(dense), "goes_dense": True})
    instance = sparse_instance(
        profile, configuration, setting, densities=densities, per_tensor=per_tensor
    )
    numel = profile.compressed.numel
    small = (profile.numel - numel) * dense_inbound(setting.placement)
    summing = setting.wire.line("allreduce", setting.placement)
    carriers_s = float(summing(0.0) + (summing(small) if small else 0.0))
    exchange = exchange_of(configuration, profile, setting)
    received = received_entries(instance, configuration, exchange, setting)
    work = setting.work.of(exchange.id)
    settle_s = work.settle_s(numel, received, instance.size) + _again_s(
        instance, configuration, exchange, setting
    )
    settle_s += work.collect_s * (len(profile.layers) - instance.size)
    return _prediction(profile.other_s, instance, strategy(instance), settle_s, carriers_s)


def goes_dense(profile: Profile, configuration: Configuration, setting: Setting) -> bool:
    """Tell whether a compressor would go dense by itself, by a tensor of average size."""
    if not configuration.allow_dense:
        return False
    compressed = profile.compressed
    density = density_of(configuration)
    entry_bytes = configuration.codec.entry_bytes(
        compressed.numel // len(compressed.layers), density
    )
    exchange = exchange_of(configuration, profile, setting)
    return exchange.is_dense_cheaper(density, entry_bytes, setting.placement)


def _before_s(profile: Profile, selecting_s: Iterable[float], submit_s: float) -> list[float]:
    """Return the seconds before each compressed layer is selected from.

    They are those of the backward pass, where it holds up selecting, and of submitting the tensors
    that are not compressed.
    """
    selecting = iter(selecting_s)
    busy_s = [float(next(selecting)) if layer.is_sparse else submit_s for layer in profile.layers]
    submitting_s = [0.0 if layer.is_sparse else submit_s for layer in profile.layers]
    return profile.folded(
        [idle_s + own_s for idle_s, own_s in zip(profile.idle_s(busy_s), submitting_s)]
    )


def _again_s(
    instance: Instance, configuration: Configuration, exchange: Exchange, setting: Setting
) -> float:
    """Return the seconds of decoding, summing and encoding between an exchange's collectives.

    The part that was measured with the exchange's own costs is left out.
    """
    if not exchange.sums_again:
        return 0.0
    work, sent = setting.work, float(np.sum(instance.sent))
    ranks = setting.placement.world_size
    rounds = len(exchange.phases(configuration.selector, ranks)) - 1
    if exchange.id in work.exchanges:
        measured_on = getattr(setting.wire, "world_size", None) or ranks
        # what was measured has these in it already
        rounds -= len(exchange.phases(configuration.selector, measured_on)) - 1
    return max(0, rounds) * ((work.sent_s + work.received_s) * sent + work.tensor_s * instance.size)


def _with_headers(line: Line, headers: float) -> Line:
    """Return the cost of messages with a header each, however little they hold."""
    return Line(line.start_s + line.byte_s * headers, line.byte_s)


def _prediction(
    other_s: float, instance: Instance, plan: Plan, settle_s: float, carriers_s: float
) -> Prediction:
    timeline = evaluate(instance, plan)
    compute_s = other_s + timeline.compute_s
    waiting_s = timeline.waiting_s + carriers_s
    return Prediction(compute_s + waiting_s + settle_s, compute_s, waiting_s, settle_s, plan)
