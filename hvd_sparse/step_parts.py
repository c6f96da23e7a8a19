"""Record of the parts that a step is made with."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.codecs.contract import Codec
from hvd_sparse.selectors.contract import Selector


@dataclass(frozen=True)
class StepParts:
    """The parts of a tensor's step, at the density of that step.

    Attributes
    ----------
    density : asked for at this step; None where the method decides by itself
    selector, codec : at this density
    is_exact : the codec gives selections back bit for bit
    sends_accumulated : what is sent are accumulated values, bit for bit
    """

    density: float | None
    selector: Selector
    codec: Codec
    is_exact: bool
    sends_accumulated: bool

    @classmethod
    def of(cls, density: float | None, selector: Selector, codec: Codec) -> StepParts:
        """Return the record of these parts, with what they declare."""
        is_exact = codec.is_exact
        sends_accumulated = is_exact and not selector.changes_values
        return cls(density, selector, codec, is_exact, sends_accumulated)
