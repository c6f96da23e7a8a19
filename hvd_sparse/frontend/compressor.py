"""The base of all frontends' compressors: handshake, reports, checkpoints and elastic restarts."""

from __future__ import annotations

import atexit
import logging
import math
import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache

from hvd_sparse.collectives.contract import Collective, Gatherer, is_elastic
from hvd_sparse.configuration import DEVICE_WIRE, Configuration
from hvd_sparse.errors import InvalidOption, RankMismatch, UnsupportedReduction
from hvd_sparse.frontend.naming import Naming
from hvd_sparse.frontend.recorder import Outlet, Recorder
from hvd_sparse.frontend.states import footprint, load_state, saved_state
from hvd_sparse.frontend.summary import summary_of, summary_of_ranks
from hvd_sparse.plan.decisions import GroupPlan, HiddenDensities
from hvd_sparse.plan.policy import Policy, Verdict, tell_all, waiting
from hvd_sparse.registry import configuration as describe_part
from hvd_sparse.schedules.contract import LONG_RUN
from hvd_sparse.state.checkpoint_file import gather_into_file, read
from hvd_sparse.state.redistribution import Commits, redistribute
from hvd_sparse.state.state_check import IncompatibleKeys, incompatible_keys, named_as
from hvd_sparse.step.handshake import describe_rank, handshake
from hvd_sparse.step.stats import BYTES
from hvd_sparse.step.step import Step
from hvd_sparse.telemetry.contract import Place, check_names, numbers_of, whole_of
from hvd_sparse.tracing import TraceFile, follow
from hvd_sparse.types import Option, ProcessSet, Report, Settings, State, TensorSpec, Value
from hvd_sparse.version import __version__
from hvd_sparse.watch.watchdog import PatientCollective, Watchdog

logger = logging.getLogger("hvd_sparse")

CLOSED = (
    "is closed, so it can neither train, nor save or load a state: save the state before close(), "
    "and load it into another compressor"
)


