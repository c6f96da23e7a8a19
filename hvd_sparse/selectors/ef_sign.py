from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, Found, Selector
from hvd_sparse.types import Selection


@SELECTORS.register("ef_sign")
@dataclass(frozen=True)
class EfSign(Selector):
    """Send the sign of every non-zero entry, times the mean magnitude of all entries.

        sent_j = sign(accumulated_j) * mean(|accumulated|)

    With error feedback, the squared norm of the residual is |accumulated|^2 - (sum of magnitudes)^2
    / numel if no entry is 0.

    Cost: one pass to compute the mean, and one to write the signs.

    Paper: karimireddy2019error.  Departs: the learning rate is applied by the optimizer instead of
    the selector; the sum over the ranks is divided by their number, while a published
    implementation omits this division.
    """

    needs_host = "sends a value for every entry, so that the whole tensor is copied anyway"
    changes_values = True

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        scale = accumulated.dtype.type(context.moments_of(accumulated).abs_mean)
        kept = context.kernels.take_at_least(accumulated, 0.0)
        return Found(Selection(kept.indices, np.copysign(scale, kept.values), kept.numel))
