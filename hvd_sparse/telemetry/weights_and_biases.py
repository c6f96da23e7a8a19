from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import WRITERS
from hvd_sparse.telemetry.contract import Place, Sink, Writer, flat
from hvd_sparse.types import Report, Value

STEP = "hvd_sparse/step"
OPEN: Counter[str] = Counter()
"""Number of open sinks of each run that this writer has begun, by the run's id."""


@WRITERS.register("wandb")
@dataclass(frozen=True)
class WeightsAndBiases(Writer):
    """Log metrics to the program's current run of Weights & Biases, or to a new one.

    Parameters
    ----------
    project : project of the new run; None for wandb's default
    mode : mode of the new run: "online", "offline" or "disabled"; None for wandb's default
    """

    remedy: ClassVar[str] = (
        "check the network and wandb login, or give mode='offline'; if the program calls "
        "wandb.finish(), first call close() of the compressor"
    )

    project: str | None = None
    mode: str | None = None

    def open(self, place: Place = Place()) -> Sink:  # noqa: B008 - frozen
        try:
            import wandb
        except ImportError:
            raise InvalidOption(
                "telemetry writer 'wandb' needs its package: pip install 'hvd-sparse[wandb]'"
            ) from None
        is_ours = wandb.run is None or OPEN[wandb.run.id] > 0
        rank = {"rank": place.rank, "world_size": place.world_size}
        mode: Value = self.mode  # wandb's type allows only literals
        run = wandb.run or wandb.init(project=self.project, mode=mode, config={"hvd_sparse": rank})
        # Log over a step metric of our own, because the program's own calls of ``log`` may count
        # steps differently.
        run.define_metric(STEP)
        OPEN[run.id] += is_ours

        def write(record: Report) -> None:
            if record["event"] == "run":
                run.config.update({"hvd_sparse": record}, allow_val_change=True)
                return
            numbers = flat(record)
            for tag in numbers:
                run.define_metric(tag, step_metric=STEP)
            run.log({**numbers, STEP: record["step"]})

        def close() -> None:
            OPEN[run.id] -= is_ours
            if is_ours and not OPEN[run.id]:  # no other compressor logs to it
                run.finish()

        return Sink(write, close)
