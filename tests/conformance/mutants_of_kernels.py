"""Faults of kernels, by method: changes of the reference's methods."""

import numpy as np
from conformance.changes import result, text

from hvd_sparse.types import Selection

REACHING = "_reaching(np.abs(x), threshold)"
LARGEST = "_largest(x, min(count, x.size))"


def wide_indices(taken, *_):
    return Selection(taken.indices.astype(np.int64), taken.values, taken.numel)


FAULTS = {
    "moments": {
        "maximum without abs": text("magnitudes.max(", "x.max("),
        "float32 sum": text("magnitudes.sum(dtype=np.float64)", "magnitudes.sum(dtype=x.dtype)"),
    },
    "tail": {"tail > for >=": text("_reaching(magnitudes, threshold)", "magnitudes > rounded")},
    "digit_counts": {"bytes of the signed entries": text("np.abs(x)", "np.maximum(x, 0)")},
    "chunk_norms": {"chunks without their magnitudes": text("np.abs(x)", "np.maximum(x, 0)")},
    "take_at_least": {
        "take > for >=": text(REACHING, "np.abs(x) > x.dtype.type(threshold)"),
        "writes to its input": result(lambda taken, _, x, *__: x.sort() or taken),
        "takes zeros": text(REACHING, "np.abs(x) >= x.dtype.type(threshold)"),
        "threshold not rounded": text(REACHING, "(np.abs(x) >= np.float64(threshold)) & (x != 0)"),
        "takes NaN": text(REACHING, "~(np.abs(x) < x.dtype.type(threshold)) & (x != 0)"),
        "int64 indices": result(wide_indices),
    },
    "count_and_take": {
        "counts no infinity": text("least(x,", "least(np.where(np.isfinite(x), x, 0),"),
        "counts no more than it may take": text("taken.count,", "min(taken.count, capacity + 1),"),
        "takes more than it may": text("<= capacity", "<= capacity + 1"),
    },
    "take_at_most": {
        "at most: the first instead of the largest": text(
            "self.take_largest(x, most)",
            "Selection((all := self.take_at_least(x, threshold)).indices[:most], "
            "all.values[:most], x.size)",
        ),
        "at most: says what it took": text("return count,", "return min(count, most),"),
    },
    "take_largest": {
        "one too few": text(LARGEST, "_largest(x, max(1, min(count, x.size) - 1))"),
        "largest without abs": text(LARGEST, "_largest(np.maximum(x, 0), min(count, x.size))"),
        "ties to the higher index": text(LARGEST, "_largest(x[::-1], min(count, x.size))[::-1]"),
    },
    "take_bins": {"bins take zeros": text(" & (limits > 0) & (accumulated != 0)", "")},
    "accumulate": {"sum: NaN reaches the residual": text("if not found.is_finite:", "if False:")},
    "accumulate_and_take": {
        "fused: the tail is written before it is looked at": text(
            "np.copyto(", "out[out.size & ~15 :] = accumulated[out.size & ~15 :]\n    np.copyto("
        ),
        "fused: takes zeros where the threshold rounds to zero": text(
            "_reaching(magnitudes, aim.threshold)",
            "(magnitudes >= magnitudes.dtype.type(aim.threshold))",
        ),
        "fused: entries lost beyond the capacity": text("if fits:", "if True:"),
        "fused: NaN reaches the residual": text(
            "np.where(finite, accumulated, residual)", "accumulated"
        ),
        "fused: what is taken also stays": text("out[taken.indices] = 0.0", "pass"),
        "fused: one more than its capacity": text("<= aim.capacity", "<= aim.capacity + 1"),
        "a fused push that accumulates the gradient": text(
            "gradient = self.directed(", "self.directed("
        ),
    },
    "_directed": {
        "the second moment of one rank": text("(first * first, second)", "(second, second)"),
        "Adam without the scale": text(") * scale", ")"),
        "Adam's biased start": text("out_square * unbias2", "out_square"),
        "no least part of this gradient": text("library.maximum(", "(lambda x, y: x)("),
        "a mean with this gradient": text("if is_of_mean:", "if True:"),
        "the gradient where the mean is wanted": text("first if is_of_mean else ", ""),
        "an infinite square hidden": text(" + average * 0.0", ""),
        "moments of the step before": text("out=out_square", "out=out_square.copy()"),
        "a push that keeps the old velocity": text("out=pushed)", "out=(pushed := pushed.copy()))"),
        "a push that knows no Nesterov": text("if is_nesterov", "if False"),
    },
    "trim": {
        "trim: what nobody wrote where there are few": text(
            "Selection(taken.indices[kept], values, ",
            "Selection(np.resize(taken.indices[kept], count), np.resize(values, count), ",
        ),
        "trim: zeros are not given back": text("~kept]", "~kept & (taken.values != 0)]"),
        "trim: surplus lost": text("if out is not None:", "if False:"),
        "trim: ties to the higher index": text(
            "_largest(taken.values, min(count, taken.count))",
            "_largest(taken.values[::-1], min(count, taken.count))[::-1]",
        ),
        "trim: largest value for the smallest": text(".min()", ".max()"),
    },
    "assemble": {
        "assemble adds to what was there": text("out[:] = 0", "pass"),
        "assemble multiplies the sum": text(
            "part.values * out.dtype.type(factor)",
            "part.values\n    np.multiply(out, out.dtype.type(factor), out=out)",
        ),
        "assemble in another order": text("in parts:", "in reversed(parts):"),
    },
}
