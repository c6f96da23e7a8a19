"""Types that selectors, memories and other parts pass to each other, for all frameworks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Union

import numpy as np
from numpy.typing import DTypeLike

from hvd_sparse.errors import UnsupportedInput

INDEX_LIMIT = 2**32
"""Tensors have fewer entries than this, because indices are uint32."""

FLOATS = {"float16", "bfloat16", "float32", "float64"}
"""Supported dtypes of gradients; float16 and bfloat16 are accumulated in float32."""

# Aliases of Any for objects of users and of untyped frameworks. The code that uses such an object
# checks it, and its error names the object's type.
ProcessSet = Any  # a process set of Horovod
GradScaler = Any  # the loss scaler of the framework, or a callable that returns the scale
Params = Any  # the tensors to compress, in the form that the frontend accepts
Optimizer = Any  # an optimizer of the framework, or Horovod's wrapper of it
Option = Any  # a user's choice, before it is checked
Context = Any  # returned by ``compress``, and passed by Horovod to ``decompress``
Value = Any  # a value whose type is not declared, for example a variable of TensorFlow
Settings = dict[str, Any]  # names and values that an optimizer holds
Report = dict[str, Any]  # a mapping for users that can be converted to JSON
State = Mapping[str, Any]  # a saved state or one of its tensors, before ``state_check`` checks it

Memo = Union[None, float, list[float], Mapping[str, object]]
"""What a selector or an exchange remembers between a tensor's steps; JSON-serializable."""


@dataclass(frozen=True)
class Selection:
    """A sparse vector: selected entries of one tensor.

    Attributes
    ----------
    indices : uint32 [count], ascending and unique
    values : float32 or float64 [count], the values at these indices
    numel : number of entries of the tensor
    """

    indices: np.ndarray
    values: np.ndarray
    numel: int

    @property
    def count(self) -> int:
        return int(self.indices.size)

    def without_zeros(self) -> Selection:
        is_kept = self.values != 0
        if is_kept.all():
            return self
        return Selection(self.indices[is_kept], self.values[is_kept], self.numel)

    def without(self, others: Selection) -> Selection:
        """Return the entries that are not in ``others``, which must be a part of this selection."""
        is_left = np.ones(self.count, bool)
        is_left[np.searchsorted(self.indices, others.indices)] = False
        return Selection(self.indices[is_left], self.values[is_left], self.numel)

    def within(self, indices: np.ndarray) -> Selection:
        """Return the entries whose indices are also in ``indices``."""
        is_kept = np.isin(self.indices, indices, assume_unique=True)
        return Selection(self.indices[is_kept], self.values[is_kept], self.numel)

    def plus(self, other: Selection) -> Selection:
        """Return the sum of two selections. It has every index that at least one of them has."""
        indices = np.union1d(self.indices, other.indices)
        values = np.zeros(indices.size, self.values.dtype)
        values[np.searchsorted(indices, self.indices)] = self.values
        with np.errstate(over="ignore"):  # the caller checks for Inf
            values[np.searchsorted(indices, other.indices)] += other.values
        return Selection(indices, values, self.numel)

    def minus(self, other: Selection) -> Selection:
        """Subtract the values of ``other``, all of whose indices must be in this selection."""
        values = self.values.copy()
        values[np.searchsorted(self.indices, other.indices)] -= other.values
        return Selection(self.indices, values, self.numel)

    def region(self, region: slice) -> Selection:
        """Return the entries in ``region``, with indices relative to the region's start."""
        first, last = np.searchsorted(self.indices, [region.start, region.stop])
        indices = self.indices[first:last] - np.uint32(region.start)
        return Selection(indices, self.values[first:last], region.stop - region.start)

    @classmethod
    def empty(cls, numel: int, dtype: DTypeLike = np.float32) -> Selection:
        return cls(np.empty(0, np.uint32), np.empty(0, dtype), numel)

    @classmethod
    def joined(cls, regions: Sequence[tuple[slice, Selection]], numel: int) -> Selection:
        """Return one selection of a tensor of ``numel`` entries from the selections of its regions,
        whose indices are relative to the regions' starts. The regions are in ascending order; there
        is at least one."""
        indices = [part.indices + np.uint32(region.start) for region, part in regions]
        values = [part.values for _, part in regions]
        return cls(np.concatenate(indices), np.concatenate(values), numel)


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of a tensor of the compressor. They must be equal on all ranks.

    Raises
    ------
    UnsupportedInput : the dtype is not supported, or the tensor has 2**32 or more entries

    Attributes
    ----------
    key : the tensor's stable name
    shape : its dimensions; () for a scalar
    dtype : name of the gradient's dtype, for example "float32"
    """

    key: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in FLOATS:
            raise UnsupportedInput(
                f"tensor {self.key!r} has dtype {self.dtype}: only {', '.join(sorted(FLOATS))} can "
                "be compressed; leave it out of the parameters given to the compressor, or let "
                "DistributedDataParallel ignore it"
            )
        if self.numel >= INDEX_LIMIT:
            raise UnsupportedInput(
                f"tensor {self.key!r} has {self.numel} entries: indices have 32 bits, which allow "
                f"at most {INDEX_LIMIT - 1}; split it into several parameters"
            )

    @cached_property
    def numel(self) -> int:
        return math.prod(map(int, self.shape))

    @cached_property
    def accumulator(self) -> np.dtype:
        """The dtype of the residual: float64 for float64 gradients, otherwise float32."""
        return np.dtype(np.float64 if self.dtype == "float64" else np.float32)


class Pace(NamedTuple):
    """The learning rate of a tensor in one step, and the rate with which it is compared.

    reference : mean learning rate of the run, or the first rate if the mean is not known
    is_mean : whether ``reference`` is the mean
    """

    rate: float
    reference: float
    is_mean: bool = True

    @property
    def share(self) -> float:
        """``rate / reference``, at most 1 if the run's mean rate is not known. If ``reference`` is
        0, the share is 1 for a rate above 0, and 0 for a rate of 0."""
        if self.reference == 0:
            return 1.0 if self.rate else 0.0
        share = self.rate / self.reference
        return share if self.is_mean else min(1.0, share)
