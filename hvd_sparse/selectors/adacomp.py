from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_whole, option
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, Found, Selector
from hvd_sparse.types import Selection

CONVOLUTION_BIN, OTHER_BIN = 50, 500


@SELECTORS.register("adacomp")
@dataclass(frozen=True)
class AdaComp(Selector):
    """Divide the tensor into bins of consecutive entries. Select the entries that would reach the
    largest magnitude of their bin if this step's gradient were added a second time.

        accumulated = residual + gradient
        entry j is sent if |accumulated_j + gradient_j| >= max(|accumulated|) over the bin of j
        sent_j = sign(accumulated_j) * scale;  scale = mean of the maxima of all bins

    Parameters
    ----------
    bin_length : entries per bin; None means 50 for tensors of three dimensions or more
        (convolutions), and 500 for other tensors

    Notes
    -----
    There is no option for the density, because the number of selected entries follows from the
    data. Exact zeros are not sent, because they have no sign. At the sent entries, the residual
    becomes ``accumulated - sent``. This difference is large in bins with a small maximum, because
    ``scale`` is the same for all bins.

    Cost: one pass to compute the bins' maxima, and one to select.

    Paper: chen2018adacomp.
    """

    bin_length: int | None = option(check_whole, None, least=1)

    needs_gradient = True
    is_by_magnitude = False
    ignores = frozenset({"scale", "signs"})
    needs_host = "needs the gradient apart from the residual"
    changes_values = True

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        gradient = accumulated if context.gradient is None else context.gradient
        is_convolution = context.spec is not None and len(context.spec.shape) > 2
        length = self.bin_length or (CONVOLUTION_BIN if is_convolution else OTHER_BIN)
        length = min(length, accumulated.size or 1)
        maxima, selection = context.kernels.take_bins(accumulated, gradient, length)
        scale = accumulated.dtype.type(maxima.mean(dtype=np.float64)) if maxima.size else 0
        values = np.copysign(scale, selection.values)
        return Found(Selection(selection.indices, values, selection.numel), passes=1)
