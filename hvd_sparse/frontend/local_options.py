"""The options of local steps, of both frontends."""

from __future__ import annotations

from hvd_sparse.checks import check_number, check_truth, check_whole
from hvd_sparse.errors import InvalidOption


def check_local_steps(
    compression: object, every: object, outer_lr: object, outer_momentum: object, nesterov: object
) -> None:
    """Raise InvalidOption for invalid options of local steps."""
    if not callable(compression):
        raise InvalidOption(
            f"compression is {compression!r}: give a function that makes the compressor of the "
            "anchors, for example functools.partial(Compression.topk, density=0.01)"
        )
    check_whole(every, "every of LocalSteps", 1)
    check_number(outer_lr, "outer_lr of LocalSteps", 0)
    check_truth(nesterov, "nesterov of LocalSteps")
    if outer_momentum != 0:
        check_number(outer_momentum, "outer_momentum of LocalSteps", 0, 1, "0, or below 1")
    elif nesterov:
        raise InvalidOption(
            "nesterov of LocalSteps is True without outer_momentum: give one, for example "
            "outer_momentum=0.9"
        )
