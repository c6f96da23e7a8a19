"""Compressors with a watchdog and saved states: training survives faults and restarts."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence

from hvd_sparse.collectives.contract import Collective
from hvd_sparse.collectives.topology import is_elastic
from hvd_sparse.errors import ExchangeTimeout, InvalidOption
from hvd_sparse.frontend.compressor import Compressor
from hvd_sparse.plan.group_plan import GroupPlan
from hvd_sparse.plan.hiding import HiddenDensities
from hvd_sparse.plan.policy import Policy
from hvd_sparse.plan.trial import Verdict
from hvd_sparse.state.checkpoint_file import read
from hvd_sparse.state.commits import Commits
from hvd_sparse.state.gathering import gather_into_file
from hvd_sparse.state.redistribution import redistribute
from hvd_sparse.state.state_check import IncompatibleKeys, named_as
from hvd_sparse.step.driver import Conversation
from hvd_sparse.step.handshake import describe_rank, handshake
from hvd_sparse.tracing.chrome_trace import TraceFile, follow
from hvd_sparse.types import TensorSpec
from hvd_sparse.untyped import Report, State
from hvd_sparse.watch.peers import introduce
from hvd_sparse.watch.watchdog import PatientCollective, Watchdog

logger = logging.getLogger("hvd_sparse")

HANDSHAKE = "the handshake before the first step"
SAVE = "the states that save() gathers from all ranks"
PATIENCE_IN_SAVE = 1.25
"""Times the limit.  Ranks that go on training instead reach theirs first, and say so, too."""


class DurableCompressor(Compressor):
    """A compressor with a watchdog and a state that can be saved."""

    watchdog: Watchdog
    collective: Collective
    messenger: Collective
    """The collective that messages travel by; the others are the host's."""
    handshake_name = ""
    """Of the last handshake's collectives."""
    _world: tuple[int, int] | None = None
    _trace_file: TraceFile | None = None
    _policy: Policy | None = None

    @property
    def verdict(self) -> Verdict | None:
        """Return the result of the last trial of ``Compression.auto``, or None before it."""
        return None if self._policy is None else self._policy.verdict

    @property
    def plan(self) -> GroupPlan | None:
        """Return the plan of ``groups="planned"``, or None before it is made and without this
        option."""
        return None if self._policy is None else self._policy.plan

    @property
    def hiding(self) -> HiddenDensities | None:
        """Return the result of ``density="hiding"``, or None before it is measured and without this
        option."""
        return None if self._policy is None else self._policy.hiding

    def settle_densities(self, densities: Mapping[str, float]) -> None:
        """Take densities that the run has measured, where a step begins; policies call it."""
        self.configuration = self.configuration.with_measured(self.step.specs, densities)
        self.step.reconfigure(self.configuration)

    def _watch(self, rank: int) -> None:
        """Start the watchdog, and put the collective's waits under it; the name is final from now
        on.

        Log the memory of the states before they are allocated.
        """
        logger.info(
            "compressor %s will keep %d bytes on every rank",
            self.name,
            self.footprint()["state_bytes"],
        )
        self._commits = Commits()
        self.watchdog = Watchdog(self.name, rank, self.configuration.timeout_s)
        self.collective = self.messenger = PatientCollective(self.collective, self.watchdog)
        weakref.finalize(self, self.watchdog.close)

    def _trace(self, rank: Callable[[], int]) -> None:
        """Write a timeline if ``HVD_SPARSE_TIMELINE`` is set; ``rank`` is that among all
        processes."""
        self._trace_file = follow(self.step.spans, rank)

    def _meet(self, specs: Sequence[TensorSpec], collective: Collective) -> None:
        """Make sure that all ranks run the same thing, and tell them where this one can be
        asked."""
        ledger, timeout_s = self.watchdog.ledger, self.configuration.timeout_s
        ledger.begin(HANDSHAKE)
        shake = handshake(self._describe(specs), collective.world_size)
        self.handshake_name = self._meeting_place()
        try:
            with ledger.waiting():
                Conversation(shake, collective, self.handshake_name).finish(timeout_s)
                meeting = introduce(self.watchdog.endpoint(collective.rank))
                self.watchdog.meet(
                    Conversation(meeting, collective, f"{self.handshake_name}.peers").finish(
                        timeout_s
                    )
                )
                if is_elastic():
                    self._share_state()
        except ExchangeTimeout as error:
            raise self.explain(error) from error
        finally:
            ledger.clear()
        self._world = collective.rank, collective.world_size

    def _describe(self, specs: Sequence[TensorSpec]) -> Report:
        """Return the JSON-able description that the handshake compares."""
        described = describe_rank(self.configuration, specs, self.name, self.step.placement)
        return described if self._policy is None else {**described, **self._policy.describe()}

    def explain(self, error: ExchangeTimeout) -> ExchangeTimeout:
        """Return a timeout that says which ranks are behind it."""
        if not self.watchdog.ledger.pending():
            return ExchangeTimeout(str(error))
        return ExchangeTimeout(f"{error}; {self.watchdog.give_up()}")

    # -- checkpoints ------------------------------------------------------------------------------

    def _place_in_world(self) -> tuple[int, int]:
        """Of the state: those of the handshake, as in an elastic run the world is another before
        the state is."""
        return self._world or (self.collective.rank, self.collective.world_size)

    def _size_of_world(self) -> int:
        return self._world[1] if self._world else self.collective.world_size

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the states of all ranks into one file.  Collective: every rank calls it, rank 0
        writes.

        Every rank receives all ranks' states of one tensor at a time: at most world_size * numel *
        itemsize bytes.

        Parameters
        ----------
        path : of the file, on rank 0

        Raises
        ------
        PeerFailure : the file cannot be written; raised on all ranks, and the old file stays
        ExchangeTimeout : another rank does not call it; the message names it
        InvalidOption : exchange "hierarchical", whose residuals one file cannot hold
        """
        if self.step.exchange.sums_first:
            raise InvalidOption(
                "exchange 'hierarchical' divides the residual among the ranks of a node, so one "
                "file for any number of ranks is not possible: save state_dict() on every rank, "
                "and load it on the same ranks"
            )
        state, name = self.state_dict(), f"hvd_sparse.save.{self.name}"
        limit_s = None if self.limit_s is None else PATIENCE_IN_SAVE * self.limit_s
        ledger = self.watchdog.ledger
        ledger.begin(SAVE)
        try:
            with ledger.waiting():
                gather_into_file(state, path, self.collective, name, limit_s)
        except ExchangeTimeout as error:
            raise self.explain(error) from error
        finally:
            ledger.end(SAVE)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Load this rank's part of a file that ``save`` wrote; every rank reads the file.

        If the number of ranks has changed, residuals are redistributed.

        Parameters
        ----------
        path : of the file

        Raises
        ------
        CorruptCheckpoint : the file is incomplete
        RankMismatch : it belongs to another model or configuration
        """
        rank, world_size = self._place_in_world()
        self.load_state_dict(redistribute(read(path), world_size)[rank])

    # -- elastic runs -----------------------------------------------------------------------------

    def commit(self) -> None:
        """Remember the state, for ``go_back``; elastic states call it when they are saved."""
        state = self.state_dict()
        self._commits.commit(state)

    def go_back(self) -> None:
        """To the last commit: after an error of Horovod's, when nothing that is under way will ever
        end."""
        reached = self.state_dict()
        self._forget_world()
        state = self._commits.go_back(reached)
        self._world = state["rank"], state["world_size"]
        self.load_state_dict(state)

    def rejoin(self) -> None:
        """Go on in a new world of ranks.  Collective; elastic states call it when they are
        synchronized.

        Residuals belong to their rank, and are redistributed where workers came or went:
        ``state.commits``.
        """
        self._forget_world()
        self._meet(self.step.specs, self.collective)

    @property
    def is_in_another_world(self) -> bool:
        """Tell whether Horovod was started anew since the handshake, with another rank or size."""
        return self._world is not None and self._world != (
            self.collective.rank,
            self.collective.world_size,
        )

    def _forget_world(self) -> None:
        """Drop the step and collectives in progress."""
        self.watchdog.ledger.restart()
        if self._policy is not None:
            self._policy.forget_world(self)

    def load_state_dict(self, state: State, strict: bool = True) -> IncompatibleKeys:
        state = named_as(state, self.step.specs)
        found = super().load_state_dict(state, strict)
        if self._policy is not None:
            self._policy.loaded(self, state["tensors"])
        return found

    def _share_state(self) -> None:
        name = f"{self.handshake_name}.state"
        shared = self._commits.rejoin(self.state_dict(), self.collective, name, self.limit_s)
        self._world = shared["rank"], shared["world_size"]
        self.load_state_dict(shared)

    @property
    def limit_s(self) -> float | None:
        """Seconds after which a wait is an error; None waits for ever."""
        return self.configuration.timeout_s

    def close(self) -> None:
        """Release the name and end the watchdog; do not use the compressor afterwards."""
        super().close()
        if hasattr(self, "watchdog"):  # TensorFlow's is there when the variables are
            self.watchdog.close()
        if self._trace_file is not None:
            self._trace_file.flush()
