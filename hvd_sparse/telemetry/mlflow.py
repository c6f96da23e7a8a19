from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import WRITERS
from hvd_sparse.telemetry.contract import Place, Sink, Writer, flat
from hvd_sparse.types import Report

MOST_AT_ONCE = 1000
"""Number of metrics that MLflow accepts in one call."""


@WRITERS.register("mlflow")
@dataclass(frozen=True)
class Mlflow(Writer):
    """Log metrics to the program's active MLflow run, or to a new run if none is active.

    Characters of tensor names that MLflow does not allow are replaced by ``_``.

    Parameters
    ----------
    tracking_uri : address of the tracking server or store; None for MLflow's own setting
    experiment : experiment of the new run; None for MLflow's default
    """

    remedy: ClassVar[str] = "check the tracking server, or give tracking_uri a local store"

    tracking_uri: str | None = None
    experiment: str | None = None

    def open(self, place: Place = Place()) -> Sink:  # noqa: B008 - frozen
        try:
            import mlflow
        except ImportError:
            raise InvalidOption(
                "telemetry writer 'mlflow' needs its package: pip install 'hvd-sparse[mlflow]'"
            ) from None
        if self.tracking_uri is not None:
            mlflow.set_tracking_uri(self.tracking_uri)
        if self.experiment is not None:
            mlflow.set_experiment(self.experiment)
        active = mlflow.active_run()
        # Use the run's id: a run is active only in one thread, and another thread writes records.
        run = (active or mlflow.start_run()).info.run_id
        if active is None:
            # Make the new run inactive, because the program and later compressors start other runs.
            mlflow.end_run("RUNNING")
        client = mlflow.MlflowClient()

        def write(record: Report) -> None:
            if record["event"] == "run":
                client.log_dict(run, record, "hvd_sparse.json")
                return
            metric, at_ms = mlflow.entities.Metric, int(1000 * record["time"])
            numbers = [
                metric(re.sub(r"[^\w\-. /]", "_", tag), value, at_ms, record["step"])
                for tag, value in flat(record).items()
            ]
            for first in range(0, len(numbers), MOST_AT_ONCE):
                client.log_batch(run, metrics=numbers[first : first + MOST_AT_ONCE])

        return Sink(write, lambda: client.set_terminated(run) if active is None else None)
