"""The bytes that PyTorch's compressor hands to the collective, against those of the numpy core over
mpi4py."""

from __future__ import annotations

import base64
import struct
from typing import Any

import numpy as np
import pytest
from _torch_bytes_cases import OPTIONS, SHAPES, STEPS, gradients_of
from golden.decoder import Frame, Message, split_message
from harness import launch

METHODS = ("topk", "ldte_bs")
KEYS = list(SHAPES)
COMPRESSED = [key for key in KEYS if key != "vector"]


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    return launch("frontends/torch_bytes.py", 2, "mpi").check()


def messages_of(result: dict[str, Any], method: str) -> list[list[Message]]:
    """The decoded messages of one rank: a list a step, of one message a bucket."""
    names = sorted(name for name in result["horovod"] if name.startswith(f"hvd_sparse.{method}."))
    return [[decode(result["horovod"][name][step]) for name in names] for step in range(STEPS)]


def content_of(text: str) -> bytes:
    """Return the message inside a block: two lengths of 8 bytes, the message, then zeros."""
    block = base64.b64decode(text)
    length, size = struct.unpack_from("<QQ", block)
    assert length == len(block)
    assert not any(block[16 + size :])
    return block[16 : 16 + size]


def decode(text: str) -> Message:
    message, rest = split_message(content_of(text))
    assert message.error is None
    assert rest == b""
    return message


@pytest.mark.parametrize("method", METHODS)
def test_horovod_and_mpi_are_given_the_same_bytes(
    results: list[dict[str, Any]], method: str
) -> None:
    for result in results:
        names = [name for name in result["horovod"] if name.startswith(f"hvd_sparse.{method}.")]
        assert len(names) == len(result[method]["buckets"]) == 2
        for name in names:
            assert len(result["horovod"][name]) == STEPS
            contents = [content_of(each) for each in result["horovod"][name]]
            assert contents == [base64.b64decode(each) for each in result["mpi"][name]]
        assert result[method]["applied"] == result[method]["applied_by_mpi"]


@pytest.mark.parametrize("method", METHODS)
def test_another_decoder_finds_what_was_accumulated(
    results: list[dict[str, Any]], method: str
) -> None:
    """Replays error feedback from the decoded messages: each value is what was accumulated, bit for
    bit."""
    for rank, result in enumerate(results):
        accumulated = {
            key: np.zeros(SHAPES[key][0], accumulator_of(key)).ravel() for key in COMPRESSED
        }
        for step, messages in enumerate(messages_of(result, method)):
            for key, gradient in gradients_of(rank, step).items():
                if key in COMPRESSED:
                    accumulated[key] += gradient.ravel().astype(accumulator_of(key))
            for message in messages:
                assert (message.rank, message.step) == (rank, step)
                for position, frame in message.frames.items():
                    check_frame(frame, accumulated[KEYS[position]], method)
                    accumulated[KEYS[position]][list(frame.indices)] = 0
        for key, kept in result[method]["residuals"].items():
            assert base64.b64decode(kept) == accumulated[key].tobytes()


def accumulator_of(key: str) -> type:
    return np.float64 if SHAPES[key][1] == "float64" else np.float32


def check_frame(frame: Frame, accumulated: np.ndarray, method: str) -> None:
    count = int(accumulated.size * OPTIONS["density"] + 1e-9)
    indices = np.array(frame.indices)
    values = np.array(frame.values, {"f": np.float32, "d": np.float64}[frame.value_type])
    assert frame.numel == accumulated.size
    assert values.dtype == accumulated.dtype
    assert values.tobytes() == accumulated[indices].tobytes()
    assert np.delete(np.abs(accumulated), indices).max() <= np.abs(values).min()
    if method == "topk":
        assert indices.size == count
    else:
        assert 0.8 * count <= indices.size <= 1.3 * count


def test_each_tensor_travels_once_a_step(results: list[dict[str, Any]]) -> None:
    for result in results:
        for messages in messages_of(result, "topk"):
            members = sorted(KEYS[position] for message in messages for position in message.frames)
            assert members == sorted(COMPRESSED)
