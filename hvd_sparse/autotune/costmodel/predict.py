"""How long a step takes: dense, fp16, and compressed in any way that a configuration describes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Callable

import numpy as np

from hvd_sparse.autotune.costmodel.costs import DENSE, FP16, Line, Work, one_after_another
from hvd_sparse.autotune.costmodel.instance import Instance, Plan
from hvd_sparse.autotune.costmodel.network import Setting
from hvd_sparse.autotune.costmodel.planner import best
from hvd_sparse.autotune.costmodel.profile import Profile
from hvd_sparse.autotune.costmodel.timeline import evaluate
from hvd_sparse.checks import count_from_density
from hvd_sparse.collectives.topology import Placement
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.wire.message import overhead_bytes
from hvd_sparse.errors import InvalidOption
from hvd_sparse.exchanges._economy import DENSE_BYTES, dense_inbound, is_dense_cheaper
from hvd_sparse.exchanges.contract import Exchange

LONG_RUN = 10**9
"""A step behind every warm-up."""

Strategy = Callable[[Instance], Plan]


@dataclass(frozen=True)
class Prediction:
    """A step, as far as the model goes; seconds.

    Attributes
    ----------
    step_s : all of it
    compute_s : forward pass, backward pass, optimizer, selecting and encoding
    waiting_s : communication that nothing hides
    settle_s : making dense gradients of what arrived
    plan : where groups end, among the layers that travel this way, in the order of the backward
        pass
    goes_dense : so dense that a compressor goes dense by itself (``allow_dense``), and the times
        are of that
    """

    step_s: float
    compute_s: float
    waiting_s: float
    settle_s: float
    plan: Plan
    goes_dense: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def dense_instance(
    profile: Profile, setting: Setting, value_bytes: int = DENSE_BYTES, cast_s: float = 0.0
) -> Instance:
    """All gradients through Horovod's allreduce.

    value_bytes : 4, or 2 for Horovod's fp16 compression
    cast_s : seconds an entry that a cast takes, before and after; by default nothing, in favour of
        fp16
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
    """A step of Horovod without us, its tensors fused in the best way there is: in favour of
    dense."""
    instance = dense_instance(profile, setting, value_bytes, cast_s)
    settle_s = cast_s * profile.numel + setting.work.dense_collect_s * len(profile.layers)
    return _prediction(profile.other_s, instance, strategy(instance), settle_s, 0.0)


def exchange_of(configuration: Configuration, profile: Profile, setting: Setting) -> Exchange:
    """The exchange that runs: the one that ``auto`` chooses, where it is asked."""
    numel = profile.compressed.numel
    chosen: Exchange = configuration.exchange.resolve(
        configuration, setting.placement, numel, len(profile.layers)
    )
    return chosen


def sparse_instance(
    profile: Profile,
    configuration: Configuration,
    setting: Setting,
    *,
    densities: Sequence[float] | None = None,
    per_tensor: bool = True,
) -> Instance:
    """The compressed layers, by the formulas that exchange and codec declare.

    Parameters
    ----------
    profile : all layers; those that are not compressed only take their time
    densities : of every compressed layer, in the order of the backward pass; by default the
        configuration's behind any warm-up
    per_tensor : select from each tensor when it is ready; else from the group as one vector

    Raises
    ------
    InvalidOption   for a method that is told no density, without ``densities``

    Notes
    -----
    Of an exchange of several collectives the first begins with the group, the others when the
    backward pass is over, as the driver runs them.  Exchanges declare what all of them bring
    together; each is taken to bring the same, but for those that sum first, whose first collective
    stays inside the nodes.
    """
    compressed = profile.compressed
    exchange, placement = exchange_of(configuration, profile, setting), setting.placement
    wanted = (
        densities if densities is not None else [density_of(configuration)] * len(compressed.layers)
    )
    if len(wanted) != len(compressed.layers):
        raise InvalidOption(
            f"{len(wanted)} densities for {len(compressed.layers)} compressed layers: one for each"
        )
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
    headers = overhead_bytes(1) * (placement.world_size - 1)
    lines = [_with_headers(setting.wire.line(kind, placement), headers) for kind in kinds]
    first, late, share = lines[0], one_after_another(lines[1:]), 1.0
    if exchange.sums_first:
        first = setting.wire.local_line(placement)
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
    """A step of a compressor; parameters as ``sparse_instance`` has them.

    Behind the messages come an allreduce of all small tensors, one of the carriers, which are
    float64 and so not fused with them, and the sums: later than in a real step, where they overlap.
    """
    if densities is None and goes_dense(profile, configuration, setting):
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


