"""What compressors of both frontends do so that training outlasts faults, restarts and other worlds."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NoReturn

from ..core.collective import Collective
from ..core.compressor import Compressor
from ..core.driver import Conversation
from ..core.handshake import describe_rank, handshake
from ..errors import ExchangeTimeout
from ..types import TensorSpec
from .peers import introduce
from .watchdog import Watchdog

HANDSHAKE = "the handshake before the first step"


class DurableCompressor(Compressor):
    """A compressor that is watched."""

    watchdog: Watchdog

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

    def close(self) -> None:
        """Give the name free and stop watching; the compressor must not be used afterwards."""
        super().close()
        if hasattr(self, "watchdog"):  # TensorFlow's is there when the variables are
            self.watchdog.close()
