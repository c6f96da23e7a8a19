"""Configuration of a compressor: its selector, memory, codec, exchange and schedule (its parts),
and the options that all methods have."""

from __future__ import annotations

import contextlib
import hashlib
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

from hvd_sparse.checks import (
    check_choice,
    check_number,
    check_truth,
    check_whole,
    count_from_density,
    hint_of,
    is_number,
)
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.collectives.contract import Placement, in_nodes_of, is_elastic
from hvd_sparse.composition import (
    PLANNED,
    Groups,
    check_composition,
    check_exchange,
    check_gathered,
    check_groups,
    check_hiding,
    check_measured,
    check_select_over,
)
from hvd_sparse.density_rule import Density, DensityRule
from hvd_sparse.errors import InvalidOption
from hvd_sparse.exchanges.auto import Auto
from hvd_sparse.exchanges.contract import Exchange
from hvd_sparse.kernels.engines import works_on_devices
from hvd_sparse.memories.contract import Memory
from hvd_sparse.registry import (
    CODECS,
    ENGINES,
    EXCHANGES,
    MEMORIES,
    SCHEDULES,
    SELECTORS,
    configuration,
)
from hvd_sparse.schedules.constant import Constant
from hvd_sparse.schedules.contract import LONG_RUN, UNKNOWN_DENSITY, Schedule
from hvd_sparse.schedules.learning_rate import LearningRate
from hvd_sparse.selectors.contract import Selector
from hvd_sparse.telemetry.contract import Writer, Writers, resolve_writers
from hvd_sparse.types import Option, Pace, Report, TensorSpec
from hvd_sparse.wire.frame import crc32
from hvd_sparse.wire.message import capacity

PARTS = {
    "selector": SELECTORS,
    "memory": MEMORIES,
    "codec": CODECS,
    "exchange": EXCHANGES,
    "schedule": SCHEDULES,
}
STAGES: Mapping[str, tuple[Callable[[Option], bool], str]] = {
    "rollback": (operator.not_, "False updates the residual in place on the host"),
    "select_over": (lambda chosen: chosen == "group", "'group' joins vectors on the host"),
    "check_replicas_every": (bool, "reads results on the host"),
    "telemetry": (bool, "measures residuals on the host"),
    "engine": (lambda engine: not works_on_devices(engine), "works on arrays on the host"),
}
"""Common options that can cause gradients to be copied to the host. Each has a function that
returns whether a value of the option does this, and the reason."""

HOST_WIRE, DEVICE_WIRE = "host", "device"
WIRES = ("auto", HOST_WIRE, DEVICE_WIRE)
"""Choices of the option ``wire``."""

TAKEN_BEFORE = ("density", "steps", "optimizer", "scheduler", "grad_scaler", "process_set")
"""Options of the methods that are not in ``Configuration``, for the error about unknown options."""

LOCAL = {"name", "engine", "timeout_s", "telemetry", "telemetry_every", "wire"}
"""Options that may differ between a compressor and a saved state. They may also differ between
ranks, except for the name and the wire that is in use."""

MOST_DENSITIES = 1024
"""Largest number of densities for which the selector and the codec are cached."""


class StepParts:
    """The selector and the codec for one tensor in one step, at the tensor's density.

    density : the tensor's density; None if the selector takes no density
    sends_accumulated : whether the sent values equal the accumulated values bit for bit
    row_body : number of the byte format in which compiled kernels can write entries for this codec
        (see ``kernels.rows``); 0 if the kernels do not support the codec or the selector
    """

    def __init__(self, density: float | None, selector: Selector, codec: Codec) -> None:
        self.density, self.selector, self.codec = density, selector, codec
        self.is_exact = codec.is_exact
        self.sends_accumulated = codec.is_exact and not selector.changes_values
        self.row_body = 0 if selector.changes_values else codec.row_body


