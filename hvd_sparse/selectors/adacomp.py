from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_whole
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, Found, Selector
from hvd_sparse.types import Selection, TensorSpec

CONVOLUTION_BIN, OTHER_BIN = 50, 500


@SELECTORS.register("adacomp")
@dataclass(frozen=True)
class AdaComp(Selector):
    """Select the entries that would reach the maximum of their bin if this step's gradient were
    added once more.

        H = accumulated + gradient
        entry j of a bin is sent if |H_j| >= max over the bin of |accumulated|
        sent_j = sign(accumulated_j) * scale, scale = mean over the bins of their maxima

    Parameters
    ----------
    bin_length : entries per bin; None for 50 in convolutions (three dimensions or more) and 500 in
        other layers

    Notes
    -----
    The number of selected entries adapts to the data, so there is no density. Exact zeros have no
    sign and are not sent. Memories keep accumulated - sent at the sent entries, because the common
    scale is too large for bins with small maxima. Cost: one pass for the bins' maxima, and one to
    compare and take.

    Paper: chen2018adacomp.
    """

    bin_length: int | None = None

    paper = "chen2018adacomp"
    needs_gradient = True
    is_by_magnitude = False
    ignores = frozenset({"scale", "signs"})
    needs_host = "needs the gradient apart from the residual"
    changes_values = True
    pass_limit = 1

    def __post_init__(self) -> None:
        if self.bin_length is not None:
            check_whole(self.bin_length, "bin_length of AdaComp", 1)

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        gradient = accumulated if context.gradient is None else context.gradient
        length = self.bin_length or bin_length_of(context.spec)
        maxima, selection = context.kernels.take_bins(accumulated, gradient, length)
        scale = accumulated.dtype.type(maxima.mean(dtype=np.float64)) if maxima.size else 0
        values = np.copysign(scale, selection.values)
        return Found(Selection(selection.indices, values, selection.numel), passes=1)


def bin_length_of(spec: TensorSpec | None) -> int:
    """Return the paper's bin length for the kind of layer, inferred from the tensor's shape."""
    return CONVOLUTION_BIN if spec is not None and len(spec.shape) > 2 else OTHER_BIN
