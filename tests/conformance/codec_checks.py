"""What every codec promises, as checks that any codec can be put to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hvd_sparse.errors import CorruptPayload
from hvd_sparse.types import Selection


def selection_of(indices: Iterable[int], numel: int, dtype: str = "float32", seed: int = 0) -> Selection:
    chosen = np.fromiter(indices, np.uint32)
    values = np.random.default_rng(seed).normal(size=chosen.size).astype(dtype)
    return Selection(chosen, values, numel)


def check_round_trip(codec: Any, selection: Selection) -> np.ndarray:
    """Bytes that stand alone, from which the same selection comes back: bit for bit if the codec is exact."""
    payload = codec.encode(selection)
    assert payload.dtype == np.uint8 and payload.ndim == 1
    decoded = codec.decode(payload)
    assert decoded.numel == selection.numel
    assert decoded.indices.dtype == np.uint32
    assert decoded.indices.tolist() == selection.indices.tolist()
    assert decoded.values.dtype == selection.values.dtype
    if codec.is_exact:
        assert decoded.values.tobytes() == selection.values.tobytes()
    assert codec.encode(decoded).tobytes() == payload.tobytes(), "what is decoded does not encode to the same bytes"
    return payload


def check_refuses(codec: Any, buffer: np.ndarray, what: str) -> None:
    """CorruptPayload and nothing else: neither another error nor a selection."""
    try:
        selection = codec.decode(buffer)
    except CorruptPayload:
        return
    raise AssertionError(f"{what} was read as {selection}")


def check_refuses_damage(codec: Any, selection: Selection) -> None:
    """Every truncation, every changed byte (each of its bits, and all of them), and bytes that follow."""
    payload = codec.encode(selection)
    for size in range(payload.size):
        check_refuses(codec, payload[:size], f"a payload cut to {size} bytes")
    for position in range(payload.size):
        for mask in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            flipped = payload.copy()
            flipped[position] ^= mask
            check_refuses(codec, flipped, f"byte {position} changed by {mask:#x}")
    check_refuses(codec, np.append(payload, np.uint8(0)), "a payload with a byte behind it")
    check_refuses(codec, np.concatenate([payload, payload]), "two payloads")


def check_codec(codec: Any) -> None:
    """All of the above at once: what the mutants are put to."""
    for dtype in ("float32", "float64"):
        for indices, numel in (((), 9), ((0,), 1), ((0, 8), 9), (range(9), 9)):
            check_round_trip(codec, selection_of(indices, numel, dtype))
    check_refuses_damage(codec, selection_of((1, 5), 9))
