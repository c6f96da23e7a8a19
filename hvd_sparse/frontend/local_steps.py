"""The base class of ``LocalSteps`` of PyTorch and TensorFlow."""

from __future__ import annotations

from collections.abc import Callable

from hvd_sparse.checks import check_number, check_truth, check_whole
from hvd_sparse.collectives.contract import is_elastic
from hvd_sparse.composition import refuse_hiding
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.compressor import Compressor
from hvd_sparse.types import Report, State


class LocalStepsBase:
    """Base class of ``LocalSteps``: counts the steps of the local optimizer, and exchanges the
    changes of the parameters after every ``every`` steps."""

    compressor: Compressor

    def __init__(
        self,
        compression: Callable[..., Compressor],
        every: int,
        outer_lr: float,
        outer_momentum: float,
        nesterov: bool,
    ) -> None:
        if not callable(compression):
            raise InvalidOption(
                f"compression is {compression!r}: give a function that makes a compressor, for "
                "example functools.partial(Compression.topk, density=0.01)"
            )
        if is_elastic():
            raise InvalidOption(
                "LocalSteps is made in an elastic run, whose new workers would lack the anchors: "
                "run without --min-np, or exchange gradients at every step, without LocalSteps"
            )
        check_whole(every, "every of LocalSteps", 1)
        check_number(outer_lr, "outer_lr of LocalSteps", 0)
        check_truth(nesterov, "nesterov of LocalSteps")
        check_number(outer_momentum, "outer_momentum of LocalSteps", 0, 1, with_low=True)
        if nesterov and not outer_momentum:
            raise InvalidOption(
                "nesterov of LocalSteps is True without outer_momentum: give one, for example "
                "outer_momentum=0.9"
            )
        self.every, self.taken = every, 0

    def _take(self, compressor: Compressor) -> None:
        self.compressor = compressor
        if isinstance(compressor, Compressor):
            try:
                check_local(compressor.configuration)
            except InvalidOption:
                compressor.close()
                raise

    def advance(self) -> None:
        """Count a step of the local optimizer. Exchange the changes of the parameters if ``every``
        steps were taken since the last exchange."""
        self.taken += 1
        if self.taken >= self.every:
            self.exchange()

    def exchange(self) -> None:
        """Exchange the changes of the parameters now, for example at the end of a training whose
        number of steps is not a multiple of ``every``. Collective. The call has no effect if no
        local step was taken since the last exchange."""
        if self.taken:
            self._exchange()
            self.taken = 0

    def _exchange(self) -> None:
        raise NotImplementedError

    def stats(self) -> Report:
        """Return the compressor's ``stats()``, in which each exchange counts as one step. Raises
        InvalidOption if the compressor counts nothing (``Compression.nothing``, Horovod's own)."""
        if not isinstance(self.compressor, Compressor):
            raise InvalidOption(
                f"the compressor of LocalSteps is {self.compressor!r}, which counts nothing: leave "
                "stats() out, or give LocalSteps a method of Compression that sends gradients"
            )
        return self.compressor.stats()

    def _state_of_compressor(self) -> Report | None:
        return self.compressor.state_dict() if isinstance(self.compressor, Compressor) else None

    def _load_compressor(self, state: State | None) -> None:
        has_state = isinstance(self.compressor, Compressor)
        if has_state != (state is not None):
            which = "lacks the state of a compressor" if has_state else "has that of another one"
            raise InvalidOption(
                f"the compressor of LocalSteps is {self.compressor!r}, but the state to load "
                f"{which}: give LocalSteps the compression of the run that saved the state"
            )
        if state is not None:
            self.compressor.load_state_dict(state)


def check_local(configuration: Configuration) -> None:
    """Raise InvalidOption if ``LocalSteps`` does not work with a compressor's configuration."""
    memory = configuration.memory
    refuse_hiding(configuration.rule, "local steps send between passes")
    if memory.finishes and getattr(memory, "momentum", True):
        raise InvalidOption(
            f"memory {memory.id!r} computes an optimizer's updates from gradients, but "
            "LocalSteps sends changes of parameters, which it would multiply: use a method "
            "with error feedback, without optimizer=; dgc has it with momentum=0.0"
        )
    if not configuration.rollback:
        raise InvalidOption(
            "rollback is False, but LocalSteps repeats a failed exchange, whose entries "
            "would then be in the residual already: leave rollback=False out"
        )


def refuse_unfrozen(what: str) -> None:
    raise InvalidOption(
        f"{what} was frozen when LocalSteps was made, and is trained now: it is not exchanged, so "
        "its values would differ between ranks; make LocalSteps while it is unfrozen and freeze "
        "it afterwards, or make another LocalSteps now"
    )
