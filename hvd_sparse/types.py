"""Values that travel between the parts: plain, frozen, framework-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Union

import numpy as np
from numpy.typing import DTypeLike

from hvd_sparse.errors import UnsupportedInput

INDEX_LIMIT = 2**32
"""Indices are uint32, so a tensor has fewer entries than this."""

FLOATS = {"float16", "bfloat16", "float32", "float64"}
"""The gradient dtypes that are compressed; float16 and bfloat16 are accumulated in float32."""


Memo = Union[None, float, list[float], Mapping[str, object]]
"""State that a part leaves for a tensor's next step: JSON-able, as checkpoints hold it."""


@dataclass(frozen=True)
class Selection:
    """The entries of one tensor that are sent.

    Attributes
    ----------
    indices : uint32 [count], ascending and unique
    values : float32 or float64 [count], the entries at those indices
    numel : entries in the tensor they were chosen from
    """

    indices: np.ndarray
    values: np.ndarray
    numel: int

    @property
    def count(self) -> int:
        """Return the number of entries."""
        return int(self.indices.size)

    def without_zeros(self) -> Selection:
        """Return the entries that have a sign."""
        is_kept = self.values != 0
        if is_kept.all():
            return self
        return Selection(self.indices[is_kept], self.values[is_kept], self.numel)

    def without(self, others: Selection) -> Selection:
        """Return the entries that are not among others, which are some of these."""
        is_left = np.ones(self.count, bool)
        is_left[np.searchsorted(self.indices, others.indices)] = False
        return Selection(self.indices[is_left], self.values[is_left], self.numel)

    @classmethod
    def empty(cls, numel: int, dtype: DTypeLike = np.float32) -> Selection:
        """Return a selection of no entries."""
        return cls(np.empty(0, np.uint32), np.empty(0, dtype), numel)


@dataclass(frozen=True)
class TensorSpec:
    """The properties of one registered tensor that all ranks must agree on.

    Attributes
    ----------
    key : its stable name
    shape : its dimensions, () for a scalar
    dtype : name of the gradient's dtype, for instance "float32"
    """

    key: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in FLOATS:
            raise UnsupportedInput(
                f"tensor {self.key!r} has dtype {self.dtype}: only {', '.join(sorted(FLOATS))} can "
                "be compressed; leave it out of the parameters given to the compressor"
            )
        if self.numel >= INDEX_LIMIT:
            raise UnsupportedInput(
                f"tensor {self.key!r} has {self.numel} entries: indices are 32 bits wide, so at "
                f"most {INDEX_LIMIT - 1}; split it into several parameters"
            )

    @cached_property
    def numel(self) -> int:
        """Return the number of entries."""
        numel = 1
        for dimension in self.shape:
            numel *= int(dimension)
        return numel

    @cached_property
    def accumulator(self) -> np.dtype:
        """Return the dtype of the residual: float64 for float64 gradients, else float32."""
        return np.dtype(np.float64 if self.dtype == "float64" else np.float32)


class Pace(NamedTuple):
    """The learning rate of a tensor's step, beside one to compare it with.

    Attributes
    ----------
    rate : of the step
    reference : mean rate of the run, or the first rate where the mean is not known
    is_mean : which of these
    """

    rate: float
    reference: float
    is_mean: bool = True

    @property
    def share(self) -> float:
        """Return the rate as a share of the reference; at most 1 where that is no mean."""
        if self.reference == 0:
            return 1.0 if self.rate else 0.0
        share = self.rate / self.reference
        return share if self.is_mean else min(1.0, share)
