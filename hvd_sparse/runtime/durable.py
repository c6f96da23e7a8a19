"""What compressors of both frontends do so that training outlasts faults, restarts and other worlds."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import NoReturn

from ..core.collective import Collective
from ..core.compressor import Compressor
from ..core.driver import Conversation
from ..core.handshake import describe_rank, handshake
from ..core.redistribution import redistribute
from ..errors import ExchangeTimeout
from ..types import TensorSpec
from .checkpoint import read
from .gathering import gather_into_file
from .peers import introduce
from .watchdog import Watchdog

HANDSHAKE = "the handshake before the first step"


class DurableCompressor(Compressor):
    """A compressor that is watched."""

    watchdog: Watchdog
    collective: Collective

    def _watch(self, rank: int) -> None:
        """Start the watchdog; the name is settled."""
        self.watchdog = Watchdog(self.name, rank, self.configuration.timeout_s)
        weakref.finalize(self, self.watchdog.close)

    def _meet(self, specs: Sequence[TensorSpec], collective: Collective) -> None:
        """Make sure that all ranks run the same thing, and tell them where this one can be asked."""
        ledger, timeout_s = self.watchdog.ledger, self.configuration.timeout_s
        ledger.begin(HANDSHAKE)
        document = describe_rank(self.configuration, specs, self.name)
        shake = handshake(document, collective.world_size)
        try:
            with ledger.waiting():
                Conversation(shake, collective, self.handshake_name).finish(timeout_s)
                meeting = introduce(self.watchdog.endpoint(collective.rank))
                self.watchdog.meet(Conversation(meeting, collective, f"{self.handshake_name}.peers").finish(timeout_s))
        except ExchangeTimeout as error:
            self._explain(error)
        finally:
            ledger.clear()

    def _explain(self, error: ExchangeTimeout) -> NoReturn:
        """Say with a timeout which ranks are behind it."""
        if not self.watchdog.ledger.pending():
            raise error
        why = self.watchdog.explain()
        self.watchdog.ledger.clear()
        raise ExchangeTimeout(f"{error}; {why}") from error

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _place_in_world(self) -> tuple[int, int]:
        return self.collective.rank, self.collective.world_size

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the states of all ranks into one file.  Collective: every rank calls it, rank 0 writes.

        Every rank receives one tensor's state of all ranks at a time: world_size * numel * itemsize bytes at the most.
        Whatever goes wrong where it is written is an error on all ranks, and leaves the old file as it was.
        """
        gather_into_file(self.state_dict(), path, self.collective, f"hvd_sparse.save.{self.name}", self._limit_s)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Take back this rank's part of what ``save`` wrote, redistributed if the number of ranks is another.

        Every rank reads the file.  CorruptCheckpoint if it is not whole, RankMismatch if it is another model's or
        configuration's.
        """
        rank, world_size = self._place_in_world()
        self.load_state_dict(redistribute(read(path), world_size)[rank])

    @property
    def _limit_s(self) -> float | None:
        return self.configuration.timeout_s

    def close(self) -> None:
        """Give the name free and stop watching; the compressor must not be used afterwards."""
        super().close()
        if hasattr(self, "watchdog"):  # TensorFlow's is there when the variables are
            self.watchdog.close()
