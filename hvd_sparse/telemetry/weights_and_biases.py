from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import WRITERS
from hvd_sparse.telemetry.contract import Place, Sink, Writer, flat
from hvd_sparse.types import Report, Value

STEP = "hvd_sparse/step"


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
        is_ours = wandb.run is None
        rank = {"rank": place.rank, "world_size": place.world_size}
        mode: Value = self.mode  # wandb's type allows only literals
        run = wandb.run or wandb.init(project=self.project, mode=mode, config={"hvd_sparse": rank})
        # Log over a step metric of our own, because the program's own calls of ``log`` may count
        # steps differently.
        run.define_metric(STEP)

        def write(record: Report) -> None:
            if record["event"] == "run":
                run.config.update({"hvd_sparse": record}, allow_val_change=True)
                return
            numbers = flat(record)
            for tag in numbers:
                run.define_metric(tag, step_metric=STEP)
            run.log({**numbers, STEP: record["step"]})

        return Sink(write, lambda: run.finish() if is_ours else None)