def density_of(configuration: Configuration) -> float:
    """The density behind any warm-up; InvalidOption for a method that is told none."""
    density = configuration.density(LONG_RUN)
    if density is None:
        raise InvalidOption(
            f"{configuration.selector.id} is told no density: how much it sends cannot be predicted"
        )
    return density


def inbound_bytes(
    configuration: Configuration,
    exchange: Exchange,
    placement: Placement,
    numel: int,
    density: float,
) -> float:
    """What a node receives of a tensor in a step; at least one entry is sent."""
    real = count_from_density(numel, density) / numel
    entry_bytes = configuration.codec.entry_bytes(numel, density)
    return float(exchange.inbound(real, entry_bytes, placement)) * numel


def by_collective(
    exchange: Exchange, collectives: int, placement: Placement, numel: Any, inbound: Any
) -> tuple[Any, Any]:
    """Bytes that the first collective brings, and those behind it: the same each, but for exchanges
    that sum first.

    numel, inbound : of a tensor, or float64 [tensors]: entries, and what all collectives bring by
        ``inbound_bytes``
    """
    if exchange.sums_first:
        return numel * exchange.inside(placement), inbound
    first = inbound / collectives
    return first, inbound - first


def goes_dense(profile: Profile, configuration: Configuration, setting: Setting) -> bool:
    """Whether a compressor would go dense by itself, judged by a tensor of typical size."""
    if not configuration.allow_dense:
        return False
    compressed = profile.compressed
    density = density_of(configuration)
    entry_bytes = configuration.codec.entry_bytes(
        compressed.numel // len(compressed.layers), density
    )
    exchange = exchange_of(configuration, profile, setting)
    return is_dense_cheaper(exchange, density, entry_bytes, setting.placement)


def _before_s(profile: Profile, selecting_s: Iterable[float], submit_s: float) -> list[float]:
    """Before each compressed layer: the backward pass, where it holds up selecting, and handing
    over what is not compressed."""
    selecting = iter(selecting_s)
    busy_s = [float(next(selecting)) if layer.is_sparse else submit_s for layer in profile.layers]
    handing_s = [0.0 if layer.is_sparse else submit_s for layer in profile.layers]
    return profile.folded(
        [idle_s + own_s for idle_s, own_s in zip(profile.idle_s(busy_s), handing_s)]
    )


def _again_s(
    instance: Instance, configuration: Configuration, exchange: Exchange, setting: Setting
) -> float:
    """What exchanges that sum between their collectives decode, add and encode once more, at each
    but the last: as far as that was not measured with them."""
    if not exchange.sums_again:
        return 0.0
    work, sent = setting.work, float(np.sum(instance.sent))
    ranks = setting.placement.world_size
    rounds = len(exchange.phases(configuration.selector, ranks)) - 1
    if exchange.id in work.exchanges:
        measured_on = getattr(setting.wire, "world_size", None) or ranks
        rounds -= len(exchange.phases(configuration.selector, measured_on)) - 1
    return max(0, rounds) * ((work.sent_s + work.received_s) * sent + work.tensor_s * instance.size)


def received_entries(
    instance: Instance, configuration: Configuration, exchange: Exchange, setting: Setting
) -> float:
    """Entries that a rank adds up in a step: those that came over the wire, by their bytes, and its
    own."""
    nbytes = float(np.sum(instance.late_nbytes)) + (
        0.0 if exchange.sums_first else float(np.sum(instance.nbytes))
    )
    sent = float(np.sum(instance.sent))
    density = max(sent / max(float(np.sum(instance.numel)), 1.0), 1e-9)
    typical = int(np.sum(instance.numel)) // instance.size
    return float(
        nbytes / configuration.codec.entry_bytes(max(1, typical), min(1.0, density)) + sent
    )


def _with_headers(line: Line, headers: float) -> Line:
    """Every rank's message has one, however little it holds."""
    return Line(line.start_s + line.byte_s * headers, line.byte_s)


def _prediction(
    other_s: float, instance: Instance, plan: Plan, settle_s: float, carriers_s: float
) -> Prediction:
    timeline = evaluate(instance, plan)
    compute_s = other_s + timeline.compute_s
    waiting_s = timeline.waiting_s + carriers_s
    return Prediction(compute_s + waiting_s + settle_s, compute_s, waiting_s, settle_s, plan)
