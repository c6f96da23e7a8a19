"""Models, whose shapes the gradients of ``python -m benchmarks step`` have."""

from __future__ import annotations

import math

from benchmarks._gradients import padded
from benchmarks.architectures import parameters

Shape = tuple[int, ...]

OVERHEAD = "overhead"
PAIRS = 64
SMALL: Shape = (64, 64)
"""Shape of a compressed tensor, so small that nearly all time is spent outside the kernels."""
BIAS: Shape = (256,)
MADE: dict[str, list[Shape]] = {"large": [(4096, 2048), BIAS], "ddp": [(512, 512)] * 25}
TITLES = {
    OVERHEAD: f"{PAIRS} compressed tensors of {math.prod(SMALL):,} entries and {PAIRS} dense ones "
    f"of {BIAS[0]}",
    "transformer": "transformer",
    "resnet50": "ResNet-50",
    "lstm": "LSTM",
    "vgg16": "VGG-16",
    "large": "a tensor of 8,388,608 entries",
    "ddp": "a bucket of 25 MB in DistributedDataParallel",
    "tensorflow": "ResNet-50 in TensorFlow",
}
VECTORS = {"dense": 3, "fp16": 4, "dgc": 7}
"""Number of vectors as large as all gradients that a rank keeps: parameters, gradients, the floor's
residual, and the method's state."""
USUAL_VECTORS = 5
BASE_BYTES = 600 << 20
"""Other memory of a rank, with Horovod's buffers."""


def tensors_of(model: str) -> list[tuple[str, Shape]]:
    if model == OVERHEAD:
        return [
            (f"{number}.{part}", shape)
            for number in range(PAIRS)
            for part, shape in (("weight", SMALL), ("bias", BIAS))
        ]
    if model in MADE:
        return [(f"{number}.weight", shape) for number, shape in enumerate(MADE[model])]
    return [(listed.name, tuple(listed.shape)) for listed in parameters(model)]


def needed_bytes(model: str, method: str, ranks: int) -> int:
    numel = sum(padded(math.prod(shape)) for _, shape in tensors_of(model))
    vectors = VECTORS.get(method.split(",")[0], USUAL_VECTORS) + 4 * ("optimizer=" in method)
    return ranks * (4 * numel * vectors + BASE_BYTES)
