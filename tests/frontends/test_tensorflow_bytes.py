"""The bytes that TensorFlow's compressor hands to the allgather, against those of the numpy core
over mpi4py."""

from __future__ import annotations

import numpy as np
import pytest
from _integer_gradients import SHAPES, gradients_of
from _outcomes import measured
from golden.decoder import Frame, split_message
from harness import Outcome, launch

CASES = {
    "float32_ldte_bs": np.float32,
    "float64_topk": np.float64,
    "bfloat16_ldte_bs_without_a_second_buffer": np.float32,
}
STEPS = 8


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return launch("frontends/tensorflow_bytes.py", 2, "mpi", "2")


def test_the_launch_ends_well_and_all_its_cases_are_checked(outcome: Outcome) -> None:
    for result in outcome.check():
        assert list(result) == list(CASES)


@pytest.mark.parametrize("case", CASES)
def test_horovod_and_mpi_are_given_the_same_bytes(outcome: Outcome, case: str) -> None:
    for result in measured(outcome, case):
        assert [len(result["ours"][str(position)]) for position in range(len(SHAPES))] == [
            STEPS
        ] * len(SHAPES)
        assert result["ours"] == result["core"]
        assert result["result_differences"] == 0


@pytest.mark.parametrize("case", CASES)
def test_another_decoder_finds_what_was_accumulated(outcome: Outcome, case: str) -> None:
    """Replays error feedback from the decoded messages: each value is what was accumulated, bit for
    bit."""
    for rank, result in enumerate(measured(outcome, case)):
        for position, shape in enumerate(SHAPES):
            accumulated = np.zeros(int(np.prod(shape)), CASES[case])
            for step, text in enumerate(result["ours"][str(position)]):
                accumulated += gradients_of(rank, step)[position].ravel().astype(CASES[case])
                frame = frame_of(bytes.fromhex(text), rank, step, position)
                check_frame(frame, accumulated)
                accumulated[list(frame.indices)] = 0
            assert result["residuals"][position] == accumulated.tobytes().hex()


def frame_of(data: bytes, rank: int, step: int, position: int) -> Frame:
    message, rest = split_message(data)
    assert rest == b""
    assert message.error is None
    assert (message.rank, message.step, list(message.frames)) == (rank, step, [position])
    return message.frames[position]


def check_frame(frame: Frame, accumulated: np.ndarray) -> None:
    count = max(1, int(accumulated.size * 0.05 + 1e-9))
    indices, values = np.array(frame.indices), np.array(frame.values, accumulated.dtype)
    assert frame.numel == accumulated.size
    assert np.dtype(frame.value_type) == accumulated.dtype
    assert values.tobytes() == accumulated[indices].tobytes()
    assert 0.8 * count <= indices.size <= 1.3 * count
    assert np.abs(np.delete(accumulated, indices)).max() <= np.abs(values).min()
