from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs.contract import SignCodec, Signs
from hvd_sparse.errors import UnsupportedInput
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import Frame, need, need_ascending, need_size

MOST_ENTRIES = 2**31


@CODECS.register("sign_index")
@dataclass(frozen=True)
class SignIndex(SignCodec):
    """Send a 32-bit word for every entry, and the mean magnitude of all entries.

        body: float32 or float64 magnitude; uint32 words [count]: 2 * index, plus 1 if negative

    With method ``strom``, the magnitude is the paper's threshold, unless the memory sends parts of
    entries. Encoding raises UnsupportedInput for tensors of more than 2^31 entries. Cost of
    encoding and of decoding: one copy of the indices.

    Paper: strom2015scalable.
    """

    number = 7
    needs_host = ""

    def encode_signs(self, kept: Selection, kernels: Packers) -> list[np.ndarray]:
        if kept.numel > MOST_ENTRIES:
            raise UnsupportedInput(
                f"codec sign_index has 31 bits for an index, and the tensor has {kept.numel} "
                "entries: use codec='sign_mean', or split the tensor"
            )
        words = kept.indices << np.uint32(1)
        words |= np.signbit(kept.values)
        return [words.astype("<u4", copy=False)]

    def decode_signs(self, frame: Frame, kernels: Packers) -> Signs:
        need_size(frame, 4 * frame.count)
        words = frame.body.view("<u4")
        indices = words >> np.uint32(1)
        need(
            frame.numel <= MOST_ENTRIES,
            f"a tensor of {frame.numel} entries is too long for 31-bit indices",
        )
        need_ascending(indices, frame.numel)
        return indices, (words & np.uint32(1)).astype(np.bool_)

    def signs_bytes(self, count: int, numel: int) -> float:
        return 4 * count