@dataclass(frozen=True)
class Configuration:
    """A compressor's five parts and common options (see ``Builder``), immutable and comparable."""

    selector: Selector
    memory: Memory
    codec: Codec
    exchange: Exchange
    schedule: Schedule | None
    min_numel: int = 1024
    compress_1d: bool = False
    rollback: bool = True
    groups: Groups = None
    select_over: str = "tensor"
    max_gathered_bytes: int | None = None
    clip_grad_norm: float | None = None
    allow_dense: bool = True
    on_nonfinite: str = "propagate"
    check_replicas_every: int = 0
    telemetry: Writers = False
    telemetry_every: int = 100
    engine: str | dict[str, object] | None = None
    wire: str = "auto"
    name: str | None = None
    timeout_s: float | None = 600.0

    @classmethod
    def create(
        cls, *, selector: object, schedule: object = None, **options: Option
    ) -> Configuration:
        """Create a configuration. Each part is given as an id, as a mapping ``{"id": ..., option:
        value}`` or as an object.

        Raises
        ------
        UnknownName : no part has this id
        InvalidOption : an option is unknown or invalid, or the parts do not work together

        >>> made = Configuration.create(selector={"id": "ldte_bs", "density": 0.001})
        >>> made.memory.id, made.exchange.id, made.density(step=0)
        ('error_feedback', 'allgather', 0.001)
        """
        if "density" in options:
            raise InvalidOption(
                f"density is {options['density']!r}, and only selectors have this option: with "
                "build, give selector={'id': 'topk', 'density': 0.01}, and leave density out of "
                "methods that choose their own"
            )
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            names = [*known, *TAKEN_BEFORE]
            raise InvalidOption(
                f"unknown option {', '.join(map(repr, unknown))}; the common options are: "
                f"{', '.join(names)}{hint_of(unknown[0], names)}"
            )
        chosen: Selector = SELECTORS.resolve(selector)
        return cls(
            selector=chosen,
            memory=MEMORIES.resolve(options.pop("memory", "error_feedback")),
            codec=CODECS.resolve(options.pop("codec", "index_value")),
            exchange=EXCHANGES.resolve(options.pop("exchange", "allgather")),
            schedule=_schedule_for(getattr(chosen, "density", None), schedule),
            **options,
        )

    def __post_init__(self) -> None:
        check_whole(self.min_numel, "min_numel", 0)
        if self.timeout_s is not None and not (is_number(self.timeout_s) and self.timeout_s > 0):
            raise InvalidOption(
                f"timeout_s is {self.timeout_s!r}: give seconds above 0, or None to wait forever"
            )
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise InvalidOption(f"name is {self.name!r}: give a string of at least one letter")
        if self.engine is not None:
            # Normalize, so that equal choices give equal configurations.
            engine = configuration(ENGINES.resolve(self.engine))
            object.__setattr__(self, "engine", engine if len(engine) > 1 else engine["id"])
        object.__setattr__(self, "groups", check_groups(self.groups))
        check_gathered(self.max_gathered_bytes, self.memory)
        if self.clip_grad_norm is not None:
            check_number(self.clip_grad_norm, "clip_grad_norm", 0)
        check_whole(self.check_replicas_every, "check_replicas_every", 0)
        check_choice(self.on_nonfinite, "on_nonfinite", ("propagate", "raise"))
        check_choice(self.wire, "wire", WIRES)
        check_composition(self.selector, self.memory, self.codec, self.schedule)
        self._check_exchange(self.exchange)
        if self.groups == PLANNED:
            check_measured("groups is 'planned'", self.exchange)
        if self.hides:
            check_measured("density is 'hiding'", self.exchange)
            check_hiding(self.groups, self.select_over)
            if self.clip_grad_norm is not None:
                raise InvalidOption(
                    f"clip_grad_norm is {self.clip_grad_norm}, which waits for all gradients, so "
                    "no message can hide behind the backward pass, as density 'hiding' asks: "
                    "leave one of the two out"
                )
        object.__setattr__(self, "telemetry", resolve_writers(self.telemetry))
        check_whole(self.telemetry_every, "telemetry_every", 1)
        for option in ("compress_1d", "rollback", "allow_dense"):
            check_truth(getattr(self, option), option)

    def _check_exchange(self, exchange: Exchange) -> None:
        check_exchange(
            exchange, self.selector, self.memory, self.codec, self.schedule, self.rollback
        )
        check_select_over(self.select_over, exchange, self.selector)

    def describe(self) -> Report:
        """Return a JSON-serializable mapping of all options, from which ``create`` makes an equal
        configuration. Telemetry writers that are functions are left out."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in PARTS:
            told[name] = None if told[name] is None else configuration(told[name])
        if isinstance(self.telemetry, tuple):
            writers = [each for each in self.telemetry if isinstance(each, Writer)]
            told["telemetry"] = list(map(configuration, writers)) or False
        return told

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the options that must be equal on all ranks."""
        shared = {name: value for name, value in self.describe().items() if name not in LOCAL}
        return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()

    @cached_property
    def checksum(self) -> int:
        """32-bit checksum of ``digest``. Message headers contain it."""
        return crc32(self.digest.encode())

    def is_sparse(self, shape: tuple[int, ...], numel: int) -> bool:
        """Return whether a tensor of this shape is compressed; Horovod allreduces the others."""
        return numel > 0 and numel >= self.min_numel and (self.compress_1d or len(shape) > 1)

    def for_tensors(
        self, specs: Sequence[TensorSpec], measured: Mapping[str, float] | None = None
    ) -> Configuration:
        """Return a copy whose density rule (densities by name, or a function) is replaced by a
        table with the density of each of these tensors. Without a rule, return this configuration.
        Raises InvalidOption if the rule lacks a compressed tensor, or names an unknown tensor.

        measured : densities by tensor name that were measured for ``density="hiding"``. Tensors
            without one get the smallest density. Comparisons ignore measured densities
        """
        rule, selector, schedule = self.rule, self.selector, self.schedule
        if rule is None:
            return self
        if measured is not None:
            rule = replace(rule, table=measured, is_measured=bool(measured))
        compressed = [spec for spec in specs if self.is_sparse(spec.shape, spec.numel)]
        rule = rule.bound(compressed, [spec.key for spec in specs])
        if isinstance(getattr(selector, "density", None), DensityRule):
            selector = replace(selector, density=rule)  # type: ignore[call-arg]
        if isinstance(getattr(schedule, "value", None), DensityRule):
            schedule = replace(schedule, value=rule)  # type: ignore[type-var, misc]
        return replace(self, selector=selector, schedule=schedule)

    @cached_property
    def rule(self) -> DensityRule | None:
        told = (getattr(self.schedule, "value", None), getattr(self.selector, "density", None))
        return next((each for each in told if isinstance(each, DensityRule)), None)

    @property
    def hides(self) -> bool:
        """Whether the run measures the densities (``density="hiding"``)."""
        return self.rule is not None and self.rule.c_max is not None

    def why_staged(self, spec: TensorSpec) -> str:
        """Return the reason why a tensor's gradient is copied from an accelerator to the host;
        empty if it stays on its device."""
        if not self.is_sparse(spec.shape, spec.numel):
            return "they are never compressed (Horovod gets them on the CPU, unless wire='device')"
        for kind in PARTS:
            part = getattr(self, kind)
            if why := getattr(part, "needs_host", ""):  # schedules process no vectors
                return f"{kind} {part.id!r} {why}"
        for option, (stages, why) in STAGES.items():
            if stages(getattr(self, option)):
                return f"{option} {why}"
        return ""

    @property
    def follows_rate(self) -> bool:
        return isinstance(self.schedule, LearningRate)

    def at_step(
        self, step: int, spec: TensorSpec | None = None, pace: Pace | None = None
    ) -> StepParts:
        """Return the selector and the codec for a tensor that has completed ``step`` steps. Two
        calls for equal densities return the same object.

        spec : the tensor; None uses the mean density of all tensors
        pace : the tensor's learning rate; None uses the run's mean rate
        """
        if self.fixed_parts is not None:
            return self.fixed_parts
        schedule = self._schedule_of(spec)
        if pace is not None and isinstance(schedule, LearningRate):
            return self.parts_at(schedule.density_at(pace))
        return self.parts_at(float(schedule.density(step)))

    def _schedule_of(self, spec: TensorSpec | None) -> Schedule:
        assert self.schedule is not None  # without a schedule, the parts are fixed
        if self.rule is None:
            return self.schedule
        key = None if spec is None else spec.key
        made = self._schedules.get(key)
        if made is None:
            density = self.rule.mean if spec is None else self.rule.density_of(spec)
            if density is None:
                raise InvalidOption(
                    f"density is the rule {self.rule!r}, whose mean depends on the tensors: call "
                    "for_tensors(specs) first, as compressors do"
                )
            made = self._schedules[key] = self.schedule.at_density(density)
        return made

    def parts_at(self, density: float | None) -> StepParts:
        made = self._at_density.get(density)
        if made is None:
            selector, codec = self.selector, self.codec
            if density is not None:
                selector, codec = selector.at_density(density), codec.at_density(density)
            if len(self._at_density) >= MOST_DENSITIES:  # for example, a new density at every step
                self._at_density.clear()
            made = self._at_density[density] = StepParts(density, selector, codec)
        return made

    # These caches are not dataclass fields, so that ``==`` and ``describe`` ignore them.
    @cached_property
    def _at_density(self) -> dict[float | None, StepParts]:
        return {}

    @cached_property
    def _schedules(self) -> dict[str | None, Schedule]:
        return {}

    @cached_property
    def fixed_parts(self) -> StepParts | None:
        """The selector and the codec for all steps, if all tensors have one constant density, or
        none has a density; else None."""
        if self.schedule is None:
            return self.parts_at(None)
        if self.rule is not None or not isinstance(self.schedule, Constant):
            return None
        return self.parts_at(self.schedule.density(0))

    def density(
        self, step: int, spec: TensorSpec | None = None, pace: Pace | None = None
    ) -> float | None:
        return self.at_step(step, spec, pace).density

    def goes_dense(
        self,
        spec: TensorSpec,
        step: int,
        world_size: int,
        exchange: Exchange | None = None,
        placement: Placement | None = None,
        pace: Pace | None = None,
    ) -> bool:
        """Return whether a compressed tensor's next step runs dense, which means that Horovod
        allreduces the whole accumulated tensor. All ranks get the same answer. There are three
        reasons: the schedule asks for it; the exchange of the entries would move at least as many
        bytes as the allreduce; or the entries would exceed ``max_gathered_bytes``. With
        ``allow_dense=False``, no step runs dense.

        step : number of steps that the tensor has completed
        exchange : the exchange in use; None for this configuration's own
        placement : the node of every rank; None for one rank per node
        """
        parts = self.at_step(step, spec, pace)
        density = parts.density
        if self.schedule is None or density is None or not self.allow_dense:
            return False
        if density == 1.0 and self.schedule.sends_all_dense:
            return True
        exchange = exchange or self.exchange
        where = in_nodes_of(1, 0, world_size) if placement is None else placement
        # ``max_gathered_bytes`` holds even if a dense allreduce takes longer.
        numel = where.longest_part(spec.numel) if exchange.sums_first else spec.numel
        wanted = count_from_density(numel, density)
        if self.most_entries(wanted, numel, spec, world_size, parts.codec) < wanted:
            return True
        value_bytes = spec.accumulator.itemsize
        entry_bytes = exchange.entry_bytes(self.codec, spec.numel, density, value_bytes)
        return exchange.is_dense_cheaper(density, entry_bytes, where, value_bytes)

    def most_entries(
        self, wanted: int, numel: int, spec: TensorSpec, world_size: int, codec: Codec
    ) -> int:
        """Return how many entries each rank may send, at most ``wanted``, so that the messages of
        all ranks together stay within ``max_gathered_bytes``; 0 if even one entry needs more bytes.
        ``numel`` is the number of entries from which a rank selects: all entries of ``spec``, or
        those of the part that the rank keeps."""
        if self.max_gathered_bytes is None:
            return wanted
        width = spec.accumulator.itemsize
        return capacity(codec, wanted, numel, width, world_size, self.max_gathered_bytes)

    def exchanges(self, placement: Placement) -> list[Exchange]:
        """Return the exchanges from which ``exchange="auto"`` chooses, with their default options.
        They work with this configuration's other parts and with these ranks, and lose no entries.
        In ``shared_index`` all ranks use the indices of one rank, so it is included only if all
        ranks select the same indices. An exchange with a required option is left out."""
        selector = self.selector
        is_common = selector.has_shared_indices or selector.sums_statistics
        # An exchange that sums first sends less only if ranks share a node. It stores parts of the
        # residual on certain ranks, which may change in elastic runs.
        divides = placement.node_count < placement.world_size and not is_elastic()
        fitting = []
        for id in EXCHANGES:
            with contextlib.suppress(InvalidOption):  # also if an exchange has a required option
                exchange: Exchange = EXCHANGES.create(id)
                if isinstance(exchange, Auto) or not exchange.conserves:
                    continue
                if exchange.shares_indices and not is_common:
                    continue
                if exchange.sums_first and not divides:
                    continue
                self._check_exchange(exchange)
                fitting.append(exchange)
        return fitting

    def resolve_exchange(
        self, placement: Placement, specs: Sequence[TensorSpec], buckets: int
    ) -> Exchange:
        """Return the exchange to use; for "auto", the exchange with the smallest predicted time.
        ``buckets`` is the number of messages in which the tensors ``specs`` are sent."""
        auto = self.exchange
        if not isinstance(auto, Auto):
            return auto
        # Use the density after any warm-up, because the exchange is kept until the ranks change.
        density = self.density(LONG_RUN) or UNKNOWN_DENSITY
        in_message = max(1, sum(spec.numel for spec in specs) // max(1, buckets))
        costs_ms = {}
        for each in self.exchanges(placement):
            phases = buckets * len(each.phases(self.selector, placement.world_size))
            nbytes = 0.0
            for spec in specs:
                width = spec.accumulator.itemsize
                entry_bytes = each.entry_bytes(self.codec, in_message, density, width)
                nbytes += spec.numel * each.inbound(density, entry_bytes, placement)
            costs_ms[each] = phases * auto.latency_ms + 8 * nbytes / (auto.bandwidth_gbit * 1e6)
        return min(costs_ms, key=costs_ms.__getitem__)

    def __str__(self) -> str:
        return ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))


def _schedule_for(density: Density | None, given: object) -> Schedule | None:
    """Return the schedule for the options ``density`` and ``schedule``; None if neither is given.
    Without ``schedule``, the density is constant. If ``schedule`` is a mapping without "value", its
    final density is ``density``."""
    if given is None:
        return None if density is None else SCHEDULES.create("constant", value=density)
    if isinstance(given, dict) and density is not None:
        names = [each.name for each in fields(SCHEDULES.get(given.get("id")))]  # type: ignore
        if "value" in names and "value" not in given:
            given = {**given, "value": density}
    schedule: Schedule = SCHEDULES.resolve(given)
    return schedule
