"""One way to compress that an advice compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hvd_sparse.autotune.costmodel.predict import Prediction


@dataclass(frozen=True)
class Candidate:
    """One way to compress, and its step."""

    density: float
    codec: str
    exchange: str
    prediction: Prediction

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON-able mapping."""
        named = {"density": self.density, "codec": self.codec, "exchange": self.exchange}
        return {**named, **self.prediction.to_dict()}
