"""Weights & Biases: a run of its service, or offline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import WRITERS
from hvd_sparse.telemetry.contract import Place, Sink, Writer, flat
from hvd_sparse.untyped import Report, Value

STEP = "hvd_sparse/step"


@WRITERS.register("wandb")
@dataclass(frozen=True)
class WeightsAndBiases(Writer):
    """Log to the program's run of Weights & Biases, or start a run.

    Parameters
    ----------
    project : of a run that is started; None for the default of wandb
    mode : of a run that is started: "online", "offline" or "disabled"; None for its default
    """

    remedy: ClassVar[str] = "look at the network and wandb login, or give mode='offline'"

    project: str | None = None
    mode: str | None = None

    def open(self, place: Place = Place()) -> Sink:  # noqa: B008 - frozen
        try:
            import wandb
        except ImportError:
            raise InvalidOption(
                "telemetry writer 'wandb' needs its package: pip install 'hvd-sparse[wandb]'"
            ) from None
        return WandbRun(wandb, self, place)


class WandbRun(Sink):
    """A run of Weights & Biases."""

    def __init__(self, wandb: Value, writer: WeightsAndBiases, place: Place) -> None:
        super().__init__()
        self._is_ours = wandb.run is None
        rank = {"rank": place.rank, "world_size": place.world_size}
        self._run = wandb.run or wandb.init(
            project=writer.project, mode=writer.mode, config={"hvd_sparse": rank}
        )
        # A step of ours: the program's own calls of log must not have to go in step with it.
        self._run.define_metric(STEP)

    def write(self, record: Report) -> None:
        if record["event"] == "run":
            self._run.config.update({"hvd_sparse": record}, allow_val_change=True)
            return
        numbers = flat(record)
        for tag in numbers:
            self._run.define_metric(tag, step_metric=STEP)
        self._run.log({**numbers, STEP: record["step"]})

    def close(self) -> None:
        if self._is_ours:
            self._run.finish()
