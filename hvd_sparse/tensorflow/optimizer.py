"""Momentum must be applied once: taking it out of a Keras SGD, and finding it where it was left
in."""

from __future__ import annotations

import logging
import sys
from typing import Any

import tensorflow as tf

from hvd_sparse.errors import InvalidOption, UnsupportedInput

logger = logging.getLogger("hvd_sparse")


def take_momentum(optimizer: Any) -> tuple[float, bool, float]:
    """Set a Keras SGD's momentum and Nesterov to zero; return what they were, and say so.

    Keras's own weight decay is decoupled from the gradient and so stays with the optimizer.
    """
    names = {cls.__name__ for cls in type(optimizer).__mro__}
    if "SGD" not in names or not hasattr(optimizer, "momentum"):
        raise UnsupportedInput(
            f"{type(optimizer).__name__} has no momentum that could be corrected: use a Keras SGD "
            "with dgc, "
            "or a method with error_feedback, which goes with any optimizer"
        )
    config = optimizer.get_config()
    momentum, nesterov = float(config["momentum"]), bool(config["nesterov"])
    optimizer.momentum = 0.0
    optimizer.nesterov = False
    if hasattr(optimizer, "_momentum"):  # the legacy SGD looks here whether to keep slots
        optimizer._momentum = False
    logger.warning(
        "momentum %g%s was taken out of the optimizer; the compressor applies it",
        momentum,
        " (Nesterov)" if nesterov else "",
    )
    return momentum, nesterov, 0.0


def refuse_momentum() -> None:
    """InvalidOption if the Keras optimizer that calls ``compress`` has momentum.

    Looked for in Horovod's Keras frames; with a tape nobody knows what the gradients will be given
    to.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "horovod._keras" and hasattr(
            frame.f_locals.get("self"), "get_config"
        ):
            _check(frame.f_locals["self"])
            return
        frame = frame.f_back


def _check(optimizer: Any) -> None:
    with tf.init_scope():  # the configuration holds values, which do not exist inside a graph
        config = optimizer.get_config()
    if config.get("momentum") or "beta_1" in config:
        what = (
            f"momentum {config['momentum']}"
            if config.get("momentum")
            else f"beta_1 {config['beta_1']}"
        )
        raise InvalidOption(
            f"the optimizer has {what}, and momentum correction applies momentum already: doubled "
            "momentum diverges; "
            "give the optimizer to Compression.dgc(..., optimizer=optimizer), or use SGD without "
            "momentum"
        )
