"""One way to compress, with its predicted step."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.autotune.costmodel.predict import Prediction


@dataclass(frozen=True)
class Candidate:
    """A density, a codec and an exchange, with their predicted step.

    Attributes
    ----------
    density : in (0, 1]
    codec, exchange : ids
    prediction : of the step
    """

    density: float
    codec: str
    exchange: str
    prediction: Prediction

    def to_dict(self) -> dict[str, object]:
        """Return all of it, JSON-able."""
        named = {"density": self.density, "codec": self.codec, "exchange": self.exchange}
        return {**named, **self.prediction.to_dict()}