class Compressor:
    """Base class of all frontends' compressors, with reports, checkpoints and elastic restarts.

    The methods of ``Compression`` create compressors. A compressor cannot be pickled or copied.
    """

    # A frontend sets ``name``, ``step`` and ``collective``, then calls ``_start``. ``place`` names
    # frontend and process set; ``policy`` decides whether a step is compressed or dense;
    # ``messenger`` is the collective for messages.

    step: Step
    watchdog: Watchdog
    collective: Collective
    messenger: Collective
    has_device_wire = False
    """Whether messages can be sent from an accelerator in this framework."""
    clips_all_gradients = False
    """Whether the frontend can clip by the norm of all gradients, because it knows all of them
    before it sends the first."""
    way_to_remake = "Compression.from_config(params, config)"
    is_forewarned = False
    """Whether to omit the warning about the optimizer's effect on accuracy."""
    _is_closed = False
    optimizer_name: str | None = None
    """Name of the optimizer whose updates the memory computes, if ``optimizer=`` was given."""

    def __init__(
        self, configuration: Configuration, place: str, policy: Policy | None = None
    ) -> None:
        if configuration.wire == DEVICE_WIRE and not self.has_device_wire:
            raise InvalidOption(
                f"wire is {DEVICE_WIRE!r}, which hvd_sparse.torch alone has: leave wire out"
            )
        if configuration.clip_grad_norm is not None and not self.clips_all_gradients:
            raise InvalidOption(
                f"clip_grad_norm is {configuration.clip_grad_norm}, which PyTorch alone has, as "
                "graphs of TensorFlow send gradients one by one: give optimizer=, and bound each "
                "tensor's norm by its memory, as in memory={'id': 'momentum_feedback', "
                "'clip_norm': 1.0} for SGD"
            )
        self.configuration = configuration
        self._naming = Naming(place, configuration.name)
        self.name = self._naming.name
        self._policy = Policy() if policy is None else policy
        self._commits = Commits()
        self._is_outside = False  # of the process set
        self._recorder: Recorder | None = None
        self._trace_file: TraceFile | None = None

    def resolve(self) -> None:
        """Find the tensors and create the attribute ``step``, unless the constructor did so."""

    def _start(self, process_rank: int) -> None:
        """Start the watchdog, the trace and telemetry. ``process_rank`` is the rank among all
        processes."""
        rank = self.collective.rank  # in the process set, -1 outside of it
        self._is_outside = rank < 0
        self.watchdog = Watchdog(self.name, rank, self.configuration.timeout_s)
        weakref.finalize(self, self.watchdog.close)
        self.collective = self.messenger = PatientCollective(self.collective, self.watchdog)
        self._trace_file = follow(self.step.spans, self.name, process_rank)
        self._record()

    def _record(self) -> None:
        writers, every = self.configuration.telemetry, self.configuration.telemetry_every
        self._writes_as = rank = self.watchdog.rank
        if not isinstance(writers, tuple) or rank < 0:
            return
        place = Place(rank, self._size_of_world())
        outlet = Outlet(writers, place)
        if not outlet.is_open:
            return
        self._recorder = Recorder(self.step, every, outlet, self.watchdog.lagging)
        self._end_telemetry = weakref.finalize(self, self._recorder.close)
        # Finalizers run late at the program's end, after the exit functions of the writers'
        # packages. This function runs before them, because functions registered last run first.
        atexit.register(self._end_telemetry)
        self._recorder.put(
            "run",
            {
                "version": 1,
                "library": __version__,
                "name": self.name,
                "rank": place.rank,
                "world_size": place.world_size,
                "telemetry_every": every,
                "config": self.config(),
                "shapes": {spec.key: list(spec.shape) for spec in self.step.specs},
            },
        )

    def _place_in_world(self) -> tuple[int, int]:
        """Return the rank and the number of ranks to which the state belongs: those of the last
        handshake, or Horovod's before the first. After an elastic restart, these may differ from
        Horovod's until the next handshake. Raises InvalidOption on a rank outside of the process
        set, because that rank has no state."""
        if self._is_outside:
            raise InvalidOption(
                f"this process is not in the process set of the compressor {self.name!r}, and has "
                "no state of it: call this method only if process_set.included()"
            )
        if self.step.world_size:
            return self.step.rank, self.step.world_size
        return self.collective.rank, self.collective.world_size

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidOption(f"the compressor {self.name!r} {CLOSED}")

    def _size_of_world(self) -> int:
        return self.step.world_size or self.collective.world_size

    def _meeting_place(self) -> str:
        return self._naming.meeting_place()

    def _meet(self) -> None:
        """Compare all ranks' configurations and connect their watchdogs. In an elastic run, also
        load the state from which all ranks resume. Collective."""
        collective, limit_s = self.collective, self.configuration.timeout_s
        name = self._meeting_place()
        gatherer = Gatherer(collective, name, limit_s)
        with waiting(self, "the handshake before the first step"):
            handshake(self._describe(self.step.specs), gatherer)
            self.watchdog.meet(collective.rank, gatherer)
            if is_elastic():
                mine = self.state_dict()
                of_states = Gatherer(collective, f"{name}.state", limit_s)
                shared = self._commits.rejoin(mine, of_states)
                self.step.meet(shared["rank"], shared["world_size"])
                self.load_state_dict(shared)
        self.step.meet(collective.rank, collective.world_size)

    def _describe(self, specs: Sequence[TensorSpec]) -> Report:
        described = describe_rank(self.configuration, specs, self.name, self.step.placement)
        return {**described, **self._policy.describe()}

    def settle_densities(self, densities: Mapping[str, float]) -> None:
        """Use these densities, by tensor name. Policies (see ``plan.policy``), which measure and
        compute the densities, call this method between steps."""
        self.configuration = self.configuration.for_tensors(self.step.specs, densities)
        self.step.reconfigure(self.configuration)

    @property
    def verdict(self) -> Verdict | None:
        """The way of sending gradients that ``Compression.auto`` has chosen, with the measured
        times; None before the first choice, and while a review measures again."""
        decision = self._policy.decision
        return decision if isinstance(decision, Verdict) else None

    @property
    def plan(self) -> GroupPlan | None:
        """The plan of ``groups="planned"``, which has the groups of tensors that share a message;
        None before the plan is made, and with other ``groups``."""
        decision = self._policy.decision
        return decision if isinstance(decision, GroupPlan) else None

    @property
    def hiding(self) -> HiddenDensities | None:
        """The densities that this run has measured for ``density="hiding"``. None before the
        measurement, and if densities were loaded with a state, which only ``stats()`` shows."""
        decision = self._policy.decision
        return decision if isinstance(decision, HiddenDensities) else None

    def stats(self) -> Report:
        """Return this rank's counters since the start, JSON-serializable.

        name, exchange : the compressor's name, and its exchange with options
        hiding : only with ``density="hiding"``: "c_max", the largest compression ratio; and
            "is_measured", whether the tensors' densities ("density_asked") have been measured
        along_rate : only if densities follow the learning rate: "density", the mean density; and
            "codec", the name of the codec

        ``hvd_sparse.step.stats.Stats.report`` describes all other entries.
        """
        self.resolve()
        rule = self.configuration.rule
        # With a schedule, after any warm-up; it may have another density than the selector.
        mean = self.configuration.density(LONG_RUN)
        counted = self.step.stats.report(mean)
        for key, figures in counted["tensors"].items():
            figures["density_asked"] = mean if rule is None else rule.table.get(key)
        if rule is not None and rule.c_max is not None:
            counted["hiding"] = {"c_max": rule.c_max, "is_measured": rule.is_measured}
        if self.configuration.follows_rate:
            counted["along_rate"] = {"density": mean, "codec": self.configuration.codec.id}
        return {"name": self.name, "exchange": describe_part(self.step.exchange), **counted}

    def footprint(self) -> Report:
        """Return sizes in bytes, computed from the tensors' shapes.

        state_bytes : a rank's state between two steps
        gathered_bytes : the messages of all ranks in the first step, as if the exchange were
            "allgather"; None if the density depends on the values of the gradients
        """
        self.resolve()
        return footprint(self.step, self._size_of_world(), self._optimizer_settings)

    def log_footprint(self) -> None:
        """Log the bytes of the state, if the tensors are known. The optimizer must be known, too,
        if one is given, because memories allocate vectors for some of its settings."""
        if hasattr(self, "step"):
            text = "compressor %s will keep at most %d bytes on every rank"
            logger.info(text, self.name, self.footprint()["state_bytes"])

    def _optimizer_settings(self, position: int) -> Settings | None:
        """Return the present settings of ``optimizer=``, for a tensor's memory; None without it."""
        return None

    def config(self) -> Report:
        """Return the parts and options, JSON-serializable, for ``Compression.from_config``. After
        ``Compression.auto``, the result also has the options of its trial. With ``optimizer=``,
        "optimizer" is the optimizer's name. Then the optimizer supplies some options of the memory,
        for example the momentum, so these have their default values in the result."""
        named = {} if self.optimizer_name is None else {"optimizer": self.optimizer_name}
        return {**self.configuration.describe(), **self._policy.describe(), **named}

    def log(self, *, step: int | None = None, **metrics: Option) -> None:
        """Pass metrics of the training to the writers of ``telemetry=``, for example
        ``log(loss=loss.item())``. Ranks without writers only check the arguments. If a metric is a
        tensor on a GPU, every rank waits for it.

        Parameters
        ----------
        step : number of completed steps that the record shows; by default the compressor's count,
            which leaves out the dense steps of ``Compression.auto`` without ``optimizer=``
        metrics : numbers by name

        Raises
        ------
        InvalidOption : a metric or ``step`` is not a number, or a metric is called "event",
            "seconds" or "time"; on all ranks alike
        """
        # Also on ranks without writers: the others would wait for a rank that alone has an error.
        check_names(metrics)
        numbers, number = numbers_of(metrics), None if step is None else whole_of(step)
        self.resolve()
        if self._recorder is not None:
            self._recorder.put("metrics", numbers, number)

    def summary(self, *, all_ranks: bool = False) -> str:
        """Return the counters of all steps so far as a text table, which rank 0 also prints.

        Contraction and staleness, which ``Stats.report`` explains, cover only the steps that
        telemetry measured. ``all_ranks`` adds a table with a row for each rank of the process set.
        It makes the call collective: all these ranks must call with ``all_ranks=True``. Ranks
        outside of the process set may call too, but take no part.
        """
        stats = self.stats()
        entries = {spec.key: spec.numel for spec in self.step.specs}
        counts = self.step.stats.tensors
        text = summary_of(stats, entries, {key: counts[key][BYTES] for key in stats["tensors"]})
        if all_ranks and not self._is_outside:
            name = f"hvd_sparse.summary.{self.name}"
            mine = {name: value for name, value in stats.items() if name != "tensors"}
            what = "the counters that summary() gathers from all ranks"
            text += "\n\n" + summary_of_ranks(tell_all(self, what, name, mine))
        if self.watchdog.rank == 0:
            print(text, flush=True)
        return text

    def state_dict(self) -> Report:
        """Return this rank's state of every tensor, as plain values and copies of arrays. Call it
        after ``optimizer.step()``, because it undoes a step that still runs. In PyTorch, a step
        with results that the optimizer has not applied yet is left out, as it is in the weights.

        version, library : version of this layout, and version of hvd_sparse
        config, model : the parts and options; the shape and dtype of every tensor
        rank, world_size : the rank to which the state belongs, and the number of ranks
        reduction : "average" or "sum"
        references : only if densities follow the learning rate: for each parameter group, the rate
            with which the learning rate of each step is compared
        tensors : for each tensor that had a step, by name: the number of completed steps, the last
            threshold, the values that selector and exchange keep for the next step, the name of the
            tensor or group from which entries were last selected, the memory's arrays and numbers,
            and the density if it was measured
        """
        self._check_open()
        self.resolve()
        return saved_state(self.step, *self._place_in_world(), self._due())

    def _due(self) -> Collection[int]:
        """Return the positions of the tensors whose last result an optimizer may still apply, so
        that their last step is not in the state."""
        return ()

    def load_state_dict(self, state: State, strict: bool = True) -> IncompatibleKeys:
        """Load this rank's ``state_dict()``. Return the names of tensors that only the compressor
        has, and of those that only the state has.

        If parameters were added or removed, ``strict=False`` on all ranks loads the common tensors.

        Raises
        ------
        RankMismatch : rank, model or configuration differ; the message lists differences
        CorruptCheckpoint : the state is malformed, or has NaN or Inf
        """
        self._check_open()
        self.resolve()
        state = named_as(state, self.step.specs)
        load_state(self.step, self._place_in_world(), state, strict=strict)
        self._policy.loaded(self, state["tensors"])
        return incompatible_keys(state, self.step.specs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the states of all ranks to the file ``path``, on rank 0. Collective. The arrays are
        gathered one after the other, in slices: every rank receives at most 64 MiB at once. Rank 0
        joins the slices of an array of all ranks, world_size * numel * itemsize bytes. Ranks
        outside of the process set may call this, but take no part.

        Raises
        ------
        PeerFailure : rank 0 cannot write the file; raised on all ranks, and the previous file stays
        ExchangeTimeout : another rank does not call ``save``; the message names the rank
        InvalidOption : the exchange is "hierarchical", whose states cannot be in one file
        """
        self._check_open()
        self.resolve()
        if self._is_outside:
            return
        if self.step.exchange.sums_first:
            raise InvalidOption(
                "exchange 'hierarchical' divides the residual among the ranks of a node, so one "
                "file for any number of ranks is not possible: save state_dict() on every rank, "
                "and load it on the same ranks"
            )
        self._follow_world()
        name, limit_s = f"hvd_sparse.save.{self.name}", self.configuration.timeout_s
        with waiting(self, "the states that save() gathers from all ranks"):
            gather_into_file(self.state_dict(), path, Gatherer(self.collective, name, limit_s))

    def load(self, path: str | os.PathLike[str], strict: bool = True) -> IncompatibleKeys:
        """Load this rank's state from a file that ``save`` wrote; every rank reads the file. If the
        number of ranks has changed, residuals are redistributed. On a rank outside of the process
        set, nothing is loaded. ``strict`` and the result are as in ``load_state_dict``.

        Raises
        ------
        CorruptCheckpoint : the file is incomplete
        RankMismatch : the file belongs to another model or configuration
        """
        self._check_open()
        self.resolve()
        if self._is_outside:
            return IncompatibleKeys([], [])
        self._follow_world()
        rank, world_size = self._place_in_world()
        return self.load_state_dict(redistribute(read(path), world_size)[rank], strict)

    def commit(self) -> None:
        """Keep a copy of the state for ``go_back``."""
        self._commits.commit(self.state_dict())

    def go_back(self) -> None:
        """Restore the state of the last ``commit`` after an error that ended all collectives."""
        reached = self.state_dict()
        self._forget_world()
        state = self._commits.go_back(reached)
        self.step.meet(state["rank"], state["world_size"])
        self.load_state_dict(state)

    def rejoin(self) -> None:
        """Continue with the ranks that Horovod has after an elastic restart. Collective; Horovod's
        elastic states call it in ``sync``. If workers joined or left, residuals are redistributed,
        and the exchange "auto" chooses anew. The new rank 0 writes the records of telemetry."""
        self._check_open()
        self.resolve()
        self._forget_world()
        self.step.place(self.collective)
        self._meet()
        if self._recorder is not None and self._writes_as != self.watchdog.rank:
            self._end_telemetry()
            self._recorder = None
        if self._recorder is None:
            self._record()

    def _follow_world(self) -> None:
        """Called before a state of all ranks is saved or loaded. Call ``rejoin`` if an elastic
        restart without ``sync`` has changed this rank or the number of ranks. Collective."""

    def _forget_world(self) -> None:
        self.watchdog.ledger.clear()
        self.watchdog.ledger.restart()
        self._policy.forget_world(self)

    def close(self) -> None:
        """End telemetry and the watchdog, and free the name for another compressor. Afterwards,
        only reports such as ``stats`` can be called, so save the state before."""
        self._is_closed, self._commits = True, Commits()
        if self._recorder is not None:
            self._end_telemetry()
        self._naming.release()
        if hasattr(self, "watchdog"):  # TensorFlow creates the watchdog once the variables exist
            self.watchdog.close()
        if self._trace_file is not None:
            self._trace_file.flush()

    def __reduce__(self) -> Value:
        raise InvalidOption(
            f"{type(self).__name__} cannot be pickled or copied: it belongs to its process and its "
            f"model; save config() and state_dict(), and make another with {self.way_to_remake}"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.configuration}, collectives={self.name!r})"


def scale_from(read: Callable[[], Value]) -> float:
    """Return the loss scale that the function ``read`` returns. If ``read`` raises an error, log
    that and return NaN, because a scale of NaN makes all ranks raise an error. If only this rank
    raised an error, the other ranks would wait for it."""
    try:
        return float(read())
    except Exception:
        logger.exception("grad_scaler raised an error, so the loss scale is unknown in this step")
        return math.nan


@lru_cache(maxsize=1)  # once per process
def say_alone() -> None:
    logger.warning(
        "world size 1: Horovod exchanges nothing and calls no compressor; start more ranks, for "
        "example horovodrun -np"
    )


def check_process_set(process_set: ProcessSet, world_size: int) -> None:
    """Raise InvalidOption for a process set that Horovod does not know, and for any set but the
    global one in an elastic run. Warn of a single rank, for which Horovod calls no compressor."""
    if is_elastic() and getattr(process_set, "process_set_id", None):
        raise InvalidOption(
            f"process_set is {process_set!r} in an elastic run: when a worker dies, Horovod aborts "
            "the others if process sets are registered; leave process_set out, or run without "
            "--min-np"
        )
    if getattr(process_set, "process_set_id", None) is None:
        raise InvalidOption(
            f"process_set is {process_set!r}: give one that Horovod knows, by "
            "hvd.init(process_sets=[...]) or hvd.add_process_set, or leave it out for all ranks"
        )
    if world_size == 1 and not is_elastic():
        say_alone()


def check_call(hvd: Value, op: object, ours: ProcessSet, theirs: ProcessSet) -> None:
    """Raise UnsupportedReduction if the reduction ``op`` of a call of Horovod is not supported, and
    RankMismatch if the call has another process set, because some ranks would wait forever."""
    if op not in (hvd.Average, hvd.Sum):
        others = ("Adasum", "Min", "Max", "Product")
        name = next((name for name in others if getattr(hvd, name, None) == op), op)
        raise UnsupportedReduction(
            f"Horovod's op is hvd.{name}: use hvd.Average or hvd.Sum, because a compressor "
            "supports only these"
        )
    if theirs.process_set_id != ours.process_set_id:
        raise RankMismatch(
            f"the compressor's process set is {ours}, Horovod's is {theirs}: give process_set= to "
            "both"
        )
