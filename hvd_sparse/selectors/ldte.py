from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_number, option
from hvd_sparse.kernels.contract import Moments
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, DensitySelector, Found, take_bounded


def laplace_threshold(moments: Moments, count: int) -> float:
    """Fit a Laplace(0, b) distribution to the entries. Return the threshold t for which the fitted
    probability P(|x| > t) is count / numel.

        b = mean(|x|)                  maximum likelihood, location 0
        t = b * ln(numel / count)      from P(|x| > t) = exp(-t / b)
    """
    return moments.abs_mean * math.log(moments.numel / count)


@SELECTORS.register("ldte")
@dataclass(frozen=True)
class Ldte(DensitySelector):
    """Select the entries above a threshold that is estimated with a Laplace distribution.

        threshold = mean(|accumulated|) * ln(numel / k)

    Parameters
    ----------
    cap : float >= 1; of more than cap * k entries, only the cap * k largest are sent

    Notes
    -----
    The paper states that the residual gradient is closer to a Laplace than to a normal
    distribution. According to the paper, the threshold follows from the area under the
    distribution's tail, and maximum likelihood gives the distribution's parameter. The formula
    above and the location 0 are our derivation.

    The estimate is not corrected, so for other distributions the number of selected entries may be
    far from k. With error feedback, the distribution has no long tail, because large entries are
    sent at every step. Very few entries then reach the threshold: use ``ldte_bs`` instead. At least
    the largest entry is sent.

    Cost: one pass to take the entries.

    Paper: chen2021ldte.  Departs: at most ``cap`` * k entries and at least one entry are sent.
    """

    cap: float = option(check_number, 8.0, low=1, with_low=True)

    needs_host = ""

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        moments = context.moments_of(accumulated)
        count = self.count(accumulated.size)
        threshold = laplace_threshold(moments, count) if count else 0.0
        return take_bounded(accumulated, threshold, self.cap * count, moments, context, 0)
