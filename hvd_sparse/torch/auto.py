"""The compressor that measures whether it is worth while, and steps aside where it is not."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..core.composition import PLANNED
from ..core.runs import StepRun, Ticket
from ..core.state_check import IncompatibleKeys
from ..errors import InvalidOption, SparseError
from ..runtime.measuring import StepStarts
from ..runtime.trial import SPARSE, Trial, Verdict
from .compression import TorchCompressor
from .views import check_device, like

logger = logging.getLogger("hvd_sparse")


@dataclass(eq=False)
class Passing:
    """A gradient that Horovod averages as it is, or as float16."""

    gradient: torch.Tensor
    key: str


class AutoCompressor(TorchCompressor):
    """A ``TorchCompressor`` whose steps go the way that a trial says.  Made by ``Compression.auto``.

    On a dense way gradients are Horovod's own business, without a copy and without a carrier; but first every tensor has
    one step that sends its residual along.
    """

    def __init__(self, params: Any, configuration: Any, process_set: Any, grad_scaler: Any, trial: Trial) -> None:
        if configuration.memory.finishes:
            raise InvalidOption(
                f"auto cannot step aside for memory {configuration.memory!r}, which is the optimizer's momentum"
            )
        if configuration.groups == PLANNED:
            raise InvalidOption(
                "groups is 'planned', and auto measures its ways in the same steps: leave one of them out, or give auto the "
                "groups that a planned run has logged"
            )
        super().__init__(params, configuration, process_set, grad_scaler)
        self._trial = trial
        self._way = SPARSE
        self._starts = StepStarts()
        self._began: float | None = None
        self._ended: float | None = None
        self._owing: dict[int, StepRun | None] = {}
        """Tensors with a residual, and the step that sends it."""

    @property
    def verdict(self) -> Verdict | None:
        """What the last trial found; None until one has ended."""
        return self._trial.verdict

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if isinstance(tensor, torch.nn.Parameter):
            return super().compress(tensor)  # which says what is wrong
        self._greet()
        try:
            position = self._index.find(tensor)
            spec = self.step.specs[position]
            check_device(spec.key, tensor)
        except SparseError:
            return super().compress(tensor)
        self._enter(position)
        if self._way == SPARSE or self._still_owes(position):
            return self._compress(position, tensor)
        self.watchdog.ledger.begin(spec.key)
        wire = tensor.half() if self._way == "fp16" and tensor.dtype in (torch.float32, torch.float64) else tensor
        wire = wire.float() if wire.dtype == torch.bfloat16 else wire
        self.step.stats.count_bytes("dense", wire.numel() * wire.element_size())
        return wire.contiguous(), Passing(tensor, spec.key)

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        self._starts.end()
        if not isinstance(ctx, Passing):
            result = super().decompress(tensor, ctx)
        else:
            result = like(tensor, ctx.gradient)
            self.watchdog.ledger.end(ctx.key)
        self._ended = time.perf_counter()
        return result

    def _enter(self, position: int) -> None:
        """Begin a step with its first tensor."""
        if not self._starts.begins(position):
            return
        is_timed = self._began is not None and self._ended is not None and self._ended > self._began
        last_s = self._ended - self._began if is_timed else None  # type: ignore[operator]
        before = self.verdict
        self._way = self._trial.next(last_s, self._agree)
        if self.verdict is not None and self.verdict is not before and self.collective.rank == 0:
            logger.warning("compressor %s: %s", self.name, self.verdict)
        self._began, self._ended = time.perf_counter(), None

    def _agree(self, mine: np.ndarray) -> np.ndarray:
        gathered = self.collective.allgather(mine.view(np.uint8), f"hvd_sparse.trial.{self.name}").wait(self._limit_s)
        return np.frombuffer(gathered.tobytes(), np.float64).reshape(-1, mine.size)

    def _still_owes(self, position: int) -> bool:
        """Whether a residual has not yet been sent, by a step that all ranks found good."""
        run = self._owing.get(position)
        if run is not None and run.is_finite and run.failure is None and position in run.completed:
            del self._owing[position]
        return position in self._owing

    def _compress(self, position: int, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        spec, is_sparse_way = self.step.specs[position], self._way == SPARSE
        self.step.sends_everything = not is_sparse_way
        try:
            wire, ticket = super().compress(tensor)
        finally:
            self.step.sends_everything = False
        if self.configuration.is_sparse(spec.shape, spec.numel):
            self._owing[position] = None if is_sparse_way or not isinstance(ticket, Ticket) else ticket.run
        return wire, ticket

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        found = super().load_state_dict(state, strict)
        keys = state["tensors"]  # a dense way is to send what was loaded, too
        self._owing = {position: None for position, spec in enumerate(self.step.specs) if spec.key in keys}
        return found

    def _forget_world(self) -> None:
        super()._forget_world()
        self._starts, self._began = StepStarts(), None
        self._trial.restart()
        for position in self._owing:
            self._owing[position] = None
