"""Worker: the bytes handed to the allgather, against those that the numpy core sends over mpi4py.
Argument: ranks."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, run_cases
from _integer_gradients import SHAPES, gradients_of
from _tensorflow_cases import (
    Compression,
    begin,
    end,
    hvd,
    linear_loss,
    meet,
    residuals_of,
    tape_gradients,
    variables_of,
)

from hvd_sparse.collectives.mpi import MpiCollective
from hvd_sparse.step.buckets import one_per_tensor
from hvd_sparse.step.session import Session
from hvd_sparse.wire.padding import read_blocks

STEPS = 8


class RecordingCollective(MpiCollective):
    """Keeps what is handed to its allgather, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, list[bytes]] = {}

    def allgather(self, array: np.ndarray, name: str) -> Any:
        self.sent.setdefault(name, []).append(array.tobytes())
        return super().allgather(array, name)


def record_what_is_sent(compressor: Any) -> dict[int, list[bytes]]:
    """What the graph's first function hands to the allgather, without padding, by the tensor's
    position; filled as training goes on."""
    compressor.resolve()
    sent: dict[int, list[bytes]] = {}
    functions = compressor.functions
    send = functions.send

    def recording(gradient: np.ndarray, token: Any, scale: Any) -> Any:
        wire, number, outgoing, splits = send(gradient, token, scale)
        (message,) = read_blocks(outgoing, name="allgather")
        sent.setdefault(functions._tickets[int(number)].position, []).append(message.tobytes())
        return wire, number, outgoing, splits

    functions.send = recording
    return sent


def both_messages(name: str, dtype: Any, method: str, **options: Any) -> dict[str, Any]:
    """Messages of both sides as hexadecimal, by tensor, for the same gradients."""
    variables = variables_of(SHAPES, dtype=dtype)
    compressor = getattr(Compression, method)(
        variables,
        density=0.05,
        name=name,
        **SPARSE_ONLY,
        **options,
    )
    ours = record_what_is_sent(compressor)
    collective = RecordingCollective()
    specs = compressor.step.specs
    plan = one_per_tensor(specs, compressor.configuration)
    kernels = compressor.step.pipeline.kernels
    session = Session(compressor.configuration, specs, collective, buckets=plan, kernels=kernels)
    run = tf.function(
        lambda gradients: tape_gradients(linear_loss(variables, gradients), variables, compressor)
    )
    differences = 0
    for step in range(STEPS):
        gradients = gradients_of(hvd.rank(), step)
        reduced = session.reduce({spec.key: gradient for spec, gradient in zip(specs, gradients)})
        for spec, tensor in zip(specs, run([tf.cast(gradient, dtype) for gradient in gradients])):
            differences += int(
                np.count_nonzero(np.asarray(tf.cast(reduced[spec.key], dtype) != tensor))
            )
    core = {
        position: collective.sent[f"hvd_sparse.{name}.{i}"] for i, (position,) in enumerate(plan)
    }
    residuals = residuals_of(compressor)
    compressor.close()
    messages = {"ours": ours, "core": core}
    return {
        side: {str(at): [message.hex() for message in sent[at]] for at in sorted(sent)}
        for side, sent in messages.items()
    } | {
        "residuals": [array.tobytes().hex() for array in residuals.values()],
        "result_differences": differences,
    }


CASES = {
    "float32_ldte_bs": partial(both_messages, dtype=tf.float32, method="ldte_bs"),
    "float64_topk": partial(both_messages, dtype=tf.float64, method="topk"),
    "bfloat16_ldte_bs_without_a_second_buffer": partial(
        both_messages, dtype=tf.bfloat16, method="ldte_bs", rollback=False
    ),
}

if __name__ == "__main__":
    begin(int(sys.argv[1]))
    run_cases(CASES, hvd.rank(), meet)
    end()
