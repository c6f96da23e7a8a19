"""The carrier: the tiny tensor that Horovod reduces in place of the gradient.

Horovod allreduces whatever ``compress`` returns.  Indices cannot go through a sum, so the entries
travel by allgather and the sum carries what all ranks must agree on:

    entry              scale     what its sum tells
    1                  1         the factor that Horovod applied: Sum, Average and predivide come out right untold
    three of the rank  1         that it was a sum, over exactly the ranks of the compressor's process set: the rank,
                                 its square, and a number in [0, 1) drawn for it (other ranks can
                                 have the first two sums' means, as {1, 2, 6} among 0 to 6)
    words, words**2    2**-20    a checksum of configuration, tensor and step, in a few small words: N * sum(w**2)
                                 equals sum(w)**2 only when all ranks have the same word; with
                                 ``check_replicas_every`` another, of the gradient that was applied
    failed             2**-20    how many ranks could not compress
    non-finite         2**-20    how many ranks have NaN or Inf in the tensor
    density, norm      2**-20    telemetry: part of the entries sent, and |residual| squeezed into [0, 1)

All but the ranks is scaled down so that the carriers of different ranks are far from parallel: of
parallel vectors Adasum makes their average and could not be told from it.

Sums are recovered by rounding.  How many bits fit a word follows from the dtype and the number of
ranks: 20 in float64 up to 32 ranks; in float32 8 on 4 ranks, 5 on 32.  float16 and bfloat16 cannot
hold a carrier: they travel as float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from hvd_sparse.core.wire.checksum import crc32
from hvd_sparse.errors import RankMismatch, ReplicaMismatch, UnsupportedReduction

CHECKSUM_BITS = 20
SCALE = 2.0**-20
SHARED = 4
"""Entries that come first, in full scale."""
TOLD = 4
"""Entries that come last."""


def drawn_for(rank: int) -> float:
    """A number in [0, 1) for a rank, with no relation to the numbers of others."""
    return crc32(rank.to_bytes(4, "little")) / 2.0**32


@lru_cache(maxsize=64)
def _rank_sums(world_size: int) -> tuple[float, ...]:
    ranks = range(world_size)
    return (
        float(sum(ranks)),
        float(sum(rank * rank for rank in ranks)),
        sum(drawn_for(rank) for rank in ranks),
    )


@dataclass(frozen=True)
class CarrierReport:
    """What the reduced carrier says.

    Attributes
    ----------
    factor : what Horovod multiplied the sum by: 1 for Sum, 1/N for Average
    failures : how many ranks could not compress
    non_finite : how many ranks have NaN or Inf in the tensor
    density : mean over the ranks of the part of the tensor's entries that was sent
    norm : mean over the ranks of the squeezed norm of the residual (0 without telemetry)
    """

    factor: float
    failures: int
    non_finite: int
    density: float
    norm: float


@dataclass(frozen=True)
class CarrierLayout:
    """Where the entries of a carrier lie, for one dtype and number of ranks."""

    dtype: np.dtype
    world_size: int
    has_replica: bool = False
    """A second checksum follows the first: of the gradient that was applied in an earlier step."""

    @cached_property
    def word_bits(self) -> int:
        """Bits of a checksum word: N * word**2 must be recovered by rounding from a sum of N
        rounded terms."""
        significand = np.finfo(self.dtype).nmant + 1
        return max(
            1,
            min(CHECKSUM_BITS, (significand - 3 - 2 * math.ceil(math.log2(self.world_size))) // 2),
        )

    @cached_property
    def words(self) -> int:
        return math.ceil(CHECKSUM_BITS / self.word_bits) * (2 if self.has_replica else 1)

    @cached_property
    def _slack(self) -> float:
        """By which rounding can move a sum over the ranks, relative to it."""
        return (16 + self.world_size) * float(np.finfo(self.dtype).eps)

    @cached_property
    def size(self) -> int:
        return SHARED + 2 * self.words + TOLD

    def write(
        self,
        rank: int,
        checksum: int,
        *,
        failed: bool,
        replica: int = 0,
        is_finite: bool = True,
        density: float = 0.0,
        norm: float = 0.0,
    ) -> np.ndarray:
        """This rank's carrier, [size]."""
        bits, mask = self.word_bits, (1 << self.word_bits) - 1
        words: list[int] = []
        for each in (checksum, replica) if self.has_replica else (checksum,):
            for place in range(0, CHECKSUM_BITS, bits):
                words.append((each >> place) & mask)
        # Plain numbers, and one array in the end: for a dozen of them numpy's arithmetic is slower.
        carrier = [1.0, float(rank), float(rank * rank), drawn_for(rank)]
        unit, squared = SCALE * 2.0**-bits, SCALE * 2.0 ** (-2 * bits)
        carrier.extend(map(unit.__mul__, words))
        for word in words:
            carrier.append(squared * word * word)
        squeezed = norm / (1.0 + norm) if math.isfinite(norm) else 1.0
        carrier += (SCALE * failed, SCALE * (not is_finite), SCALE * density, SCALE * squeezed)
        return np.array(carrier, self.dtype)

    def read(self, reduced: np.ndarray, key: str, checksum: int | None = None) -> CarrierReport:
        """What the ranks said together.

        checksum : this rank's own, which the others' must be; None compares only those

        Raises
        ------
        UnsupportedReduction : this is no sum over the process set's ranks
        RankMismatch : ranks differ in configuration, tensor or step (and none says that it failed)
        ReplicaMismatch : they have applied different gradients
        """
        values = reduced.tolist()  # a dozen: plain numbers are faster than arrays
        size = self.world_size
        factor = values[0] / size
        self._check_reduction(values, factor, key)
        sums = list(map((1.0 / factor).__mul__, values))
        failures, non_finite = round(sums[-4] / SCALE), round(sums[-3] / SCALE)
        if not failures and not self._is_own(sums, checksum):
            self._check_words(self._words_agree(sums), key)
            self._check_own(sums, checksum, key)
        return CarrierReport(
            factor, failures, non_finite, sums[-2] / SCALE / size, sums[-1] / SCALE / size
        )

    def _is_own(self, sums: list[float], checksum: int | None) -> bool:
        """Tell whether all ranks have written this rank's checksum: the sums of the words and of
        their squares leave no room for another.  False where that has to be looked at closely."""
        if checksum is None or self.has_replica:
            return False
        bits, ranks, behind = self.word_bits, self.world_size, SHARED + self.words
        unit, squared, mask = SCALE * 2.0**-bits, SCALE * 2.0 ** (-2 * bits), (1 << bits) - 1
        for number, place in enumerate(range(0, CHECKSUM_BITS, bits)):
            word = (checksum >> place) & mask
            if round(sums[SHARED + number] / unit) != ranks * word:
                return False
            if round(sums[behind + number] / squared) != ranks * word * word:
                return False
        return True

    def _check_reduction(self, values: list[float], factor: float, key: str) -> None:
        size = self.world_size
        wanted = _rank_sums(size)
        is_finite = factor > 0 and all(map(math.isfinite, values))
        if is_finite:
            slack = self._slack
            for value, each in zip(values[1:SHARED], wanted):
                if abs(value / factor - each) > each * slack:
                    break
            else:
                return
        raise UnsupportedReduction(
            f"tensor {key!r}: Horovod's reduction gave {values[:SHARED]}, which is no multiple of "
            "the sum "
            f"{[size, *wanted]} over the {size} ranks of the compressor's process set; give "
            "Horovod "
            "op=hvd.Average or hvd.Sum (not Adasum, Min, Max or Product), and the same process_set "
            "as the compressor"
        )

    def _check_words(self, agree: list[bool], key: str) -> None:
        if not agree[0]:
            raise RankMismatch(
                f"tensor {key!r}: the ranks do not run the same step of the same configuration on "
                "it; "
                "they must call compress for the same tensors equally often, with the same options"
            )
        if not agree[-1]:
            raise ReplicaMismatch(
                f"tensor {key!r}: the gradients that were applied in the last step that was "
                "checked differ between ranks, "
                "so the replicas do too; go back to a checkpoint, and look for a faulty machine or "
                "memory, or for code "
                "that changes results of Horovod's on one rank"
            )

    def _check_own(self, sums: list[float], checksum: int | None, key: str) -> None:
        """Compare with what this rank has written: carriers of an old step agree among
        themselves."""
        if checksum is None:
            return
        unit, mask = SCALE * 2.0**-self.word_bits, (1 << self.word_bits) - 1
        for number, place in enumerate(range(0, CHECKSUM_BITS, self.word_bits)):
            own = (checksum >> place) & mask
            if round(sums[SHARED + number] / unit) != self.world_size * own:
                raise RankMismatch(
                    f"tensor {key!r}: the ranks agree, and on another step or configuration than "
                    "this rank's: the sum is not of what this rank has sent; what moves bytes must "
                    "not deliver those of another step"
                )

    def _words_agree(self, sums: list[float]) -> list[bool]:
        """Whether the ranks agree in each of the checksums."""
        unit, squared, behind = (
            SCALE * 2.0**-self.word_bits,
            SCALE * 2.0 ** (-2 * self.word_bits),
            SHARED + self.words,
        )
        agree = [
            self.world_size * round(second / squared) == round(first / unit) ** 2
            for first, second in zip(sums[SHARED:behind], sums[behind:-TOLD])
        ]
        half = self.words // 2
        return [all(agree[:half]), all(agree[half:])] if self.has_replica else [all(agree)]


@lru_cache(maxsize=64)
def carrier_layout(dtype: Any, world_size: int, has_replica: bool = False) -> CarrierLayout:
    """The layout for gradients of a dtype: float64 keeps its own, everything else travels as
    float32."""
    return CarrierLayout(
        np.dtype(np.float64 if np.dtype(dtype) == np.float64 else np.float32),
        world_size,
        has_replica,
    )
