"""The carrier: a tiny tensor that ``compress`` returns, and that Horovod reduces instead of the
gradient.

Each rank writes these entries; their sum over the ranks proves that all ranks agree
(docs/adr/0001):

    entry              scale     meaning of its sum
    1                  1         number of ranks, times the factor by which Horovod multiplied the
                                 sum (for example, 1 / number of ranks for Average)
    rank, rank**2 and  1         proof that exactly the ranks of the compressor's process set were
    a random number              summed. The number in [0, 1) is derived from the rank. Without it,
                                 a sum over some ranks could look like the sum over all: ranks 1
                                 and 5 have the mean and the mean square of ranks 0 to 6
    words, words**2    2**-20    checksum of configuration, tensor and step, in words of few bits.
                                 On N ranks, N * sum(w**2) equals sum(w)**2 only if all ranks have
                                 the same word w. With ``check_replicas_every``, there is another
                                 checksum, of an applied gradient
    failed             2**-20    number of ranks that could not compress
    non-finite         2**-20    number of ranks with NaN or Inf in the tensor

All entries after the first four are scaled down, so that the carriers of different ranks are far
from parallel. Otherwise Adasum, which averages parallel vectors, could not be told from Average.

Integers are recovered from the sums by rounding, which limits the bits of a word (docs/adr/0001).
Carriers of 16-bit gradients are float32.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple, NoReturn

import numpy as np

from hvd_sparse.errors import RankMismatch, ReplicaMismatch, UnsupportedReduction
from hvd_sparse.wire.frame import crc32

CHECKSUM_BITS = 20
CHECKSUM_MASK = (1 << CHECKSUM_BITS) - 1
SCALE = 2.0**-20
SHARED = 4
"""Number of entries at the start of a carrier that are not scaled down."""

FLAGS = 2
"""Number of flags at the end of a carrier: one for a failure, and one for NaN or Inf."""


@lru_cache(maxsize=64)
def drawn_for(rank: int) -> float:
    return crc32(rank.to_bytes(4, "little")) / 2.0**32


@lru_cache(maxsize=64)
def _rank_sums(world_size: int) -> tuple[float, ...]:
    ranks = range(world_size)
    return (
        float(sum(ranks)),
        float(sum(rank * rank for rank in ranks)),
        sum(drawn_for(rank) for rank in ranks),
    )


@lru_cache(maxsize=64)  # nearly all tensors of a run have the same arguments
def _factor_of(sums: tuple[float, ...], world_size: int, slack: float) -> float:
    """Return the factor by which Horovod multiplied the sum of the carriers. Return 0 if ``sums``,
    the first ``SHARED`` entries of the reduced carrier, are no multiple of the expected sums, up to
    a relative error of ``slack``."""
    factor = sums[0] / world_size
    if not (factor > 0 and all(map(math.isfinite, sums))):
        return 0.0
    # Another reduction, or a sum over other ranks, would give these sums different factors.
    for value, each in zip(sums[1:], _rank_sums(world_size)):
        if abs(value / factor - each) > each * slack:
            return 0.0
    return factor


class CarrierReport(NamedTuple):
    """The content of the reduced carrier.

    factor : factor by which Horovod multiplied the sum of the ranks' carriers
    failures : number of ranks that could not compress
    non_finite : number of ranks with NaN or Inf in the tensor
    """

    factor: float
    failures: int
    non_finite: int


class CarrierLayout:
    """The places of the entries in a carrier (see the module).

    dtype : float32 or float64
    has_replica : the carrier has a second checksum, of the gradient applied in an earlier step
    """

    def __init__(self, dtype: np.dtype, world_size: int, has_replica: bool = False) -> None:
        self.dtype, self.world_size, self.has_replica = dtype, world_size, has_replica
        # N * word**2 is recovered from a sum of N rounded terms. The square of a word has twice the
        # word's bits, and the square of a sum of N words has 2 * log2(N) bits more. Three bits are
        # left for rounding.
        significand = np.finfo(dtype).nmant + 1
        fitting = (significand - 3 - 2 * math.ceil(math.log2(world_size))) // 2
        bits = max(1, min(CHECKSUM_BITS, fitting))
        self._places = range(0, CHECKSUM_BITS, bits)
        self._bits, self._mask = bits, (1 << bits) - 1
        self._units = SCALE * 2.0**-bits, SCALE * 2.0 ** (-2 * bits)
        self._words = len(self._places) * (2 if has_replica else 1)
        self.size = SHARED + 2 * self._words + FLAGS
        # Upper bound of the relative rounding error of a sum over the ranks.
        self._slack = (16 + world_size) * float(np.finfo(dtype).eps)
        self._templates: dict[int, np.ndarray] = {}  # constant entries, by rank

    def write(
        self, rank: int, checksum: int, *, failed: bool, replica: int = 0, is_finite: bool = True
    ) -> np.ndarray:
        """Return this rank's carrier, [size] of ``dtype``.

        checksum : checksum of configuration, tensor and step; the lowest ``CHECKSUM_BITS`` bits are
            sent
        failed : True if this rank could not compress
        replica : checksum of an applied gradient, if the layout has one
        is_finite : True if the tensor has no NaN or Inf
        """
        template = self._templates.get(rank)
        if template is None:
            template = np.zeros(self.size, self.dtype)
            template[:SHARED] = 1.0, rank, rank * rank, drawn_for(rank)
            # Store it only when it is complete: TensorFlow writes carriers in several threads.
            self._templates[rank] = template
        carrier = template.copy()
        # Words and squares are scaled to [0, SCALE) by powers of two, which is exact.
        mask, (unit, squared), at, words = self._mask, self._units, SHARED, self._words
        for each in (checksum, replica) if self.has_replica else (checksum,):
            for place in self._places:
                word = (each >> place) & mask
                carrier[at], carrier[at + words] = unit * word, squared * word * word
                at += 1
        if failed or not is_finite:
            carrier[-2], carrier[-1] = SCALE * failed, SCALE * (not is_finite)
        return carrier

    def read(
        self, reduced: np.ndarray, key: str, checksum: int | None = None, rate: float | None = None
    ) -> CarrierReport:
        """Check the reduced carrier, and return its content.

        key : the tensor's name, for errors
        checksum : this rank's own checksum; with None, the ranks are only compared with each other
        rate : this rank's learning rate, for errors; None if the checksum does not cover a rate

        Raises
        ------
        UnsupportedReduction : the reduced carrier is no multiple of the sum of all ranks' carriers
        RankMismatch : ranks differ in configuration, tensor or step (and none reports a failure)
        ReplicaMismatch : ranks have applied different gradients
        """
        values = reduced.tolist()  # a dozen plain numbers are faster than an array
        size = self.world_size
        # Check the reduction first, because after another one the factor is meaningless.
        factor = _factor_of(tuple(values[:SHARED]), size, self._slack)
        if not factor or not math.isfinite(sum(values)):
            self._refuse_reduction(values, key)
        failures = round(values[-2] / factor / SCALE)
        non_finite = round(values[-1] / factor / SCALE)
        # A rank that failed may have written any checksum, so its failure is the error to report.
        if not failures:
            (unit, squared), words, is_mine = self._units, self._words, True
            mine, known = (0, 0) if checksum is None else (checksum, len(self._places))
            for number in range(words):
                total = round(values[SHARED + number] / factor / unit)
                # By Cauchy-Schwarz N * sum(w**2) >= sum(w)**2, with equality only for equal words.
                if size * round(values[SHARED + words + number] / factor / squared) != total**2:
                    self._refuse_words(number, key, rate)
                if number < known:
                    word = (mine >> self._bits * number) & self._mask
                    is_mine = is_mine and total == size * word
            if not is_mine:  # for example, all carriers are those of an earlier step
                self._refuse_step(key)
        return CarrierReport(factor, failures, non_finite)

    def _refuse_reduction(self, values: list[float], key: str) -> NoReturn:
        size = self.world_size
        raise UnsupportedReduction(
            f"tensor {key!r}: Horovod's reduction gave {values[:SHARED]}, which is no multiple of "
            f"the sum {[size, *_rank_sums(size)]} over the {size} ranks of the compressor's "
            "process set; give Horovod op=hvd.Average or hvd.Sum (not Adasum, Min, Max or "
            "Product), and the same process_set as the compressor"
        )

    def _refuse_words(self, number: int, key: str, rate: float | None) -> NoReturn:
        if number < len(self._places):
            words = (
                f"tensor {key!r}: the ranks run different steps or configurations for it; they "
                "must call compress for the same tensors equally often, with the same options and "
                "loss scale, and an optimizer with the same settings"
            )
            if rate is not None:
                words += (
                    f"; the density follows the learning rate, which is {rate:g} on this rank: "
                    "step schedulers on all ranks alike, and let a worker that joins an elastic "
                    "run load the scheduler's state"
                )
            raise RankMismatch(words)
        raise ReplicaMismatch(
            f"tensor {key!r}: the gradients applied in the last checked step differ between ranks, "
            "so the replicas do too; go back to a checkpoint, and look for a faulty machine or "
            "memory, or code that changes Horovod's results on one rank"
        )

    def _refuse_step(self, key: str) -> NoReturn:
        raise RankMismatch(
            f"tensor {key!r}: the result has data of another step or configuration than this rank "
            "sent: Horovod's allreduce must not return the result of an earlier step"
        )


@lru_cache(maxsize=64)
def carrier_layout(
    dtype: np.dtype | str, world_size: int, has_replica: bool = False
) -> CarrierLayout:
    """Return the layout of the carriers of gradients with this dtype. Carriers are float64 for
    float64 gradients, and float32 for all others."""
    return CarrierLayout(
        np.dtype(np.float64 if np.dtype(dtype) == np.float64 else np.float32),
        world_size,
        has_replica,
    )
