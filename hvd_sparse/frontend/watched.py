"""Compressors with telemetry: records for writers, and a summary."""

from __future__ import annotations

import weakref

from hvd_sparse.frontend.durable import DurableCompressor
from hvd_sparse.frontend.outlet import Outlet
from hvd_sparse.frontend.recorder import Recorder
from hvd_sparse.frontend.summary import summary_of, summary_of_ranks
from hvd_sparse.state.gathering import Gatherer
from hvd_sparse.step.stats import BYTES
from hvd_sparse.telemetry.contract import Place
from hvd_sparse.untyped import Option
from hvd_sparse.version import __version__


class WatchedCompressor(DurableCompressor):
    """A compressor with telemetry."""

    _recorder: Recorder | None = None
    _writes_as = -1

    def _record(self) -> None:
        """Open the writers that were asked for; behind ``_watch``."""
        configuration = self.configuration
        self._writes_as = self.watchdog.rank
        if not isinstance(configuration.telemetry, tuple) or self.watchdog.rank < 0:
            return
        place = Place(self.watchdog.rank, self._size_of_world())
        outlet = Outlet(configuration.telemetry, place)
        if not outlet.is_open:
            return
        self._recorder = Recorder(
            self.step, configuration.telemetry_every, outlet, self.watchdog.lagging
        )
        weakref.finalize(self, self._recorder.close)  # at the program's end, too
        self._recorder.introduce(
            {
                "version": 1,
                "library": __version__,
                "name": self.name,
                "rank": place.rank,
                "world_size": place.world_size,
                "telemetry_every": configuration.telemetry_every,
                "config": self.config(),
                "shapes": {spec.key: list(spec.shape) for spec in self.step.specs},
            }
        )

    def rejoin(self) -> None:
        """Continue in a new world; the new rank 0 writes records from now on."""
        super().rejoin()
        if self._recorder is not None and self._writes_as != self.watchdog.rank:
            self._recorder.close()
            self._recorder = None
        if self._recorder is None:
            self._record()

    def log(self, *, step: int | None = None, **metrics: Option) -> None:
        """Pass metrics of the training, for example the loss, to the writers of ``telemetry=``.

        Ranks that do not write ignore the call.

        Parameters
        ----------
        step : completed steps; those of the compressor by default
        metrics : numbers by name

        Raises
        ------
        InvalidOption : a metric is no number

        Examples
        --------
        At the end of a step, or of an epoch::

            compression.log(loss=loss.item(), test_accuracy=accuracy)
        """
        if self._recorder is not None:
            self._recorder.log(step, metrics)

    def summary(self, *, all_ranks: bool = False) -> str:
        """Print a table of all steps so far on rank 0, and return its text.

        It is plain text and needs no package.  Contraction and staleness are of the steps that
        telemetry measured.

        Parameters
        ----------
        all_ranks : add a row for each rank.  Collective: every rank calls it, and gets the text

        Returns
        -------
        str
            The table.
        """
        stats = self.stats()
        entries = {spec.key: spec.numel for spec in self.step.specs}
        counts = self.step.stats.tensors
        text = summary_of(stats, entries, {key: counts[key][BYTES] for key in stats["tensors"]})
        if all_ranks:
            gatherer = Gatherer(self.collective, f"hvd_sparse.summary.{self.name}", self.limit_s)
            mine = {name: value for name, value in stats.items() if name != "tensors"}
            text += "\n\n" + summary_of_ranks(gatherer.tell_all(mine))
        if self.watchdog.rank == 0:
            print(text, flush=True)
        return text

    def close(self) -> None:
        """Release the name, write the last records and end telemetry; do not use the compressor
        afterwards."""
        if self._recorder is not None:
            self._recorder.close()
        super().close()
